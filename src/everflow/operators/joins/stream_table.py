"""A stream enriched by a table, or by the latest record of another stream that is not later."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.due_index import Changes, DueIndex
from everflow.operators.grouping import (
    NEVER,
    Kept,
    Stores,
    TaskKeys,
    changes_by_task,
    extent,
    read_as_of,
    rows_by_task,
    stored,
    stream_times,
    task_codes,
)
from everflow.operators.joins.joined_table import (
    NONE,
    STORED,
    JoinedTable,
    JoinKind,
    KeepsLeft,
    TableLookup,
    TableRead,
    Versions,
    in_turn,
    joined,
    latest_before,
)
from everflow.operators.stored_records import (
    StoredRecords,
    beside_stored,
    packed_record,
    unpacked_record,
)
from everflow.operators.user_code import written_bytes
from everflow.records import LATE, EdgeBatch, Int64, StoreChanges, TasksResult, valid
from everflow.serdes import Serde
from everflow.serdes.windowed import window_store_keys
from everflow.state.changelog import unpack_value
from everflow.state.store import Entry, StoreSpec, StoreView, last_of_length
from everflow.topology.batches import appended, spread
from everflow.topology.graph import Inputs, Operator


@dataclass(frozen=True)
class StreamTableJoin(TableLookup, KeepsLeft):
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

    def run(self, inputs: Inputs) -> TasksResult:
        left = inputs.sides[0]
        taken, dropped = self.taken(left.key, left.value)
        asking = left if taken.all() else left.take(np.flatnonzero(taken))
        matches = self.table.entries_for(asking, inputs).values
        output = asking.with_columns(value=joined(asking.value, matches))
        if matches.null_count and not self.kind.keeps_left:
            output = output.take(np.flatnonzero(valid(matches)))
        return TasksResult(output, {}, {}, dropped)


# --- a stream enriched by a global table: the entry under a key that is made of each record -------


def mapped_type(left: pa.DataType, right: pa.DataType, key: pa.DataType) -> pa.DataType:
    return pa.struct([("left", left), ("right", right), ("mapped", key)])


def looked_up(table: JoinedTable, keys: pa.Array, view: StoreView) -> pa.Array:
    """The entries of a global table under key bytes, or null; each key is read once."""
    codes = keys.dictionary_encode()
    entries = view.get_many(codes.dictionary.to_pylist())
    found: pa.Array = stored(entries, table.results).values.cast(table.type)
    return found.take(codes.indices)


@dataclass(frozen=True)
class StreamGlobalJoin(KeepsLeft):
    """Inner or left join (KStream-GlobalKTable) of ``struct<fk, value>``, ``fk`` the mapped key.

    As `StreamTableJoin`, with the mapped key for the record's, which may be null. ``mapped``: the
    mapped key stands beside both sides (KIP-1340).
    """

    table: JoinedTable
    kind: JoinKind
    mapped: bool = False
    one_result: ClassVar[bool] = True

    @property
    def looks_up(self) -> tuple[StoreSpec, ...]:
        return (self.table.spec,)

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        keys, values = batch.value.flatten()
        taken, dropped = self.taken(keys, values)
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

    def _entries(
        self,
        batch: EdgeBatch,
        keys: pa.Array,
        rows: Int64,
        whole: StoreView,
    ) -> pa.Array:
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
# They wait under time, key and a number, and come out in that order. Negative times wait as zero.


_INDEX = DueIndex()
_NUMBER = struct.Struct(">i")
_NOTHING = -1


class Released(NamedTuple):
    """Records that have left the buffer, in their order. ``at``: the number of the record of
    the clock that brings each out; ``keys``: key bytes; ``changes`` of the store, by task."""

    output: EdgeBatch
    at: Int64
    keys: pa.Array
    changes: dict[int, list[StoreChanges]]


@dataclass(frozen=True, kw_only=True)
class GraceBuffer:
    """The buffer in which a stream's records wait for ``grace_ms``."""

    store: StoreSpec
    key_serde: Serde
    value_serde: Serde
    grace_ms: int

    def release(
        self,
        batch: EdgeBatch,
        at: Int64,
        clock: EdgeBatch,
        inputs: Inputs,
    ) -> Released:
        """Takes the batch's records, all with key and value; ``at`` is the place of each among
        those of the ``clock``, which make stream time, in order: their times are the tasks' stream
        times. One that is later than the grace comes out at once."""
        name = self.store.name
        keys = written_bytes(self.key_serde, batch.key, name, batch)
        due = np.full(len(batch), _NOTHING)
        goes_at = np.maximum(batch.timestamp, 0) + self.grace_ms
        stored: list[Entry] = []
        stored_due = [np.empty(0, np.int64)]
        changes: dict[int, list[StoreChanges]] = {}
        for partition in np.unique(clock.partition).tolist():
            events = np.flatnonzero(clock.partition == partition)
            running = clock.timestamp[events]
            mine = np.flatnonzero(batch.partition == partition)
            first = np.searchsorted(running, goes_at[mine], side="left")
            first = np.maximum(first, np.searchsorted(events, at[mine]))
            stays = first >= len(events)
            due[mine[~stays]] = events[first[~stays]]
            view = inputs.stores[partition][name]
            stream_time, changed = int(running[-1]), Changes()
            out = list(_INDEX.stored(view, stream_time - self.grace_ms))
            for key, _ in out:
                changed.add(key, None, stream_time)
            times = np.array([_INDEX.time_of(key) for key, _ in out], np.int64)
            places = np.searchsorted(running, times + self.grace_ms, side="left")
            stored_due.append(events[places])
            stored += out
            before = inputs.stream_times[partition]
            self._put(changed, view, batch, keys, mine[stays], before)
            if made := changed.of(name):
                changes[partition] = made
        places = np.concatenate(stored_due)
        return Released(*self._in_order(batch, keys, due, stored, places, clock), changes)

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
        written = written_bytes(
            self.value_serde,
            values,
            self.store.name,
            batch,
            rows,
        ).to_pylist()
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
        clock: EdgeBatch,
    ) -> tuple[EdgeBatch, Int64, pa.Array]:
        """What comes out, at which record of the clock, and the key bytes."""
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
        made = clock.take(at[order]).with_columns(columns.key, columns.value)
        output = replace(made, timestamp=times[order], headers=columns.headers)
        return output, at[order], both.take(order)


