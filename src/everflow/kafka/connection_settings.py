"""librdkafka's settings as keywords of kafka-python's connections, which carry our own requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
    "ssl.crl.location": "ssl_crlfile",
    "ssl.cipher.suites": "ssl_ciphers",
}
"""librdkafka's keys as kafka-python's keywords."""
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_CHECK_NAME = "ssl.endpoint.identification.algorithm"
_SECURITY = ("security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.")


def connection_settings(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """kafka-python's keywords for librdkafka's settings; None where the security settings cannot be
    said in them.

    Settings that only tune librdkafka are left out.
    """
    settings: dict[str, Any] = {}
    for key, value in config.items():
        if key in _KEYWORDS:
            settings[_KEYWORDS[key]] = value
        elif key == _CHECK_NAME:
            settings["ssl_check_hostname"] = str(value).lower() != "none"
        elif key.startswith(_SECURITY):
            return None
    if not Path(settings.get("ssl_cafile") or __file__).is_file():
        return None  # librdkafka takes a folder as well, and "probe"
    if "security_protocol" in settings:
        settings["security_protocol"] = str(settings["security_protocol"]).upper()
    if (
        str(settings.get("security_protocol", "")).startswith("SASL")
        and settings.get("sasl_mechanism") not in _MECHANISMS
    ):
        return None
    return settings
