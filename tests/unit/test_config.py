"""Configuration: names, types, prefixes, and errors for people."""

from __future__ import annotations

from pathlib import Path

import pytest

from everflow.config import StreamsConfig
from everflow.errors import ConfigError

BASE = {"application_id": "app", "bootstrap_servers": "broker:9092"}


def test_dotted_and_snake_case_keys_mean_the_same() -> None:
    dotted = StreamsConfig(**{"application.id": "app", "bootstrap.servers": "b:1", "task.timeout.ms": "5"})
    snake = StreamsConfig(application_id="app", bootstrap_servers="b:1", task_timeout_ms=5)
    assert dotted == snake


def test_defaults_are_kafka_streams_own_except_where_a_decision_says_otherwise() -> None:
    config = StreamsConfig(**BASE)
    assert config.processing_guarantee == "at_least_once"
    assert config.task_timeout_ms == 300_000
    assert config.repartition_purge_interval_ms == 30_000
    assert config.heartbeat_interval_ms == 500  # D7; Kafka's 3 s made a gap of 3 s
    assert "tmp" not in Path(config.state_dir).parts  # reboots must not wipe state


@pytest.mark.parametrize(
    ("key", "hint"),
    [("comit_interval_ms", "commit.interval.ms"), ("num.stream.thread", "num.stream.threads"), ("state_dirs", "state.dir")],
)
def test_unknown_key_names_the_nearest_right_one(key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint.replace(".", r"\.")):
        StreamsConfig(**BASE, **{key: 1})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("num_stream_threads", "many", "whole number"),
        ("num_stream_threads", True, "whole number"),
        ("emit_every_update", "perhaps", "true or false"),
        ("processing_guarantee", "twice", "exactly_once_v2"),
        ("application_id", "a b", "letters"),
        ("task_timeout_ms", -1, "at least"),
        ("heartbeat_interval_ms", 40_000, "third"),
        ("consumer.isolation.level", "x", "consumer.isolation.level cannot be set.*follows processing.guarantee"),
        ("isolation.level", "x", "^isolation.level cannot be set.*follows processing.guarantee"),
        ("group.id", "x", "Set application.id instead"),
        ("allow.auto.create.topics", True, "internal topics are created at the start"),
    ],
)
def test_wrong_values_are_named(key: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        StreamsConfig(**{**BASE, key: value})


def test_missing_application_id_says_what_to_pass() -> None:
    with pytest.raises(ConfigError, match=r"application\.id is missing"):
        StreamsConfig(bootstrap_servers="b:1")


def test_prefixed_keys_go_to_their_client_only() -> None:
    config = StreamsConfig(
        **BASE, processing_guarantee="exactly_once_v2", producer_linger_ms=5, **{"topic.segment.bytes": 7, "ssl.ca.location": "ca"}
    )
    assert config.producer() == {
        "bootstrap.servers": "broker:9092",
        "ssl.ca.location": "ca",
        "linger.ms": 5,
        "transaction.timeout.ms": 10_000,
    }
    assert "linger.ms" not in config.consumer()
    assert config.topic() == {"segment.bytes": "7"}


def test_a_batch_stays_well_below_the_transactions_timeout() -> None:
    config = StreamsConfig(**BASE, processing_guarantee="exactly_once_v2", max_batch_ms=60_000)
    assert config.batches().target_ms <= config.transaction_timeout_ms // 2


def test_the_readers_of_exact_ranges_never_skip_what_is_gone() -> None:
    keys = {"consumer.auto.offset.reset": "latest", "restore.consumer.enable.partition.eof": False, "consumer.fetch.min.bytes": 7}
    config = StreamsConfig(**BASE, **keys)
    for settings in (config.consumer(), config.main_consumer()):
        assert settings["fetch.min.bytes"] == 7
        assert not {"auto.offset.reset", "enable.partition.eof"} & settings.keys()


def test_the_assignors_rules_and_the_tags_are_carved_out() -> None:
    keys = {"client.tag.zone": "a", "rack.aware.assignment.tags": "zone, cluster,", "rack.aware.assignment.traffic_cost": "7"}
    config = StreamsConfig(**BASE, client_tag_cluster="k", num_standby_replicas=1, **keys)
    assert config.tags() == {"zone": "a", "cluster": "k"}
    rules = config.assignment()
    assert (rules.rack_tags, rules.traffic_cost, rules.non_overlap_cost) == (("zone", "cluster"), 7, None)
    assert (rules.num_standbys, rules.acceptable_lag, rules.max_warmups) == (1, 10_000, 2)
    with pytest.raises(ConfigError, match="non"):
        StreamsConfig(**BASE, **{"rack.aware.assignment.non_overlap_cost": -1})
