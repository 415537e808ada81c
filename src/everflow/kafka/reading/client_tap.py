"""Reads logs through librdkafka, which has the records of the tail ready: one of the `taps`."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientTopicPartition

from everflow.errors import LogStartMovedError, RetriableError
from everflow.kafka.client_log import client_log
from everflow.kafka.errors import classify, classify_exception
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.log_columns import LogColumns
from everflow.kafka.reading.raw_headers import RawHeaders
from everflow.kafka.reading.record_columns import CorruptBatchError
from everflow.kafka.reading.taps import CHECK_CRCS, CONNECT_S, UNBOUNDED_RECORDS
from everflow.records import HEADERS, UNBOUNDED_BYTES, Int64, TopicPartition, no_headers

Header = tuple[str, bytes | None]
_DEFAULTS: dict[str, Any] = {
    "enable.auto.commit": False,
    "enable.partition.eof": True,
    # a log that starts later than asked must be seen, never skipped over
    "auto.offset.reset": "error",
    CHECK_CRCS: True,
}
_DAMAGED = frozenset({KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._UNDERFLOW})
"""librdkafka skips such a batch after it said so."""
_DAMAGED_AGAIN_S = 10.0
"""So long after it a log is fetched anew: another broker may lead it by then."""
_MOST_AT_ONCE = 20_000
_WAIT_S = 0.05
_WARM_UP_S = 5.0


class ClientTap:
    """See `Tap`. One consumer, made when first used."""

    def __init__(
        self,
        config: Mapping[str, Any],
        group: str,
        fetching: Mapping[str, Any],
        *,
        read_committed: bool = True,
        patient: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``config``: librdkafka keys, ``bootstrap.servers`` at least. ``group``: librdkafka wants
        a group id; it is never joined, and nothing is committed to it. ``fetching``: librdkafka's
        queue and waits for this use; ``config`` wins. ``patient``:
        whether a broker that is away is left to the client to mend, within the time of a `take`.
        ``clock``: monotonic seconds."""
        isolation = "read_committed" if read_committed else "read_uncommitted"
        self._settings = {
            **_DEFAULTS,
            **fetching,
            **config,
            "group.id": group,
            "isolation.level": isolation,
        }
        self._headers = RawHeaders(config)
        self._patient = patient
        self._clock = clock
        self._logs: dict[tuple[Any, Any], _Log] = {}
        self._moved: dict[tuple[Any, Any], str] = {}
        """Logs that begin behind where they were to be read, and what the broker said."""
        self._damaged: dict[tuple[Any, Any], tuple[str, float]] = {}
        """Logs with a batch that the client has skipped, what it said and when. What it reads
        behind such a batch begins anywhere: nothing more is handed out of them, and none of them is
        gone on with by this client."""

    @cached_property
    def _consumer(self) -> Consumer:
        return Consumer(self._settings, logger=client_log)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        return {log.tp: log.position for log in self._logs.values()}

    def go_to(self, starts: Mapping[TopicPartition, int], timeout_s: float = CONNECT_S) -> None:
        logs = self._logs
        kept = {
            tp: logs[tp]
            for tp, start in starts.items()
            if tp in logs and logs[tp].position == start
        }
        if self._damaged:
            self._drop_consumer()
            kept = {}
        gone = [log for tp, log in self._logs.items() if tp not in kept]
        new = [
            _Log(tp=tp, position=start, headers=self._headers)
            for tp, start in starts.items()
            if tp not in kept
        ]
        try:
            if gone:
                self._consumer.incremental_unassign([ClientTopicPartition(*log.tp) for log in gone])
            self._logs, self._moved = (
                {**kept},
                {tp: why for tp, why in self._moved.items() if tp in kept},
            )
            if new:
                self._consumer.incremental_assign(
                    [ClientTopicPartition(*log.tp, log.position) for log in new]
                )
        except KafkaException as failure:
            raise classify_exception(failure, "assigning partitions to read") from failure
        self._logs.update({log.tp: log for log in new})

    def take(
        self,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
        most_bytes: int = UNBOUNDED_BYTES,
        most_records: int = UNBOUNDED_RECORDS,
    ) -> dict[TopicPartition, LogChunk]:
        """See `Tap`. It also serves the client, whose errors come here; ``most_records`` bounds
        what comes anew of all logs."""
        until_s = self._clock() + timeout_s
        found = self._here(ends, most_bytes, most_records)
        while not found:
            left_s = until_s - self._clock()
            self._receive(max(0.0, min(left_s, _WAIT_S)), most_records)
            found = self._here(ends, most_bytes, most_records)
            damaged = self._damaged.keys() & ends.keys()
            if damaged and not found and (left_s <= 0 or len(damaged) == len(ends)):
                raise self._refused(damaged)
            if left_s <= 0:
                break
        return found

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        """See `Tap`. Each broker that leads partitions of these topics lets one of them answer: a
        consumer's first otherwise waits up to a second for addresses, a connection and librdkafka's
        threads to turn to it; later ones come within 20 ms. One leader that does not answer is no
        error, and waited for no longer than 5 s."""
        self.go_to({})
        try:
            of_leader = {
                facts.leader: (topic, partition)
                for topic in topics
                for partition, facts in self._consumer.list_topics(topic, timeout_s)
                .topics[topic]
                .partitions.items()
                if facts.leader >= 0
            }
            waiting = set(of_leader.values())
            asked = [
                ClientTopicPartition(topic, partition, OFFSET_END) for topic, partition in waiting
            ]
            self._consumer.incremental_assign(asked)
            deadline = self._clock() + min(timeout_s, _WARM_UP_S)
            while waiting and self._clock() < deadline:
                # A record or the end, either of which shows that it is fetched.
                answer = self._consumer.poll(_WAIT_S)
                if answer is not None:
                    waiting.discard((answer.topic(), answer.partition()))
            self._consumer.incremental_unassign(asked)
        except KafkaException as failure:
            raise classify_exception(failure, "connecting the reader") from failure

    def close(self) -> None:
        self._headers.close()
        self._drop_consumer()

    def _drop_consumer(self) -> None:
        self._logs, self._moved, self._damaged = {}, {}, {}
        if "_consumer" in vars(self):
            self._consumer.close()
            del self._consumer

    def _here(
        self, ends: Mapping[TopicPartition, int], most_bytes: int, most_records: int
    ) -> dict[TopicPartition, LogChunk]:
        for tp in (self._moved.keys() - self._damaged.keys()) & ends.keys():
            log = self._logs[tp]
            raise LogStartMovedError(
                f"{log.tp}: offset {log.position} is outside the log ({self._moved[tp]})", log.tp
            )
        taken = (
            (tp, self._logs[tp].chunk(end, most_bytes, most_records))
            for tp, end in ends.items()
            if tp not in self._damaged
        )
        return {tp: chunk for tp, chunk in taken if chunk is not None}

    def _refused(self, damaged: Iterable[tuple[Any, Any]]) -> CorruptBatchError:
        """What to raise for logs with a batch that cannot be read; now and then they are fetched
        anew."""
        tp = self._logs[min(damaged)].tp
        why, since_s = self._damaged[tp]
        if self._clock() - since_s > _DAMAGED_AGAIN_S:
            self.go_to(self.positions)
        return CorruptBatchError(
            f"{tp}, {why}. If it stays, the disk of the broker that leads the partition is "
            "damaged: let another replica lead it, or delete the records up to behind that offset.",
            [tp],
        )

    def _receive(self, wait_s: float, most_records: int) -> None:
        """Let the logs have what the client has, waiting for the first of it."""
        try:
            # `consume` waits for all it was asked for; so one record is waited for, and then what
            # is there is taken.
            first = self._consumer.poll(wait_s)
            messages = (
                []
                if first is None
                else [first, *self._consumer.consume(min(most_records, _MOST_AT_ONCE), 0)]
            )
        except KafkaException as failure:
            raise classify_exception(failure, "reading logs") from failure
        if not messages:
            return
        places = set(
            zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        )
        if len(places) == 1 and not any(
            error is not None for error in map(Message.error, messages)
        ):
            records = {places.pop(): messages}  # the usual case calls three methods a record, in C
        else:
            records = {}
            for message in messages:
                if message.error() is None:
                    records.setdefault((message.topic(), message.partition()), []).append(message)
                else:
                    self._sort_out(message)
        for tp, found in records.items():
            if tp in self._logs and tp not in self._damaged:  # or fetched before it was given up
                self._logs[tp].add(found)

    def _sort_out(self, message: Message) -> None:
        error, place = message.error(), (message.topic(), message.partition())
        assert error is not None
        log = self._logs.get(place)
        if place in self._damaged or (log is None and place[0] is not None):
            return  # of the rest of a batch, or fetched before it was given up
        if log is not None and error.code() == KafkaError._PARTITION_EOF:
            log.end_seen = offset_of(message)
        elif log is not None and error.code() in (
            KafkaError._AUTO_OFFSET_RESET,
            KafkaError.OFFSET_OUT_OF_RANGE,
        ):
            self._moved[log.tp] = error.str()
        elif log is not None and error.code() in _DAMAGED:
            at = message.offset()
            place_in_log = log.position if at is None or at < log.position else at
            why = f"offset {place_in_log}: the record batch cannot be read: {error.str()}"
            self._damaged[log.tp] = (why, self._clock())
        else:
            problem = classify(
                error, "reading logs" if log is None else f"reading {log.tp} at {log.position}"
            )
            if not isinstance(problem, RetriableError) or not (self._patient or error.retriable()):
                raise problem  # passing ones are mended by the client


