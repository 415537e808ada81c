"""The built-in aggregates, ``agg.count()`` and the others: vectorised, no Python per record.

Nulls follow SQL: every aggregate but ``count()``, ``first`` and ``last`` leaves them out; with
nothing left the result is null (``count`` of a column: 0). Integer sums are 64-bit and wrap around
as Java's do. NaN is larger than every number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from everflow.errors import TopologyError
from everflow.foreign_names import telling

KINDS = ("count", "sum", "min", "max", "avg", "first", "last")


@dataclass(frozen=True)
class Aggregator:
    """One aggregate of a group, as ``agg.count()`` and its like make it. ``column`` is a pyspark
    Column or a column name such as ``value.amount``.

    Once the DSL has lowered it, ``column`` is the name of a field of the operator's input struct
    (``a0``).
    """

    kind: str
    column: Any = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TopologyError(f"unknown aggregate {self.kind!r}; there are {', '.join(KINDS)}")
        if self.column is None and self.kind != "count":
            raise TopologyError(
                f"agg.{self.kind} takes a column, for example agg.{self.kind}('value.amount')"
            )


def count(column: Any = None) -> Aggregator:
    """Number of records, or of those where ``column`` is not null; ``int64``."""
    return Aggregator("count", column)


def sum(column: Any) -> Aggregator:  # noqa: A001 (the field's word; used as `agg.sum`)
    """Sum: ``int64`` of integers, ``double`` of floats, a decimal with 10 more digits of
    decimals."""
    return Aggregator("sum", column)


def min(column: Any) -> Aggregator:  # noqa: A001
    """Smallest value, in the column's type."""
    return Aggregator("min", column)


def max(column: Any) -> Aggregator:  # noqa: A001
    """Largest value, in the column's type."""
    return Aggregator("max", column)


def avg(column: Any) -> Aggregator:
    """Mean as ``double``; the store keeps sum and count."""
    return Aggregator("avg", column)


def first(column: Any) -> Aggregator:
    """The value in the first record that was processed, null or not; of merged sessions that of the
    earliest session."""
    return Aggregator("first", column)


def last(column: Any) -> Aggregator:
    """The value in the last record that was processed, null or not."""
    return Aggregator("last", column)


def result_type(aggregator: Aggregator, column_type: pa.DataType | None) -> pa.DataType:
    """Arrow type of the aggregate's result; TopologyError if it cannot be taken of
    ``column_type``."""
    kind = aggregator.kind
    if kind == "count":
        return pa.int64()
    assert column_type is not None
    numeric = pa.types.is_integer(column_type) or pa.types.is_floating(column_type)
    if kind in ("sum", "avg"):
        if not numeric and not pa.types.is_decimal128(column_type):
            raise TopologyError(f"agg.{kind} takes numbers, the column is {column_type}")
        return pa.float64() if kind == "avg" else _sum_type(column_type)
    if kind in ("min", "max") and pa.types.is_nested(column_type):
        raise TopologyError(f"agg.{kind} takes values with an order, the column is {column_type}")
    return column_type


def _sum_type(column_type: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal128(column_type):
        precision = column_type.precision + 10
        return pa.decimal128(38 if precision > 38 else precision, column_type.scale)
    return pa.float64() if pa.types.is_floating(column_type) else pa.int64()


if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__ = telling(__name__, lambda: KINDS)
