"""``min_by`` and ``max_by``: the value beside the smallest or largest of another column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from everflow.operators.fold import StateColumn, valid
from everflow.operators.folds.items import Items, ranked


def min_by(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    """Per group value and order; of equal ones the last, as in Spark. Nulls of the order are left
    out."""
    return _picked(items, -1)


def max_by(columns: Sequence[StateColumn], items: Items) -> list[pa.Array]:
    """As `min_by`."""
    return _picked(items, 1)


def _picked(items: Items, sign: int) -> list[pa.Array]:
    both = items.columns()
    there = np.flatnonzero(valid(both[1]))
    groups = items.all_groups[there]
    ranks = sign * ranked(both[1])[there]
    order = np.lexsort((items.all_order[there], ranks, groups))
    at = np.full(items.groups, -1)
    at[groups[order]] = there[order]  # the last assignment wins
    rows = pa.array(at, mask=at < 0)
    return [column.take(rows) for column in both]
