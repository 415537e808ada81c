"""What a store was at a point of its changelog, and what is different at another.

No instance needs to run. A `LogParts` is decided once, where brokers can be asked; its parts are
read in turn by `everflow state` and `read_state`, at once by the workers of ``everflow-state``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from everflow.clock import instant
from everflow.config import StreamsConfig
from everflow.errors import EverflowError, NoChangelogError, StatePointError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.record_columns import LogChunk
from everflow.records import OffsetRange, TopicPartition
from everflow.retry import waiting
from everflow.snapshots.entry_columns import EntryError, compared, pages
from everflow.snapshots.logged_stores import LoggedStore
from everflow.snapshots.points import At, Point, Span, before_all
from everflow.snapshots.snapshot import Rows, batches, opened, scratch_folder
from everflow.state.changelog import SUFFIX_BYTES
from everflow.state.left_out import Chunk, KeptEntry, as_processed, unpacked
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec


@dataclass
class PartitionLog:
    """One changelog partition. ``records``: number of replayed ones. ``left_out``: entries that
    processing skipped (note 065)."""

    reader: LogReader
    tp: TopicPartition
    spec: StoreSpec
    left_out: Mapping[bytes, KeptEntry] = field(default_factory=dict)
    records: int = 0

    def new_store(self, folder: Path) -> LmdbStore:
        return LmdbStore.open(folder, kind=self.spec.kind, retention_ms=self.spec.kept_ms)

    def fold(self, store: LmdbStore, reach: OffsetRange) -> None:
        """Into the store. EntryError for a key that the store cannot have; whatever the reader
        raises."""
        start, end = reach
        if end <= start:
            return
        known = {key: one for key, one in self.left_out.items() if one.offset < end}
        with waiting(f"reading {self.tp}, {end - start:,} offsets"):
            for chunk in self.reader.read(self.tp, start, end, every=self.spec.versioned):
                self._check_keys(chunk, reach)
                taken: Chunk = chunk
                if self.spec.source_topic is not None:
                    taken = as_processed(chunk, start, known, self.spec)
                position = min(chunk.next_position, end)
                store.load_chunk(taken.keys, taken.values, taken.timestamps, position)
                start = chunk.next_position
                self.records += chunk.records

    def place_of(self, key: bytes, reach: OffsetRange) -> str:
        """``topic-3@1207``: its last record's place in ``reach``; ``?`` if the log cannot tell."""
        offset: int | None = None
        try:
            for chunk in self.reader.read(self.tp, *reach, every=True):
                found = chunk.offset_of(key)
                offset = offset if found is None else found
        except EverflowError:
            pass  # the error that is about to be raised says more
        return f"{self.tp}@{'?' if offset is None else offset}"

    def first_time(self, reach: OffsetRange) -> int | None:
        """The time (ms) of the first record; None where there is none."""
        for chunk in self.reader.read(self.tp, *reach, every=True):
            if len(chunk.timestamps):
                return int(np.asarray(chunk.timestamps)[0])
        return None

    def _check_keys(self, chunk: LogChunk, reach: OffsetRange) -> None:
        suffix = SUFFIX_BYTES.get(self.spec.kind, 0)
        short = next((key for key in chunk.keys if key is not None and len(key) < suffix), None)
        if short is not None:
            raise EntryError(
                f"The key of {self.place_of(short, reach)} is not what the "
                f"topology says: {len(short)} bytes, where {self.spec.kind} stores have a key and "
                f"{suffix} bytes behind it. Another program wrote it."
            )


