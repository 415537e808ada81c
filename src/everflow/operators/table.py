"""Tables: the last value per key, every version of it, or when an id has gone by."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.grouping import (
    NEVER,
    Flags,
    Groups,
    Kept,
    KeyedOperator,
    Stores,
    TaskKeys,
    changes_by_task,
    extent,
    read_entries,
    result,
    stream_times,
    task_codes,
)
from everflow.operators.joins.joined_table import JoinedTable, latest_when_put
from everflow.operators.suppress import SuppressSpec
from everflow.operators.user_code import written_alike, written_bytes
from everflow.records import LATE, EdgeBatch, Int64, TasksResult, valid
from everflow.serdes import Serde
from everflow.serdes.changed import changed_type
from everflow.serdes.debezium_serde import lacking
from everflow.serdes.windowed import window_store_keys
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.topology.graph import Inputs, Operator, TableOperator
from everflow.topology.plan import StatefulOp


@dataclass(frozen=True)
class TableSpec(KeyedOperator):
    """Keeps the last value of each key; null keys are dropped, a null value deletes and is
    forwarded. An update older than the stored one is applied all the same, as in Kafka Streams
    without versioned stores. One output per key and batch, the last, with its own time; all with
    ``emit_every_update``."""

    store: str
    key_serde: Serde
    value_serde: Serde
    emit_every_update: bool = False
    only_visible: bool = False
    """A deletion of what is not there is dropped (KAFKA-10077); this one reads the store."""
    partial: bool = False
    """Values that a change of its source does not have stay as they are (note 071)."""

    @property
    def result(self) -> pa.DataType:
        return self.value_serde.type

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        if self.only_visible:
            batch = self._visible(batch, inputs)
        groups = self.groups_of(batch, inputs, skip_null_values=False)
        if self.partial:
            batch = self._completed(batch, groups, inputs)
        last_rows = groups.rows[groups.last]
        written = written_bytes(
            self.value_serde, batch.value.take(last_rows), self.store, batch, last_rows
        ).to_pylist()
        changes = groups.changes(self.store, written, batch.timestamp[last_rows])
        at = (
            np.arange(len(groups.rows), dtype=np.int64)
            if self.emit_every_update
            else np.sort(groups.last)
        )
        rows = groups.rows[at]
        values, times = batch.value.take(rows), batch.timestamp[rows]
        return result(batch, groups, changes, at=at, values=values, timestamps=times)

    def _completed(self, batch: EdgeBatch, groups: Groups, inputs: Inputs) -> EdgeBatch:
        """What a change does not have is what the entry had before it; null where there was none.
        The store is read only where a change lacks something."""
        lacks = lacking(batch.value)
        if not lacks:
            return batch
        some = np.any(list(lacks.values()), axis=0)
        codes = np.unique(groups.codes[some[groups.rows]]).tolist()
        entries = groups.entries(inputs, self.store)
        stored = [entry and entry[TIMESTAMP_BYTES:] for entry in (entries[one] for one in codes)]
        known = self.value_serde.decode_array(pa.array(stored, pa.binary())).to_pylist()
        rows_of = dict(zip(codes, known, strict=True))
        at = np.flatnonzero(np.isin(groups.codes, codes))
        rows = groups.rows[at]
        values = batch.value.take(pa.array(rows)).to_pylist()
        for value, row, code in zip(values, rows.tolist(), groups.codes[at].tolist(), strict=True):
            for name in [one for one, flags in lacks.items() if flags[row]]:
                value[name] = (rows_of[code] or {}).get(name)
            rows_of[code] = value
        places = np.arange(len(batch))
        places[rows] = len(batch) + np.arange(len(rows))
        both = pa.concat_arrays([batch.value, pa.array(values, batch.value.type)])
        return batch.with_columns(value=both.take(pa.array(places)))

    def _visible(self, batch: EdgeBatch, inputs: Inputs) -> EdgeBatch:
        groups = self.groups_of(batch, inputs, skip_null_values=False)
        there = valid(batch.value)[groups.rows]
        order = np.argsort(groups.codes, kind="stable")
        first = np.diff(groups.codes[order], prepend=-1) != 0
        before = np.empty(len(order), bool)
        before[order[~first]] = there[order[np.flatnonzero(~first) - 1]]
        entries = groups.entries(inputs, self.store)
        before[order[first]] = [entry is not None for entry in entries]
        # Null keys stay, to be counted as dropped.
        kept = np.ones(len(batch), bool)
        kept[groups.rows] = there | before
        return batch.take(np.flatnonzero(kept))


# --- versioned tables (KIP-889, KIP-914): each update is a version, and so is a deletion ----------
# A version that is older than the history retention is ignored and counted as late. One that comes
# out of order is kept and passed on, but joins and groups of the latest values leave it out.


@dataclass(frozen=True)
class VersionedTableSpec(KeyedOperator):
    """Keeps every version within ``history_ms`` (ms) of stream time, and the latest; null keys are
    dropped. All updates are passed on, each with its time, in ``emit_every_update`` or not."""

    store: str
    key_serde: Serde
    value_serde: Serde
    history_ms: int
    emit_every_update: bool = True

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        keyed = np.flatnonzero(valid(batch.key))
        times, owners = batch.timestamp[keyed], batch.partition[keyed]
        running, after = stream_times(times, owners, inputs.stream_times)
        rows = keyed[times >= running - self.history_ms]
        put = batch if len(rows) == len(batch) else batch.take(rows)
        keys = written_bytes(self.key_serde, put.key, self.store, put)
        values = written_bytes(self.value_serde, put.value, self.store, put)
        changes = changes_by_task(self.store, put.partition, keys, values, put.timestamp)
        dropped = {"null-key": len(batch) - len(keyed), LATE: len(keyed) - len(rows)}
        return TasksResult(put, changes, after, dropped)


@dataclass(frozen=True)
class LatestUpdates(Operator):
    """A versioned table's updates that are the latest when they come; others: ``out-of-order``."""

    table: JoinedTable
    emit_every_update: bool = True
    one_result: ClassVar[bool] = True
    passes_on: ClassVar[bool] = True

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        rows = np.flatnonzero(latest_when_put(self.table, batch, inputs.stores))
        return TasksResult(
            batch.take(rows),
            {},
            {},
            {"out-of-order": len(batch) - len(rows)},
        )


