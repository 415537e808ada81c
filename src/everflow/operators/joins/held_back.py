"""Holds a stream's records back until stream time has passed them by a grace (KIP-923).

They wait in a store, under time, key and a number that tells apart those of one key and time; with
their headers before their value. They come out in that order.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.joins.joined_values import Stores
from everflow.operators.user_code import written_bytes
from everflow.records import HEADERS, EdgeBatch, Int32, Int64, StoreChanges, joined_headers
from everflow.serdes import Serde
from everflow.state.changelog import unpack_value
from everflow.state.store import StoreSpec, StoreView, last_of_length

_TIME = struct.Struct(">q")
_NUMBER = struct.Struct(">i")
_NOTHING = -1


class TimeMakers(NamedTuple):
    """The records whose times make stream time, in their order: the task of each, and its stream
    time there."""

    partitions: Int32
    stream_times: Int64


class Released(NamedTuple):
    """Records that are not held back any more, in their order: the record of the clock at which
    each comes out, key bytes, and what they are; ``changes`` of the store, by task."""

    at: Int64
    keys: pa.Array
    key: pa.Array
    value: pa.Array
    times: Int64
    headers: pa.Array | None
    changes: dict[int, list[StoreChanges]]


class _Stored(NamedTuple):
    """Records from the store: the record of the clock at which each comes out, time, key bytes,
    headers and value bytes."""

    at: Int64
    times: Int64
    keys: list[bytes]
    headers: list[list[dict[str, object]]]
    values: list[bytes]

    def and_those_of(self, other: _Stored) -> _Stored:
        """All of both."""
        return _Stored(
            np.concatenate([self.at, other.at]),
            np.concatenate([self.times, other.times]),
            self.keys + other.keys,
            self.headers + other.headers,
            self.values + other.values,
        )


@dataclass(frozen=True, kw_only=True)
class HeldBack:
    """Where a stream's records wait, and for how long (``grace_ms``)."""

    store: StoreSpec
    key_serde: Serde
    value_serde: Serde
    grace_ms: int

    def release(
        self,
        batch: EdgeBatch,
        at: Int64,
        clock: TimeMakers,
        before: Mapping[int, int],
        stores: Stores,
    ) -> Released:
        """Takes the batch's records, all with key and value; ``at`` is the place of each among the
        clock's. One that is later than the grace comes out at once. ``before``: the tasks' stream
        times before the batch."""
        name = self.store.name
        keys = written_bytes(self.key_serde, batch.key, name, batch)
        due = np.full(len(batch), _NOTHING)
        stored = _nothing()
        changes: dict[int, list[StoreChanges]] = {}
        for partition in np.unique(clock.partitions).tolist():
            events = np.flatnonzero(clock.partitions == partition)
            running = clock.stream_times[events]
            mine = np.flatnonzero(batch.partition == partition)
            first = np.searchsorted(running, batch.timestamp[mine] + self.grace_ms, side="left")
            first = np.maximum(first, np.searchsorted(events, at[mine]))
            stays = first >= len(events)
            due[mine[~stays]] = events[first[~stays]]
            view = stores[partition][name]
            out, gone = self._due(view, events, running)
            stored = stored.and_those_of(out)
            kept = self._puts(view, batch, keys, mine[stays], before[partition])
            made = _changes(name, gone, int(running[-1]), kept)
            if len(made):
                changes[partition] = [made]
        return self._in_order(batch, keys, due, stored, changes)

    def _due(self, view: StoreView, events: Int64, running: Int64) -> tuple[_Stored, list[bytes]]:
        """What comes out of the store, and its keys there."""
        last = int(running[-1]) - self.grace_ms
        entries = [] if last < 0 else list(view.range(None, _TIME.pack(last + 1)))
        stored_keys = [key for key, _ in entries]
        times = np.array([_TIME.unpack_from(key)[0] for key in stored_keys], np.int64)
        parts = [unpacked_record(unpack_value(entry)[1]) for _, entry in entries]
        due = events[np.searchsorted(running, times + self.grace_ms, side="left")]
        plain = [key[_TIME.size : -_NUMBER.size] for key in stored_keys]
        return (
            _Stored(due, times, plain, [one for one, _ in parts], [value for _, value in parts]),
            stored_keys,
        )

    def _puts(
        self, view: StoreView, batch: EdgeBatch, keys: pa.Array, rows: Int64, before: int
    ) -> list[tuple[bytes, bytes, int]]:
        """Keys, values and times of the store for the rows that stay."""
        if not len(rows):
            return []
        index = pa.array(rows)
        values = batch.value.take(index)
        written = written_bytes(self.value_serde, values, self.store.name, batch, rows).to_pylist()
        headers = (
            [[]] * len(rows) if batch.headers is None else batch.headers.take(index).to_pylist()
        )
        times = batch.timestamp[rows].tolist()
        places = [
            _TIME.pack(time) + key
            for time, key in zip(times, keys.take(index).to_pylist(), strict=True)
        ]
        # Only those up to the stream time before can meet others of their key and time there.
        seen = sorted({place for place, time in zip(places, times, strict=True) if time <= before})
        lengths = [len(place) + _NUMBER.size for place in seen]
        lasts = last_of_length(view, [_numbers(place) for place in seen], lengths)
        number = {
            place: 0 if last is None else 1 + _NUMBER.unpack(last[0][-_NUMBER.size :])[0]
            for place, last in zip(seen, lasts, strict=True)
        }
        found = []
        for place, value, listed, time in zip(places, written, headers, times, strict=True):
            at = number.get(place, 0)
            number[place] = at + 1
            found.append((place + _NUMBER.pack(at), packed_record(listed, value), time))
        return found

    def _in_order(
        self,
        batch: EdgeBatch,
        keys: pa.Array,
        due: Int64,
        stored: _Stored,
        changes: dict[int, list[StoreChanges]],
    ) -> Released:
        rows = np.flatnonzero(due >= 0)
        out = batch.take(rows)
        at = np.concatenate([stored.at, due[rows]])
        times = np.concatenate([stored.times, out.timestamp])
        stored_keys = pa.array(stored.keys, pa.binary())
        both = pa.concat_arrays([stored_keys, keys.take(pa.array(rows)).cast(pa.binary())])
        ranks = pc.rank(both, tiebreaker="dense").to_numpy() if len(both) else np.empty(0)
        order = np.lexsort((ranks, times, at))  # stable: the stored ones are first
        values = self.value_serde.decode_array(pa.array(stored.values, pa.binary()))
        index = pa.array(order)
        headers = pa.array(stored.headers, HEADERS) if any(stored.headers) else None
        joined = joined_headers([(headers, len(stored.keys)), (out.headers, len(out))])
        return Released(
            at[order],
            both.take(index),
            pa.concat_arrays(
                [self.key_serde.decode_array(stored_keys).cast(out.key.type), out.key]
            ).take(index),
            pa.concat_arrays([values.cast(out.value.type), out.value]).take(index),
            times[order],
            None if joined is None else joined.take(index),
            changes,
        )