def _numbers(place: bytes) -> tuple[bytes, bytes]:
    return place + _NUMBER.pack(0), place + _NUMBER.pack(0x7FFFFFFF)


# --- the records of a stream that is joined to a versioned table with a grace: they wait


@dataclass(frozen=True)
class GraceWait(Operator):
    """A record goes on when the stream's own time has reached its time and the grace, at the place
    of the record that brings it out; a later one, and one without a key (``kept``), at once."""

    buffer: GraceBuffer
    kept: bool

    @property
    def lag_ms(self) -> int:
        return self.buffer.grace_ms

    @property
    def takes_null_keys(self) -> bool:
        return self.kept

    def run(self, inputs: Inputs) -> TasksResult:
        (stream,) = inputs.sides
        keyed, valued = valid(stream.key), valid(stream.value)
        rows = np.flatnonzero(keyed & valued)
        asking = stream.take(rows)
        running, after = stream_times(asking.timestamp, asking.partition, inputs.stream_times)
        clock, at = replace(asking, timestamp=running), np.arange(len(rows), dtype=np.int64)
        released = self.buffer.release(asking, at, clock, inputs)
        output = released.output
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
        released = self.buffer.release(ticks.take(none), none, ticks, inputs)
        return TasksResult(released.output, released.changes, {}, {})


# --- as-of join of two streams: each left record with the latest right one that is not later ------
# Stream time is that of both sides; right records are kept for tolerance and grace behind it.


