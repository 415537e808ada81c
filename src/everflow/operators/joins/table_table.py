"""Two tables joined by their keys: each change of one with what the other holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import task_codes
from everflow.operators.joins.joined_table import (
    Held,
    JoinKind,
    TableRead,
    first_and_last,
    joined,
)
from everflow.records import EdgeBatch, Int64, TasksResult, valid
from everflow.topology.batches import concat
from everflow.topology.graph import Inputs, Operator


@dataclass(frozen=True, kw_only=True)
class TableTableJoin(Operator):
    """Inner, left or outer join of two tables by primary key (KTable-KTable). The first two sides
    are their updates, the others those of what they are made of.

    Each change gives a result, or a deletion where there is none any more. It gives nothing where
    there cannot have been one: while the other side has no entry, if its own side is not kept
    without a match; or for the deletion of what was not there on either side. A result's time is
    the later of both sides'. One result per key and batch, the last, or all of them with
    ``emit_every_update``. ``left_first``: of an input record that changes both tables, the left
    one's change comes first.
    """

    left: TableRead
    right: TableRead
    kind: JoinKind
    left_first: bool = True
    emit_every_update: bool = False
    one_result: ClassVar[bool] = True
    joins: ClassVar[bool] = True
    old_from: ClassVar[tuple[int, ...]] = (0, 1)

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        return (*self.left.through, *self.right.through)

    @property
    def old_sides(self) -> tuple[int, ...]:
        keeps = self.kind.keeps_left, self.kind.keeps_right
        return tuple(side for side in (0, 1) if keeps[side])

    def meets(self, sides: int) -> Iterable[Iterable[int]]:
        pairs = {(0, table.side) for table in self.right.stored}
        return sorted({(0, 1), *pairs, *((1, table.side) for table in self.left.stored)})

    def run(self, inputs: Inputs) -> TasksResult:
        left, right = inputs.sides[:2]
        keeps = self.kind.keeps_left, self.kind.keeps_right
        results = [
            _results(_Changes(left, self.right.held(left, inputs), *keeps, of_left=True)),
            _results(_Changes(right, self.left.held(right, inputs), *keeps[::-1], of_left=False)),
        ]
        both = concat(results if self.left_first else results[::-1])
        if not self.emit_every_update and len(both):
            table = self.left.stored[0]
            first, last = first_and_last(task_codes(table.keys_of(both), both.partition))
            found = both.take(last)
            if both.old is not None:
                found.old = found.with_columns(value=both.old.value.take(first))
            both = found
        return TasksResult(both, {}, {}, {})


@dataclass(frozen=True)
class _Changes:
    """Changes of one side, what the other held at each, and if either is kept unmatched."""

    own: EdgeBatch
    other: Held
    keeps_own: bool
    keeps_other: bool
    of_left: bool

    def joined(self, own: pa.Array, rows: Int64) -> pa.Array:
        """The side's values with what the other held, in ``rows``; null where that is no result."""
        mine, there = valid(own), valid(self.other.values)
        shown = (mine | self.keeps_other) & (there | self.keeps_own) & (mine | there)
        left, right = (own, self.other.values) if self.of_left else (self.other.values, own)
        return joined(left, right).take(pa.array(rows, mask=~shown[rows]))


def _results(changes: _Changes) -> EdgeBatch:
    """The results of one side's changes; with what each was before, where that is known."""
    old = changes.own.old
    own, other = valid(changes.own.value), valid(changes.other.values)
    given = other
    if changes.keeps_own:
        assert old is not None
        given = other | own | valid(old.value)
    rows = np.flatnonzero(given)
    found = replace(changes.own, old=None).take(rows)
    found = found.with_columns(value=changes.joined(changes.own.value, rows))
    times = np.maximum(found.timestamp, changes.other.times[rows])
    was = None
    if old is not None:
        was = replace(found.with_columns(value=changes.joined(old.value, rows)), timestamp=times)
    return replace(found, timestamp=times, old=was)
