"""The answers of foreign keys, back in the task of the entry that asked (KIP-213; note 022)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.foreign_keys import hashes, hashes_equal
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import (
    JoinKind,
    Stores,
    first_and_last,
    joined,
    task_codes,
)
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
        return self.joined(self.table.when(right, left, stores, first=True).values, right)

    def joined(self, held: pa.Array, answers: EdgeBatch) -> TasksResult:
        """The results; ``held``: what the entry of each answer is."""
        asked, found = answers.value.flatten()
        now = hashes(written_bytes(self.value_serde, held, self.table.spec.name, answers))
        fresh = np.flatnonzero(hashes_equal(asked, now))
        shown = valid(held) & (valid(found) | self.kind.keeps_left)
        value = joined(held, found).take(pa.array(fresh, mask=~shown[fresh]))
        output = answers.take(fresh).with_columns(value=value)
        if not self.emit_every_update:
            _, last = first_and_last(task_codes(self.table.keys_of(output), output.partition))
            output = output.take(last)
        return TasksResult(output, {}, {}, {})


@dataclass(frozen=True, kw_only=True)
class AnswersOfRows(Storeless):
    """As ``answers``, of a table without a store: the sides are what it holds for each answer, row
    by row, and the answers."""

    answers: Answers
    emit_every_update: bool = False
    row_by_row: ClassVar[bool] = True

    def put_together(self, sides: Sequence[EdgeBatch]) -> TasksResult:
        """See `AlignedOperator`."""
        held, answers = sides
        every = replace(self.answers, emit_every_update=self.emit_every_update)
        return every.joined(held.value, answers)
