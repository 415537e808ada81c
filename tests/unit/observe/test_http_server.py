"""The routes, and an address that cannot be had."""

from __future__ import annotations

import asyncio
import http.client
import json
import logging
import os
import re
import resource
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from everflow.autoscale import Autoscaler
from everflow.errors import ConfigError
from everflow.fleet.control import Door, Places
from everflow.fleet.control import application as fleet_routes
from everflow.fleet.decision import TOKEN_HEADER
from everflow.observe.http_server import (
    MOST_CONNECTIONS,
    MOST_HEAD_BYTES,
    SAID_EVERY_S,
    SPARE,
    BoundedLog,
    HttpServer,
    OpenConnections,
    application,
)
from everflow.observe.observation import Observation
from everflow.observe.page.routes import Page
from everflow.observe.requests import OwnNames
from everflow.testing import wait_until
from unit.observe.observations import FULL, WHOLE, changed
from unit.observe.page.page_facts import HANDED_OVER, JOINED, SHOWN


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
    status, text = get(server, "/ready")
    assert status == 503
    assert re.fullmatch('{"ok":false,"why":"active .*: 1_1"}', text)


def test_the_status_is_json_with_null_for_the_unknown(server: HttpServer, shown: Shown) -> None:
    shown.seen = changed(FULL, counters={}, members=None)
    status = json.loads(get(server, "/status")[1])
    assert status["lag"] is None
    assert status["members"] is None
    assert [task["task"] for task in status["tasks"]] == ["1_0", "1_1", "1_2", "1_3", "2_0"]
    assert status["tasks"][0]["stores"] == [{"name": "counts", "bytes": 4096}]


def test_the_rebalances_are_a_json_list_the_newest_last(shown: Shown) -> None:
    app = application(shown.look, "", rebalances=lambda: [JOINED, HANDED_OVER])
    with closing(HttpServer("127.0.0.1:0", app)) as server:
        status, text = get(server, "/rebalances")
    found = json.loads(text)
    assert status == 200
    assert [(one["generation"], one["reason"]) for one in found] == [(3, "start"), (4, "joined")]
    assert found[1]["gaps_ms"] == {"1_0": 210.5, "1_1": None}
    assert found[1]["decision"]["moved"][0]["tasks"] == ["1_2"]


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


# There is room for who comes, whoever holds connections.


MANY = MOST_CONNECTIONS + SPARE + 24


@dataclass(eq=False)
class Held:
    """A connection of a client; ``since`` None: it is being answered."""

    address: str
    since: float | None
    closed: list[Held] = field(default_factory=list)

    def waits_since(self) -> float | None:
        return self.since

    def give_way(self) -> None:
        self.closed.append(self)


def room_for(most: int, spare: int) -> Any:
    """For connections that are none."""
    return OpenConnections(most, spare)


def test_who_has_waited_longest_of_those_with_most_gives_way() -> None:
    room, closed = room_for(4, 1), list[Held]()
    first = Held("prometheus", 0.0, closed)
    ours = [Held("attacker", since, closed) for since in (3.0, 2.0, None)]
    for one in [first, *ours]:
        assert room.came(one)
    assert room.came(Held("kubelet", 9.0, closed))
    assert closed == [ours[1]]
    assert not room.full
    room, pair = room_for(2, 1), [Held("prometheus", 2.0, closed), Held("browser", 1.0, closed)]
    assert all(room.came(one) for one in [*pair, Held("kubelet", 9.0, closed)])
    assert closed == [ours[1], pair[1]], "of hosts with as many, too"


def test_where_all_are_answered_some_more_may_come_and_no_more_than_those() -> None:
    room = room_for(3, 2)
    busy = [Held("a", None) for _ in range(5)]
    assert [room.came(one) for one in busy] == [True] * 5
    assert room.full
    assert not room.came(Held("b", 0.0))
    busy[0].since = 1.0
    assert room.came(Held("b", 2.0)), "somebody has been answered"
    for one in busy:
        room.left(one)
    assert not room.full


