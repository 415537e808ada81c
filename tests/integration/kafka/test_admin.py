"""Topics as the broker has them, and a broker that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing

import psutil
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from typer.testing import CliRunner

from everflow.cli.app import app as command
from everflow.errors import RetriableError, TaskTimeoutError
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


def test_topics_are_created_once_described_and_deleted(admin: ClusterAdmin, name: str) -> None:
    wanted = {name: (3, {"cleanup.policy": "compact,delete", "retention.ms": "777"})}
    assert admin.create_topics(wanted) == {name}
    assert admin.create_topics(wanted) == set()
    found = admin.describe_topics([name, f"{name}-absent"])
    assert set(found) == {name}
    assert found[name].partitions == 3
    config = admin.topic_configs([name])[name]
    assert (config["retention.ms"], set(config["cleanup.policy"].split(","))) == (
        "777",
        {"delete", "compact"},
    )
    admin.delete_topics([name, f"{name}-absent"])
    admin.create_topics(wanted)
    assert admin.describe_topics([name])[name].topic_id != found[name].topic_id


def test_a_broker_says_whether_it_creates_topics(admin: ClusterAdmin) -> None:
    assert admin.creates_topics() is False


def test_a_topic_created_again_has_another_id_for_a_client_that_knew_the_old_one(
    admin: ClusterAdmin, topic: Topic
) -> None:
    name, asks = topic(1), ClusterAdmin({"bootstrap.servers": admin._bootstrap})
    before = asks.describe_topics([name])[name].topic_id
    admin.delete_topics([name])
    admin.create_topics({name: (1, {})})
    wait_until(lambda: asks.describe_topics([name])[name].topic_id != before, 10, "the new id")


def test_offsets_by_time_and_of_an_unknown_group(
    admin: ClusterAdmin, topic: Topic, name: str
) -> None:
    tp = TopicPartition(topic(1), 0)
    assert admin.offsets_for_time([tp], 5, "read_committed") == {tp: -1}
    assert admin.list_offsets([tp], "earliest", "read_uncommitted") == {tp: 0}
    assert admin.committed(name, [tp]) == {}


def test_lag_is_told_of_all_that_a_group_has_committed(
    admin: ClusterAdmin, bootstrap: str, topic: Topic, name: str
) -> None:
    """The topics are not named: `everflow lag` knows none."""
    assert admin.all_committed(name) == {}
    one, other = topic(2), topic(1)
    with closing(Producer({"bootstrap.servers": bootstrap})) as producer:
        for _ in range(5):
            producer.produce(other, b"v", partition=0)
        producer.flush(10)
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": name})) as consumer:
        read = [(one, 1, 0), (other, 0, 3)]
        offsets = [ClientTopicPartition(*place) for place in read]
        consumer.commit(offsets=offsets, asynchronous=False)
    assert admin.all_committed(name) == {
        TopicPartition(topic, partition): offset for topic, partition, offset in read
    }
    said = CliRunner().invoke(
        command, ["lag", name, "--bootstrap-servers", bootstrap, "--output", "json"]
    )
    assert said.exit_code == 0, said.output
    assert [(row["topic"], row["lag"]) for row in json.loads(said.stdout)] == [(other, 2), (one, 0)]
    unknown = CliRunner().invoke(command, ["lag", f"{name}-x", "--bootstrap-servers", bootstrap])
    assert unknown.exit_code != 0
    assert f"group {name}-x has committed nothing" in unknown.output


def _connections_to(bootstrap: str) -> set[int]:
    """Local ports of this process' connections to the broker."""
    port = int(bootstrap.rsplit(":", 1)[1])
    return {
        each.laddr.port
        for each in psutil.Process().net_connections("tcp")
        if each.raddr and each.raddr.port == port and each.status == psutil.CONN_ESTABLISHED
    }


def test_a_closed_one_has_no_connection_and_says_so(name: str) -> None:
    """On a broker of its own: clients of other tests connect to the common one at any time."""
    with EmbeddedBroker() as broker:
        broker.create_topic("closed", 1)
        bootstrap, tp = broker.bootstrap_servers, TopicPartition("closed", 0)
        wait_until(lambda: not _connections_to(bootstrap), 30, "those of the start to end")
        closed = ClusterAdmin({"bootstrap.servers": bootstrap})
        assert closed.end_offsets([tp], "read_committed") == {tp: 0}
        assert closed.committed(name, [tp]) == {}
        assert _connections_to(bootstrap)
        closed.close()
        wait_until(
            lambda: not _connections_to(bootstrap),
            30,
            "its connections to end",
            lambda: sorted(_connections_to(bootstrap)),
        )
        with pytest.raises(RetriableError, match=rf"connection.*{bootstrap}"):
            closed.end_offsets([tp], "read_committed")


def test_an_absent_broker_is_retried_visibly_and_given_up() -> None:
    nowhere = ClusterAdmin({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    lines: list[str] = []
    with pytest.raises(
        TaskTimeoutError, match=r"127\.0\.0\.1:1.*task\.timeout\.ms.*bootstrap\.servers"
    ):
        nowhere.wait_until_reachable(3.5, lines.append, limit="task.timeout.ms")
    assert lines
    assert all("127.0.0.1:1" in line for line in lines)


def test_a_broker_that_does_not_answer_in_time_has_not_told_an_offset(
    broker: EmbeddedBroker, name: str
) -> None:
    """librdkafka gives -1001 for each partition then, and no error: as the end of a changelog it
    would empty a store."""
    tps = [TopicPartition(name, p) for p in range(2)]
    broker.create_topic(name, 2)
    admin = ClusterAdmin({"bootstrap.servers": broker.bootstrap_servers})
    asks: list[Callable[[float], dict[TopicPartition, int]]] = [
        lambda timeout_s: admin.end_offsets(tps, "read_committed", timeout_s),
        lambda timeout_s: admin.list_offsets(tps, "earliest", "read_uncommitted", timeout_s),
        lambda timeout_s: admin.offsets_for_time(tps, 5, "read_committed", timeout_s),
    ]
    before = [ask(30) for ask in asks]
    for ask in asks:
        broker.pause()
        try:
            with pytest.raises(RetriableError, match=rf"offsets.*{name}-0"):
                _until_refused(ask)
        finally:
            broker.resume()
    assert [ask(30) for ask in asks] == before


def _until_refused(ask: Callable[[float], object]) -> None:
    """The first may still be answered: the signal takes a moment to reach all threads of the
    broker."""
    for _ in range(100):
        ask(1.5)
