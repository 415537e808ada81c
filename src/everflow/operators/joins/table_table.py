"""Two tables joined by their keys: each change of one with what the other holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.joined_table import NEVER, Held, JoinedTable
from everflow.operators.joins.joined_values import JoinKind, Stores, joined, task_codes
from everflow.records import EdgeBatch, TasksResult
from everflow.topology.graph import Storeless
from everflow.topology.hops import concat


@dataclass(frozen=True, kw_only=True)
class TableTableJoin(Storeless):
    """Inner, left or outer join of two tables by primary key (KTable-KTable).

    Each change gives a result, or a deletion where there is none any more. It gives nothing where
    there cannot have been one: while the other side has no entry, if its own side is not kept
    without a match; or for the deletion of what was not there on either side. A result's time is
    the later of both sides'. One result per key and batch, the last, or all of them with
    ``emit_every_update``.
    """

    left: JoinedTable
    right: JoinedTable
    kind: JoinKind
    left_known: bool = True
    right_known: bool = True
    left_first: bool = True
    """Of an input record that changes both tables: whether the left one has it when the right one's
    change comes, and the other way round; and whose change comes first."""
    emit_every_update: bool = False
    one_result: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        """See `JoinOperator`: tables have none."""
        return False

    def join_tasks(
        self, left: EdgeBatch, right: EdgeBatch, stores: Stores, stream_times: Mapping[int, int]
    ) -> TasksResult:
        """See `JoinOperator`."""
        on_right = self.right.when(left, right, stores, first=self.right_known)
        on_left = self.left.when(right, left, stores, first=self.left_known)
        results = [
            _results(
                _Changes(left, on_right, self.kind.keeps_left, self.kind.keeps_right),
                joined(left.value, on_right.values),
                None if not self.kind.keeps_left else self.left.before(left, stores),
            ),
            _results(
                _Changes(right, on_left, self.kind.keeps_right, self.kind.keeps_left),
                joined(on_left.values, right.value),
                None if not self.kind.keeps_right else self.right.before(right, stores),
            ),
        ]
        return TasksResult(self._in_order(*results), {}, {}, {})

    def _in_order(self, left: EdgeBatch, right: EdgeBatch) -> EdgeBatch:
        both = concat([left, right] if self.left_first else [right, left])
        return both if self.emit_every_update else _last_of_each(both, self.left)


@dataclass(frozen=True)
class TableRows(Storeless):
    """The results of one table's changes in a join with another: what that one holds, row by row;
    where the ``kind`` keeps this one, what it held itself; and last the changes. ``of_left``:
    whether it is the left table."""

    kind: JoinKind
    of_left: bool
    one_result: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def put_together(self, sides: Sequence[EdgeBatch]) -> TasksResult:
        """See `AlignedOperator`."""
        other, *was, own = sides
        keeps = self.kind.keeps_left, self.kind.keeps_right
        changes = _Changes(own, _held(other), *(keeps if self.of_left else keeps[::-1]))
        left, right = (own, other) if self.of_left else (other, own)
        before = _held(was[0]) if was else None
        return TasksResult(_results(changes, joined(left.value, right.value), before), {}, {}, {})


@dataclass(frozen=True, kw_only=True)
class TableTableRows(Storeless):
    """As `TableTableJoin`, of tables of which one has no store; the sides are the results of either
    table's changes (`TableRows`). ``keys`` writes the keys."""

    keys: JoinedTable
    kind: JoinKind
    left_first: bool = True
    emit_every_update: bool = False
    one_result: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        """See `JoinOperator`: tables have none."""
        return False

    def join_tasks(
        self, left: EdgeBatch, right: EdgeBatch, stores: Stores, stream_times: Mapping[int, int]
    ) -> TasksResult:
        """See `JoinOperator`."""
        both = concat([left, right] if self.left_first else [right, left])
        shown = both if self.emit_every_update else _last_of_each(both, self.keys)
        return TasksResult(shown, {}, {}, {})


@dataclass(frozen=True)
class JoinedRows(Storeless):
    """What a join of two tables holds for each record that asks: the sides are what either table
    holds for it."""

    kind: JoinKind
    one_result: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def put_together(self, sides: Sequence[EdgeBatch]) -> TasksResult:
        """See `AlignedOperator`."""
        left, right = sides
        own, other = valid(left.value), valid(right.value)
        shown = (own | self.kind.keeps_right) & (other | self.kind.keeps_left) & (own | other)
        rows = np.arange(len(left), dtype=np.int64)
        values = joined(left.value, right.value).take(pa.array(rows, mask=~shown))
        times = np.maximum(
            np.where(own, left.timestamp, NEVER), np.where(other, right.timestamp, NEVER)
        )
        times = np.where(shown, times, left.timestamp)
        return TasksResult(replace(left.with_columns(value=values), timestamp=times), {}, {}, {})


def _held(rows: EdgeBatch) -> Held:
    return Held(rows.value, np.where(valid(rows.value), rows.timestamp, NEVER))


def _last_of_each(both: EdgeBatch, table: JoinedTable) -> EdgeBatch:
    """The last result of each key."""
    if not len(both):
        return both
    codes = task_codes(table.keys_of(both), both.partition)
    last = np.zeros(int(codes.max()) + 1, np.int64)
    last[codes] = np.arange(len(codes))  # the last assignment wins
    return both.take(np.sort(last))


@dataclass(frozen=True)
class _Changes:
    """Changes of one side, what the other held at each, and whether either is kept without a
    match."""

    own: EdgeBatch
    other: Held
    keeps_own: bool
    keeps_other: bool


def _results(changes: _Changes, values: pa.Array, before: Held | None) -> EdgeBatch:
    """The results of one side's changes; ``before``: what its own table held, where that
    counts."""
    own, other = valid(changes.own.value), valid(changes.other.values)
    given = other if before is None else other | own | valid(before.values)
    shown = (own | changes.keeps_other) & (other | changes.keeps_own) & (own | other)
    rows = np.flatnonzero(given)
    # A row that is not shown is a deletion.
    index = pa.array(rows, mask=~shown[rows])
    found = changes.own.take(rows).with_columns(value=values.take(index))
    return replace(found, timestamp=np.maximum(found.timestamp, changes.other.times[rows]))
