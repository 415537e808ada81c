"""Holds a stream's records back until stream time has passed them by a grace (KIP-923).

They wait in a store, under time, key and a number that tells apart those of one key and time; with
their headers before their value. They come out in that order. Negative times wait as zero does.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.due_index import Changes, DueIndex
from everflow.operators.joins.joined_values import Stores
from everflow.operators.stored_records import (
    StoredRecords,
    beside_stored,
    packed_record,
    unpacked_record,
)
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int32, Int64, StoreChanges
from everflow.serdes import Serde
from everflow.state.changelog import unpack_value
from everflow.state.store import Entry, StoreSpec, StoreView, last_of_length

_INDEX = DueIndex()
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
        goes_at = np.maximum(batch.timestamp, 0) + self.grace_ms
        stored: list[Entry] = []
        stored_due = [np.empty(0, np.int64)]
        changes: dict[int, list[StoreChanges]] = {}
        for partition in np.unique(clock.partitions).tolist():
            events = np.flatnonzero(clock.partitions == partition)
            running = clock.stream_times[events]
            mine = np.flatnonzero(batch.partition == partition)
            first = np.searchsorted(running, goes_at[mine], side="left")
            first = np.maximum(first, np.searchsorted(events, at[mine]))
            stays = first >= len(events)
            due[mine[~stays]] = events[first[~stays]]
            view = stores[partition][name]
            stream_time, changed = int(running[-1]), Changes()
            out = list(_INDEX.stored(view, stream_time - self.grace_ms))
            for key, _ in out:
                changed.add(key, None, stream_time)
            times = np.array([_INDEX.time_of(key) for key, _ in out], np.int64)
            places = np.searchsorted(running, times + self.grace_ms, side="left")
            stored_due.append(events[places])
            stored += out
            self._put(changed, view, batch, keys, mine[stays], before[partition])
            if made := changed.of(name):
                changes[partition] = made
        return self._in_order(batch, keys, due, stored, np.concatenate(stored_due), changes)

    def _put(
        self,
        changed: Changes,
        view: StoreView,
        batch: EdgeBatch,
        keys: pa.Array,
        rows: Int64,
        before: int,
    ) -> None:
        """Puts the rows that stay into the store."""
        if not len(rows):
            return
        index = pa.array(rows)
        values = batch.value.take(index)
        written = written_bytes(self.value_serde, values, self.store.name, batch, rows).to_pylist()
        headers = (
            [[]] * len(rows) if batch.headers is None else batch.headers.take(index).to_pylist()
        )
        times = batch.timestamp[rows].tolist()
        places = [
            _INDEX.key(max(time, 0), key)
            for time, key in zip(times, keys.take(index).to_pylist(), strict=True)
        ]
        # Only those up to the stream time before can meet others of their key and time there.
        known = max(before, 0)
        seen = sorted({place for place, time in zip(places, times, strict=True) if time <= known})
        lengths = [len(place) + _NUMBER.size for place in seen]
        lasts = last_of_length(view, [_numbers(place) for place in seen], lengths)
        number = {
            place: 0 if last is None else 1 + _NUMBER.unpack(last[0][-_NUMBER.size :])[0]
            for place, last in zip(seen, lasts, strict=True)
        }
        for place, value, listed, time in zip(places, written, headers, times, strict=True):
            at = number.get(place, 0)
            number[place] = at + 1
            changed.add(place + _NUMBER.pack(at), packed_record(listed, value), time)

    def _in_order(
        self,
        batch: EdgeBatch,
        keys: pa.Array,
        due: Int64,
        stored: Sequence[Entry],
        stored_due: Int64,
        changes: dict[int, list[StoreChanges]],
    ) -> Released:
        rows = np.flatnonzero(due >= 0)
        parts = [unpack_value(entry) for _, entry in stored]
        records = [unpacked_record(data) for _, data in parts]
        stored_keys = [_INDEX.rest_of(key)[: -_NUMBER.size] for key, _ in stored]
        at = np.concatenate([stored_due, due[rows]])
        stored_times = np.array([time for time, _ in parts], np.int64)
        times = np.concatenate([stored_times, batch.timestamp[rows]])
        taken = keys.take(pa.array(rows)).cast(pa.binary())
        both = pa.concat_arrays([pa.array(stored_keys, pa.binary()), taken])
        ranks = pc.rank(both, tiebreaker="dense").to_numpy() if len(both) else np.empty(0)
        order = np.lexsort((ranks, times, at))  # stable: the stored ones are first
        columns = beside_stored(
            batch,
            StoredRecords(
                stored_keys, [value for _, value in records], [listed for listed, _ in records]
            ),
            self.key_serde,
            self.value_serde,
            np.concatenate([len(batch) + np.arange(len(stored)), rows])[order],
        )
        return Released(
            at[order],
            both.take(pa.array(order)),
            columns.key,
            columns.value,
            times[order],
            columns.headers,
            changes,
        )


def come_out(by: EdgeBatch, released: Released, values: pa.Array) -> EdgeBatch:
    """Results of released records: positions are those of the records ``by`` which they came out,
    all else is their own."""
    made = by.with_columns(released.key, values)
    return replace(made, timestamp=released.times, headers=released.headers)


def _numbers(place: bytes) -> tuple[bytes, bytes]:
    """Bounds of the keys of one time and key."""
    return place + _NUMBER.pack(0), place + _NUMBER.pack(0x7FFFFFFF)
