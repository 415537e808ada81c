"""`ReadSpec` turns records that name splits into the splits' rows, and `Planner` makes those
records (note 073).

How far a split is read stands beside the committed offset of its task, as a mark: the offset of the
split's record, and the number of its first row that is not committed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.processors.processor import Processor, Record
from everflow.operators.user_code import UserFunctionError, failure_at, require_users
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.sources.pieces import PIECE_BYTES, PIECE_ROWS, OpenSplits, Place
from everflow.sources.splits import Source, failed, outage
from everflow.topology.graph import EdgeType, Inputs, Operator

SPLIT = pa.struct([("words", pa.string()), ("data", pa.binary())])
"""The value of a split's record; its key is the split's number."""
ROW = "row"
_ROWS = 1 << 32
"""More than a split has. The mark of a later place is the larger number."""
_COUNT, _PLAN = "count", "plan"


def spread(topic: str, key: int, value: object, partitions: int) -> int:
    """The partition of a split's record: tasks get splits in turns."""
    return key % partitions


class _Kept(NamedTuple):
    """A `Kept` in a store of the planner's."""

    store: Any

    def get(self, key: str) -> str | None:
        found: str | None = self.store.get(f"{_PLAN} {key}")
        return found

    def put(self, key: str, value: str) -> None:
        self.store.put(f"{_PLAN} {key}", value)


@dataclass
class Planner(Processor):
    """Writes a record for each split, called by the wall clock. ``store``: the name of its
    store."""

    name: str
    store: str
    source: Source

    def process(self, record: Record) -> None:
        """Nobody writes its topic."""

    def plan(self, now_ms: int) -> None:
        """The splits that are new. Raises RetriableError, SplitError."""
        store = self.context.store(self.store)
        number = int(store.get(_COUNT) or 0)
        what = f"source {self.name!r} cannot be planned"
        try:
            for split in self.source.plan(_Kept(store)):
                value = {"words": split.words, "data": split.data}
                self.context.forward(Record(number, value, now_ms))
                number += 1
        except Exception as error:
            raise outage(what, error) or failed(what, error) from error
        store.put(_COUNT, str(number))


@dataclass(frozen=True, kw_only=True)
class ReadSpec(Operator):
    """``key``, ``timestamp``: columns of the rows that become the record's key (none: null) and
    time (None: that of the split's record)."""

    in_pieces = True

    name: str
    source: Source
    out: EdgeType
    key: tuple[str, ...] = ()
    timestamp: str | None = None
    splits: OpenSplits = field(default_factory=OpenSplits, compare=False, repr=False)

    @property
    def marks(self) -> tuple[str, ...]:
        return (ROW,)

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        partitions = np.unique(batch.partition).tolist()
        reading = _Reading(self, batch, len(partitions), self.splits.begin())
        for partition in partitions:
            mark = inputs.clocks.get(partition, {}).get(ROW, -1)
            reading.read(partition, np.flatnonzero(batch.partition == partition), mark)
        output = reading.output()
        latest: dict[int, int] = {
            partition: max(
                inputs.stream_times[partition],
                int(output.timestamp[output.partition == partition].max(initial=-1)),
            )
            for partition in partitions
        }
        clocks = {partition: {ROW: mark} for partition, mark in reading.marks.items()}
        done = TasksResult(output, {}, latest, {}, clocks)
        done.ends = reading.ends
        return done


class _Reading:
    """What the tasks of a batch read."""

    def __init__(self, spec: ReadSpec, batch: EdgeBatch, tasks: int, until_s: float) -> None:
        self._spec, self._batch, self._until_s = spec, batch, until_s
        self._most, self._most_bytes = max(1, PIECE_ROWS // tasks), max(1, PIECE_BYTES // tasks)
        self._words = pc.struct_field(batch.value, [0])
        self._data = pc.struct_field(batch.value, [1])
        self._found: list[tuple[int, pa.RecordBatch]] = []
        """Rows, each with the row of the record that names their split."""
        self.ends: dict[int, int] = {}
        self.marks: dict[int, int] = {}

    def read(self, partition: int, rows: Int64, mark: int) -> None:
        """The splits of a task, from its ``mark`` on, as far as the batch goes."""
        at, first = divmod(mark, _ROWS) if mark >= 0 else (-1, 0)
        left, left_bytes = self._most, self._most_bytes
        for row in rows.tolist():
            offset = int(self._batch.offset[row])
            start = first if offset == at else 0
            if left <= 0 or left_bytes <= 0:
                self.ends[partition] = offset
                break
            place = Place(partition, offset, start)
            data, spec = self._data[row].as_py(), self._spec
            try:
                piece = spec.splits.take(spec.source, place, data, left, left_bytes, self._until_s)
            except BaseException as error:
                require_users(error)
                failure = self._failure(row, error)
                raise failure from failure.__cause__
            self._found += [(row, one) for one in piece.rows]
            left -= piece.length
            left_bytes -= sum(one.nbytes for one in piece.rows)
            if not piece.over:
                self.ends[partition] = offset
                mark = offset * _ROWS + start + piece.length
                break
        self.marks[partition] = mark

    def _failure(self, row: int, error: BaseException) -> UserFunctionError:
        what = f"split {self._words[row].as_py()} of source {self._spec.name!r}"
        cause = outage(what, error) or failed(what, error)
        cause.__cause__ = error
        failure = failure_at(str(cause), self._batch, row)
        failure.__cause__ = cause
        return failure

    def output(self) -> EdgeBatch:
        """All rows, in the order of their splits."""
        spec, none = self._spec, np.empty(0, np.int64)
        self._found.sort(key=lambda one: int(self._batch.seq[one[0]]))
        columns = spec.source.columns
        table = pa.Table.from_batches([one for _, one in self._found], columns)
        rows = np.repeat(
            np.array([row for row, _ in self._found], np.int64),
            [len(one) for _, one in self._found],
        )
        value = _struct(table, columns.names, spec.out.value)
        if not spec.key:
            key = pa.nulls(len(table), spec.out.key)
        elif pa.types.is_struct(spec.out.key) and len(spec.key) > 1:
            key = _struct(table, spec.key, spec.out.key)
        else:
            key = _whole(table, spec.key[0])
        made = self._batch.take(rows if len(rows) else none).with_columns(key, value)
        if spec.timestamp is not None and len(rows):
            times = _times(_whole(table, spec.timestamp))
            made.timestamp = np.where(times < 0, made.timestamp, times)
        return made


def _whole(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def _struct(table: pa.Table, names: Any, kind: pa.DataType) -> pa.Array:
    return pa.StructArray.from_arrays([_whole(table, one) for one in names], fields=list(kind))


def _times(column: pa.Array) -> Int64:
    """Of rows, in ms; -1 where there is none."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz), safe=False).cast(pa.int64())
    found: Int64 = pc.fill_null(column.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return found
