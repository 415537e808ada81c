"""The client of the query service where nobody, or another service, answers."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from everflow.client import QueryClient, QueryRefusedError, QueryUnavailableError
from everflow.errors import ConfigError


class Stranger(BaseHTTPRequestHandler):
    """Another service than that of queries."""

    content = b""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()
        self.wfile.write(self.content)

    def log_message(self, *_: Any) -> None:
        """No line for each request."""


@pytest.mark.parametrize("content", [b"Not Found", b'{"detail": "Not Found"}', b"[]", b""])
def test_another_service_is_told_from_that_of_queries(
    content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once: it does not become one while the client has patience."""
    monkeypatch.setattr(Stranger, "content", content)
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        with (
            QueryClient(address, patience=3_600.0) as client,
            pytest.raises(QueryRefusedError, match=rf"{address}.*service"),
        ):
            client.get("counts", "a")
        server.shutdown()


@pytest.mark.parametrize("servers", [[], "", ["a:1", ""]])
def test_a_client_needs_somebody_to_ask(servers: Any) -> None:
    with pytest.raises(ConfigError, match="nobody"):
        QueryClient(servers)


@pytest.mark.parametrize(
    "server", ["http://a:1", "https://a", "a:1/stores", "a:port", "a:99999", ":1", "[::1", "a b:1/"]
)
def test_what_is_no_address_is_told_at_once(server: str) -> None:
    """It would be asked for again for as long as the client has patience."""
    with pytest.raises(ConfigError, match=r"is no host:port.*tls=True"):
        QueryClient(["a:1", server], patience=3_600.0)


def test_an_authority_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    for name in ("missing", "text"):
        file = str(tmp_path / name)
        with pytest.raises(ConfigError, match=rf"ca='{file}'\) cannot be used"):
            QueryClient("a:1", ca=file)


def test_addresses_with_and_without_a_port_are_some() -> None:
    for server in ("a", "a:1", "127.0.0.1:9465", "[::1]:9465", "orders-0.orders.shop.svc:9465"):
        QueryClient(server)


def test_who_is_away_is_named() -> None:
    with (
        QueryClient("127.0.0.1:1", patience=0.0) as away,
        pytest.raises(QueryUnavailableError, match=r"127\.0\.0\.1:1"),
    ):
        away.stores()