@dataclass(frozen=True, kw_only=True)
class AsOfJoin(KeepsLeft):
    """Inner or left. A left record at t meets, of the right records with its key from t -
    ``tolerance_ms`` to t, the latest (of one time the one that came last), as far as they have come
    when stream time has reached t and the grace; at once without ``buffer``, or if it is late.

    Right records are dropped as late once no left record within the grace can meet them. Null
    values are dropped; null keys too, but of a left join's left side: they get a null right at
    once. A result has the left record's time and headers.
    """

    kind: JoinKind
    right: StoreSpec
    type: pa.DataType
    tolerance_ms: int
    buffer: GraceBuffer | None
    left_first: bool = True
    """The side that takes an input record first that is on both."""
    joins: ClassVar[bool] = True

    @property
    def kept_ms(self) -> int:
        """The time for which right records are of use behind stream time (ms)."""
        return self.tolerance_ms + self.lag_ms

    @property
    def lag_ms(self) -> int:
        return 0 if self.buffer is None else self.buffer.grace_ms

    def run(self, inputs: Inputs) -> TasksResult:
        left, right = inputs.sides
        events = _Events.of(
            left,
            right,
            inputs.stream_times,
            self.kind.keeps_left,
            self.left_first,
        )
        rights = right.take(events.rows[events.of_right])
        open_ = rights.timestamp >= events.running[events.of_right] - self.kept_ms
        puts = self._puts(rights.take(np.flatnonzero(open_)), events.of_right[open_])
        kept = puts.records
        changes = changes_by_task(
            self.right.name,
            kept.partition,
            window_store_keys(puts.keys, kept.timestamp),
            written_bytes(self.right.value_serde, kept.value, self.right.name, kept),
            kept.timestamp,
        )
        asking = left.take(events.rows[events.asking])
        output, places, waited = self._met(asking, events, puts, inputs)
        for partition, listed in waited.items():
            changes.setdefault(partition, []).extend(listed)
        alone = left.take(events.rows[events.keyless])
        alone = alone.with_columns(value=joined(alone.value, pa.nulls(len(alone), self.type)))
        order = np.argsort(np.concatenate([places, events.keyless]), kind="stable")
        dropped = {**events.dropped, LATE: len(rights) - len(kept)}
        return TasksResult(
            appended([output, alone]).take(order),
            changes,
            events.after,
            dropped,
        )

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult | None:
        if self.buffer is None:
            return None
        none = np.empty(0, np.int64)
        puts = self._puts(inputs.sides[1].take(none), none)
        events = _Events.of_ticks(ticks, inputs.stream_times)
        output, _, changes = self._met(ticks.take(none), events, puts, inputs)
        return TasksResult(output, changes, {}, {})

    def _puts(self, records: EdgeBatch, places: Int64) -> _Puts:
        keys = written_bytes(self.right.key_serde, records.key, self.right.name, records)
        return _Puts(records, keys, places)

    def _met(
        self, asking: EdgeBatch, events: _Events, puts: _Puts, inputs: Inputs
    ) -> tuple[EdgeBatch, Int64, dict[int, list[StoreChanges]]]:
        """The results of left records that get their match now, the places of the records that
        bring them, and the changes of the store in which left records wait."""
        released = self._released(asking, events, inputs)
        found = self._found(released, events, puts, inputs.stores)
        shown = np.arange(len(found)) if self.kind.keeps_left else np.flatnonzero(valid(found))
        output = released.output
        output = output.with_columns(value=joined(output.value, found)).take(shown)
        return output, released.at[shown], released.changes

    def _released(self, asking: EdgeBatch, events: _Events, inputs: Inputs) -> Released:
        if self.buffer is not None:
            clock = replace(events.both, timestamp=events.running)
            return self.buffer.release(asking, events.asking, clock, inputs)
        keys = written_bytes(self.right.key_serde, asking.key, self.right.name, asking)
        return Released(asking, events.asking, keys.cast(pa.binary()), {})

    def _found(
        self,
        released: Released,
        events: _Events,
        puts: _Puts,
        stores: Stores,
    ) -> pa.Array:
        count, left, right = len(released.keys), released.output, puts.records
        # One that is late meets no more than what is kept, whatever a batch still holds.
        until = events.until()[released.at]
        low = np.maximum(left.timestamp - self.tolerance_ms, until - self.kept_ms)
        both = pa.concat_arrays([released.keys, puts.keys.cast(pa.binary())])
        codes = task_codes(both, np.concatenate([left.partition, right.partition]))
        kept = self._stored(released, codes[:count], low, stores)
        times = np.concatenate([kept.times, right.timestamp])
        known = Versions(
            np.concatenate([kept.codes, codes[count:]]),
            times,
            np.concatenate([np.full(len(kept.times), STORED), puts.places]),
        )
        found = latest_before(codes[:count], left.timestamp, released.at, known)
        met = found != NONE
        met[met] = times[found[met]] >= low[met]
        used = np.unique(found[met & (found < len(kept.times))])
        values = stored(kept.entries.take(used).to_pylist(), self.right.value_serde)
        here = found >= len(kept.times)
        index = np.where(here, found - len(kept.times), len(right) + np.searchsorted(used, found))
        column = pa.concat_arrays([right.value.cast(self.type), values.values.cast(self.type)])
        return column.take(pa.array(np.where(met, index, 0), mask=~met))

    def _stored(self, released: Released, codes: Int64, low: Int64, stores: Stores) -> Kept:
        """The stored right records that the left ones may meet; each key is read once."""
        ones, first, group = np.unique(codes, return_index=True, return_inverse=True)
        least, _ = extent(group, len(ones), low, low)
        left = released.output
        earliest, most = extent(group, len(ones), left.timestamp, left.timestamp)
        groups = TaskKeys(left.partition[first], released.keys.take(first))
        found = read_as_of(self.right.name, groups, least, earliest, most, stores)
        return found._replace(codes=ones[found.codes])


