"""A stream enriched by a table, whose records wait until their entry is there."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, cast

import numpy as np
import pyarrow as pa

from everflow.clock import believed_ms, instant
from everflow.operators.due_index import Changes, DueIndex, DueQueue
from everflow.operators.grouping import Stores, stream_times
from everflow.operators.joins.joined_table import (
    JoinedTable,
    JoinKind,
    KeepsLeft,
    TableLookup,
    TableRead,
    joined,
)
from everflow.operators.joins.stream_table import looked_up
from everflow.operators.stored_records import (
    RecordParts,
    StoredRecords,
    beside_stored,
    packed_record,
    unpacked_record,
)
from everflow.operators.user_code import written_bytes
from everflow.records import LAST_SEQ, EdgeBatch, Int64, StoreChanges, TasksResult, valid
from everflow.serdes import Serde
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.key_ranges import after_prefix
from everflow.state.store import Entry, StoreSpec, StoreView, WholeView
from everflow.topology.batches import appended
from everflow.topology.graph import Inputs

# --- holds records of a stream until the entry that they look up is there, or their time is over --
# The store has for each, under the looked-up key and a number, the record; under its time, and its
# clock time where that limits its wait, when it is due; and the next number.


_LENGTH, _NUMBER = struct.Struct(">i"), struct.Struct(">Q")
_TIMES = struct.Struct(">qq")
_BY_KEY, _NEXT = b"k", b"n"
_BY_TIME, _BY_CLOCK = DueIndex(b"t"), DueIndex(b"w")
NO_ROW = -1
"""The row of a record that did not come with the batch."""
BEFORE_ALL, BEHIND_ALL = -1, 2 * LAST_SEQ + 1
"""Places of what no record of the batch has brought."""


class Waiter(NamedTuple):
    """A record that waits: its number, time, when it came by the wall clock (ms), what it looks up;
    its ``row`` of the batch, `NO_ROW` of one that was ``stored`` (as it was written)."""

    number: int
    time: int
    came: int
    key: bytes
    row: int
    stored: bytes = b""

    @property
    def since(self) -> int:
        """The time from which it waits: negative ones lie before all."""
        return max(0, self.time)


class Settled(NamedTuple):
    """A waiter that waits no longer: its place among the task's events, and the row of the update
    that was waited for, `NO_ROW` where its time is over."""

    place: int
    waiter: Waiter
    found: int


@dataclass(frozen=True, kw_only=True)
class TaskEvents:
    """What happens in a task, by place, which tells the order. ``times`` to ``stream_times``: of
    its records, all of them, in their order; ``misses``: those of them (as numbers) whose entry is
    not there, with the key; ``updates``: place, row and key of each entry that comes."""

    rows: Int64
    places: Int64
    times: Int64
    stream_times: Int64
    misses: Sequence[tuple[int, bytes]]
    updates: Sequence[tuple[int, int, bytes]]
    stream_time: int
    """After all of them."""
    now_ms: int | None = None
    """A time-out by the wall clock; None: there is none."""


@dataclass(frozen=True, kw_only=True)
class PendingLookups:
    """A record waits until stream time is more than ``grace_ms`` behind it, and for ``timeout_ms``
    by the wall clock (None: however long); beyond ``most`` of one key the longest wait is over."""

    store: StoreSpec
    key_serde: Serde
    """The serde of the stream's keys."""
    value_serde: Serde
    """The serde of the stream's values."""
    grace_ms: int | None
    most: int | None
    timeout_ms: int | None = None

    def keys(self, view: StoreView) -> list[bytes]:
        if view.get_many([_NEXT]) == [None]:
            return []  # nobody has ever waited here
        head, tail = len(_BY_KEY) + _LENGTH.size, -_NUMBER.size
        stored = (key for key, _ in view.range(_BY_KEY, after_prefix(_BY_KEY)))
        return list(dict.fromkeys(key[head:tail] for key in stored))

    def places(self, waiter: Waiter) -> list[bytes]:
        number = _NUMBER.pack(waiter.number)
        found = [_prefix(waiter.key) + number, _BY_TIME.key(waiter.since, number)]
        if self.timeout_ms is not None:
            found.append(_BY_CLOCK.key(waiter.came, number))
        return found


