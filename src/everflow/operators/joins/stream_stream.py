"""Two streams joined by key and closeness in time (KStream-KStream, KIP-633, KIP-962).

As in Kafka Streams, a store keeps its records for ``before + after + grace`` behind the highest
time of its own side. A record of a side that is kept, which has met nothing, waits until stream
time, which both sides share, passes the end of its window and the grace; then it gives its result
without a match. One that comes after that is late: it gives the result at once, and is counted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.operators.due_index import TIME_BYTES, Changes, DueIndex
from everflow.operators.grouping import (
    Flags,
    Kept,
    Stores,
    TaskKeys,
    changes_by_task,
    extent,
    read_entries,
    stream_times,
    task_codes,
)
from everflow.operators.joins.joined_table import JoinKind, KeepsLeft, in_turn, joined
from everflow.operators.user_code import written_bytes
from everflow.records import (
    LATE,
    LATE_UNMATCHED,
    EdgeBatch,
    Int64,
    StoreChanges,
    TasksResult,
    valid,
)
from everflow.serdes.base import SerdeError, rest
from everflow.serdes.windowed import window_store_keys
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.store import Entry, StoreSpec, StoreView
from everflow.topology.graph import Inputs
from everflow.windows import JoinWindows

# --- one side: its window store, and how far its matches may lie ----------------------------------


@dataclass(frozen=True, kw_only=True)
class JoinSide:
    """A side's records, kept in a window store by key, time and a number that tells apart those of
    one key and time. A record at t meets those of the other side from t - ``back_ms`` to t +
    ``ahead_ms``. ``kept``: one that nothing has met gives a result without a match."""

    left: bool
    store: StoreSpec
    type: pa.DataType
    back_ms: int
    ahead_ms: int
    grace_ms: int
    kept: bool

    @property
    def closes_ms(self) -> int:
        """A record at t is late, or closes, when the stream time of both sides is past t + this."""
        return self.ahead_ms + self.grace_ms

    @property
    def stays_ms(self) -> int:
        """The store has a record at t until the side's own time is past t + this."""
        return self.back_ms + self.ahead_ms + self.grace_ms

    def keys_of(self, batch: EdgeBatch) -> pa.Array:
        return written_bytes(self.store.key_serde, batch.key, self.store.name, batch)

    def values_of(self, batch: EdgeBatch) -> pa.Array:
        return written_bytes(self.store.value_serde, batch.value, self.store.name, batch)

    def decoded(self, values: pa.Array) -> pa.Array:
        return self.store.value_serde.decode_array(values).cast(self.type)

    def read(self, groups: TaskKeys, low: Int64, high: Int64, stores: Stores) -> Kept:
        return read_entries(self.store.name, groups, low, high, stores)


# --- the records of both sides of a stream-stream join, in the order in which they came -----------