@dataclass(frozen=True)
class LogPart:
    """The offsets of a changelog partition that are read: up to a point, or two for a difference.

    Picklable. ``incomplete``: whether compaction may have removed what counted at the point.
    ``left_out``: of the partition of `LoggedStore.left_out`.
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
    """Reads parts of one store, each in a store of its own below ``folder``, a `scratch_folder`.
    One thread."""

    store: LoggedStore
    reader: LogReader
    folder: Path

    @contextmanager
    def opened(self, part: LogPart) -> Iterator[tuple[Iterator[pa.RecordBatch], int]]:
        """The part's batches, and the number of folded records. EntryError, and the reader's."""
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
    """A note about missing records, where ``folded`` records had ``offsets`` offsets; or none."""
    if folded >= offsets:
        return []
    return [
        f"{offsets - folded:,} of {offsets:,} offsets of {topic} up to there have no "
        f"committed record: they are markers of transactions, or compaction has removed a record "
        f"because a later one has its key. A key that was written again behind the point may be "
        f"missing there."
    ]


@dataclass(frozen=True, kw_only=True)
class StateReader:
    """Reads one store. ``folder``: below which past states are put together, a partition at a time
    (None: TMPDIR). One thread; the rows need ``reader`` for as long as they are read."""

    store: LoggedStore
    admin: ClusterAdmin
    reader: LogReader
    folder: Path | None = None

    def rows(self, at: At = None) -> Rows:
        """The store as it was at a point: every key, or every version that its history has there.
        NoChangelogError, StatePointError; the rows raise EntryError and what the reader raises."""
        return self._read(self.parts(at), self.store.columns.schema)

    def difference(self, first: At, second: At = None) -> Rows:
        """Keys of other (latest) values at the second point than at the first; errors: `rows`."""
        return self._read(self.parts_of_two(first, second), self.store.columns.difference_schema)

    def parts(self, at: At) -> LogParts:
        """The parts that `rows` reads."""
        spans = self._spans()
        left_out = self._left_out(spans)
        reaches = self._reaches(Point.of(at), spans)
        parts = [
            LogPart(
                one,
                reach,
                incomplete=spans[one].stable > reach.end,
                left_out=left_out.get(one),
            )
            for one, reach in reaches.items()
        ]
        return LogParts(parts, _deleted(self.store, spans, reaches))

    def parts_of_two(self, first: At, second: At) -> LogParts:
        """The parts that `difference` reads. If one point names partitions, the other one has the
        same."""
        spans = self._spans()
        points = Point.of(first), Point.of(second)
        named = [point.offsets.keys() for point in points if point.offsets is not None]
        if len(named) == 2 and named[0] != named[1]:
            raise StatePointError(
                f"The two points name other partitions ({points[0]}; {points[1]}): a difference is "
                f"of the same ones at both."
            )
        of_both = {one: span for one, span in spans.items() if not named or one in named[0]}
        before, after = (
            self._reaches(point, spans if point.offsets is not None else of_both)
            for point in points
        )
        left_out = self._left_out(spans)
        parts = [
            LogPart(one, reach, after[one], left_out=left_out.get(one))
            for one, reach in before.items()
        ]
        return LogParts(parts, _deleted(self.store, spans, before))

    def _read(self, chosen: LogParts, schema: pa.Schema) -> Rows:
        notes = list(chosen.notes)

        def parts() -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
            folded = 0
            with scratch_folder(self.folder) as folder:
                reader = PartReader(self.store, self.reader, folder)
                for part in chosen.parts:
                    with reader.opened(part) as (found, records):
                        yield part.partition, found
                    folded += records
            if any(part.incomplete for part in chosen.parts):
                offsets = sum(part.offsets for part in chosen.parts)
                notes.extend(compacted(self.store.topic, folded, offsets))

        return Rows(schema, parts(), notes)

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

    def _left_out(self, partitions: Iterable[int]) -> dict[int, OffsetRange]:
        """Offsets of `LoggedStore.left_out`, by partition; none for an application that last ran
        when there was no such topic."""
        topic = self.store.left_out
        if topic is None or topic not in (found := self.admin.describe_topics([topic])):
            return {}
        logs = [TopicPartition(topic, n) for n in partitions if n < found[topic].partitions]
        starts = self.admin.list_offsets(logs, "earliest", "read_uncommitted")
        ends = self.admin.list_offsets(logs, "latest", "read_committed")
        return {tp.partition: OffsetRange(starts[tp], ends[tp]) for tp in logs}

    def _reaches(self, point: Point, spans: Mapping[int, Span]) -> dict[int, OffsetRange]:
        times: dict[int, int] = {}
        if point.time_ms is not None:
            logs = [TopicPartition(self.store.topic, one) for one in spans]
            found = self.admin.list_offsets(logs, point.time_ms, "read_committed")
            times = {tp.partition: offset for tp, offset in found.items()}
        reaches = point.reaches(self.store.topic, spans, times)
        if point.time_ms is not None and before_all(reaches, spans):
            raise StatePointError(
                f"{point} is before all that {self.store.topic} has: its first record is of "
                f"{self._first_time(spans)}. Times are those of the records, not of a clock."
            )
        return reaches

    def _first_time(self, spans: Mapping[int, Span]) -> str:
        spec = self.store.columns.spec
        found = [
            PartitionLog(self.reader, TopicPartition(self.store.topic, one), spec).first_time(
                OffsetRange(span.start, span.stable)
            )
            for one, span in spans.items()
            if span.stable > span.start
        ]
        known = [time for time in found if time is not None]
        return instant(min(known)) if known else "later"


def _deleted(
    store: LoggedStore, spans: Mapping[int, Span], reaches: Mapping[int, OffsetRange]
) -> list[str]:
    cut = [f"{one} (from {spans[one].start})" for one in reaches if spans[one].start > 0]
    if not cut:
        return []
    return [
        f"The beginning of {store.topic} was deleted in partitions {', '.join(cut)}: an entry that "
        f"was last written there is not shown."
    ]


REACH_S = 20.0
"""As long as the commands wait."""


@contextmanager
def reading(
    store: LoggedStore, config: StreamsConfig, folder: Path | None
) -> Iterator[StateReader]:
    """A reader of the whole store, with its own connections. TaskTimeoutError if no broker answers
    within ``REACH_S`` seconds."""
    with closing(ClusterAdmin(config.admin())) as admin:
        admin.wait_until_reachable(REACH_S)
        with LogReader(config.consumer(), latest=True) as reader:
            yield StateReader(store=store, admin=admin, reader=reader, folder=folder)
