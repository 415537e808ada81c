"""Records of a stream-stream join that wait for a match, in Kafka Streams' bytes.

`WaitingRecords` settles those of kept sides that nothing has met: they wait on, or give their
results. Key: 8-byte time, 1 for the left side or 0, key bytes (TimestampedKeyAndJoinSide). Value:
the list of the values of that key and time, each 1 (left) or 0 (right) and the value's bytes
(LeftOrRightValue in a ListSerializer's variable form). Earlier records come first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from everflow.operators.due_index import TIME_BYTES, Changes, DueIndex
from everflow.operators.joins.batch_records import BatchRecords
from everflow.operators.joins.join_side import JoinSide, Kept
from everflow.operators.joins.joined_results import MISSING, JoinedResults
from everflow.operators.joins.joined_values import Stores
from everflow.records import Int64, StoreChanges
from everflow.serdes.base import SerdeError
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.store import Entry, StoreSpec, StoreView

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
        """None of so many records have met anything."""
        return Met(np.full(count, NEVER), {})

    def add(
        self, records: BatchRecords, kept: Kept, rows: Int64, places: Int64, left: bool
    ) -> None:
        """Stored records of a side, and the places at which they were met."""
        codes = kept.codes[rows]
        keys = records.groups.keys.take(pa.array(codes)).to_pylist()
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
        """Adds the results of what has closed and the changes of the store."""
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
        """Records of the batch that nothing has met before they close; those that stay open are
        stored."""
        for left, side in self.sides.items():
            mine = places[records.of_left[places] == left] if side.kept else places[:0]
            closing = task.closing(records.times[mine] + side.closes_ms)
            alone = met[mine] >= np.where(closing < 0, NEVER, closing)
            mine, closing = mine[alone], closing[alone]
            if not len(mine):
                continue
            times = records.times[mine]
            keys = records.keys.take(pa.array(records.codes[mine])).to_pylist()
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
        """Behind the values that wait under the same keys already."""
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
    """Values of one key, time and side."""
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
