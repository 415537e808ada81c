"""Reads an exact range of a partition through librdkafka: what the bulk reader cannot.

No group: ``assign`` only, nothing is committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from everflow.errors import LogStartMovedError, RetriableError
from everflow.kafka.client_log import client_log
from everflow.kafka.errors import classify, classify_exception
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.messages import chunk_of, offset_of
from everflow.records import TopicPartition

_DEFAULTS: dict[str, Any] = {
    "group.id": "everflow-log-reader",  # librdkafka wants one; never joined, never committed to
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # a log that starts later than asked must be seen, never skipped over
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 10,  # the end of the log is only reported by an empty fetch
    "fetch.message.max.bytes": 8 << 20,
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 65_536,
}
_FIRST_COUNT = 1_000
_MOST_AT_ONCE = 20_000
_WAIT_S = 0.05


class ClientReader:
    """One consumer, one range at a time; owned by one thread. A context manager."""

    def __init__(self, config: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        """``config``: librdkafka keys, ``bootstrap.servers`` at least; ``clock``: monotonic seconds."""
        self._consumer = Consumer({**_DEFAULTS, **config}, logger=client_log)
        self._clock = clock

    def __enter__(self) -> ClientReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        chunk_bytes: int = 8 << 20,
        stall_timeout_s: float = 30.0,
    ) -> Iterator[LogChunk]:
        """See `LogReader.read`."""
        if start >= end:
            return
        self._consumer.assign([ClientTopicPartition(tp.topic, tp.partition, start)])
        try:
            yield from self._chunks(tp, start, end, chunk_bytes, stall_timeout_s)
        finally:
            self._consumer.unassign()

    def _chunks(self, tp: TopicPartition, start: int, end: int, chunk_bytes: int, stall_timeout_s: float) -> Iterator[LogChunk]:
        position, count, held = start, _FIRST_COUNT, 0
        messages: list[Message] = []
        deadline = self._clock() + stall_timeout_s
        while position < end:
            fetched, next_position = self._consume(tp, position, end, count)
            if next_position > position:
                deadline = self._clock() + stall_timeout_s
            elif self._clock() > deadline:
                raise RetriableError(
                    f"reading {tp} from {position} to {end}: nothing came for {stall_timeout_s:g} s. "
                    "Either the broker is away or a transaction is still open below the end."
                )
            position = next_position
            if fetched:
                size = sum(map(len, fetched)) + sum(len(key or b"") for key in map(Message.key, fetched))
                count = max(1, min(_MOST_AT_ONCE, chunk_bytes * len(fetched) // (2 * max(size, 1))))
                messages += fetched
                held += size
            if held >= chunk_bytes and position < end:
                yield chunk_of(messages, position)
                messages, held = [], 0
        yield chunk_of(messages, end)

    def _consume(self, tp: TopicPartition, position: int, end: int, count: int) -> tuple[list[Message], int]:
        """Up to ``count`` records of the range, and the position after them (``end`` once it has been reached)."""
        try:
            got = self._consumer.consume(min(count, end - position), timeout=_WAIT_S)
        except KafkaException as failure:
            raise classify_exception(failure, f"reading {tp}") from failure
        if not got:
            return got, position
        # Restoring runs through here record by record: the usual case calls two methods a record, in C.
        last = offset_of(got[-1])
        if last < end and not any(error is not None for error in map(Message.error, got)):
            return got, last + 1
        records: list[Message] = []
        for message in got:
            error = message.error()
            if error is None:
                if offset_of(message) >= end:
                    return records, end
                records.append(message)
                position = offset_of(message) + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                position = max(position, min(offset_of(message), end))
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                raise LogStartMovedError(f"{tp}: offset {position} is outside the log ({error.str()})")
            else:
                problem = classify(error, f"reading {tp} at {position}")
                if not isinstance(problem, RetriableError):
                    raise problem  # passing ones are mended by the client; the stall time-out bounds the wait
        return records, position
