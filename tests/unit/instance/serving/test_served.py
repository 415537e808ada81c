"""The address of the query service and who may ask there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.instance.serving.routes import reached_at, served, tokens_of
from unit.instance.query.query_stores import Instance


def test_others_are_told_an_address_that_they_reach() -> None:
    assert reached_at("0.0.0.0:80", "host-7") == "host-7:80"
    assert reached_at("[::]:80", "host-7") == "host-7:80"
    assert reached_at("10.0.0.1:80", "host-7") == "10.0.0.1:80"
    config = StreamsConfig(
        application_id="a",
        bootstrap_servers="b:1",
        query_listen="0.0.0.0:0",
        query_token_file="none",
    )
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
def test_a_service_that_keeps_nobody_out_is_refused(
    tmp_path: Path, settings: Mapping[str, str], text: str
) -> None:
    instance = Instance(tmp_path, sites=())
    config = StreamsConfig(application_id="a", bootstrap_servers="b:1", **settings)
    with pytest.raises(ConfigError, match=text), served(instance, config):
        pass
