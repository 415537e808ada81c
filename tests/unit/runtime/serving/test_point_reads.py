"""Point reads on the short road answer what the general road does, and leave it all the rest."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everflow import serdes
from everflow.config import StreamsConfig
from everflow.observe import short_road
from everflow.observe.http_server import HttpServer
from everflow.observe.short_road import ENOUGH, MOST_REST_S, ShortReads, rest_after
from everflow.runtime.query.key_metadata import StoreSite
from everflow.runtime.serving import point_reads
from everflow.runtime.serving.point_reads import MOST_BYTES, PointReads
from everflow.runtime.serving.served import served
from everflow.serdes.windowed import window_store_key
from everflow.state.store import StoreSpec
from everflow.testing import wait_until
from unit.runtime.query.query_stores import COUNTS, WINDOWS, Instance

TOKEN = "a-token-of-some-length"
NOTES = StoreSpec(
    name="notes", kind="key_value", key_serde=serdes.json("n bigint"), value_serde=serdes.long()
)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    sites = tuple(
        StoreSite(spec=spec, subtopology=0, partitions=1, decode=spec.value_serde.decode)
        for spec in (COUNTS, WINDOWS, NOTES)
    )
    made = Instance(tmp_path, sites=sites)
    made.put(0, COUNTS, {b"a": 1, "ä/b".encode(): 2, b"": 3})
    control = [*range(0x21), 0x7F]  # a key may have them: in a target they are quoted
    made.put(0, COUNTS, {bytes([byte]): byte for byte in control})
    made.put(0, WINDOWS, {window_store_key(b"a", 3_000): 7})
    key = NOTES.key_serde.encode({"n": 5})
    assert key is not None
    made.put(0, NOTES, {key: 9})
    yield made
    made.close()


@contextmanager
def service(instance: Instance, token_file: Path | None = None) -> Iterator[str]:
    config = StreamsConfig(
        application_id="a",
        bootstrap_servers="b:1",
        query_listen="127.0.0.1:0",
        query_token_file="" if token_file is None else str(token_file),
    )
    with served(instance, instance._asked, config) as address:
        yield address


@pytest.fixture
def address(instance: Instance) -> Iterator[str]:
    with service(instance) as found:
        yield found


class Wire:
    """A connection, byte by byte."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer."""
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, _, body = data.partition(b"\r\n\r\n")
        found = re.search(rb"content-length: (\d+)", head.lower())
        if found is None:  # no request: it ends with the connection
            while more := self.socket.recv(1 << 16):
                body += more
            return int(head.split()[1]), body
        length = int(found[1])
        while len(body) < length:
            body += self._more()
        return int(head.split()[1]), body[:length]  # more is of the next answer

    def ended(self) -> bool:
        return self.socket.recv(1) == b""

    def _more(self) -> bytes:
        data = self.socket.recv(1 << 16)
        assert data, "the connection ended"
        return data


def request(path: str, *headers: str) -> bytes:
    lines = (f"GET {path} HTTP/1.1", "Host: localhost", *headers)
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


PATHS = [
    ("/stores/counts/entries/a", 200),
    ("/stores/counts/entries/%C3%A4%2Fb", 200),
    ("/stores/counts/entries/%C3%A4/b", 200),
    ("/stores/counts/entries/", 200),
    ("/stores/counts/entries/none", 404),
    ("/stores/notes/entries/%7B%22n%22:5%7D", 200),
    ("/stores/notes/entries/%7B", 400),
    ("/stores/windows/window/3000/a", 200),
    ("/stores/windows/window/3001/a", 404),
    ("/stores/windows/window/-1/a", 400),
    ("/stores/windows/window/soon/a", 400),
    ("/stores/counts/entries/%ff", 400),
    ("/stores/windows/window/3000/%ff", 400),
    ("/stores/windows/entries/a", 400),
    ("/stores/none/entries/a", 404),
    ("/stores/counts/entries", 200),
    ("/stores/counts/owner/a", 200),
    ("/stores", 200),
    ("/stores/counts/entries/a?stale=true", 200),
    ("/stores/counts/entries/a?frist=1", 400),
]


@pytest.mark.parametrize(("path", "status"), PATHS)
def test_both_roads_give_the_same_answer(instance: Instance, path: str, status: int) -> None:
    """A header that the short road does not know sends a request the general one."""
    with service(instance) as address, Wire(address) as wire:
        wire.send(request(path))
        first = wire.answer()
        wire.send(request(path, "X-Other: 1"))
        assert wire.answer() == first
        assert first[0] == status


