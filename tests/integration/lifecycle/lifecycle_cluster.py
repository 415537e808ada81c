"""For tests of whole instances: a cluster to write to and read from, instances that are closed."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType

from everflow import KafkaStreams, StreamsBuilder, Topology, serdes
from everflow.errors import EverflowError
from everflow.instance.client_state import ClientState
from everflow.metrics import LAG
from everflow.testing import wait_until

SETTLE_S = 5.0
NO_COORDINATOR_YET = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)
"""Until a new broker has made, or read, the topic of the groups' offsets."""
REQUEST_S = 20.0
CAUGHT_UP_S = 60.0
GUARANTEES = ("exactly_once_v2", "at_least_once")


class Record(NamedTuple):
    """A record to write, or one that was read. Times in ms."""

    key: bytes | None
    value: bytes | None
    timestamp: int = 1
    partition: int = 0
    headers: tuple[tuple[str, bytes | None], ...] = ()
    topic: str = ""
    offset: int = -1


def text(key: str | None, value: str | None, timestamp: int = 1, partition: int = 0) -> Record:
    return Record(
        None if key is None else key.encode(),
        None if value is None else value.encode(),
        timestamp,
        partition,
    )


def in_json(key: str | None, value: object, timestamp: int = 1, partition: int = 0) -> Record:
    return text(key, json.dumps(value), timestamp, partition)


def long(data: bytes | None) -> int | None:
    return None if data is None else int.from_bytes(data, "big", signed=True)


