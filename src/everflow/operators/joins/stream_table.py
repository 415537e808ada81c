"""A stream enriched by a table: each record with what the table holds for its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.batch_records import Flags
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import JoinKind, joined
from everflow.operators.joins.versions_as_of import held_at
from everflow.records import EdgeBatch, TasksResult
from everflow.topology.graph import Inputs, Operator


@dataclass(frozen=True)
class StreamTableJoin(Operator):
    """Inner or left join (KStream-KTable): records of the stream give results, changes of the table
    do not.

    A versioned table is looked up as of the record's time. A record without a value is dropped; one
    without a key, or without an entry in the table, too, unless the ``kind`` keeps the left side:
    then its right is null (KIP-962). A result has the record's key, time and headers.
    """

    table: JoinedTable
    kind: JoinKind
    table_first: bool = True
    """Whether an input record that is on both sides changes the table first."""

    one_result: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        """See `Operator`."""
        return self.kind.keeps_left

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        left, right = inputs.sides
        keyed, valued = valid(left.key), valid(left.value)
        taken = valued if self.kind.keeps_left else valued & keyed
        asking = left if taken.all() else left.take(np.flatnonzero(taken))
        held = held_at(self.table, asking, right, inputs.stores, first=self.table_first)
        return _enriched(self.kind, asking, held.values, _dropped(valued, taken))


@dataclass(frozen=True)
class StreamTableRows(Operator):
    """As `StreamTableJoin`; the right side is what the table holds for each record of the left."""

    kind: JoinKind
    one_result: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        left, right = inputs.sides
        keyed, valued = valid(left.key), valid(left.value)
        taken = valued if self.kind.keeps_left else valued & keyed
        rows = np.flatnonzero(taken)
        held = right.value.take(pa.array(rows))
        return _enriched(self.kind, left.take(rows), held, _dropped(valued, taken))


def _enriched(
    kind: JoinKind, asking: EdgeBatch, held: pa.Array, dropped: dict[str, int]
) -> TasksResult:
    output = asking.with_columns(value=joined(asking.value, held))
    if held.null_count and not kind.keeps_left:
        output = output.take(np.flatnonzero(valid(held)))
    return TasksResult(output, {}, {}, dropped)


def _dropped(valued: Flags, taken: Flags) -> dict[str, int]:
    counts = {
        "null-value": int(np.count_nonzero(~valued)),
        "null-key": int(np.count_nonzero(valued & ~taken)),
    }
    return {reason: count for reason, count in counts.items() if count}
