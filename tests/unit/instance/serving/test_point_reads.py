"""What the query service answers to the bytes of a request: one key, a malformed target, another
host."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everflow import serdes
from everflow.config import StreamsConfig
from everflow.instance.query.queries import StoreSite
from everflow.instance.serving.routes import served
from everflow.serdes.windowed import window_store_key
from unit.builders import store_spec
from unit.instance.query.query_stores import COUNTS, WINDOWS, Instance

TOKEN = "a-token-of-some-length"
NOTES = store_spec("notes", key=serdes.json("n bigint"))


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
    with served(instance, config) as address:
        yield address


@pytest.fixture
def address(instance: Instance) -> Iterator[str]:
    with service(instance) as found:
        yield found


class Wire:
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
def test_what_a_path_is_answered_with(address: str, path: str, status: int) -> None:
    with Wire(address) as wire:
        wire.send(request(path))
        assert wire.answer()[0] == status


def test_requests_that_come_in_parts_or_together_are_all_answered(instance: Instance) -> None:
    whole, other = request("/stores/counts/entries/a"), request("/stores")
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


def test_a_token_is_asked_for(instance: Instance, tmp_path: Path) -> None:
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
    """Found, not there, no key, another store and none."""
    paths = [path for path, _ in PATHS] * 4
    with service(instance) as address, ExitStack() as opened:
        wires = [opened.enter_context(Wire(address)) for _ in paths]
        expected = []
        for wire, path in zip(wires, paths, strict=True):
            wire.send(request(path))
            expected.append(wire.answer())
        for _ in range(5):
            for wire, path in zip(wires, paths, strict=True):
                wire.send(request(path))
            assert [wire.answer() for wire in wires] == expected


TARGET_BYTES = st.one_of(
    st.integers(0, 255).map(lambda byte: bytes([byte])),
    st.integers(0, 255).map(lambda byte: b"%%%02x" % byte),
    st.sampled_from(
        [b"a", b"/", b"%", b"%2", b"..", b"%00", b"\x7f", b"\t", b"\x0b", b"\x00", b"\r"]
    ),
)
SETTINGS = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SETTINGS
@given(parts=st.lists(TARGET_BYTES, max_size=4), window=st.booleans())
def test_control_characters_in_a_target_are_refused(
    address: str, parts: list[bytes], window: bool
) -> None:
    before = b"/stores/windows/window/3000/" if window else b"/stores/counts/entries/"
    target = before + b"".join(parts)
    with Wire(address) as one:
        one.send(request("/@").replace(b"/@", target))
        status, _ = one.answer()
    if any(byte < 0x21 or byte == 0x7F for byte in target):
        assert status == 400
    else:
        assert status in (200, 400, 404)


@SETTINGS
@given(
    name=st.sampled_from([b"Host", b"User-Agent", b"Accept", b"Authorization"]),
    parts=st.lists(TARGET_BYTES, max_size=3),
)
def test_whatever_bytes_a_header_has_it_is_answered_or_refused(
    address: str, name: bytes, parts: list[bytes]
) -> None:
    value = (b"localhost" if name == b"Host" else b"") + b"".join(parts)
    asked = request("/stores/counts/entries/a", "Accept-Encoding: x")
    old = b"Host: localhost" if name == b"Host" else b"Accept-Encoding: x"
    with Wire(address) as one:
        one.send(asked.replace(old, name + b": " + value))
        assert one.answer()[0] in (200, 400, 421)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.9.8.7", ""])
def test_the_service_answers_its_own_host_alone(address: str, host: str) -> None:
    asked = request("/stores/counts/entries/a")
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
    asked = request("/stores/counts/entries/a", f"Authorization: Bearer {TOKEN}")
    with service(instance, file) as address, Wire(address) as one:
        one.send(asked.replace(b"Host: localhost", b"Host: proxy.example"))
        assert one.answer()[0] == 200
