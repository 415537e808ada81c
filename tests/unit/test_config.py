"""Configuration: names, types, prefixes, and errors for people."""

import dataclasses
import inspect
import re
import threading
from pathlib import Path
from typing import Any, cast

import pytest

import everflow
from everflow import KafkaStreams
from everflow.config import WITHOUT_EFFECT, AssignmentRules, BatchLimits, StreamsConfig
from everflow.errors import ConfigError
from everflow.setting_checks import LONGEST_MS
from everflow.topology.program import Topology

BASE = {"application_id": "app", "bootstrap_servers": "broker:9092"}


def test_dotted_and_snake_case_keys_mean_the_same() -> None:
    dotted = StreamsConfig(
        **{"application.id": "app", "bootstrap.servers": "b:1", "task.timeout.ms": "5"}
    )
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
    [
        ("comit_interval_ms", "commit.interval.ms"),
        ("num.stream.thread", "num.stream.threads"),
        ("state_dirs", "state.dir"),
    ],
)
def test_unknown_key_names_the_nearest_right_one(key: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint.replace(".", r"\.")):
        StreamsConfig(**BASE, **{key: 1})


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("num_stream_threads", "many", "whole number"),
        ("num_stream_threads", True, "whole number"),
        ("state_dir", "", r"state\.dir .* empty"),
        ("num_stream_threads", 0, r"num\.stream\.threads.*0.*least"),
        ("emit_every_update", "perhaps", "true or false"),
        ("processing_guarantee", "twice", "exactly_once_v2"),
        ("application_id", "a b", "letters"),
        ("task_timeout_ms", -1, "at least"),
        ("heartbeat_interval_ms", 40_000, "third"),
        ("consumer.isolation.level", "x", "consumer.isolation.level.*follows processing"),
        ("isolation.level", "x", r"isolation.level.*follows processing.guarantee"),
        ("group.id", "x", "Set application.id instead"),
        ("allow.auto.create.topics", True, r"internal.*created"),
        ("consumer.session.timeout.ms", 60_000, r"Set session\.timeout\.ms"),
        ("main_consumer_heartbeat_interval_ms", 300, r"Set heartbeat\.interval\.ms instead"),
        ("consumer.group.instance.id", "i1", r"Set group\.instance\.id instead"),
        ("main.consumer.group.instance.id", "i1", r"Set group\.instance\.id"),
        ("consumer.client.rack", "a", r"Set client\.rack instead"),
        ("consumer.max.poll.interval.ms", 1, r"Set max\.poll\.interval\.ms instead"),
        ("application_id", ".", "folders"),
        ("application_id", "..", "folders"),
        ("application_id", "a/b", "letters"),
        ("application_id", "a\n", "letters"),
        ("application_id", "ä", "letters"),
        ("application_id", "a" * 201, "at most 200"),
        ("group_instance_id", "", "letters"),
        ("group_instance_id", "..", "folders"),
        ("group_instance_id", "a b", "letters"),
        ("group_instance_id", "a" * 250, "at most 249"),
        ("application_server", "nonsense", "must be host:port"),
        ("application_server", "host:", "must be host:port"),
        ("application_server", "host:0", "must be host:port"),
        ("application_server", "host:65536", "must be host:port"),
        ("application_server", "http://host:80", "must be host:port"),
        ("state_dir", "\0", "NUL"),
        ("client_id", "a\nb", r"client\.id = 'a\\nb' .* control characters"),
        ("client_rack", "a\0", "control characters"),
        ("replication_factor", 0, "at least 1, or -1 for the broker's default"),
        ("replication_factor", -2, "at least -1"),
    ],
)
def test_wrong_values_are_named(key: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        StreamsConfig(**{**BASE, key: value})


INT32_KEYS = (
    "session_timeout_ms",
    "rebalance_timeout_ms",
    "max_poll_interval_ms",
    "transaction_timeout_ms",
    "request_timeout_ms",
)


@pytest.mark.parametrize(
    "given",
    [
        "all",
        "merge.repartition.topics",
        "single.store.self.join",
        "reuse.ktable.source.topics,merge.repartition.topics",
    ],
)
def test_an_optimization_that_is_not_there_is_refused_with_what_there_is(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        StreamsConfig(**BASE, **{"topology.optimization": given})
    said = str(caught.value)
    assert "one of none, reuse.ktable.source.topics" in said
    assert re.search(" all, .* not there", said)


@pytest.mark.parametrize("key", INT32_KEYS)
def test_what_is_32_bits_wide_in_the_protocol_is_bounded(key: str) -> None:
    assert getattr(StreamsConfig(**BASE, **{key: 2**31 - 1}), key) == 2**31 - 1
    with pytest.raises(ConfigError, match=rf"{key.replace('_', '.')}.*2147483648.*most 2147483647"):
        StreamsConfig(**BASE, **{key: 2**31})


@pytest.mark.parametrize("spec", dataclasses.fields(StreamsConfig), ids=lambda spec: spec.name)
def test_numbers_have_bounds_and_times_can_be_waited_for(spec: dataclasses.Field[object]) -> None:
    if not str(spec.type).startswith("int"):
        return
    with pytest.raises(ConfigError, match="most"):
        StreamsConfig(**BASE, **{spec.name: 2**63})
    added_up_only = (
        spec.name == "windowstore_changelog_additional_retention_ms"
    )  # brokers take it, nobody waits for it
    if spec.name.endswith("_ms") and not added_up_only:
        assert LONGEST_MS / 1000 * 10 < threading.TIMEOUT_MAX
        with pytest.raises(ConfigError, match="most"):
            StreamsConfig(**BASE, **{spec.name: LONGEST_MS + 1})


def test_addresses_and_names_that_are_right_pass() -> None:
    for server in ("", "host:1", "10.0.0.1:65535", "[::1]:80", "a.b-c:8080"):
        assert StreamsConfig(**BASE, application_server=server).application_server == server
    config = StreamsConfig(
        **BASE, group_instance_id="a.b_c-1", **{"restore.consumer.client.rack": "a"}
    )
    assert (config.group_instance_id, config.consumer()["client.rack"]) == ("a.b_c-1", "a")
    assert StreamsConfig(**BASE).group_instance_id is None


def test_missing_application_id_says_what_to_pass() -> None:
    with pytest.raises(ConfigError, match=r"application\.id is missing"):
        StreamsConfig(bootstrap_servers="b:1")


def test_prefixed_keys_go_to_their_client_only() -> None:
    config = StreamsConfig(
        **BASE,
        processing_guarantee="exactly_once_v2",
        producer_linger_ms=5,
        **{"topic.segment.bytes": 7, "ssl.ca.location": "ca", "security.protocol": "SSL"},
    )
    assert config.producer() == {
        "bootstrap.servers": "broker:9092",
        "ssl.ca.location": "ca",
        "security.protocol": "SSL",
        "linger.ms": 5,
        "transaction.timeout.ms": 10_000,
    }
    assert "linger.ms" not in config.consumer()
    assert config.topic() == {"segment.bytes": "7"}


def test_a_batch_stays_well_below_the_transactions_timeout() -> None:
    config = StreamsConfig(**BASE, processing_guarantee="exactly_once_v2", max_batch_ms=60_000)
    assert config.batches().target_ms <= config.transaction_timeout_ms // 2


def test_the_readers_of_exact_ranges_never_skip_what_is_gone() -> None:
    keys = {
        "consumer.auto.offset.reset": "latest",
        "restore.consumer.enable.partition.eof": False,
        "consumer.fetch.min.bytes": 7,
    }
    config = StreamsConfig(**BASE, **keys)
    for settings in (config.consumer(), config.main_consumer()):
        assert settings["fetch.min.bytes"] == 7
        assert not {"auto.offset.reset", "enable.partition.eof"} & settings.keys()


def test_the_assignors_rules_and_the_tags_are_carved_out() -> None:
    keys = {
        "client.tag.zone": "a",
        "rack.aware.assignment.tags": "zone, cluster,",
        "rack.aware.assignment.traffic_cost": "7",
    }
    config = StreamsConfig(**BASE, client_tag_cluster="k", num_standby_replicas=1, **keys)
    assert config.tags() == {"zone": "a", "cluster": "k"}
    rules = config.assignment()
    assert (rules.rack_tags, rules.traffic_cost, rules.non_overlap_cost) == (
        ("zone", "cluster"),
        7,
        None,
    )
    assert (rules.num_standbys, rules.acceptable_lag, rules.max_warmups) == (1, 10_000, 2)
    with pytest.raises(ConfigError, match="non"):
        StreamsConfig(**BASE, **{"rack.aware.assignment.non_overlap_cost": -1})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (
            {"rack.aware.assignment.tags": "zone,rack", "client.tag.zone": "a"},
            r"names 'rack', .* set client\.tag\.rack",
        ),
        ({f"client.tag.t{number}": "a" for number in range(6)}, r"6 tags.*5"),
        ({f"client.tag.{'k' * 21}": "a"}, "21 characters; at most 20"),
        ({"client.tag.zone": "v" * 31}, "31 characters; at most 30"),
    ],
)
def test_tags_are_refused_as_kafka_streams_refuses_them(keys: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StreamsConfig(**BASE, **keys)


def test_as_many_and_as_long_tags_as_kafka_streams_takes() -> None:
    tags = {"k" * 20: "v" * 30, "a": "", "b": "1", "c": "1", "d": "1"}
    config = StreamsConfig(
        **BASE,
        **{"rack.aware.assignment.tags": "d,a"},
        **{f"client.tag.{key}": tags[key] for key in tags},
    )
    assert config.tags() == tags


@pytest.mark.parametrize("name", ["spark.job.per.batch", "spark_job_per_batch"])
def test_a_removed_setting_is_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        StreamsConfig(application_id="a", bootstrap_servers="b:1", **{name: True})
    assert str(refused.value).startswith("spark.job.per.batch was removed: ")
    assert refused.value.code == "EF-CONFIG"


@pytest.mark.parametrize("name", sorted(WITHOUT_EFFECT))
def test_a_setting_without_effect_is_named_if_it_was_set(name: str) -> None:
    default = getattr(StreamsConfig(**BASE), name)
    (said,) = StreamsConfig(**BASE, **{name.replace("_", "."): default}).warnings()
    assert said.startswith(f"{name.replace('_', '.')} = {default!r} has no effect")
    assert StreamsConfig(**BASE, task_timeout_ms=5).warnings() == []


def test_every_setting_has_an_effect_or_is_listed() -> None:
    """By the names that the code reads; keys with one legal value only need no reader. A key that
    is handed on in a record of `config` is read there, so the fields of those records need a reader
    too."""
    package = Path(everflow.__file__).parent
    code = "\n".join(path.read_text() for path in package.rglob("*.py") if path.name != "config.py")
    code += inspect.getsource(StreamsConfig).split("def _check(")[1]
    keys = [one for one in dataclasses.fields(StreamsConfig) if one.metadata.get("key", True)]
    read = {one.name for one in keys if re.search(rf"\.{one.name}\b", code)}
    assert {one.name for one in keys} - read - {"group_protocol", "topology_optimization"} == set(
        WITHOUT_EFFECT
    )
    outside = "\n".join(one.read_text() for one in package.rglob("*.py") if one.name != "config.py")
    records = (BatchLimits, AssignmentRules)
    carved = [one.name for record in records for one in dataclasses.fields(record)]
    assert [name for name in carved if not re.search(rf"\.{name}\b", outside)] == []


def test_the_start_says_what_was_set_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    said = {"request_timeout_ms": 7_000, "producer.linger.ms": "no number"}
    settings: dict[str, Any] = {**BASE, **said}
    streams = KafkaStreams(Topology(()), **settings)
    with pytest.raises(ConfigError, match="linger"):
        streams.start()
    assert "request.timeout.ms = 7000 has no effect" in caplog.text


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("broker", "'broker' has no port: write 'broker:9092'"),
        ("broker:", "'broker:' has no port: write 'broker:9092'"),
        (":9092", "':9092' has no host"),
        ("a:9092,b", "'b' has no port: write 'b:9092'"),
        ("a:9092,,b:9092", "is empty"),
        ("a:9092,", "is empty"),
        ("http://broker:9092", r"leave http:// out and write 'broker:9092'"),
        ("PLAINTEXT://broker:9092", r"leave PLAINTEXT:// out .* security\.protocol"),
        ("broker:0", "'broker:0' .* 1 to 65535"),
        ("broker:65536", " 1 to 65535"),
        ("broker:kafka", " 1 to 65535"),
        ("::1", r"IPv6, which takes brackets: '\[::1\]:9092'"),
        ("2001:db8::1:9092", "IPv6, which takes brackets"),
        ("my broker:9092", "'my broker' is no host"),
        (["a:1", "b"], "'b' has no port"),
    ],
)
def test_an_address_that_cannot_be_is_refused_with_what_to_write(given: object, told: str) -> None:
    with pytest.raises(
        ConfigError, match=r"bootstrap\.servers = .* must be host:port .*: .*" + told
    ):
        StreamsConfig(application_id="a", bootstrap_servers=given)


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ("a:1, b:2", "a:1,b:2"),
        ("[::1]:9092", "[::1]:9092"),
        (("a.b-c_d:65535", "10.0.0.1:1"), "a.b-c_d:65535,10.0.0.1:1"),
    ],
)
def test_addresses_of_brokers(given: object, taken: str) -> None:
    assert StreamsConfig(application_id="a", bootstrap_servers=given).bootstrap_servers == taken