@dataclass(kw_only=True)
class _Log:
    """One log: what came of it and was not taken yet."""

    tp: TopicPartition
    position: int
    headers: RawHeaders
    end_seen: int = -1
    """The log had no record behind what is here when it ended at this offset."""
    _came: list[Message] = field(default_factory=list)
    _taken: int = 0
    """So many of them; they are dropped now and then, as small chunks out of many records would
    move the rest each time."""

    def add(self, messages: list[Message]) -> None:
        """These are behind those that are here already."""
        if offset_of(messages[0]) < self.position:
            messages = messages[bisect_left(messages, self.position, key=offset_of) :]
        self._came += messages

    def chunk(self, end: int, most_bytes: int, most_records: int) -> LogChunk | None:
        """What is here before ``end``, or the first of it; None if that does not move the
        position."""
        came, first = self._came, self._taken
        if self.position >= end:
            return None
        all_before = bool(came) and offset_of(came[-1]) < end
        before = len(came) if all_before else bisect_left(came, end, first, key=offset_of)
        part = Messages(came[first : min(before, first + most_records)], self.tp, self.headers)
        if most_bytes < UNBOUNDED_BYTES:
            part = part.of(slice(0, int(np.searchsorted(np.cumsum(part.sizes), most_bytes)) + 1))
        left = first + len(part.messages)
        if left < len(came):
            behind = offset_of(came[left])
        else:
            behind = max(
                self.position,
                self.end_seen,
                offset_of(part.messages[-1]) + 1 if part.messages else 0,
            )
        if 2 * left >= len(came):
            del came[:left]
            left = 0
        self._taken = left
        if behind <= self.position:
            return None
        self.position = min(behind, end)
        return LogChunk(part, self.position, len(part.messages))


