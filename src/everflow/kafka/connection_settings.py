"""librdkafka's settings as kafka-python's, whose connections carry membership and own requests."""

from __future__ import annotations

import base64
import json
import logging
import ssl
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider

from everflow.errors import ConfigError

_ANSWER_S = 10.0
_LONGEST_ANSWER = 1 << 20
_RENEWED_AT = 0.8
"""The part of a token's life after which it is renewed, as Kafka's own login does it."""
_LIFE_S = 300.0
"""The life of a token that does not say."""
_PREFIX = "sasl.oauthbearer."
_OF_TOKENS = (_PREFIX, "https.")

_known: dict[str, TokenProvider] = {}
_known_lock = threading.Lock()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The client's id and secret are for the named endpoint: urllib would send them on."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        place = urllib.parse.urlsplit(newurl)
        raise OSError(
            f"it redirects to {place.scheme}://{place.netloc} ({code}), and redirections are not "
            f"followed: name that address in sasl.oauthbearer.token.endpoint.url if it is right"
        )


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]
    """Tokens for one client id, kept until they are old. Safe from any thread, which it may hold
    for some seconds."""

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
        pairs = str(config.get(f"{_PREFIX}extensions", "")).split(",")
        self._extensions = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
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
                token = json.loads(answer.read(_LONGEST_ANSWER))
            return str(token["access_token"]), float(token.get("expires_in", _LIFE_S))
        except (OSError, ValueError, KeyError, TypeError) as failure:
            raise SaslAuthenticationFailedError(
                f"the token endpoint {self._url} gave no token: {failure!r}"
            ) from failure


def token_provider(config: Mapping[str, Any]) -> TokenProvider:
    """The provider of these settings: one a process, so that all connections share its token."""
    relevant = {key: str(value) for key, value in config.items() if key.startswith(_OF_TOKENS)}
    with _known_lock:
        key = json.dumps(relevant, sort_keys=True)
        if key not in _known:
            _known[key] = TokenProvider(config)
        return _known[key]


def hide_credentials() -> None:
    """From now on kafka-python does not say how it comes in. Idempotent."""
    for name in ("kafka.net.connection", "kafka.protocol.parser", "kafka.admin.client"):
        logging.getLogger(name).addFilter(_without_credentials)


def _without_credentials(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(map(_shown, record.args))
    elif isinstance(record.args, dict):  # one argument, a client's configuration
        record.args = {key: "..." if _secret(key) else one for key, one in record.args.items()}
    return True


def _shown(said: object) -> object:
    if isinstance(said, bytes | bytearray | memoryview):  # a request as it is sent
        return f"{len(said)} bytes"
    kind = type(said).__name__
    return f"{kind}(...)" if kind.startswith("Sasl") else said


def _secret(key: str) -> bool:
    return key.startswith(("sasl_", "ssl_")) and key != "sasl_mechanism"


_KEYWORDS = {
    "bootstrap.servers": "bootstrap_servers",
    "metadata.broker.list": "bootstrap_servers",
    "client.id": "client_id",
    "client.rack": "client_rack",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}
_TIMES = {
    "connections.max.idle.ms": "connections_max_idle_ms",
    "metadata.max.age.ms": "metadata_max_age_ms",
    "reconnect.backoff.ms": "reconnect_backoff_ms",
    "reconnect.backoff.max.ms": "reconnect_backoff_max_ms",
    "socket.connection.setup.timeout.ms": "socket_connection_setup_timeout_ms",
}
CONNECTION_KEYS = frozenset(_KEYWORDS) | frozenset(_TIMES)
CHECK_CRCS = "check.crcs"
"""Kafka's setting of consumers; on by default here, as in Java's client and not in librdkafka."""
_TLS = frozenset(
    {
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.key.location",
        "ssl.key.pem",
        "ssl.key.password",
        "ssl.crl.location",
        "ssl.cipher.suites",
        "ssl.endpoint.identification.algorithm",
        "enable.ssl.certificate.verification",
    }
)
_TOKENS = ("sasl.oauthbearer.", "https.ca.")
SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "https.")
_WITH_TLS = ("SSL", "SASL_SSL")


