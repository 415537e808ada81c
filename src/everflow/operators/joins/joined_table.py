"""A table as an operator looks it up: its entry for a key when a record was processed.
`MappedTable` and `TableOfBoth` are made of tables with stores: value getters (note 035)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import (
    NEVER,
    Flags,
    Stored,
    Stores,
    extent,
    rows_by_task,
    running_max,
    stored,
    task_codes,
)
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, Int32, Int64, valid
from everflow.serdes.base import ResultDecoder
from everflow.serdes.windowed import SessionWindowedSerde, window_store_keys
from everflow.state.changelog import pack_value
from everflow.state.store import OPEN, VERSIONED, StoreSpec, VersionsView
from everflow.topology.batches import appended, spread
from everflow.topology.graph import Inputs, Operator

# --- what joins give: ``struct<left, right>``, and which side may be missing ----------------------


class JoinKind(enum.Enum):
    """The sides whose records give a result without a match."""

    INNER = "inner"
    LEFT = "left"
    OUTER = "outer"

    @property
    def keeps_left(self) -> bool:
        return self is not JoinKind.INNER

    @property
    def keeps_right(self) -> bool:
        return self is JoinKind.OUTER


class KeepsLeft(Operator):
    """A join that keeps the records of its first side without a match, or not, by its ``kind``."""

    kind: JoinKind

    @property
    def takes_null_keys(self) -> bool:
        return self.kind.keeps_left

    def taken(self, keys: pa.Array, values: pa.Array) -> tuple[Flags, dict[str, int]]:
        """The records that need a match, and how many others are dropped, by reason."""
        valued = valid(values)
        taken = valued if self.kind.keeps_left else valued & valid(keys)
        without_key = int(np.count_nonzero(valued & ~taken))
        return taken, {"null-value": int(np.count_nonzero(~valued)), "null-key": without_key}


def joined_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    return pa.struct([("left", left), ("right", right)])


def joined(left: pa.Array, right: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(
        [left, right], fields=list(joined_type(left.type, right.type))
    )


def in_turn(left: EdgeBatch, right: EdgeBatch, left_first: bool) -> tuple[EdgeBatch, Int64]:
    """The records of both sides in one order, without their values, and the number of each: those
    of the right count behind those of the left. ``left_first``: where both are one input record."""
    turn = np.repeat([0, 1] if left_first else [1, 0], [len(left), len(right)])
    both = appended([side.with_columns(value=pa.nulls(len(side))) for side in (left, right)])
    order = np.lexsort((turn, both.seq))
    return both.take(order), order


def first_and_last(codes: Int64) -> tuple[Int64, Int64]:
    """The first and the last row of each code, in the order of the last ones."""
    rows = np.arange(len(codes))
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    last = np.zeros_like(first)
    first[codes[::-1]] = rows[::-1]  # the last assignment wins
    last[codes] = rows
    order = np.argsort(last)
    return first[order], last[order]


STORED = -1
"""The place of what was there before the batch."""
NONE = -1
_STEPS = 4


class TableEntries(NamedTuple):
    """A table's entries, by row: ``values``, ``times`` (ms): null and `NEVER` without an entry."""

    values: pa.Array
    times: Int64

    def in_rows(self, rows: Int64, count: int) -> TableEntries:
        times = np.full(count, NEVER)
        times[rows] = self.times
        return TableEntries(spread(self.values, rows, count), times)


class Places(NamedTuple):
    """Rows of a batch: task and key (as a number), task, key, time (ms), and place in the batch's
    order."""

    codes: Int64
    partitions: Int32
    keys: pa.Array
    times: Int64
    at: Int64


