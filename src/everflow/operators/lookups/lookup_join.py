"""A stream enriched by a table, whose records wait until their entry is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from everflow.clock import instant
from everflow.operators.fold import valid
from everflow.operators.grouping import stream_times as running_times
from everflow.operators.joins.joined_table import JoinedTable, TableLookup, TableRead
from everflow.operators.joins.joined_values import JoinKind, Stores
from everflow.operators.joins.stream_global import looked_up
from everflow.operators.lookups.told_records import ToldRecords
from everflow.operators.lookups.waiting_room import BEFORE_ALL, NO_ROW, TaskEvents, WaitingRoom
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.state.store import StoreSpec, WholeView
from everflow.topology.graph import Inputs, Operator

LOOK_MS = 1_000
"""How often records that wait are looked at where nothing else makes a batch."""
SEEN = "seen"
"""Under which a task keeps what of the global table its records have been looked up in."""
_Updates = Mapping[int, Sequence[tuple[int, int, bytes]]]
"""Of each task: place, row and key of each entry that comes."""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """Records that look entries up: ``keys`` of those that have one (rows of the others are not in
    ``keyed``), what is ``held`` for each row."""

    records: EdgeBatch
    places: Int64
    keyed: Int64
    keys: pa.Array
    held: pa.Array


@dataclass(frozen=True, kw_only=True)
class _Waiting(Operator):
    """What both joins are. A record without an entry waits in ``room``: until an update of the
    table brings it, or until its time is over. Then it is given with a null right, where the
    ``kind`` keeps it, or dropped. Results have their records' times.
    """

    table: TableRead
    kind: JoinKind
    room: WaitingRoom

    @property
    def takes_null_keys(self) -> bool:
        return self.kind.keeps_left

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult:
        """See `Operator`: who waits by stream time waits no longer."""
        none = np.empty(0, np.int64)
        asking = self._asking(inputs.sides[0]).take(none)
        told = ToldRecords(
            room=self.room,
            asking=asking,
            places=none,
            found=pa.nulls(0, self.table.type),
            by=asking,
        )
        for row, partition in enumerate(ticks.partition.tolist()):
            at: Int64 = ticks.timestamp[row : row + 1]
            events = TaskEvents(
                rows=np.array([NO_ROW]),
                places=ticks.seq[row : row + 1] * 2,
                times=at,
                stream_times=at,
                misses=(),
                updates=(),
                stream_time=int(at[0]),
            )
            told.add(
                partition, self.room.settle(events, inputs.stores[partition][self.room.store.name])
            )
        output = told.output(none, pa.nulls(0, self.table.type), kept=self.kind.keeps_left)
        missing = told.dropped(kept=self.kind.keeps_left)
        return TasksResult(output, told.changes, {}, {"not-found": missing} if missing else {})

    def _asking(self, side: EdgeBatch) -> EdgeBatch:
        """The stream's records, of what comes in."""
        return side

    def _settled(
        self,
        asked: _Asked,
        updates: _Updates,
        told: ToldRecords,
        inputs: Inputs,
    ) -> TasksResult:
        """``told``: empty, to take who waits no longer."""
        asking, held = asked.records, asked.held
        stores, now_ms = inputs.stores, inputs.now_ms
        running, after = running_times(asking.timestamp, asking.partition, inputs.stream_times)
        there = valid(held)
        missing = np.flatnonzero(~there[asked.keyed])
        missing_keys = asked.keys.take(pa.array(missing)).to_pylist()
        missing = asked.keyed[missing]
        for partition in sorted(stores):
            rows = np.flatnonzero(asking.partition == partition)
            mine = np.flatnonzero(asking.partition[missing] == partition)
            numbers = np.searchsorted(rows, missing[mine]).tolist()
            events = TaskEvents(
                rows=rows,
                places=asked.places[rows],
                times=asking.timestamp[rows],
                stream_times=running[rows],
                misses=[*zip(numbers, [missing_keys[at] for at in mine], strict=True)],
                updates=updates.get(partition, ()),
                stream_time=after[partition],
                now_ms=now_ms,
            )
            view = stores[partition][self.room.store.name]
            told.add(partition, self.room.settle(events, view))
        keyless = np.ones(len(asking), bool)
        keyless[asked.keyed] = False
        at_once = np.flatnonzero(there | (keyless & self.kind.keeps_left))
        output = told.output(at_once, held.take(at_once), kept=self.kind.keeps_left)
        dropped = {
            "null-key": 0 if self.kind.keeps_left else int(np.count_nonzero(keyless)),
            "not-found": told.dropped(kept=self.kind.keeps_left),
        }
        done = TasksResult(output, told.changes, after, dropped)
        done.remarks += [
            f"{self.room.store.name} of partition {partition}: {len(waiters)} records wait since "
            f"{instant(max(one.came for one in waiters))}, which is ahead of this host's clock "
            f"({instant(now_ms)}). They wait for {self.room.timeout_ms} ms from now on. Check the "
            f"clocks of the hosts that ran the task"
            for partition, waiters in told.retimed.items()
        ]
        return done


