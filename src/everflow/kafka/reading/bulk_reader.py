"""Reads an exact range of a partition by fetch requests of its own: the fast way to restore.

`FetchConnection` carries the requests and `record_batches` reads the answers in columns. The next fetch is under way while the
present one is parsed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import FETCH_BYTES, FetchConnection
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.partition_fetches import PartitionFetches
from everflow.kafka.reading.record_batches import Columns
from everflow.records import Int64, TopicPartition


class BulkReader:
    """One range at a time; owned by one thread. Holds two connections and kafka-python's IO thread until closed."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        clock: Callable[[], float] = time.monotonic,
        fetch_bytes: int = FETCH_BYTES,
        latest: bool = False,
    ) -> None:
        """``settings``: from `bulk_settings`; ``clock`` and ``latest``: see `LogReader`; ``fetch_bytes``: size of one fetch."""
        self._latest = latest
        self._settings = settings
        self._clock = clock
        self._fetch_bytes = fetch_bytes
        self._connection: FetchConnection | None = None

    def close(self) -> None:
        """Release the connections."""
        if self._connection is not None:
            self._connection.close()

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        chunk_bytes: int = 8 << 20,
        stall_timeout_s: float = 30.0,
    ) -> Iterator[LogChunk]:
        """See `LogReader.read`. Raises UnsupportedBatchError besides: what was not handed out yet is for another reader."""
        if start >= end:
            return
        doing = f"reading {tp} from {start} to {end}"
        if self._connection is None:
            self._connection = FetchConnection(self._settings, self._fetch_bytes, stall_timeout_s, doing)
        fetches = PartitionFetches(self._connection, tp, start, end, doing)
        gathered = _Gathered(chunk_bytes, self._latest)
        while fetches.position < end:
            records, wanted = fetches.next_batches(self._clock, stall_timeout_s)
            for portion in record_batches.portions(wanted, FETCH_BYTES):
                yield from gathered.full(record_batches.columns(records, portion).between(start, end), end)
        yield gathered.rest(end)


class _Gathered:
    """Columns on their way into chunks of about ``chunk_bytes``."""

    def __init__(self, chunk_bytes: int, latest: bool) -> None:
        self._chunk_bytes = max(1, chunk_bytes)
        self._latest = latest
        self._clear()

    def _clear(self) -> None:
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._timestamps: list[Int64] = []
        self._records = 0
        self._held = 0

    def full(self, columns: Columns, end: int) -> Iterator[LogChunk]:
        """Take the columns; gives the chunks that are full now and not the range's last."""
        while len(columns.offsets):
            room = max(self._chunk_bytes - self._held, self._chunk_bytes // 2, 1)  # many small parts would hide what is replaced
            part = columns.up_to(room)
            columns = columns.of(slice(len(part.offsets), None))
            position = int(part.offsets[-1]) + 1
            self._records += len(part.offsets)
            # Within a part only: a chunk is the fold of the log up to its position, so its end must not hide behind another's.
            self._add(part.latest() if self._latest else part)
            if self._held >= self._chunk_bytes and position < end:
                yield self.rest(position)

    def rest(self, position: int) -> LogChunk:
        """Everything held, as a chunk that ends before ``position``."""
        times = np.concatenate(self._timestamps) if self._timestamps else np.empty(0, np.int64)
        chunk = LogChunk(self._keys, self._values, times, position, self._records)
        self._clear()
        return chunk

    def _add(self, columns: Columns) -> None:
        self._keys += columns.keys()
        self._values += columns.values()
        self._timestamps.append(columns.timestamps)
        self._held += int(columns.sizes.sum())