@dataclass(kw_only=True)
class BatchRecords:
    """Columns by place, the position of a record among those of both sides.

    ``merged``: the records without their values; ``rows``: of each the row in its side's batch.
    ``stream_times``: of its task, itself included; ``before`` and ``after`` the whole batch, by
    task; ``newest``: the own times of the stores before it, by whether they are the left's, and
    task. ``side_times``: of its task's store of a side, itself included, by whether it is the left.
    ``live``: it has key and value; ``codes``: its task and key, as a number of ``groups`` (0 if not
    live). ``late``: it is live, and its window and the grace are over. ``stored``: its side's store
    takes it. ``values``: bytes of each side's live records, in their order, by whether it is the
    left. ``keyless``: places of those that give a result without a match at once. ``advancing``:
    live, and no time before was later.
    """

    merged: EdgeBatch
    of_left: Flags
    rows: Int64
    stream_times: Int64
    before: Mapping[int, int]
    after: dict[int, int]
    newest: Mapping[bool, Mapping[int, int]]
    side_times: dict[bool, Int64]
    live: Flags
    late: Flags
    stored: Flags
    codes: Int64
    groups: TaskKeys
    values: dict[bool, pa.Array]
    keyless: Int64
    advancing: Flags
    dropped: dict[str, int]

    def __post_init__(self) -> None:
        self.times, self.partitions = self.merged.timestamp, self.merged.partition

    def __len__(self) -> int:
        return len(self.merged)

    @property
    def keys(self) -> pa.Array:
        return self.groups.keys

    def live_of(self, left: bool) -> Int64:
        return np.flatnonzero(self.live & (self.of_left == left))

    def stored_of(self, left: bool) -> Int64:
        return np.flatnonzero(self.stored & (self.of_left == left))

    def values_at(self, left: bool, places: Int64) -> pa.Array:
        return self.values[left].take(pa.array(np.searchsorted(self.live_of(left), places)))

    @staticmethod
    def of_ticks(
        sides: Mapping[bool, JoinSide], both: Sequence[EdgeBatch], before: Mapping[int, int]
    ) -> BatchRecords:
        """No records, but times that the tasks' stream times reach, on the left side."""
        newest = dict.fromkeys((True, False), dict.fromkeys(before, -1))
        found = BatchRecords.of(sides, both, before=before, newest=newest, left_first=True)
        return replace(found, advancing=found.times == found.stream_times)

    @staticmethod
    def of(
        sides: Mapping[bool, JoinSide],
        both: Sequence[EdgeBatch],
        *,
        before: Mapping[int, int],
        newest: Mapping[bool, Mapping[int, int]],
        left_first: bool,
    ) -> BatchRecords:
        """Judges each record by the times at its place. ``both``: the left records and the right
        ones; ``newest``: the own times of the stores before the batch, by side and task.
        ``left_first``: where one input record is on both sides. UserFunctionError for a key or
        value that cannot be written."""
        left, right = sides[True], sides[False]
        lefts, rights = both
        merged, order = in_turn(lefts, rights, left_first)
        of_left = order < len(lefts)
        rows = np.where(of_left, order, order - len(lefts))
        times, partitions, keyed = merged.timestamp, merged.partition, valid(merged.key)
        valued = np.concatenate([valid(b.value) for b in both])[order]
        running, after = stream_times(times, partitions, before)
        kept = np.where(of_left, left.kept, right.kept)
        live = keyed & valued
        late = live & (times + np.where(of_left, left.closes_ms, right.closes_ms) < running)
        side_times, stored = {}, np.zeros(len(times), bool)
        for is_left, side in sides.items():
            mine = of_left == is_left
            put = np.where(live & mine, times, -1)
            own, _ = stream_times(put, partitions, newest[is_left])
            side_times[is_left] = own
            stored |= live & mine & (times + side.stays_ms >= own)
        dropped = {
            "null-value": int(np.count_nonzero(~valued)),
            "null-key": int(np.count_nonzero(valued & ~keyed & ~kept)),
        }
        taken = {True: lefts.take(rows[live & of_left]), False: rights.take(rows[live & ~of_left])}
        keys = pa.concat_arrays([sides[one].keys_of(taken[one]) for one in (True, False)])
        places = np.concatenate([np.flatnonzero(live & of_left), np.flatnonzero(live & ~of_left)])
        found = task_codes(keys, partitions[places])
        codes = np.zeros(len(times), np.int64)
        codes[places] = found
        _, first = np.unique(found, return_index=True)
        return BatchRecords(
            merged=merged,
            of_left=of_left,
            rows=rows,
            stream_times=running,
            before=before,
            after=after,
            newest=newest,
            side_times=side_times,
            live=live,
            late=late,
            stored=stored,
            codes=codes,
            groups=TaskKeys(partitions[places[first]], keys.take(first)),
            values={one: sides[one].values_of(taken[one]) for one in (True, False)},
            keyless=np.flatnonzero(valued & ~keyed & kept),
            advancing=keyed & valued & (times == running),
            dropped=dropped,
        )


# --- collects the results of a stream-stream join, and puts them into their order -----------------


MISSING = -1


