"""Copies changelogs in transactions, reads the copies back, and compares both (note 067)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from everflow.errors import EverflowError, MigrationError, RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.record_columns import LogChunk
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import GroupMetadata
from everflow.migration.entries import (
    Content,
    Convert,
    UnconvertedError,
    as_they_are,
    by_field,
    by_function,
    partitions_of_keys,
)
from everflow.migration.plan import Estimate, MigrationPlan, StoreMove, TopicMove, Values
from everflow.migration.programs import Form, Program
from everflow.protocol.messages import COPIED, Mark, format_metadata
from everflow.records import CommittedOffset, Int64, TopicPartition
from everflow.worker.crash_points import reached

CHUNK_BYTES = 4 << 20
"""Of keys and values in one transaction."""
REQUEST_S = 30.0
SAMPLE_S = 2.0
SENT, COPIED_CHUNK = "migration-sent", "migration-copied"
"""Crash points."""


@dataclass(frozen=True)
class Records:
    """Records of one old partition as they are written. ``partitions``: of each, -1 leaves it
    out."""

    keys: Sequence[bytes]
    values: Sequence[bytes | None]
    times: Int64
    partitions: Int64


@dataclass(kw_only=True)
class _Log:
    """What is copied into one topic: a store's changelog (``move``), or a log of what was left out
    of a reused topic."""

    source: str
    target: str
    before: int
    after: int
    convert: Convert = as_they_are
    move: StoreMove | None = None
    old: Content | None = None
    new: Content | None = None

    @property
    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.source, number) for number in range(self.before)]

    @property
    def targets(self) -> list[TopicPartition]:
        return [TopicPartition(self.target, number) for number in range(self.after)]

    def records(self, tp: TopicPartition, chunk: LogChunk) -> Records:
        """MigrationError for a value that cannot be converted."""
        keys = [key or b"" for key in chunk.keys]
        try:
            values = self.convert(chunk.values)
        except UnconvertedError as error:
            raise self._unconverted(tp, chunk, error) from error
        if self.before == self.after:
            partitions = np.full(len(keys), tp.partition, np.int64)
        else:
            form = Form.KEY if self.move is None else self.move.form
            window_bytes = 0 if self.move is None else self.move.window_bytes
            partitions = partitions_of_keys(keys, form, window_bytes, self.after)
        return Records(keys, values, chunk.timestamps, partitions)

    def _unconverted(
        self, tp: TopicPartition, chunk: LogChunk, error: UnconvertedError
    ) -> MigrationError:
        store = "" if self.move is None else self.move.store
        key, offset = chunk.keys[error.index] or b"", int(chunk.offsets[error.index])
        return MigrationError(
            f"The value of an entry of store {store} cannot be converted: {error}. It is of the "
            f"record {tp}@{offset} of the old changelog, under the key {key!r}. The new version "
            f"does not switch, and the old version goes on. Mend the function, give the migration "
            f"up (--back), and begin it anew.",
            code="EF-MIGRATION-VALUE",
            store=store,
            place=(tp.topic, tp.partition, offset),
            key=key,
        )


def logs_of(
    plan: MigrationPlan,
    old: Program,
    new: Program,
    functions: Mapping[str, Callable[[Any], Any]],
) -> list[_Log]:
    found = []
    for move in plan.moves:
        was, now = old.stores[move.was], new.stores[move.store]
        convert: Convert = as_they_are
        if move.values is Values.FUNCTION:
            convert = by_function(was, now, functions[move.store])
        elif move.values is Values.FIELDS:
            convert = by_field(was, now)
        found.append(
            _Log(
                source=move.source,
                target=move.target,
                before=move.before,
                after=move.after,
                convert=convert,
                move=move,
                old=Content(now),
                new=Content(now),
            )
        )
    found += [
        _Log(source=one.source, target=one.target, before=one.before, after=one.after)
        for one in plan.left_out
    ]
    return found


@dataclass(kw_only=True)
class Copying:
    """The copy of all changelogs. ``positions``: next offset of each old partition, as committed;
    a log that was deleted up to somewhere is copied from there. One thread."""

    logs: Sequence[_Log]
    old: str
    new: str
    admin: ClusterAdmin
    writer: RecordWriter
    reader: LogReader
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    copied: int = 0
    compared: bool = True
    """Whether both sides are read back and compared."""
    _seen: dict[TopicPartition, int] = field(default_factory=dict)
    """Next offset to read of each new partition, and of old ones copied by a process before."""

    def begin(self, committed: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Where a migrator before has come to; what it copied is read again for the comparison."""
        partitions = [tp for log in self.logs for tp in log.partitions]
        starts = self.admin.list_offsets(partitions, "earliest", "read_uncommitted", REQUEST_S)
        targets = [tp for log in self.logs for tp in log.targets]
        begins = self.admin.list_offsets(targets, "earliest", "read_uncommitted", REQUEST_S)
        self._seen = dict(begins)
        for log in self.logs:
            for tp in log.partitions:
                known = committed[tp].offset if tp in committed else starts[tp]
                self.positions[tp] = max(known, starts[tp])
                if log.old is not None and self.compared:
                    for chunk in self._read(tp, starts[tp], self.positions[tp]):
                        _add(log.old, log.records(tp, chunk))

    def ends(self) -> dict[TopicPartition, int]:
        """Last stable offsets of the old changelogs."""
        partitions = [tp for log in self.logs for tp in log.partitions]
        return self.admin.list_offsets(partitions, "latest", "read_committed", REQUEST_S)

    def round(self, ends: Mapping[TopicPartition, int]) -> int:
        """Copy up to ``ends``; the number of records. What there is of many partitions goes into
        one transaction: one for each would take a switch 10 ms for each."""
        before = self.copied
        found: list[tuple[_Log, TopicPartition, LogChunk]] = []
        for log in self.logs:
            for tp in log.partitions:
                for chunk in self._read(tp, self.positions[tp], ends[tp]):
                    found.append((log, tp, chunk))
                    if sum(one.bytes for _, _, one in found) >= CHUNK_BYTES:
                        self._copy(found)
                        found = []
        if found:
            self._copy(found)
        return self.copied - before

    def _read(self, tp: TopicPartition, start: int, end: int) -> Iterable[LogChunk]:
        return self.reader.read(tp, start, end, every=True, chunk_bytes=CHUNK_BYTES)

    def _copy(self, found: Sequence[tuple[_Log, TopicPartition, LogChunk]]) -> None:
        made = [(log, log.records(tp, chunk)) for log, tp, chunk in found]
        positions = {tp: chunk.next_position for _, tp, chunk in found}
        mark = format_metadata(Mark(COPIED, self.old).batch_id, {})
        self.writer.begin()
        try:
            for log, records in made:
                write(self.writer, log.target, records)
            self.writer.send()
            self.writer.send_offsets(
                [(tp.topic, tp.partition, at, mark) for tp, at in positions.items()],
                without_member(self.new),
                REQUEST_S,
            )
            self.writer.flush(REQUEST_S)
            reached(SENT)
            self.writer.commit(REQUEST_S)
        except EverflowError:
            self.writer.abort()
            raise
        reached(COPIED_CHUNK)
        self.positions.update(positions)
        for log, records in made:
            self.copied += len(records.keys)
            if log.old is not None and self.compared:
                _add(log.old, records)

    def read_back(self) -> None:
        """Take in what has come into the new changelogs."""
        targets = [tp for log in self.logs if log.new is not None for tp in log.targets]
        ends = self.admin.list_offsets(targets, "latest", "read_committed", REQUEST_S)
        for log in self.logs:
            for tp in log.targets if log.new is not None else ():
                for chunk in self._read(tp, self._seen[tp], ends[tp]):
                    assert log.new is not None
                    keys = [key or b"" for key in chunk.keys]
                    log.new.add(keys, chunk.values, chunk.timestamps)
                self._seen[tp] = ends[tp]

    def gather(self) -> None:
        """What takes long of `require_equal`, beforehand."""
        for log in self.logs:
            for content in (log.old, log.new):
                if content is not None:
                    content.total()

    def require_equal(self) -> dict[str, int]:
        """The number of entries by store, once no transaction is open on the new changelogs
        (RetriableError). MigrationError where a copy is not what was copied."""
        targets = [tp for log in self.logs for tp in log.targets]
        ends = self.admin.end_offsets(targets, "read_uncommitted", REQUEST_S)
        stable = self.admin.end_offsets(targets, "read_committed", REQUEST_S)
        if late := [tp for tp in targets if stable[tp] < ends[tp]]:
            # The markers of a transaction land some time after its commit (KAFKA-10167).
            raise RetriableError(f"a transaction is still open on {late[0]}", late)
        self.read_back()
        counts = {}
        for log in self.logs:
            if log.old is None or log.new is None or log.move is None:
                continue
            kept_ms = log.move.kept_ms
            wanted, found = log.old.total(kept_ms), log.new.total(kept_ms)
            if wanted != found:
                raise MigrationError(
                    f"Store {log.move.store} is not what it was: {wanted.count:,} entries with the "
                    f"checksum {wanted.checksum:x} were copied, and {log.target} has "
                    f"{found.count:,} with {found.checksum:x}. Did somebody else write to it? The "
                    f"new version does not switch, and the old version goes on. Give the migration "
                    f"up (--back), and begin it anew.",
                    code="EF-MIGRATION-DIFFERS",
                    store=log.move.store,
                )
            counts[log.move.store] = found.count
        return counts


