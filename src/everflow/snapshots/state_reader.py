"""What a store was at a point of its changelog, and what is different at another.

No instance needs to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from everflow.clock import instant
from everflow.config import StreamsConfig
from everflow.errors import NoChangelogError, StatePointError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import LogReader
from everflow.records import OffsetRange, TopicPartition
from everflow.snapshots.logged_stores import LoggedStore
from everflow.snapshots.points import At, Point, Span, before_all
from everflow.snapshots.snapshot import Rows, room
from everflow.snapshots.state_parts import LogPart, LogParts, PartitionLog, PartReader, compacted


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
        """Keys whose values are not the same at two points, from the first to the second: of a
        versioned store their latest ones. Errors as of `rows`."""
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

        def batches() -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
            folded = 0
            with room(self.folder) as folder:
                reader = PartReader(self.store, self.reader, folder)
                for part in chosen.parts:
                    with reader.opened(part) as (found, records):
                        yield part.partition, found
                    folded += records
            if any(part.incomplete for part in chosen.parts):
                offsets = sum(part.offsets for part in chosen.parts)
                notes.extend(compacted(self.store.topic, folded, offsets))

        return Rows(schema, batches(), notes)

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
        found = [
            self._log(one).first_time(OffsetRange(span.start, span.stable))
            for one, span in spans.items()
            if span.stable > span.start
        ]
        known = [time for time in found if time is not None]
        return instant(min(known)) if known else "later"

    def _log(self, partition: int) -> PartitionLog:
        tp = TopicPartition(self.store.topic, partition)
        return PartitionLog(self.reader, tp, self.store.columns.spec)


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


@contextmanager
def reading_parts(
    store: LoggedStore, config: StreamsConfig, folder: Path | None
) -> Iterator[PartReader]:
    """A reader of parts that another process has chosen."""
    with room(folder) as home, LogReader(config.consumer(), latest=True) as reader:
        yield PartReader(store, reader, home)
