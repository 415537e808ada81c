"""What is asked directly: past a proxy, and whatever the other side does."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from everflow.autoscale import AutoscaledInstance
from everflow.cli.watch import asked_of, status_at
from everflow.client.direct import BrokenAnswerError, RefusedError, asked
from everflow.errors import RetriableError
from everflow.observe.http_server import HttpServer, application
from unit.observe.observations import WHOLE

WITHIN_S = 20.0


@contextmanager
def says(answer: bytes) -> Iterator[str]:
    """Who answers every question so, and hangs up."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    host, port = listening.getsockname()
    yield f"{host}:{port}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()


@pytest.fixture
def behind_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that knows nobody here, as that of a company's network."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("behind_a_proxy")
def test_instances_are_asked_past_a_proxy() -> None:
    server = HttpServer("127.0.0.1:0", application(lambda: WHOLE, ""))
    try:
        assert status_at(server.address)["state"] == "RUNNING"
    finally:
        server.close()


BROKEN = (b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n{", b"220 mail.example ESMTP\r\n", b"")
"""Cut off in the middle, no HTTP at all, and nothing."""


@pytest.mark.parametrize("answer", BROKEN)
def test_an_answer_that_is_none_is_none_for_a_loop(answer: bytes, tmp_path: object) -> None:
    """The loop of instances, and a supervisor, go on: one of them is just ending, mostly."""
    with says(answer) as address:
        instance = AutoscaledInstance(number=1, address=address, log=None, process=None)  # type: ignore[arg-type]
        assert instance.status() is None
        assert not instance.seen().settled


@pytest.mark.parametrize("answer", BROKEN)
def test_an_answer_that_is_none_is_told_by_commands(answer: bytes) -> None:
    with says(answer) as address:
        with pytest.raises(RetriableError, match="answered"):
            status_at(address)
        with pytest.raises(RetriableError, match="no fleet answered"):
            asked_of(address, None, None)


def test_what_is_no_http_is_told_from_nobody_there() -> None:
    with says(BROKEN[1]) as address, pytest.raises(BrokenAnswerError, match="BadStatusLine"):
        asked(f"http://{address}/", WITHIN_S)
    with pytest.raises(ConnectionRefusedError):
        asked("http://127.0.0.1:1/", WITHIN_S)


def test_a_refusal_has_its_words() -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 12\r\n\r\nnot\n for you"
    with says(refusal) as address, pytest.raises(RefusedError) as refused:
        asked(f"http://{address}/", WITHIN_S)
    assert (refused.value.status, str(refused.value)) == (403, "not for you")


def test_an_authority_is_asked_for() -> None:
    with says(b"") as address, pytest.raises(OSError, match=r"SSL|EOF|reset"):
        asked(f"https://{address}/", WITHIN_S, tls=ssl.create_default_context())
