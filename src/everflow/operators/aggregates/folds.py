"""The folds of built-in aggregates: values into stored states, a column at a time, in processing
order (numpy's ``ufunc.at`` is sequential and unbuffered), so results do not depend on where a
micro-batch was cut, floating-point sums included."""

from __future__ import annotations

import decimal
import json
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.agg import LOWEST
from everflow.records import Int64, valid
from everflow.serdes.base import (
    SerdeError,
    binary_from_matrix,
    bytes_of,
    flat,
    matrix_from_binary,
)
from everflow.serdes.json_serde import JsonSerde
from everflow.serdes.packed import PackedSerde

_Bools = npt.NDArray[np.bool_]
_INT64 = np.iinfo(np.int64)
_CUT = ("largest", "smallest")
"""A list of another length lacks what was left out."""


class Bounds(NamedTuple):
    """The length of a list, or a sketch's precision; ``when_full``: see `agg.collect_list`."""

    limit: int
    when_full: str = "fail"


@dataclass(frozen=True)
class StateColumn:
    """One field of the stored state. ``op``: ``count``, ``sum``, ``min``, ``max``, ``first`` or
    ``last``, or one of `FOLDS`; ``field``: the input's field it reads, None to count records."""

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


@dataclass(frozen=True, kw_only=True)
class GroupValues:
    """What state columns hold for each group of a batch, and the values that go into them.

    ``stored``: by column, then group, null where the group is new (``present`` False); ``codes``:
    the group of each contribution, in processing order; ``values``: by column, None where records
    are counted. ``merges``: of groups, in order: their states are folded in the order of the
    parents. So a result is the same as if records came one by one, floating-point sums included.
    """

    stored: Sequence[pa.Array]
    present: _Bools
    codes: Int64
    values: Sequence[pa.Array | None]
    merges: Sequence[Merge] = ()


@dataclass
class ColumnFold:
    """One state column of all groups of a batch, and the values that go into it."""

    column: StateColumn
    stored: pa.Array
    values: pa.Array | None
    group_values: GroupValues

    def final(self) -> pa.Array:
        """The state per group after the batch; of one that was merged into another, before that."""
        op, codes, groups = self.column.op, self.group_values.codes, len(self.group_values.present)
        if op == "first":
            return self._picked(self._firsts())
        if op == "last":
            at = np.arange(groups)
            at[codes] = groups + np.arange(len(codes))  # the last assignment wins
            return self._picked(at)
        if op == "count" and not self.group_values.merges:
            counts = self.stored.fill_null(0).to_numpy().copy()
            np.add.at(counts, codes if self.values is None else codes[valid(self.values)], 1)
            return pa.array(counts, pa.int64())
        fold = self._numbers()
        used = fold.used.nonzero()[0]
        stops = [merge.at for merge in self.group_values.merges]
        bounds = [0, *(int(np.searchsorted(used, stop)) for stop in stops), len(used)]
        with decimal.localcontext(DIGITS), np.errstate(invalid="ignore", over="ignore"):
            for number, (begin, end) in enumerate(pairwise(bounds)):
                if number:
                    fold.merge(self.group_values.merges[number - 1])
                fold.add(used[begin:end])
        return fold.back(fold.state, fold.has)

    def running(self) -> pa.Array:
        """The state of the group after each contribution (a loop: for `emit_every_update`)."""
        op, groups, count = (
            self.column.op,
            len(self.group_values.present),
            len(self.group_values.codes),
        )
        if op == "first":
            return self._picked(self._firsts()[self.group_values.codes])
        if op == "last":
            return self._picked(groups + np.arange(count))
        if op == "count" and not self.group_values.merges:
            counts = self.stored.fill_null(0).to_pylist()
            counted = np.ones(count, bool) if self.values is None else valid(self.values)
            running_counts = []
            for code, used in zip(self.group_values.codes.tolist(), counted.tolist(), strict=True):
                counts[code] += used
                running_counts.append(counts[code])
            return pa.array(running_counts, pa.int64())
        fold, merges = self._numbers(), {merge.at: merge for merge in self.group_values.merges}
        state, has, values, ufunc = fold.state, fold.has, fold.values, fold.ufunc
        found, found_has = np.empty(count, state.dtype), np.zeros(count, bool)
        with decimal.localcontext(DIGITS), np.errstate(invalid="ignore", over="ignore"):
            for index, (code, used) in enumerate(
                zip(self.group_values.codes, fold.used, strict=True)
            ):
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
        groups = len(self.group_values.present)
        at = np.arange(groups)
        new = np.flatnonzero(~self.group_values.present[self.group_values.codes])
        at[self.group_values.codes[new][::-1]] = groups + new[::-1]
        for merge in self.group_values.merges:  # it began where the earliest of its parents began
            at[merge.group] = at[merge.parents[0]]
        return at

    def _numbers(self) -> _Numbers:
        column, stored = self.column, self.stored
        if column.op == "count":  # a sum of ones that begins with 0
            column, stored = replace(column, op="sum"), stored.fill_null(0)
            mask = None if self.values is None else ~valid(self.values)
            values = pa.array(np.ones(len(self.group_values.codes), np.int64), mask=mask)
        else:
            assert self.values is not None
            values = as_operands(column, self.values)
        numbers, back = as_numbers(column, stored, values)
        groups = len(self.group_values.present)
        return _Numbers(
            codes=self.group_values.codes,
            state=numbers[:groups].copy(),
            has=valid(stored).copy(),
            values=numbers[groups:],
            used=valid(values),
            ufunc=UFUNC[column.op, numbers.dtype.kind],
            back=back,
        )


