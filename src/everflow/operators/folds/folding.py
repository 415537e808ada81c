"""Which folds there are, and a batch of values through one of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow.operators.fold import ColumnFold, Merge, StateColumn
from everflow.operators.folds.by_order import max_by, min_by
from everflow.operators.folds.items import Items
from everflow.operators.folds.lists import (
    ListFullError,
    collect_list,
    collect_set,
    largest,
    smallest,
)
from everflow.operators.folds.sketch import distinct
from everflow.records import Int64

Fold = Callable[[Sequence[StateColumn], Items], list[pa.Array]]

FOLDS: dict[str, Fold] = {
    "collect_list": collect_list,
    "collect_set": collect_set,
    "min_by": min_by,
    "max_by": max_by,
    "smallest": smallest,
    "largest": largest,
    "distinct": distinct,
}
"""By the ``op`` of the first state column; those of the columns behind it are `BESIDE`."""

BESIDE = "beside"


def parts(columns: Sequence[StateColumn]) -> list[slice]:
    """Which state columns are folded together."""
    begins = [at for at, column in enumerate(columns) if column.op != BESIDE]
    return [
        slice(begin, end) for begin, end in zip(begins, [*begins, len(columns)][1:], strict=True)
    ]


def fold_columns(
    columns: Sequence[StateColumn],
    stored: Sequence[pa.Array],
    present: npt.NDArray[np.bool_],
    codes: Int64,
    values: Sequence[pa.Array | None],
    merges: Sequence[Merge] = (),
    *,
    every: bool,
) -> tuple[list[pa.Array], list[pa.Array]]:
    """The state columns of each group after the batch, and, with ``every``, those of the group of
    each contribution after it. ``values``: for each column, None where records are counted; for the
    rest see `ColumnFold`. `ListFullError` for a list that may hold no more and is told to fail."""
    final: list[pa.Array] = []
    each: list[pa.Array] = []
    for part in parts(columns):
        some = columns[part]
        if some[0].op in FOLDS:
            given = [one for one in values[part] if one is not None]
            final += fold(some, Items.of_groups(stored[part], codes, given, merges))
            if every:
                each += running(some, stored[part], codes, given, merges)
            continue
        one = ColumnFold(
            column=some[0],
            stored=stored[part.start],
            present=present,
            codes=codes,
            values=values[part.start],
            merges=merges,
        )
        final.append(one.final())
        if every:
            each.append(one.running())
    return final, each


def fold(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    """The state columns of each group after its items; `ListFullError` for a list that may hold no
    more and is told to fail."""
    return FOLDS[columns[0].op](columns, items)


def running(
    columns: Sequence[StateColumn],
    stored: Sequence[pa.Array],
    codes: Int64,
    values: Sequence[pa.Array],
    merges: Sequence[Merge] = (),
) -> list[pa.Array]:
    """The state columns of the group of each value after it: a loop, for `emit_every_update`.
    ``stored``: by group; ``codes``: the group of each value."""
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
            states[code] = fold(columns, items)
        except ListFullError as error:
            raise ListFullError(error.column, at) from None
        for column, state in zip(found, states[code], strict=True):
            column.append(state)
    return [pa.concat_arrays(column) for column in found]
