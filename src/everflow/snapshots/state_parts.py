"""What of a changelog is read to show a store, a partition at a time, in whatever process.

A `LogParts` is decided once, where brokers can be asked; its parts are read one after the other by
`everflow state` and `read_state`, and beside one another by the workers of ``everflow-state``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from everflow.errors import EverflowError
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.record_columns import LogChunk
from everflow.records import OffsetRange, TopicPartition
from everflow.retry import waiting
from everflow.snapshots.entry_columns import EntryError, compared, pages
from everflow.snapshots.logged_stores import LoggedStore
from everflow.snapshots.snapshot import batches, opened
from everflow.state.changelog import SUFFIX_BYTES
from everflow.state.left_out import Chunk, KeptEntry, as_processed, unpacked
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec


class PartitionLog:
    """One changelog partition. ``records``: number of replayed ones. ``left_out``: entries that
    processing skipped (note 065)."""

    def __init__(
        self,
        reader: LogReader,
        tp: TopicPartition,
        spec: StoreSpec,
        left_out: Mapping[bytes, KeptEntry] = MappingProxyType({}),
    ) -> None:
        self._reader, self._tp, self._spec, self._left_out = reader, tp, spec, left_out
        self.records = 0

    def new_store(self, folder: Path) -> LmdbStore:
        return LmdbStore.open(folder, kind=self._spec.kind, retention_ms=self._spec.kept_ms)

    def fold(self, store: LmdbStore, reach: OffsetRange) -> None:
        """Into the store. EntryError for a key that the store cannot have; whatever the reader
        raises."""
        start, end = reach
        if end <= start:
            return
        known = {key: one for key, one in self._left_out.items() if one.offset < end}
        with waiting(f"reading {self._tp}, {end - start:,} offsets"):
            for chunk in self._reader.read(self._tp, start, end, every=self._spec.versioned):
                self._check_keys(chunk, reach)
                taken: Chunk = chunk
                if self._spec.source_topic is not None:
                    taken = as_processed(chunk, start, known, self._spec)
                position = min(chunk.next_position, end)
                store.load_chunk(taken.keys, taken.values, taken.timestamps, position)
                start = chunk.next_position
                self.records += chunk.records

    def place_of(self, key: bytes, reach: OffsetRange) -> str:
        """``topic-3@1207``, where its last record in ``reach`` lies, found by reading the log
        again; without the offset where that fails."""
        offset: int | None = None
        try:
            for chunk in self._reader.read(self._tp, *reach, every=True):
                found = chunk.offset_of(key)
                offset = offset if found is None else found
        except EverflowError:
            pass  # the error that is about to be raised says more
        return f"{self._tp}@{'?' if offset is None else offset}"

    def first_time(self, reach: OffsetRange) -> int | None:
        """The time (ms) of the first record; None where there is none."""
        for chunk in self._reader.read(self._tp, *reach, every=True):
            if len(chunk.timestamps):
                return int(np.asarray(chunk.timestamps)[0])
        return None

    def _check_keys(self, chunk: LogChunk, reach: OffsetRange) -> None:
        suffix = SUFFIX_BYTES.get(self._spec.kind, 0)
        short = next((key for key in chunk.keys if key is not None and len(key) < suffix), None)
        if short is not None:
            raise EntryError(
                f"The key of {self.place_of(short, reach)} is not what the "
                f"topology says: {len(short)} bytes, where {self._spec.kind} stores have a key and "
                f"{suffix} bytes behind it. Another program wrote it."
            )


@dataclass(frozen=True)
class LogPart:
    """The offsets of a changelog partition that are read: up to a point, or two for a difference.
    Picklable.

    ``incomplete``: whether compaction may have removed what counted at the point. ``left_out``: of
    the partition of `LoggedStore.left_out`.
    """

    partition: int
    reach: OffsetRange
    second: OffsetRange | None = None
    incomplete: bool = True
    left_out: OffsetRange | None = None

    @property
    def offsets(self) -> int:
        ends = [reach.end for reach in (self.reach, self.second) if reach is not None]
        return max(ends) - self.reach.start


@dataclass(frozen=True)
class LogParts:
    """A store at a point, or at two. ``notes``: what has to be known of it, before any part is
    read. Picklable."""

    parts: Sequence[LogPart]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class PartReader:
    """Reads parts of one store, each in a store of its own below ``folder``, which is a `room`. One
    thread."""

    store: LoggedStore
    reader: LogReader
    folder: Path

    @contextmanager
    def opened(self, part: LogPart) -> Iterator[tuple[Iterator[pa.RecordBatch], int]]:
        """The part's batches, to be read inside the block, and how many records were folded for
        them. EntryError, and what the reader raises."""
        topic = TopicPartition(self.store.topic, part.partition)
        log = PartitionLog(self.reader, topic, self.store.columns.spec, self._left_out(part))
        with ExitStack() as stack:
            if part.second is None:
                store = stack.enter_context(
                    opened(log.new_store(self.folder / f"{part.partition}"))
                )
                log.fold(store, part.reach)
                blame = partial(log.place_of, reach=part.reach)
                found = batches(store, self.store.columns, part.partition, blame)
            else:
                found = self._between(stack, log, part, part.second)
            yield found, log.records

    def _left_out(self, part: LogPart) -> dict[bytes, KeptEntry]:
        if part.left_out is None or self.store.left_out is None:
            return {}
        tp = TopicPartition(self.store.left_out, part.partition)
        return unpacked(self.reader.read(tp, part.left_out.start, part.left_out.end))

    def _between(
        self, stack: ExitStack, log: PartitionLog, part: LogPart, second: OffsetRange
    ) -> Iterator[pa.RecordBatch]:
        """The later store goes on from a copy of the earlier."""
        nearer, farther = sorted((part.reach, second), key=lambda one: one.end)
        at = part.partition
        early = stack.enter_context(opened(log.new_store(self.folder / f"{at}-first")))
        log.fold(early, nearer)
        behind = self.folder / f"{at}-second"
        behind.mkdir()
        late = stack.enter_context(opened(early.copy_to(behind)))
        log.fold(late, OffsetRange(nearer.end, farther.end))
        stores = (early, late) if part.reach == nearer else (late, early)
        return self._differences(log, part, second, stores)

    def _differences(
        self,
        log: PartitionLog,
        part: LogPart,
        second: OffsetRange,
        stores: tuple[LmdbStore, LmdbStore],
    ) -> Iterator[pa.RecordBatch]:
        columns = self.store.columns
        before, after = (partial(log.place_of, reach=one) for one in (part.reach, second))
        with stores[0].snapshot() as old, stores[1].snapshot() as new:
            found = compared(old.range(None, None), new.range(None, None))
            expired_ms = new.newest_ms - (columns.spec.retention_ms or 0)
            for page in pages(found, lambda one: sum(len(side or b"") for side in one)):
                yield columns.differences(page, part.partition, expired_ms, (before, after))


def compacted(topic: str, folded: int, offsets: int) -> list[str]:
    """A note about missing records, where ``folded`` records were found in ``offsets`` offsets;
    none where no offset is without a record."""
    if folded >= offsets:
        return []
    return [
        f"{offsets - folded:,} of {offsets:,} offsets of {topic} up to there have no "
        f"committed record: they are markers of transactions, or compaction has removed a record "
        f"because a later one has its key. A key that was written again behind the point may be "
        f"missing there."
    ]
