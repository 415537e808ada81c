"""Reads large ranges of several partitions in columns, and goes on where the last ones ended.

While the driver's step works on one batch, the fetch behind it is under way for every partition, and what came beyond the batch is
kept for the next one.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import FETCH_BYTES, FetchConnection
from everflow.kafka.reading.log_columns import Budget, LogColumns, Read
from everflow.kafka.reading.partition_fetches import PartitionFetches
from everflow.kafka.reading.record_batches import Batch, Columns
from everflow.records import UNBOUNDED_BYTES, OffsetRange, TopicPartition

_AHEAD_BYTES = 64 << 20
_LEAST_BYTES = 256 << 10


class StreamReader:
    """One connection over the partitions it is asked for; owned by one thread. Connects at the first read.

    Between reads it holds at most two fetches of each partition; the more partitions, the smaller they are.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        read_committed: bool,
        headers: bool,
        *,
        clock: Callable[[], float] = time.monotonic,
        fetch_bytes: int = FETCH_BYTES,
    ) -> None:
        """``settings``: from `bulk_settings`; ``clock``: monotonic seconds; ``fetch_bytes``: size of one fetch."""
        self._settings = settings
        self._read_committed = read_committed
        self._headers = headers
        self._clock = clock
        self._fetch_bytes = fetch_bytes
        self._connection: FetchConnection | None = None
        self._streams: dict[TopicPartition, _Stream] = {}

    @property
    def ahead(self) -> bool:
        """Whether it fetches ahead, behind the last ranges."""
        return bool(self._streams)

    def read(self, ranges: Mapping[TopicPartition, OffsetRange], timeout_s: float, most_bytes: int = UNBOUNDED_BYTES) -> Read:
        """See `RangeReader.read`; ``timeout_s`` is the time without any progress. Raises UnsupportedBatchError besides: then
        nothing of ``ranges`` was handed out."""
        connection = self.connect(timeout_s)
        connection.fetch_bytes = max(_LEAST_BYTES, min(self._fetch_bytes, _AHEAD_BYTES // max(1, len(ranges))))
        self._go_to(connection, ranges)
        for tp, wanted in ranges.items():
            if wanted.end > wanted.start:
                self._streams[tp].send()
        budget = Budget(most_bytes, len(ranges))
        columns = {}
        for tp, wanted in ranges.items():
            columns[tp] = self._streams[tp].take(wanted.end, self._clock, timeout_s, budget.share())
            budget.used(columns[tp])
        return Read(columns, {tp: self._streams[tp].position for tp in ranges})

    def connect(self, timeout_s: float) -> FetchConnection:
        """The connection, made now if there is none yet. Raises RetriableError if no broker answers within ``timeout_s`` s."""
        if self._connection is None:
            self._connection = FetchConnection(
                self._settings, self._fetch_bytes, timeout_s, "connecting to read", read_committed=self._read_committed
            )
        return self._connection

    def rest(self) -> None:
        """Drop what was fetched ahead: another reader goes on. The connection stays."""
        self._streams.clear()

    def close(self) -> None:
        """Drop the connection."""
        self._streams.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _go_to(self, connection: FetchConnection, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        kept = {tp: self._streams[tp] for tp, wanted in ranges.items() if self._at(tp) == wanted.start}
        self._streams = {
            tp: kept.get(tp) or _Stream(connection, tp, wanted.start, self._headers) for tp, wanted in ranges.items()
        }

    def _at(self, tp: TopicPartition) -> int | None:
        return self._streams[tp].position if tp in self._streams else None


class _Stream:
    """One partition: what was fetched and not yet taken."""

    def __init__(self, connection: FetchConnection, tp: TopicPartition, start: int, headers: bool) -> None:
        self._fetches = PartitionFetches(connection, tp, start, None, f"reading {tp}")
        self._unparsed: deque[tuple[bytes, list[Batch]]] = deque()
        self._held: Columns | None = None
        self._headers = headers
        self.position = start
        """Offset behind what was taken."""

    def send(self) -> None:
        """See to it that a fetch is under way."""
        self._fetches.send()

    def take(self, end: int, clock: Callable[[], float], timeout_s: float, most_bytes: int) -> LogColumns:
        """The records from the position to ``end``, or to where they have ``most_bytes`` bytes; moves the position behind them."""
        parts: list[LogColumns] = []
        held = 0
        while self.position < end and held < most_bytes:
            found = self._next(end, clock, timeout_s)
            if found is None:
                self.position = end
                break
            taken = found.between(0, end).up_to(most_bytes - held)
            rest = found.of(slice(len(taken.offsets), None))
            self._held = rest if len(rest.offsets) else None
            parts.append(taken.arrow(self._headers))
            held += int(taken.sizes.sum())
            self.position = int(taken.offsets[-1]) + 1
        return LogColumns.concat(parts, self._headers)

    def _next(self, end: int, clock: Callable[[], float], timeout_s: float) -> Columns | None:
        """Some records from the position on; None if there are none before ``end``."""
        while self._held is None:
            if self._unparsed:
                found = record_batches.columns(*self._unparsed.popleft()).between(self.position, sys.maxsize)
                self._held = found if len(found.offsets) else None
            elif self._fetches.position < end:
                data, wanted = self._fetches.next_batches(clock, timeout_s)
                self._unparsed += [(data, portion) for portion in record_batches.portions(wanted, FETCH_BYTES)]
            else:
                return None
        return self._held if self._held.offsets[0] < end else None