def write(writer: RecordWriter, topic: str, records: Records, headers: Any = None) -> None:
    kept = np.flatnonzero(records.partitions >= 0)
    if len(kept) < len(records.keys):
        rows = kept.tolist()
        records = Records(
            [records.keys[at] for at in rows],
            [records.values[at] for at in rows],
            records.times[kept],
            records.partitions[kept],
        )
    if len(records.keys):
        writer.write(
            topic, records.keys, records.values, records.times, records.partitions, headers
        )


def without_member(group: str) -> bytes:
    """Brokers take offsets in a transaction without a member, whoever is in the group."""
    return GroupMetadata(-1, group, "", None).encode()


def _add(content: Content, records: Records) -> None:
    kept = records.partitions >= 0
    if kept.all():
        content.add(records.keys, records.values, records.times)
        return
    rows = np.flatnonzero(kept).tolist()
    keys = [records.keys[at] for at in rows]
    content.add(keys, [records.values[at] for at in rows], records.times[kept])


def carry(
    writer: RecordWriter,
    reader: LogReader,
    move: TopicMove,
    spans: Mapping[TopicPartition, tuple[int, int]],
) -> int:
    """Write what waits in a repartition topic into the open transaction; how many records."""
    count = 0
    for number in range(move.before):
        tp = TopicPartition(move.source, number)
        start, end = spans[tp]
        for chunk in reader.read(tp, start, end, every=True):
            rows = list(chunk.rows(headers=True))
            keys = [key for _, _, key, _, _ in rows]
            partitions = np.full(len(rows), number, np.int64)
            if move.before != move.after:
                partitions = partitions_of_keys(
                    [key or b"" for key in keys], Form.KEY, 0, move.after
                )
            if rows:
                writer.write(
                    move.target,
                    keys,
                    [value for _, _, _, value, _ in rows],
                    [at for _, at, _, _, _ in rows],
                    partitions,
                    [headers for _, _, _, _, headers in rows],
                )
            count += len(rows)
    return count


