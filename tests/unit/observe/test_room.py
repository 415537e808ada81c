"""There is room for who comes, whoever holds connections; and lines about requests are few."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from everflow.observe.http_server import (
    MOST_CONNECTIONS,
    SAID_EVERY_S,
    SPARE,
    BoundedLog,
    HttpServer,
    Room,
    application,
)
from everflow.testing import wait_until
from unit.observe.observations import WHOLE

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
    return Room(most, spare)


def test_who_has_waited_longest_of_those_with_most_gives_way() -> None:
    room, closed = room_for(4, 1), list[Held]()
    first = Held("prometheus", 0.0, closed)
    ours = [Held("attacker", since, closed) for since in (3.0, 2.0, None)]
    for one in [first, *ours]:
        assert room.came(one)
    assert room.came(Held("kubelet", 9.0, closed))
    assert closed == [ours[1]]
    assert not room.full


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
    """Of one client, more than there is room for: idle, with half a request, or answered."""
    server = HttpServer("127.0.0.1:0", application(lambda: WHOLE, ""), request_s=600)
    with closing(server), connected(server, begun):
        for _ in range(3):
            assert status(server, "/live") == status(server, "/ready") == 200
            assert status(server, "/status") == 200


@pytest.mark.usefixtures("many_files")
def test_probes_are_answered_beside_as_many_requests_as_can_be() -> None:
    """Each of them is under way: none gives way, and their threads are all taken."""
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
    """It would be answered for as long as it likes."""
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
