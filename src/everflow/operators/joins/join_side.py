"""One side of a stream-stream join: its window store, and how far its matches may lie."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.due_index import TIME_BYTES, Changes, DueIndex
from everflow.operators.grouping import stream_times, task_slices
from everflow.operators.joins.joined_table import Stores, joined, task_codes
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int32, Int64, StoreChanges, valid
from everflow.serdes.base import SerdeError, rest
from everflow.serdes.windowed import START_BYTES, STORE_SUFFIX_BYTES, window_store_prefixes
from everflow.state.changelog import TIMESTAMP_BYTES, expiry_times
from everflow.state.store import Entry, StoreSpec, StoreView, last_of_length
from everflow.topology.batches import appended

_NUMBER_BYTES = STORE_SUFFIX_BYTES - START_BYTES
_LAST_TIME = np.iinfo(np.int64).max


@dataclass(frozen=True, kw_only=True)
class JoinSide:
    """A side's records, kept in a window store by key, time and a number that tells apart those of
    one key and time (as Kafka Streams keeps duplicates).

    A record at t meets those of the other side from t - ``back_ms`` to t + ``ahead_ms``. ``kept``:
    one that nothing has met gives a result without a match.
    """

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

    def decoded(self, entries: pa.Array) -> pa.Array:
        values = self.store.value_serde.decode_array(rest(entries, TIMESTAMP_BYTES))
        return values.cast(self.type)

    def read(self, groups: JoinKeys, low: Int64, high: Int64, stores: Stores) -> Kept:
        return read_entries(self.store.name, groups, low, high, stores)


class JoinKeys(NamedTuple):
    partitions: Int32
    keys: pa.Array

    def take(self, codes: Int64) -> JoinKeys:
        return JoinKeys(self.partitions[codes], self.keys.take(codes))

    def by_task(self) -> tuple[Int64, list[tuple[int, slice]]]:
        """The groups by task, then key, and where each task's are."""
        order = pc.sort_indices(self.keys).to_numpy().astype(np.int64)
        order = order[np.argsort(self.partitions[order], kind="stable")]
        return order, task_slices(self.partitions[order])


class Kept(NamedTuple):
    """Entries of a window store: the group, time (ms) and number of each."""

    codes: Int64
    times: Int64
    numbers: Int64
    entries: pa.Array

    @staticmethod
    def of(codes: list[int], keys: list[bytes], entries: list[bytes]) -> Kept:
        numbers = np.frombuffer(b"".join([key[-_NUMBER_BYTES:] for key in keys]), ">i4")
        return Kept(
            np.array(codes, np.int64),
            expiry_times(keys, "window"),
            numbers.astype(np.int64),
            pa.array(entries, pa.binary()),
        )


def read_entries(store: str, groups: JoinKeys, low: Int64, high: Int64, stores: Stores) -> Kept:
    """Each key's entries in a window store, from time ``low`` to ``high`` (ms, included)."""
    found = _Found([], [], [])
    order, parts = groups.by_task()
    column = groups.keys.take(order)
    starts, ends = _places(column, low[order]), _places(column, _after(high[order]))
    plain, numbers = column.to_pylist(), order.tolist()
    for partition, part in parts:
        bounds = list(zip(starts[part], ends[part], strict=True))
        listed = stores[partition][store].range_many(bounds)
        for code, key, entries in zip(numbers[part], plain[part], listed, strict=True):
            found.add(code, key, entries)
    return Kept.of(*found)