def estimate(logs: Sequence[_Log], admin: ClusterAdmin, reader: LogReader) -> Estimate:
    """What is to be copied, by the logs' offsets, and by the size and speed of what is read of the
    longest one in `SAMPLE_S`. Writing is taken to last as long as reading."""
    partitions = [tp for log in logs for tp in log.partitions]
    starts = admin.list_offsets(partitions, "earliest", "read_uncommitted", REQUEST_S)
    ends = admin.list_offsets(partitions, "latest", "read_committed", REQUEST_S)
    lengths = {tp: max(0, ends[tp] - starts[tp]) for tp in partitions}
    count = sum(lengths.values())
    longest = max(partitions, key=lambda tp: lengths[tp], default=None)
    if longest is None or not count:
        return Estimate(0, 0, 0.0)
    (log,) = [one for one in logs if one.source == longest.topic]
    began, records, size, taken = time.monotonic(), 0, 0, 0
    for chunk in reader.read(longest, starts[longest], ends[longest], every=True):
        log.records(longest, chunk)
        records, size = records + len(chunk), size + chunk.bytes
        taken = chunk.next_position - starts[longest]
        if time.monotonic() - began > SAMPLE_S:
            break
    spent_s = time.monotonic() - began
    if not records:
        return Estimate(count, 0, 0.0)
    share = records / taken
    most = round(count * share)
    return Estimate(most, round(most * size / records), 2 * most * spent_s / records)
