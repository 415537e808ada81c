"""Folding values into the aggregates of sessions, which merge while the batch is processed.

Between two merges a column is folded as everywhere else; at a merge the parents' states are folded
in order of time. So a result is the same as if records came one by one, floating-point sums
included, wherever a micro-batch was cut.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.operators.fold import DIGITS, UFUNC, StateColumn, as_numbers, as_operands, valid
from everflow.operators.session_book import Merge
from everflow.records import Int64


@dataclass(kw_only=True)
class SessionFold:
    """One state column of all sessions of a batch.

    ``stored``: per session, null where it was not stored; ``known``: how many were; ``codes``: the
    session of each contribution, in processing order; ``values``: their values, None where records
    are counted.
    """

    column: StateColumn
    stored: pa.Array
    known: int
    codes: Int64
    merges: Sequence[Merge]
    values: pa.Array | None

    def final(self) -> pa.Array:
        """The state per session after the batch; of a session that was merged into another, before
        that."""
        if self.column.op in ("first", "last"):
            return self._picked(
                self._last_of_session() if self.column.op == "last" else self._first_of_session()
            )
        return self._folded([merge.at for merge in self.merges])[0]

    def running(self) -> pa.Array:
        """The state of the contribution's session after each contribution (a loop: for
        `emit_every_update`)."""
        if self.column.op == "last":
            return self._picked(self._sessions + np.arange(len(self.codes), dtype=np.int64))
        if self.column.op == "first":
            return self._picked(self._first_of_session()[self.codes])
        return self._folded(range(len(self.codes)))[1]

    @property
    def _sessions(self) -> int:
        return len(self.stored)

    def _picked(self, at: Int64) -> pa.Array:
        """Places in the stored states followed by the values."""
        assert self.values is not None
        return pa.concat_arrays([self.stored, self.values]).take(pa.array(at))

    def _last_of_session(self) -> Int64:
        at = np.arange(self._sessions)
        # The last assignment wins.
        at[self.codes] = self._sessions + np.arange(len(self.codes), dtype=np.int64)
        return at

    def _first_of_session(self) -> Int64:
        at = np.arange(self._sessions)
        new = self.codes >= self.known
        at[self.codes[new][::-1]] = (self._sessions + np.flatnonzero(new))[::-1]
        for merge in self.merges:  # a merged session began where the earliest of its parents began
            at[merge.session] = at[merge.parents[0]]
        return at

    def _folded(self, stops: Sequence[int]) -> tuple[pa.Array, pa.Array]:
        """The final states, and those of the contributions at ``stops``, which include every
        merge."""
        op = "sum" if self.column.op == "count" else self.column.op
        stored, values = self._operands()
        numbers, back = as_numbers(
            StateColumn(self.column.name, self.column.type, op), stored, values
        )
        ufunc = UFUNC[op, numbers.dtype.kind]
        state, has = numbers[: self._sessions].copy(), valid(stored).copy()
        used = np.flatnonzero(valid(values))
        codes, added = self.codes[used], numbers[self._sessions :][used]
        bounds = np.searchsorted(used, np.asarray([*stops, len(self.codes)], np.int64)).tolist()
        merges = {merge.at: merge for merge in self.merges}
        seen = np.empty(len(stops), numbers.dtype)
        seen_has = np.zeros(len(stops), bool)
        with decimal.localcontext(DIGITS), np.errstate(invalid="ignore", over="ignore"):
            ufunc.at(state, codes[: bounds[0]], added[: bounds[0]])
            has[codes[: bounds[0]]] = True
            for number, stop in enumerate(stops):
                if stop in merges:
                    _merge(merges[stop], state, has, ufunc)
                part = slice(bounds[number], bounds[number + 1])
                ufunc.at(state, codes[part], added[part])
                has[codes[part]] = True
                seen[number], seen_has[number] = state[self.codes[stop]], has[self.codes[stop]]
        if self.column.op == "count":
            has[:], seen_has[:] = True, True
        return back(state, has), back(seen, seen_has)

    def _operands(self) -> tuple[pa.Array, pa.Array]:
        """Stored states and values; a count is a sum of ones that begins with 0."""
        if self.column.op == "count":
            ones = np.ones(len(self.codes), np.int64)
            return self.stored.fill_null(0), pa.array(
                ones, mask=None if self.values is None else ~valid(self.values)
            )
        assert self.values is not None
        return self.stored, as_operands(self.column, self.values)


def _merge(
    merge: Merge, state: np.ndarray[Any, Any], has: np.ndarray[Any, Any], ufunc: np.ufunc
) -> None:
    parents = [parent for parent in merge.parents if has[parent]]
    if parents:
        state[merge.session] = reduce(ufunc, (state[parent] for parent in parents))
        has[merge.session] = True
