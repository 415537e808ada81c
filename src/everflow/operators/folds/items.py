"""What a fold is given: states and values, each of a group, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.fold import Merge
from everflow.records import Int64


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
        """States, then values, of one type each."""
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
    """The group that each has become part of in the end, and its place among all: behind those that
    it was made of."""
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
    """Numbers in the order of the values, equal for equal ones; NaN is the largest, 0.0 equals
    -0.0. Of nulls any."""
    found: Int64 = pc.rank(column, tiebreaker="dense").to_numpy().astype(np.int64)
    return found
