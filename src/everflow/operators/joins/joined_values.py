"""What joins give: ``struct<left, right>``, and which side may be missing."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from everflow.operators.grouping import by_task
from everflow.records import Int32, Int64
from everflow.state.store import StoreView

Stores = Mapping[int, Mapping[str, StoreView]]
"""Of each task, by its partition: the stores of an operator, by name."""


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
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    return by_task(codes, partitions)[0]


def first_and_last(codes: Int64) -> tuple[Int64, Int64]:
    """The first and the last row of each code, in the order of the last ones."""
    rows = np.arange(len(codes))
    first = np.zeros(int(codes.max(initial=-1)) + 1, np.int64)
    last = np.zeros_like(first)
    first[codes[::-1]] = rows[::-1]  # the last assignment wins
    last[codes] = rows
    order = np.argsort(last)
    return first[order], last[order]
