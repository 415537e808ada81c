"""Changes of a table's entries, and what they were: for groupings of tables, and those who ask.

A change is ``struct<new, old>`` (KTable-groupBy, KIP-904). An entry that moves to another group
leaves its old one first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.versions_as_of import held_at
from everflow.operators.user_code import written_alike
from everflow.records import TasksResult
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder
from everflow.serdes.changed import changed_type
from everflow.topology.graph import Inputs, Operator, TableOperator


@dataclass(frozen=True)
class PreviousValues(TableOperator):
    """For each update of a table, in that order, what the entry was before it; null where there was
    none."""

    table: JoinedTable
    result_key: pa.DataType
    emit_every_update: bool = True
    one_result: ClassVar[bool] = True

    @property
    def key_serde(self) -> Serde:
        """Of the table's store."""
        return self.table.spec.key_serde

    @property
    def value_serde(self) -> Serde:
        """Of the table's store."""
        return self.table.spec.value_serde

    @property
    def result(self) -> pa.DataType:
        """Arrow type of the output's value: the table's."""
        return self.table.type

    @property
    def results(self) -> ResultDecoder:
        """See `Operator`."""
        return self.table.results

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        (batch,) = inputs.sides
        held = self.table.before(batch, inputs.stores)
        return TasksResult(batch.with_columns(value=held.values), {}, {}, {})


@dataclass(frozen=True, kw_only=True)
class HeldRows(Operator):
    """For each record of the left side, in that order, what the table held for its key when it
    came, with the entry's time, and null where there was none; the right side are the table's
    updates.
    ``as_of``: a versioned table is asked as of the record's time."""

    table: JoinedTable
    as_of: bool
    table_first: bool
    """Whether an input record that is on both sides changes the table first."""
    null_keys: bool
    """Whether records without a key go on."""
    one_result: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        """See `Operator`."""
        return self.null_keys

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        left, right = inputs.sides
        if self.as_of:
            held = held_at(self.table, left, right, inputs.stores, first=self.table_first)
        else:
            held = self.table.when(left, right, inputs.stores, first=self.table_first)
        times = np.where(valid(held.values), held.times, left.timestamp)
        found = replace(left.with_columns(value=held.values), timestamp=times)
        return TasksResult(found, {}, {}, {})


@dataclass(frozen=True)
class VisibleUpdates(Operator):
    """A filtered table's updates, the right side, without those of entries that were not there
    before and are not now; the left side is what each entry was, row by row, filtered, too. (With
    the sides changed: what the entries of those updates were.)"""

    one_result: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        left, right = inputs.sides
        seen = valid(left.value) | valid(right.value)
        return TasksResult(right if seen.all() else right.take(np.flatnonzero(seen)), {}, {}, {})


@dataclass(frozen=True)
class TableChanges(Operator):
    """Puts together what was and what is: the left side is the old pair of group and value of each
    update, the right side the new one, row by row. A pair without a group or a value is none.
    ``key_serde`` writes the groups: two are the same where their bytes are."""

    key_serde: Serde
    row_by_row: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: one change where the group is the same, else one for each group."""
        left, right = inputs.sides
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
