"""Reads an exact range of one partition in chunks (`LogReader`), for restoration and recovery;
`WrittenRecords` follows topics.

read_committed; it ends at the asked end even where the tail is aborted records or markers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from everflow.errors import EverflowError, RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.fetch_connection import FETCH_BYTES
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.record_columns import LogChunk
from everflow.records import TopicPartition

_ASK_S = 2.0
_WRITTEN_WAIT_S = 0.2


class LogReader:
    """One range at a time; owned by one thread. A context manager."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        latest: bool = False,
        fetch_bytes: int = FETCH_BYTES,
        fetcher: LogFetcher | None = None,
        stable_end: Callable[[TopicPartition], int] | None = None,
    ) -> None:
        """``config``: librdkafka keys; ``fetch_bytes``: of one fetch, and of a chunk; ``fetcher``
        and ``stable_end`` (the last stable offset of a log) in place of those of ``config``;
        ``latest``: see `LogChunk.latest`. Connects at the first read only."""
        self._latest = latest
        self._chunk_bytes = fetch_bytes
        self._stable_end = stable_end or partial(_stable_end, config)
        self._fetcher = fetcher or LogFetcher.over(
            config, fetch_bytes=fetch_bytes, parsed_bytes=fetch_bytes
        )

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._fetcher.close()

    def read(
        self,
        tp: TopicPartition,
        start: int,
        end: int,
        *,
        every: bool = False,
        chunk_bytes: int | None = None,
        stall_timeout_s: float = 30.0,
    ) -> Iterator[LogChunk]:
        """Committed records with offsets in ``[start, end)``; the last chunk's ``next_position`` is
        ``end``.

        Where the range has markers only, chunks are empty; an empty range gives none. ``end`` must
        not lie beyond the last stable offset, or the reader waits for it. Chunks hold what came at
        once, ``chunk_bytes`` of keys and values at most. ``every``: none is left out, whatever
        ``latest`` said.

        Raises:
            LogStartMovedError: ``start`` lies outside the log.
            RetriableError: no progress for ``stall_timeout_s`` seconds (broker away, or a
            transaction stays open).
            FatalError: refused for good (no permission).
        """
        fetcher, position = self._fetcher, start
        try:
            fetcher.go_to({tp: position} if start < end else {}, stall_timeout_s)
            while position < end:
                found = fetcher.take({tp: end}, stall_timeout_s, chunk_bytes or self._chunk_bytes)
                if not found:
                    raise RetriableError(
                        f"reading {tp} from {start} to {end}: nothing came behind {position} "
                        f"for {stall_timeout_s:g} s. {self._why_nothing(tp, end)}"
                    )
                position = found[tp].next_position
                yield found[tp].latest() if self._latest and not every else found[tp]
        finally:
            fetcher.go_to({})

    def _why_nothing(self, tp: TopicPartition, end: int) -> str:
        """The leader's answer about the log; blocks for `_ASK_S` at most."""
        try:
            stable = self._stable_end(tp)
        except EverflowError as error:
            return f"The leader does not answer: {error}"
        if stable < end:
            return (
                f"A transaction is open from offset {stable} on, and nothing behind that is read "
                f"before it ends: its writer ends it, or the broker once that writer's "
                f"transaction.timeout.ms is over."
            )
        return f"The leader answers that it has the log up to {stable}, but sends no records of it."


def _stable_end(config: Mapping[str, Any], tp: TopicPartition) -> int:
    with closing(ClusterAdmin.beside(config)) as admin:
        return admin.list_offsets([tp], "latest", "read_committed", _ASK_S)[tp]


class RawWritten(NamedTuple):
    """A record as it is in Kafka."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


class WrittenRecords:
    """Follows partitions from ``starts`` on. ``settings``: librdkafka's. One thread at a time.
    Raises EverflowError."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        starts: Mapping[TopicPartition, int],
    ) -> None:
        self.records: dict[TopicPartition, list[RawWritten]] = {tp: [] for tp in starts}
        self.count = 0
        self._fetcher = LogFetcher.over(settings)
        self._fetcher.go_to(starts)

    def read(self, wait_s: float = 0.0) -> None:
        found = self._fetcher.take(dict.fromkeys(self.records, sys.maxsize), wait_s)
        for tp, chunk in found.items():
            self.count += chunk.records
            rows = chunk.rows(headers=False)
            self.records[tp] += [
                RawWritten(offset, key, value, at) for offset, at, key, value, _ in rows
            ]

    def read_to(self, ends: Mapping[TopicPartition, int], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while any(self._fetcher.positions[tp] < end for tp, end in ends.items()):
            if time.monotonic() > deadline:
                return False
            self.read(_WRITTEN_WAIT_S)
        return True

    def close(self) -> None:
        self._fetcher.close()