@dataclass(kw_only=True)
class _Numbers:
    """States of groups and values of contributions as numbers; ``has``, ``used``: not null."""

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
    the column's type. Types without numbers (text, booleans, decimals under min / max) are replaced
    by their rank among all values."""
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
        wide = pa.float64() if kind == "f" else pa.int64()
        raw = both if both.type == wide else both.cast(wide)
        numbers = (
            raw.fill_null(_NEUTRAL[column.op, kind]).to_numpy()
            if raw.null_count
            else raw.to_numpy()
        )

        def back(state: npt.NDArray[Any], has: _Bools) -> pa.Array:
            found = pa.array(state, mask=None if has.all() else ~has)
            if not pa.types.is_temporal(type_):
                return found if type_ == wide else found.cast(type_)
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


# --- the input of a fold: states and values, each of a group, in order ----------------------------


@dataclass(frozen=True, kw_only=True)
class Items:
    """States and values of ``groups`` groups; states come before the values of a part, parts in the
    order of time.

    ``states`` and ``values``: a column for each state column, null where there is no state;
    ``state_groups``, ``value_groups``: the group of each; ``state_order``, ``value_order``: numbers
    that put states and values of a group together in order.
    """

    groups: int
    states: Sequence[pa.Array]
    state_groups: Int64
    state_order: Int64
    values: Sequence[pa.Array]
    value_groups: Int64
    value_order: Int64

    @staticmethod
    def of_groups(
        stored: Sequence[pa.Array],
        codes: Int64,
        values: Sequence[pa.Array],
        merges: Sequence[Merge] = (),
    ) -> Items:
        """A state for each group, and behind it the values, in processing order; of groups that
        became one the items of the parents in order of time, and behind them those of its own."""
        groups, count = len(stored[0]), len(codes)
        roots, place = np.arange(groups), np.arange(groups + count)
        if merges:
            roots, ranks = _places(groups, merges)
            order = np.lexsort(
                (
                    np.concatenate([np.full(groups, -1), np.arange(count)]),
                    np.concatenate([ranks, ranks[codes]]),
                )
            )
            place[order] = np.arange(len(order))
        return Items(
            groups=groups,
            states=stored,
            state_groups=roots,
            state_order=place[:groups],
            values=values,
            value_groups=roots[codes],
            value_order=place[groups:],
        )

    def columns(self) -> list[pa.Array]:
        return [
            pa.concat_arrays([state, value])
            for state, value in zip(self.states, self.values, strict=True)
        ]

    @property
    def all_groups(self) -> Int64:
        return np.concatenate([self.state_groups, self.value_groups])

    @property
    def all_order(self) -> Int64:
        return np.concatenate([self.state_order, self.value_order])


def _places(groups: int, merges: Sequence[Merge]) -> tuple[Int64, Int64]:
    """The group that each has become part of in the end, and its place behind its parents."""
    parents = {merge.group: merge.parents for merge in merges}
    roots = np.arange(groups)
    ranks = np.empty(groups, np.int64)
    swallowed = {parent for merge in merges for parent in merge.parents}
    rank = groups
    # Backwards: a group stands behind its parents, the last of which is nearest.
    for root in range(groups):
        if root in swallowed:
            continue
        waiting = [root]
        while waiting:
            one = waiting.pop()
            rank -= 1
            ranks[one], roots[one] = rank, root
            waiting += parents.get(one, ())
    return roots, ranks


def ranked(column: pa.Array) -> Int64:
    """Numbers in the order of the values; NaN is the largest, 0.0 equals -0.0. Of nulls any."""
    found: Int64 = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return found


# --- ``min_by`` and ``max_by``: the value beside the smallest or largest of another column --------


def picked(columns: Sequence[StateColumn], items: Items, *, sign: int) -> list[pa.Array]:
    """Per group value and order, the largest or (``sign`` -1) the smallest; of equal ones the last,
    as in Spark. Null orders are skipped."""
    both = items.columns()
    there = np.flatnonzero(valid(both[1]))
    groups = items.all_groups[there]
    ranks = sign * ranked(both[1])[there]
    order = np.lexsort((items.all_order[there], ranks, groups))
    at = np.full(items.groups, -1)
    at[groups[order]] = there[order]  # the last assignment wins
    rows = pa.array(at, mask=at < 0)
    return [column.take(rows) for column in both]


# --- lists as states: ``collect_list``, ``collect_set``, and the n largest or smallest ------------
# A list is folded element by element: those of the stored lists and the new values are put in
# order, what is too much is left out, and the rest is cut into lists again.


class ListFullError(Exception):
    """A group has more elements than the list ``column`` may hold; ``at``: the value beyond."""

    def __init__(self, column: StateColumn, at: int) -> None:
        super().__init__(at)
        self.column, self.at = column, at


def collect_list(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    """All values but nulls, in processing order."""
    elements = _elements(items)
    return _lists(_bounded(columns[0], elements, np.argsort(elements.order, kind="stable")))


def collect_set(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    """The distinct values, each at its first place. NaN equals NaN."""
    elements = _elements(items)
    column = elements.columns[0]
    if pa.types.is_floating(column.type):
        zero = pc.equal(column, pa.scalar(0, column.type))
        column = pc.if_else(zero, pa.scalar(0.0, column.type), column)  # -0.0 is the same
    if pa.types.is_nested(column.type):
        column = JsonSerde(column.type).encode_array(column)
    codes = column.dictionary_encode().indices.to_numpy().astype(np.int64)
    order = np.lexsort((elements.order, codes, elements.groups))
    groups, codes = elements.groups[order], codes[order]
    new = (np.diff(groups, prepend=-1) != 0) | (np.diff(codes, prepend=-1) != 0)
    first = order[new]
    return _lists(
        _bounded(columns[0], elements, first[np.argsort(elements.order[first], kind="stable")])
    )


@dataclass(frozen=True)
class _Elements:
    """Elements of all lists: their columns, group, place in order, and value (-1: of a state)."""

    groups: Int64
    order: Int64
    values: Int64
    columns: list[pa.Array]
    count: int

    def take(self, at: Int64) -> _Elements:
        columns = [column.take(at) for column in self.columns]
        return _Elements(
            self.groups[at],
            self.order[at],
            self.values[at],
            columns,
            self.count,
        )


def _elements(items: Items) -> _Elements:
    # A new group has no list, and `flatten` leaves it out.
    lengths = pc.list_value_length(items.states[0]).fill_null(0).to_numpy().astype(np.int64)
    there = np.flatnonzero(valid(items.values[-1]))
    begins = np.cumsum(lengths) - lengths
    inside = np.arange(int(lengths.sum())) - np.repeat(begins, lengths)
    places = np.concatenate([np.repeat(items.state_order, lengths), items.value_order[there]])
    within = np.concatenate([inside, np.zeros(len(there), np.int64)])
    order = np.empty(len(places), np.int64)
    order[np.lexsort((within, places))] = np.arange(len(places))
    return _Elements(
        groups=np.concatenate([np.repeat(items.state_groups, lengths), items.value_groups[there]]),
        order=order,
        values=np.concatenate([np.full(len(inside), -1), there]),
        columns=[
            pa.concat_arrays([state.flatten(), value.take(there)])
            for state, value in zip(items.states, items.values, strict=True)
        ],
        count=items.groups,
    )


def _numbers_in_groups(groups: Int64) -> Int64:
    begins = np.flatnonzero(np.diff(groups, prepend=-1) != 0)
    lengths = np.diff(begins, append=len(groups))
    return np.arange(len(groups)) - np.repeat(begins, lengths)


def _bounded(column: StateColumn, elements: _Elements, order: Int64) -> _Elements:
    """The elements at ``order`` by group, as many as the list may hold; `ListFullError`."""
    order = order[np.argsort(elements.groups[order], kind="stable")]
    assert column.bounds is not None
    limit, when_full = column.bounds
    if len(order) > limit:
        groups = elements.groups[order]
        numbers = _numbers_in_groups(groups)
        if when_full == "keep_last":
            sizes = np.bincount(groups, minlength=elements.count)
            order = order[numbers >= sizes[groups] - limit]
        else:
            beyond = order[numbers >= limit]
            if when_full == "fail" and len(beyond):
                raise ListFullError(column, _first_beyond(elements, beyond))
            order = order[numbers < limit]
    return elements.take(order)


def _first_beyond(elements: _Elements, beyond: Int64) -> int:
    """The first value that is too much; where the limit has become lower, one of such a list."""
    values = elements.values[beyond]
    if (values < 0).all():
        values = elements.values[np.isin(elements.groups, elements.groups[beyond])]
    return int(values[values >= 0].min(initial=len(elements.values)))


def top(columns: Sequence[StateColumn], items: Items, *, sign: int) -> list[pa.Array]:
    """The n values with the smallest orders, smallest first, or (``sign`` -1) the largest ones; of
    equal ones the first."""
    elements = _elements(items)
    ranks = sign * ranked(elements.columns[-1])
    order = np.lexsort((elements.order, ranks, elements.groups))
    order = order[_numbers_in_groups(elements.groups[order]) < columns[0].limit]
    return _lists(elements.take(order))


def _lists(elements: _Elements) -> list[pa.Array]:
    sizes = np.bincount(elements.groups, minlength=elements.count)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    return [pa.ListArray.from_arrays(offsets, column) for column in elements.columns]


# --- lists as bytes, written and read a column at a time ------------------------------------------
# The number of elements and the length of each, 4 bytes each, big endian; then the elements, each
# a packed struct of one field (`everflow.serdes.packed`).


_WORD = 4


def pack(lists: pa.Array) -> pa.Array:
    """Bytes of lists; null where the list is null."""
    lists = flat(lists, lists.type)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    elements = _serde(lists.type).encode_array(
        pa.StructArray.from_arrays([lists.flatten()], names=["e"])
    )
    sizes = pc.binary_length(elements).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    parts = [
        _words(lengths),
        pc.binary_join(pa.ListArray.from_arrays(offsets, _words(sizes)), b""),
        pc.binary_join(pa.ListArray.from_arrays(offsets, elements), b""),
    ]
    packed = pc.binary_join_element_wise(*parts, pa.scalar(b""))
    return pc.if_else(lists.is_valid(), packed, pa.scalar(None, pa.binary()))


def unpack(data: pa.Array, type_: pa.DataType) -> pa.Array:
    """Inverse of `pack`; SerdeError for bytes that are none."""
    data = flat(data, pa.binary())
    there = data.is_valid()
    some = data.drop_null()
    sizes = pc.binary_length(some).to_numpy().astype(np.int64)
    if (sizes < _WORD).any():
        raise SerdeError(f"a list of {int(sizes.min())} bytes, expected at least {_WORD}")
    content, places = bytes_of(some)
    raw = content[places[0] : places[-1]]
    begins = np.cumsum(sizes) - sizes
    counts = _numbers(raw, begins)
    if (counts < 0).any() or (_WORD * (counts + 1) > sizes).any():
        raise SerdeError("bytes that are no list: their count is wrong")
    inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    lengths = _numbers(raw, np.repeat(begins, counts) + _WORD * (inside + 1))
    heads = _WORD * (counts + 1)
    ends = np.cumsum(lengths)
    lists = np.cumsum(counts)
    total = np.diff(np.concatenate([[0], ends])[lists], prepend=0)
    if (lengths < 0).any() or (total + heads != sizes).any():
        raise SerdeError("bytes that are no list: their lengths are wrong")
    before = np.repeat(np.concatenate([[0], ends])[lists - counts], counts)
    starts = ends - lengths - before + np.repeat(heads, counts)
    starts += np.repeat(begins, counts)
    items = _serde(type_).decode_array(_cut(raw, starts, lengths)).field(0)
    offsets = np.concatenate([[0], lists])
    if items.type != type_.value_type:  # a cast of lists of voids to their own type breaks them
        items = items.cast(type_.value_type)
    found = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
    if data.null_count == 0:
        return found
    at = np.cumsum(there.to_numpy(zero_copy_only=False)) - 1
    return found.take(pa.array(at, mask=~there.to_numpy(zero_copy_only=False)))


def _serde(type_: pa.DataType) -> PackedSerde:
    return PackedSerde(pa.struct([("e", type_.value_type)]))


def _words(numbers: Int64) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(numbers.astype(">i4")))
    words = pa.Array.from_buffers(pa.binary(_WORD), len(numbers), [None, buffer])
    return words.cast(pa.binary())


def _cut(raw: npt.NDArray[np.uint8], starts: Int64, lengths: Int64) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    index = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw[index])]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _numbers(raw: npt.NDArray[np.uint8], at: Int64) -> Int64:
    rows = raw[at[:, None] + np.arange(_WORD)]
    return np.ascontiguousarray(rows).view(">i4").reshape(-1).astype(np.int64)


# --- ``approx_count_distinct``: Spark's HyperLogLog++, in the layout of Spark's own sketch --------
# A sketch of precision p has 2^p registers of 6 bits, ten to a big-endian word of 64 bits, the
# first lowest. Two sketches merge by the larger of each register, so neither order nor cut of the
# values matters. What goes in are Spark's hashes (``xxhash64``).


_PER_WORD, _BITS, _MASK = 10, 6, np.uint64(63)
_NEIGHBOURS = 6
_ALPHA = {4: 0.673, 5: 0.697, 6: 0.709}
_Words = npt.NDArray[np.uint64]


def distinct(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    precision = columns[0].limit
    width = words_of(precision)
    words = np.zeros((items.groups, width), np.uint64)
    there = np.flatnonzero(valid(items.states[0]))
    there = there[np.argsort(items.state_groups[there], kind="stable")]
    groups = items.state_groups[there]
    rows = matrix_from_binary(items.states[0].take(there), 8 * width)
    stored = np.ascontiguousarray(rows).view(">u8").astype(np.uint64).reshape(-1, width)
    begins = np.flatnonzero(np.diff(groups, prepend=-1) != 0)
    turns = np.arange(len(groups)) - np.repeat(begins, np.diff(begins, append=len(groups)))
    for turn in range(int(turns.max(initial=-1)) + 1):  # sessions that became one
        now = turns == turn
        words[groups[now]] = _larger(words[groups[now]], stored[now])
    used = np.flatnonzero(valid(items.values[0]))
    hashes = items.values[0].take(used).to_numpy().view(np.uint64)
    _add(words.reshape(-1), width, items.value_groups[used], hashes, precision)
    return [binary_from_matrix(words.astype(">u8").view(np.uint8).reshape(-1, 8 * width))]


def words_of(precision: int) -> int:
    return (1 << precision) // _PER_WORD + 1


def estimates(sketches: pa.Array, precision: int) -> pa.Array:
    """The number of distinct values that each sketch has seen, ``int64``; 0 for null."""
    width, registers = words_of(precision), 1 << precision
    there = valid(sketches)
    rows = matrix_from_binary(sketches.drop_null(), 8 * width)
    words = np.ascontiguousarray(rows).view(">u8").astype(np.uint64).reshape(-1, width)
    inverse, zeros = np.zeros(len(words)), np.zeros(len(words))
    for slot in range(_PER_WORD):
        used = words[:, : (registers - slot + _PER_WORD - 1) // _PER_WORD]
        found = (used >> np.uint64(slot * _BITS)) & _MASK
        inverse += np.ldexp(1.0, -found.astype(np.int32)).sum(axis=1)
        zeros += np.count_nonzero(found == 0, axis=1)
    alpha = _ALPHA.get(precision, 0.7213 / (1.0 + 1.079 / registers))
    raw = alpha * registers * registers / inverse
    corrected = np.where(raw < 5.0 * registers, raw - _bias(raw, precision), raw)
    with np.errstate(divide="ignore"):
        linear = registers * np.log(registers / zeros)
    few = (zeros > 0) & (
        (linear <= _corrections(precision).threshold) | (corrected <= 2.5 * registers)
    )
    counts = np.zeros(len(sketches), np.int64)
    counts[there] = np.floor(np.where(few, linear, corrected) + 0.5).astype(np.int64)
    return pa.array(counts)


def _larger(one: _Words, other: _Words) -> _Words:
    found = np.zeros_like(one)
    for slot in range(_PER_WORD):
        shift = np.uint64(slot * _BITS)
        found |= np.maximum((one >> shift) & _MASK, (other >> shift) & _MASK) << shift
    return found


def _add(words: _Words, width: int, groups: Int64, hashes: _Words, precision: int) -> None:
    """Let hashes into the sketches of their groups, which lie one behind the other in ``words``."""
    registers = (hashes >> np.uint64(64 - precision)).astype(np.int64)
    rest = (hashes << np.uint64(precision)) | np.uint64(1 << (precision - 1))
    high, low = rest >> np.uint64(32), rest & np.uint64(0xFFFFFFFF)
    halves = np.where(high > 0, high, low).astype(np.float64)
    ranks = np.where(high > 0, 32, 64) - np.frexp(halves)[1] + 1
    # The last assignment wins: of a register's ranks the largest.
    places = groups * (1 << precision) + registers
    order = np.lexsort((ranks, places))
    last = order[np.diff(places[order], append=-1) != 0]
    at = groups[last] * width + registers[last] // _PER_WORD
    slots, new = registers[last] % _PER_WORD, ranks[last].astype(np.uint64)
    for slot in range(_PER_WORD):
        mine, shift = slots == slot, np.uint64(slot * _BITS)
        packed = words[at[mine]]
        more = np.maximum((packed >> shift) & _MASK, new[mine])
        words[at[mine]] = (packed & ~(_MASK << shift)) | (more << shift)


class _Corrections(NamedTuple):
    """Of one precision. ``threshold``: up to which estimate linear counting is used; ``estimates``:
    known raw ones, rising; ``biases``: their mean biases."""

    threshold: float
    estimates: npt.NDArray[np.float64]
    biases: npt.NDArray[np.float64]


@cache
def _corrections(precision: int) -> _Corrections:
    """As Spark's own sketch has them (Heule et al., 2013)."""
    data = pkgutil.get_data(__name__, "sketch_bias.json")
    assert data is not None  # the loader of an installed package reads its files
    found, number = json.loads(data), precision - LOWEST
    estimates, biases = (np.array(found[name][number]) for name in ("estimates", "biases"))
    return _Corrections(found["thresholds"][number], estimates, biases)


