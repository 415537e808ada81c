"""Folding values into stored aggregates, a column at a time.

Every fold starts from the stored state and adds the batch's values in processing order (numpy's
``ufunc.at`` is sequential and unbuffered), so results do not depend on where a micro-batch was cut,
floating-point sums included.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import pairwise
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
    """The length of a list, or a sketch's precision; ``when_full``: what a list does beyond it,
    ``fail``, ``keep_first`` or ``keep_last``."""

    limit: int
    when_full: str = "fail"


@dataclass(frozen=True)
class StateColumn:
    """One field of the stored state. ``op`` is ``count``, ``sum``, ``min``, ``max``, ``first`` or
    ``last``, or one of `everflow.operators.aggregates.folds`; ``field`` the field of the input
    struct that it reads, None to count records. ``bounds``: of a list or a sketch."""

    name: str
    type: pa.DataType
    op: str
    field: str | None = None
    bounds: Bounds | None = None

    @property
    def limit(self) -> int:
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


class Merge(NamedTuple):
    """Groups ``parents`` (in order of time) that became the new group ``group`` in front of the
    contribution ``at``, which is the new group's."""

    at: int
    group: int
    parents: tuple[int, ...]


@dataclass(kw_only=True)
class ColumnFold:
    """One state column of all groups of a batch, and the values that go into it.

    ``stored``: per group, null where the group is new (``present`` False); ``codes``: the group of
    each contribution, in processing order; ``values``: their values, None where records are
    counted. ``merges``: of groups, in order: their states are folded in the order of the parents.
    So a result is the same as if records came one by one, floating-point sums included.
    """

    column: StateColumn
    stored: pa.Array
    present: _Bools
    codes: Int64
    values: pa.Array | None
    merges: Sequence[Merge] = ()

    def final(self) -> pa.Array:
        """The state per group after the batch; of one that was merged into another, before that."""
        op, codes, groups = self.column.op, self.codes, len(self.present)
        if op == "first":
            return self._picked(self._firsts())
        if op == "last":
            at = np.arange(groups)
            at[codes] = groups + np.arange(len(codes))  # the last assignment wins
            return self._picked(at)
        if op == "count" and not self.merges:
            counts = self.stored.fill_null(0).to_numpy().copy()
            np.add.at(counts, codes if self.values is None else codes[valid(self.values)], 1)
            return pa.array(counts, pa.int64())
        fold = self._numbers()
        used = np.flatnonzero(fold.used)
        stops = [merge.at for merge in self.merges]
        bounds = [0, *np.searchsorted(used, np.array(stops, np.int64)).tolist(), len(used)]
        with decimal.localcontext(DIGITS), np.errstate(invalid="ignore", over="ignore"):
            for number, (begin, end) in enumerate(pairwise(bounds)):
                if number:
                    fold.merge(self.merges[number - 1])
                fold.add(used[begin:end])
        return fold.back(fold.state, fold.has)

    def running(self) -> pa.Array:
        """The state of the contribution's group after each contribution (a loop: for
        `emit_every_update`)."""
        op, groups, count = self.column.op, len(self.present), len(self.codes)
        if op == "first":
            return self._picked(self._firsts()[self.codes])
        if op == "last":
            return self._picked(groups + np.arange(count))
        if op == "count" and not self.merges:
            counts = self.stored.fill_null(0).to_pylist()
            counted = np.ones(count, bool) if self.values is None else valid(self.values)
            told = []
            for code, used in zip(self.codes.tolist(), counted.tolist(), strict=True):
                counts[code] += used
                told.append(counts[code])
            return pa.array(told, pa.int64())
        fold, merges = self._numbers(), {merge.at: merge for merge in self.merges}
        state, has, values, ufunc = fold.state, fold.has, fold.values, fold.ufunc
        found, found_has = np.empty(count, state.dtype), np.zeros(count, bool)
        with decimal.localcontext(DIGITS), np.errstate(invalid="ignore", over="ignore"):
            for index, (code, used) in enumerate(zip(self.codes, fold.used, strict=True)):
                if index in merges:
                    fold.merge(merges[index])
                if used:
                    state[code] = ufunc(state[code], values[index])
                    has[code] = True
                found[index], found_has[index] = state[code], has[code]
        return fold.back(found, found_has)

    def _picked(self, at: Int64) -> pa.Array:
        assert self.values is not None
        values = as_operands(self.column, self.values)
        return pa.concat_arrays([self.stored, values]).take(at)

    def _firsts(self) -> Int64:
        groups = len(self.present)
        at = np.arange(groups)
        new = np.flatnonzero(~self.present[self.codes])
        at[self.codes[new][::-1]] = groups + new[::-1]
        for merge in self.merges:  # it began where the earliest of its parents began
            at[merge.group] = at[merge.parents[0]]
        return at

    def _numbers(self) -> _Numbers:
        column, stored = self.column, self.stored
        if column.op == "count":  # a sum of ones that begins with 0
            column, stored = replace(column, op="sum"), stored.fill_null(0)
            mask = None if self.values is None else ~valid(self.values)
            values = pa.array(np.ones(len(self.codes), np.int64), mask=mask)
        else:
            assert self.values is not None
            values = as_operands(column, self.values)
        numbers, back = as_numbers(column, stored, values)
        groups = len(self.present)
        return _Numbers(
            codes=self.codes,
            state=numbers[:groups].copy(),
            has=valid(stored).copy(),
            values=numbers[groups:],
            used=valid(values),
            ufunc=UFUNC[column.op, numbers.dtype.kind],
            back=back,
        )


@dataclass(kw_only=True)
class _Numbers:
    """States of groups, and whether there are any, and values of contributions, as numbers;
    ``used``: which values are not null."""

    codes: Int64
    state: npt.NDArray[Any]
    has: _Bools
    values: npt.NDArray[Any]
    used: _Bools
    ufunc: np.ufunc
    back: _Back

    def add(self, at: Int64) -> None:
        self.ufunc.at(self.state, self.codes[at], self.values[at])
        self.has[self.codes[at]] = True

    def merge(self, merge: Merge) -> None:
        parents = [parent for parent in merge.parents if self.has[parent]]
        if parents:
            self.state[merge.group] = reduce(self.ufunc, (self.state[one] for one in parents))
            self.has[merge.group] = True


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
    if values.null_count == 0:
        return np.ones(len(values), bool)
    found: _Bools = values.is_valid().to_numpy(zero_copy_only=False)
    return found
