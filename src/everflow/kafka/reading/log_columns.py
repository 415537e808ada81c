"""Records of one partition in columns, as readers of ranges hand them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from everflow.records import HEADERS, Int64, TopicPartition

_NOTHING: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True)
class LogColumns:
    """Records in log order, columns of one length. ``keys`` and ``values``: binary, null where the record has none; ``timestamps``
    in ms; ``headers``: `everflow.records.HEADERS` (an empty list where there is none), or None where they were not asked for."""

    keys: pa.Array
    values: pa.Array
    offsets: Int64
    timestamps: Int64
    headers: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __post_init__(self) -> None:
        if isinstance(self.keys, pa.ChunkedArray) or isinstance(self.values, pa.ChunkedArray):
            raise TypeError("more than 2 GiB in one column: the reader did not keep to its bound")

    @staticmethod
    def empty(headers: bool) -> LogColumns:
        """No records."""
        nothing = pa.array([], pa.binary())
        return LogColumns(nothing, nothing, _NOTHING, _NOTHING, pa.array([], HEADERS) if headers else None)

    @staticmethod
    def concat(parts: Sequence[LogColumns], headers: bool) -> LogColumns:
        """The records of all parts, one after the other; ``headers`` as the parts have them."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return LogColumns.empty(headers)
        return LogColumns(
            pa.concat_arrays([part.keys for part in parts]),
            pa.concat_arrays([part.values for part in parts]),
            np.concatenate([part.offsets for part in parts]),
            np.concatenate([part.timestamps for part in parts]),
            pa.concat_arrays([part.headers for part in parts]) if headers else None,
        )


class Read(NamedTuple):
    """What was read of some ranges: the records of each partition, and the offset behind them, which is the range's end or, where
    the bound on bytes was reached, before it."""

    columns: Mapping[TopicPartition, LogColumns]
    ends: Mapping[TopicPartition, int]


class Budget:
    """Bytes of keys and values for one read, shared fairly: what one partition does not use, the ones behind it get."""

    def __init__(self, most_bytes: int, partitions: int) -> None:
        self._left, self._partitions = most_bytes, partitions

    def share(self) -> int:
        """For the next partition; at least 1, with which it gets at least one record."""
        return max(1, self._left // max(1, self._partitions))

    def used(self, columns: LogColumns) -> None:
        """A partition is done."""
        self._left -= columns.keys.nbytes + columns.values.nbytes
        self._partitions -= 1