@dataclass(frozen=True)
class JoinedTable:
    """A table with a store. ``results`` read its values; ``side``: the side of the operator on
    which its updates come; ``first``: an input record that is an update and asks changes the table
    first; ``as_of``: one with a history is asked as of the record's time."""

    spec: StoreSpec
    results: ResultDecoder
    type: pa.DataType
    side: int = 1
    first: bool = True
    as_of: bool = False

    @property
    def stored(self) -> tuple[JoinedTable, ...]:
        return (self,)

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        return ()

    def entries_for(self, asking: EdgeBatch, inputs: Inputs) -> TableEntries:
        """The table's entry for each record of ``asking`` when it came; nothing for a null key."""
        if asking.key.null_count:
            keyed = np.flatnonzero(valid(asking.key))
            return self.entries_for(asking.take(keyed), inputs).in_rows(keyed, len(asking))
        updates = inputs.sides[self.side]
        if self.as_of and self.spec.versioned:
            return entries_as_of(self, asking, updates, inputs.stores)
        return self.when(asking, updates, inputs.stores)

    def keys_of(self, batch: EdgeBatch) -> pa.Array:
        """The store's keys of the batch's, none of them null. UserFunctionError."""
        name = self.spec.name
        if self.spec.kind == "session":
            return written_bytes(
                SessionWindowedSerde(self.spec.key_serde),
                batch.key,
                name,
                batch,
            )
        if self.spec.kind in ("key_value", VERSIONED):
            return written_bytes(self.spec.key_serde, batch.key, name, batch)
        inner, start, _ = batch.key.flatten()
        keys = written_bytes(self.spec.key_serde, inner, name, batch)
        return window_store_keys(keys, start.to_numpy())

    def when(self, asking: EdgeBatch, updates: EdgeBatch, stores: Stores) -> TableEntries:
        """The table's entry for the key of each record of ``asking``, none of them null, after
        those of its ``updates`` in this batch that came before the record."""
        asked, known = self.places(asking, updates)
        return self._entries(
            asked,
            known,
            updates,
            stores,
            side="right" if self.first else "left",
        )

    def before(self, updates: EdgeBatch, stores: Stores) -> TableEntries:
        """The table's entry for each update's key before that update."""
        known, _ = self.places(updates, updates.take(np.empty(0, np.int64)))
        known = known._replace(at=np.arange(len(updates), dtype=np.int64))
        return self._entries(known, known, updates, stores, side="left")

    def places(self, asking: EdgeBatch, updates: EdgeBatch) -> tuple[Places, Places]:
        keys = pa.concat_arrays([self.keys_of(asking), self.keys_of(updates)])
        partitions = np.concatenate([asking.partition, updates.partition])
        codes, count = task_codes(keys, partitions), len(asking)
        return (
            Places(
                codes[:count],
                asking.partition,
                keys[:count],
                asking.timestamp,
                asking.seq,
            ),
            Places(
                codes[count:],
                updates.partition,
                keys[count:],
                updates.timestamp,
                updates.known_from,
            ),
        )

    def _entries(
        self,
        asked: Places,
        known: Places,
        updates: EdgeBatch,
        stores: Stores,
        side: Literal["left", "right"],
    ) -> TableEntries:
        """``side``: whether an update in the very place of a record counts (right) or not."""
        order = np.argsort(known.codes, kind="stable")
        codes = known.codes[order]
        # Ranks: places may be as high as `LAST_SEQ`.
        _, ranks = np.unique(np.concatenate([known.at, asked.at]), return_inverse=True)
        before, at = ranks[: len(known.at)], ranks[len(known.at) :]
        span = 1 + int(ranks.max(initial=0))
        found = np.searchsorted(codes * span + before[order], asked.codes * span + at, side=side)
        last = np.maximum(found - 1, 0)
        here = (found > 0) & (
            codes[last] == asked.codes if len(codes) else np.zeros(len(asked.codes), bool)
        )
        rows = order[last] if len(order) else last
        kept, place = self._kept(asked, np.flatnonzero(~here), stores)
        index = np.where(here, rows, len(updates) + place)
        values = pa.concat_arrays([updates.value.cast(self.type), kept.values.cast(self.type)])
        times = np.concatenate([updates.timestamp, kept.timestamps])[index]
        column = values.take(index)
        if column.null_count:
            times = np.where(valid(column), times, NEVER)
        return TableEntries(column, times)

    def _kept(self, asked: Places, rows: Int64, stores: Stores) -> tuple[Stored, Int64]:
        """The store's entries before the batch, each key read once; and for each asked row its
        place there (any for rows that are not in ``rows``)."""
        _, first, place = np.unique(
            asked.codes[rows],
            return_index=True,
            return_inverse=True,
        )
        ones = rows[first]
        owners = asked.partitions[ones]
        entries: list[bytes | None] = [None] * len(ones)
        for partition, mine in rows_by_task(owners):
            keys = asked.keys.take(ones[mine]).to_pylist()
            found = stores[partition][self.spec.name].get_many(keys)
            for at, entry in zip(mine.tolist(), found, strict=True):
                entries[at] = entry
        places = np.zeros(len(asked.codes), np.int64)
        places[rows] = place
        return stored(entries, self.results), places


