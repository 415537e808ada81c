"""The address of the query service, who may ask there, and its client where nobody answers."""

from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from everflow.client import QueryClient, QueryRefusedError, QueryUnavailableError
from everflow.errors import ConfigError
from everflow.instance.serving.routes import reached_at, served, tokens_of
from unit.builders import streams_config
from unit.instance.query.query_stores import Instance


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
def test_another_service_is_told_as_such(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_others_are_told_an_address_that_they_reach() -> None:
    assert reached_at("0.0.0.0:80", "host-7") == "host-7:80"
    assert reached_at("[::]:80", "host-7") == "host-7:80"
    assert reached_at("10.0.0.1:80", "host-7") == "10.0.0.1:80"
    config = streams_config(query_listen="0.0.0.0:0", query_token_file="none")
    assert tokens_of(config) == []


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"query_listen": "0.0.0.0:0"}, r"everybody.*reaches"),
        ({"query_listen": "[::]:0"}, r"everybody.*reaches"),
        ({"query_listen": "127.0.0.1:0", "query_token_file": "/nowhere"}, "cannot be read"),
        ({"query_listen": "127.0.0.1:0", "query_token_file": "/dev/null"}, "holds no token"),
        ({"query_listen": "127.0.0.1:0", "query_ssl_key_location": "k"}, "go together"),
        (
            {
                "query_listen": "127.0.0.1:0",
                "query_ssl_key_location": "/nowhere",
                "query_ssl_certificate_location": "/nowhere",
            },
            "cannot be used",
        ),
    ],
)
def test_an_open_service_is_refused(tmp_path: Path, settings: Mapping[str, str], text: str) -> None:
    instance = Instance(tmp_path, sites=())
    config = streams_config(**settings)
    with pytest.raises(ConfigError, match=text), served(instance, config):
        pass
