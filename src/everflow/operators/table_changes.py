"""Changes of a table's entries, and what they were: for filters and groupings of tables.

A change is ``struct<new, old>`` (KTable-groupBy, KIP-904). An entry that moves to another group
leaves its old one first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import Stores
from everflow.operators.suppress import SuppressSpec
from everflow.operators.user_code import written_alike
from everflow.operators.versioned_table import LatestUpdates
from everflow.records import EdgeBatch, TasksResult
from everflow.serdes import Serde
from everflow.serdes.changed import changed_type
from everflow.topology.graph import Inputs, Operator
from everflow.topology.physical_plan import StatefulOp


def with_old(op: StatefulOp, output: EdgeBatch, stores: Stores) -> EdgeBatch:
    """A table's updates with what each entry was, null where there was none; ``stores`` show what
    they held before the batch."""
    operator: Any = op.operator
    if not len(output):
        return replace(output, old=output)
    if operator.old_from:
        return output
    if isinstance(operator, SuppressSpec):  # a result comes once for each key: nothing was there
        nothing = pa.nulls(len(output), op.type.value)
        return replace(output, old=output.with_columns(value=nothing))
    if isinstance(operator, LatestUpdates):
        table = operator.table
    else:
        table = JoinedTable(op.stores[0], operator.results, op.type.value)
    held = table.before(output, stores)
    return replace(output, old=output.with_columns(value=held.values))


@dataclass(frozen=True)
class VisibleUpdates(Operator):
    """A filtered table's updates, without those of entries that were not there before and are not
    now."""

    one_result: ClassVar[bool] = True
    old_sides: ClassVar[tuple[int, ...]] = (0,)
    old_from: ClassVar[tuple[int, ...]] = (0,)

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        assert batch.old is not None
        seen = valid(batch.old.value) | valid(batch.value)
        return TasksResult(batch if seen.all() else batch.take(np.flatnonzero(seen)), {}, {}, {})


@dataclass(frozen=True)
class TableChanges(Operator):
    """Puts together what was and what is: of each update the old pair of group and value, and the
    new one. A pair without a group or a value is none. ``key_serde`` writes the groups: two are the
    same where their bytes are."""

    key_serde: Serde
    old_sides: ClassVar[tuple[int, ...]] = (0,)

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: one change where the group is the same, else one for each group."""
        (right,) = inputs.sides
        left = right.old
        assert left is not None
        was, there = (valid(side.key) & valid(side.value) for side in (left, right))
        same = was & there & written_alike(self.key_serde, left.key, right.key)
        count = len(right)
        rows = np.concatenate([np.flatnonzero(was & ~same), np.flatnonzero(there)])
        is_old = np.arange(len(rows)) < np.count_nonzero(was & ~same)
        order = np.lexsort((~is_old, rows))
        rows, is_old = rows[order], is_old[order]
        values = [
            right.value.take(pa.array(rows, mask=is_old)),
            left.value.take(pa.array(rows, mask=~(is_old | same[rows]))),
        ]
        key = pa.concat_arrays([right.key, left.key]).take(pa.array(rows + is_old * count))
        value = pa.StructArray.from_arrays(values, fields=list(changed_type(right.value.type)))
        return TasksResult(right.take(rows).with_columns(key, value), {}, {}, {})
