"""Two streams joined by key and closeness in time (KStream-KStream, KIP-633, KIP-962).

A record meets what the other side's store has of its window when it comes, as in Kafka Streams: a
store keeps its records for ``before + after + grace`` behind the highest time of its own side. One
of a side that is kept, which has met nothing, waits until stream time, which both sides share,
passes the end of its window and the grace; if nothing has met it by then, it gives its result
without a match. One that comes after that is late: it gives the result at once, and is counted. So
no record of such a side is lost, and none that comes in time gives both results, unless a late one
meets it later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import changes_by_task
from everflow.operators.joins.join_side import (
    NEVER,
    BatchRecords,
    JoinedResults,
    JoinSide,
    Kept,
    Met,
    WaitingRecords,
)
from everflow.operators.joins.joined_table import JoinKind, Stores
from everflow.records import LATE_UNMATCHED, EdgeBatch, Int64, StoreChanges, TasksResult
from everflow.serdes.windowed import window_store_keys
from everflow.state.store import StoreSpec
from everflow.topology.graph import Inputs, Operator
from everflow.windows import JoinWindows

# --- finds which records of two sides meet: a search by key and time, for a whole batch at once ---


MOST_AT_ONCE = 4_000_000
"""Candidate pairs that are held at once."""


class Asking(NamedTuple):
    """Records of one side that look for matches: group, first and last time (ms) of a match, place
    in the batch, and the stream time there."""

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
    found = [_met(asking, candidates, order, begin, counts, rows) for rows in _portions(counts)]
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
class StreamStreamJoin(Operator):
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

    @property
    def takes_null_keys(self) -> bool:
        return self.kind.keeps_left

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
        results = JoinedResults(records, *inputs.sides)
        results.without_match(records.keyless)
        met = Met.nothing(len(records))
        for left, mine in self.sides.items():
            self._meet(records, mine, self.sides[not left], inputs.stores, results, met)
        changes: dict[int, list[StoreChanges]] = {partition: [] for partition in records.after}
        for side in self.sides.values():
            _keep(records, side, inputs.stores, changes)
        if self.waiting is not None:
            waiting = WaitingRecords(self.waiting, self.sides)
            waiting.settle(records, met, inputs.stores, results, changes)
        dropped = records.dropped | self._late(records, met, results)
        return TasksResult(results.in_order(), changes, records.after, dropped)

    def _late(self, records: BatchRecords, met: Met, results: JoinedResults) -> dict[str, int]:
        """Gives the results of late records that have met nothing, where their side is kept; says
        how many these are, and how many have no effect at all."""
        alone = records.live & (met.here != np.arange(len(records)))
        kept = np.where(records.of_left, self.sides[True].kept, self.sides[False].kept)
        at_once = np.flatnonzero(alone & records.late & kept)
        results.without_match(at_once)
        lost = int(np.count_nonzero(alone & ~kept & ~records.stored))
        return {LATE_UNMATCHED: len(at_once), "late": lost}

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult | None:
        if self.waiting is None:
            return None
        nothing = inputs.sides[1].take(np.empty(0, np.int64))
        records = BatchRecords.of_ticks(self.sides, (ticks, nothing), inputs.stream_times)
        results = JoinedResults(records, ticks, nothing)
        results.without_match(records.keyless)
        changes: dict[int, list[StoreChanges]] = {partition: [] for partition in records.after}
        waiting = WaitingRecords(self.waiting, self.sides)
        waiting.settle(records, Met.nothing(len(records)), inputs.stores, results, changes)
        return TasksResult(results.in_order(), changes, {}, {})

    def _meet(
        self,
        records: BatchRecords,
        mine: JoinSide,
        theirs: JoinSide,
        stores: Stores,
        results: JoinedResults,
        met: Met,
    ) -> None:
        asks = records.live_of(mine.left)
        others = records.stored_of(theirs.left)
        if not len(asks):
            return
        times, codes = records.times[asks], records.codes[asks]
        first, last = times - mine.back_ms, times + mine.ahead_ms
        kept = _stored(records, theirs, asks, first, last, stores)
        candidates = Candidates(
            np.concatenate([kept.codes, records.codes[others]]),
            np.concatenate([kept.times, records.times[others]]),
            np.concatenate([np.full(len(kept.times), -1), others]),
            np.concatenate([kept.times, records.times[others]]) + theirs.stays_ms,
        )
        there = records.side_times[theirs.left][asks]
        one, two = matches(Asking(codes, first, last, asks, there), candidates)
        places, stored = asks[one], two < len(kept.times)
        np.minimum.at(met.here, places, places)
        np.minimum.at(met.here, others[two[~stored] - len(kept.times)], places[~stored])
        used, at = np.unique(two[stored], return_inverse=True)
        if theirs.kept:
            by = np.full(len(used), NEVER)
            np.minimum.at(by, at, places[stored])
            met.add(records, kept, used, by, theirs.left)
        begin = results.extend(theirs.left, theirs.decoded(kept.entries.take(used)))
        refs = np.empty(len(two), np.int64)
        refs[stored] = begin + at
        refs[~stored] = records.rows[others[two[~stored] - len(kept.times)]]
        results.matched(
            places,
            records.rows[places],
            refs,
            np.maximum(records.times[places], candidates.times[two]),
            mine_left=mine.left,
        )


def _stored(
    records: BatchRecords,
    side: JoinSide,
    asks: Int64,
    first: Int64,
    last: Int64,
    stores: Stores,
) -> Kept:
    """The side's stored records that those in ``asks`` may meet; each key is read once."""
    ones, codes = np.unique(records.codes[asks], return_inverse=True)
    low, high = np.full(len(ones), np.iinfo(np.int64).max), np.full(len(ones), -1)
    np.minimum.at(low, codes, first)
    np.maximum.at(high, codes, last)
    found = side.read(records.groups.take(ones), low, high, stores)
    return found._replace(codes=ones[found.codes])


def _keep(
    records: BatchRecords,
    side: JoinSide,
    stores: Stores,
    changes: dict[int, list[StoreChanges]],
) -> None:
    places = records.stored_of(side.left)
    times, codes = records.times[places], records.codes[places]
    numbers = _numbers(codes, times)
    owners = records.partitions[places]
    before = np.array([records.before[owner] for owner in owners.tolist()], np.int64)
    again = np.flatnonzero(times <= before)
    if len(again):  # only these can meet records of their own key and time in the store
        numbers[again] += _next_numbers(records, side, codes[again], times[again], stores)
    keys = window_store_keys(records.keys.take(codes), times, numbers)
    values = records.values_at(side.left, places)
    for partition, made in changes_by_task(side.store.name, owners, keys, values, times).items():
        changes[partition] += made


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


def _next_numbers(
    records: BatchRecords, side: JoinSide, codes: Int64, times: Int64, stores: Stores
) -> Int64:
    """For each key and time the number behind those that are stored."""
    pairs, place = np.unique(np.stack([codes, times]), axis=1, return_inverse=True)
    found = side.read(records.groups.take(pairs[0]), pairs[1], pairs[1], stores)
    free = np.zeros(pairs.shape[1], np.int64)
    np.maximum.at(free, found.codes, found.numbers + 1)
    return free[place.reshape(-1)]
