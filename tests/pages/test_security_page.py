"""SECURITY.md: what it says is not there is not there, what is there is not called open work, and
the settings that it names exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from everflow import StreamsConfig
from everflow.config import SHARED_PREFIXES
from everflow.errors import ConfigError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()
FIELDS = {name.replace("_", ".") for name in StreamsConfig.__dataclass_fields__}


def refused(**settings: Any) -> bool:
    try:
        StreamsConfig(
            {
                "application.id": "a",
                "bootstrap.servers": "b:1",
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        ).producer()
    except ConfigError:
        return True
    return False


def keepers_speak_plain_http() -> bool:
    keeper = (ROOT / "src" / "everflow" / "fleet" / "keeper.py").read_text()
    return 'f"http://{' in keeper and "ssl" not in keeper


def one_right_for_all() -> bool:
    return [key for key in FIELDS if "token" in key] == ["query.token.file"]


ABSENT: dict[str, Callable[[], bool]] = {
    "Kerberos": lambda: (
        refused(security_protocol="SASL_SSL", sasl_mechanism="GSSAPI")
        and refused(security_protocol="SSL", ssl_truststore_location="/a.jks")
    ),
    "TLS of its own for `http.listen`": lambda: not any(k.startswith("http.ssl") for k in FIELDS),
    "Rights within the query service": one_right_for_all,
    "TLS between the keepers": keepers_speak_plain_http,
}
"""How a point of the page begins -> whether it is so."""


def test_what_is_not_there_is_not_there() -> None:
    points = re.findall("^- (.*)", PAGE.split("## What is not there\n")[1].split("\n## ")[0], re.M)
    assert len(points) == len(ABSENT)
    for point in points:
        (holds,) = [check for begin, check in ABSENT.items() if point.startswith(begin)]
        assert holds(), point


@pytest.mark.parametrize(
    "settings",
    [
        {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_username": "a"}
        | {"sasl_password": "b"},
        {"security_protocol": "SSL", "ssl_certificate_location": "/a", "ssl_key_location": "/a"},
        {"query_listen": "0.0.0.0:1", "query_token_file": "/a"},
    ],
)
def test_what_is_there_is_not_called_open_work(settings: dict[str, str]) -> None:
    assert not refused(**settings)
    assert "open work" not in PAGE
    assert "docs/guide/security.md" in PAGE


def test_settings_that_it_names_exist() -> None:
    named = [name for name in re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", PAGE) if "/" not in name]
    assert named
    for name in named:
        assert name in FIELDS or name.startswith(SHARED_PREFIXES), name
