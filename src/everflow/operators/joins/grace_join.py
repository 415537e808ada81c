"""A stream joined to a versioned table with a grace: records wait for what comes late (KIP-923)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.grouping import stream_times as running_times
from everflow.operators.joins.held_back import HeldBack, Released, TimeMakers, come_out
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import JoinKind, Stores, joined
from everflow.operators.joins.versions_as_of import Asks, held_as_of
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.topology.hops import appended


@dataclass(frozen=True)
class GraceJoin:
    """As `StreamTableJoin` with a versioned table; a record is joined when the stream's own stream
    time has reached its time and the grace, with what the table then holds as of its time. One that
    is later than that is joined at once, and so is one without a key, where the ``kind`` keeps
    those. A result has its record's time and headers.
    """

    table: JoinedTable
    kind: JoinKind
    held: HeldBack
    table_first: bool = True
    """Whether an input record that is on both sides changes the table first."""

    @property
    def takes_null_keys(self) -> bool:
        """See `JoinOperator`."""
        return self.kind.keeps_left

    def join_tasks(
        self, left: EdgeBatch, right: EdgeBatch, stores: Stores, stream_times: Mapping[int, int]
    ) -> TasksResult:
        """See `JoinOperator`."""
        keyed, valued = valid(left.key), valid(left.value)
        rows = np.flatnonzero(keyed & valued)
        asking = left.take(rows)
        running, after = running_times(asking.timestamp, asking.partition, stream_times)
        released = self.held.release(
            asking,
            np.arange(len(rows), dtype=np.int64),
            TimeMakers(asking.partition, running),
            stream_times,
            stores,
        )
        output, shown = self._joined(asking.take(released.at), released, right, stores)
        dropped = {"null-value": int(np.count_nonzero(~valued))}
        keyless = np.flatnonzero(valued & ~keyed)
        if self.kind.keeps_left:
            output = _with_keyless(output, rows[released.at][shown], left.take(keyless), keyless)
        else:
            dropped["null-key"] = len(keyless)
        return TasksResult(
            output,
            released.changes,
            after,
            {reason: count for reason, count in dropped.items() if count},
        )

    def advance_tasks(
        self,
        ticks: EdgeBatch,
        sides: Sequence[EdgeBatch],
        stores: Stores,
        stream_times: Mapping[int, int],
    ) -> TasksResult:
        """See `TimedOperator`."""
        none = np.empty(0, np.int64)
        clock = TimeMakers(ticks.partition, ticks.timestamp)
        released = self.held.release(ticks.take(none), none, clock, stream_times, stores)
        output, _ = self._joined(ticks.take(released.at), released, sides[1], stores)
        return TasksResult(output, released.changes, {}, {})

    def _joined(
        self, by: EdgeBatch, released: Released, right: EdgeBatch, stores: Stores
    ) -> tuple[EdgeBatch, Int64]:
        """The results of records that come out ``by`` others, and which of them give one."""
        asks = Asks(by.partition, released.keys, released.times, by.seq)
        held = held_as_of(self.table, asks, right, stores, first=self.table_first)
        shown = np.arange(len(by)) if self.kind.keeps_left else np.flatnonzero(valid(held.values))
        return come_out(by, released, joined(released.value, held.values)).take(shown), shown

    def decode_result(self, data: bytes) -> Any:
        """The bytes of its own store as they are: no table shows them."""
        return data


def _with_keyless(
    output: EdgeBatch, places: np.ndarray[Any, Any], keyless: EdgeBatch, rows: np.ndarray[Any, Any]
) -> EdgeBatch:
    """The results, and those of records without a key, by the places of the left side's records."""
    if not len(keyless):
        return output
    nothing = pa.nulls(len(keyless), output.value.type.field("right").type)
    alone = keyless.with_columns(value=joined(keyless.value, nothing))
    both = appended([output, alone]) if len(output) else alone
    at = np.concatenate([places, rows]) if len(output) else rows
    return both.take(np.argsort(at, kind="stable"))
