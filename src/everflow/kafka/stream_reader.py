"""Reads large ranges of several partitions by fetch requests of its own, in columns, and goes on where the last ranges ended.

While the driver's step works on one batch, the fetch behind it is under way for every partition, and what came beyond the batch is
kept for the next one.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from everflow.kafka import record_batches
from everflow.kafka.fetch_connection import FETCH_BYTES, FetchConnection
from everflow.kafka.log_columns import LogColumns
from everflow.kafka.partition_fetches import PartitionFetches
from everflow.kafka.record_batches import Columns
from everflow.records import OffsetRange, TopicPartition

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

    def read(self, ranges: Mapping[TopicPartition, OffsetRange], timeout_s: float) -> dict[TopicPartition, LogColumns]:
        """See `RangeReader.read`; ``timeout_s`` is the time without any progress. Raises UnsupportedBatchError besides: then
        nothing of ``ranges`` was handed out."""
        connection = self.connect(timeout_s)
        connection.fetch_bytes = max(_LEAST_BYTES, min(self._fetch_bytes, _AHEAD_BYTES // max(1, len(ranges))))
        self._go_to(connection, ranges)
        for tp, wanted in ranges.items():
            if wanted.end > wanted.start:
                self._streams[tp].send()
        return {tp: self._streams[tp].take(wanted.end, self._clock, timeout_s) for tp, wanted in ranges.items()}

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
        self._held: deque[Columns] = deque()
        self._headers = headers
        self.position = start
        """Offset behind what was taken."""

    def send(self) -> None:
        """See to it that a fetch is under way."""
        self._fetches.send()

    def take(self, end: int, clock: Callable[[], float], timeout_s: float) -> LogColumns:
        """The records from the position to ``end``."""
        while self._fetches.position < end:
            begun = self._fetches.position
            data, wanted = self._fetches.next_batches(clock, timeout_s)
            for portion in record_batches.portions(wanted, FETCH_BYTES):
                found = record_batches.columns(data, portion).between(begun, sys.maxsize)
                if len(found.offsets):
                    self._held.append(found)
        parts = []
        while self._held and self._held[0].offsets[0] < end:
            first = self._held.popleft()
            taken = first.between(0, end)
            if len(taken.offsets) < len(first.offsets):
                self._held.appendleft(first.between(end, sys.maxsize))
            parts.append(taken.arrow(self._headers))
        self.position = max(self.position, end)
        return LogColumns.concat(parts, self._headers)