def come_out(by: EdgeBatch, released: Released, values: pa.Array) -> EdgeBatch:
    """Results of released records: positions are those of the records ``by`` which they came out,
    all else is their own."""
    made = by.with_columns(released.key, values)
    return replace(made, timestamp=released.times, headers=released.headers)


def _nothing() -> _Stored:
    return _Stored(np.empty(0, np.int64), np.empty(0, np.int64), [], [], [])


def _numbers(place: bytes) -> tuple[bytes, bytes]:
    """Bounds of the keys of one time and key."""
    return place + _NUMBER.pack(0), place + _NUMBER.pack(0x7FFFFFFF)


def _changes(
    name: str, gone: Sequence[bytes], stream_time: int, kept: Sequence[tuple[bytes, bytes, int]]
) -> StoreChanges:
    keys = [*gone, *(key for key, _, _ in kept)]
    values: list[bytes | None] = [*([None] * len(gone)), *(value for _, value, _ in kept)]
    times = [*([stream_time] * len(gone)), *(time for _, _, time in kept)]
    return StoreChanges(name, keys, values, np.array(times, np.int64))


def packed_record(headers: Sequence[Mapping[str, object]] | None, value: bytes) -> bytes:
    """Headers before a value: their number, then name and value with their lengths, -1 for none."""
    parts = [_NUMBER.pack(len(headers or ()))]
    for one in headers or ():
        name = str(one["key"]).encode()
        found = one["value"]
        parts += [_NUMBER.pack(len(name)), name]
        if isinstance(found, bytes):
            parts += [_NUMBER.pack(len(found)), found]
        else:
            parts.append(_NUMBER.pack(-1))
    return b"".join([*parts, value])


def unpacked_record(data: bytes) -> tuple[list[dict[str, object]], bytes]:
    """Inverse of `packed_record`."""
    (count,), at = _NUMBER.unpack_from(data), _NUMBER.size
    headers: list[dict[str, object]] = []
    for _ in range(count):
        name, at = _part(data, at)
        value, at = _part(data, at)
        headers.append({"key": (name or b"").decode(), "value": value})
    return headers, data[at:]


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,), at = _NUMBER.unpack_from(data, at), at + _NUMBER.size
    return (None, at) if length < 0 else (data[at : at + length], at + length)
