"""The address of the query service and who may ask there."""

from __future__ import annotations

from everflow.config import StreamsConfig
from everflow.runtime.serving.served import reached_at, tokens_of


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
