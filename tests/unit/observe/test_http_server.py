"""The routes, and an address that cannot be had."""

import asyncio
import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from everflow.errors import ConfigError
from everflow.observe.http_server import MOST_HEAD_BYTES, HttpServer, application
from everflow.observe.observation import Observation
from unit.observe.observations import FULL, WHOLE, changed


class Shown:
    """What the server looks at; a test changes it."""

    seen: Observation = WHOLE

    def look(self) -> Observation:
        return self.seen


@pytest.fixture
def shown() -> Shown:
    return Shown()


@pytest.fixture
def server(shown: Shown) -> Iterator[HttpServer]:
    server = HttpServer("127.0.0.1:0", application(shown.look, "Topologies:\n"))
    yield server
    server.close()


def get(server: HttpServer, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{server.address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_routes(server: HttpServer, shown: Shown) -> None:
    assert get(server, "/live")[0] == get(server, "/ready")[0] == 200
    assert "everflow_ready" in get(server, "/metrics")[1]
    assert get(server, "/topology") == (200, "Topologies:\n")
    assert "/status" in get(server, "/")[1]
    assert get(server, "/nothing")[0] == 404
    shown.seen = FULL
    assert get(server, "/ready") == (
        503,
        '{"ok":false,"why":"active tasks that do not run yet: 1_1"}',
    )


def test_the_status_is_json_with_null_for_the_unknown(server: HttpServer, shown: Shown) -> None:
    shown.seen = changed(FULL, counters={}, members=None)
    status = json.loads(get(server, "/status")[1])
    assert status["lag"] is None
    assert status["members"] is None
    assert [task["task"] for task in status["tasks"]] == ["1_0", "1_1", "1_2", "1_3", "2_0"]
    assert status["tasks"][0]["stores"] == [{"name": "counts", "bytes": 4096}]


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /li", b"POST /late HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nhalf"],
)
def test_a_request_that_does_not_come_is_not_waited_for(begun: bytes) -> None:
    """Some hundred connections on which nothing comes would keep probes and metrics out."""

    async def late(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body())

    app = Starlette(routes=[Route("/late", late, methods=["POST"])])
    server = HttpServer("127.0.0.1:0", app, request_s=0.3)
    host, _, port = server.address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=60) as asking:
            asking.sendall(begun)
            assert asking.recv(100) == b"", "the server closes"
    finally:
        server.close()


def test_an_answer_takes_its_time_and_a_connection_is_used_again() -> None:
    """What is bounded is the request. The answer ends once the server would have closed."""

    async def told(_: Request) -> PlainTextResponse:
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        loop.call_later(0.6, answered.set_result, "told")
        return PlainTextResponse(await answered)

    server = HttpServer("127.0.0.1:0", Starlette(routes=[Route("/", told)]), request_s=0.3)
    host, _, port = server.address.rpartition(":")
    asking = http.client.HTTPConnection(host, int(port), timeout=60)
    try:
        for _ in range(2):
            asking.request("GET", "/")
            assert asking.getresponse().read() == b"told"
    finally:
        asking.close()
        server.close()


def test_the_head_of_a_request_is_bounded(server: HttpServer) -> None:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as asking:
        asking.sendall(b"GET /live HTTP/1.1\r\nX: " + b"x" * (MOST_HEAD_BYTES + 1))
        assert asking.recv(100).startswith(b"HTTP/1.1 4")
    assert get(server, "/live?" + "x" * (MOST_HEAD_BYTES // 2))[0] == 200


def test_a_look_that_fails_is_an_error_of_that_request(server: HttpServer, shown: Shown) -> None:
    shown.look = lambda: 1 / 0  # type: ignore[method-assign,return-value,assignment]
    app = HttpServer("127.0.0.1:0", application(lambda: shown.look(), ""))
    try:
        assert get(app, "/metrics")[0] == 500
        assert get(app, "/topology")[0] == 200
    finally:
        app.close()


def test_an_address_that_is_taken_is_named_with_the_cure() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"http\.listen.*listened.*0"):
            HttpServer(address, application(lambda: WHOLE, ""))


def posted_from(
    host: str, app: Starlette, path: str, headers: Sequence[tuple[bytes, bytes]] = ()
) -> int:
    """The status of the answer to a POST of a client at this host."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": list(headers),
        "client": (host, 5555),
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


def test_from_another_host_it_is_refused(shown: Shown) -> None:
    told: list[str] = []
    app = application(shown.look, "", lambda: told.append("drain"))
    assert posted_from("10.0.0.7", app, "/drain") == 403
    assert told == []
    from_a_site = [(b"origin", b"https://elsewhere.example")]
    assert posted_from("127.0.0.1", app, "/drain", from_a_site) == 403, "any site's page could"
    assert told == []
    assert posted_from("127.0.0.1", app, "/drain") == 202
    assert told == ["drain"]


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux can be told so")
def test_whoever_answers_takes_no_core_from_who_computes() -> None:
    policies: list[int] = []

    def look() -> Observation:
        policies.append(os.sched_getscheduler(0))
        return WHOLE

    server = HttpServer("127.0.0.1:0", application(look, ""))
    try:
        get(server, "/status")
    finally:
        server.close()
    assert set(policies) == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_after_its_end_nobody_answers(shown: Shown) -> None:
    server = HttpServer("127.0.0.1:0", application(shown.look, ""))
    server.close()
    with pytest.raises(urllib.error.URLError):
        get(server, "/live")
