"""The answers of foreign keys, back in the task of the entry that asked (KIP-213; note 022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.foreign_keys import hashes, hashes_equal
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import JoinKind, Stores, joined, task_codes
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, TasksResult
from everflow.serdes import Serde
from everflow.topology.graph import Storeless


@dataclass(frozen=True, kw_only=True)
class Answers(Storeless):
    """The left side are the updates of the table that asked, the right side the answers. One for a
    value that is not the entry's any more is stale and left out; the others give the joined value,
    or a deletion where there is nothing to join.

    One result per key and batch, the last, or all of them with ``emit_every_update``.
    """

    table: JoinedTable
    value_serde: Serde
    kind: JoinKind
    emit_every_update: bool = False

    @property
    def takes_null_keys(self) -> bool:
        """See `JoinOperator`."""
        return False

    def join_tasks(
        self, left: EdgeBatch, right: EdgeBatch, stores: Stores, stream_times: Mapping[int, int]
    ) -> TasksResult:
        """See `JoinOperator`."""
        held = self.table.when(right, left, stores, first=True).values
        asked, found = right.value.flatten()
        now = hashes(written_bytes(self.value_serde, held, self.table.spec.name, right))
        fresh = np.flatnonzero(hashes_equal(asked, now))
        shown = valid(held) & (valid(found) | self.kind.keeps_left)
        value = joined(held, found).take(pa.array(fresh, mask=~shown[fresh]))
        output = right.take(fresh).with_columns(value=value)
        if len(output) and not self.emit_every_update:
            codes = task_codes(self.table.keys_of(output), output.partition)
            last = np.zeros(int(codes.max()) + 1, np.int64)
            last[codes] = np.arange(len(codes))  # the last assignment wins
            output = output.take(np.sort(last))
        return TasksResult(output, {}, {}, {})
