"""TLS and tokens as kafka-python's connections are told them."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme
from kafka.errors import SaslAuthenticationFailedError

from everflow.errors import ConfigError
from everflow.kafka.connection_settings import TokenProvider, connection_settings, security_keywords

TLS = {"bootstrap.servers": "b:1", "security.protocol": "SSL"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def test_texts_and_files_make_the_same_context(authority: trustme.CA, tmp_path: Path) -> None:
    ca, made = authority.cert_pem, authority.issue_cert("client")
    chain, key = made.cert_chain_pems[0], made.private_key_pem
    for part, name in ((ca, "ca"), (chain, "chain"), (key, "key")):
        part.write_to_path(str(tmp_path / name))
    files = {"ca": "ca", "certificate": "chain", "key": "key"}
    texts = {"ca": ca, "certificate": chain, "key": key}
    for given in (
        {f"ssl.{part}.location": str(tmp_path / name) for part, name in files.items()},
        {f"ssl.{part}.pem": text.bytes().decode() for part, text in texts.items()},
    ):
        context = connection_settings({**TLS, **given})["ssl_context"]
        assert isinstance(context, ssl.SSLContext)
        assert context.check_hostname
        assert len(context.get_ca_certs()) == 1
    assert set(security_keywords({**TLS, "client.id": "c"})) == {"security_protocol", "ssl_context"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"ssl.ca.location": "/no/such"}, r"ssl.ca.location.*/no/such.*used"),
        ({"ssl.ca.pem": "hello"}, r"ssl.ca.pem.*text"),
        ({"ssl.key.pem": "hello"}, "needs ssl.certificate.location"),
        ({"ssl.certificate.location": __file__}, "ssl.certificate.location"),
        ({"ssl.cipher.suites": "none-such"}, "ssl.cipher.suites = none-such"),
        ({"ssl.engine.id": "x"}, "ssl.engine.id cannot be said to all of everflow's clients"),
    ],
)
def test_what_cannot_be_used_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        connection_settings({**TLS, **given})


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        code, given = self.server.answers.pop(0)  # type: ignore[attr-defined]
        body = given if isinstance(given, bytes) else json.dumps(given).encode()
        self.send_response(code)
        if 300 <= code < 400:
            self.send_header("Location", body.decode())
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Where a redirection goes that is followed."""
        self.server.followed.append(dict(self.headers))  # type: ignore[attr-defined]
        self.do_POST()

    def log_message(self, *_: object) -> None:
        """Not to the terminal."""


@pytest.fixture
def endpoint() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def provider(server: ThreadingHTTPServer, now: list[float]) -> TokenProvider:
    url = f"http://127.0.0.1:{server.server_port}/"
    given = {"token.endpoint.url": url, "client.id": "me", "client.secret": "hunter2"}
    config = {f"sasl.oauthbearer.{key}": value for key, value in given.items()}
    return TokenProvider(config, lambda: now[0])


def test_a_token_is_kept_until_it_is_old(endpoint: ThreadingHTTPServer) -> None:
    endpoint.answers = [  # type: ignore[attr-defined]
        (200, {"access_token": "one", "expires_in": 100}),
        (200, {"access_token": "two"}),
    ]
    now = [0.0]
    tokens = provider(endpoint, now)
    assert tokens.token() == tokens.token() == "one"
    now[0] = 79.0
    assert tokens.token() == "one"
    now[0] = 81.0
    assert tokens.token() == "two"


@pytest.mark.parametrize(
    "answer", [(401, {"error": "no"}), (200, {}), (200, b"<html>"), (200, [1]), (500, b"")]
)
def test_an_endpoint_without_a_token_is_named(
    endpoint: ThreadingHTTPServer, answer: tuple[int, object]
) -> None:
    endpoint.answers = [answer]  # type: ignore[attr-defined]
    with pytest.raises(SaslAuthenticationFailedError, match="token endpoint http://127") as refused:
        provider(endpoint, [0.0]).token()
    assert "hunter2" not in str(refused.value)


def test_a_secret_does_not_pass_a_proxy_that_reads_it(
    endpoint: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    endpoint.answers = [(200, {"access_token": "one"})]  # type: ignore[attr-defined]
    assert provider(endpoint, [0.0]).token() == "one"


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_secret_does_not_follow_a_redirection(endpoint: ThreadingHTTPServer, code: int) -> None:
    elsewhere = f"http://localhost:{endpoint.server_port}/?secret=hunter2"
    endpoint.followed = []  # type: ignore[attr-defined]
    endpoint.answers = [  # type: ignore[attr-defined]
        (code, elsewhere.encode()),
        (200, {"access_token": "of another"}),
    ]
    with pytest.raises(SaslAuthenticationFailedError, match="redirections are not") as refused:
        provider(endpoint, [0.0]).token()
    assert f"it redirects to http://localhost:{endpoint.server_port} ({code})" in str(refused.value)
    assert endpoint.followed == []  # type: ignore[attr-defined]
    assert "hunter2" not in str(refused.value)


def test_an_endpoint_has_an_address() -> None:
    with pytest.raises(ConfigError, match="is no http"):
        TokenProvider({"sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd"})
