"""Finds what a key's value was at a time, as far as was known at a place of the batch.

Versions come in any order of time. A record asks with its key, a time, and its place; of the
versions that have come before that place, the one with the latest time up to the asked one counts,
and of equal times the one that came last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow.operators.fold import valid
from everflow.operators.grouping import stored
from everflow.operators.joins.joined_table import NEVER, Held, JoinedTable
from everflow.operators.joins.joined_values import Stores, task_codes
from everflow.records import EdgeBatch, Int32, Int64
from everflow.state.changelog import pack_value
from everflow.state.store import OPEN, VersionsView

STORED = -1
"""The place of what was there before the batch."""
NONE = -1
_STEPS = 4


class Asks(NamedTuple):
    """Who asks: the task, key bytes (none null), the time (ms) and the place of each."""

    partitions: Int32
    keys: pa.Array
    times: Int64
    places: Int64


class Versions(NamedTuple):
    """Versions: the number of task and key, the time (ms) and the place of each."""

    codes: Int64
    times: Int64
    places: Int64


def latest_before(codes: Int64, times: Int64, places: Int64, known: Versions) -> Int64:
    """For each of those who ask (number of task and key, time, place), the row of the version that
    counts; `NONE` where none does."""
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


def latest_when_put(
    table: JoinedTable, updates: EdgeBatch, stores: Stores
) -> npt.NDArray[np.bool_]:
    """Which updates of a versioned table are the latest of their key when they come."""
    keys = table.keys_of(updates)
    codes = task_codes(keys, updates.partition)
    _, first = np.unique(codes, return_index=True)
    known = np.full(len(first), NEVER)
    for partition in np.unique(updates.partition[first]).tolist():
        mine = np.flatnonzero(updates.partition[first] == partition)
        view = versioned(stores, partition, table.spec.name)
        found = view.latest_many(keys.take(pa.array(first[mine])).to_pylist())
        known[mine] = [NEVER if one is None else one[0] for one in found]
    place_of = np.empty(int(codes.max(initial=-1)) + 1, np.int64)
    place_of[codes[first]] = np.arange(len(first))
    times = updates.timestamp
    order = np.argsort(codes, kind="stable")
    distinct, ranks = np.unique(times[order], return_inverse=True)
    offset = codes[order] * len(distinct)
    highest = np.maximum.accumulate(ranks + offset) - offset
    latest = np.empty(len(times), bool)
    latest[order] = highest == ranks
    return latest & (times >= known[place_of[codes]])


def versioned(stores: Stores, partition: int, name: str) -> VersionsView:
    """A task's versioned store."""
    view = stores[partition][name]
    assert hasattr(view, "versions_many"), f"{name} is no versioned store"
    return view  # type: ignore[return-value]  # every store of a versioned kind is one


def held_at(
    table: JoinedTable, asking: EdgeBatch, updates: EdgeBatch, stores: Stores, *, first: bool
) -> Held:
    """As `JoinedTable.when`; of a versioned table what it held at each record's time."""
    if not table.spec.versioned:
        return table.when(asking, updates, stores, first=first)
    keyed = np.flatnonzero(valid(asking.key))
    some = asking if len(keyed) == len(asking) else asking.take(keyed)
    asks = Asks(some.partition, table.keys_of(some), some.timestamp, some.seq)
    held = held_as_of(table, asks, updates, stores, first=first)
    return held if some is asking else held.in_rows(keyed, len(asking))


def held_as_of(
    table: JoinedTable, asking: Asks, updates: EdgeBatch, stores: Stores, *, first: bool
) -> Held:
    """What a versioned table held for each who asks, at the asked time. A time before the history
    retention finds the latest version or nothing. ``first``: whether an update in the very place of
    who asks has been put."""
    count = len(asking.keys)
    both = pa.concat_arrays([asking.keys, table.keys_of(updates)])
    codes = task_codes(both, np.concatenate([asking.partitions, updates.partition]))
    asked, known = codes[:count], codes[count:]
    places = asking.places + 1 if first else asking.places
    lost = asking.times < _history_begins(table, asking._replace(places=places), updates, stores)
    kept, entries = _stored_versions(table, asking, asked, lost, stores)
    versions = Versions(
        np.concatenate([kept.codes, known]),
        np.concatenate([kept.times, updates.timestamp]),
        np.concatenate([kept.places, updates.known_from]),
    )
    found = latest_before(asked, asking.times, places, versions)
    if lost.any():
        old = np.flatnonzero(lost)
        newest = latest_before(asked[old], np.full(len(old), OPEN), places[old], versions)
        found[old] = np.where(newest == found[old], found[old], NONE)
    return _values(table, found, entries, updates)


def _values(
    table: JoinedTable, found: Int64, entries: list[bytes | None], updates: EdgeBatch
) -> Held:
    """The values of the rows found, which count the stored versions first."""
    used = np.unique(found[(found >= 0) & (found < len(entries))])
    kept = stored([entries[row] for row in used.tolist()], table.results)
    here = found >= len(entries)
    index = np.where(here, found - len(entries), len(updates) + np.searchsorted(used, found))
    values = pa.concat_arrays([updates.value.cast(table.type), kept.values.cast(table.type)])
    column = values.take(pa.array(np.where(found < 0, 0, index), mask=found < 0))
    times = np.concatenate([updates.timestamp, kept.timestamps, [NEVER]])
    shown = np.where(valid(column), times[np.where(found < 0, len(times) - 1, index)], NEVER)
    return Held(column, shown)


def _history_begins(table: JoinedTable, asking: Asks, updates: EdgeBatch, stores: Stores) -> Int64:
    """The begin of the table's history (ms) where each who asks comes."""
    found = np.empty(len(asking.keys), np.int64)
    for partition in np.unique(asking.partitions).tolist():
        asks = np.flatnonzero(asking.partitions == partition)
        puts = np.flatnonzero(updates.partition == partition)
        view = versioned(stores, partition, table.spec.name)
        observed = np.concatenate([[view.stream_time], updates.timestamp[puts]])
        reached = np.maximum.accumulate(observed)
        found[asks] = reached[np.searchsorted(updates.known_from[puts], asking.places[asks])]
    return found - (table.spec.retention_ms or 0)


def _stored_versions(
    table: JoinedTable,
    asking: Asks,
    codes: Int64,
    to_the_latest: npt.NDArray[np.bool_],
    stores: Stores,
) -> tuple[Versions, list[bytes | None]]:
    """The stored versions that those who ask may find, each key read once; and as entries, None
    for deletions."""
    ones, first, group = np.unique(codes, return_index=True, return_inverse=True)
    low, high = np.full(len(ones), OPEN), np.full(len(ones), -1)
    np.minimum.at(low, group, asking.times)
    np.maximum.at(high, group, np.where(to_the_latest, OPEN - 1, asking.times))
    found: list[tuple[int, int]] = []
    entries: list[bytes | None] = []
    owners = asking.partitions[first]
    for partition in np.unique(owners).tolist():
        mine = np.flatnonzero(owners == partition)
        keys = asking.keys.take(pa.array(first[mine])).to_pylist()
        asked = list(zip(keys, low[mine].tolist(), high[mine].tolist(), strict=True))
        listed = versioned(stores, partition, table.spec.name).versions_many(asked)
        for code, versions in zip(ones[mine].tolist(), listed, strict=True):
            for one in versions:
                found.append((code, one.start))
                entries.append(None if one.value is None else pack_value(one.start, one.value))
    pairs = np.array(found, np.int64).reshape(-1, 2)
    return Versions(pairs[:, 0], pairs[:, 1], np.full(len(found), STORED)), entries