class JoinedResults:
    """Results as references to values of the batch, and of `extend`, copied once at the end."""

    def __init__(self, records: BatchRecords, left: EdgeBatch, right: EdgeBatch) -> None:
        self._records = records
        self._values = {True: [left.value], False: [right.value]}
        self._keys = [records.merged.key]
        self._found: list[tuple[Int64, ...]] = []

    def extend(self, left: bool, values: pa.Array) -> int:
        """Adds values of a side; returns the reference of the first."""
        begin = sum(map(len, self._values[left]))
        self._values[left].append(values.cast(self._values[left][0].type))
        return begin

    def extend_keys(self, keys: pa.Array) -> int:
        begin = sum(map(len, self._keys))
        self._keys.append(keys.cast(self._keys[0].type))
        return begin

    def without_match(self, places: Int64) -> None:
        rows, of_left = self._records.rows[places], self._records.of_left[places]
        refs = {left: np.where(of_left == left, rows, MISSING) for left in (True, False)}
        self.add(places, refs, self._records.times[places])

    def add(
        self,
        places: Int64,
        refs: Mapping[bool, Int64],
        times: Int64,
        closed_keys: Int64 | None = None,
    ) -> None:
        """Results that the records at ``places`` bring, in order; ``refs``: by whether it is the
        left side. ``closed_keys``: of records whose windows closed, which come first at a place."""
        keys = places if closed_keys is None else closed_keys
        ranks = np.full(len(places), int(closed_keys is None))
        self._found.append((places, ranks, keys, refs[True], refs[False], times))

    def in_order(self) -> EdgeBatch:
        places, ranks, keys, left, right, times = map(
            np.concatenate, zip(*self._found, strict=True)
        )
        order = np.lexsort((ranks, places))
        made = self._records.merged.take(places[order]).with_columns(
            key=pa.concat_arrays(self._keys).take(keys[order]),
            value=joined(self._taken(True, left[order]), self._taken(False, right[order])),
        )
        return replace(made, timestamp=times[order])

    def _taken(self, left: bool, refs: Int64) -> pa.Array:
        return pa.concat_arrays(self._values[left]).take(pa.array(refs, mask=refs == MISSING))


# --- records of a stream-stream join that wait for a match, in Kafka Streams' bytes ---------------
# Key: 8-byte time, 1 for the left side or 0, key bytes (TimestampedKeyAndJoinSide). Value: the list
# of the values of that key and time, each 1 (left) or 0 (right) and the value's bytes
# (LeftOrRightValue in a ListSerializer's variable form). Earlier records come first.


NEVER = np.iinfo(np.int64).max
"""In place of a place in the batch."""
LEFT, RIGHT = 1, 0
_INDEX = DueIndex()
_HEAD = struct.Struct(">Bi")
_SIZE = struct.Struct(">i")
_VARIABLE = 1


class WaitingKey(NamedTuple):
    """Record time (ms), side (`LEFT`, `RIGHT`) and key bytes; sorts as its bytes do."""

    time: int
    side: int
    key: bytes

    def to_bytes(self) -> bytes:
        return _INDEX.key(self.time, bytes((self.side,)) + self.key)

    @staticmethod
    def of(stored: bytes) -> WaitingKey:
        """Inverse of `to_bytes`; SerdeError."""
        if len(stored) <= TIME_BYTES:
            raise SerdeError(f"{stored!r} is no key of a record that waits for a match")
        return WaitingKey(_INDEX.time_of(stored), stored[TIME_BYTES], stored[TIME_BYTES + 1 :])


@dataclass
class JoinBatch:
    """What a join makes of a batch. ``met``: where records met another for the first time, by
    place; ``met_stored``: stored ones, by task and key in the store of waiting records. A place in
    the batch, or `NEVER`. ``changes``: of the stores, by task."""

    records: BatchRecords
    results: JoinedResults
    stores: Stores
    met: Int64
    changes: dict[int, list[StoreChanges]]
    met_stored: dict[int, dict[bytes, int]] = field(default_factory=dict)

    @staticmethod
    def of(records: BatchRecords, sides: Sequence[EdgeBatch], stores: Stores) -> JoinBatch:
        results = JoinedResults(records, *sides)
        results.without_match(records.keyless)
        changes: dict[int, list[StoreChanges]] = {partition: [] for partition in records.after}
        return JoinBatch(records, results, stores, np.full(len(records), NEVER), changes)

    def add_met(self, kept: Kept, rows: Int64, places: Int64, left: bool) -> None:
        codes = kept.codes[rows]
        keys = self.records.groups.keys.take(codes).to_pylist()
        owners = self.records.groups.partitions[codes].tolist()
        side = LEFT if left else RIGHT
        for partition, key, time, place in zip(
            owners, keys, kept.times[rows].tolist(), places.tolist(), strict=True
        ):
            mine = self.met_stored.setdefault(partition, {})
            waiting_key = WaitingKey(time, side, key).to_bytes()
            mine[waiting_key] = min(place, mine.get(waiting_key, place))


class _Closed(NamedTuple):
    """A record without a match whose window closed at ``place``; ``number``: its place among those
    of the key, the stored ones first; ``here``: its place in the batch, or -1 and its stored
    ``value``."""

    place: int
    key: WaitingKey
    number: tuple[int, int]
    here: int
    value: bytes


