"""What a store was at a point of its changelog, and what is different at another.

No instance needs to run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

import pyarrow as pa

from everflow.clock import instant
from everflow.errors import NoChangelogError, StatePointError
from everflow.records import TopicPartition
from everflow.snapshots.changelog_state import CommittedLog, PartitionLog
from everflow.snapshots.entry_columns import EntryColumns, compared, pages
from everflow.snapshots.logged_stores import LoggedStore
from everflow.snapshots.points import (
    At,
    Point,
    Reach,
    Span,
    before_all,
)
from everflow.snapshots.rows import Rows
from everflow.snapshots.snapshot import batches, opened, room
from everflow.state.lmdb_store import LmdbStore
from everflow.waits import waiting

Committed = Literal["read_committed"]


class OffsetAdmin(Protocol):
    """The part of `ClusterAdmin` that is needed here."""

    def describe_topics(self, names: Collection[str]) -> Mapping[str, Any]:
        """The topics that exist, with their ``partitions``."""

    def list_offsets(
        self,
        partitions: Collection[TopicPartition],
        which: Literal["earliest", "latest"],
        isolation: Literal["read_committed", "read_uncommitted"],
    ) -> Mapping[TopicPartition, int]:
        """Starts or ends of logs."""

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], time_ms: int, isolation: Committed
    ) -> Mapping[TopicPartition, int]:
        """First offsets of that time or later, -1 where there is none."""


@dataclass(frozen=True, kw_only=True)
class StateReader:
    """Reads one store. ``folder``: below which past states are put together, a partition at a time
    (None: TMPDIR). One thread; the rows need ``reader`` for as long as they are read."""

    store: LoggedStore
    admin: OffsetAdmin
    reader: CommittedLog
    folder: Path | None = None

    def rows(self, at: At = None) -> Rows:
        """The store as it was at a point: every key, or every version that its history has there.
        NoChangelogError, StatePointError; the rows raise EntryError and what the reader raises."""
        spans = self._spans()
        reaches = self._reaches(Point.of(at), spans)
        notes = _deleted(self.store, spans, reaches)
        columns = self.store.columns

        def parts() -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
            folded = offsets = 0
            with room(self.folder) as folder:
                for partition, reach in reaches.items():
                    log = self._log(partition)
                    with opened(log.new_store(folder / f"{partition}")) as store:
                        self._fold(log, store, partition, reach)
                        blame = partial(log.place_of, end=reach.end, start=reach.start)
                        yield partition, batches(store, columns, partition, blame)
                    folded, offsets = folded + log.records, offsets + reach.end - reach.start
            if any(spans[one].stable > reach.end for one, reach in reaches.items()):
                notes.extend(_compacted(self.store, folded, offsets))

        return Rows(columns.schema, parts(), notes)

    def difference(self, first: At, second: At = None) -> Rows:
        """Keys whose values are not the same at two points, from the first to the second: of a
        versioned store their latest ones. Errors as of `rows`."""
        spans = self._spans()
        before, after = (self._reaches(Point.of(at), spans) for at in (first, second))
        if before.keys() != after.keys():
            raise StatePointError(
                "The two points name other partitions: a difference is of the same ones at both."
            )
        notes = _deleted(self.store, spans, before)
        columns = self.store.columns

        def parts() -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
            folded = offsets = 0
            with room(self.folder) as folder:
                for partition in before:
                    log, reach = self._log(partition), (before[partition], after[partition])
                    with ExitStack() as stack:
                        stores = self._two(stack, log, partition, reach, folder)
                        yield partition, _differences(columns, partition, log, stores, reach)
                    folded += log.records
                    offsets += max(reach[0].end, reach[1].end) - reach[0].start
            notes.extend(_compacted(self.store, folded, offsets))

        return Rows(columns.difference_schema, parts(), notes)

    def _two(
        self,
        stack: ExitStack,
        log: PartitionLog,
        partition: int,
        reach: tuple[Reach, Reach],
        folder: Path,
    ) -> tuple[LmdbStore, LmdbStore]:
        """The store at both points; the later one goes on from a copy of the earlier."""
        nearer, farther = sorted(reach, key=lambda one: one.end)
        early = stack.enter_context(opened(log.new_store(folder / f"{partition}-first")))
        self._fold(log, early, partition, nearer)
        behind = folder / f"{partition}-second"
        behind.mkdir()
        late = stack.enter_context(opened(early.copy_to(behind)))
        self._fold(log, late, partition, Reach(nearer.end, farther.end))
        return (early, late) if reach[0] == nearer else (late, early)

    def _fold(self, log: PartitionLog, store: LmdbStore, partition: int, reach: Reach) -> None:
        if reach.end > reach.start:
            count = reach.end - reach.start
            with waiting(f"reading {self.store.topic}-{partition}, {count:,} offsets"):
                log.fold(store, reach)

    def _log(self, partition: int) -> PartitionLog:
        tp = TopicPartition(self.store.topic, partition)
        return PartitionLog(self.reader, tp, self.store.columns.spec)

    def _spans(self) -> dict[int, Span]:
        topic = self.store.topic
        found = self.admin.describe_topics([topic])
        if topic not in found:
            raise NoChangelogError(
                f"There is no topic {topic}, the changelog of store {self.store.name!r}. Is this "
                f"its application.id, and has the application run?"
            )
        logs = [TopicPartition(topic, one) for one in range(found[topic].partitions)]
        # In this order: a transaction that ends in between must not put the end before the
        # last stable offset.
        starts = self.admin.list_offsets(logs, "earliest", "read_uncommitted")
        stable = self.admin.list_offsets(logs, "latest", "read_committed")
        ends = self.admin.list_offsets(logs, "latest", "read_uncommitted")
        return {tp.partition: Span(starts[tp], stable[tp], ends[tp]) for tp in logs}

    def _reaches(self, point: Point, spans: Mapping[int, Span]) -> dict[int, Reach]:
        times: dict[int, int] = {}
        if point.time_ms is not None:
            logs = [TopicPartition(self.store.topic, one) for one in spans]
            found = self.admin.offsets_for_time(logs, point.time_ms, "read_committed")
            times = {tp.partition: offset for tp, offset in found.items()}
        reaches = point.reaches(self.store.topic, spans, times)
        if point.time_ms is not None and before_all(reaches, spans):
            raise StatePointError(
                f"{point} is before all that {self.store.topic} has: its first record is of "
                f"{self._first_time(spans)}. Times are those of the records, not of a clock."
            )
        return reaches

    def _first_time(self, spans: Mapping[int, Span]) -> str:
        found = [
            self._log(one).first_time(Reach(span.start, span.stable))
            for one, span in spans.items()
            if span.stable > span.start
        ]
        known = [time for time in found if time is not None]
        return instant(min(known)) if known else "later"


def _differences(
    columns: EntryColumns,
    partition: int,
    log: PartitionLog,
    stores: tuple[LmdbStore, LmdbStore],
    reach: tuple[Reach, Reach],
) -> Iterator[pa.RecordBatch]:
    first, second = (partial(log.place_of, end=one.end, start=one.start) for one in reach)
    with stores[0].snapshot() as old, stores[1].snapshot() as new:
        found = compared(old.range(None, None), new.range(None, None))
        expired_ms = new.newest_ms - (columns.spec.retention_ms or 0)
        for page in pages(found, lambda one: sum(len(part or b"") for part in one)):
            yield columns.differences(page, partition, expired_ms, (first, second))


def _deleted(
    store: LoggedStore, spans: Mapping[int, Span], reaches: Mapping[int, Reach]
) -> list[str]:
    cut = [f"{one} (from {spans[one].start})" for one in reaches if spans[one].start > 0]
    if not cut:
        return []
    return [
        f"The beginning of {store.topic} was deleted in partitions {', '.join(cut)}: an entry that "
        f"was last written there is not shown."
    ]


def _compacted(store: LoggedStore, folded: int, offsets: int) -> list[str]:
    """What has to be said of a point before the end; nothing where no offset is without a
    record."""
    if folded >= offsets:
        return []
    return [
        f"{offsets - folded:,} of {offsets:,} offsets of {store.topic} up to there have no "
        f"committed record: they are markers of transactions, or compaction has removed a record "
        f"because a later one has its key. A key that was written again behind the point may be "
        f"missing there."
    ]
