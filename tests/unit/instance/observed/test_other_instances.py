"""With which token and certificate other instances are asked how they do."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest
import trustme

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.instance.observer import peers_of
from everflow.observe.page.peers import StatusClient


def asks(**settings: Any) -> StatusClient:
    config = StreamsConfig(application_id="orders", bootstrap_servers="b:1", **settings)
    found = peers_of(config, settings.pop("tokens", ["first", "second"]), lambda: "a:1")._ask
    assert isinstance(found, StatusClient)
    return found


def test_the_first_token_is_sent_as_all_instances_know_it() -> None:
    client = asks()
    assert (client.application_id, client.token, client.tls) == ("orders", "first", None)


def test_instances_that_speak_https_are_asked_so(tmp_path: Path) -> None:
    authority = tmp_path / "ca"
    trustme.CA().cert_pem.write_to_path(str(authority))
    own = {"query_ssl_certificate_location": "c", "query_ssl_key_location": "k"}
    for settings in (own, {**own, "query_ssl_ca_location": str(authority)}):
        tls = asks(**settings).tls
        assert tls is not None
        assert tls.verify_mode is ssl.CERT_REQUIRED
        assert tls.check_hostname
    assert len(asks(**own, query_ssl_ca_location=str(authority)).tls.get_ca_certs()) == 1  # type: ignore[union-attr]


def test_an_authority_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    own = {"query_ssl_certificate_location": "c", "query_ssl_key_location": "k"}
    with pytest.raises(ConfigError, match=r"query\.ssl\.ca\.location"):
        asks(**own, query_ssl_ca_location=str(tmp_path / "none"))
