"""Records of one partition in columns, as a step takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from everflow.records import HEADERS, Int64

_NOTHING: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True)
class LogColumns:
    """Records in log order, columns of one length. ``keys`` and ``values``: binary, null where the
    record has none; ``timestamps`` in ms; ``headers``: `everflow.records.HEADERS` (an empty list
    where there is none), or None where they were not asked for."""

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
        return LogColumns(
            nothing, nothing, _NOTHING, _NOTHING, pa.array([], HEADERS) if headers else None
        )

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
