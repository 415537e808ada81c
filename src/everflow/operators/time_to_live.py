"""Time to live: entries of a table that stream time has left behind are taken out (note 030).

An entry lives until stream time has reached its own time and ``ttl_ms``. The store ``<store>-ttl``,
whose keys begin with a time not later than the entry's end, says which to check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from everflow.operators.aggregates.aggregate import AggregateSpec, PythonAggregateSpec
from everflow.operators.due_index import Changes, DueIndex, DueQueue
from everflow.operators.grouping import AroundTable, Flags, stream_times
from everflow.operators.table import TableSpec
from everflow.operators.user_code import written_bytes
from everflow.records import LATE, EdgeBatch, Int64, StoreChanges, TasksResult, valid
from everflow.state.changelog import TIMESTAMP_BYTES, pack_value
from everflow.state.store import OverlayView
from everflow.topology.batches import appended, concat
from everflow.topology.graph import Inputs

ENDS = DueIndex(signed=True)
"""The index: the times at which entries are checked, and their keys."""
_Inner = AggregateSpec | PythonAggregateSpec | TableSpec


@dataclass(frozen=True, kw_only=True)
class TimeToLiveSpec(AroundTable):
    """`layout`, whose entries end ``ttl_ms`` behind their time: the next record of such a key finds
    none, and the table gets a tombstone, with the time of the end. A record that is itself that old
    begins no entry (of a table: changes none) and is dropped as ``late``."""

    layout: _Inner
    ttl_ms: int
    emit_every_update: bool = False

    @property
    def index(self) -> str:
        return f"{self.store}-ttl"

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`. Tasks in which nothing ends are run together."""
        (batch,) = inputs.sides
        inner = replace(self.layout, emit_every_update=self.emit_every_update)
        counted = valid(batch.key)
        if not isinstance(inner, TableSpec):
            counted = counted & valid(batch.value)
        parts: list[TasksResult] = []
        quiet: list[int] = []
        for partition in sorted(inputs.stores):
            rows = np.flatnonzero(batch.partition == partition)
            task = _Task(self, inner, batch, rows, counted[rows], partition, inputs)
            if task.is_quiet():
                quiet.append(partition)
            else:
                parts.append(task.run())
        if quiet or not parts:
            parts.append(self._together(inner, batch, quiet, inputs))
        return _one(parts)

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult:
        counted, parts = np.ones(1, bool), list[TasksResult]()
        for row, partition in enumerate(ticks.partition.tolist()):
            rows = np.array([row], np.int64)
            task = _Task(self, self.layout, ticks, rows, counted, partition, inputs)
            parts.append(task.passed())
        return _one(parts)

    def _together(
        self, inner: _Inner, batch: EdgeBatch, partitions: list[int], inputs: Inputs
    ) -> TasksResult:
        """The records of tasks in which nothing ends, and the index of the entries that begin."""
        mine = np.isin(batch.partition, partitions)
        some = batch if mine.all() else batch.take(np.flatnonzero(mine))
        views = {one: inputs.stores[one] for one in partitions}
        before = {one: inputs.stream_times[one] for one in partitions}
        done = inner.run(Inputs((some,), views, before))
        for partition, listed in done.changes.items():
            keys = [key for changes in listed for key in changes.keys]
            there = views[partition][self.store].get_many(keys)
            times = np.concatenate([changes.timestamps for changes in listed]).tolist()
            values = [value for changes in listed for value in changes.values]
            put = [
                ENDS.key(time + self.ttl_ms, key)
                for key, time, value, stored in zip(keys, times, values, there, strict=True)
                if value is not None and (stored is None or time < _time_of(stored))
            ]
            listed += _index_changes([], put).of(self.index)
        return done