@dataclass(kw_only=True)
class TaskWaits:
    """One task's part of a batch. ``settled``: who waits no longer, in order. ``waiters``: who
    waits, by number; ``waiting``: their numbers by key. ``gone``: from the store. ``retimed``:
    stored waiters that wait from now on, as the clock by which they came is ahead."""

    pending: PendingLookups
    events: TaskEvents
    view: StoreView
    settled: list[Settled] = field(default_factory=list)
    waiters: dict[int, Waiter] = field(default_factory=dict)
    waiting: dict[bytes, dict[int, None]] = field(default_factory=dict)
    gone: list[Waiter] = field(default_factory=list)
    retimed: dict[int, Waiter] = field(default_factory=dict)
    next_number: int = 0
    first_number: int = 0

    def __post_init__(self) -> None:
        self.by_time = DueQueue(index=_BY_TIME, view=self.view)
        self.by_clock = DueQueue(index=_BY_CLOCK, view=self.view)
        self._load(self.view)
        self._take_events()

    @property
    def stays(self) -> list[Waiter]:
        return [one for one in self.waiters.values() if one.row >= 0]

    def written(self, stored: Sequence[bytes]) -> list[StoreChanges]:
        """The store's changes; ``stored``: what the waiters of `stays` are."""
        made, stream_time = Changes(), self.events.stream_time
        for one in self.gone:
            for place in self.pending.places(one):
                made.add(place, None, stream_time)
        for old in self.retimed.values():
            made.add(self.pending.places(old)[-1], None, stream_time)
        again = [self.waiters[number] for number in self.retimed]
        data_of = [*stored, *(one.stored for one in again)]
        for one, data in zip([*self.stays, *again], data_of, strict=True):
            under_key, *due = self.pending.places(one)
            made.add(under_key, _TIMES.pack(one.time, one.came) + data, one.time)
            for place in due:
                made.add(place, one.key, one.time)
        if self.next_number != self.first_number:
            made.add(_NEXT, _NUMBER.pack(self.next_number), stream_time)
        return made.of(self.pending.store.name)

    def _load(self, view: StoreView) -> None:
        (number,) = view.get_many([_NEXT])
        if number is None and not self.events.misses:
            return  # nobody has ever waited here
        self.next_number = self.first_number = (
            0 if number is None else _NUMBER.unpack(number[TIMESTAMP_BYTES:])[0]
        )
        asked = {key for _, _, key in self.events.updates}
        if self.pending.most is not None:
            asked |= {key for _, key in self.events.misses}
        keys = sorted(asked)
        bounds = [(_prefix(key), _prefix(key) + b"\xff" * (_NUMBER.size + 1)) for key in keys]
        for key, entries in zip(keys, view.range_many(bounds), strict=True):
            for stored, value in entries:
                self._come(_number_of(stored), key, value[TIMESTAMP_BYTES:])
        self._load_due(view)

    def _load_due(self, view: StoreView) -> None:
        pending, events, listed = self.pending, self.events, list[Entry]()
        if pending.grace_ms is not None and len(events.stream_times):
            listed += self.by_time.load(int(events.stream_times[-1]) - pending.grace_ms - 1)
        if pending.timeout_ms is not None and events.now_ms is not None:
            listed += self.by_clock.load(events.now_ms - pending.timeout_ms)
            listed += _BY_CLOCK.stored(view, None, events.now_ms + pending.timeout_ms)
        due = {_number_of(place): key[TIMESTAMP_BYTES:] for place, key in listed}
        more = [(n, key) for n, key in due.items() if n not in self.waiters]
        values = view.get_many([_prefix(key) + _NUMBER.pack(n) for n, key in more])
        for (n, key), value in zip(more, values, strict=True):
            assert value is not None
            self._come(n, key, value[TIMESTAMP_BYTES:])

    def _come(self, number: int, key: bytes, value: bytes) -> None:
        time, came = _TIMES.unpack_from(value)
        waiter = Waiter(number, time, came, key, NO_ROW, value[_TIMES.size :])
        timeout_ms, now_ms = self.pending.timeout_ms, self.events.now_ms
        if timeout_ms is not None and now_ms is not None:
            waiter, old = waiter._replace(came=believed_ms(came, now_ms, timeout_ms)), waiter
            if waiter.came != came:
                self.retimed[number] = old
        self._add(waiter)

    def _take_events(self) -> None:
        """By their places. What is due at a record's place is settled before the record waits."""
        events = self.events
        missed = {key for _, key in events.misses}
        misses = [(int(events.places[at]), at, key, True) for at, key in events.misses]
        updates = [
            (place, row, key, False)
            for place, row, key in events.updates
            if key in self.waiting or key in missed
        ]
        ordered = sorted(misses + updates, key=lambda one: one[:2])
        places = [place for place, *_ in ordered]
        seen = np.searchsorted(events.places, places, side="right").tolist()
        for (place, one, key, is_miss), count in zip(ordered, seen, strict=True):
            self._settle_due(count)
            if is_miss:
                self._wait(place, one, key)
            else:
                self._release(place, one, key)
        self._settle_due(len(events.stream_times))
        if self.pending.timeout_ms is not None and events.now_ms is not None:
            while due := self.by_clock.pop(events.now_ms - self.pending.timeout_ms):
                self._time_over(BEHIND_ALL, _number_of(due.rest))

    def _settle_due(self, count: int) -> None:
        running, grace_ms = self.events.stream_times, self.pending.grace_ms
        if grace_ms is None or not count:
            return
        while due := self.by_time.pop(int(running[count - 1]) - grace_ms - 1):
            at = int(np.searchsorted(running, due.time + grace_ms, side="right"))
            self._time_over(int(self.events.places[at]), _number_of(due.rest))

    def _wait(self, place: int, at: int, key: bytes) -> None:
        time, row = int(self.events.times[at]), int(self.events.rows[at])
        waiter = Waiter(self.next_number, time, self.events.now_ms or 0, key, row)
        grace_ms, stream_time = self.pending.grace_ms, int(self.events.stream_times[at])
        if grace_ms is not None and waiter.since + grace_ms < stream_time:
            self.settled.append(Settled(place, waiter, NO_ROW))
            return
        self.next_number += 1
        self._add(waiter)
        self.by_time.put(waiter.since, _NUMBER.pack(waiter.number))
        waiters = self.waiting[key]
        if self.pending.most is not None and len(waiters) > self.pending.most:
            self._time_over(place, min(waiters))

    def _add(self, waiter: Waiter) -> None:
        self.waiters[waiter.number] = waiter
        self.waiting.setdefault(waiter.key, {})[waiter.number] = None

    def _time_over(self, place: int, number: int) -> None:
        waiter = self.waiters.get(number)
        if waiter is not None:
            del self.waiting[waiter.key][number]
            self._end(place, waiter, NO_ROW)

    def _release(self, place: int, row: int, key: bytes) -> None:
        for number in sorted(self.waiting.pop(key, {})):
            self._end(place, self.waiters[number], row)

    def _end(self, place: int, waiter: Waiter, found: int) -> None:
        del self.waiters[waiter.number]
        self.settled.append(Settled(place, waiter, found))
        if waiter.row < 0:
            self.gone.append(self.retimed.pop(waiter.number, waiter))


