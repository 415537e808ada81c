"""Settings for Kafka's clients are refused before anything runs, under the name that the user gave
them."""

from __future__ import annotations

import pytest

from everflow.config import StreamsConfig
from everflow.errors import ConfigError
from everflow.kafka.client_settings import check_clients

BASE = {"application_id": "a", "bootstrap_servers": "nowhere.invalid:1"}


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("producer.linger.mss", 4, "No such configuration property"),
        ("producer.linger.ms", "x", "queue.buffering.max.ms"),  # librdkafka names its older name
        ("producer.acks", "1", "`acks` must be set to `all`"),
        ("consumer.fetch.min.bytes", "x", "Invalid value"),
        ("restore.consumer.fetch.min.bytes", 0, "outside allowed range"),
        ("admin.socket.timeout.ms", "soon", "Invalid value"),
        ("ssl.ca.location", "/no/such/file", "ssl.ca.location failed"),
    ],
)
@pytest.mark.parametrize("guarantee", ["at_least_once", "exactly_once_v2"])
def test_what_a_client_refuses_names_the_users_key(
    key: str, value: object, reason: str, guarantee: str
) -> None:
    extra = {"security.protocol": "SSL"} if key.startswith("ssl") else {}
    config = StreamsConfig(**BASE, processing_guarantee=guarantee, **extra, **{key: value})
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


def test_what_does_not_go_together_names_all_that_was_given_but_no_secret() -> None:
    keys = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "hunter2",
        "producer.acks": "0",
        "producer.partitioner": "murmur2",
    }
    with pytest.raises(ConfigError, match=r"`acks`.*`all`") as refused:
        check_clients(StreamsConfig(**BASE, **keys))
    assert "hunter2" not in str(refused.value)


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
