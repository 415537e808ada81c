"""Folding values into stored aggregates, a column at a time.

Every fold starts from the stored state and adds the batch's values in processing order (numpy's
``ufunc.at`` is sequential and unbuffered), so results do not depend on where a micro-batch was cut,
floating-point sums included.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64

_Bools = npt.NDArray[np.bool_]
_INT64 = np.iinfo(np.int64)
_CUT = ("largest", "smallest")
"""A list of another length lacks what was left out."""


class Bounds(NamedTuple):
    """How many values a list has, or a sketch's precision; ``when_full``: what a list does beyond,
    ``fail``, ``keep_first`` or ``keep_last``."""

    limit: int
    when_full: str = "fail"


@dataclass(frozen=True)
class StateColumn:
    """One field of the stored state. ``op`` is ``count``, ``sum``, ``min``, ``max``, ``first`` or
    ``last``, or one of `everflow.operators.folds`; ``field`` the field of the input struct it
    reads, None to count records. ``bounds``: of a list or a sketch."""

    name: str
    type: pa.DataType
    op: str
    field: str | None = None
    bounds: Bounds | None = None

    @property
    def limit(self) -> int:
        """Of its bounds, where it has some."""
        assert self.bounds is not None
        return self.bounds.limit

    @property
    def stored_type(self) -> pa.DataType:
        """Of the field as it is stored: lists are bytes there."""
        return pa.binary() if pa.types.is_list(self.type) else self.type

    @property
    def words(self) -> str:
        """What makes the field, as a store's layout says it: other words, other bytes."""
        if self.op == "distinct":
            return f"approx_count_distinct of {1 << self.limit} registers"
        kind = f" of {self.type.value_type}" if pa.types.is_list(self.type) else ""
        return f"{self.op} {self.limit}{kind}" if self.op in _CUT else f"{self.op}{kind}"


@dataclass
class ColumnFold:
    """One state column of all groups of a batch, and the values that go into it.

    ``stored``: per group, null where the group is new (``present`` False); ``codes``: the group of
    each contribution, in processing order; ``values``: their values, None where records are
    counted.
    """

    column: StateColumn
    stored: pa.Array
    present: _Bools
    codes: Int64
    values: pa.Array | None

    def final(self) -> pa.Array:
        """The state per group after the batch."""
        op, codes, groups = self.column.op, self.codes, len(self.present)
        if op in ("first", "last"):
            at = np.arange(groups)
            positions = groups + np.arange(len(codes), dtype=np.int64)
            if op == "last":
                at[codes] = positions  # the last assignment wins
            else:
                new = ~self.present[codes]
                at[codes[new][::-1]] = positions[new][::-1]
            return pa.concat_arrays([self.stored, self._values()]).take(pa.array(at))
        if op == "count":
            counts = self.stored.fill_null(0).to_numpy().copy()
            np.add.at(counts, codes if self.values is None else codes[valid(self.values)], 1)
            return pa.array(counts, pa.int64())
        numbers, back = as_numbers(self.column, self.stored, self._values())
        has = valid(self.stored).copy()
        used = valid(self._values())
        has[codes[used]] = True
        state = numbers[:groups].copy()
        with decimal.localcontext(DIGITS), np.errstate(invalid="ignore", over="ignore"):
            UFUNC[op, numbers.dtype.kind].at(state, codes[used], numbers[groups:][used])
        return back(state, has)

    def running(self) -> pa.Array:
        """The state of the contribution's group after each contribution (a loop: for
        `emit_every_update`)."""
        op, groups = self.column.op, len(self.present)
        if op in ("first", "last"):
            at = np.arange(len(self.codes), dtype=np.int64) + groups
            if op == "first":
                origin = np.where(self.present, np.arange(groups), -1).tolist()
                for index, code in enumerate(self.codes.tolist()):
                    if origin[code] < 0:
                        origin[code] = groups + index
                    at[index] = origin[code]
            return pa.concat_arrays([self.stored, self._values()]).take(pa.array(at))
        if op == "count":
            counts = self.stored.fill_null(0).to_pylist()
            counted = np.ones(len(self.codes), bool) if self.values is None else valid(self.values)
            found = []
            for code, used in zip(self.codes.tolist(), counted.tolist(), strict=True):
                counts[code] += used
                found.append(counts[code])
            return pa.array(found, pa.int64())
        numbers, back = as_numbers(self.column, self.stored, self._values())
        state, has = numbers[:groups].copy(), valid(self.stored).copy()
        ufunc = UFUNC[op, numbers.dtype.kind]
        result = np.empty(len(self.codes), numbers.dtype)
        result_has = np.zeros(len(self.codes), bool)
        with decimal.localcontext(DIGITS), np.errstate(invalid="ignore", over="ignore"):
            for index, (code, used) in enumerate(
                zip(self.codes, valid(self._values()), strict=True)
            ):
                if used:
                    state[code] = ufunc(state[code], numbers[groups + index])
                    has[code] = True
                result[index], result_has[index] = state[code], has[code]
        return back(result, result_has)

    def _values(self) -> pa.Array:
        assert self.values is not None
        return as_operands(self.column, self.values)