def _bias(raw: npt.NDArray[np.float64], precision: int) -> npt.NDArray[np.float64]:
    """The mean bias of the six known estimates that are nearest to each raw one."""
    _, known, biases = _corrections(precision)
    low = np.maximum(np.searchsorted(known, raw) - _NEIGHBOURS + 1, 0)
    high = np.minimum(low + _NEIGHBOURS, len(known))
    while True:
        far = np.minimum(high, len(known) - 1)
        nearer = (high < len(known)) & ((raw - known[far]) ** 2 < (raw - known[low]) ** 2)
        if not nearer.any():
            break
        low, high = low + nearer, high + nearer
    total = np.zeros(len(raw))
    for near in range(_NEIGHBOURS):
        at = low + near
        total += np.where(at < high, biases[np.minimum(at, len(known) - 1)], 0.0)
    found: npt.NDArray[np.float64] = total / (high - low)
    return found


Fold = Callable[[Sequence[StateColumn], Items], list[pa.Array]]
FOLDS: dict[str, Fold] = {
    "collect_list": collect_list,
    "collect_set": collect_set,
    "min_by": partial(picked, sign=-1),
    "max_by": partial(picked, sign=1),
    "smallest": partial(top, sign=1),
    "largest": partial(top, sign=-1),
    "distinct": distinct,
}
"""By the ``op`` of the first state column; those of the columns behind it are `BESIDE`. A fold
gives the state columns of each group after its items; `ListFullError`."""

