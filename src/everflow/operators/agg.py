"""Built-in aggregates such as ``agg.count()``: vectorised, without Python code per record.

Nulls follow SQL: every aggregate but ``count()``, ``first`` and ``last`` skips them. If no value
remains, the result is null (counts: 0, lists: empty). Integer sums are 64-bit and wrap around
as Java's do. NaN is larger than every number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from everflow.errors import TopologyError
from everflow.foreign_names import fitting, telling
from everflow.serdes.arrow_types import holds, type_text
from everflow.user_program import user_line

KINDS = (
    *("count", "sum", "min", "max", "avg", "first", "last"),
    *("collect_list", "collect_set", "min_by", "max_by", "approx_count_distinct", "top_n"),
)
_BY = ("min_by", "max_by", "top_n")
LOWEST, HIGHEST = 4, 18
"""The precisions of sketches that the corrections know."""
_FULL = ("fail", "keep_first", "keep_last")


def precision_of(rsd: float) -> int:
    """The precision of a sketch whose relative standard deviation is at most ``rsd``, as in
    Spark."""
    return math.ceil(2.0 * math.log(1.106 / rsd) / math.log(2.0))


@dataclass(frozen=True, kw_only=True)
class Aggregator:
    """One aggregate of a group, as ``agg.count()`` and the other functions make it. ``column`` is a
    pyspark Column or a column name such as ``value.amount``; ``by`` orders the values.

    Once the DSL has lowered it, ``column`` and ``by`` are names of fields of the operator's input
    struct (``a0``, ``b0``). ``limit``: the most values of a list; None: the result is one value.
    ``when_full``: what happens beyond ``limit``. ``largest``: which end of the order is used.
    ``rsd``: the relative standard deviation of an estimate.
    """

    kind: str
    column: Any = None
    by: Any = None
    limit: int | None = None
    when_full: str = "fail"
    largest: bool = True
    rsd: float = 0.05

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise TopologyError(
                f"unknown aggregate {self.kind!r}; there are {', '.join(KINDS)}", where=user_line()
            )
        limit: object = self.limit
        counts = isinstance(limit, int) and not isinstance(limit, bool) and limit > 0
        needed = self.kind in ("collect_list", "collect_set", "top_n")
        full = _FULL if self.kind == "collect_list" else _FULL[:2]
        rsd: object = self.rsd
        good = isinstance(rsd, int | float) and not isinstance(rsd, bool) and 0 < rsd < 1
        wrong = ""
        if self.column is None and self.kind != "count":
            wrong = f" takes a column, for example agg.{self.kind}('value.amount')"
        elif self.kind in ("min_by", "max_by") and self.by is None:
            wrong = (
                f" takes two columns, the value and the order, for example agg.{self.kind}("
                "'value.item', 'value.amount')"
            )
        elif not counts and (needed or limit is not None):
            wrong = f" keeps a whole number of values above zero, found {limit!r}"
        elif self.when_full not in full:
            names = ", ".join(map(repr, full))
            wrong = f": when_full is one of {names}, found {self.when_full!r}"
        elif not good or not LOWEST <= precision_of(self.rsd) <= HIGHEST:
            wrong = (
                ": rsd is the relative standard deviation, from 0.0022 (209 KB a key) to 0.39 "
                f"(16 bytes); 0.05 takes 416 bytes; found {rsd!r}"
            )
        if wrong:
            raise TopologyError(f"agg.{self.kind}{wrong}", where=user_line())


@fitting("agg.count()")
def count(column: Any = None) -> Aggregator:
    """Counts the records, or those where ``column`` is not null; ``int64``."""
    return Aggregator(kind="count", column=column)


@fitting("agg.sum('value.amount')")
def sum(column: Any) -> Aggregator:  # noqa: A001 (the field's word; used as `agg.sum`)
    """Adds the values: ``int64`` for integers, ``double`` for floats, a decimal with 10 more digits
    (at most 38) for decimals."""
    return Aggregator(kind="sum", column=column)


@fitting("agg.min('value.amount')")
def min(column: Any) -> Aggregator:  # noqa: A001
    """Smallest value, with the type of the column."""
    return Aggregator(kind="min", column=column)


@fitting("agg.max('value.amount')")
def max(column: Any) -> Aggregator:  # noqa: A001
    """Largest value, with the type of the column."""
    return Aggregator(kind="max", column=column)


@fitting("agg.avg('value.amount')")
def avg(column: Any) -> Aggregator:
    """Mean as ``double``; the store keeps sum and count."""
    return Aggregator(kind="avg", column=column)


@fitting("agg.first('value.amount')")
def first(column: Any) -> Aggregator:
    """The value in the first processed record, null or not. If sessions merge, the earliest
    session's value stays."""
    return Aggregator(kind="first", column=column)


@fitting("agg.last('value.amount')")
def last(column: Any) -> Aggregator:
    """The value in the last processed record, null or not."""
    return Aggregator(kind="last", column=column)