def read_as_of(
    store: str, groups: JoinKeys, low: Int64, first: Int64, last: Int64, stores: Stores
) -> Kept:
    """What those who ask from ``first`` to ``last`` (ms) may find of each group's key: the last
    entry from ``low`` to ``first``, and those behind it up to ``last``."""
    found = _Found([], [], [])
    order, parts = groups.by_task()
    column = groups.keys.take(order)
    starts, ends = _places(column, low[order]), _places(column, _after(first[order]))
    plain, numbers = column.to_pylist(), order.tolist()
    for partition, part in parts:
        bounds = list(zip(starts[part], ends[part], strict=True))
        lengths = [len(key) + STORE_SUFFIX_BYTES for key in plain[part]]
        lasts = last_of_length(stores[partition][store], bounds, lengths)
        for code, key, entry in zip(numbers[part], plain[part], lasts, strict=True):
            found.add(code, key, [] if entry is None else [entry])
    behind = read_entries(store, groups, _after(first), last, stores)
    kept = Kept.of(*found)
    return Kept(
        np.concatenate([kept.codes, behind.codes]),
        np.concatenate([kept.times, behind.times]),
        np.concatenate([kept.numbers, behind.numbers]),
        pa.concat_arrays([kept.entries, behind.entries]),
    )


class _Found(NamedTuple):
    codes: list[int]
    keys: list[bytes]
    entries: list[bytes]

    def add(self, code: int, key: bytes, entries: Sequence[Entry]) -> None:
        length = len(key) + STORE_SUFFIX_BYTES
        for stored_key, entry in entries:
            if len(stored_key) == length:  # else a longer key that begins like the bounds
                self.codes.append(code)
                self.keys.append(stored_key)
                self.entries.append(entry)


def _places(keys: pa.Array, times: Int64) -> list[bytes]:
    """Sorts before all entries of each key and time, and behind those of the times before."""
    found: list[bytes] = window_store_prefixes(keys, np.maximum(times, 0)).to_pylist()
    return found


def _after(times: Int64) -> Int64:
    return np.minimum(np.maximum(times, -1), _LAST_TIME - 1) + 1


# --- the records of both sides of a stream-stream join, in the order in which they came -----------


Flags = npt.NDArray[np.bool_]


@dataclass(kw_only=True)
class BatchRecords:
    """Columns by place, the position of a record among those of both sides.

    ``rows``: its row in its side's batch. ``stream_times``: of its task, itself included;
    ``before`` and ``after`` the whole batch, by task. ``side_times``: of its task's store of a
    side, itself included, by whether it is the left. ``live``: it has key and value; ``codes``: its
    task and key, as a number of ``groups`` (0 where it is not live). ``late``: it is live, and its
    window and the grace are over. ``stored``: it is live, and its side's store takes it.
    ``values``: bytes of each side's live records, in their order, by whether it is the left.
    ``keyless``: places of those that give a result without a match at once. ``advancing``: it has
    key and value, and no time before it was later.
    """

    of_left: Flags
    rows: Int64
    times: Int64
    partitions: Int32
    stream_times: Int64
    before: Mapping[int, int]
    after: dict[int, int]
    side_times: dict[bool, Int64]
    live: Flags
    late: Flags
    stored: Flags
    codes: Int64
    groups: JoinKeys
    values: dict[bool, pa.Array]
    keyless: Int64
    advancing: Flags
    dropped: dict[str, int]

    def __len__(self) -> int:
        return len(self.times)

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
        turn = np.repeat([0, 1] if left_first else [1, 0], [len(lefts), len(rights)])
        order = np.lexsort((turn, np.concatenate([b.seq for b in both])))
        of_left = order < len(lefts)
        rows = np.where(of_left, order, order - len(lefts))
        times = np.concatenate([b.timestamp for b in both])[order]
        partitions = np.concatenate([b.partition for b in both])[order]
        keyed = np.concatenate([valid(b.key) for b in both])[order]
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
        taken = {
            True: lefts.take(rows[live & of_left]),
            False: rights.take(rows[live & ~of_left]),
        }
        keys = pa.concat_arrays([sides[one].keys_of(taken[one]) for one in (True, False)])
        places = np.concatenate([np.flatnonzero(live & of_left), np.flatnonzero(live & ~of_left)])
        found = task_codes(keys, partitions[places])
        codes = np.zeros(len(times), np.int64)
        codes[places] = found
        _, first = np.unique(found, return_index=True)
        return BatchRecords(
            of_left=of_left,
            rows=rows,
            times=times,
            partitions=partitions,
            stream_times=running,
            before=before,
            after=after,
            side_times=side_times,
            live=live,
            late=late,
            stored=stored,
            codes=codes,
            groups=JoinKeys(partitions[places[first]], keys.take(first)),
            values={one: sides[one].values_of(taken[one]) for one in (True, False)},
            keyless=np.flatnonzero(valued & ~keyed & kept),
            advancing=keyed & valued & (times == running),
            dropped=dropped,
        )


