"""Two tables joined by their keys: each change of one with what the other holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.joined_table import Held, JoinedTable
from everflow.operators.joins.joined_values import JoinKind, Stores, joined, task_codes
from everflow.records import EdgeBatch, TasksResult
from everflow.topology.hops import concat


@dataclass(frozen=True, kw_only=True)
class TableTableJoin:
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

    def decode_result(self, data: bytes) -> Any:
        """It has no store."""
        raise AssertionError("a table-table join has no store of its own")

    def _in_order(self, left: EdgeBatch, right: EdgeBatch) -> EdgeBatch:
        both = concat([left, right] if self.left_first else [right, left])
        if self.emit_every_update or not len(both):
            return both
        codes = task_codes(self.left.keys_of(both), both.partition)
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