# --- changes of a table's entries, and what they were: for filters and groupings of tables --------
# A change is ``struct<new, old>`` (KTable-groupBy, KIP-904); an entry leaves its old group first.


def with_old(op: StatefulOp, output: EdgeBatch, stores: Stores) -> EdgeBatch:
    """A table's updates with what each entry was, or null; ``stores``: as before the batch."""
    operator: Any = op.operator
    if not len(output):
        return replace(output, old=output)
    if operator.old_from:
        return output
    if isinstance(operator, SuppressSpec):  # a result comes once for each key: nothing was there
        nothing = pa.nulls(len(output), op.type.value)
        return replace(output, old=output.with_columns(value=nothing))
    if isinstance(operator, LatestUpdates):
        table = operator.table
    else:
        table = JoinedTable(op.stores[0], operator.results, op.type.value)
    before = table.before(output, stores)
    return replace(output, old=output.with_columns(value=before.values))


@dataclass(frozen=True)
class VisibleUpdates(Operator):
    """A filtered table's updates, without those of entries that were not and are not there."""

    one_result: ClassVar[bool] = True
    old_sides: ClassVar[tuple[int, ...]] = (0,)
    old_from: ClassVar[tuple[int, ...]] = (0,)

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        assert batch.old is not None
        seen = valid(batch.old.value) | valid(batch.value)
        return TasksResult(
            batch if seen.all() else batch.take(np.flatnonzero(seen)),
            {},
            {},
            {},
        )


@dataclass(frozen=True)
class TableChanges(Operator):
    """Of each update the old pair of group and value, and the new one; a pair without either is
    none. ``key_serde`` writes the groups: two are the same where their bytes are."""

    key_serde: Serde
    old_sides: ClassVar[tuple[int, ...]] = (0,)

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`: one change where the group is the same, else one for each group."""
        (right,) = inputs.sides
        left = right.old
        assert left is not None
        was, there = (valid(side.key) & valid(side.value) for side in (left, right))
        same = was & there & written_alike(self.key_serde, left.key, right.key)
        count = len(right)
        rows = np.concatenate([np.flatnonzero(was & ~same), np.flatnonzero(there)])
        is_old = np.arange(len(rows)) < np.count_nonzero(was & ~same)
        order = np.lexsort((~is_old, rows))
        rows, is_old = rows[order], is_old[order]
        values = [
            right.value.take(pa.array(rows, mask=is_old)),
            left.value.take(pa.array(rows, mask=~(is_old | same[rows]))),
        ]
        key = pa.concat_arrays([right.key, left.key]).take(rows + is_old * count)
        value = pa.StructArray.from_arrays(values, fields=list(changed_type(right.value.type)))
        return TasksResult(right.take(rows).with_columns(key, value), {}, {}, {})


@dataclass(frozen=True)
class Changes(Operator):
    """Of each update an envelope of Debezium, ``struct<before, after, op, ts_ms>``; of a deletion
    also a null value behind it, by which compaction forgets the key. A deletion of what was not
    there is none. ``type``: of the envelope."""

    type: pa.DataType
    old_sides: ClassVar[tuple[int, ...]] = (0,)

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`; op is c, u or d, ts_ms the time of the update's record."""
        (new,) = inputs.sides
        old = new.old
        assert old is not None
        was, there = valid(old.value), valid(new.value)
        changed, gone = np.flatnonzero(was | there), np.flatnonzero(was & ~there)
        rows = np.concatenate([changed, gone])
        ends = np.arange(len(rows)) >= len(changed)
        order = np.lexsort((ends, rows))
        rows, ends = rows[order], ends[order]
        ops = pa.array(["c", "u", "d"]).take(pa.array(was[rows] * (2 - there[rows].astype(int))))
        columns = [old.value.take(rows), new.value.take(rows), ops, pa.array(new.timestamp[rows])]
        value = pa.StructArray.from_arrays(columns, fields=list(self.type), mask=pa.array(ends))
        return TasksResult(new.take(rows).with_columns(value=value), {}, {}, {})


