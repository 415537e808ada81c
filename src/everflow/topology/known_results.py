"""What functions gave for the records of a micro-batch that is computed again (note 041).

A record that fails is left out, and the batch is computed again. Its functions gave the same for
all the other records a moment ago, so none of them is called twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from everflow.records import EdgeBatch, Int64


class Made(NamedTuple):
    """Results of a function in columns; ``rows``: of which record each is."""

    rows: Int64
    key: pa.Array
    value: pa.Array


@dataclass(frozen=True)
class KnownResults:
    """Of one micro-batch, by the slots that get the results; owned by the thread that computes
    it."""

    _by_slot: dict[int, tuple[EdgeBatch, Made]] = field(default_factory=dict)

    def keep(self, slot: int, given: EdgeBatch, made: Made) -> None:
        """The function that fills ``slot`` gave that for the records ``given``."""
        self._by_slot[slot] = given, made

    def of(self, slot: int, asked: EdgeBatch) -> tuple[Int64, Made]:
        """Which rows of ``asked`` are known, and what the function gave for them (with its rows in
        ``asked``). A record is known by its place in the log and what the function would see of
        it."""
        nothing: Int64 = np.empty(0, np.int64)
        none = nothing, Made(nothing, asked.key.slice(0, 0), asked.value.slice(0, 0))
        if slot not in self._by_slot:
            return none
        given, made = self._by_slot[slot]
        mine, theirs = _common(given, asked)
        if not len(mine) or len(mine) != len(theirs):
            return none
        before, now = given.take(mine), asked.take(theirs)
        for one, other in ((before.offset, now.offset), (before.partition, now.partition)):
            if not np.array_equal(one, other):
                return none
        if not (before.key.equals(now.key) and before.value.equals(now.value)):
            return none
        place = np.full(len(given), -1, np.int64)
        place[mine] = theirs
        rows = place[made.rows]
        kept = np.flatnonzero(rows >= 0)
        taken = pa.array(kept, pa.int64())
        return theirs, Made(rows[kept], made.key.take(taken), made.value.take(taken))


def joined(parts: list[Made]) -> Made:
    """The results of all ``parts``, which are of different records, by their rows."""
    rows = np.concatenate([one.rows for one in parts])
    order = np.argsort(rows, kind="stable")
    taken = pa.array(order, pa.int64())
    key = pa.concat_arrays([one.key for one in parts]).take(taken)
    value = pa.concat_arrays([one.value for one in parts]).take(taken)
    return Made(rows[order], key, value)


def _common(given: EdgeBatch, asked: EdgeBatch) -> tuple[Int64, Int64]:
    """The rows of both whose record the other has, too."""
    mine, theirs = np.zeros(len(given), bool), np.zeros(len(asked), bool)
    for source in np.unique(asked.source).tolist():
        for partition in np.unique(asked.partition).tolist():
            left = np.flatnonzero((given.source == source) & (given.partition == partition))
            right = np.flatnonzero((asked.source == source) & (asked.partition == partition))
            mine[left] = np.isin(given.offset[left], asked.offset[right])
            theirs[right] = np.isin(asked.offset[right], given.offset[left])
    return np.flatnonzero(mine), np.flatnonzero(theirs)
