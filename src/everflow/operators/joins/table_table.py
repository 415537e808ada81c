"""Two tables joined by their keys: each change of one with what the other holds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.joined_table import NEVER, Held, JoinedTable
from everflow.operators.joins.joined_values import (
    JoinKind,
    first_and_last,
    joined,
    task_codes,
)
from everflow.records import EdgeBatch, TasksResult
from everflow.topology.batches import concat
from everflow.topology.graph import Inputs, Operator


@dataclass(frozen=True, kw_only=True)
class TableTableJoin(Operator):
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
    was: bool = False
    """Whether the values are not the results, but what each was before it."""
    emit_every_update: bool = False
    one_result: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        left, right = inputs.sides
        keeps = self.kind.keeps_left, self.kind.keeps_right
        on_right = self.right.when(left, right, inputs.stores, first=self.right_known)
        on_left = self.left.when(right, left, inputs.stores, first=self.left_known)
        befores = [
            table.before(side, inputs.stores) if keep or self.was else None
            for table, side, keep in zip((self.left, self.right), (left, right), keeps, strict=True)
        ]
        results = [
            _results(_Changes(left, on_right, *keeps, of_left=True), befores[0], self.was),
            _results(_Changes(right, on_left, *keeps[::-1], of_left=False), befores[1], self.was),
        ]
        both = concat(results if self.left_first else results[::-1])
        return TasksResult(_told(both, self.left, self.emit_every_update, self.was), {}, {}, {})


@dataclass(frozen=True)
class TableRows(Operator):
    """The results of one table's changes in a join with another: what that one holds, row by row;
    where the ``kind`` keeps this one, or for what ``was``, what it held itself; and last the
    changes. ``of_left``: whether it is the left table."""

    kind: JoinKind
    of_left: bool
    was: bool = False
    """See `TableTableJoin`."""
    one_result: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        other, *was, own = inputs.sides
        keeps = self.kind.keeps_left, self.kind.keeps_right
        keeps = keeps if self.of_left else keeps[::-1]
        changes = _Changes(own, _held(other), *keeps, of_left=self.of_left)
        before = _held(was[0]) if was else None
        return TasksResult(_results(changes, before, self.was), {}, {}, {})


@dataclass(frozen=True, kw_only=True)
class TableTableRows(Operator):
    """As `TableTableJoin`, of tables of which one has no store; the sides are the results of either
    table's changes (`TableRows`). ``keys`` writes the keys."""

    keys: JoinedTable
    kind: JoinKind
    left_first: bool = True
    was: bool = False
    """See `TableTableJoin`."""
    emit_every_update: bool = False
    one_result: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        left, right = inputs.sides
        both = concat([left, right] if self.left_first else [right, left])
        return TasksResult(_told(both, self.keys, self.emit_every_update, self.was), {}, {}, {})


@dataclass(frozen=True)
class JoinedRows(Operator):
    """What a join of two tables holds for each record that asks: the sides are what either table
    holds for it."""

    kind: JoinKind
    one_result: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        left, right = inputs.sides
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


def _told(both: EdgeBatch, table: JoinedTable, every: bool, was: bool) -> EdgeBatch:
    """Every result, or the last of each key; of what ``was`` before it, the first."""
    if every or not len(both):
        return both
    first, last = first_and_last(task_codes(table.keys_of(both), both.partition))
    shown = both.take(last)
    return shown.with_columns(value=both.value.take(pa.array(first))) if was else shown


@dataclass(frozen=True)
class _Changes:
    """Changes of one side, what the other held at each, and whether either is kept without a
    match."""

    own: EdgeBatch
    other: Held
    keeps_own: bool
    keeps_other: bool
    of_left: bool

    def joined(self, own: pa.Array) -> pa.Array:
        """Values of the side with what the other held."""
        left, right = (own, self.other.values) if self.of_left else (self.other.values, own)
        return joined(left, right)


def _results(changes: _Changes, before: Held | None, was: bool) -> EdgeBatch:
    """The results of one side's changes, or what each ``was``; ``before``: what its own table held,
    where that counts."""
    own, other = valid(changes.own.value), valid(changes.other.values)
    given = other
    if before is not None and changes.keeps_own:
        given = other | own | valid(before.values)
    value = changes.own.value
    if was:
        assert before is not None
        value, own = before.values, valid(before.values)
    shown = (own | changes.keeps_other) & (other | changes.keeps_own) & (own | other)
    rows = np.flatnonzero(given)
    # A row that is not shown is a deletion.
    index = pa.array(rows, mask=~shown[rows])
    found = changes.own.take(rows).with_columns(value=changes.joined(value).take(index))
    return replace(found, timestamp=np.maximum(found.timestamp, changes.other.times[rows]))