@dataclass(kw_only=True)
class _Task:
    """A task's part: its store, where what it holds was met, its places at which stream time may
    have passed on, and the changes. ``newest_ms``: the highest time kept before the batch."""

    view: StoreView
    newest_ms: int
    met: Mapping[bytes, int]
    places: Int64
    stream_times: Int64
    before: int
    changes: dict[bytes, bytes | None] = field(default_factory=dict)

    def closing(self, times: Int64) -> Int64:
        """The places at which records that are open until ``times`` are closed; -1: none yet."""
        at = np.searchsorted(self.stream_times, times, side="right")
        if not len(self.places):
            return np.full(len(times), -1)
        return np.where(
            at < len(self.places), self.places[np.minimum(at, len(self.places) - 1)], -1
        )


@dataclass(frozen=True)
class WaitingRecords:
    """The store of waiting records of a join; its sides by whether they are the left."""

    store: StoreSpec
    sides: Mapping[bool, JoinSide]

    def settle(self, batch: JoinBatch) -> None:
        records, stores = batch.records, batch.stores
        closed: list[_Closed] = []
        for partition, before in records.before.items():
            mine = records.partitions == partition
            places = np.flatnonzero(mine & records.advancing)
            task = _Task(
                view=stores[partition][self.store.name],
                newest_ms=max(
                    stores[partition][side.store.name].newest_ms for side in self.sides.values()
                ),
                met=batch.met_stored.get(partition, {}),
                places=places,
                stream_times=records.stream_times[places],
                before=before,
            )
            self._forget_met(task)
            closed += self._stored_that_close(task, records.after[partition])
            waits = np.flatnonzero(mine & records.live & ~records.late)
            closed += self._of_batch(task, batch, waits)
            made = Changes()
            for key, value in task.changes.items():
                made.add(key, value, _INDEX.time_of(key))
            batch.changes[partition] += made.of(self.store.name)
        self._give(batch, sorted(closed, key=lambda one: one[:3]))

    def _forget_met(self, task: _Task) -> None:
        keys = sorted(task.met)
        for key, entry in zip(keys, task.view.get_many(keys), strict=True):
            if entry is not None:
                task.changes[key] = None

    def _stored_that_close(self, task: _Task, stream_time: int) -> Iterator[_Closed]:
        entries = self._may_close(task, stream_time)
        keys = [WaitingKey.of(stored_key) for stored_key, _ in entries]
        until = [key.time + self.sides[key.side == LEFT].closes_ms for key in keys]
        closing = task.closing(np.array(until, np.int64)).tolist()
        for (stored_key, entry), key, place in zip(entries, keys, closing, strict=True):
            if place < 0 or task.met.get(stored_key, NEVER) < place:
                continue
            task.changes[stored_key] = None
            for number, value in enumerate(values_of(entry[TIMESTAMP_BYTES:])):
                yield _Closed(place, key, (0, number), -1, value)

    def _may_close(self, task: _Task, stream_time: int) -> list[Entry]:
        """The stored records that may close; what one side leaves open for longer is not reread."""
        closes_ms = [side.closes_ms for side in self.sides.values() if side.kept]
        last, all_close = stream_time - min(closes_ms) - 1, stream_time - max(closes_ms) - 1
        entries = list(_INDEX.stored(task.view, all_close))
        # A record that has brought stream time to where it is has let go all that was due.
        settled = task.before - min(closes_ms) - 1 if task.newest_ms == task.before else -1
        behind = max(all_close, settled, -1)
        if last > behind:
            entries += _INDEX.stored(task.view, last, behind)
        return entries

    def _of_batch(self, task: _Task, batch: JoinBatch, places: Int64) -> Iterator[_Closed]:
        records = batch.records
        for left, side in self.sides.items():
            mine = places[records.of_left[places] == left] if side.kept else places[:0]
            closing = task.closing(records.times[mine] + side.closes_ms)
            alone = batch.met[mine] >= np.where(closing < 0, NEVER, closing)
            mine, closing = mine[alone], closing[alone]
            if not len(mine):
                continue
            times = records.times[mine]
            keys = records.keys.take(records.codes[mine]).to_pylist()
            rank = LEFT if left else RIGHT
            for at, (place, close) in enumerate(zip(mine.tolist(), closing.tolist(), strict=True)):
                if close >= 0:
                    key = WaitingKey(int(times[at]), rank, keys[at])
                    yield _Closed(close, key, (1, place), place, b"")
            open_ = np.flatnonzero(closing < 0)
            values = records.values_at(left, mine[open_]).to_pylist()
            fresh: dict[bytes, list[bytes]] = {}
            for at, value in zip(open_.tolist(), values, strict=True):
                key_bytes = WaitingKey(int(times[at]), rank, keys[at]).to_bytes()
                fresh.setdefault(key_bytes, []).append(value)
            self._store(task, rank, fresh)

    def _store(self, task: _Task, rank: int, fresh: Mapping[bytes, list[bytes]]) -> None:
        # A time beyond what the task had seen is nobody else's.
        seen = [key for key in fresh if WaitingKey.of(key).time <= task.before]
        known = {
            key: values_of(entry[TIMESTAMP_BYTES:])
            for key, entry in zip(seen, task.view.get_many(seen), strict=True)
            if entry is not None and key not in task.changes
        }
        for key, values in fresh.items():
            task.changes[key] = list_bytes(rank, [*known.get(key, ()), *values])

    def _give(self, batch: JoinBatch, closed: list[_Closed]) -> None:
        if not closed:
            return
        records, results = batch.records, batch.results
        keys = np.array([one.here for one in closed], np.int64)
        away = keys < 0
        serde = self.sides[True].store.key_serde
        stored = [one.key.key for one in closed if one.here < 0]
        begin = results.extend_keys(serde.decode_array(pa.array(stored, pa.binary())))
        keys[away] = begin + np.arange(len(stored))
        refs = {}
        for left, side in self.sides.items():
            mine = np.array([(one.key.side == LEFT) == left for one in closed])
            values = [one.value for one, its in zip(closed, mine & away, strict=True) if its]
            begin = results.extend(left, side.decoded(pa.array(values, pa.binary())))
            found = np.full(len(closed), MISSING, np.int64)
            found[mine & away] = begin + np.arange(len(values))
            here = np.flatnonzero(mine & ~away)
            found[here] = records.rows[keys[here]]
            refs[left] = found
        places = np.array([one.place for one in closed], np.int64)
        times = np.array([one.key.time for one in closed], np.int64)
        results.add(places, refs, times, closed_keys=keys)


