"""Finds which records of two sides meet: a search by key and time, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from everflow.records import Int64

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
    """Rows with pairs, some millions of pairs at a time (or one row)."""
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
