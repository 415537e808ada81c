"""What a store's changes come to, in the order of its keys (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import ByteColumn, Int64
from everflow.serdes.base import binary_from_matrix
from everflow.state.changelog import TIMESTAMP_BYTES, last_values


class SortedEntries(NamedTuple):
    """Keys, each once, in their order, and the stored form of each one's value; None: it goes."""

    keys: list[bytes]
    values: list[bytes | None]

    @staticmethod
    def of(found: Mapping[bytes, bytes | None]) -> SortedEntries:
        """From stored forms by key."""
        keys = sorted(found)
        return SortedEntries(keys, list(map(found.__getitem__, keys)))

    def where(self, chosen: npt.NDArray[np.bool_]) -> SortedEntries:
        """Those that are chosen."""
        if chosen.all():
            return self
        rows = np.flatnonzero(chosen).tolist()
        return SortedEntries([self.keys[row] for row in rows], [self.values[row] for row in rows])


def sorted_entries(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], times: Int64
) -> SortedEntries:
    """The last value of each key; null keys are skipped. Columns stay columns until they are
    sorted: a third of the time."""
    if not (isinstance(keys, ByteColumn) and isinstance(values, ByteColumn)):
        return SortedEntries.of(last_values(keys, values, times))
    order = pc.sort_indices(keys.column)  # stable: of equal keys the last one counts
    ordered = keys.column.take(order)
    again = pc.equal(ordered[:-1], ordered[1:])
    if pc.any(again).as_py() or ordered.null_count:
        return SortedEntries.of(last_values(keys, values, times))
    stamps = np.ascontiguousarray(times.astype(">i8")).view(np.uint8).reshape(-1, TIMESTAMP_BYTES)
    stored = pc.binary_join_element_wise(binary_from_matrix(stamps), values.column, pa.scalar(b""))
    return SortedEntries(ordered.to_pylist(), stored.take(order).to_pylist())