def counting(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to(output)
    return builder.build()


@dataclass
class Cluster:
    """A broker; topics and applications of one test begin with ``prefix``."""

    bootstrap: str
    prefix: str
    _admin: AdminClient = field(init=False)
    _consumers: dict[tuple[str, str], Consumer] = field(init=False, default_factory=dict)
    _producer: Producer | None = field(init=False, default=None)
    """For all topics, until one of them is created again or grows."""
    _partitions: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})

    def close(self) -> None:
        for consumer in self._consumers.values():
            consumer.close()
        self._consumers.clear()
        self._topics_changed()

    def topic(self, name: str, partitions: int = 2, **config: str) -> str:
        """Create a topic; its full name. ``config``: its settings, dots as underscores."""
        full = f"{self.prefix}-{name}"
        self.make(full, partitions=partitions, **config)
        return full

    def make(self, *names: str, partitions: int = 1, **config: str) -> None:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        asked = self._admin.create_topics(
            [NewTopic(name, partitions, 1, config=settings) for name in names],
            operation_timeout=REQUEST_S,
        )
        for future in asked.values():
            future.result(REQUEST_S)

    def grow(self, topic: str, partitions: int) -> None:
        """Give a topic so many partitions, and wait until they are told."""
        asked = self._admin.create_partitions([NewPartitions(topic, partitions)])
        asked[topic].result(REQUEST_S)
        wait_until(lambda: self.topics()[topic] == partitions, REQUEST_S, f"{topic} to grow")
        self._topics_changed()

    def delete(self, *topics: str) -> None:
        for future in self._admin.delete_topics(list(topics), operation_timeout=REQUEST_S).values():
            future.result(REQUEST_S)
        wait_until(lambda: not set(topics) & set(self.topics()), REQUEST_S, f"the end of {topics}")
        self._topics_changed()

    def _topics_changed(self) -> None:
        self._producer = None
        self._partitions.clear()

    def topics(self) -> dict[str, int]:
        found = self._admin.list_topics(timeout=REQUEST_S).topics
        return {
            name: len(topic.partitions)
            for name, topic in found.items()
            if name.startswith(self.prefix)
        }

    def config(self, topic: str) -> dict[str, str]:
        asked = self._admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
        (entries,) = [future.result(REQUEST_S) for future in asked.values()]
        return {name: str(entry.value) for name, entry in entries.items()}

    def topic_id(self, topic: str) -> str:
        """A topic's id; another one after it was created again."""
        found = self._admin.describe_topics(TopicCollection([topic]))[topic].result(REQUEST_S)
        return str(found.topic_id)

    def group(self, group: str) -> Any:
        return _once_coordinated(
            group,
            lambda: self._admin.describe_consumer_groups([group])[group].result(REQUEST_S),
        )

    def members(self, group: str) -> int:
        return len(self.group(group).members)

    def delete_group(self, group: str) -> None:
        self._admin.delete_consumer_groups([group])[group].result(REQUEST_S)

    def write(self, topic: str, records: Iterable[Record]) -> None:
        if self._producer is None:
            self._producer = Producer({"bootstrap.servers": self.bootstrap, "linger.ms": 0})
        producer = self._producer
        refused: list[str] = []
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                timestamp=record.timestamp,
                headers=list(record.headers),
                on_delivery=lambda error, _: refused.append(str(error)) if error else None,
            )
        assert producer.flush(REQUEST_S) == 0
        assert not refused, refused

    def ends(self, topic: str, isolation: str = "read_committed") -> dict[TopicPartition, int]:
        """Ends of partitions, once the markers of ended transactions have landed."""
        if isolation == "read_committed":
            self._settle(topic)
        return self._watermarks(topic, isolation)

    def _settle(self, topic: str) -> None:
        """Offsets may be committed while the transaction's marker is on its way (KAFKA-10167)."""

        def landed() -> bool:
            with suppress(KafkaException):  # a client that has just lost its broker
                return self._watermarks(topic, "read_committed") == self._watermarks(
                    topic, "read_uncommitted"
                )
            return False

        with suppress(AssertionError):  # a transaction that is open on purpose
            wait_until(landed, SETTLE_S, "the markers to land")

    def _watermarks(self, topic: str, isolation: str) -> dict[TopicPartition, int]:
        consumer = self._consumer(f"{self.prefix}-read", isolation)
        return {
            tp: consumer.get_watermark_offsets(tp, REQUEST_S)[1]
            for tp in self._parts(consumer, topic)
        }

    def starts(self, topic: str) -> dict[int, int]:
        """Partition -> first offset in the log."""
        consumer = self._consumer(f"{self.prefix}-read", "read_committed")
        return {
            tp.partition: consumer.get_watermark_offsets(tp, REQUEST_S)[0]
            for tp in self._parts(consumer, topic)
        }

    def read(self, topic: str, isolation: str = "read_committed") -> list[Record]:
        """Everything in a topic, partition after partition, as read_committed sees it."""
        found: list[Record] = []
        if isolation == "read_committed":
            self._settle(topic)
        consumer = self._consumer(f"{self.prefix}-read", isolation)
        for partition in self._parts(consumer, topic):
            start, end = consumer.get_watermark_offsets(partition, REQUEST_S)
            partition.offset = start
            consumer.assign([partition])
            position = start
            while position < end:
                message = consumer.poll(0.2)
                if message is not None:
                    assert message.error() is None, message.error()
                    found.append(_record(message))
                position = max(position, consumer.position([partition])[0].offset)
        consumer.unassign()
        return found

    def longs(self, topic: str) -> dict[bytes | None, int | None]:
        """The table of longs that a topic of changes stands for."""
        return {key: long(value) for key, value in last_by_key(self.read(topic)).items()}

    def committed(
        self, group: str, topic: str, isolation: str = "read_committed"
    ) -> dict[int, tuple[int, str]]:
        """Partition -> (committed offset, metadata); partitions without an offset are left out."""
        consumer = self._consumer(group, isolation)
        parts = self._parts(consumer, topic)
        found = _once_coordinated(group, lambda: consumer.committed(parts, timeout=REQUEST_S))
        return {tp.partition: (tp.offset, _metadata(tp)) for tp in found if tp.offset >= 0}

    def _consumer(self, group: str, isolation: str) -> Consumer:
        """One that never joins its group."""
        if (group, isolation) not in self._consumers:
            self._consumers[group, isolation] = Consumer(
                {
                    "bootstrap.servers": self.bootstrap,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "auto.offset.reset": "earliest",
                    "isolation.level": isolation,
                }
            )
        return self._consumers[group, isolation]

    def _parts(self, consumer: Consumer, topic: str) -> list[TopicPartition]:
        if not self._partitions.get(topic):
            found = consumer.list_topics(topic, timeout=REQUEST_S).topics[topic]
            self._partitions[topic] = len(found.partitions)
        return [TopicPartition(topic, number) for number in range(self._partitions[topic])]


