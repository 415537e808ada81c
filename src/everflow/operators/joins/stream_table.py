"""A stream enriched by a table: each record with what the table holds for its key."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.due_index import Changes, DueIndex
from everflow.operators.grouping import Stores, stored, stream_times
from everflow.operators.joins.joined_table import (
    JoinedTable,
    JoinKind,
    TableLookup,
    TableRead,
    joined,
)
from everflow.operators.stored_records import (
    StoredRecords,
    beside_stored,
    packed_record,
    unpacked_record,
)
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int32, Int64, StoreChanges, TasksResult, valid
from everflow.serdes import Serde
from everflow.state.changelog import unpack_value
from everflow.state.store import Entry, StoreSpec, StoreView, last_of_length
from everflow.topology.batches import appended, spread
from everflow.topology.graph import Inputs, Operator


@dataclass(frozen=True)
class StreamTableJoin(TableLookup):
    """Inner or left join (KStream-KTable): records of the stream give results, changes of the table
    do not.

    A versioned table is looked up as of the record's time. A record without a value is dropped; one
    without a key, or without an entry in the table, too, unless the ``kind`` keeps the left side:
    then its right is null (KIP-962). A result has the record's key, time and headers. The sides
    behind the stream are updates of what the table is made of.
    """

    table: TableRead
    kind: JoinKind
    one_result: ClassVar[bool] = True
    joins: ClassVar[bool] = True

    @property
    def takes_null_keys(self) -> bool:
        return self.kind.keeps_left

    def run(self, inputs: Inputs) -> TasksResult:
        left = inputs.sides[0]
        keyed, valued = valid(left.key), valid(left.value)
        taken = valued if self.kind.keeps_left else valued & keyed
        asking = left if taken.all() else left.take(np.flatnonzero(taken))
        held = self.table.held(asking, inputs).values
        output = asking.with_columns(value=joined(asking.value, held))
        if held.null_count and not self.kind.keeps_left:
            output = output.take(np.flatnonzero(valid(held)))
        dropped = {
            "null-value": int(np.count_nonzero(~valued)),
            "null-key": int(np.count_nonzero(valued & ~taken)),
        }
        return TasksResult(output, {}, {}, dropped)


# --- a stream enriched by a global table: the entry under a key that is made of each record -------


def mapped_type(left: pa.DataType, right: pa.DataType, key: pa.DataType) -> pa.DataType:
    """``struct<left, right, mapped>``: a match, and the key that was looked up."""
    return pa.struct([("left", left), ("right", right), ("mapped", key)])


def looked_up(table: JoinedTable, keys: pa.Array, view: StoreView) -> pa.Array:
    """The entries of a global table under key bytes, or null; each key is read once."""
    codes = keys.dictionary_encode()
    entries = view.get_many(codes.dictionary.to_pylist())
    found: pa.Array = stored(entries, table.results).values.cast(table.type)
    return found.take(codes.indices)


@dataclass(frozen=True)
class StreamGlobalJoin(Operator):
    """Inner or left join (KStream-GlobalKTable) of values ``struct<fk, value>``, ``fk`` the mapped
    key (see `everflow.operators.joins.foreign_keys.selected_type`).

    A record without a value is dropped; one whose mapped key is null, too, unless the ``kind``
    keeps the left side: then its right is null. A result has the record's own key, null or not, its
    time and headers. ``mapped``: the mapped key stands beside both sides (KIP-1340).
    """

    table: JoinedTable
    kind: JoinKind
    mapped: bool = False
    one_result: ClassVar[bool] = True

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        return (self.table.spec,)

    @property
    def takes_null_keys(self) -> bool:
        return self.kind.keeps_left

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        keys, values = batch.value.flatten()
        valued, mapped = valid(values), valid(keys)
        taken = valued if self.kind.keeps_left else valued & mapped
        dropped = {
            "null-value": int(np.count_nonzero(~valued)),
            "null-key": int(np.count_nonzero(valued & ~taken)),
        }
        rows = np.flatnonzero(taken)
        whole = next(iter(inputs.stores.values()))[self.table.spec.name]
        found = self._entries(batch, keys, rows, whole)
        if not self.kind.keeps_left and found.null_count:
            there = valid(found)
            rows, found = rows[there], found.filter(pa.array(there))
        at = pa.array(rows)
        value = self._value(values.take(at), found, keys.take(at))
        output = batch.take(rows).with_columns(value=value)
        return TasksResult(output, {}, {}, dropped)

    def _entries(self, batch: EdgeBatch, keys: pa.Array, rows: Int64, whole: StoreView) -> pa.Array:
        keyed = rows[valid(keys)[rows]]
        spec = self.table.spec
        written = written_bytes(spec.key_serde, keys.take(keyed), spec.name, batch, keyed)
        found = looked_up(self.table, written, whole)
        if len(keyed) == len(rows):
            return found
        return spread(found, np.searchsorted(rows, keyed), len(rows))

    def _value(self, left: pa.Array, right: pa.Array, mapped: pa.Array) -> pa.Array:
        if not self.mapped:
            return joined(left, right)
        return pa.StructArray.from_arrays(
            [left, right, mapped],
            fields=list(mapped_type(left.type, right.type, mapped.type)),
        )


# --- holds a stream's records back until stream time has passed them by a grace (KIP-923) ---------
# They wait in a store, under time, key and a number that tells apart those of one key and time;
# with their headers before their value. They come out in that order. Negative times wait as zero
# does.


_INDEX = DueIndex()
_NUMBER = struct.Struct(">i")
_NOTHING = -1


class TimeMakers(NamedTuple):
    """The records that make stream time, in order: the task of each, its stream time there."""

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
    """The buffer in which a stream's records wait for ``grace_ms``."""

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
        taken = keys.take(rows).cast(pa.binary())
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
            both.take(order),
            columns.key,
            columns.value,
            times[order],
            columns.headers,
            changes,
        )