@given(st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.floats(0, 9)), max_size=40))
def test_a_room_never_has_more_than_it_has_places(came: list[tuple[str, float | None]]) -> None:
    room, closed, here = room_for(5, 2), list[Held](), list[Held]()
    for address, since in came:
        one = Held(address, since, closed)
        if room.came(one):
            here.append(one)
        here = [each for each in here if each not in closed]
        assert len(here) <= 7
        assert room.full == (len(here) > 5)
    for one in [*here, *here]:
        room.left(one)
    assert not room.full


@pytest.fixture
def many_files() -> Iterator[None]:
    """Both ends of the connections are files of this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, 4 * MANY) if soft != resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard) if hard > 0 else wanted, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def connected(server: HttpServer, sent: bytes, number: int = MANY) -> Iterator[list[socket.socket]]:
    """Connections of one client, each of which has sent this."""
    host, _, port = server.address.rpartition(":")
    with ExitStack() as stack:
        made = []
        for _ in range(number):
            one = stack.enter_context(socket.create_connection((host, int(port)), timeout=60))
            made.append(one)
            try:
                one.sendall(sent)
            except OSError:  # it had to give way
                continue
        yield made


def status(server: HttpServer, path: str) -> int:
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as asking:
        asking.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return int(asking.recv(1 << 16).split()[1])


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /li",
        b"GET /status HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /drain HTTP/1.1\r\nHost: localhost\r\nOrigin: x\r\nContent-Length: 9\r\n\r\nhalf",
        b"GET /topology HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_connections_that_ask_nothing_keep_nobody_out(begun: bytes) -> None:
    server = HttpServer("127.0.0.1:0", application(lambda: WHOLE, ""), request_s=600)
    with closing(server), connected(server, begun):
        for _ in range(3):
            assert status(server, "/live") == status(server, "/ready") == 200
            assert status(server, "/status") == 200


@pytest.mark.usefixtures("many_files")
def test_probes_are_answered_beside_as_many_requests_as_can_be() -> None:
    answered, asked = threading.Event(), list[int]()

    async def slow(_: Request) -> PlainTextResponse:
        asked.append(1)
        await asyncio.get_running_loop().run_in_executor(None, answered.wait)
        return PlainTextResponse("at last")

    app = application(lambda: WHOLE, "")
    app.routes.append(Route("/slow", slow))
    server = HttpServer("127.0.0.1:0", app)
    begun = b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n"
    try:
        with connected(server, begun, MOST_CONNECTIONS):
            wait_until(lambda: len(asked) == MOST_CONNECTIONS, 60, "all are under way")
            for _ in range(SPARE + 10):
                assert status(server, "/live") == 200
            assert status(server, "/status") == 503
            with connected(server, b"", 2 * SPARE):
                assert status(server, "/ready") == 200
            answered.set()
    finally:
        answered.set()
        server.close()


@pytest.mark.usefixtures("many_files")
def test_who_does_not_read_his_answer_gives_way() -> None:
    length, asked = 24 << 20, list[int]()

    async def large(_: Request) -> PlainTextResponse:
        asked.append(1)
        return PlainTextResponse(b"x" * length)

    app = application(lambda: WHOLE, "")
    app.routes.append(Route("/large", large))
    server = HttpServer("127.0.0.1:0", app)
    begun = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with closing(server), connected(server, begun, 2) as slow:
        wait_until(lambda: len(asked) == 2, 60, "both are being answered")
        with connected(server, b"", MANY):
            assert status(server, "/status") == 200
        for one in slow:
            assert received(one) < length


def received(one: socket.socket) -> int:
    total = 0
    try:
        while data := one.recv(1 << 20):
            total += len(data)
    except ConnectionResetError:
        return total
    return total


def test_requests_that_are_none_are_told_of_at_times(caplog: pytest.LogCaptureFixture) -> None:
    server = HttpServer("127.0.0.1:0", application(lambda: WHOLE, ""))
    host, _, port = server.address.rpartition(":")
    with closing(server), caplog.at_level(logging.DEBUG):
        for number in range(200):
            with socket.create_connection((host, int(port)), timeout=60) as asking:
                asking.sendall(b"no request %d\r\n\r\n" % number)
                assert b" 400 " in asking.recv(1 << 16)
        for _ in range(50):
            with socket.create_connection((host, int(port)), timeout=60) as asking:
                asking.sendall(
                    b"GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
                    b"Upgrade: websocket\r\n\r\n"
                )
                assert asking.recv(1 << 16)
    lines = [one for one in caplog.records if one.levelno >= logging.WARNING]
    assert 1 <= len(lines) <= 5, [one.getMessage() for one in lines]
    assert all(one.name.startswith("everflow") for one in lines)


def test_a_line_says_how_many_were_left_out(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    said = BoundedLog("here:1", lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(1_000):
            said.warning("Invalid")
            said.error("Failed", exc_info=ValueError("x"))
        said.error("Failed", exc_info=KeyError("y"))
        assert len(caplog.records) == 3
        now = SAID_EVERY_S
        said.warning("Invalid")
    assert "999 more" in caplog.records[-1].getMessage()


# By which names a request may call a server, and what it may not learn by others.


FOREIGN = [
    "evil.example",
    "evil.example:9464",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "localhost@evil.example",
    "localhost:80:80",
    "localhost:x",
    "evil.example#localhost",
    "10.9.8.7",
    "0.0.0.0",
    "[fd00::7]",
    "127.1",
    "0x7f.0.0.1",
    "2130706433",
    "\u017focalhost",
    "",
]
OWN = [
    "localhost",
    "LocalHost:9464",
    "localhost.",
    "127.0.0.1",
    "127.0.0.1:1",
    "127.8.7.6:9464",
    "[::1]",
    "[::1]:9464",
    "[::ffff:127.0.0.1]",
]


@pytest.mark.parametrize("listen", ["127.0.0.1:9464", "localhost:9464", "[::1]:9464"])
def test_a_loopback_address_is_called_by_its_own_names_alone(listen: str) -> None:
    names = OwnNames(listen, ["", "orders-0.orders:9464", "proxy.example"])
    for name in [*OWN, "orders-0.orders", "Orders-0.orders:1", "proxy.example:443"]:
        assert names.named(name), name
    for name in [*FOREIGN, socket.gethostname() + ".evil.example"]:
        assert not names.named(name), name


@pytest.mark.parametrize("listen", ["0.0.0.0:9464", "[::]:9464"])
def test_at_all_addresses_every_address_is_its_own_and_the_machines_names(listen: str) -> None:
    names = OwnNames(listen)
    for name in [*OWN, "10.9.8.7:9464", "[fd00::7]", socket.gethostname(), socket.getfqdn()]:
        assert names.named(name), name
    for name in ["evil.example", "10.9.8.7.evil.example", "1.2.3", "10.9.8.7@evil.example", ""]:
        assert not names.named(name), name


def test_an_address_of_the_machine_is_its_own_and_no_other() -> None:
    names = OwnNames("10.1.2.3:9464")
    assert names.named("10.1.2.3:9464")
    assert names.named(socket.gethostname())
    assert not names.named("10.1.2.4:9464")
    assert OwnNames("10.1.2.3:9464", ["*"]).named("evil.example")


LOOPBACK = OwnNames("127.0.0.1:1")


@given(st.text(max_size=30), st.sampled_from(["", ".evil.example", "@evil.example", ":1", "."]))
def test_whatever_is_own_ends_with_an_own_name(before: str, behind: str) -> None:
    """No text around an own name makes a foreign one pass."""
    header = f"{before}localhost{behind}"
    if LOOPBACK.named(header):
        assert header.lower().rpartition(":")[0] in ("localhost", "localhost.") or (
            header.lower() in ("localhost", "localhost.")
        )


def answered(
    address: str,
    path: str,
    host: str | None,
    method: str = "GET",
    *headers: str,
    version: str = "1.1",
) -> int:
    """The status of the answer; ``host`` None: there is no such header."""
    where, _, port = address.rpartition(":")
    lines = [f"{method} {path} HTTP/{version}", *headers, "Connection: close"]
    if host is not None:
        lines.append(f"Host: {host}")
    with socket.create_connection((where.strip("[]"), int(port)), timeout=60) as asking:
        asking.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace"))
        return int(asking.recv(1 << 16).split()[1])


@contextmanager
def watched(drained: list[str], tokens: tuple[str, ...] = ()) -> Iterator[str]:
    page = Page(facts=lambda: SHOWN, drawing="{}", tokens=tokens)
    app = application(lambda: WHOLE, "", lambda: drained.append("drain"), page)
    server = HttpServer("127.0.0.1:0", app, free=page.needs_token)
    with closing(server):
        yield server.address


PATHS = [
    "/",
    "/status",
    "/rebalances",
    "/metrics",
    "/topology",
    "/page",
    "/page/view",
    "/page/letters",
    "/none",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_page_of_another_site_learns_nothing_of_an_instance(path: str) -> None:
    with watched([]) as address:
        known = answered(address, path, "localhost:1234")
        assert known == {"/none": 404, "/page/letters": 403}.get(path, 200)
        for name in FOREIGN:
            assert answered(address, path, name) == 421, name


def test_nor_does_it_do_anything() -> None:
    drained: list[str] = []
    with watched(drained) as address:
        assert answered(address, "/drain", "evil.example", "POST") == 421
        assert drained == []
        assert answered(address, "/drain", address, "POST") == 202


@pytest.mark.parametrize("path", ["/live", "/ready"])
def test_probes_are_answered_whatever_they_call_it(path: str) -> None:
    with watched([]) as address:
        for name in FOREIGN:
            assert answered(address, path, name) == 200
        assert answered(address, path, None, version="1.0") == 200


def test_a_target_with_a_host_is_what_counts_and_a_request_has_one_host() -> None:
    with watched([]) as address:
        assert answered(address, "http://localhost/status", "evil.example") == 200
        assert answered(address, f"http://{address}/status?x=1", "evil.example") == 200
        for target in ("http://evil.example/status", "HTTP://evil.example", "http:///status"):
            assert answered(address, target, "localhost") == 421
        assert answered(address, "/status", "localhost", "GET", "Host: evil.example") == 400
        assert answered(address, "/status", None) == 400
        assert answered(address, "/status", None, version="1.0") == 421


def test_what_asks_for_a_token_may_be_called_anything() -> None:
    with watched([], tokens=("a-token-of-some-length",)) as address:
        bearer = "Authorization: Bearer a-token-of-some-length"
        assert answered(address, "/page/view", "proxy.example", "GET", bearer) == 200
        assert answered(address, "/page", "proxy.example") == 401
        assert answered(address, "/status", "proxy.example", "GET", bearer) == 421


def test_a_fleet_is_resized_by_its_own_name_alone(tmp_path: Path) -> None:
    loop = Autoscaler(target="", options=(), folder=tmp_path, least=1, most=1, say=lambda _: None)
    own = frozenset({"127.0.0.1"})
    door = Door("t", own, "orders", Places(lambda _: None), loop)
    app = fleet_routes(door)
    server = HttpServer("127.0.0.1:0", app, "--listen", free=lambda path: path == "/report")
    with closing(server):
        assert answered(server.address, "/fleet", "evil.example") == 421
        assert answered(server.address, "/scale", "evil.example", "POST") == 421
        assert answered(server.address, "/fleet", server.address) == 200
        shown = f"{TOKEN_HEADER}: t"
        assert answered(server.address, "/report", "driver.example", "POST", shown) == 400
    assert (loop.least, loop.most) == (1, 1)


async def who(scope: Any, _: Any, send: Any) -> None:
    body = f"{scope['client'][0]} {scope['scheme']}".encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def test_who_asks_is_who_is_connected_not_who_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of web applications set these for their servers, and ours is in the same process."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    monkeypatch.setenv("WEB_CONCURRENCY", "auto")
    server = HttpServer("127.0.0.1:0", cast(Any, who))
    host, _, port = server.address.rpartition(":")
    with closing(server), socket.create_connection((host, int(port)), timeout=60) as asking:
        asking.sendall(
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 10.0.0.7\r\n"
            b"X-Forwarded-Proto: https\r\nForwarded: for=10.0.0.7\r\nX-Real-IP: 10.0.0.7\r\n"
            b"Connection: close\r\n\r\n"
        )
        with asking.makefile("rb") as answer:
            assert answer.read().endswith(b"127.0.0.1 http")