# --- collects the results of a stream-stream join, and puts them into their order -----------------


MISSING = -1


class JoinedResults:
    """Results as references to values, which are copied once, at the end.

    Values are those of the batch, and what `extend` adds; so are keys, by place in the batch.
    """

    def __init__(self, records: BatchRecords, left: EdgeBatch, right: EdgeBatch) -> None:
        self._records = records
        self._values = {True: [left.value], False: [right.value]}
        both = appended([side.with_columns(value=pa.nulls(len(side))) for side in (left, right)])
        self._both = both.take(records.rows + np.where(records.of_left, 0, len(left)))
        """The records by place, without their values."""
        self._keys = [self._both.key]
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

    def matched(
        self, places: Int64, mine: Int64, theirs: Int64, times: Int64, *, mine_left: bool
    ) -> None:
        """Results of the records at ``places``, in the order in which they are given."""
        left, right = (mine, theirs) if mine_left else (theirs, mine)
        self._add(places, 1, places, left, right, times)

    def without_match(self, places: Int64) -> None:
        left, right = self._own(places)
        self._add(places, 1, places, left, right, self._records.times[places])

    def closed(self, places: Int64, keys: Int64, left: Int64, right: Int64, times: Int64) -> None:
        """Results of records whose windows closed when those at ``places`` came, in the order in
        which they are given; they come before what those give."""
        self._add(places, 0, keys, left, right, times)

    def _own(self, places: Int64) -> tuple[Int64, Int64]:
        rows, of_left = self._records.rows[places], self._records.of_left[places]
        return np.where(of_left, rows, MISSING), np.where(of_left, MISSING, rows)

    def _add(
        self, places: Int64, rank: int, keys: Int64, left: Int64, right: Int64, times: Int64
    ) -> None:
        self._found.append((places, np.full(len(places), rank), keys, left, right, times))

    def in_order(self) -> EdgeBatch:
        places, ranks, keys, left, right, times = map(
            np.concatenate, zip(*self._found, strict=True)
        )
        order = np.lexsort((ranks, places))
        made = self._both.take(places[order]).with_columns(
            key=pa.concat_arrays(self._keys).take(keys[order]),
            value=joined(self._taken(True, left[order]), self._taken(False, right[order])),
        )
        return replace(made, timestamp=times[order])

    def _taken(self, left: bool, refs: Int64) -> pa.Array:
        return pa.concat_arrays(self._values[left]).take(pa.array(refs, mask=refs == MISSING))


