"""The answers of foreign keys, back in the task of the entry that asked (KIP-213; note 022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.batch_records import Flags
from everflow.operators.joins.foreign_keys import Order, hashes, hashes_equal, subscriptions
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import (
    JoinKind,
    first_and_last,
    joined,
    task_codes,
)
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, TasksResult
from everflow.serdes import Serde
from everflow.topology.batches import appended
from everflow.topology.graph import Inputs, Operator


@dataclass(frozen=True, kw_only=True)
class Answers(Operator):
    """The left side are the updates of the table that asked, the right side the answers. One for a
    value that is not the entry's any more is stale and left out; the others give the joined value,
    or a deletion where there is nothing to join.

    One result per key and batch, the last, or all of them with ``emit_every_update``.
    """

    table: JoinedTable
    value_serde: Serde
    kind: JoinKind
    emit_every_update: bool = False
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        left, right = inputs.sides
        return self.joined(self.table.when(right, left, inputs.stores, first=True).values, right)

    def joined(
        self, held: pa.Array, answers: EdgeBatch, keyless: Flags | None = None
    ) -> TasksResult:
        """The results; ``held``: what the entry of each answer is. ``keyless``: where it has no
        foreign key, or is gone: then an answer that there is nothing holds, whoever asked."""
        asked, found = answers.value.flatten()
        now = hashes(written_bytes(self.value_serde, held, self.table.spec.name, answers))
        holds = hashes_equal(asked, now)
        if keyless is not None:
            holds |= keyless & ~valid(found)
        fresh = np.flatnonzero(holds)
        shown = valid(held) & (valid(found) | self.kind.keeps_left)
        value = joined(held, found).take(pa.array(fresh, mask=~shown[fresh]))
        output = answers.take(fresh).with_columns(value=value)
        if not self.emit_every_update:
            _, last = first_and_last(task_codes(self.table.keys_of(output), output.partition))
            output = output.take(last)
        return TasksResult(output, {}, {}, {})


@dataclass(frozen=True, kw_only=True)
class AnswersOfRows(Operator):
    """As ``answers``, where the sides are what the table holds for each answer, row by row, and the
    answers: of a table without a store, and of an inner join, which has between them the entries of
    `StaleNulls`, each with its foreign key (`selected_type`)."""

    answers: Answers
    emit_every_update: bool = False
    row_by_row: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        held, *stale, answers = inputs.sides
        every = replace(self.answers, emit_every_update=self.emit_every_update)
        keyless = ~valid(stale[0].value.flatten()[0]) if stale else None
        return every.joined(held.value, answers, keyless)


@dataclass(frozen=True)
class StaleNulls(Operator):
    """For each answer what its entry is now, if the answer says that there is nothing, and says so
    to what the entry is not any more; null for all others. The sides are what the table holds for
    each answer, row by row, and the answers; a time is the later of both."""

    store: str
    value_serde: Serde
    one_result: ClassVar[bool] = True
    row_by_row: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`."""
        held, answers = inputs.sides
        asked, found = answers.value.flatten()
        rows = np.flatnonzero(valid(held.value) & ~valid(found))
        index = pa.array(rows)
        now = written_bytes(self.value_serde, held.value.take(index), self.store, answers, rows)
        others = np.ones(len(answers), bool)
        others[rows] = hashes_equal(asked.take(index), hashes(now))
        value = held.value.take(pa.array(np.arange(len(answers)), mask=others))
        times = np.maximum(held.timestamp, answers.timestamp)
        return TasksResult(replace(answers.with_columns(value=value), timestamp=times), {}, {}, {})


@dataclass(frozen=True)
class AskAgain(Operator):
    """Asks again for what the entries of stale answers are now: the right side is what they were
    when these came (`StaleNulls`), the left side their changes in the batch, both as
    `selected_type`.

    It asks for what the batch has made of an entry, as that is what `ForeignKeys` has asked for
    before it.
    """

    key_serde: Serde
    value_serde: Serde
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: one question for each entry. Where it has no foreign key any more,
        the one that it had is told to forget it, and answers that there is nothing."""
        left, right = inputs.sides
        stale = right.take(np.flatnonzero(valid(right.value.flatten()[0])))
        both = appended([stale, left if len(stale) else left.take(np.empty(0, np.int64))])
        entries = written_bytes(self.key_serde, both.key, "subscriptions", both)
        first, last = first_and_last(task_codes(entries, both.partition))
        chosen = np.argsort(first)
        chosen = chosen[first[chosen] < len(stale)]
        first, last = first[chosen], last[chosen]
        keys, values = both.value.flatten()
        keyed, index = valid(keys)[last], pa.array(last)
        now = written_bytes(self.value_serde, values.take(index), "subscriptions", both, last)
        orders = np.where(keyed, Order.TELL_IF_GONE, Order.FORGET_AND_TELL)
        value = subscriptions(entries.take(index), hashes(now), orders)
        key = keys.take(pa.array(np.where(keyed, last, first)))
        times = np.maximum(both.timestamp[first], both.timestamp[last])
        output = replace(both.take(first).with_columns(key, value), timestamp=times)
        return TasksResult(output, {}, {}, {})