def list_bytes(side: int, values: Sequence[bytes]) -> bytes:
    parts = [_HEAD.pack(_VARIABLE, len(values))]
    for value in values:
        parts += [_SIZE.pack(len(value) + 1), bytes((side,)), value]
    return b"".join(parts)


def values_of(data: bytes) -> list[bytes]:
    """Inverse of `list_bytes`; SerdeError."""
    try:
        form, count = _HEAD.unpack_from(data)
        at, found = _HEAD.size, list[bytes]()
        for _ in range(count):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            found.append(data[at + 1 : at + size])
            at += size
    except struct.error:
        form, at = -1, -1
    if form != _VARIABLE or at != len(data):
        raise SerdeError(f"{data[:40]!r} is no list of values that wait for a match")
    return found


# --- finds which records of two sides meet: a search by key and time, for a whole batch at once ---


MOST_AT_ONCE = 4_000_000
"""Candidate pairs that are in memory at once."""


class Asking(NamedTuple):
    """Records that need matches: group, first and last time (ms), place, stream time there."""

    codes: Int64
    first: Int64
    last: Int64
    places: Int64
    stream_times: Int64


class Candidates(NamedTuple):
    """Records of the other side: group, time (ms), place in the batch (-1: stored before it), the
    stream time up to which each is open; of one group and time in the order in which they came."""

    codes: Int64
    times: Int64
    places: Int64
    open_until: Int64


def matches(asking: Asking, candidates: Candidates) -> tuple[Int64, Int64]:
    """Pairs (row of ``asking``, row of ``candidates``), by row of ``asking``, then time: each with
    the candidates that came before it, and are open when it comes."""
    order = np.lexsort((candidates.times, candidates.codes))
    times = np.unique(candidates.times)
    span = len(times) + 1
    sorted_by = candidates.codes[order] * span + np.searchsorted(times, candidates.times[order])
    # In times that are there, so that products stay small whatever the times are.
    low = asking.codes * span + np.searchsorted(times, asking.first, side="left")
    high = asking.codes * span + np.searchsorted(times, asking.last, side="right")
    begin = np.searchsorted(sorted_by, low, side="left")
    counts = np.maximum(np.searchsorted(sorted_by, high, side="left") - begin, 0)
    found = [
        _met(
            asking,
            candidates,
            order,
            begin,
            counts,
            rows,
        )
        for rows in _portions(counts)
    ]
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate([one for one, _ in found]), np.concatenate([two for _, two in found])


