"""Lists as states: ``collect_list``, ``collect_set``, and the n largest or smallest.

A list is folded element by element: those of the stored lists and the new values are put in order,
what is too much is left out, and the rest is cut into lists again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.fold import StateColumn, valid
from everflow.operators.folds.items import Items, ranked
from everflow.records import Int64
from everflow.serdes.json_serde import JsonSerde


class ListFullError(Exception):
    """A group has more elements than the list ``column`` may hold. ``at``: the value that was too
    much."""

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


def largest(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    """The n values with the largest orders, largest first; of equal ones the first."""
    return _top(columns, items, -1)


def smallest(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    """The n values with the smallest orders, smallest first; of equal ones the first."""
    return _top(columns, items, 1)


@dataclass(frozen=True)
class _Elements:
    """Elements of all lists: their columns, group, place in order, and value (-1: of a state)."""

    groups: Int64
    order: Int64
    values: Int64
    columns: list[pa.Array]
    count: int

    def take(self, at: Int64) -> _Elements:
        columns = [column.take(pa.array(at)) for column in self.columns]
        return _Elements(self.groups[at], self.order[at], self.values[at], columns, self.count)


def _elements(items: Items) -> _Elements:
    """The elements of the states and the values whose last column is not null."""
    lists = [state.fill_null(pa.scalar([], state.type)) for state in items.states]
    lengths = pc.list_value_length(lists[0]).to_numpy().astype(np.int64)
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
            pa.concat_arrays([state.flatten(), value.take(pa.array(there))])
            for state, value in zip(lists, items.values, strict=True)
        ],
        count=items.groups,
    )


def _numbers_in_groups(groups: Int64) -> Int64:
    """Of sorted groups the number of each element in its group."""
    begins = np.flatnonzero(np.diff(groups, prepend=-1) != 0)
    lengths = np.diff(begins, append=len(groups))
    return np.arange(len(groups)) - np.repeat(begins, lengths)


def _bounded(column: StateColumn, elements: _Elements, order: Int64) -> _Elements:
    """The elements at ``order``, group by group, as many as the list may hold; `ListFullError`
    where that is a failure."""
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


def _top(columns: Sequence[StateColumn], items: Items, sign: int) -> list[pa.Array]:
    elements = _elements(items)
    ranks = sign * ranked(elements.columns[-1])
    order = np.lexsort((elements.order, ranks, elements.groups))
    order = order[_numbers_in_groups(elements.groups[order]) < columns[0].limit]
    return _lists(elements.take(order))


def _lists(elements: _Elements) -> list[pa.Array]:
    """Elements, group by group, as a list for each group."""
    sizes = np.bincount(elements.groups, minlength=elements.count)
    offsets = pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())
    return [pa.ListArray.from_arrays(offsets, column) for column in elements.columns]
