"""A secure broker, and a token endpoint on the loopback."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

import pytest

from everflow.testing.broker import EmbeddedBroker
from everflow.testing.broker_security import BrokerSecurity

USERS = {"alice": "alice-secret", "bob": "b o b; secret"}
SECRET = "token-secret"


def _token(user: str) -> str:
    """Unsigned, as Kafka's development setting takes it (RFC 7519 6)."""
    now = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now - 1, "exp": now + 600})
    return (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in parts
        )
        + "."
    )


class _Endpoint(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        scheme, _, credentials = self.headers.get("Authorization", "").partition(" ")
        user, _, secret = base64.b64decode(credentials).decode().partition(":")
        known = scheme == "Basic" and secret == SECRET
        known = known and form["grant_type"] == ["client_credentials"]
        given = {"access_token": _token(user), "expires_in": 600} if known else {"error": "no"}
        body = json.dumps(given).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not to the terminal."""


@pytest.fixture(scope="session")
def token_url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    thread.join()


@pytest.fixture(scope="session")
def secure() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(security=BrokerSecurity(USERS, authorizer=True)) as broker:
        yield broker