def _portions(counts: Int64) -> Iterator[Int64]:
    rows = np.flatnonzero(counts)
    number = np.cumsum(counts[rows]) // MOST_AT_ONCE
    for one in np.unique(number):
        yield rows[number == one]


def _met(
    asking: Asking,
    candidates: Candidates,
    order: Int64,
    begin: Int64,
    counts: Int64,
    rows: Int64,
) -> tuple[Int64, Int64]:
    many = counts[rows]
    mine = np.repeat(rows, many)
    inside = np.arange(len(mine)) - np.repeat(np.cumsum(many) - many, many)
    theirs = order[np.repeat(begin[rows], many) + inside]
    meets = (candidates.places[theirs] < asking.places[mine]) & (
        candidates.open_until[theirs] >= asking.stream_times[mine]
    )
    return mine[meets], theirs[meets]


@dataclass(frozen=True)
class StreamStreamJoin(KeepsLeft):
    """Inner, left or outer join in windows.

    A record without a value is dropped. One without a key is dropped, or gives its result without a
    match at once where its side is kept. Results of a match have the later time of both; those
    without the record's own. Both have the headers of the record that made them.
    """

    kind: JoinKind
    windows: JoinWindows
    stores: tuple[StoreSpec, StoreSpec]
    """Of the left and of the right side, as ``types``."""
    types: tuple[pa.DataType, pa.DataType]
    waiting: StoreSpec | None
    """Records of kept sides that nothing has met yet; None where no side is."""
    left_first: bool = True
    """The side that takes an input record first that is on both."""
    joins: ClassVar[bool] = True

    @cached_property
    def sides(self) -> Mapping[bool, JoinSide]:
        """By whether they are the left."""
        before, after = self.windows.before_ms, self.windows.after_ms
        return {
            left: JoinSide(
                left=left,
                store=self.stores[not left],
                type=self.types[not left],
                back_ms=before if left else after,
                ahead_ms=after if left else before,
                grace_ms=self.windows.grace_ms,
                kept=self.kind.keeps_left if left else self.kind.keeps_right,
            )
            for left in (True, False)
        }

    def run(self, inputs: Inputs) -> TasksResult:
        newest = {
            left: {
                partition: inputs.stores[partition][side.store.name].newest_ms
                for partition in inputs.stream_times
            }
            for left, side in self.sides.items()
        }
        records = BatchRecords.of(
            self.sides,
            inputs.sides,
            before=inputs.stream_times,
            newest=newest,
            left_first=self.left_first,
        )
        batch = JoinBatch.of(records, inputs.sides, inputs.stores)
        for left, mine in self.sides.items():
            self._meet(batch, mine, self.sides[not left])
        for side in self.sides.values():
            _keep(batch, side)
        if self.waiting is not None:
            WaitingRecords(self.waiting, self.sides).settle(batch)
        dropped = records.dropped | self._late(batch)
        return TasksResult(batch.results.in_order(), batch.changes, records.after, dropped)

    def _late(self, batch: JoinBatch) -> dict[str, int]:
        """Gives the results of late records that have met nothing, where their side is kept; says
        how many these are, and how many have no effect at all."""
        records = batch.records
        alone = records.live & (batch.met != np.arange(len(records)))
        kept = np.where(records.of_left, self.sides[True].kept, self.sides[False].kept)
        at_once = np.flatnonzero(alone & records.late & kept)
        batch.results.without_match(at_once)
        lost = int(np.count_nonzero(alone & ~kept & ~records.stored))
        return {LATE_UNMATCHED: len(at_once), LATE: lost}

    @property
    def lag_ms(self) -> int:
        return max((side.closes_ms for side in self.sides.values() if side.kept), default=0)

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult | None:
        if self.waiting is None:
            return None
        nothing = inputs.sides[1].take(np.empty(0, np.int64))
        records = BatchRecords.of_ticks(self.sides, (ticks, nothing), inputs.stream_times)
        batch = JoinBatch.of(records, (ticks, nothing), inputs.stores)
        WaitingRecords(self.waiting, self.sides).settle(batch)
        return TasksResult(batch.results.in_order(), batch.changes, {}, {})

    def _meet(self, batch: JoinBatch, mine: JoinSide, theirs: JoinSide) -> None:
        records, results = batch.records, batch.results
        asks = records.live_of(mine.left)
        others = records.stored_of(theirs.left)
        if not len(asks):
            return
        times, codes = records.times[asks], records.codes[asks]
        first, last = times - mine.back_ms, times + mine.ahead_ms
        kept = _stored(batch, theirs, asks, first, last)
        candidates = Candidates(
            np.concatenate([kept.codes, records.codes[others]]),
            np.concatenate([kept.times, records.times[others]]),
            np.concatenate([np.full(len(kept.times), -1), others]),
            np.concatenate([kept.times, records.times[others]]) + theirs.stays_ms,
        )
        there = records.side_times[theirs.left][asks]
        one, two = matches(Asking(codes, first, last, asks, there), candidates)
        places, stored = asks[one], two < len(kept.times)
        np.minimum.at(batch.met, places, places)
        np.minimum.at(batch.met, others[two[~stored] - len(kept.times)], places[~stored])
        used, at = np.unique(two[stored], return_inverse=True)
        if theirs.kept:
            by = np.full(len(used), NEVER)
            np.minimum.at(by, at, places[stored])
            batch.add_met(kept, used, by, theirs.left)
        values = rest(kept.entries.take(used), TIMESTAMP_BYTES)
        begin = results.extend(theirs.left, theirs.decoded(values))
        refs = np.empty(len(two), np.int64)
        refs[stored] = begin + at
        refs[~stored] = records.rows[others[two[~stored] - len(kept.times)]]
        both = {mine.left: records.rows[places], theirs.left: refs}
        results.add(places, both, np.maximum(records.times[places], candidates.times[two]))


