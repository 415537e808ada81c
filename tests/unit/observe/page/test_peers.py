"""Other instances are asked rarely, within bounds, and with nothing that is for others."""

import contextlib
import http.server
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from everflow.observe.observation import Observation, ObservedHost, status_of
from everflow.observe.page.peers import (
    EVERY_MS,
    FORGOTTEN_MS,
    MOST_PEERS,
    SHARE,
    Peers,
    PeerSilentError,
    StatusClient,
)
from unit.manual_clock import ManualClock
from unit.observe.observations import FULL, WHOLE, changed

OWN = "a:1"
HOSTS = [ObservedHost(host=host) for host in ("b:1", OWN, "c:1")]


class Others:
    """Who is asked; one that is ``away`` does not answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.away: set[str] = set()
        self.takes_ms = 0.0
        self.clock = ManualClock(1_000_000)
        self.rounds: list[Callable[[], None]] = []
        self.peers = Peers(self.ask, lambda: OWN, self.clock, self.rounds.append)

    def ask(self, host: str) -> Observation:
        self.asked.append(host)
        self.clock.advance(self.takes_ms)
        if host in self.away:
            raise PeerSilentError("no route")
        return WHOLE

    def round(self, hosts: list[ObservedHost] = HOSTS) -> None:
        """A look, and the round of questions that it began."""
        self.peers.look(hosts)
        for work in self.rounds:
            work()
        self.rounds.clear()


@pytest.fixture
def others() -> Others:
    return Others()


def test_a_look_waits_for_nobody_and_the_own_instance_is_not_asked(others: Others) -> None:
    assert [(peer.host, peer.facts) for peer in others.peers.look(HOSTS)] == [
        ("b:1", None),
        ("c:1", None),
    ]
    assert others.asked == []
    assert len(others.rounds) == 1
    others.peers.look(HOSTS)
    assert len(others.rounds) == 1, "one round at a time"
    others.rounds[0]()
    assert sorted(others.asked) == ["b:1", "c:1"]
    known = others.peers.look(HOSTS)
    assert [peer.facts is not None and peer.facts.seen == WHOLE for peer in known] == [True, True]


def test_the_next_round_is_some_seconds_later_and_later_after_a_long_one(others: Others) -> None:
    others.round()
    others.clock.advance(EVERY_MS - 1)
    others.round()
    assert len(others.asked) == 2
    others.clock.advance(1)
    others.takes_ms = 3_000.0
    others.round()
    assert len(others.asked) == 4
    others.clock.advance(SHARE * 6_000.0 - 1)
    others.round()
    assert len(others.asked) == 4
    others.clock.advance(1)
    others.round()
    assert len(others.asked) == 6


def test_one_that_is_away_keeps_what_it_said_and_its_age(others: Others) -> None:
    others.round()
    others.away = {"b:1"}
    for _ in range(2):
        others.clock.advance(20_000)
        others.round()
    away, there = others.peers.look(HOSTS)
    assert (away.error, away.age_s, away.silent_s) == ("no route", 40.0, 20.0)
    assert away.facts is not None
    assert (there.error, there.age_s, there.silent_s) == ("", 0.0, 0.0)
    others.away = set()
    others.clock.advance(20_000)
    others.round()
    assert others.peers.look(HOSTS)[0][2:] == (0.0, "", 0.0)


def test_one_that_never_answered_has_its_reason_and_no_numbers(others: Others) -> None:
    others.away = {"b:1"}
    others.round()
    assert others.peers.look(HOSTS)[0][:4] == ("b:1", None, 0.0, "no route")


def test_a_defect_does_not_hide_the_rest(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others.peers, "ask", lambda host: {}[host])
    others.round()
    assert [peer.error for peer in others.peers.look(HOSTS)] == ["KeyError", "KeyError"]


def test_so_many_are_asked_and_who_has_left_is_forgotten(others: Others) -> None:
    many = [ObservedHost(host=f"h{number}:1") for number in range(100)]
    others.round(many)
    assert len(others.asked) == MOST_PEERS
    others.clock.advance(FORGOTTEN_MS + 1)
    others.round(HOSTS)
    assert sorted(others.peers._known) == ["b:1", "c:1"]


class Answering(http.server.BaseHTTPRequestHandler):
    """Does what the test says, and notes what it was asked."""

    def do_GET(self) -> None:
        server: Any = self.server
        server.heard.append((self.path, self.headers.get("Authorization")))
        server.does(self)

    def log_message(self, *_: Any) -> None: ...


def says(content: bytes, status: int = 200, **headers: str) -> Callable[[Any], None]:
    def answer(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(status)
        for name, value in headers.items():
            to.send_header(name, value)
        to.end_headers()
        with contextlib.suppress(OSError):
            to.wfile.write(content)

    return answer


@contextlib.contextmanager
def instance(
    does: Callable[[Any], None], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, str | None]]]]:
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.does, server.heard = does, []
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    serving.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", server.heard
    finally:
        server.shutdown()
        serving.join(60)
        server.server_close()


def client(**values: Any) -> StatusClient:
    """One that has time: the machine may be busy."""
    return StatusClient(**{"application_id": "orders", "within_s": 60.0, **values})


STATUS = json.dumps(status_of(FULL)).encode()


def test_its_status_is_read_with_the_token() -> None:
    with instance(says(STATUS)) as (host, heard):
        seen = client(token="secret")(host)
        assert [task.task for task in seen.tasks] == [task.task for task in FULL.tasks]
        client()(host)
        assert heard == [("/status", "Bearer secret"), ("/status", None)]


@pytest.mark.parametrize(
    ("does", "why"),
    [
        (says(b"", 401), "query.token.file"),
        (says(b"", 404), "http.listen"),
        (says(b"", 503), "it answers 503"),
        (says(b"<html>"), "cannot be read"),
        (says(b"[" * 60_000), "cannot be read"),
        (says(STATUS.replace(b'"lag": 3', b'"lag": NaN')), "cannot be read"),
        (says(b"{}"), "cannot be read"),
        (says(json.dumps(status_of(changed(application_id="other"))).encode()), "other"),
        (says(STATUS + b" " * 70_000), "more than 65,536 bytes"),
        (lambda to: to.wfile.write(b"nothing of the kind\r\n"), "nothing of the kind"),
    ],
)
def test_what_is_no_answer_has_its_reason(does: Callable[[Any], None], why: str) -> None:
    with instance(does) as (host, _), pytest.raises(PeerSilentError, match=why):
        client(most_bytes=65_536)(host)


def test_a_redirection_is_not_followed() -> None:
    with (
        instance(says(STATUS)) as (elsewhere, heard),
        instance(says(b"", 307, Location=f"http://{elsewhere}/status")) as (host, _),
    ):
        with pytest.raises(PeerSilentError, match="307"):
            client(token="secret")(host)
        assert heard == []


def test_an_answer_that_never_ends_is_ended() -> None:
    def drips(to: http.server.BaseHTTPRequestHandler) -> None:
        to.send_response(200)
        to.end_headers()
        with contextlib.suppress(OSError):
            while True:
                to.wfile.write(b" ")
                to.wfile.flush()
                threading.Event().wait(0.02)

    with instance(drips) as (host, _):
        began_s = time.monotonic()
        with pytest.raises(PeerSilentError, match=r"more than 0\.3 s"):
            client(within_s=0.3)(host)
        assert time.monotonic() - began_s < 60


@pytest.mark.parametrize("host", ["", "b", "b:", "b:x", "a@b:1", "b:1/x", "b:99999", "[::1"])
def test_what_is_no_address_is_not_asked(host: str) -> None:
    with pytest.raises(PeerSilentError, match=r"host:port"):
        client()(host)


def test_one_that_says_nothing_is_not_waited_for() -> None:
    went = threading.Event()

    def waits(_: object) -> None:
        went.wait(60)

    with instance(waits) as (host, _):
        with pytest.raises(PeerSilentError, match=r"more than 0\.2 s"):
            client(within_s=0.2)(host)
        went.set()


def test_it_is_asked_over_tls_and_only_one_that_is_trusted(tmp_path: Path) -> None:
    authority = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    file = tmp_path / "ca"
    authority.cert_pem.write_to_path(str(file))
    with instance(says(STATUS), served) as (host, heard):
        trusts = ssl.create_default_context(cafile=str(file))
        assert client(token="t", tls=trusts)(host).state == "RUNNING"
        stranger = client(token="t", tls=ssl.create_default_context())
        with pytest.raises(PeerSilentError, match="certificate"):
            stranger(host)
        assert len(heard) == 1
