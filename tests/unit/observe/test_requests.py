"""By which names a request may call a server, and what it may not learn by others."""

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.autoscale import Autoscaler
from everflow.fleet.control import Door, Places
from everflow.fleet.control import application as fleet_routes
from everflow.fleet.decision import TOKEN_HEADER
from everflow.observe.http_server import HttpServer, application
from everflow.observe.page.routes import Page
from everflow.observe.requests import OwnNames
from unit.observe.observations import WHOLE
from unit.observe.page.page_facts import SHOWN

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
    page = Page(facts=lambda: SHOWN, drawing="<svg/>", tokens=tokens)
    app = application(lambda: WHOLE, "", lambda: drained.append("drain"), page)
    server = HttpServer("127.0.0.1:0", app, free=page.needs_token)
    with closing(server):
        yield server.address


PATHS = ["/", "/status", "/metrics", "/topology", "/page", "/page/view", "/page/letters", "/none"]


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