BESIDE = "beside"


def parts(columns: Sequence[StateColumn]) -> list[slice]:
    begins = [at for at, column in enumerate(columns) if column.op != BESIDE]
    return [
        slice(begin, end) for begin, end in zip(begins, [*begins, len(columns)][1:], strict=True)
    ]


def fold_columns(
    columns: Sequence[StateColumn], group_values: GroupValues, *, every: bool
) -> tuple[list[pa.Array], list[pa.Array]]:
    """The state columns of each group after the batch, and, with ``every``, those of the group of
    each contribution after it. `ListFullError` for a list that may hold no more and is to
    fail."""
    final: list[pa.Array] = []
    each: list[pa.Array] = []
    codes, merges = group_values.codes, group_values.merges
    for part in parts(columns):
        some, stored = columns[part], group_values.stored[part]
        if some[0].op in FOLDS:
            values = [one for one in group_values.values[part] if one is not None]
            final += FOLDS[some[0].op](some, Items.of_groups(stored, codes, values, merges))
            if every:
                each += running(some, stored, codes, values, merges)
            continue
        one = ColumnFold(some[0], stored[0], group_values.values[part.start], group_values)
        final.append(one.final())
        if every:
            each.append(one.running())
    return final, each


def running(
    columns: Sequence[StateColumn],
    stored: Sequence[pa.Array],
    codes: Int64,
    values: Sequence[pa.Array],
    merges: Sequence[Merge] = (),
) -> list[pa.Array]:
    """The state columns of each value's group after it: a loop, for `emit_every_update`."""
    parents = {merge.at: merge.parents for merge in merges}
    states: dict[int, list[pa.Array]] = {}
    found = [[state.slice(0, 0)] for state in stored]
    for at, code in enumerate(codes.tolist()):
        before = [
            states[one] if one in states else [state.slice(one, 1) for state in stored]
            for one in parents.get(at, (code,))
        ]
        count = len(before)
        items = Items(
            groups=1,
            states=[pa.concat_arrays(column) for column in zip(*before, strict=True)],
            state_groups=np.zeros(count, np.int64),
            state_order=np.arange(count),
            values=[value.slice(at, 1) for value in values],
            value_groups=np.zeros(1, np.int64),
            value_order=np.array([count]),
        )
        try:
            states[code] = FOLDS[columns[0].op](columns, items)
        except ListFullError as error:
            raise ListFullError(error.column, at) from None
        for column, state in zip(found, states[code], strict=True):
            column.append(state)
    return [pa.concat_arrays(column) for column in found]
