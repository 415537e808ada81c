"""An instance on three brokers, of which one or the other is away: each record counts once."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from pyspark.sql import SparkSession

from everflow import KafkaStreams, StreamsBuilder, TaskId, Topology, serdes
from everflow.errors import FatalError, RetriableError
from everflow.instance.describe import TaskStatus
from everflow.instance.tasks.task import TaskRole
from everflow.testing import EmbeddedBroker, EmbeddedCluster, wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    closed,
    counting,
    last_by_key,
    long,
    text,
    until_failed,
    until_running,
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
        except (KafkaException, RetriableError):
            return False

    wait_until(true, WAIT_S, what)


def until_another(find: Callable[[], EmbeddedBroker], before: EmbeddedBroker) -> None:
    until(lambda: find() is not before, "another broker in the place of the one before")


def two_counts(prefix: str) -> Topology:
    """Two sub-topologies that have nothing in common."""
    builder = StreamsBuilder()
    for name in ("a", "b"):
        stream = builder.stream(f"{prefix}-in-{name}", key=serdes.string(), value=serdes.string())
        stream.group_by_key().count(store=f"n-{name}").to_stream().to(f"{prefix}-out-{name}")
    return builder.build()


def copies(streams: KafkaStreams, of: int) -> list[TaskStatus]:
    found = streams.all_tasks().items()
    return [one for task, one in found if task.subtopology == of and one.role is TaskRole.STANDBY]


def counted_in(cluster: Cluster, output: str) -> int:
    return sum(long(value) or 0 for value in last_by_key(cluster.read(output)).values())


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
        found = self.cluster.longs(self.output)
        assert found == Counter(b"k%d" % (n % 7) for n in range(self.sent))


def test_every_broker_restarts(three: EmbeddedCluster, spark: SparkSession, tmp_path: Path) -> None:
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
    """The coordinators are lost in turn, and partitions move, with records under way."""
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


def test_one_task_is_held_up(three: EmbeddedCluster, spark: SparkSession, tmp_path: Path) -> None:
    """The broker that alone has one input stands still, then is gone, then is back (note 051)."""
    cluster = Cluster(three.bootstrap_servers, "alone")
    app = Application(cluster, tmp_path, {"task_timeout_ms": 600_000})
    three.create_topic("alone-in-a", 1)
    three.create_topic("alone-in-b", 1, {"min.insync.replicas": "1"}, three.brokers[2:])
    for name in ("alone-out-a", "alone-out-b"):
        three.create_topic(name, 1)
    sent = Counter[str]()

    def write(name: str) -> None:
        cluster.write(f"alone-in-{name}", [text("k", "v", sent[name])])
        sent[name] += 1

    def until_out(name: str) -> None:
        until(lambda: counted_in(cluster, f"alone-out-{name}") == sent[name], f"out-{name}")

    with app.running(two_counts("alone")) as streams:
        for name in ("a", "b"):
            write(name)
            until_out(name)
        write("b")
        three.brokers[2].kill()
        for _ in range(5):
            write("a")
            until_out("a")
        until(lambda: streams.all_tasks()[TaskId(1, 0)].trouble, "its trouble to be shown")
        for _ in range(3):
            write("a")
            until_out("a")
        assert streams.error is None
        three.brokers[2].restart()
        three.wait_until_in_sync()
        write("b")
        until_out("b")
        write("a")
        until_out("a")
        assert streams.error is None
    cluster.close()


def test_copies_wait_one_by_one(
    three: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """A changelog's only broker is gone: its copies are named, and all else goes on (note 051)."""
    cluster = Cluster(three.bootstrap_servers, "copied")
    app = Application(cluster, tmp_path, {"task_timeout_ms": 600_000, "num_standby_replicas": 1})
    for name in ("a", "b"):
        three.create_topic(f"copied-in-{name}", PARTITIONS)
        three.create_topic(f"copied-out-{name}", 1)
    alone = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
    three.create_topic(f"{app.id}-n-b-changelog", PARTITIONS, alone, three.brokers[2:])
    topology, sent = two_counts("copied"), Counter[str]()

    def write(name: str) -> None:
        times = range(sent[name], sent[name] + PARTITIONS)
        cluster.write(
            f"copied-in-{name}", [text(f"k{p}", "v", at, p) for p, at in enumerate(times)]
        )
        sent[name] += PARTITIONS

    def until_out(name: str) -> None:
        until(lambda: counted_in(cluster, f"copied-out-{name}") == sent[name], f"out-{name}")

    with (
        app.running(topology) as first,
        app.running(topology, state_dir=str(tmp_path / "second")) as second,
    ):
        both = (first, second)
        spread = lambda: all(len(copies(s, 0)) == len(copies(s, 1)) == 1 for s in both)  # noqa: E731
        until(spread, "a copy of each store on each instance")
        for name in ("a", "b"):
            write(name)
            until_out(name)
        three.brokers[2].kill()
        until(lambda: all(copies(s, 1)[0].trouble for s in both), "the trouble of the copies")
        for streams in both:
            told = copies(streams, 1)[0].trouble
            assert told is not None
            assert "n-b-changelog" in told.text
        before = [copies(s, 0)[0].copied or 0 for s in both]
        write("a")
        until_out("a")

        def followed() -> bool:
            now = [copies(s, 0)[0] for s in both]
            grown = [one.copied or 0 for one in now]
            return all(b > a for a, b in zip(before, grown, strict=True))

        until(followed, "the other store's copies to follow")
        assert all(copies(s, 0)[0].trouble is None for s in both)
        assert first.error is second.error is None
        three.brokers[2].restart()
        three.wait_until_in_sync()
        write("b")
        until_out("b")
        until(lambda: not any(copies(s, 1)[0].trouble for s in both), "the end of the trouble")
        assert first.error is second.error is None
    cluster.close()


def test_an_unclean_election_is_told_and_nothing_is_made_of_another_log(
    three: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    """The leader that has records which no replica has is lost, and one without them takes over:
    what was read of the input is no longer there. Nobody may go on as if it were."""
    counted = Counted(three, tmp_path, "unclean")
    lossy = {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}
    behind, leader = three.brokers[1], three.brokers[2]
    three.create_topic(counted.source, 1, lossy, [leader, behind])
    three.create_topic(counted.output, 1)
    streams = counted.app.instance(counted.topology)

    def leads(topic: str) -> EmbeddedBroker | None:
        try:
            return three.leader(topic, 0)
        except AssertionError:  # nobody does
            return None

    def write(count: int) -> None:
        numbers = range(counted.sent, counted.sent + count)
        counted.cluster.write(counted.source, [text("k0", f"v{n}", n, 0) for n in numbers])
        counted.sent += count

    try:
        streams.start()
        until_running(streams)
        write(10)
        counted.until_processed(streams)
        behind.kill()
        write(5)
        counted.until_processed(streams)
        leader.kill()
        behind.restart()
        until(lambda: leads(counted.source) is behind, "the replica that is behind to lead")
        write(3)
        failed = until_failed(streams, WAIT_S)
        assert isinstance(failed, FatalError)
        assert f"{counted.source}-0" in str(failed)
        assert "--reset-offsets" in str(failed), "what to do is said"
    finally:
        closed(streams)
        leader.restart()
        three.wait_until_in_sync()
    values = [long(record.value) or 0 for record in counted.cluster.read(counted.output)]
    assert values == sorted(values), "nothing was counted of the other log"
    assert values[-1] == 15
    counted.cluster.close()