@fitting("agg.collect_list('value.item', limit=100)")
def collect_list(column: Any, limit: int = 10_000, when_full: str = "fail") -> Aggregator:
    """The non-null values as a list, in processing order. After sessions merge, those of the
    earliest session are first. ``limit``: the most values per key (and window). ``when_full``: with
    ``"fail"`` a record beyond the limit is a bad record (a `RecordError`, unless the exception
    handler skips the record); ``"keep_first"`` skips later values, ``"keep_last"`` removes the
    earliest.
    """
    return Aggregator(kind="collect_list", column=column, limit=limit, when_full=when_full)


@fitting("agg.collect_set('value.item', limit=100)")
def collect_set(column: Any, limit: int = 10_000, when_full: str = "fail") -> Aggregator:
    """The distinct non-null values as a list, in the order of their first occurrence. ``limit`` as
    in `collect_list`; ``when_full``: ``"fail"`` or ``"keep_first"``."""
    return Aggregator(kind="collect_set", column=column, limit=limit, when_full=when_full)


@fitting("agg.min_by('value.item', 'value.amount')")
def min_by(column: Any, by: Any, k: int | None = None) -> Aggregator:
    """The value of ``column`` where ``by`` is smallest; of equal ``by`` the last processed, as in
    Spark. Records with a null ``by`` are skipped. With ``k``: the list of `top_n` with
    ``largest=False``."""
    return Aggregator(kind="min_by", column=column, by=by, limit=k, largest=False)


@fitting("agg.max_by('value.item', 'value.amount')")
def max_by(column: Any, by: Any, k: int | None = None) -> Aggregator:
    """As `min_by`, for the largest ``by``; with ``k``: the list of `top_n`."""
    return Aggregator(kind="max_by", column=column, by=by, limit=k)


@fitting("agg.top_n('value.item', 3, by='value.amount')")
def top_n(column: Any, n: int, by: Any = None, largest: bool = True) -> Aggregator:
    """A list of up to ``n`` values of ``column``: those with the largest ``by`` (default:
    ``column`` itself), largest first; with ``largest=False`` the smallest, smallest first. Of
    records with equal ``by``, the first processed is first. Records with a null ``by`` are
    skipped."""
    return Aggregator(kind="top_n", column=column, by=by, limit=n, largest=largest)


@fitting("agg.approx_count_distinct('value.item')")
def approx_count_distinct(column: Any, rsd: float = 0.05) -> Aggregator:
    """Approximate number of distinct non-null values; ``int64``. Spark's HyperLogLog++, with the
    same estimates. ``rsd``: relative standard deviation; a smaller one needs a larger sketch."""
    return Aggregator(kind="approx_count_distinct", column=column, rsd=rsd)


def result_type(
    aggregator: Aggregator,
    column_type: pa.DataType | None,
    by_type: pa.DataType | None = None,
) -> pa.DataType:
    """Arrow type of the aggregate's result; TopologyError if it cannot be taken of
    ``column_type``, or ordered by ``by_type``."""
    kind = aggregator.kind
    if kind in ("count", "approx_count_distinct"):
        return pa.int64()
    assert column_type is not None
    if kind in _BY:
        order = column_type if by_type is None else by_type
        if pa.types.is_nested(order) or pa.types.is_null(order):
            raise TopologyError(
                f"agg.{kind} goes by values with an order, the column is {type_text(order)}"
            )
        return column_type if aggregator.limit is None else pa.list_(column_type)
    if kind in ("collect_list", "collect_set"):
        if kind == "collect_set":
            require_comparable(kind, column_type)
        return pa.list_(column_type)
    numeric = pa.types.is_integer(column_type) or pa.types.is_floating(column_type)
    if kind in ("sum", "avg"):
        if not numeric and not pa.types.is_decimal128(column_type):
            raise TopologyError(f"agg.{kind} takes numbers, the column is {type_text(column_type)}")
        return pa.float64() if kind == "avg" else _sum_type(column_type)
    if kind in ("min", "max") and pa.types.is_nested(column_type):
        raise TopologyError(
            f"agg.{kind} takes values with an order, the column is {type_text(column_type)}"
        )
    return column_type


def require_comparable(
    kind: str,
    column_type: pa.DataType,
    where: str | None = None,
) -> None:
    """Raises TopologyError if the values are or contain maps, which Spark does not compare."""
    if holds(column_type, pa.types.is_map):
        raise TopologyError(
            f"agg.{kind} takes values that can be compared, the column is "
            f"{type_text(column_type)}; of a map take its entries: F.map_entries(...)",
            where=where,
        )


def _sum_type(column_type: pa.DataType) -> pa.DataType:
    if pa.types.is_decimal128(column_type):
        precision = column_type.precision + 10
        return pa.decimal128(38 if precision > 38 else precision, column_type.scale)
    return pa.float64() if pa.types.is_floating(column_type) else pa.int64()


if not TYPE_CHECKING:  # a type checker knows the names
    __getattr__ = telling(__name__, lambda: KINDS)