# --- repeated records: the first of an id goes on, those that are close to it in time do not ------
# Of an id the times of its records that went on are kept, in a window store with empty values.


@dataclass(frozen=True, kw_only=True)
class DeduplicateSpec(TableOperator):
    """A record goes on unless one of its id that went on is at most ``within_ms`` away, before or
    after. Records without an id go on, and do not move stream time.

    Late ones, more than ``grace_ms`` behind stream time, and those of negative times are dropped.
    ``beside``: the id is beside the value (`everflow.topology.graph.beside`), else it is the key.
    """

    store: str
    key_serde: Serde
    """The serde of the ids."""
    value_serde: Serde
    within_ms: int
    grace_ms: int
    beside: bool
    emit_every_update: bool = False

    @property
    def retention_ms(self) -> int:
        """A record that is not late meets those of ``within_ms`` before it."""
        return self.within_ms + self.grace_ms + 1

    def run(self, inputs: Inputs) -> TasksResult:
        """See `Operator`; every result is the record as it came, headers and all."""
        (batch,) = inputs.sides
        ids, value = batch.key, batch.value
        if self.beside:
            ids, value = (pc.struct_field(batch.value, [i]) for i in (0, 1))
        times = batch.timestamp
        known, negative = valid(ids), times < 0
        running, after = stream_times(
            np.where(known, times, NEVER), batch.partition, inputs.stream_times
        )
        late = times + self.grace_ms < running
        dropped = {
            "negative-timestamp": int(np.count_nonzero(known & negative)),
            LATE: int(np.count_nonzero(known & ~negative & late)),
        }
        rows = np.flatnonzero(known & ~negative & ~late)
        keys = written_bytes(self.key_serde, ids.take(rows), self.store, batch, rows)
        codes = task_codes(keys, batch.partition[rows])
        _, first = np.unique(codes, return_index=True)
        groups = TaskKeys(batch.partition[rows[first]], keys.take(first))
        low, high = extent(codes, len(first), times[rows], times[rows])
        low, high = low - self.within_ms, high + self.within_ms
        stored = read_entries(self.store, groups, low, high, inputs.stores)
        new = _new(codes, times[rows], stored, self)
        written = window_store_keys(groups.keys.take(codes[new]), times[rows[new]])
        changes = changes_by_task(
            self.store,
            groups.partitions[codes[new]],
            written,
            pa.repeat(pa.scalar(b""), len(written)),
            times[rows[new]],
        )
        goes_on = ~known
        goes_on[rows[new]] = True
        chosen = np.flatnonzero(goes_on)
        output = batch.take(chosen).with_columns(value=value.take(chosen))
        return TasksResult(output, changes, after, dropped)


def _new(codes: Int64, times: Int64, stored: Kept, spec: DeduplicateSpec) -> Flags:
    """True for records that pass; ``codes``: their ids, in processing order."""
    counts = np.bincount(codes)
    counts[np.unique(stored.codes)] += 1
    new = np.ones(len(codes), bool)
    went_on: dict[int, list[int]] = {}
    for code, time in sorted(zip(stored.codes.tolist(), stored.times.tolist(), strict=True)):
        went_on.setdefault(code, []).append(time)
    several = np.flatnonzero(counts[codes] > 1)
    for row, code, time in zip(
        several.tolist(), codes[several].tolist(), times[several].tolist(), strict=True
    ):
        known = went_on.setdefault(code, [])
        at = bisect_left(known, time - spec.within_ms)
        if at < len(known) and known[at] <= time + spec.within_ms:
            new[row] = False
        else:
            known.insert(at, time)
    return new