# --- records of a stream-stream join that wait for a match, in Kafka Streams' bytes ---------------
# `WaitingRecords` settles those of kept sides that nothing has met: they wait on, or give their
# results. Key: 8-byte time, 1 for the left side or 0, key bytes (TimestampedKeyAndJoinSide). Value:
# the list of the values of that key and time, each 1 (left) or 0 (right) and the value's bytes
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
class Met:
    """Where records met another for the first time: those of the batch by place; stored ones by
    task and key in the store of waiting records. A place in the batch, or `NEVER`."""

    here: Int64
    stored: dict[int, dict[bytes, int]]

    @staticmethod
    def nothing(count: int) -> Met:
        return Met(np.full(count, NEVER), {})

    def add(
        self, records: BatchRecords, kept: Kept, rows: Int64, places: Int64, left: bool
    ) -> None:
        codes = kept.codes[rows]
        keys = records.groups.keys.take(codes).to_pylist()
        owners = records.groups.partitions[codes].tolist()
        side = LEFT if left else RIGHT
        for partition, key, time, place in zip(
            owners, keys, kept.times[rows].tolist(), places.tolist(), strict=True
        ):
            mine = self.stored.setdefault(partition, {})
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
    have passed on, and the changes of the store. ``newest_ms``: the highest time of a record that
    was kept before the batch."""

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

    def settle(
        self,
        records: BatchRecords,
        met: Met,
        stores: Stores,
        results: JoinedResults,
        changes: dict[int, list[StoreChanges]],
    ) -> None:
        closed: list[_Closed] = []
        for partition, before in records.before.items():
            mine = records.partitions == partition
            places = np.flatnonzero(mine & records.advancing)
            task = _Task(
                view=stores[partition][self.store.name],
                newest_ms=max(
                    stores[partition][side.store.name].newest_ms for side in self.sides.values()
                ),
                met=met.stored.get(partition, {}),
                places=places,
                stream_times=records.stream_times[places],
                before=before,
            )
            self._forget_met(task)
            closed += self._stored_that_close(task, records.after[partition])
            waits = np.flatnonzero(mine & records.live & ~records.late)
            closed += self._of_batch(task, records, waits, met.here)
            made = Changes()
            for key, value in task.changes.items():
                made.add(key, value, _INDEX.time_of(key))
            changes[partition] += made.of(self.store.name)
        self._give(records, sorted(closed, key=lambda one: one[:3]), results)

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
        """The stored records that may close. What one side leaves open for longer, those behind
        which the other side's are closed, is not read again with every batch."""
        closes_ms = [side.closes_ms for side in self.sides.values() if side.kept]
        last, all_close = stream_time - min(closes_ms) - 1, stream_time - max(closes_ms) - 1
        entries = list(_INDEX.stored(task.view, all_close))
        # A record that has brought stream time to where it is has let go all that was due.
        settled = task.before - min(closes_ms) - 1 if task.newest_ms == task.before else -1
        behind = max(all_close, settled, -1)
        if last > behind:
            entries += _INDEX.stored(task.view, last, behind)
        return entries

    def _of_batch(
        self, task: _Task, records: BatchRecords, places: Int64, met: Int64
    ) -> Iterator[_Closed]:
        for left, side in self.sides.items():
            mine = places[records.of_left[places] == left] if side.kept else places[:0]
            closing = task.closing(records.times[mine] + side.closes_ms)
            alone = met[mine] >= np.where(closing < 0, NEVER, closing)
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

    def _give(self, records: BatchRecords, closed: list[_Closed], results: JoinedResults) -> None:
        if not closed:
            return
        keys = np.array([one.here for one in closed], np.int64)
        away = keys < 0
        serde = self.sides[True].store.key_serde
        stored = [one.key.key for one in closed if one.here < 0]
        begin = results.extend_keys(serde.decode_array(pa.array(stored, pa.binary())))
        keys[away] = begin + np.arange(len(stored))
        refs = {}
        for left, side in self.sides.items():
            mine = np.array([(one.key.side == LEFT) == left for one in closed])
            prefix = bytes(TIMESTAMP_BYTES)
            values = [
                prefix + one.value
                for one in closed
                if one.here < 0 and (one.key.side == LEFT) == left
            ]
            begin = results.extend(left, side.decoded(pa.array(values, pa.binary())))
            found = np.full(len(closed), MISSING, np.int64)
            found[mine & away] = begin + np.arange(len(values))
            here = np.flatnonzero(mine & ~away)
            found[here] = records.rows[keys[here]]
            refs[left] = found
        results.closed(
            np.array([one.place for one in closed], np.int64),
            keys,
            refs[True],
            refs[False],
            np.array([one.key.time for one in closed], np.int64),
        )


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