def _once_coordinated(group: str, ask: Callable[[], Any]) -> Any:
    """A broker that has just started has not read the groups yet."""

    def answered() -> Any:
        try:
            return (ask(),)
        except KafkaException as error:
            if error.args[0].code() not in NO_COORDINATOR_YET:
                raise
            return None

    return wait_until(answered, REQUEST_S, f"a coordinator of the group {group}")[0]


def _metadata(tp: TopicPartition) -> str:
    """Java ends no text with a NUL, and the client reads on."""
    try:
        return (tp.metadata or "").rstrip("\0")
    except UnicodeDecodeError as garbage:
        return garbage.object[: garbage.start].decode()


def _record(message: Any) -> Record:
    return Record(
        message.key(),
        message.value(),
        message.timestamp()[1],
        message.partition(),
        tuple(message.headers() or ()),
        message.topic(),
        message.offset(),
    )


def last_by_key(records: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    """The table that a topic of changes stands for."""
    table: dict[bytes | None, bytes | None] = {}
    for record in records:
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


@dataclass
class Application:
    """Its name, settings and state folder; instances come one after the other or side by side."""

    cluster: Cluster
    folder: Path
    settings: Mapping[str, object]

    @property
    def id(self) -> str:
        return f"{self.cluster.prefix}-app"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def instance(self, topology: Topology, **settings: object) -> KafkaStreams:
        merged: dict[str, Any] = {
            "num_stream_threads": 1,
            "task_timeout_ms": 60_000,
            "processing_guarantee": "exactly_once_v2",
            "state_dir": str(self.state),
            # Records of 1970: by their times the broker would delete a window's changelog in the
            # middle of a test.
            "windowstore_changelog_additional_retention_ms": 100 * 365 * 86_400_000,
            **self.settings,
            **settings,
        }
        return KafkaStreams(
            topology, application_id=self.id, bootstrap_servers=self.cluster.bootstrap, **merged
        )

    @contextmanager
    def running(
        self, topology: Topology, *, wait: bool = True, **settings: object
    ) -> Iterator[KafkaStreams]:
        streams = self.instance(topology, **settings)
        try:
            streams.start()
            if wait:
                until_running(streams)
            yield streams
        finally:
            assert streams.close(60.0), "the instance did not close within 60 s"

    def until_processed(self, streams: KafkaStreams | None, *topics: str) -> None:
        """Wait until the topics are processed, in turn: sources before what they feed."""
        for topic in topics:
            wait_until(
                lambda topic=topic: self.processed(streams, topic),  # type: ignore[misc]
                CAUGHT_UP_S,
                f"the group to reach the end of {topic}",
            )

    def processed(self, streams: KafkaStreams | None, topic: str) -> bool:
        """True if the topic is processed; raises what has ended the instance."""
        if streams is not None and streams.error is not None:
            raise streams.error
        ends = {tp.partition: end for tp, end in self.cluster.ends(topic).items() if end > 0}
        have = {p: offset for p, (offset, _) in self.cluster.committed(self.id, topic).items()}
        # Stores follow their commit (D5): the instance counts a batch as done once it has been
        # applied.
        applied = streams is None or streams.metrics()[LAG] == 0
        return applied and all(have.get(p, 0) >= end for p, end in ends.items())

    def run_through(self, topology: Topology, *topics: str, **settings: Any) -> None:
        """Run an instance until it has processed the topics, then close it."""
        with self.running(topology, **settings) as streams:
            self.until_processed(streams, *topics)


def until_running(streams: KafkaStreams, timeout_s: float = CAUGHT_UP_S) -> None:
    def running() -> bool:
        if streams.error is not None:
            raise streams.error
        return streams.state is ClientState.RUNNING

    wait_until(running, timeout_s, "state RUNNING", lambda: [streams.state])


def until_failed(streams: KafkaStreams, timeout_s: float = CAUGHT_UP_S) -> EverflowError:
    wait_until(
        lambda: streams.state is ClientState.ERROR,
        timeout_s,
        "state ERROR",
        lambda: [streams.state],
    )
    assert streams.error is not None
    return streams.error


def closed(streams: KafkaStreams) -> None:
    with suppress(EverflowError):
        streams.close(60.0)
