"""A stream enriched by a table, whose records wait until their entry is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from everflow.operators.fold import valid
from everflow.operators.grouping import stream_times as running_times
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.joins.joined_values import JoinKind, Stores
from everflow.operators.lookups.told_records import ToldRecords
from everflow.operators.lookups.waiting_room import TaskEvents, WaitingRoom
from everflow.records import EdgeBatch, TasksResult


@dataclass(frozen=True, kw_only=True)
class LookupJoin:
    """As `StreamTableJoin`, but a record without an entry waits in ``room``: until an update of the
    table brings it, or until its time is over, by the stream's own times. Then it is given with a
    null right, where the ``kind`` keeps it, or dropped. Results have their records' times.
    """

    table: JoinedTable
    kind: JoinKind
    room: WaitingRoom
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
        valued = valid(left.value)
        asking = left if valued.all() else left.take(np.flatnonzero(valued))
        running, after = running_times(asking.timestamp, asking.partition, stream_times)
        held = self.table.when(asking, right, stores, first=self.table_first).values
        keyed, there = valid(asking.key), valid(held)
        missing = np.flatnonzero(keyed & ~there)
        missing_keys = self.table.keys_of(asking.take(missing)).to_pylist()
        coming = np.flatnonzero(valid(right.key) & valid(right.value))
        coming_keys = self.table.keys_of(right.take(coming)).to_pylist()
        places = asking.seq * 2 + self.table_first
        told = ToldRecords(
            room=self.room,
            asking=asking,
            places=places,
            found=right.value.cast(self.table.type),
            by=right,
        )
        for partition in sorted(stores):
            rows = np.flatnonzero(asking.partition == partition)
            mine = np.flatnonzero(asking.partition[missing] == partition)
            numbers = np.searchsorted(rows, missing[mine]).tolist()
            its = np.flatnonzero(right.partition[coming] == partition)
            updates = right.seq[coming[its]] * 2 + (not self.table_first)
            events = TaskEvents(
                rows=rows,
                places=places[rows],
                times=asking.timestamp[rows],
                stream_times=running[rows],
                misses=[*zip(numbers, [missing_keys[at] for at in mine], strict=True)],
                updates=[
                    *zip(
                        updates.tolist(),
                        coming[its].tolist(),
                        [coming_keys[at] for at in its],
                        strict=True,
                    )
                ],
                stream_time=after[partition],
            )
            view = stores[partition][self.room.store.name]
            told.add(partition, self.room.settle(events, view))
        at_once = np.flatnonzero(there | (~keyed & self.kind.keeps_left))
        output = told.output(at_once, held.take(at_once), kept=self.kind.keeps_left)
        dropped = {
            "null-value": int(np.count_nonzero(~valued)),
            "null-key": 0 if self.kind.keeps_left else int(np.count_nonzero(~keyed)),
            "not-found": told.dropped(kept=self.kind.keeps_left),
        }
        counted = {reason: count for reason, count in dropped.items() if count}
        return TasksResult(output, told.changes, after, counted)

    def decode_result(self, data: bytes) -> Any:
        """The bytes of its own store as they are: no table shows them."""
        return data