def test_settings_may_be_a_mapping_of_kafka_streams_names() -> None:
    properties = {
        "application.id": "app",
        "bootstrap.servers": "b:1",
        "num.stream.threads": 3,
        "producer.linger.ms": 5,
    }
    streams = KafkaStreams(Topology(()), properties)
    assert streams.config == StreamsConfig(properties) == StreamsConfig(**cast(Any, properties))
    more = KafkaStreams(Topology(()), properties, task_timeout_ms=5).config
    assert (more.num_stream_threads, more.task_timeout_ms) == (3, 5)
    with pytest.raises(ConfigError, match=r"application\.id is given twice"):
        KafkaStreams(Topology(()), properties, application_id="other")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("app", r"found 'app' \(str\)"),
        ([("application.id", "app")], r"found \[\('application\.id', 'app'\)\] \(list\)"),
        ({1: "app"}, r"found \{1: 'app'\} \(dict\)"),
    ],
)
def test_anything_else_for_settings_is_refused_at_construction(given: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=r"mapping .*\{'application\.id': 'orders'\}, " + told):
        KafkaStreams(Topology(()), given)


def test_a_config_with_keywords_beside_it_is_refused_at_construction() -> None:
    with pytest.raises(ConfigError, match=r"StreamsConfig.*keywords"):
        KafkaStreams(Topology(()), StreamsConfig(**BASE), num_stream_threads=2)