DIGITS = decimal.Context(prec=76)  # Python's default of 28 digits would round decimals of 38
# fmin skips NaN and maximum spreads it: NaN is the largest value
UFUNC: dict[tuple[str, str], np.ufunc] = {
    ("sum", "i"): np.add,
    ("sum", "f"): np.add,
    ("sum", "O"): np.add,
    ("min", "i"): np.minimum,
    ("min", "f"): np.fmin,
    ("max", "i"): np.maximum,
    ("max", "f"): np.maximum,
}
_NEUTRAL: dict[tuple[str, str], Any] = {
    ("sum", "i"): 0,
    ("sum", "f"): 0.0,
    ("min", "i"): _INT64.max,
    ("min", "f"): np.nan,
    ("max", "i"): _INT64.min,
    ("max", "f"): -np.inf,
}
_Back = Callable[[npt.NDArray[Any], _Bools], pa.Array]


def as_operands(column: StateColumn, values: pa.Array) -> pa.Array:
    """``values`` in the type in which ``column`` folds them."""
    if column.op == "sum" and values.type != column.type:
        # unsafe: a mean may be taken of longs with more digits than a double holds
        return values.cast(column.type, safe=False)
    return values


def as_numbers(
    column: StateColumn, stored: pa.Array, values: pa.Array
) -> tuple[npt.NDArray[Any], _Back]:
    """Stored state and values as one numpy array of int64, float64 or Decimal, and the way back to
    the column's type.

    Types without numbers (text, booleans, decimals under min / max) are replaced by their rank
    among all values.
    """
    type_ = column.type
    both = pa.concat_arrays([stored, values])
    if pa.types.is_decimal(type_) and column.op == "sum":
        zero = decimal.Decimal(0)
        numbers = np.array(
            [zero if item is None else item for item in both.to_pylist()] + [None], object
        )[:-1]
        return numbers, lambda state, has: pa.array(
            [item if known else None for item, known in zip(state, has, strict=True)], type_
        )
    if pa.types.is_floating(type_) or pa.types.is_integer(type_) or pa.types.is_temporal(type_):
        if pa.types.is_temporal(type_):
            both = both.view(pa.int32() if type_.bit_width == 32 else pa.int64())
        kind = "f" if pa.types.is_floating(type_) else "i"
        raw = both.cast(pa.float64() if kind == "f" else pa.int64())
        numbers = (
            raw.fill_null(_NEUTRAL[column.op, kind]).to_numpy()
            if raw.null_count
            else raw.to_numpy()
        )

        def back(state: npt.NDArray[Any], has: _Bools) -> pa.Array:
            found = pa.array(state, mask=~has)
            if not pa.types.is_temporal(type_):
                return found.cast(type_)
            return (
                found.cast(pa.int32()).view(type_) if type_.bit_width == 32 else found.view(type_)
            )

        return numbers, back
    order = pc.sort_indices(both).to_numpy().astype(np.int64)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    ranks[: len(stored)][~valid(stored)] = _NEUTRAL[column.op, "i"]

    def of_ranks(state: npt.NDArray[Any], has: _Bools) -> pa.Array:
        at = order[np.where(has, state, 0)] if len(order) else np.zeros(0, np.int64)
        return both.take(pa.array(at, mask=~has))

    return ranks, of_ranks


def valid(values: pa.Array) -> _Bools:
    """Where ``values`` is not null."""
    if values.null_count == 0:
        return np.ones(len(values), bool)
    found: _Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return found
