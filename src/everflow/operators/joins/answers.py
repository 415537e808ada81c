"""The answers of foreign keys, back in the task of the entry that asked (KIP-213; note 022)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.joins.batch_records import Flags
from everflow.operators.joins.foreign_keys import Order, hashes, hashes_equal, subscriptions
from everflow.operators.joins.joined_table import TableRead
from everflow.operators.joins.joined_values import (
    JoinKind,
    first_and_last,
    joined,
    task_codes,
)
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, TasksResult
from everflow.serdes import Serde
from everflow.topology.graph import Inputs, Operator
from everflow.topology.hops import appended


class _ReadsAnswers(Operator):
    """An operator whose last side, the answers, looks up the table that asked."""

    table: TableRead
    selected: TableRead | None

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        selected = () if self.selected is None else self.selected.through
        return (*self.table.through, *selected)

    def meets(self, sides: int) -> Iterable[Iterable[int]]:
        return ((side, sides - 1) for side in range(sides - 1))


@dataclass(frozen=True, kw_only=True)
class Answers(_ReadsAnswers):
    """The last side are the answers, the others the updates of what the table that asked is made
    of. An answer for a value that is not the entry's any more is stale and left out; the others
    give the joined value, or a deletion where there is nothing to join.

    One result per key and batch, the last, or all of them with ``emit_every_update``.
    """

    table: TableRead
    selected: TableRead | None
    """Of an inner join, the table's entries with their foreign keys (`selected_type`): where one
    has none, or is gone, an answer that there is nothing holds, whoever asked."""
    value_serde: Serde
    kind: JoinKind
    emit_every_update: bool = False
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        answers = inputs.sides[-1]
        held = self.table.held(answers, inputs).values
        _, found = answers.value.flatten()
        holds = _holds(answers, held, self.value_serde, self.table)
        shown = valid(held) & (valid(found) | self.kind.keeps_left)
        if self.selected is not None:
            rows = np.flatnonzero(~holds & ~valid(found))
            entries = self.selected.held(answers.take(rows), inputs).values
            holds[rows] = ~valid(entries.flatten()[0])
        fresh = np.flatnonzero(holds)
        value = joined(held, found).take(pa.array(fresh, mask=~shown[fresh]))
        output = answers.take(fresh).with_columns(value=value)
        if not self.emit_every_update:
            keys = self.table.stored[0].keys_of(output)
            _, last = first_and_last(task_codes(keys, output.partition))
            output = output.take(last)
        return TasksResult(output, {}, {}, {})


@dataclass(frozen=True, kw_only=True)
class AskAgain(_ReadsAnswers):
    """Asks again for what the entries of stale answers are now, if these say that there is nothing.
    The first side are the changes of entries in the batch, as `selected_type`, the last one the
    answers; between them see `Answers`.

    It asks for what the batch has made of an entry, as that is what `ForeignKeys` has asked for
    before it.
    """

    table: TableRead
    selected: TableRead
    key_serde: Serde
    value_serde: Serde
    joins: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: one question for each entry. Where it has no foreign key any more,
        the one that it had is told to forget it, and answers that there is nothing."""
        left, stale = inputs.sides[0], self._stale(inputs)
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

    def _stale(self, inputs: Inputs) -> EdgeBatch:
        """What the entries of stale answers are now, of those that have a foreign key."""
        answers = inputs.sides[-1]
        answers = answers.take(np.flatnonzero(~valid(answers.value.flatten()[1])))
        held = self.table.held(answers, inputs)
        stale = valid(held.values) & ~_holds(answers, held.values, self.value_serde, self.table)
        rows = np.flatnonzero(stale)
        times = np.maximum(held.times, answers.timestamp)[rows]
        found = replace(answers.take(rows), timestamp=times)
        entries = self.selected.held(found, inputs).values
        found = found.with_columns(value=entries)
        return found.take(np.flatnonzero(valid(entries.flatten()[0])))


def _holds(answers: EdgeBatch, held: pa.Array, serde: Serde, table: TableRead) -> Flags:
    """Which answers are for what the entry is now."""
    now = hashes(written_bytes(serde, held, table.stored[0].spec.name, answers))
    return hashes_equal(answers.value.flatten()[0], now)