@dataclass
class _Task:
    """One task's records, in parts: a part ends where an entry ends that has a record in it.
    ``times``: of the entries that are there; ``queue``: when to check them; ``top``: the store
    with what has changed; ``seen``: keys of the part."""

    spec: TimeToLiveSpec
    inner: _Inner
    batch: EdgeBatch
    rows: Int64
    counted: Flags
    partition: int
    inputs: Inputs
    times: dict[bytes, int] = field(default_factory=dict)
    written: dict[bytes, tuple[bytes | None, int]] = field(default_factory=dict)
    part: list[int] = field(default_factory=list)
    seen: set[bytes] = field(default_factory=set)
    outputs: list[EdgeBatch] = field(default_factory=list)
    ended: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.views = self.inputs.stores[self.partition]
        self.stream_time = self.inputs.stream_times[self.partition]
        self.top = OverlayView(self.views[self.spec.store])
        self.queue = DueQueue(index=ENDS, view=self.views[self.spec.index])

    def is_quiet(self) -> bool:
        times = self.batch.timestamp[self.rows][self.counted]
        if not len(times):
            return True
        last = max(self.stream_time, int(times.max()))
        if int(times.min()) + self.spec.ttl_ms <= last:
            return False
        return next(ENDS.stored(self.views[self.spec.index], last), None) is None

    def passed(self) -> TasksResult:
        """The entries that end with stream time alone, which its only row says."""
        row = int(self.rows[0])
        now = int(self.batch.timestamp[row])
        stored, due = self._load_due(now, set())
        self._end(row, now)
        return self._result(due, now, stored)

    def run(self) -> TasksResult:
        batch, rows, ttl_ms = self.batch, self.rows, self.spec.ttl_ms
        found = stream_times(
            batch.timestamp[rows][self.counted],
            batch.partition[rows][self.counted],
            {self.partition: self.stream_time},
        )
        running = np.full(len(rows), self.stream_time)
        running[self.counted] = found[0]
        after = found[1][self.partition]
        written = written_bytes(
            self.spec.key_serde, batch.key.take(rows), self.spec.store, batch, rows
        ).to_pylist()
        stored, due = self._load_due(after, {key for key in written if key is not None})
        columns = (
            rows.tolist(),
            self.counted.tolist(),
            written,
            batch.timestamp[rows].tolist(),
            running.tolist(),
            valid(batch.value.take(rows)).tolist(),
        )
        for row, counts, key, time, now, there in zip(*columns, strict=True):
            if counts:
                self._end(row, now)
                if not self._takes(key, time, now + 1 - ttl_ms, there):
                    self.dropped[LATE] = self.dropped.get(LATE, 0) + 1
                    continue
                self.seen.add(key)
            self.part.append(row)
        self._flush()
        return self._result(due, after, stored)

    def _load_due(self, now: int, keys: set[bytes]) -> tuple[set[bytes], list[bytes]]:
        """What is stored of these keys and of entries due until ``now``; the due index keys."""
        due = [key for key, _ in self.queue.load(now)]
        self._load(keys | set(map(ENDS.rest_of, due)))
        return set(self.times), due

    def _load(self, keys: set[bytes]) -> None:
        listed = sorted(keys)
        for key, entry in zip(listed, self.views[self.spec.store].get_many(listed), strict=True):
            if entry is not None:
                self.times[key] = _time_of(entry)

    def _end(self, row: int, now: int) -> None:
        while due := self.queue.pop(now):
            due_time, key = due
            if key in self.seen:
                self._flush()
            time = self.times.get(key)
            if time is None:
                continue
            end = time + self.spec.ttl_ms
            if end > due_time:  # it moved: also if that is over, others may end before
                self.queue.put(end, key)
                continue
            del self.times[key]
            self.top.put(key, None)
            self.written[key] = (None, end)
            self.ended.append((len(self.outputs), row, key, end))

    def _takes(self, key: bytes, time: int, oldest: int, there: bool) -> bool:
        """True if a record is taken; one before ``oldest`` begins no entry."""
        known = self.times.get(key)
        if isinstance(self.inner, TableSpec):
            if not there:
                self.times.pop(key, None)
                return True
            if time < oldest:
                return False
            self._begin(key, time, known is None or time < known)
            return True
        unsure = isinstance(self.inner, PythonAggregateSpec) and key in self.seen
        if unsure and (time < oldest or (known is not None and time < known)):
            self._flush()  # the function may have taken the entry out
            known = self.times.get(key)
        if known is None and time < oldest:
            return False
        self._begin(key, time if known is None else max(time, known), known is None)
        return True

    def _begin(self, key: bytes, time: int, scheduled: bool) -> None:
        self.times[key] = time
        if scheduled:
            self.queue.put(time + self.spec.ttl_ms, key)

    def _flush(self) -> None:
        if self.part:
            some = self.batch.take(np.array(self.part, np.int64))
            views = {self.partition: {self.spec.store: self.top}}
            done = self.inner.run(Inputs((some,), views, {self.partition: self.stream_time}))
            self.stream_time = done.stream_times[self.partition]
            self._remember(done.changes.get(self.partition, []))
            self.outputs.append(done.output)
            for reason, count in done.dropped.items():
                self.dropped[reason] = self.dropped.get(reason, 0) + count
        self.part, self.seen = [], set()

    def _remember(self, listed: Sequence[StoreChanges]) -> None:
        for changes in listed:
            for key, value, time in zip(
                changes.keys, changes.values, changes.timestamps.tolist(), strict=True
            ):
                self.written.pop(key, None)  # it is the last one written
                self.written[key] = (value, time)
                if value is None:
                    self.top.put(key, None)
                    self.times.pop(key, None)
                    continue
                self.top.put(key, pack_value(time, value))
                self._begin(key, time, self.times.get(key) != time)

    def _result(self, due: list[bytes], after: int, stored: set[bytes]) -> TasksResult:
        ended = {key for _, _, key, _ in self.ended}
        written = {
            key: one
            for key, one in self.written.items()
            if one[0] is not None or key in stored or key not in ended
        }
        changes = Changes()
        for key, (value, time) in written.items():
            changes.add(key, value, time)
        checks = sorted({ENDS.key(*one) for one in self.queue if one.rest in self.times})
        listed = changes.of(self.spec.store) + _index_changes(due, checks).of(self.spec.index)
        return TasksResult(
            self._output(stored), {self.partition: listed}, {self.partition: after}, self.dropped
        )

    def _output(self, stored: set[bytes]) -> EdgeBatch:
        """Results and tombstones in order; of each key the last, unless all are wanted."""
        rows = np.array([row for _, row, _, _ in self.ended], np.int64)
        ends = self.batch.take(rows)
        raw = pa.array([key for _, _, key, _ in self.ended], pa.binary())
        ends = ends.with_columns(
            self.spec.key_serde.decode_array(raw).cast(self.batch.key.type),
            pa.nulls(len(rows), self.spec.result),
        )
        ends.timestamp = np.array([end for *_, end in self.ended], np.int64)
        output = appended([ends, *self.outputs])
        parts = [np.array([part for part, *_ in self.ended], np.int64)]
        parts += [np.full(len(one), at) for at, one in enumerate(self.outputs)]
        is_result = np.arange(len(output)) >= len(rows)
        order = np.lexsort((is_result, output.seq, np.concatenate(parts)))
        output, is_result = output.take(order), is_result[order]
        if self.spec.emit_every_update or not len(output):
            return output
        keys = self.spec.key_serde.encode_array(output.key).to_pylist()
        last = {key: at for at, key in enumerate(keys)}
        kept = [at for key, at in last.items() if is_result[at] or key in stored]
        return output.take(np.array(sorted(kept), np.int64))


def _one(parts: Sequence[TasksResult]) -> TasksResult:
    if len(parts) == 1:
        return parts[0]
    changes: dict[int, list[StoreChanges]] = {}
    after: dict[int, int] = {}
    dropped: dict[str, int] = {}
    for one in parts:
        changes |= one.changes
        after |= one.stream_times
        for reason, count in one.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    return TasksResult(concat([one.output for one in parts]), changes, after, dropped)


def _time_of(entry: bytes) -> int:
    return int.from_bytes(entry[:TIMESTAMP_BYTES], "big", signed=True)


def _index_changes(gone: Sequence[bytes], new: Sequence[bytes]) -> Changes:
    changes, put = Changes(), set(new)
    for key in gone:
        if key not in put:
            changes.add(key, None, 0)
    for key in new:
        changes.add(key, b"", 0)
    return changes