def come_out(by: EdgeBatch, released: Released, values: pa.Array) -> EdgeBatch:
    """Results of released records, at the positions of the records ``by`` which they came out."""
    made = by.with_columns(released.key, values)
    return replace(made, timestamp=released.times, headers=released.headers)


def _numbers(place: bytes) -> tuple[bytes, bytes]:
    return place + _NUMBER.pack(0), place + _NUMBER.pack(0x7FFFFFFF)


# --- the records of a stream that is joined to a versioned table with a grace: they wait


@dataclass(frozen=True)
class GraceWait(Operator):
    """A record goes on when the stream's own stream time has reached its time and the grace; one
    that is later than that at once, and so does one without a key, where those are ``kept``. It
    goes on at the place of the record that brings it out, with its own time and headers;
    `StreamTableJoin` then looks up what the table holds as of its time.
    """

    held: HeldBack
    kept: bool

    @property
    def takes_null_keys(self) -> bool:
        return self.kept

    def run(self, inputs: Inputs) -> TasksResult:
        (stream,) = inputs.sides
        keyed, valued = valid(stream.key), valid(stream.value)
        rows = np.flatnonzero(keyed & valued)
        asking = stream.take(rows)
        running, after = stream_times(asking.timestamp, asking.partition, inputs.stream_times)
        released = self.held.release(
            asking,
            np.arange(len(rows), dtype=np.int64),
            TimeMakers(asking.partition, running),
            inputs.stream_times,
            inputs.stores,
        )
        output = come_out(asking.take(released.at), released, released.value)
        dropped = {"null-value": int(np.count_nonzero(~valued))}
        keyless = np.flatnonzero(valued & ~keyed)
        if self.kept:
            order = np.argsort(np.concatenate([rows[released.at], keyless]), kind="stable")
            output = appended([output, stream.take(keyless)]).take(order)
        else:
            dropped["null-key"] = len(keyless)
        return TasksResult(output, released.changes, after, dropped)

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult:
        none = np.empty(0, np.int64)
        clock = TimeMakers(ticks.partition, ticks.timestamp)
        released = self.held.release(
            ticks.take(none), none, clock, inputs.stream_times, inputs.stores
        )
        output = come_out(ticks.take(released.at), released, released.value)
        return TasksResult(output, released.changes, {}, {})
