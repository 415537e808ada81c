"""OAUTHBEARER's tokens from a token endpoint (client credentials, RFC 6749 4.4), for kafka-python.

librdkafka asks the endpoint by itself (``sasl.oauthbearer.method=oidc``); kafka-python wants to be
handed tokens."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

from everflow.errors import ConfigError

_ANSWER_S = 10.0
_LONGEST_ANSWER = 1 << 20
_RENEWED_AT = 0.8
"""Of a token's life: as Kafka's own login does (``sasl.login.refresh.window.factor``)."""
_LIFE_S = 300.0
"""Of a token that does not say."""
_PREFIX = "sasl.oauthbearer."

_known: dict[str, TokenProvider] = {}
_known_lock = threading.Lock()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The client's id and secret are for the endpoint that the settings name, and for no other:
    urllib would send them on, to another host too."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        place = urllib.parse.urlsplit(newurl)
        raise OSError(
            f"it redirects to {place.scheme}://{place.netloc} ({code}), and redirections are not "
            f"followed: name that address in sasl.oauthbearer.token.endpoint.url if it is right"
        )


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for one client id, kept until they are old. Safe from any thread; asks in the calling
    one, for at most some seconds, once in a token's life."""

    def __init__(
        self, config: Mapping[str, Any], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``config``: librdkafka's keys. ConfigError where the endpoint is no http(s) address."""
        super().__init__()
        self._url = str(config.get(f"{_PREFIX}token.endpoint.url", ""))
        if urllib.parse.urlsplit(self._url).scheme not in ("http", "https"):
            raise ConfigError(
                f"{_PREFIX}token.endpoint.url = {self._url!r} is no http:// or https:// address."
            )
        self._identity = (
            str(config.get(f"{_PREFIX}client.id", "")),
            str(config.get(f"{_PREFIX}client.secret", "")),
        )
        self._scope = config.get(f"{_PREFIX}scope")
        self._extensions = _pairs(str(config.get(f"{_PREFIX}extensions", "")))
        self._authority = config.get("https.ca.location"), config.get("https.ca.pem")
        self._clock = clock
        self._lock = threading.Lock()
        self._token, self._renewed_at = "", 0.0

    def token(self) -> str:
        """A token that is not old. Raises kafka-python's error where the endpoint gives none, with
        its address and what it said."""
        with self._lock:
            if not self._token or self._clock() >= self._renewed_at:
                self._token, life_s = self._asked()
                self._renewed_at = self._clock() + life_s * _RENEWED_AT
            return self._token

    def extensions(self) -> dict[str, str]:
        """``sasl.oauthbearer.extensions``."""
        return self._extensions

    def _asked(self) -> tuple[str, float]:
        form = {"grant_type": "client_credentials"}
        if self._scope:
            form["scope"] = str(self._scope)
        user, secret = (urllib.parse.quote(part, safe="") for part in self._identity)
        credentials = base64.b64encode(f"{user}:{secret}".encode()).decode()
        request = urllib.request.Request(
            self._url,
            urllib.parse.urlencode(form).encode(),
            {"Authorization": f"Basic {credentials}", "Accept": "application/json"},
        )
        file, text = self._authority
        try:
            context = ssl.create_default_context(
                cafile=str(file) if file else None, cadata=str(text) if text else None
            )
            handlers: list[urllib.request.BaseHandler] = [
                urllib.request.HTTPSHandler(context=context),
                _NoRedirects(),
            ]
            if urllib.parse.urlsplit(self._url).scheme == "http":
                # The environment's proxy would read the secret; of https it passes bytes on.
                handlers.append(urllib.request.ProxyHandler({}))
            opener = urllib.request.build_opener(*handlers)
            with opener.open(request, timeout=_ANSWER_S) as answer:
                given = json.loads(answer.read(_LONGEST_ANSWER))
            return str(given["access_token"]), float(given.get("expires_in", _LIFE_S))
        except (OSError, ValueError, KeyError, TypeError) as failure:
            raise SaslAuthenticationFailedError(
                f"the token endpoint {self._url} gave no token: {failure!r}"
            ) from failure


def token_provider(config: Mapping[str, Any]) -> TokenProvider:
    """The provider of these settings: one a process, so that all connections share its token."""
    relevant = {key: str(value) for key, value in config.items() if key.startswith(_PREFIX)}
    relevant.update({key: str(value) for key, value in config.items() if key.startswith("https.")})
    key = json.dumps(relevant, sort_keys=True)
    with _known_lock:
        found = _known.get(key)
        if found is None:
            found = _known[key] = TokenProvider(config)
        return found


def _pairs(text: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in text.split(",") if "=" in part)
