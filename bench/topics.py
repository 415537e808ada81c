"""Topics of a bench: creating, loading and deleting them, and reading how far a group committed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from itertools import count, repeat
from typing import Any

import numpy as np
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic

REQUEST_TIMEOUT_S = 30.0
VALUE_BYTES = 100
LARGEST_RECORD_BYTES = 4 << 20
"""Of a record and of a batch, where the topic takes as much."""
LOAD_SEED = 20_24
# Java's default placement of a keyed record, so both systems see the partitions a Java producer
# would fill.
JAVA_PARTITIONER = "murmur2_random"


def key_of(index: int) -> str:
    """The key of the `index`-th distinct key."""
    return f"key-{index:06d}"


def create_topics(
    admin: AdminClient,
    names: Sequence[str],
    partitions: int,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create the topics, unreplicated; raises KafkaException if one exists."""
    _await_all(
        admin.create_topics(
            [NewTopic(name, partitions, 1, config=dict(config or {})) for name in names]
        )
    )


def delete_topics(admin: AdminClient, prefix: str, ending: str = "") -> None:
    """Delete every topic whose name starts with `prefix`, the internal ones of an application
    included, and ends with `ending`."""
    names = [
        name
        for name in admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        if name.startswith(prefix) and name.endswith(ending)
    ]
    if names:
        _await_all(admin.delete_topics(names))


def _await_all(futures: dict[Any, Future[Any]]) -> None:
    for future in futures.values():
        future.result(timeout=REQUEST_TIMEOUT_S)


def warm_broker(
    admin: AdminClient,
    bootstrap_servers: str,
    more: Callable[[int], bool] = lambda done: False,
) -> None:
    """Let a young broker create its offsets and transaction topics, or the first system would pay
    for it: a transaction of a record and an offset, and another one while `more` of those done says
    so. A reader follows them."""
    topic = "bench-warm-up"
    create_topics(admin, [topic], PARTITIONS)
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": topic, "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(REQUEST_TIMEOUT_S)
    metadata = consumer.consumer_group_metadata()
    for done in count(1):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.produce(topic, b"", partition=partition)
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, done)], metadata, REQUEST_TIMEOUT_S
        )
        producer.commit_transaction(REQUEST_TIMEOUT_S)
        consumer.consume(PARTITIONS, timeout=0)
        if not more(done):
            break
    consumer.close()
    delete_topics(admin, topic)


def load(bootstrap_servers: str, topic: str, records: int, keys: int) -> None:
    """Produce `records` JSON values of 100 bytes; the keys are drawn evenly, the same ones in every
    run."""
    drawn = draw_keys(records, keys)
    encoded_keys = [key_of(index).encode() for index in range(keys)]
    rows = ((encoded_keys[key_index], json_value(number)) for number, key_index in enumerate(drawn))
    produce_all(bootstrap_servers, topic, rows)


def draw_keys(records: int, keys: int) -> list[int]:
    """The index of each record's key: drawn evenly, the same ones in every run."""
    drawn: list[int] = np.random.default_rng(LOAD_SEED).integers(0, keys, size=records).tolist()
    return drawn


def produce_all(
    bootstrap_servers: str,
    topic: str,
    rows: Iterable[tuple[bytes, bytes]],
    times_ms: Iterable[int] | None = None,
) -> None:
    """Produce keys and values, with their times or that of sending, as fast as the broker takes
    them, placed as a Java producer would; RuntimeError if one was refused."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "partitioner": JAVA_PARTITIONER,
            "linger.ms": 50,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 500_000,
            "enable.idempotence": True,
            "message.max.bytes": LARGEST_RECORD_BYTES,
        }
    )
    failures: list[str] = []

    def report(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(str(error))

    timed = zip(rows, repeat(0) if times_ms is None else times_ms, strict=False)
    for number, ((key, value), time_ms) in enumerate(timed):
        while True:
            try:
                producer.produce(topic, value, key, on_delivery=report, timestamp=time_ms)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    left = producer.flush(REQUEST_TIMEOUT_S)
    if left or failures:
        raise RuntimeError(
            f"Loading {topic} failed: {left} records unsent, {len(failures)} refused {failures[:1]}"
        )


def json_value(number: int) -> bytes:
    """A JSON object of exactly 100 bytes."""
    head = json.dumps({"id": number, "amount": number % 1000, "text": ""})
    return f"{head[:-2]}{'x' * (VALUE_BYTES - len(head))}{head[-2:]}".encode()


def end_offsets(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Partition -> end offset as a read_committed consumer sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "bench-offsets",
            "isolation.level": "read_committed",
        }
    )
    try:
        partitions = consumer.list_topics(topic, timeout=REQUEST_TIMEOUT_S).topics[topic].partitions
        return {
            partition: consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=REQUEST_TIMEOUT_S
            )[1]
            for partition in sorted(partitions)
        }
    finally:
        consumer.close()


COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
)


class GroupProgress:
    """How far a consumer group committed one topic whose end offsets no longer move.

    Asks through a consumer that never joins the group: the admin client of librdkafka fails, or
    even crashes, while a young broker still loads its offsets topic. Used by one thread.
    """

    def __init__(
        self, bootstrap_servers: str, group: str, topic: str, ends: dict[int, int]
    ) -> None:
        self._reader = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": group,
                "enable.auto.commit": False,
                # read_committed would wait for open transactions to end, instead of giving the last
                # stable offsets.
                "isolation.level": "read_uncommitted",
            }
        )
        self._partitions = [TopicPartition(topic, partition) for partition in ends]
        self._ends = ends
        self._committed = 0

    def committed_records(self) -> int:
        """Records the committed offsets cover; 0 while the group has committed nothing. While the
        broker looks for the group's coordinator, as many as before."""
        try:
            found = self._reader.committed(self._partitions, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_MOVES:
                raise
        else:
            self._committed = sum(max(0, partition.offset) for partition in found)
        return self._committed

    def total_records(self) -> int:
        """Records in the topic (its partitions start at offset 0)."""
        return sum(self._ends.values())

    def close(self) -> None:
        """Close the connection."""
        self._reader.close()


PARTITIONS = 4
"""Of an input, and of what is written, where nothing else is asked for."""


def case_name(name: str, partitions: int) -> str:
    """A case of a bench, with its partitions where they are not the usual ones."""
    return name if partitions == PARTITIONS else f"{name}, {partitions} partitions"
