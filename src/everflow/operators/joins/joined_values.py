"""What joins give: ``struct<left, right>``, and which side may be missing."""

from __future__ import annotations

import enum

import numpy as np
import pyarrow as pa

from everflow.records import Int32, Int64


class JoinKind(enum.Enum):
    """Which records give a result without a match."""

    INNER = "inner"
    LEFT = "left"
    OUTER = "outer"

    @property
    def keeps_left(self) -> bool:
        """Whether the left side's do."""
        return self is not JoinKind.INNER

    @property
    def keeps_right(self) -> bool:
        """Whether the right side's do."""
        return self is JoinKind.OUTER


def joined_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """``struct<left, right>``; a side without a match is null."""
    return pa.struct([("left", left), ("right", right)])


def joined(left: pa.Array, right: pa.Array) -> pa.Array:
    """The values of both sides, row by row, as one column."""
    return pa.StructArray.from_arrays(
        [left, right], fields=list(joined_type(left.type, right.type))
    )


def task_codes(keys: pa.Array, partitions: Int32) -> Int64:
    """A number for each row, equal where task and key are."""
    codes: Int64 = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    owners, numbers = np.unique(partitions, return_inverse=True)
    if len(owners) < 2:
        return codes
    pairs = pa.array(codes * len(owners) + numbers).dictionary_encode()
    found: Int64 = pairs.indices.to_numpy().astype(np.int64)
    return found
