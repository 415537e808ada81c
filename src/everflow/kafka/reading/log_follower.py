"""Follows many logs at once, round by round: how standbys and warm-ups read near the end.

One consumer over all partitions, read_committed: the broker gives nothing beyond the last stable offset. At the end of the logs a
round costs one waiting fetch per broker for all partitions together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from everflow.errors import RetriableError
from everflow.kafka.client_log import client_log
from everflow.kafka.errors import classify, classify_exception
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.messages import chunk_of, offset_of
from everflow.records import TopicPartition

_DEFAULTS: dict[str, Any] = {
    "group.id": "everflow-log-follower",  # librdkafka wants one; never joined, never committed to
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",  # a log that starts later than asked must be seen, never skipped over
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 200,  # records come at once whatever this says; a tail of markers after so long
    "fetch.message.max.bytes": 2 << 20,
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,  # the bytes that following may hold, over all partitions
}


@dataclass
class FollowedRound:
    """What one round brought: a chunk per partition that moved, and the partitions whose position the log no longer holds."""

    chunks: dict[TopicPartition, LogChunk] = field(default_factory=dict)
    gone: dict[TopicPartition, str] = field(default_factory=dict)

    @property
    def records(self) -> int:
        """Records over all chunks."""
        return sum(len(chunk) for chunk in self.chunks.values())


class LogFollower:
    """One consumer over a changing set of partitions; owned by one thread."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """``config``: librdkafka keys, ``bootstrap.servers`` at least."""
        self._consumer = Consumer({**_DEFAULTS, **config}, logger=client_log)
        self._positions: dict[TopicPartition, int] = {}

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Next offset of every followed partition."""
        return self._positions

    def follow(self, starts: Mapping[TopicPartition, int]) -> None:
        """Begin with these partitions, at these offsets; one that is followed already goes on from there instead."""
        self.unfollow(starts)
        if not starts:
            return
        try:
            self._consumer.incremental_assign([ClientTopicPartition(tp.topic, tp.partition, at) for tp, at in starts.items()])
        except KafkaException as failure:
            raise classify_exception(failure, "following changelogs") from failure
        self._positions.update(starts)

    def unfollow(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop with these partitions; those that are not followed are ignored."""
        gone = [tp for tp in partitions if tp in self._positions]
        if not gone:
            return
        for tp in gone:
            del self._positions[tp]
        try:
            self._consumer.incremental_unassign([ClientTopicPartition(tp.topic, tp.partition) for tp in gone])
        except KafkaException as failure:
            raise classify_exception(failure, "following changelogs") from failure

    def poll(self, records_max: int, timeout_s: float) -> FollowedRound:
        """About ``records_max`` records, waiting at most ``timeout_s`` seconds for the first.

        Raises RetriableError (broker away: go on polling) and FatalError as classified in `everflow.kafka.errors`.
        """
        try:
            # `consume` waits for all it was asked for; so one record is waited for, and then what is there is taken.
            first = self._consumer.poll(timeout_s)
            messages = [] if first is None else [first, *self._consumer.consume(records_max, 0)]
        except KafkaException as failure:
            raise classify_exception(failure, "following changelogs") from failure
        return self._sorted_out(messages)

    def close(self) -> None:
        """Release the connection."""
        self._consumer.close()

    def _sorted_out(self, messages: list[Message]) -> FollowedRound:
        found = FollowedRound()
        records: dict[TopicPartition, list[Message]] = {}
        ends: dict[TopicPartition, int] = {}
        for message in messages:
            tp = TopicPartition(str(message.topic()), int(message.partition() or 0))
            if tp not in self._positions:
                continue  # fetched before it was given up
            error = message.error()
            if error is None:
                if offset_of(message) >= self._positions[tp]:
                    records.setdefault(tp, []).append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                ends[tp] = offset_of(message)
            elif error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                found.gone[tp] = f"offset {self._positions[tp]} is no longer in the changelog ({error.str()})"
            else:
                problem = classify(error, f"following {tp} at {self._positions[tp]}")
                if not isinstance(problem, RetriableError):
                    raise problem  # passing ones are mended by the client
        for tp in records.keys() | ends.keys():
            held = records.get(tp, [])
            position = max(offset_of(held[-1]) + 1 if held else 0, ends.get(tp, 0))
            if position > self._positions[tp]:
                found.chunks[tp] = chunk_of(held, position)
                self._positions[tp] = position
        return found