@dataclass(frozen=True)
class MappedTable:
    """Another table's entries behind stateless nodes, ``nodes`` in order."""

    source: TableRead
    nodes: tuple[str, ...]
    type: pa.DataType

    @property
    def stored(self) -> tuple[JoinedTable, ...]:
        return self.source.stored

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        return (*self.source.through, self.nodes)

    def entries_for(self, asking: EdgeBatch, inputs: Inputs) -> TableEntries:
        """See `JoinedTable`; an entry keeps its time, and a record without a key finds nothing."""
        assert inputs.through is not None
        found = self.source.entries_for(asking, inputs)
        keyed = np.flatnonzero(valid(asking.key))
        if not len(keyed):
            return TableEntries(pa.nulls(len(asking), self.type), np.full(len(asking), NEVER))
        times = np.where(valid(found.values), found.times, asking.timestamp)
        rows = replace(asking.with_columns(value=found.values), timestamp=times).take(keyed)
        made = inputs.through(self.nodes, rows).value.cast(self.type)
        times = np.where(valid(made), rows.timestamp, NEVER)
        return TableEntries(made, times).in_rows(keyed, len(asking))


@dataclass(frozen=True)
class TableOfBoth:
    left: TableRead
    right: TableRead
    kind: JoinKind
    type: pa.DataType

    @property
    def stored(self) -> tuple[JoinedTable, ...]:
        return (*self.left.stored, *self.right.stored)

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        return (*self.left.through, *self.right.through)

    def entries_for(self, asking: EdgeBatch, inputs: Inputs) -> TableEntries:
        """See `JoinedTable`; its time is the later of both sides'."""
        left, right = self.left.entries_for(asking, inputs), self.right.entries_for(asking, inputs)
        own, other = valid(left.values), valid(right.values)
        shown = (own | self.kind.keeps_right) & (other | self.kind.keeps_left) & (own | other)
        rows = np.arange(len(asking), dtype=np.int64)
        values = joined(left.values, right.values).take(pa.array(rows, mask=~shown))
        return TableEntries(values, np.where(shown, np.maximum(left.times, right.times), NEVER))


TableRead = JoinedTable | MappedTable | TableOfBoth


class TableLookup(Operator):
    """An operator whose first side looks a table up."""

    table: TableRead

    @property
    def through(self) -> tuple[tuple[str, ...], ...]:
        return self.table.through

    def meets(self, sides: int) -> Iterable[Iterable[int]]:
        return sorted({(0, 1), *((0, table.side) for table in self.table.stored)})


# --- tables with a history ------------------------------------------------------------------------
# Versions come in any order of time. Of those before the place of the record that asks, the one
# with the latest time up to the asked one counts, and of equal times the one that came last.


class Versions(NamedTuple):
    """Versions: the number of task and key, the time (ms) and the place of each."""

    codes: Int64
    times: Int64
    places: Int64


def latest_before(codes: Int64, times: Int64, places: Int64, known: Versions) -> Int64:
    """For each number of task and key, time and place the row that counts, or `NONE`."""
    if not len(known.codes) or not len(codes):
        return np.full(len(codes), NONE)
    order = np.lexsort((known.places, known.times, known.codes))
    distinct = np.unique(known.times)
    span = len(distinct) + 1
    # In times that are there, so that products stay small whatever the times are.
    ranks = known.codes[order] * span + np.searchsorted(distinct, known.times[order]) + 1
    wanted = codes * span + np.searchsorted(distinct, times, side="right")
    at = np.searchsorted(ranks, wanted, side="right") - 1
    begin = np.searchsorted(known.codes[order], codes, side="left")
    came = known.places[order]
    at = _come_before(came, begin, at, places)
    return np.where(at >= begin, order[np.maximum(at, 0)], NONE)


def _come_before(came: Int64, begin: Int64, at: Int64, places: Int64) -> Int64:
    """The last row from ``begin`` to ``at`` that came before the place; below ``begin``: none."""
    at = at.copy()
    for _ in range(_STEPS):
        open_ = np.flatnonzero(at >= begin)
        late = open_[came[at[open_]] >= places[open_]]
        if not len(late):
            return at
        at[late] -= 1
    # Many that came later lie before it: halving steps over blocks in which none came before.
    least = [came]
    while 1 << len(least) <= len(came):
        half = least[-1]
        width = 1 << (len(least) - 1)
        least.append(np.concatenate([half[:width], np.minimum(half[width:], half[:-width])]))
    for level in range(len(least) - 1, -1, -1):
        open_ = np.flatnonzero(at - (1 << level) + 1 >= begin)
        skipped = open_[least[level][at[open_]] >= places[open_]]
        at[skipped] -= 1 << level
    return at


