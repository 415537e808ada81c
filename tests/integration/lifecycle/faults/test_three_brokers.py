"""An instance on three brokers, of which one or the other is away: each record counts once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from everflow import KafkaStreams, StreamsBuilder, Topology, serdes
from everflow.testing import EmbeddedBroker, EmbeddedCluster, wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    last_by_key,
    long,
    text,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]
PARTITIONS = 2
WAIT_S = 180.0


@pytest.fixture(scope="module")
def cluster_of_three() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


@pytest.fixture
def three(cluster_of_three: EmbeddedCluster) -> EmbeddedCluster:
    """All of them up, whatever a test before has left."""
    for broker in cluster_of_three.brokers:
        if not broker.running:
            broker.restart()
    cluster_of_three.wait_until_in_sync()
    return cluster_of_three


def until(check: Callable[[], object], what: str) -> None:
    """Wait for it; a question of the test's own that nobody answers yet is asked again."""

    def true() -> bool:
        try:
            return bool(check())
        except KafkaException:
            return False

    wait_until(true, WAIT_S, what)


def until_another(find: Callable[[], EmbeddedBroker], before: EmbeddedBroker) -> None:
    until(lambda: find() is not before, "another broker in the place of the one before")


def counting(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to(output)
    return builder.build()


class Counted:
    """An application that counts the records of one topic, and how many each key has to have."""

    def __init__(self, three: EmbeddedCluster, folder: Path, prefix: str) -> None:
        self.three, self.prefix = three, prefix
        self.cluster = Cluster(three.bootstrap_servers, prefix)
        self.source, self.output = f"{prefix}-in", f"{prefix}-out"
        self.app = Application(self.cluster, folder, {"task_timeout_ms": 180_000})
        self.sent = 0

    @property
    def topology(self) -> Topology:
        return counting(self.source, self.output)

    def create_topics(self) -> None:
        for name in (self.source, self.output):
            self.three.create_topic(name, PARTITIONS)

    def write(self, count: int) -> None:
        numbers = range(self.sent, self.sent + count)
        self.cluster.write(
            self.source, [text(f"k{n % 7}", "v", n, n % 7 % PARTITIONS) for n in numbers]
        )
        self.sent += count

    def process(self, streams: KafkaStreams, count: int) -> None:
        self.write(count)
        self.until_processed(streams)

    def until_processed(self, streams: KafkaStreams) -> None:
        def processed() -> bool:
            self.app.until_processed(streams, self.source)
            return True

        until(processed, "everything to be processed")
        assert streams.error is None

    def require_counted_once(self) -> None:
        found = {
            key: long(value) for key, value in last_by_key(self.cluster.read(self.output)).items()
        }
        assert found == Counter(b"k%d" % (n % 7) for n in range(self.sent))


def test_leaders_change_and_every_broker_restarts(
    three: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    counted = Counted(three, tmp_path, "three")
    counted.create_topics()
    with counted.app.running(counted.topology) as streams:
        counted.process(streams, 100)
        lost = three.leader(counted.source, 0)
        lost.kill()
        counted.process(streams, 100)
        assert three.leader(counted.source, 0) is not lost, "another one leads"
        lost.restart()
        three.wait_until_in_sync()
        for broker in three.brokers:
            broker.stop()
            counted.write(50)
            broker.restart()
            three.wait_until_in_sync()
        counted.process(streams, 1)
    counted.require_counted_once()
    counted.cluster.close()


def test_coordinators_and_partitions_move(
    three: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """The brokers that coordinate the group and the transactions are lost in turn, and the input,
    the output and the changelog move to other brokers, with records under way all the time."""
    counted = Counted(three, tmp_path, "moving")
    counted.create_topics()
    with counted.app.running(counted.topology) as streams:
        counted.process(streams, 50)
        metadata = json.loads(next(tmp_path.rglob("process-metadata")).read_text())
        ids = metadata["transactional_ids"]
        coordinators: tuple[Callable[[], EmbeddedBroker], ...] = (
            partial(three.coordinator, counted.app.id),
            partial(three.transaction_coordinator, ids[0]),
        )
        for coordinator in coordinators:
            lost = coordinator()
            counted.write(50)
            lost.kill()
            counted.process(streams, 50)
            until_another(coordinator, lost)
            lost.restart()
            three.wait_until_in_sync()
            counted.process(streams, 50)
        changelog = next(name for name in counted.cluster.topics() if "changelog" in name)
        for topic in (counted.source, counted.output, changelog):
            for partition in range(PARTITIONS):
                there = three.leader(topic, partition)
                counted.write(20)
                three.move(topic, partition, [one for one in three.brokers if one is not there])
                until_another(partial(three.leader, topic, partition), there)
                counted.process(streams, 20)
    counted.require_counted_once()
    counted.cluster.close()
