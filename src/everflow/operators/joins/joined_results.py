"""Collects the results of a stream-stream join, and puts them into their order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from everflow.operators.joins.batch_records import BatchRecords
from everflow.operators.joins.joined_values import joined
from everflow.records import EdgeBatch, Int64
from everflow.topology.batches import appended

MISSING = -1


class JoinedResults:
    """Results as references to values, which are copied once, at the end.

    Values are those of the batch, and what `extend` adds; so are keys, by place in the batch.
    """

    def __init__(self, records: BatchRecords, left: EdgeBatch, right: EdgeBatch) -> None:
        self._records = records
        self._values = {True: [left.value], False: [right.value]}
        both = appended([side.with_columns(value=pa.nulls(len(side))) for side in (left, right)])
        self._both = both.take(records.rows + np.where(records.of_left, 0, len(left)))
        """The records by place, without their values."""
        self._keys = [self._both.key]
        self._found: list[tuple[Int64, ...]] = []

    def extend(self, left: bool, values: pa.Array) -> int:
        """Adds values of a side; returns the reference of the first."""
        begin = sum(map(len, self._values[left]))
        self._values[left].append(values.cast(self._values[left][0].type))
        return begin

    def extend_keys(self, keys: pa.Array) -> int:
        """Adds keys; returns the reference of the first."""
        begin = sum(map(len, self._keys))
        self._keys.append(keys.cast(self._keys[0].type))
        return begin

    def matched(
        self, places: Int64, mine: Int64, theirs: Int64, times: Int64, *, mine_left: bool
    ) -> None:
        """Results of the records at ``places``, in the order in which they are given."""
        left, right = (mine, theirs) if mine_left else (theirs, mine)
        self._add(places, 1, places, left, right, times)

    def without_match(self, places: Int64) -> None:
        """Results of the records themselves, where they are."""
        left, right = self._own(places)
        self._add(places, 1, places, left, right, self._records.times[places])

    def closed(self, places: Int64, keys: Int64, left: Int64, right: Int64, times: Int64) -> None:
        """Results of records whose windows closed when those at ``places`` came, in the order in
        which they are given; they come before what those give."""
        self._add(places, 0, keys, left, right, times)

    def _own(self, places: Int64) -> tuple[Int64, Int64]:
        """References of the records' own values, `MISSING` on the other side."""
        rows, of_left = self._records.rows[places], self._records.of_left[places]
        return np.where(of_left, rows, MISSING), np.where(of_left, MISSING, rows)

    def _add(
        self, places: Int64, rank: int, keys: Int64, left: Int64, right: Int64, times: Int64
    ) -> None:
        self._found.append((places, np.full(len(places), rank), keys, left, right, times))

    def in_order(self) -> EdgeBatch:
        """All results, by the place of the record that made them."""
        places, ranks, keys, left, right, times = map(
            np.concatenate, zip(*self._found, strict=True)
        )
        order = np.lexsort((ranks, places))
        made = self._both.take(places[order]).with_columns(
            key=pa.concat_arrays(self._keys).take(pa.array(keys[order])),
            value=joined(self._taken(True, left[order]), self._taken(False, right[order])),
        )
        return replace(made, timestamp=times[order])

    def _taken(self, left: bool, refs: Int64) -> pa.Array:
        return pa.concat_arrays(self._values[left]).take(pa.array(refs, mask=refs == MISSING))