def latest_when_put(table: JoinedTable, updates: EdgeBatch, stores: Stores) -> Flags:
    """True for updates of a versioned table that are the latest of their key when they come."""
    keys = table.keys_of(updates)
    codes = task_codes(keys, updates.partition)
    _, first = np.unique(codes, return_index=True)
    known = np.full(len(first), NEVER)
    for partition, mine in rows_by_task(updates.partition[first]):
        view = versioned(stores, partition, table.spec.name)
        found = view.latest_many(keys.take(first[mine]).to_pylist())
        known[mine] = [NEVER if one is None else one[0] for one in found]
    place_of = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    place_of[codes[first]] = np.arange(len(first))
    times = updates.timestamp
    latest: Flags = running_max(codes, times) == times
    return latest & (times >= known[place_of[codes]])


def versioned(stores: Stores, partition: int, name: str) -> VersionsView:
    view = stores[partition][name]
    assert hasattr(view, "versions_many"), f"{name} is no versioned store"
    return view  # type: ignore[return-value]  # every store of a versioned kind is one


def entries_as_of(
    table: JoinedTable, asking: EdgeBatch, updates: EdgeBatch, stores: Stores
) -> TableEntries:
    """A versioned table's entry at each record's time; before its history the latest or none."""
    asked, known = table.places(asking, updates)
    if table.first:  # an update in the very place of who asks has been put
        asked = asked._replace(at=asked.at + 1)
    lost = asked.times < _history_begins(table, asked, updates, stores)
    kept, entries = _stored_versions(table, asked, lost, stores)
    versions = Versions(
        np.concatenate([kept.codes, known.codes]),
        np.concatenate([kept.times, known.times]),
        np.concatenate([kept.places, known.at]),
    )
    found = latest_before(asked.codes, asked.times, asked.at, versions)
    if lost.any():
        old = np.flatnonzero(lost)
        newest = latest_before(
            asked.codes[old],
            np.full(len(old), OPEN),
            asked.at[old],
            versions,
        )
        found[old] = np.where(newest == found[old], found[old], NONE)
    return _values(table, found, entries, updates)


def _values(
    table: JoinedTable, found: Int64, entries: list[bytes | None], updates: EdgeBatch
) -> TableEntries:
    """The values of the rows found, which count the stored versions first."""
    used = np.unique(found[(found >= 0) & (found < len(entries))])
    kept = stored([entries[row] for row in used.tolist()], table.results)
    here = found >= len(entries)
    index = np.where(here, found - len(entries), len(updates) + np.searchsorted(used, found))
    values = pa.concat_arrays([updates.value.cast(table.type), kept.values.cast(table.type)])
    column = values.take(pa.array(np.where(found < 0, 0, index), mask=found < 0))
    times = np.concatenate([updates.timestamp, kept.timestamps, [NEVER]])
    shown = np.where(valid(column), times[np.where(found < 0, len(times) - 1, index)], NEVER)
    return TableEntries(column, shown)


def _history_begins(
    table: JoinedTable,
    asked: Places,
    updates: EdgeBatch,
    stores: Stores,
) -> Int64:
    """The begin of the table's history (ms) where each who asks comes."""
    found = np.empty(len(asked.at), np.int64)
    for partition, asks in rows_by_task(asked.partitions):
        puts = np.flatnonzero(updates.partition == partition)
        view = versioned(stores, partition, table.spec.name)
        observed = np.concatenate([[view.stream_time], updates.timestamp[puts]])
        reached = np.maximum.accumulate(observed)
        found[asks] = reached[np.searchsorted(updates.known_from[puts], asked.at[asks])]
    return found - (table.spec.retention_ms or 0)


def _stored_versions(
    table: JoinedTable, asked: Places, to_the_latest: Flags, stores: Stores
) -> tuple[Versions, list[bytes | None]]:
    """The stored versions that may be found, each key read once; and as entries."""
    ones, first, group = np.unique(asked.codes, return_index=True, return_inverse=True)
    until = np.where(to_the_latest, OPEN - 1, asked.times)
    low, high = extent(group, len(ones), asked.times, until)
    found: list[tuple[int, int]] = []
    entries: list[bytes | None] = []
    owners = asked.partitions[first]
    for partition, mine in rows_by_task(owners):
        keys = asked.keys.take(first[mine]).to_pylist()
        bounds = list(zip(keys, low[mine].tolist(), high[mine].tolist(), strict=True))
        listed = versioned(stores, partition, table.spec.name).versions_many(bounds)
        for code, versions in zip(ones[mine].tolist(), listed, strict=True):
            for one in versions:
                found.append((code, one.start))
                entries.append(None if one.value is None else pack_value(one.start, one.value))
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return Versions(pairs[:, 0], pairs[:, 1], np.full(len(found), STORED)), entries