def _stored(
    batch: JoinBatch,
    side: JoinSide,
    asks: Int64,
    first: Int64,
    last: Int64,
) -> Kept:
    """The side's stored records that those in ``asks`` may meet; each key is read once."""
    records = batch.records
    ones, codes = np.unique(records.codes[asks], return_inverse=True)
    low, high = extent(codes, len(ones), first, last)
    found = side.read(records.groups.take(ones), low, high, batch.stores)
    return found._replace(codes=ones[found.codes])


def _keep(batch: JoinBatch, side: JoinSide) -> None:
    records = batch.records
    places = records.stored_of(side.left)
    times, codes = records.times[places], records.codes[places]
    numbers = _numbers(codes, times)
    owners = records.partitions[places]
    of_task = records.newest[side.left]
    newest = np.array([of_task[owner] for owner in owners.tolist()], np.int64)
    again = np.flatnonzero(times <= newest)
    if len(again):  # only these can meet records of their own key and time in the store
        numbers[again] += _next_numbers(batch, side, codes[again], times[again])
    keys = window_store_keys(records.keys.take(codes), times, numbers)
    values = records.values_at(side.left, places)
    for partition, made in changes_by_task(
        side.store.name,
        owners,
        keys,
        values,
        times,
    ).items():
        batch.changes[partition] += made


def _numbers(codes: Int64, times: Int64) -> Int64:
    """0, 1, ... for the records of each key and time, in their order."""
    order = np.lexsort((times, codes))
    same = np.zeros(len(codes), bool)
    same[1:] = (np.diff(codes[order]) == 0) & (np.diff(times[order]) == 0)
    at = np.arange(len(codes))
    begin = np.maximum.accumulate(np.where(same, 0, at)) if len(at) else at
    numbers = np.empty(len(codes), np.int64)
    numbers[order] = at - begin
    return numbers


def _next_numbers(batch: JoinBatch, side: JoinSide, codes: Int64, times: Int64) -> Int64:
    """For each key and time the number behind those that are stored."""
    order = np.lexsort((times, codes))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(codes[order]) != 0) | (np.diff(times[order]) != 0)
    pairs = order[new]
    found = side.read(
        batch.records.groups.take(codes[pairs]), times[pairs], times[pairs], batch.stores
    )
    free = np.zeros(len(pairs), np.int64)
    np.maximum.at(free, found.codes, found.numbers + 1)
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(new) - 1
    return free[place]