@dataclass(frozen=True, kw_only=True)
class LookupJoin(TableLookup, _Waiting):
    """With a table of the same tasks, whose updates, the second side, are events among the records.
    The sides behind it are updates of what the table is made of."""

    table_first: bool = True
    """Whether an input record that is on both sides changes the table first."""

    @property
    def look_every_ms(self) -> int | None:
        return _interval_of(self.room)

    def run(self, inputs: Inputs) -> TasksResult:
        left, right = inputs.sides[:2]
        asking, without = _valued(left, left.value)
        held = self.table.held(asking, inputs).values
        keyed = np.flatnonzero(valid(asking.key))
        coming = np.flatnonzero(valid(right.key) & valid(right.value))
        stored = self.table.stored[0]
        coming_keys = stored.keys_of(right.take(coming)).to_pylist()
        updates: dict[int, list[tuple[int, int, bytes]]] = {}
        places = right.seq[coming] * 2 + (not self.table_first)
        for partition, place, row, key in zip(
            right.partition[coming].tolist(),
            places.tolist(),
            coming.tolist(),
            coming_keys,
            strict=True,
        ):
            updates.setdefault(partition, []).append((place, row, key))
        asked = _Asked(
            records=asking,
            places=asking.seq * 2 + self.table_first,
            keyed=keyed,
            keys=stored.keys_of(asking.take(keyed)),
            held=held,
        )
        told = ToldRecords(
            room=self.room,
            asking=asking,
            places=asked.places,
            found=right.value.cast(self.table.type),
            by=right,
        )
        return _counted(self._settled(asked, updates, told, inputs), without)


@dataclass(frozen=True, kw_only=True)
class GlobalLookupJoin(_Waiting):
    """With a global table, of values ``struct<fk, value>`` (see `StreamGlobalJoin`). Its updates
    are no events of the task: where it is another one than a task's records were looked up in, all
    that wait are looked up before the batch's records."""

    table: JoinedTable
    marks: ClassVar[tuple[str, ...]] = (SEEN,)

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        return (self.table.spec,)

    @property
    def look_every_ms(self) -> int | None:
        return _interval_of(self.room) or LOOK_MS

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`; the side is the stream."""
        (side,), spec = inputs.sides, self.table.spec
        if not inputs.stores:
            raise AssertionError("a lookup join is asked for its tasks")
        keys, values = side.value.flatten()
        asking, without = _valued(self._asking(side), values)
        keys = keys.filter(pa.array(valid(values)))
        keyed = np.flatnonzero(valid(keys))
        written = written_bytes(spec.key_serde, keys.take(keyed), spec.name, asking, keyed)
        whole = next(iter(inputs.stores.values()))[spec.name]
        assert isinstance(whole, WholeView)
        waited = self._waited(inputs.stores, inputs.clocks, whole.mark)
        every = sorted({key for listed in waited.values() for key in listed})
        found = looked_up(
            self.table, pa.concat_arrays([pa.array(every, pa.binary()), written]), whole
        )
        brought = found[: len(every)]
        row_of = {key: row for row, key in enumerate(every) if brought[row].is_valid}
        updates = {
            partition: [(BEFORE_ALL, row_of[key], key) for key in listed if key in row_of]
            for partition, listed in waited.items()
        }
        held = pa.nulls(len(asking), self.table.type)
        if len(keyed):
            index = np.full(len(asking), -1, np.int64)
            index[keyed] = np.arange(len(keyed)) + len(every)
            held = found.take(pa.array(index, mask=index < 0))
        asked = _Asked(records=asking, places=asking.seq * 2, keyed=keyed, keys=written, held=held)
        told = ToldRecords(
            room=self.room,
            asking=asking,
            places=asked.places,
            found=brought,
            by=asking.take(np.empty(0, np.int64)),
        )
        done = self._settled(asked, updates, told, inputs)
        seen = {*waited, *done.changes}
        done.clocks.update({partition: {SEEN: whole.mark} for partition in seen})
        return _counted(done, without)

    def _asking(self, side: EdgeBatch) -> EdgeBatch:
        return side.with_columns(value=side.value.flatten()[1])

    def _waited(
        self, stores: Stores, clocks: Mapping[int, Mapping[str, int]], mark: int
    ) -> dict[int, list[bytes]]:
        """The keys that records of each task wait for, where there are some and the table is
        another one."""
        found = {
            partition: self.room.keys(views[self.room.store.name])
            for partition, views in stores.items()
            if clocks[partition][SEEN] != mark
        }
        return {partition: keys for partition, keys in found.items() if keys}


def _interval_of(room: WaitingRoom) -> int | None:
    """Often enough for its time-out."""
    if room.timeout_ms is None:
        return None
    return min(LOOK_MS, max(room.timeout_ms // 10, 100))


def _valued(batch: EdgeBatch, values: pa.Array) -> tuple[EdgeBatch, int]:
    """The records that have a value, and how many have none."""
    there = valid(values)
    rows = np.flatnonzero(there)
    return (batch if there.all() else batch.take(rows)), len(batch) - len(rows)


def _counted(done: TasksResult, without_value: int) -> TasksResult:
    counts = {"null-value": without_value, **done.dropped}
    done.dropped.clear()
    done.dropped.update({reason: count for reason, count in counts.items() if count})
    return done
