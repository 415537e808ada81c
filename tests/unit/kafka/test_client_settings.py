"""Settings for Kafka's clients are refused before anything runs, under the name that the user gave
them."""

from __future__ import annotations

import logging

import pytest

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.kafka.client_settings import check_clients

BASE = {"application_id": "a", "bootstrap_servers": "nowhere.invalid:1"}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("producer.linger.mss", 4, "linger.ms is one"),
        ("producer.linger.ms", "x", "whole number"),
        ("producer.request.timeout.ms", "x", "whole number"),
        ("consumer.fetch.min.bytes", "x", "whole number"),
        ("restore.consumer.metadata.max.age.ms", "soon", "whole number"),
        ("admin.socket.timeout.ms", "soon", "whole number"),
    ],
)
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_what_a_client_refuses_names_the_users_key(
    key: str, value: object, reason: str, guarantee: str
) -> None:
    config = StreamsConfig(**BASE, processing_guarantee=guarantee, **{key: value})
    with pytest.raises(ConfigError) as refused:
        check_clients(config)
    assert f"{key} = {value!r}" in str(refused.value)
    assert reason in str(refused.value)


def test_the_layer_that_wins_is_named() -> None:
    keys = {"consumer.fetch.min.bytes": "x", "restore.consumer.fetch.min.bytes": "y"}
    with pytest.raises(
        ConfigError, match=r"^restore\.consumer\.fetch\.min\.bytes = 'y' is refused"
    ):
        check_clients(StreamsConfig(**BASE, **keys))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("producer.acks", "1"),
        ("ssl.ca.location", "/no/such/file"),
        ("ssl.ca.locaton", "/no/such/file"),
        ("producer.compression.type", "brotli"),
    ],
)
def test_what_would_lose_a_guarantee_or_cannot_be_read_is_refused(key: str, value: str) -> None:
    config = StreamsConfig(**BASE, **{"security.protocol": "SSL", key: value})
    with pytest.raises(ConfigError, match=rf"{key.removeprefix('producer.')}\b.*{value}|{key}"):
        check_clients(config)


def test_no_secret_is_shown() -> None:
    with pytest.raises(ConfigError) as refused:
        check_clients(StreamsConfig(**BASE, **{"producer.my.password": "hunter2"}))
    assert "hunter2" not in str(refused.value)


def test_what_has_no_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "everflow")
    check_clients(StreamsConfig(**BASE, **{"consumer.fetch.min.bytes": 7, "producer.linger.ms": 5}))
    assert "consumer.fetch.min.bytes" in caplog.text
    assert "producer.linger.ms" in caplog.text


def test_right_settings_pass_without_a_broker(capfd: pytest.CaptureFixture[str]) -> None:
    keys = {
        "producer.linger.ms": 5,
        "consumer.fetch.min.bytes": "7",
        "main.consumer.max.poll.records": 5,
        "admin.log_level": 3,
    }
    for guarantee in ("at_least_once", "exactly_once_v2"):
        check_clients(StreamsConfig(**BASE, processing_guarantee=guarantee, **keys))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("partitioner", ["consistent_random", "fnv1a"])
def test_a_partitioner_that_is_not_java_s_is_refused(partitioner: str) -> None:
    with pytest.raises(ConfigError, match=f"partitioner = {partitioner}: .*murmur2_random"):
        check_clients(StreamsConfig(**BASE, **{"producer.partitioner": partitioner}))