@dataclass
class Messages:
    """`Records` of one log as librdkafka has them. ``raw``: what reads their headers. ``told``:
    what librdkafka said of the headers, once it was asked."""

    messages: Sequence[Message]
    tp: TopicPartition
    raw: RawHeaders
    told: Sequence[Sequence[Header] | None] | None = None

    def of(self, chosen: slice) -> Messages:
        """The chosen records."""
        told = None if self.told is None else self.told[chosen]
        return Messages(self.messages[chosen], self.tp, self.raw, told)

    @property
    def offsets(self) -> Int64:
        """Their offsets."""
        return np.fromiter(map(offset_of, self.messages), np.int64, len(self.messages))

    @property
    def timestamps(self) -> Int64:
        """Times in ms."""
        return np.fromiter(
            (at for _, at in map(Message.timestamp, self.messages)), np.int64, len(self.messages)
        )

    @property
    def sizes(self) -> Int64:
        """Bytes of each record's key and value."""
        count = len(self.messages)
        keys = np.fromiter(
            (len(key or b"") for key in map(Message.key, self.messages)), np.int64, count
        )
        return keys + np.fromiter(map(len, self.messages), np.int64, count)

    def keys(self) -> list[bytes | None]:
        """The keys, None for null."""
        return list(map(Message.key, self.messages))

    def values(self) -> list[bytes | None]:
        """The values, None for null."""
        return list(map(Message.value, self.messages))

    def arrow(self, headers: bool) -> LogColumns:
        """The records in Arrow columns, with their headers if asked for."""
        found, unread = self._headers() if headers else (None, {})
        return LogColumns(
            keys=pa.array(self.keys(), pa.binary()),
            values=pa.array(self.values(), pa.binary()),
            offsets=self.offsets,
            timestamps=self.timestamps,
            headers=found,
            unread=unread,
        )

    def _headers(self) -> tuple[pa.Array | None, dict[int, Exception]]:
        """As the log has them, and which could not be read. librdkafka's names are C strings: a NUL
        ends one, and one that is no UTF-8 is none. What it says only counts for records that the
        log has lost since."""
        if self.told is None:
            self.told = [_told_headers(message) for message in self.messages]
        offsets = self.offsets
        marked = [row for row, own in enumerate(self.told) if own is None or own]
        if not marked:
            return None, {}
        whole = self.raw.read(self.tp, int(offsets[marked[0]]), int(offsets[marked[-1]]) + 1)
        rows = np.searchsorted(whole.offsets, offsets)
        here = np.isin(offsets, whole.offsets)
        unread = {
            row: whole.unread[int(rows[row])]
            for row in marked
            if here[row] and int(rows[row]) in whole.unread
        }
        none = no_headers(len(offsets))
        found = none
        if whole.headers is not None:
            found = pc.coalesce(whole.headers.take(pa.array(rows, mask=~here)), none)
        lost = [row for row in marked if not here[row]]
        if lost:
            listed = found.to_pylist()
            for row in lost:
                own = self.told[row]
                listed[row] = [{"key": name, "value": data} for name, data in own or ()]
                if own is None:
                    unread[row] = ValueError(
                        "a header's name is no UTF-8, and the log had lost the record when it was "
                        "read again"
                    )
            found = pa.array(listed, HEADERS)
        return found, unread

    def latest(self) -> Messages:
        """All: to see what is replaced would cost as much as to load it."""
        return self


def _told_headers(message: Message) -> Sequence[Header] | None:
    """What librdkafka says of a record's headers; None: a name is no UTF-8. Not to be asked twice:
    after that it hands out a list with a pointer to nothing."""
    try:
        found: Any = message.headers()
    except SystemError:
        return None
    return found or ()


def offset_of(message: Message) -> int:
    """The offset of a message that was read; only a produced one may lack it."""
    offset = message.offset()
    assert offset is not None
    return offset