class _Puts(NamedTuple):
    """Right records that are kept, their key bytes, and their places among the events."""

    records: EdgeBatch
    keys: pa.Array
    places: Int64


@dataclass(frozen=True, kw_only=True)
class _Events:
    """The records of both sides that are not dropped at once, in their order.

    ``both``: without values; ``rows``: of each in its side's batch; ``running``: stream time at
    each. ``asking``, ``keyless``, ``of_right``: places of left records with
    and without a key, and of right ones.
    """

    both: EdgeBatch
    rows: Int64
    running: Int64
    before: Mapping[int, int]
    after: dict[int, int]
    asking: Int64
    keyless: Int64
    of_right: Int64
    dropped: dict[str, int]

    def until(self) -> Int64:
        """Stream time before each."""
        found = np.empty(len(self.running), np.int64)
        for partition, mine in rows_by_task(self.both.partition):
            found[mine] = np.concatenate([[self.before[partition]], self.running[mine[:-1]]])
        return found

    @staticmethod
    def of_ticks(ticks: EdgeBatch, before: Mapping[int, int]) -> _Events:
        none = np.empty(0, np.int64)
        return _Events(
            both=ticks.with_columns(value=pa.nulls(len(ticks))),
            rows=none,
            running=ticks.timestamp,
            before=before,
            after={},
            asking=none,
            keyless=none,
            of_right=none,
            dropped={},
        )

    @staticmethod
    def of(
        left: EdgeBatch,
        right: EdgeBatch,
        before: Mapping[int, int],
        keeps_left: bool,
        left_first: bool,
    ) -> _Events:
        keyed = [valid(side.key) for side in (left, right)]
        valued = [valid(side.value) for side in (left, right)]
        rows = [
            np.flatnonzero(valued[0] & (keyed[0] | keeps_left)),
            np.flatnonzero(valued[1] & keyed[1]),
        ]
        count = len(rows[0])
        both, order = in_turn(left.take(rows[0]), right.take(rows[1]), left_first)
        keyless = ~valid(both.key)
        running, after = stream_times(
            np.where(keyless, NEVER, both.timestamp), both.partition, before
        )
        is_left = order < count
        return _Events(
            both=both,
            rows=np.concatenate(rows)[order],
            running=running,
            before=before,
            after=after,
            asking=np.flatnonzero(is_left & ~keyless),
            keyless=np.flatnonzero(keyless),
            of_right=np.flatnonzero(~is_left),
            dropped={
                "null-value": sum(int(np.count_nonzero(~one)) for one in valued),
                "null-key": int(np.count_nonzero(valued[0] & ~keyed[0])) * (not keeps_left)
                + int(np.count_nonzero(valued[1] & ~keyed[1])),
            },
        )
