"""Reads many logs to their stable ends in columns, slice by slice: for copies that are far behind.

One log after the other; the next fetch is under way while the present slice is loaded. For logs that are at their ends there is
`log_follower`; `copy_follower` puts both together.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from everflow.errors import RetriableError
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import FetchConnection
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.partition_fetches import PartitionFetches
from everflow.kafka.reading.record_batches import Batch, Columns
from everflow.records import Int64, TopicPartition

_FETCH_BYTES = 4 << 20
_PARSED_BYTES = 1 << 20
"""What is parsed at once of a fetch: the caller's promotions wait for it."""
_STALL_S = 10.0
"""An answer may take so long; nothing waits for it meanwhile."""
_ATTEND_S = 1.0
"""How long a failed fetch is attended to before the log is given back: the caller has promotions to serve."""
_CONNECT_S = 3.0
_NO_TIMES: Int64 = np.empty(0, np.int64)


class BulkFollower:
    """Owned by one thread; connects at the first slice. It holds two fetches of 4 MiB, whatever the number of logs."""

    def __init__(self, settings: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> None:
        """``settings``: from `bulk_settings`; ``clock``: monotonic seconds."""
        self._settings = settings
        self._clock = clock
        self._connection: FetchConnection | None = None
        self._waiting: dict[TopicPartition, int] = {}
        self._reading: _Slices | None = None
        self._moved_s = 0.0

    def __len__(self) -> int:
        """Logs that are read or wait for it."""
        return len(self._waiting) + (self._reading is not None)

    @property
    def positions(self) -> Mapping[TopicPartition, int]:
        """Next offset of every log."""
        reading = self._reading
        return dict(self._waiting) if reading is None else {reading.tp: reading.position, **self._waiting}

    @property
    def reading(self) -> TopicPartition | None:
        """The log that the next slice comes from, if it has begun."""
        return None if self._reading is None else self._reading.tp

    def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """These logs wait for their turn behind those that wait already."""
        self.remove(starts)
        self._waiting.update(starts)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop with these logs."""
        for tp in partitions:
            self._waiting.pop(tp, None)
            if tp == self.reading:
                self._reading = None

    def poll(self, ends: Mapping[TopicPartition, int], bytes_max: int, timeout_s: float) -> tuple[TopicPartition, LogChunk] | None:
        """About ``bytes_max`` bytes of committed records of one log, waiting at most ``timeout_s`` seconds; None if nothing came.

        A log is read up to its offset in ``ends`` when its turn begins: not beyond the last stable offset then. With the chunk that
        ends there it is finished, and no longer among `positions`.

        Raises:
            LogStartMovedError: `reading`'s position lies outside its log.
            RetriableError: the broker fails or says nothing for 10 s.
            FatalError: refused for good.
            UnsupportedBatchError: `reading` has batches that only librdkafka reads.
        """
        if self._reading is None:
            self._begin(ends)
        reading = self._reading
        if reading is None:
            return None
        chunk = reading.take(bytes_max, self._clock, timeout_s)
        now_s = self._clock()
        if chunk is None:
            if now_s - self._moved_s > _STALL_S:
                raise RetriableError(f"reading {reading.tp} at {reading.position}: the broker has not answered for {_STALL_S:g} s")
            return None
        self._moved_s = now_s
        if reading.position >= reading.end:
            self._reading = None
        return reading.tp, chunk

    def rest(self) -> None:
        """Drop the connection; the next slice makes a new one."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _begin(self, ends: Mapping[TopicPartition, int]) -> None:
        found = next(((tp, at) for tp, at in self._waiting.items() if ends.get(tp, at) > at), None)
        if found is None:
            return
        tp, at = found
        if self._connection is None:
            self._connection = FetchConnection(self._settings, _FETCH_BYTES, _CONNECT_S, "connecting to read changelogs")
        del self._waiting[tp]
        self._reading = _Slices(self._connection, tp, at, ends[tp])
        self._moved_s = self._clock()


class _Slices:
    """One log from a position to its end, in slices."""

    def __init__(self, connection: FetchConnection, tp: TopicPartition, start: int, end: int) -> None:
        self._fetches = PartitionFetches(connection, tp, start, end, f"reading {tp} up to {end}")
        self._unparsed: deque[tuple[bytes, list[Batch]]] = deque()
        self._held: Columns | None = None
        self.tp = tp
        self.position = start
        """Offset behind what was handed out."""
        self.end = end

    def take(self, bytes_max: int, clock: Callable[[], float], timeout_s: float) -> LogChunk | None:
        """The next slice, without records that a later one of it replaces; None if its bytes are not there yet."""
        while self._held is None:
            if self._unparsed:
                found = record_batches.columns(*self._unparsed.popleft()).between(self.position, self.end)
                self._held = found if len(found.offsets) else None
            elif self.position < self._fetched():  # markers and aborted records only
                self.position = self._fetched()
                return LogChunk([], [], _NO_TIMES, self.position, 0)
            elif self._fetches.ready(timeout_s):
                data, wanted = self._fetches.next_batches(clock, _ATTEND_S)
                self._unparsed += [(data, portion) for portion in record_batches.portions(wanted, _PARSED_BYTES)]
            else:
                return None
        return self._slice(self._held, bytes_max)

    def _slice(self, held: Columns, bytes_max: int) -> LogChunk:
        part = held.up_to(bytes_max)
        rest = held.of(slice(len(part.offsets), None))
        self._held = rest if len(rest.offsets) else None
        whole = self._held is None and not self._unparsed
        self.position = self._fetched() if whole else int(part.offsets[-1]) + 1
        kept = part.latest()
        return LogChunk(kept.keys(), kept.values(), kept.timestamps, self.position, len(part.offsets))

    def _fetched(self) -> int:
        return min(self._fetches.position, self.end)
