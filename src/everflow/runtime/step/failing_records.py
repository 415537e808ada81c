"""Finds all records of a task on which an operator fails, in one run of the batch (note 041).

Where a batch is cut changes no result, so the operator is given the task's records in parts, on
stores that show what the parts before have changed. A part that fails ends before its record, which
is left out, and the next one begins behind it. So no operator has to undo anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from everflow.operators.user_code import UserFunctionError
from everflow.records import EdgeBatch, Int64

_PARTS = 64
"""A part is so much of all records at most: of one that fails, the records before are taken
twice."""
MOST_FAILING = 1_000
"""Records that are looked for at once: each is a run of the operator."""
Run = Callable[[Sequence[EdgeBatch]], None]
"""Has the operator process these records of its sides, behind those of the calls before that
returned. UserFunctionError: then it has kept nothing of them."""


@dataclass
class _Places:
    """The records of a task in their order, by the places (``seq``) at which the operator gets
    them; ``records``: of each the number of its input record, which may have become several."""

    sides: Sequence[EdgeBatch]
    seqs: Int64
    records: Int64
    _of: dict[tuple[int, int, int], int]

    @staticmethod
    def of(sides: Sequence[EdgeBatch]) -> _Places:
        """``sides``: in order."""
        seqs, first = np.unique(np.concatenate([one.seq for one in sides]), return_index=True)
        columns = [
            np.concatenate([getattr(one, name) for one in sides])[first].tolist()
            for name in ("source", "partition", "offset")
        ]
        of: dict[tuple[int, int, int], int] = {}
        records = [of.setdefault(place, len(of)) for place in zip(*columns, strict=True)]
        return _Places(sides, seqs, np.array(records, np.int64), of)

    def named(self, error: UserFunctionError) -> int:
        """The number of its record; -1: it is none of them."""
        return self._of.get((error.source, error.partition, error.offset), -1)

    def taken(self, places: Int64) -> list[EdgeBatch]:
        """The records of some places, which are in order, on each side."""
        seqs = self.seqs[places]
        found = []
        for one in self.sides:
            begin = int(np.searchsorted(one.seq, seqs[0]))
            end = int(np.searchsorted(one.seq, seqs[-1], "right"))
            rows = begin + np.flatnonzero(np.isin(one.seq[begin:end], seqs))
            found.append(one.take(rows))
        return found


def failing_records(
    sides: Sequence[EdgeBatch], run: Run, first: UserFunctionError | None, most: int = MOST_FAILING
) -> list[UserFunctionError]:
    """On which records of one task an operator fails, in order, each as if those before it that
    fail were not there; ``most`` of them. ``first``: with what it fails for all records. Of n
    records with k that fail each is given to the operator twice at most, in O(k log n) parts; of
    one that takes several records at once (`UserFunctionError.together`) log n times."""
    places = _Places.of(sides)
    left = np.arange(len(places.seqs), dtype=np.int64)
    largest = max(1, len(left) // _PARTS)
    found: list[UserFunctionError] = []
    begin, size, fails_before = 0, len(left), 0
    known = first
    while begin < len(left) and len(found) < most:
        end = min(begin + size, len(left))
        try:
            if known is not None:
                raise known
            run(places.taken(left[begin:end]))
        except UserFunctionError as error:
            known = None
            if error.together and end - begin > 1:
                fails_before, size = end, (end - begin) // 2
                continue
            mine = np.flatnonzero(places.records[left] == places.named(error))
            if not len(mine) or mine[0] >= end:
                break  # it fails in what is no record's, or in one that is left out
            if mine[0] < begin:
                found.append(error)
                break  # what has become of it before is there for the others
            if mine[0] > begin:
                size = int(mine[0]) - begin
                continue
            found.append(error)
            left, size, fails_before = np.delete(left, mine), 1, 0
        else:
            size, begin = min(2 * (end - begin), largest), end
            if begin < fails_before:
                size = max(1, (fails_before - begin) // 2)
    return found
