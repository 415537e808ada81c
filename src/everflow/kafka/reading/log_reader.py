"""Reads an exact range of one partition in chunks: what restoration and recovery replay from.

No group, nothing is committed. read_committed, and it ends exactly at the asked end even where the tail is aborted records or
transaction markers, which no client hands out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everflow.kafka.reading.bulk_reader import BulkReader
from everflow.kafka.reading.client_reader import ClientReader
from everflow.kafka.reading.fetch_connection import bulk_settings
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.record_batches import UnsupportedBatchError
from everflow.records import TopicPartition

__all__ = ["LogChunk", "LogReader"]

_log = logging.getLogger(__name__)


class LogReader:
    """One range at a time; owned by one thread. A context manager.

    The bulk reader reads, three times as fast for a record's CPU. librdkafka takes over where it cannot: for security settings
    that only librdkafka knows, and for partitions with batches of an old format.
    """

    def __init__(
        self, config: Mapping[str, Any], *, latest: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``config``: librdkafka keys, ``bootstrap.servers`` at least; ``clock``: monotonic seconds.

        ``latest``: leave out records that a later one of the same key replaces, as far as that is cheap to see: for who folds
        them anyhow. The record of the latest time stays. Connects at the first read only.
        """
        self._latest = latest
        self._config = config
        self._clock = clock
        self._settings = bulk_settings(config)
        self._bulk: BulkReader | None = None
        self._client: ClientReader | None = None

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the connections."""
        if self._bulk is not None:
            self._bulk.close()
        if self._client is not None:
            self._client.close()

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        chunk_bytes: int = 8 << 20,
        stall_timeout_s: float = 30.0,
    ) -> Iterator[LogChunk]:
        """Committed records with offsets in ``[start, end)``; the last chunk's ``next_position`` is ``end``.

        A range of markers only gives one empty chunk; an empty range gives none. ``end`` must not lie beyond the
        last stable offset, or the reader waits for it. Chunks hold about ``chunk_bytes`` of keys and values.

        Raises:
            LogStartMovedError: ``start`` lies outside the log.
            RetriableError: no progress for ``stall_timeout_s`` seconds (broker away, or a transaction stays open).
            FatalError: refused for good (no permission).
        """
        position = start
        if self._settings is not None and start < end:
            if self._bulk is None:
                self._bulk = BulkReader(self._settings, clock=self._clock, latest=self._latest)
            try:
                for chunk in self._bulk.read(tp, start, end, chunk_bytes=chunk_bytes, stall_timeout_s=stall_timeout_s):
                    position = chunk.next_position
                    yield chunk
                return
            except UnsupportedBatchError as reason:
                _log.info("%s: librdkafka reads on from offset %d (%s)", tp, position, reason)
        if position < end:
            if self._client is None:
                self._client = ClientReader(self._config, clock=self._clock)
            yield from self._client.read(tp, position, end, chunk_bytes=chunk_bytes, stall_timeout_s=stall_timeout_s)
