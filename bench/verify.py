"""Checks that the output of a count is right, read as a read_committed consumer."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from bench.topics import end_offsets

READ_TIMEOUT_S = 120.0
FETCH_TIMEOUT_S = 0.2
FETCH_RECORDS = 10_000


class WrongOutputError(RuntimeError):
    """The output of a bench is not what its input demands, so its figures mean nothing."""


def verify_counts(bootstrap_servers: str, topic: str, records: int) -> None:
    """Raise `WrongOutputError` unless the last counts sum up to `records` and each key's count only
    rises."""
    counts: dict[bytes, int] = {}
    for key, value in each_record(bootstrap_servers, topic):
        (count,) = struct.unpack(">q", value)
        before = counts.get(key, 0)
        if count <= before:
            raise WrongOutputError(
                f"{topic}: key {key!r} went from {before} to {count}; a count must only rise"
            )
        counts[key] = count
    total = sum(counts.values())
    if total != records:
        raise WrongOutputError(
            f"{topic}: the counts of {len(counts)} keys sum up to {total}, expected {records}"
        )


def read_all(bootstrap_servers: str, topic: str) -> list[tuple[bytes, bytes]]:
    """Every record up to the present end, in order within each partition."""
    return list(each_record(bootstrap_servers, topic))


def each_record(bootstrap_servers: str, topic: str) -> Iterator[tuple[bytes, bytes]]:
    """The records of `read_all` one by one, for outputs that are too large for a list. Raises as
    `each_message`."""
    for message in each_message(bootstrap_servers, topic):
        yield message.key() or b"", message.value() or b""


def each_message(bootstrap_servers: str, topic: str) -> Iterator[Message]:
    """The same with their partitions. Raises `WrongOutputError` if nothing comes for a while before
    the end."""
    ends = end_offsets(bootstrap_servers, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"bench-verify-{topic}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            # Positions move past transaction markers only with an event per partition end.
            "enable.partition.eof": True,
        }
    )
    open_partitions = {partition for partition, end in ends.items() if end > 0}
    try:
        consumer.assign(
            [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in open_partitions]
        )
        deadline = time.monotonic() + READ_TIMEOUT_S
        while open_partitions:
            if time.monotonic() > deadline:
                raise WrongOutputError(
                    f"{topic}: partitions {sorted(open_partitions)} not read to their end in time"
                )
            messages = consumer.consume(FETCH_RECORDS, FETCH_TIMEOUT_S)
            if messages:
                deadline = time.monotonic() + READ_TIMEOUT_S
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.name() == "_PARTITION_EOF":
                    open_partitions.discard(message.partition())
                else:
                    raise WrongOutputError(f"{topic}: cannot be read: {error}")
    finally:
        consumer.close()