def _prefix(key: bytes) -> bytes:
    return _BY_KEY + _LENGTH.pack(len(key)) + key


def _number_of(stored: bytes) -> int:
    found: int = _NUMBER.unpack(stored[-_NUMBER.size :])[0]
    return found


# --- the results of a join whose records may wait: of those that did, and of those that did not ---


@dataclass(kw_only=True)
class SettledRecords:
    """Collects them task by task. ``asking``: the batch's records; ``places``: of each, whose
    halves are ``seq``; ``matches``: what each row finds; ``found``: what is waited for, by row;
    ``by``: the records that bring it, row by row; ``kept``: those whose time is over have a null
    other side, else they are dropped."""

    pending: PendingLookups
    asking: EdgeBatch
    places: Int64
    matches: pa.Array
    found: pa.Array
    by: EdgeBatch
    kept: bool
    settled: list[tuple[int, Settled]] = field(default_factory=list)
    """With their tasks."""
    changes: dict[int, list[StoreChanges]] = field(default_factory=dict)
    retimed: dict[int, list[Waiter]] = field(default_factory=dict)
    """Of each task, who waits from now on (`TaskWaits.retimed`)."""

    def settle(self, partition: int, events: TaskEvents, stores: Stores) -> None:
        view = stores[partition][self.pending.store.name]
        waits = TaskWaits(pending=self.pending, events=events, view=view)
        self.settled += [(partition, one) for one in waits.settled]
        if waits.retimed:
            self.retimed[partition] = list(waits.retimed.values())
        if made := waits.written(self._stored([one.row for one in waits.stays])):
            self.changes[partition] = made

    def output(self, at_once: Int64) -> EdgeBatch:
        """All results in order. ``at_once``: rows of ``asking`` that do not wait."""
        settled = [one for one in self.settled if self.kept or one[1].found != NO_ROW]
        own = self.asking.take(at_once)
        matches = self.matches.take(at_once).cast(self.found.type)
        done = own.with_columns(value=joined(own.value, matches))
        if not settled:
            return done
        late = self._of(settled)
        places = np.concatenate(
            [np.array([one.place for _, one in settled], np.int64), self.places[at_once]]
        )
        return appended([late, done]).take(np.argsort(places, kind="stable"))

    @property
    def dropped(self) -> int:
        return 0 if self.kept else sum(one.found == NO_ROW for _, one in self.settled)

    def _of(self, settled: Sequence[tuple[int, Settled]]) -> EdgeBatch:
        """Results of those that have waited; each comes with the record that ended it, if any."""
        waiters = [one.waiter for _, one in settled]
        columns = self._records(waiters)
        rows = np.array([one.found for _, one in settled], np.int64)
        right = self.found.take(pa.array(rows, mask=rows == NO_ROW))
        source, offset = self._ended_by(settled)
        return EdgeBatch(
            key=columns.key,
            value=joined(columns.value, right),
            timestamp=np.array([one.time for one in waiters], np.int64),
            seq=np.array([max(0, one.place // 2) for _, one in settled], np.int64),
            source=source,
            partition=np.array([partition for partition, _ in settled], np.int32),
            offset=offset,
            headers=columns.headers,
        )

    def _ended_by(
        self, settled: Sequence[tuple[int, Settled]]
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int32]], Int64]:
        ends = np.unique(np.array([one.place // 2 for _, one in settled], np.int64))
        known: dict[tuple[int, int], tuple[int, int]] = {}
        for side in (self.by, self.asking):
            mine = side.take(np.flatnonzero(np.isin(side.seq, ends)))
            for at in range(len(mine)):
                record = int(mine.partition[at]), int(mine.seq[at])
                known[record] = int(mine.source[at]), int(mine.offset[at])
        places = [known.get((partition, one.place // 2), (0, -1)) for partition, one in settled]
        return (
            np.array([source for source, _ in places], np.int32),
            np.array([offset for _, offset in places], np.int64),
        )

    def _records(self, waiters: Sequence[Waiter]) -> RecordParts:
        parts = [unpacked_record(one.stored) for one in waiters if one.row < 0]
        stored = StoredRecords(
            [cast("bytes | None", listed[0]["value"]) for listed, _ in parts],
            [value for _, value in parts],
            [listed[1:] for listed, _ in parts],
        )
        rows, next_stored = [], len(self.asking)
        for one in waiters:
            rows.append(one.row if one.row >= 0 else next_stored)
            next_stored += one.row < 0
        at = np.array(rows, np.int64)
        return beside_stored(
            self.asking, stored, self.pending.key_serde, self.pending.value_serde, at
        )

    def _stored(self, rows: Sequence[int]) -> list[bytes]:
        """The records as they are stored: their own key as the first header, the others, value."""
        if not rows:
            return []
        at, pending, batch = np.array(rows, np.int64), self.pending, self.asking
        taken = batch.take(at)
        keys = written_bytes(
            pending.key_serde, taken.key, pending.store.name, batch, at
        ).to_pylist()
        values = written_bytes(
            pending.value_serde, taken.value, pending.store.name, batch, at
        ).to_pylist()
        headers = [[]] * len(rows) if taken.headers is None else taken.headers.to_pylist()
        return [
            packed_record([{"key": "", "value": key}, *(listed or [])], value)
            for key, listed, value in zip(keys, headers, values, strict=True)
        ]


CHECK_MS = 1_000
"""The interval at which waiting records are checked where nothing else makes a batch."""
SEEN = "seen"
"""Under which a task keeps what of the global table its records have been looked up in."""
_Updates = Mapping[int, Sequence[tuple[int, int, bytes]]]
"""Place, row and key of each new entry, by task."""


@dataclass(frozen=True, kw_only=True)
class _Waiting(KeepsLeft):
    """The base of both joins. A record without an entry waits in ``pending``: until an update of
    the table brings it, or until its time is over. Then it is emitted with a null right, where the
    ``kind`` keeps it, or dropped. Results have their records' times.
    """

    table: TableRead
    kind: JoinKind
    pending: PendingLookups

    @property
    def lag_ms(self) -> int:
        return self.pending.grace_ms or 0

    @property
    def wall_clock_interval_ms(self) -> int | None:
        timeout_ms = self.pending.timeout_ms
        return None if timeout_ms is None else min(CHECK_MS, max(timeout_ms // 10, 100))

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult:
        none = np.empty(0, np.int64)
        asking = self._asking(inputs.sides[0]).take(none)
        nothing = pa.nulls(0, self.table.type)
        results = SettledRecords(
            pending=self.pending,
            asking=asking,
            places=none,
            matches=nothing,
            found=nothing,
            by=asking,
            kept=self.kind.keeps_left,
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
            results.settle(partition, events, inputs.stores)
        return TasksResult(
            results.output(none), results.changes, {}, {"not-found": results.dropped}
        )

    def _asking(self, side: EdgeBatch) -> EdgeBatch:
        return side

    def _settled(
        self,
        results: SettledRecords,
        keyed: Int64,
        keys: pa.Array,
        updates: _Updates,
        inputs: Inputs,
        without_value: int,
    ) -> TasksResult:
        """``results``: empty, to take who waits no longer; ``keyed``: the rows of its records that
        have a key, and ``keys``."""
        asking, stores, now_ms = results.asking, inputs.stores, inputs.now_ms
        running, after = stream_times(asking.timestamp, asking.partition, inputs.stream_times)
        there = valid(results.matches)
        missing = np.flatnonzero(~there[keyed])
        missing_keys = keys.take(missing).to_pylist()
        missing = keyed[missing]
        for partition in sorted(stores):
            rows = np.flatnonzero(asking.partition == partition)
            mine = np.flatnonzero(asking.partition[missing] == partition)
            numbers = np.searchsorted(rows, missing[mine]).tolist()
            events = TaskEvents(
                rows=rows,
                places=results.places[rows],
                times=asking.timestamp[rows],
                stream_times=running[rows],
                misses=[*zip(numbers, [missing_keys[at] for at in mine], strict=True)],
                updates=updates.get(partition, ()),
                stream_time=after[partition],
                now_ms=now_ms,
            )
            results.settle(partition, events, stores)
        keyless = np.ones(len(asking), bool)
        keyless[keyed] = False
        output = results.output(np.flatnonzero(there | (keyless & results.kept)))
        dropped = {
            "null-value": without_value,
            "null-key": 0 if results.kept else int(np.count_nonzero(keyless)),
            "not-found": results.dropped,
        }
        done = TasksResult(output, results.changes, after, dropped)
        name = self.pending.store.name
        done.remarks += [
            f"{name} of partition {partition}: {len(waiters)} records wait since "
            f"{instant(max(one.came for one in waiters))}, which is ahead of this host's clock "
            f"({instant(now_ms)}). They wait for {self.pending.timeout_ms} ms from now on. Check "
            f"the clocks of the hosts that ran the task"
            for partition, waiters in results.retimed.items()
        ]
        return done


@dataclass(frozen=True, kw_only=True)
class LookupJoin(TableLookup, _Waiting):
    """With a table of the same tasks, whose updates, the second side, are events among the records.
    The sides behind it are updates of what the table is made of."""

    table_first: bool = True
    """True if an input record that is on both sides changes the table first."""

    def run(self, inputs: Inputs) -> TasksResult:
        left, right = inputs.sides[:2]
        asking, without = _valued(left, left.value)
        matches = self.table.entries_for(asking, inputs).values
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
        results = SettledRecords(
            pending=self.pending,
            asking=asking,
            places=asking.seq * 2 + self.table_first,
            matches=matches,
            found=right.value.cast(self.table.type),
            by=right,
            kept=self.kind.keeps_left,
        )
        keys = stored.keys_of(asking.take(keyed))
        return self._settled(results, keyed, keys, updates, inputs, without)


@dataclass(frozen=True, kw_only=True)
class GlobalLookupJoin(_Waiting):
    """With a global table, of values ``struct<fk, value>`` (see `StreamGlobalJoin`). Where it is
    not the one that a task's records were looked up in, all that wait are looked up first."""

    table: JoinedTable
    marks: ClassVar[tuple[str, ...]] = (SEEN,)

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        return (self.table.spec,)

    @property
    def wall_clock_interval_ms(self) -> int | None:
        return super().wall_clock_interval_ms or CHECK_MS

    def run(self, inputs: Inputs) -> TasksResult:
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
        matches = pa.nulls(len(asking), self.table.type)
        if len(keyed):
            index = np.full(len(asking), -1, np.int64)
            index[keyed] = np.arange(len(keyed)) + len(every)
            matches = found.take(pa.array(index, mask=index < 0))
        results = SettledRecords(
            pending=self.pending,
            asking=asking,
            places=asking.seq * 2,
            matches=matches,
            found=brought,
            by=asking.take(np.empty(0, np.int64)),
            kept=self.kind.keeps_left,
        )
        done = self._settled(results, keyed, written, updates, inputs, without)
        seen = {*waited, *done.changes}
        done.clocks.update({partition: {SEEN: whole.mark} for partition in seen})
        return done

    def _asking(self, side: EdgeBatch) -> EdgeBatch:
        return side.with_columns(value=side.value.flatten()[1])

    def _waited(
        self, stores: Stores, clocks: Mapping[int, Mapping[str, int]], mark: int
    ) -> dict[int, list[bytes]]:
        """The keys that each task's records wait for, if the table is another one."""
        found = {
            partition: self.pending.keys(views[self.pending.store.name])
            for partition, views in stores.items()
            if clocks[partition][SEEN] != mark
        }
        return {partition: keys for partition, keys in found.items() if keys}


def _valued(batch: EdgeBatch, values: pa.Array) -> tuple[EdgeBatch, int]:
    there = valid(values)
    rows = np.flatnonzero(there)
    return (batch if there.all() else batch.take(rows)), len(batch) - len(rows)
