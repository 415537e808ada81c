"""Reads logs by our own fetch requests, in columns, the next one under way: one of the `taps`."""

from __future__ import annotations

import math
import sys
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import Any

import kafka.errors as client_errors

from everflow.errors import (
    EverflowError,
    FatalError,
    LogStartMovedError,
    LogTruncatedError,
    RetriableError,
)
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.group_channel import classify
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import (
    FETCH_BYTES,
    Answer,
    DivergedError,
    FetchConnection,
)
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.record_batches import Batch, UnsupportedBatchError
from everflow.kafka.reading.record_columns import Columns, CorruptBatchError
from everflow.kafka.reading.taps import CHECK_CRCS, CONNECT_S, UNBOUNDED_RECORDS
from everflow.records import UNBOUNDED_BYTES, TopicPartition

AHEAD_BYTES = 64 << 20
_LEAST_BYTES = 256 << 10
_NOTHING = record_batches.columns(b"", [])


class FetchTap:
    """See `Tap`. Holds two connections and kafka-python's IO thread until closed, and at most two
    fetches of each log, and the columns of a third: the more logs, the smaller they are."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        read_committed: bool = True,
        ahead: bool = False,
        ahead_bytes: int = AHEAD_BYTES,
        fetch_bytes: int = FETCH_BYTES,
        parsed_bytes: int = FETCH_BYTES,
        attend_s: float | None = None,
        check_crcs: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``settings``: from `connection_settings`. ``ahead``: whether it fetches beyond the ends
        that were asked for; ``ahead_bytes``: the next fetches of all logs together.
        ``fetch_bytes``: the size of one fetch; ``parsed_bytes``: what is
        parsed at once of it. ``check_crcs``: whether each batch's checksum is computed.
        ``attend_s``: a passing fault is attended to for so many seconds,
        whatever time a `take` has, then raised; None: for the time of the `take`. ``clock``:
        monotonic seconds."""
        self._settings = settings
        self._read_committed = read_committed
        self._ahead = ahead
        self._ahead_bytes = ahead_bytes
        self._fetch_bytes = fetch_bytes
        self._parsed_bytes = parsed_bytes
        self._attend_s = attend_s
        self._check_crcs = check_crcs
        self._clock = clock
        self._connection: FetchConnection | None = None
        self._streams: dict[TopicPartition, _Stream] = {}

    @staticmethod
    def over(config: Mapping[str, Any], **values: Any) -> FetchTap:
        """For librdkafka's settings, of which ``check.crcs`` is true if it is not there.
        ConfigError for security that cannot be said to it."""
        check_crcs = str(config.get(CHECK_CRCS, True)).lower() != "false"
        return FetchTap(connection_settings(config), check_crcs=check_crcs, **values)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        return {tp: stream.position for tp, stream in self._streams.items()}

    def go_to(self, starts: Mapping[TopicPartition, int], timeout_s: float = CONNECT_S) -> None:
        if not starts:
            self._streams = {}
            return
        connection = self._connected(timeout_s)
        share = max(_LEAST_BYTES, self._ahead_bytes // len(starts))
        connection.fetch_bytes = min(self._fetch_bytes, share)
        parsed_bytes = min(self._parsed_bytes, share)
        kept = {
            tp: stream for tp, stream in self._streams.items() if starts.get(tp) == stream.position
        }
        self._streams = {
            tp: kept.get(tp) or _Stream(connection, tp, start, parsed_bytes, self._check_crcs)
            for tp, start in starts.items()
        }

    def take(
        self,
        ends: Mapping[TopicPartition, int],
        timeout_s: float,
        most_bytes: int = UNBOUNDED_BYTES,
        most_records: int = UNBOUNDED_RECORDS,
    ) -> dict[TopicPartition, LogChunk]:
        until_s = self._clock() + timeout_s
        wanted = [
            (tp, self._streams[tp], end)
            for tp, end in ends.items()
            if self._streams[tp].position < end
        ]
        for _, stream, end in wanted:
            stream.bound = sys.maxsize if self._ahead else end
            stream.send()
        found: dict[TopicPartition, LogChunk] = {}
        for tp, stream, end in wanted:
            try:
                chunk = stream.chunk(end, most_bytes, most_records)
                while chunk is None and stream.receive(until_s, self._attend_s, self._clock):
                    chunk = stream.chunk(end, most_bytes, most_records)
            except (EverflowError, UnsupportedBatchError) as failure:
                if not found and isinstance(failure, CorruptBatchError):
                    raise UnsupportedBatchError(f"{tp}: {failure}") from failure
                if not found:
                    raise
                break  # it comes again with the next take, where it loses nothing
            if chunk is not None:
                found[tp] = chunk
                until_s = -math.inf  # of the other logs, what is there
        return found

    def warm_up(self, topics: Iterable[str], timeout_s: float) -> None:
        self._streams = {}
        self._connected(timeout_s)

    def close(self) -> None:
        self._streams = {}
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _connected(self, timeout_s: float) -> FetchConnection:
        if self._connection is None:
            committed = self._read_committed
            doing = "connecting to read"
            self._connection = FetchConnection(
                self._settings, self._fetch_bytes, timeout_s, doing, read_committed=committed
            )
        return self._connection


class _Stream:
    """One log: its fetches, one ahead of what was received, and what was received and not yet
    taken."""

    def __init__(
        self,
        connection: FetchConnection,
        tp: TopicPartition,
        start: int,
        parsed_bytes: int,
        check_crcs: bool,
    ) -> None:
        self._connection = connection
        self._tp = tp
        self._parsed_bytes = parsed_bytes
        self._check_crcs = check_crcs
        self._coming: Any = None
        self._fetched = start
        self._epoch = -1
        self._unparsed: deque[tuple[bytes, list[Batch]]] = deque()
        self._held: Columns | None = None
        self.position = start
        """Offset behind what was taken."""
        self.bound = sys.maxsize
        """Nothing is fetched from here on."""

    def send(self) -> None:
        """See to it that a fetch is under way."""
        if self._coming is None and self._fetched < self.bound:
            self._coming = self._connection.fetch(self._tp, self._fetched, self._epoch)

    def chunk(self, end: int, most_bytes: int, most_records: int) -> LogChunk | None:
        """What was received before ``end``, or the first of it; None if that does not move the
        position."""
        self._parse(end)
        held = _NOTHING if self._held is None else self._held
        part = held.between(0, end).up_to(most_bytes).of(slice(0, most_records))
        if len(part.offsets):
            rest = held.of(slice(len(part.offsets), None))
            self._held = rest if len(rest.offsets) else None
        behind = min(end, self._next_offset())
        if behind == self.position:
            return None
        self.position = behind
        return LogChunk(part, behind, len(part.offsets))

    def receive(self, until_s: float, attend_s: float | None, clock: Callable[[], float]) -> bool:
        """Take in the next answer that brings the log forward; False if there is none by
        ``until_s``.

        Raises LogStartMovedError (also LogTruncatedError), FatalError, UnsupportedBatchError,
        CorruptBatchError, and with ``attend_s`` the fault that did not pass.
        """
        fault: RetriableError | None = None
        while True:
            self.send()
            coming = self._coming
            try:
                answer = self._connection.answer(coming, until_s - clock())
                if answer is None:
                    break
                self._coming = None
                if self._add(answer):
                    self.send()
                    return True
            except DivergedError as failure:
                self._coming = None
                raise LogTruncatedError(
                    f"{self._tp}: the log was cut at offset {failure.end_offset} by an election of "
                    f"a leader that lacked records, which were read up to {self._fetched}; it has "
                    f"other records since",
                    self._tp,
                ) from failure
            except client_errors.OffsetOutOfRangeError as failure:
                self._coming = None
                if not self._connection.back_to_leader(
                    self._tp
                ):  # a replica may be behind; the leader decides
                    raise LogStartMovedError(
                        f"{self._tp}: offset {self._fetched} is outside the log", self._tp
                    ) from failure
            except client_errors.KafkaError as failure:
                self._coming = None
                problem = classify(failure, f"reading {self._tp}, at {self._fetched}")
                if not isinstance(problem, RetriableError) or isinstance(
                    failure, client_errors.SaslAuthenticationFailedError
                ):
                    raise problem from failure
                if fault is None and attend_s is not None:
                    until_s = max(until_s, clock() + attend_s)
                fault = problem
                self._connection.refresh(self._tp, until_s - clock())
            if clock() > until_s:
                break
        if fault is not None and attend_s is not None:
            raise fault
        return False

    def _add(self, answer: Answer) -> bool:
        found = record_batches.batches(answer.records)
        if answer.records and not found:
            # A broker always sends the first batch whole, however large (KIP-74).
            raise CorruptBatchError(
                f"the record batch at offset {self._fetched} is longer than what was sent of it"
            )
        if self._check_crcs:
            record_batches.check(answer.records, found)
        behind = found[-1].next_offset if found else self._fetched
        if behind <= self._fetched:
            return False
        seen = record_batches.committed(answer.records, found, answer.aborted)
        wanted = [batch for batch in seen if batch.next_offset > self._fetched]
        self._unparsed += [
            (answer.records, portion)
            for portion in record_batches.portions(wanted, self._parsed_bytes)
        ]
        self._fetched, self._epoch = behind, found[-1].epoch
        return True

    def _parse(self, end: int) -> None:
        """Take apart what was received, until there is a record; nothing that begins at ``end`` or
        behind it."""
        while self._held is None and self._unparsed:
            data, portion = self._unparsed[0]
            count = bisect_left(portion, end, key=attrgetter("base_offset"))
            if not count:
                return
            try:
                whole = record_batches.columns(data, portion[:count])
            except FatalError as failure:
                raise FatalError(f"{self._tp}: {failure}") from failure
            found = whole.between(self.position, sys.maxsize)
            self._held = found if len(found.offsets) else None
            if count < len(portion):
                self._unparsed[0] = (data, portion[count:])
            else:
                self._unparsed.popleft()

    def _next_offset(self) -> int:
        if self._held is not None:
            return int(self._held.offsets[0])
        return self._unparsed[0][1][0].base_offset if self._unparsed else self._fetched
