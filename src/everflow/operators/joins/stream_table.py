"""A stream enriched by a table: each record with what the table holds for its key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from everflow.operators.fold import valid
from everflow.operators.joins.joined_table import TableLookup, TableRead
from everflow.operators.joins.joined_values import JoinKind, joined
from everflow.records import TasksResult
from everflow.topology.graph import Inputs


@dataclass(frozen=True)
class StreamTableJoin(TableLookup):
    """Inner or left join (KStream-KTable): records of the stream give results, changes of the table
    do not.

    A versioned table is looked up as of the record's time. A record without a value is dropped; one
    without a key, or without an entry in the table, too, unless the ``kind`` keeps the left side:
    then its right is null (KIP-962). A result has the record's key, time and headers. The sides
    behind the stream are updates of what the table is made of.
    """

    table: TableRead
    kind: JoinKind
    one_result: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        return self.kind.keeps_left

    def run(self, inputs: Inputs) -> TasksResult:
        left = inputs.sides[0]
        keyed, valued = valid(left.key), valid(left.value)
        taken = valued if self.kind.keeps_left else valued & keyed
        asking = left if taken.all() else left.take(np.flatnonzero(taken))
        held = self.table.held(asking, inputs).values
        output = asking.with_columns(value=joined(asking.value, held))
        if held.null_count and not self.kind.keeps_left:
            output = output.take(np.flatnonzero(valid(held)))
        counts = {
            "null-value": int(np.count_nonzero(~valued)),
            "null-key": int(np.count_nonzero(valued & ~taken)),
        }
        return TasksResult(output, {}, {}, {why: count for why, count in counts.items() if count})