def test_requests_that_come_in_parts_or_together_are_all_answered(instance: Instance) -> None:
    whole, other = request("/stores/counts/entries/a"), request("/stores", "X-Other: 1")
    with service(instance) as address, Wire(address) as wire:
        wire.send(whole)
        expected = wire.answer()
        for cut in (1, 10, len(whole) - 1):
            wire.send(whole[:cut])
            wire.send(whole[cut:])
            assert wire.answer() == expected
        wire.send(other)
        assert wire.answer()[0] == 200
        wire.send(whole)
        assert wire.answer() == expected
    with service(instance) as address, Wire(address) as wire:
        wire.send(other[:20])
        wire.send(other[20:] + whole)
        data = b""
        while data.count(b"HTTP/1.1 200") < 2 or not data.endswith(expected[1]):
            data += wire._more()
        assert data.index(b"stores") < data.index(expected[1]), "in the order of the requests"


def test_a_connection_that_reads_on_is_kept_and_one_that_rests_is_closed(
    instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    original = short_road.ShortRoadProtocol.__init__

    def noted(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        self.timeout_keep_alive = 3_600.0
        made.append(self)

    monkeypatch.setattr(short_road.ShortRoadProtocol, "__init__", noted)
    with service(instance) as address, Wire(address) as wire:
        wire.send(request("/stores/counts/entries/a"))
        assert wire.answer()[0] == 200
        (protocol,) = made
        assert protocol.timeout_keep_alive_task is not None
        look = protocol.timeout_keep_alive_handler
        protocol.loop.call_soon_threadsafe(look)
        wire.send(request("/stores/counts/entries/a"))
        assert wire.answer()[0] == 200, "it has read within the hour"
        protocol.timeout_keep_alive = 0.0
        protocol.loop.call_soon_threadsafe(look)
        assert wire.ended()


def test_a_token_is_asked_for_on_both_roads(instance: Instance, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKEN)
    path = "/stores/counts/entries/a"
    with service(instance, tokens) as address, Wire(address) as wire:
        for header, status in (
            (f"Authorization: Bearer {TOKEN}", 200),
            (f"authorization: bearer {TOKEN}", 200),
            ("Authorization: Bearer wrong", 401),
            (f"Authorization: Basic {TOKEN}", 401),
            ("Accept: */*", 401),
        ):
            wire.send(request(path, header))
            assert wire.answer()[0] == status, header


def test_who_asks_together_gets_each_his_own_answer(instance: Instance) -> None:
    """Found, not there, no key, another store and none: one look answers what it can."""
    paths = [path for path, _ in PATHS] * 4
    with service(instance) as address, ExitStack() as opened:
        wires = [opened.enter_context(Wire(address)) for _ in paths]
        expected = []
        for wire, path in zip(wires, paths, strict=True):
            wire.send(request(path, "X-Other: 1"))
            expected.append(wire.answer())
        for _ in range(5):
            for wire, path in zip(wires, paths, strict=True):
                wire.send(request(path))
            assert [wire.answer() for wire in wires] == expected


class Reads:
    """Counts who asks, and who has left."""

    def __init__(self) -> None:
        self.looks: list[list[bytes]] = []
        self.asked = self.lost = 0

    def understood(self, request: bytes) -> bytes | None:
        if not request.startswith(b"GET /stores/"):
            return None
        self.asked += 1
        return request

    def bodies(self, asked: Sequence[bytes]) -> list[bytes | None]:
        self.looks.append(list(asked))
        return [b"short" if b"short" in one else None for one in asked]


async def general(scope: Any, _: Any, send: Any) -> None:
    """The general road: says what was asked."""
    body = scope["path"].encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


SHORT, LONG = request("/stores/short"), request("/stores/long")


def test_who_comes_during_a_rest_shares_a_look_and_who_is_alone_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(short_road, "rest_after", lambda *_: 3_600.0)
    reads = Reads()
    server = HttpServer("127.0.0.1:0", cast(Any, general), short=reads)
    with closing(server), Wire(server.address) as one, Wire(server.address) as other:
        for _ in range(3):  # nobody else is there
            one.send(SHORT)
            assert one.answer() == (200, b"short")
        other.send(LONG)  # waits for an hour
        one.send(SHORT)
        wait_until(lambda: reads.asked == 5, 30, "both wait")
        assert len(reads.looks) == 3
        one.socket.shutdown(socket.SHUT_WR)  # whose end lets everybody be answered
        assert one.answer() == (200, b"short")
        assert other.answer() == (200, b"/stores/long")
        assert sorted(reads.looks[3]) == [LONG, SHORT]


@dataclass
class Asking:
    """A connection that waits; ``tasks``: what the general road has in hand."""

    tasks: Sequence[str] = ()
    asked: bytes | None = SHORT
    body: bytes | None = None

    @property
    def server_state(self) -> Any:
        return SimpleNamespace(tasks=self.tasks, default_headers=[])

    def answered(self, body: bytes | None, _: bytes) -> None:
        self.asked, self.body = None, body


@dataclass
class Loop:
    """An event loop whose time is set; what it shall do is `due`."""

    now: float = 0.0
    due: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, what: Callable[..., None], *given: Any) -> None:
        self.due.append((when, partial(what, *given)))


def turn(reads: ShortReads, loop: Loop, *asking: Asking) -> float:
    """They wait, and are answered; when that was due."""
    for one in asking:
        reads.wait(cast(Any, one), cast(Any, loop))
    ((when, what),) = loop.due
    loop.due.clear()
    loop.now = max(loop.now, when)
    what()
    assert all(one.body == b"short" for one in asking)
    return when


def test_a_loop_with_nothing_else_to_do_rests_until_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(short_road, "rest_after", lambda _, answered: answered / 10)
    loop, rests = Loop(now=100.0), list[float]()
    reads = ShortReads(Reads(), sleep=rests.append)
    turn(reads, loop, Asking())
    assert rests == [], "it is alone"
    assert turn(reads, loop, Asking(), Asking()) == 100.1, "another one"
    assert rests == [0.2]
    loop.now += 0.2
    assert turn(reads, loop, Asking(["a range"]), Asking(["a range"])) <= loop.now
    assert rests == [0.2], "the general road goes on"
    assert turn(reads, loop, Asking(), Asking(), Asking()) == pytest.approx(100.5)
    assert rests == [0.2, pytest.approx(0.3)]


def test_a_rest_is_long_where_looks_are_and_few_share_them() -> None:
    assert rest_after(0.000_1, 2) == pytest.approx(0.002), "two who ask in turns"
    assert rest_after(0.002, 16) == MOST_REST_S, "cores are busy"
    assert rest_after(0.002, 4 * ENOUGH) == pytest.approx(MOST_REST_S / 4), "enough share it"
    assert rest_after(60.0, 1) == MOST_REST_S


GENERAL = "X-By: the general road"
TARGET_BYTES = st.one_of(
    st.integers(0, 255).map(lambda byte: bytes([byte])),
    st.integers(0, 255).map(lambda byte: b"%%%02x" % byte),
    st.sampled_from(
        [b"a", b"/", b"%", b"%2", b"..", b"%00", b"\x7f", b"\t", b"\x0b", b"\x00", b"\r"]
    ),
)
SETTINGS = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SETTINGS
@given(parts=st.lists(TARGET_BYTES, max_size=4), window=st.booleans())
def test_whatever_bytes_a_target_has_both_roads_say_the_same(
    instance: Instance, address: str, parts: list[bytes], window: bool
) -> None:
    before = b"/stores/windows/window/3000/" if window else b"/stores/counts/entries/"
    target = before + b"".join(parts)
    found = []
    for headers in ((), (GENERAL,)):
        with Wire(address) as one:
            one.send(request("/@", *headers).replace(b"/@", target))
            found.append(one.answer())
    assert found[0] == found[1]
    if any(byte < 0x21 or byte == 0x7F for byte in target):
        assert found[0][0] == 400


@SETTINGS
@given(
    name=st.sampled_from([b"Host", b"User-Agent", b"Accept", b"Authorization"]),
    parts=st.lists(TARGET_BYTES, max_size=3),
)
def test_whatever_bytes_a_header_has_both_roads_say_the_same(
    instance: Instance, address: str, name: bytes, parts: list[bytes]
) -> None:
    value = (b"localhost" if name == b"Host" else b"") + b"".join(parts)
    found = []
    for headers in ((), (GENERAL,)):
        asked = request("/stores/counts/entries/a", "Accept-Encoding: x", *headers)
        old = b"Host: localhost" if name == b"Host" else b"Accept-Encoding: x"
        with Wire(address) as one:
            one.send(asked.replace(old, name + b": " + value))
            found.append(one.answer())
    assert found[0] == found[1]


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.9.8.7", ""])
def test_both_roads_answer_their_own_host_alone(address: str, host: str, tmp_path: Path) -> None:
    for headers in ((), (GENERAL,)):
        asked = request("/stores/counts/entries/a", *headers)
        with Wire(address) as one:
            one.send(asked)
            assert one.answer()[0] == 200
            one.send(asked.replace(b"Host: localhost", f"Host: {host}".encode()))
            status, body = one.answer()
            assert status == 421
            assert b"EF-HOST" in body


def test_a_token_is_enough_whatever_the_service_is_called(
    instance: Instance, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.write_text(TOKEN)
    with service(instance, file) as address:
        for headers in ((), (GENERAL,)):
            asked = request("/stores/counts/entries/a", f"Authorization: Bearer {TOKEN}", *headers)
            with Wire(address) as one:
                one.send(asked.replace(b"Host: localhost", b"Host: proxy.example"))
                assert one.answer()[0] == 200


@pytest.mark.parametrize("second", [SHORT, LONG, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_what_comes_behind_a_request_that_waits_is_answered_behind_it(
    second: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_road, "rest_after", lambda *_: 3_600.0)
    reads = Reads()
    server = HttpServer("127.0.0.1:0", cast(Any, general), short=reads)
    with closing(server), Wire(server.address) as one, Wire(server.address) as other:
        one.send(SHORT)
        assert one.answer() == (200, b"short")
        other.send(SHORT)
        wait_until(lambda: reads.asked == 2, 30, "it waits")
        other.send(second)
        data = b""
        while data.count(b"HTTP/1.1 200") < 2 or not data.endswith(second.split(b" ")[1]):
            data += other._more()
        assert data.index(b"/stores/short") < len(data) - len(second.split(b" ")[1])
        assert len(reads.looks) == 1, "both went the general road"


def test_who_waits_is_answered_before_the_server_ends_and_who_is_gone_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(short_road, "rest_after", lambda *_: 3_600.0)
    reads = Reads()
    original = short_road.ShortRoadProtocol.connection_lost

    def noted(self: Any, error: Exception | None) -> None:
        original(self, error)
        reads.lost += 1

    monkeypatch.setattr(short_road.ShortRoadProtocol, "connection_lost", noted)
    server = HttpServer("127.0.0.1:0", cast(Any, general), short=reads)
    with Wire(server.address) as one, Wire(server.address) as other:
        one.send(SHORT)
        assert one.answer() == (200, b"short")
        with Wire(server.address) as gone:
            gone.send(SHORT)
            wait_until(lambda: reads.asked == 2, 30, "it waits")
            linger = struct.pack("ii", 1, 0)
            gone.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)  # a reset
        wait_until(lambda: reads.lost == 1, 30, "it is gone")
        other.send(SHORT)
        wait_until(lambda: reads.asked == 3, 30, "it waits")
        server.close()
        assert other.answer() == (200, b"short")
        assert reads.looks[1] == [SHORT]


READS = PointReads(cast(Any, None), lambda _: True, lambda _: True)


@pytest.mark.parametrize(
    "data",
    [
        request("/stores/counts/entries/a", "Content-Length: 3") + b"abc",
        request("/stores/counts/entries/a", "Content-Length: 0"),
        request("/stores/counts/entries/a", "Transfer-Encoding: chunked"),
        request("/stores/counts/entries/a", "Connection: close"),
        request("/stores/counts/entries/a", "Connection: Upgrade", "Upgrade: websocket"),
        request("/stores/counts/entries/a", "Expect: 100-continue"),
        request("/stores/counts/entries/a", "Host: there"),
        request("/stores/counts/entries/a", " folded: 1"),
        request("/stores/counts/entries/a", "no colon"),
        request("/stores/counts/entries/a", "Authorization: a", "Authorization: b"),
        request("/stores/counts/entries/a") * 2,
        request("/stores/counts/entries/a b"),
        request("/stores/counts/entries/a?stale=true"),
        request("/stores/counts/entries/a%0Ab"),
        request("/stores/counts/windows/a"),
        request("/stores/counts/window/%s/a" % (10**30)),
        request("/stores/counts/entries/" + "k" * MOST_BYTES),
        request("/stores/counts/entries/a").replace(b"Host: localhost\r\n", b""),
        request("/stores/counts/entries/a").replace(b"HTTP/1.1", b"HTTP/1.0"),
        request("/stores/counts/entries/a").replace(b"GET", b"PUT"),
        request("/stores/counts/entries/a")[:-1],
        b"",
    ],
)
def test_what_is_not_a_plain_read_alone_goes_the_general_road(data: bytes) -> None:
    plain = request("/stores/counts/entries/a", "Connection: keep-alive")
    assert READS.understood(plain) == ("counts", "a", None)
    assert READS.understood(data) is None


def test_headers_that_are_known_are_those_of_somebody_who_may_ask(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(point_reads, "MOST_CLIENTS", 2)
    reads = PointReads(
        cast(Any, None), lambda given: given.startswith("Bearer good"), lambda _: True
    )
    for number in range(5):
        for _ in range(2):
            for token in (f"good-{number}", f"good-{number - 1}", f"bad-{number}", ""):
                data = request("/stores/counts/entries/a", f"Authorization: Bearer {token}")
                found = reads.understood(data)
                assert found == (("counts", "a", None) if "good" in token else None)
            assert reads.understood(request("/stores/counts/entries/a")) is None
            assert len(reads._plain) <= 2
