"""Folds values into sliding windows, which begin with what others held (pure; KIP-450)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from everflow.operators.fold import StateColumn
from everflow.operators.folds.folding import fold_columns
from everflow.operators.sliding.sliding_book import SlidingBook
from everflow.operators.windowed_aggregate import Step
from everflow.records import Int64


@dataclass(frozen=True)
class Contributions:
    """What a book's log and copies have come to: for each window that they name, in the order of
    their numbers, the records that it holds since ``known`` windows had their states.

    ``windows``: those windows; ``roots``: the window whose known state each begins with, -1 = none;
    ``codes``: the place in ``windows`` of each contribution, ``rows`` its record; a window's lie
    together, in the order in which its aggregate takes them. ``updates``: the contribution after
    which each update of the book shows its window, or -1 - the window whose known state it shows.
    """

    windows: Int64
    roots: Int64
    codes: Int64
    rows: Int64
    updates: Int64

    @staticmethod
    def of(book: SlidingBook, known: int) -> Contributions:
        """``known``: how many windows have a state."""
        logged = np.array(book.windows, np.int64)
        order = np.argsort(logged, kind="stable")
        ordered = logged[order]
        inherited: dict[int, Int64] = {}
        roots: dict[int, int] = {}
        nothing = np.empty(0, np.int64)
        for copy in book.copies:
            begin, end = np.searchsorted(ordered, [copy.parent, copy.parent + 1])
            own = order[begin:end]
            own = own[: np.searchsorted(own, copy.before)]
            inherited[copy.child] = np.concatenate([inherited.get(copy.parent, nothing), own])
            roots[copy.child] = roots.get(copy.parent, copy.parent)
        # A window's inherited entries, then its own.
        entries = np.concatenate([*inherited.values(), order])
        lengths = [len(own) for own in inherited.values()]
        owners = np.concatenate([np.repeat(np.array([*inherited], np.int64), lengths), ordered])
        place = np.argsort(owners, kind="stable")
        children = np.array([*inherited], np.int64)
        windows, codes = np.unique(np.concatenate([owners, children]), return_inverse=True)
        codes = codes[: len(owners)][place].astype(np.int64)
        rows = np.array(book.rows, np.int64)[entries[place]]
        of_windows = np.array([roots.get(one, one) for one in windows.tolist()], np.int64)
        own_places = np.empty(len(order), np.int64)
        is_own = place >= len(owners) - len(order)
        own_places[entries[place[is_own]]] = np.flatnonzero(is_own)
        begins = np.searchsorted(windows[codes], children)
        last = begins + np.array(lengths, np.int64) - 1
        shown = {
            child: (int(at) if length else -1 - roots[child])
            for child, at, length in zip(inherited, last.tolist(), lengths, strict=True)
        }
        at, copied = _shown(book)
        places = np.empty(len(at), np.int64)
        places[copied < 0] = own_places[at[copied < 0]]
        children_shown = [shown[book.copies[one].child] for one in copied[copied >= 0].tolist()]
        places[copied >= 0] = children_shown
        return Contributions(
            windows=windows,
            roots=np.where(of_windows < known, of_windows, -1),
            codes=codes,
            rows=rows,
            updates=places,
        )


def updates_of(book: SlidingBook) -> tuple[Int64, Int64, Int64]:
    """Window, row and time of each update, in order."""
    at, copied = _shown(book)
    from_copies = copied >= 0
    columns = []
    for logged, name in ((book.windows, "child"), (book.rows, "row"), (book.times, "shown")):
        column = np.empty(len(at), np.int64)
        column[~from_copies] = np.array(logged, np.int64)[at[~from_copies]]
        column[from_copies] = [
            getattr(book.copies[one], name) for one in copied[from_copies].tolist()
        ]
        columns.append(column)
    return columns[0], columns[1], columns[2]


def steps_from(book: SlidingBook, logged: int, copied: int) -> list[Step]:
    """From the entry ``logged`` and the copy ``copied`` on: which windows begin with what another
    held, then the updates in order; no record goes into a copy."""
    copies = book.copies[copied:]
    if not copies:
        return [(window, (), True, True) for window in book.windows[logged:]]
    found: list[Step] = [(copy.child, (copy.parent,), False, False) for copy in copies]
    shown = [copy for copy in copies if copy.shown is not None]
    for at, window in enumerate(book.windows[logged:], logged):
        while shown and shown[0].at == at:
            found.append((shown.pop(0).child, (), False, True))
        found.append((window, (), True, True))
    return found + [(copy.child, (), False, True) for copy in shown]


def _shown(book: SlidingBook) -> tuple[Int64, Int64]:
    """Each update, in order: the entry of the log, or the one that it is in front of, and the copy
    (-1: it is the entry)."""
    shown = [number for number, copy in enumerate(book.copies) if copy.shown is not None]
    entries = np.arange(len(book.windows), dtype=np.int64)
    at = np.concatenate([np.array([book.copies[one].at for one in shown], np.int64), entries])
    copied = np.concatenate([np.array(shown, np.int64), np.full(len(entries), -1)])
    order = np.argsort(at, kind="stable")  # a copy is in front of its entry
    return at[order], copied[order]


class SlidingFold:
    """The state columns of all windows of a batch: ``states``, by window."""

    def __init__(
        self,
        columns: Sequence[StateColumn],
        states: Sequence[pa.Array],
        values: Sequence[pa.Array | None],
    ) -> None:
        """``values``: for each column the input of each of the batch's records, None where records
        are counted."""
        self._columns, self.states, self._values = columns, list(states), values

    def take(self, log: Contributions, windows: int, *, every: bool) -> list[pa.Array]:
        """Fold in the contributions; ``windows``: how many there are now. With ``every`` the
        columns of what each update shows, else nothing. Raises `ListFullError`."""
        roots = pa.array(log.roots, mask=log.roots < 0)
        stored = [state.take(roots) for state in self.states]
        rows = pa.array(log.rows)
        values = [None if one is None else one.take(rows) for one in self._values]
        after, shown = fold_columns(
            self._columns, stored, log.roots >= 0, log.codes, values, every=every
        )
        if every:
            known = len(log.codes) - 1 - log.updates
            at = pa.array(np.where(log.updates < 0, known, log.updates))
            both = zip(shown, self.states, strict=True)
            shown = [pa.concat_arrays([*columns]).take(at) for columns in both]
        count = len(self.states[0])
        place = np.arange(windows, dtype=np.int64)
        place[log.windows] = windows + np.arange(len(log.windows))
        self.states = [
            pa.concat_arrays([state, pa.nulls(windows - count, state.type), new]).take(
                pa.array(place)
            )
            for state, new in zip(self.states, after, strict=True)
        ]
        return shown
