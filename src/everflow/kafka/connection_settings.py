"""librdkafka's settings as kafka-python's, whose connections carry membership and own requests."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everflow.errors import ConfigError
from everflow.kafka.client_log import hide_credentials
from everflow.kafka.token_endpoint import token_provider

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
"""librdkafka's keys as kafka-python's keywords."""
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
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")
_WITH_TLS = ("SSL", "SASL_SSL")


def connection_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """kafka-python's keywords for librdkafka's settings; those that only tune librdkafka are left
    out. Files of certificates are read now.

    Raises:
        ConfigError: security that kafka-python's connections cannot be told, or a file that cannot
            be read or does not hold what it should.
    """
    hide_credentials()
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if key in _KEYWORDS:
            settings[_KEYWORDS[key]] = value
        elif key.startswith(_SECURITY) and key not in _TLS and not key.startswith(_TOKENS):
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


def security_keywords(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `connection_settings` that are about security."""
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
            _file(Path(folder) / name, *given) for name, given in (("chain", chain), ("key", key))
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
