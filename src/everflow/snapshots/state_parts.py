"""What of a changelog is read to show a store, a partition at a time, in whatever process.

A `LogParts` is decided once, where brokers can be asked; its parts are read one after the other by
`everflow state` and `read_state`, and beside one another by the workers of ``everflow-state``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from everflow.records import TopicPartition
from everflow.retry import waiting
from everflow.snapshots.changelog_state import CommittedLog, PartitionLog
from everflow.snapshots.entry_columns import compared, pages
from everflow.snapshots.logged_stores import LoggedStore
from everflow.snapshots.points import Reach
from everflow.snapshots.snapshot import batches, opened
from everflow.state.left_out import KeptEntry, unpacked
from everflow.state.lmdb_store import LmdbStore


@dataclass(frozen=True)
class LogPart:
    """What of one changelog partition is read: up to a point; of a difference, to two. Picklable.

    ``incomplete``: whether compaction may have removed what counted at the point. ``left_out``: of
    the partition of `LoggedStore.left_out`.
    """

    partition: int
    reach: Reach
    second: Reach | None = None
    incomplete: bool = True
    left_out: Reach | None = None

    @property
    def offsets(self) -> int:
        """How many offsets are folded."""
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
    reader: CommittedLog
    folder: Path

    @contextmanager
    def opened(self, part: LogPart) -> Iterator[tuple[Iterator[pa.RecordBatch], int]]:
        """The part's batches, to be read inside the block, and how many records were folded for
        them. EntryError, and what the reader raises."""
        topic = TopicPartition(self.store.topic, part.partition)
        log = PartitionLog(self.reader, topic, self.store.columns.spec, self._left_out(part))
        with ExitStack() as stack:
            if part.second is None:
                found = self._at(stack, log, part)
            else:
                found = self._between(stack, log, part, part.second)
            yield found, log.records

    def _left_out(self, part: LogPart) -> dict[bytes, KeptEntry]:
        if part.left_out is None or self.store.left_out is None:
            return {}
        tp = TopicPartition(self.store.left_out, part.partition)
        return unpacked(self.reader.read(tp, part.left_out.start, part.left_out.end))

    def _at(self, stack: ExitStack, log: PartitionLog, part: LogPart) -> Iterator[pa.RecordBatch]:
        store = stack.enter_context(opened(log.new_store(self.folder / f"{part.partition}")))
        self._fold(log, store, part.partition, part.reach)
        blame = partial(log.place_of, end=part.reach.end, start=part.reach.start)
        return batches(store, self.store.columns, part.partition, blame)

    def _between(
        self, stack: ExitStack, log: PartitionLog, part: LogPart, second: Reach
    ) -> Iterator[pa.RecordBatch]:
        """The later store goes on from a copy of the earlier."""
        nearer, farther = sorted((part.reach, second), key=lambda one: one.end)
        at = part.partition
        early = stack.enter_context(opened(log.new_store(self.folder / f"{at}-first")))
        self._fold(log, early, at, nearer)
        behind = self.folder / f"{at}-second"
        behind.mkdir()
        late = stack.enter_context(opened(early.copy_to(behind)))
        self._fold(log, late, at, Reach(nearer.end, farther.end))
        stores = (early, late) if part.reach == nearer else (late, early)
        return self._differences(log, part, second, stores)

    def _fold(self, log: PartitionLog, store: LmdbStore, partition: int, reach: Reach) -> None:
        if reach.end > reach.start:
            count = reach.end - reach.start
            with waiting(f"reading {self.store.topic}-{partition}, {count:,} offsets"):
                log.fold(store, reach)

    def _differences(
        self, log: PartitionLog, part: LogPart, second: Reach, stores: tuple[LmdbStore, LmdbStore]
    ) -> Iterator[pa.RecordBatch]:
        columns = self.store.columns
        before, after = (
            partial(log.place_of, end=one.end, start=one.start) for one in (part.reach, second)
        )
        with stores[0].snapshot() as old, stores[1].snapshot() as new:
            found = compared(old.range(None, None), new.range(None, None))
            expired_ms = new.newest_ms - (columns.spec.retention_ms or 0)
            for page in pages(found, lambda one: sum(len(side or b"") for side in one)):
                yield columns.differences(page, part.partition, expired_ms, (before, after))


def compacted(topic: str, folded: int, offsets: int) -> list[str]:
    """What has to be said of an incomplete part, or of several, of which ``folded`` records of
    ``offsets`` offsets were there; nothing where no offset is without a record."""
    if folded >= offsets:
        return []
    return [
        f"{offsets - folded:,} of {offsets:,} offsets of {topic} up to there have no "
        f"committed record: they are markers of transactions, or compaction has removed a record "
        f"because a later one has its key. A key that was written again behind the point may be "
        f"missing there."
    ]
