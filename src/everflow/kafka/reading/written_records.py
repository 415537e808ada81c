"""Follows topics from given offsets on, committed records only, and keeps what it reads."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from everflow.kafka.client_log import client_log
from everflow.kafka.errors import classify
from everflow.records import TopicPartition

_AT_ONCE = 10_000
_WAIT_S = 0.2


class RawWritten(NamedTuple):
    """A record as it is in Kafka."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class WrittenRecords:
    """``settings``: librdkafka's, of a reader; ``starts``: of every partition to follow. One thread
    at a time uses it. Raises EverflowError for what the broker refuses."""

    def __init__(self, settings: Mapping[str, Any], starts: Mapping[TopicPartition, int]) -> None:
        own = {
            "group.id": "everflow-written",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
        self.records: dict[TopicPartition, list[RawWritten]] = {tp: [] for tp in starts}
        self.count = 0
        self._reached = dict(starts)
        self._consumer = Consumer({**settings, **own}, logger=client_log)
        self._consumer.assign(
            [ClientTopicPartition(tp.topic, tp.partition, offset) for tp, offset in starts.items()]
        )

    def read(self, wait_s: float = 0.0) -> None:
        """Take what has come; if there is nothing, wait for it so long."""
        for message in self._consumer.consume(_AT_ONCE, wait_s):
            self._take(message)

    def read_to(self, ends: Mapping[TopicPartition, int], timeout_s: float) -> bool:
        """Read until all these offsets; False if that took longer."""
        deadline = time.monotonic() + timeout_s
        while any(self._reached[tp] < end for tp, end in ends.items()):
            if time.monotonic() > deadline:
                return False
            self.read(_WAIT_S)
        return True

    def close(self) -> None:
        """End the connections."""
        self._consumer.close()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            if error.retriable():
                return
            raise classify(error, f"reading {message.topic()}")
        tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
        offset = int(message.offset() or 0)
        if error is not None:  # behind the markers of transactions, which are no records
            self._reached[tp] = max(self._reached[tp], offset)
            return
        self._reached[tp] = offset + 1
        self.count += 1
        self.records[tp].append(
            RawWritten(offset, message.key(), message.value(), message.timestamp()[1])
        )