def connection_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """kafka-python's keywords for librdkafka's settings; others are left out.

    Reads certificates. ConfigError: security that kafka-python cannot have, or a file that cannot
    be read or is wrong.
    """
    hide_credentials()
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if key in _KEYWORDS:
            settings[_KEYWORDS[key]] = value
        elif key in _TIMES:
            settings[_TIMES[key]] = whole_number(key, value)
        elif key.startswith(SECURITY) and key not in _TLS and not key.startswith(_TOKENS):
            raise ConfigError(
                f"{key} cannot be said to all of everflow's clients. TLS takes "
                f"{', '.join(sorted(_TLS))}."
            )
    if "security_protocol" in settings:
        settings["security_protocol"] = str(settings["security_protocol"]).upper()
    if settings.get("security_protocol") in _WITH_TLS:
        settings["ssl_context"] = _tls(config)
    if settings.get("sasl_mechanism") == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = token_provider(config)
    return settings


def whole_number(key: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError) as failure:
        raise ConfigError(f"{key} = {value!r} is refused: it must be a whole number.") from failure


def security_keywords(config: Mapping[str, Any]) -> dict[str, Any]:
    found = connection_settings(config)
    return {
        key: value for key, value in found.items() if key.startswith(("security_", "sasl_", "ssl_"))
    }


def _tls(config: Mapping[str, Any]) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    check = str(config.get("ssl.endpoint.identification.algorithm", "https")).lower()
    verified = str(config.get("enable.ssl.certificate.verification", "true")).lower() != "false"
    context.check_hostname = verified and check != "none"
    if not verified:
        context.verify_mode = ssl.CERT_NONE
    _authorities(context, config)
    _certificate(context, config)
    revoked = config.get("ssl.crl.location")
    if revoked:
        _reading("ssl.crl.location", revoked, lambda: context.load_verify_locations(str(revoked)))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    suites = config.get("ssl.cipher.suites")
    if suites:
        _reading("ssl.cipher.suites", suites, lambda: context.set_ciphers(str(suites)))
    return context


def _authorities(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    text, location = config.get("ssl.ca.pem"), config.get("ssl.ca.location")
    if text:
        _reading("ssl.ca.pem", "(text)", lambda: context.load_verify_locations(cadata=str(text)))
    if location and location != "probe":
        folder = str(location) if Path(str(location)).is_dir() else None
        _reading(
            "ssl.ca.location",
            location,
            lambda: context.load_verify_locations(
                cafile=None if folder else str(location), capath=folder
            ),
        )
    if not text and (not location or location == "probe"):
        context.load_default_certs()


def _certificate(context: ssl.SSLContext, config: Mapping[str, Any]) -> None:
    password = config.get("ssl.key.password")
    # Never asked for at the terminal.
    secret = "" if password is None else str(password)
    chain, key = (
        (config.get(f"ssl.{part}.location"), config.get(f"ssl.{part}.pem"))
        for part in ("certificate", "key")
    )
    if not any((*chain, *key)):
        return
    # Python loads certificates from files only.
    with tempfile.TemporaryDirectory(prefix="everflow-tls-") as folder:
        files = [
            _file(Path(folder) / name, *source) for name, source in (("chain", chain), ("key", key))
        ]
        if files[0] is None:
            raise ConfigError("ssl.key.location or .pem needs ssl.certificate.location or .pem.")
        shown = chain[0] or "(text)"
        _reading(
            "ssl.certificate.location" if chain[0] else "ssl.certificate.pem",
            f"{shown} with its key and ssl.key.password",
            lambda: context.load_cert_chain(files[0] or "", files[1], secret),
        )


def _file(path: Path, location: Any, text: Any) -> str | None:
    if location:
        return str(location)
    if not text:
        return None
    path.touch(mode=0o600)
    path.write_text(str(text))
    return str(path)


def _reading(key: str, value: Any, load: Any) -> None:
    try:
        load()
    except (OSError, ValueError) as failure:  # ssl.SSLError is an OSError
        reason = getattr(failure, "strerror", None) or failure
        raise ConfigError(f"{key} = {value}: cannot be used: {reason}.") from failure
