"""The results of a join whose records may wait: of those that did, and of those that did not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from everflow.operators.joins.joined_values import joined
from everflow.operators.lookups.waiting_room import NO_ROW, TaskWaits, Told, Waiter, WaitingRoom
from everflow.operators.stored_records import (
    RecordParts,
    StoredRecords,
    beside_stored,
    packed_record,
    unpacked_record,
)
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int64, StoreChanges
from everflow.topology.batches import appended


@dataclass(kw_only=True)
class ToldRecords:
    """Collects them task by task. ``asking``: the batch's records; ``places``: of each, whose
    halves are ``seq``; ``found``: what is waited for, by row; ``by``: the records that bring it,
    row by row."""

    room: WaitingRoom
    asking: EdgeBatch
    places: Int64
    found: pa.Array
    by: EdgeBatch
    told: list[tuple[int, Told]] = field(default_factory=list)
    """With their tasks."""
    changes: dict[int, list[StoreChanges]] = field(default_factory=dict)
    retimed: dict[int, list[Waiter]] = field(default_factory=dict)
    """Of each task, who waits from now on (`TaskWaits.retimed`)."""

    def add(self, partition: int, settled: TaskWaits) -> None:
        """Take over what became of a task's waiters."""
        self.told += [(partition, one) for one in settled.told]
        if settled.retimed:
            self.retimed[partition] = list(settled.retimed.values())
        if made := settled.written(self._stored([one.row for one in settled.stays])):
            self.changes[partition] = made

    def output(self, at_once: Int64, values: pa.Array, *, kept: bool) -> EdgeBatch:
        """All results in order. ``at_once``: rows of ``asking`` that do not wait, with their
        ``values`` of the other side; ``kept``: those whose time is over have a null one."""
        told = [one for one in self.told if kept or one[1].found != NO_ROW]
        own = self.asking.take(at_once)
        done = own.with_columns(value=joined(own.value, values.cast(self.found.type)))
        if not told:
            return done
        late = self._of(told)
        places = np.concatenate(
            [np.array([one.place for _, one in told], np.int64), self.places[at_once]]
        )
        return appended([late, done]).take(np.argsort(places, kind="stable"))

    def dropped(self, *, kept: bool) -> int:
        """How many are left out: their time was over."""
        return 0 if kept else sum(one.found == NO_ROW for _, one in self.told)

    def _of(self, told: Sequence[tuple[int, Told]]) -> EdgeBatch:
        """Results of those that have waited; each comes with the record that ended it, if one
        did."""
        waiters = [one.waiter for _, one in told]
        columns = self._records(waiters)
        rows = np.array([one.found for _, one in told], np.int64)
        right = self.found.take(pa.array(rows, mask=rows == NO_ROW))
        source, offset = self._ended_by(told)
        return EdgeBatch(
            key=columns.key,
            value=joined(columns.value, right),
            timestamp=np.array([one.time for one in waiters], np.int64),
            seq=np.array([max(0, one.place // 2) for _, one in told], np.int64),
            source=source,
            partition=np.array([partition for partition, _ in told], np.int32),
            offset=offset,
            headers=columns.headers,
        )

    def _ended_by(
        self, told: Sequence[tuple[int, Told]]
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], Int64]:
        """Source and offset of the record at each place."""
        ends = np.unique(np.array([one.place // 2 for _, one in told], np.int64))
        known: dict[tuple[int, int], tuple[int, int]] = {}
        for side in (self.by, self.asking):
            mine = side.take(np.flatnonzero(np.isin(side.seq, ends)))
            for at in range(len(mine)):
                record = int(mine.partition[at]), int(mine.seq[at])
                known[record] = int(mine.source[at]), int(mine.offset[at])
        places = [known.get((partition, one.place // 2), (0, -1)) for partition, one in told]
        return (
            np.array([source for source, _ in places], np.int32),
            np.array([offset for _, offset in places], np.int64),
        )

    def _records(self, waiters: Sequence[Waiter]) -> RecordParts:
        parts = [unpacked_record(one.stored) for one in waiters if one.row < 0]
        stored = StoredRecords(
            [_key_of(listed) for listed, _ in parts],
            [value for _, value in parts],
            [listed[1:] for listed, _ in parts],
        )
        rows, next_stored = [], len(self.asking)
        for one in waiters:
            rows.append(one.row if one.row >= 0 else next_stored)
            next_stored += one.row < 0
        at = np.array(rows, np.int64)
        return beside_stored(self.asking, stored, self.room.key_serde, self.room.value_serde, at)

    def _stored(self, rows: Sequence[int]) -> list[bytes]:
        """What records are in the store: their own key as the first header, the others, the
        value."""
        if not rows:
            return []
        at, room, batch = np.array(rows, np.int64), self.room, self.asking
        taken = batch.take(at)
        keys = written_bytes(room.key_serde, taken.key, room.store.name, batch, at).to_pylist()
        values = written_bytes(
            room.value_serde, taken.value, room.store.name, batch, at
        ).to_pylist()
        headers = [[]] * len(rows) if taken.headers is None else taken.headers.to_pylist()
        return [
            packed_record([{"key": "", "value": key}, *(listed or [])], value)
            for key, listed, value in zip(keys, headers, values, strict=True)
        ]


def _key_of(headers: Sequence[dict[str, object]]) -> bytes | None:
    """The record's key, which stands in its first header."""
    value = headers[0]["value"]
    return value if isinstance(value, bytes) else None
