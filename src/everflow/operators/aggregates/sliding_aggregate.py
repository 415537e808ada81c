"""Aggregates of sliding windows: built-in ones and those with functions of the user (KIP-450).

As in Kafka Streams, a record updates every window that it lies in, and those that it makes; records
with a null key or value are skipped; a result's time is the latest of its window's records. Of a
micro-batch the last result per window is emitted, or, with ``emit_every_update``, every one. A
window's aggregate is that of its records in the order in which they came.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from everflow.operators.aggregates.aggregate import AggregateSpec, Step
from everflow.operators.aggregates.folds import GroupValues
from everflow.operators.aggregates.windowed_aggregate import (
    Book,
    Final,
    WindowedAggregate,
    WindowRun,
)
from everflow.records import EdgeBatch, Int64, TasksResult
from everflow.serdes.windowed import (
    STORE_SUFFIX_BYTES,
    split_window_store_key,
    window_store_key,
    window_store_keys,
)
from everflow.state.changelog import TIMESTAMP_BYTES, unpack_value
from everflow.state.store import StoreView
from everflow.topology.graph import Inputs
from everflow.windows import SlidingWindows

# --- what a batch's log comes to for the folds: each window's records, as if it had no other's ----


@dataclass(frozen=True)
class Contributions:
    """What a book's log and copies have come to: for each window that they name, in the order of
    their numbers, the records that it holds since ``known`` windows had their states.

    ``windows``: those windows; ``roots``: the window whose known state each begins with, -1 = none;
    ``codes``: the place in ``windows`` of each contribution, ``rows`` its record; a window's lie
    together, in the order in which its aggregate takes them. ``updates``: the contribution after
    which each entry of the log shows its window, or -1 - the window whose known state it shows.
    """

    windows: Int64
    roots: Int64
    codes: Int64
    rows: Int64
    updates: Int64

    @staticmethod
    def of(book: SlidingBook, known: int) -> Contributions:
        logged, copies = np.array(book.windows, np.int64), book.copies
        alone = [number for number, copy in enumerate(copies) if copy.alone]
        at_alone = [copies[number].at for number in alone]
        takes = np.ones(len(logged), bool)
        takes[at_alone] = False
        order = np.argsort(logged, kind="stable")
        order = order[takes[order]]
        ordered = logged[order]
        inherited: dict[int, Int64] = {}
        roots: dict[int, int] = {}
        nothing = np.empty(0, np.int64)
        for copy in copies:
            begin, end = np.searchsorted(ordered, [copy.parent, copy.parent + 1])
            own = order[begin:end]
            own = own[: np.searchsorted(own, copy.before)]
            inherited[copy.child] = np.concatenate([inherited.get(copy.parent, nothing), own])
            roots[copy.child] = roots.get(copy.parent, copy.parent)
        # A window's inherited entries, then its own.
        entries = np.concatenate([*inherited.values(), order])
        lengths = np.array([len(own) for own in inherited.values()], np.int64)
        children = np.array([*inherited], np.int64)
        owners = np.concatenate([np.repeat(children, lengths), ordered])
        place = np.argsort(owners, kind="stable")
        windows, codes = np.unique(np.concatenate([owners, children]), return_inverse=True)
        codes = codes[: len(owners)][place].astype(np.int64)
        rows = np.array(book.rows, np.int64)[entries[place]]
        of_windows = np.array([roots.get(one, one) for one in windows.tolist()], np.int64)
        updates = np.empty(len(logged), np.int64)
        is_own = place >= len(owners) - len(order)
        updates[entries[place[is_own]]] = np.flatnonzero(is_own)
        last = np.searchsorted(windows[codes], children) + lengths - 1
        known_roots = np.array([*roots.values()], np.int64)
        updates[at_alone] = np.where(lengths > 0, last, -1 - known_roots)[alone]
        return Contributions(
            windows=windows,
            roots=np.where(of_windows < known, of_windows, -1),
            codes=codes,
            rows=rows,
            updates=updates,
        )


# --- which sliding windows a batch's records go into and make: intervals, no values (pure)
# Records are taken one by one, as in KStreamSlidingWindowAggregate: each depends on all before it.


class Copy(NamedTuple):
    """The window ``child`` begins with what ``parent`` had before the entry ``before`` of the log.
    ``at``: its first entry; ``alone``: that shows the copy alone, without the entry's record."""

    before: int
    parent: int
    child: int
    at: int
    alone: bool


class SlidingBook(Book):
    """The sliding windows of a batch's keys. The log has an entry for each update of a window,
    in Kafka Streams' order: ``windows``, ``rows`` and ``times``, the window's latest record time
    after it. ``late`` counts records and updates.
    """

    def __init__(self, windows: SlidingWindows, retention_ms: int, keys: int) -> None:
        super().__init__()
        self._difference, self._grace = windows.difference_ms, windows.grace_ms
        self._retention = retention_ms
        # Of each key's windows, in the order of their starts: starts, numbers, latest record times.
        self._starts: list[list[int]] = [[] for _ in range(keys)]
        self._numbers: list[list[int]] = [[] for _ in range(keys)]
        self._latest: list[list[int]] = [[] for _ in range(keys)]
        self.begin_log()

    def begin_log(self) -> None:
        self.windows: list[int] = []
        self.rows: list[int] = []
        self.times: list[int] = []
        self.copies: list[Copy] = []

    def load(self, key: int, start: int, latest: int) -> None:
        """The next stored window; call it before any record, in order of time within a key."""
        self._starts[key].append(start)
        self._latest[key].append(latest)
        self._numbers[key].append(self._new(key, start))

    def remove(self, window: int) -> None:
        key, start = self.keys[window], self.starts[window]
        at = bisect_left(self._starts[key], start)
        numbers = self._numbers[key]
        if at < len(numbers) and numbers[at] == window:
            del self._starts[key][at], numbers[at], self._latest[key][at]

    def add(self, key: int, time: int, row: int) -> bool:
        """See `Book`. A record is late if the last window it can be in is closed."""
        self.stream_time = max(self.stream_time, time)
        closed = self.stream_time - self._grace
        if time + self._difference < closed:
            self.late += 1
            return False
        if time < self._difference:
            self._add_early(key, time, row, closed)
        else:
            self._add(key, time, row, closed)
        return True

    def _add(self, key: int, time: int, row: int, closed: int) -> None:
        """KStreamSlidingWindowAggregate.processReverse: from the latest window to the earliest."""
        starts, numbers, latest = self._starts[key], self._numbers[key], self._latest[key]
        before, span = len(self.windows), self._difference
        low, end = self._seen(starts, time - 2 * span, time)
        follows = end > low and starts[end - 1] == time + 1
        high = end - 1 if follows else end
        holding = bisect_right(starts, time - span, low, high)
        right = (numbers[high - 1], latest[high - 1]) if high > holding else None
        self._update(key, holding, high, time, row, closed, backwards=True)
        previous = left = None
        lowest = holding
        ends_here = holding > low and starts[holding - 1] == time - span
        if ends_here:
            lowest -= 1
            was = latest[lowest]
            self._update(key, lowest, lowest + 1, time, row, closed)
            if was >= time:
                return
            previous = was
        if lowest > low:
            lowest -= 1
            left, previous = numbers[lowest], latest[lowest]
        if previous is not None and previous + 1 + span >= time:
            at = bisect_left(starts, previous + 1, lowest, end)
            if at == end or starts[at] != previous + 1:
                self._begin(key, previous + 1, time, row, closed)
        if not ends_here:
            copied = left if previous is not None and time - span <= previous else None
            self._begin(key, time - span, time, row, closed, copied, before)
        if not follows and right is not None and right[1] > time:
            self._copy(key, time + 1, row, right, before)

    def _add_early(self, key: int, time: int, row: int, closed: int) -> None:
        """No window begins before 0: records before the difference share one (processEarly)."""
        starts, numbers, latest = self._starts[key], self._numbers[key], self._latest[key]
        before = len(self.windows)
        low, end = self._seen(starts, 0, time)
        follows = end > low and starts[end - 1] == time + 1
        high = end - 1 if follows else end
        combined = previous = right = None
        first = low
        if high > low and starts[low] == 0:
            combined, first = (numbers[low], latest[low]), low + 1
            if latest[low] < time:
                previous = latest[low]
        if high > first:
            right = numbers[high - 1], latest[high - 1]
        self._update(key, first, high, time, row, closed)
        makes_previous = False
        if previous is not None:
            at = bisect_left(starts, previous + 1, low, end)
            makes_previous = at == end or starts[at] != previous + 1
        if right is None and combined is not None and combined[1] > time:
            right = combined
        if not follows and right is not None and right[1] > time:
            self._copy(key, time + 1, row, right, before)
        if previous is not None and makes_previous:
            self._begin(key, previous + 1, time, row, closed)
        if combined is None:
            self._begin(key, 0, time, row, closed)
        else:
            self._update(key, low, low + 1, time, row, closed)

    def _seen(self, starts: Sequence[int], earliest: int, time: int) -> tuple[int, int]:
        """The places of the key's windows from ``earliest`` to just behind ``time``."""
        shown_from = max(0, earliest, self.newest_ms - self._retention + 1)
        low = bisect_left(starts, shown_from)
        return low, bisect_right(starts, time + 1, low)

    def _update(
        self,
        key: int,
        low: int,
        high: int,
        time: int,
        row: int,
        closed: int,
        *,
        backwards: bool = False,
    ) -> None:
        starts, latest = self._starts[key], self._latest[key]
        first = bisect_left(starts, closed - self._difference, low, high)
        self.late += first - low
        if first == high:
            return
        latest[first:high] = [known if known > time else time for known in latest[first:high]]
        step = -1 if backwards else 1
        self.windows += self._numbers[key][first:high][::step]
        self.times += latest[first:high][::step]
        self.rows += [row] * (high - first)
        self.newest_ms = max(self.newest_ms, starts[high - 1])

    def _begin(
        self,
        key: int,
        start: int,
        time: int,
        row: int,
        closed: int,
        copied: int | None = None,
        before: int = 0,
    ) -> None:
        """A new window with this record, and what was in the window ``copied`` before it."""
        if start + self._difference < closed:
            self.late += 1
            return
        window = self._there(key, start, time)
        if copied is not None:
            self.copies.append(Copy(before, copied, window, len(self.windows), alone=False))
        self.windows.append(window)
        self.times.append(time)
        self.rows.append(row)

    def _copy(
        self,
        key: int,
        start: int,
        row: int,
        right: tuple[int, int],
        before: int,
    ) -> None:
        """A new window with what was in ``right`` (number, latest time) before the record."""
        parent, latest = right
        window = self._there(key, start, latest)
        self.copies.append(Copy(before, parent, window, len(self.windows), alone=True))
        self.windows.append(window)
        self.times.append(latest)
        self.rows.append(row)

    def _there(self, key: int, start: int, latest: int) -> int:
        window = self._new(key, start)
        self.newest_ms = max(self.newest_ms, start)
        if start > self.newest_ms - self._retention:
            starts = self._starts[key]
            at = bisect_left(starts, start)
            if at < len(starts) and starts[at] == start:
                self._numbers[key][at], self._latest[key][at] = window, latest
            else:
                starts.insert(at, start)
                self._numbers[key].insert(at, window)
                self._latest[key].insert(at, latest)
        return window

    def _new(self, key: int, start: int) -> int:
        self.keys.append(key)
        self.starts.append(start)
        return len(self.keys) - 1


def stored_windows(run: _Run, part: slice, store: StoreView) -> Iterator[bytes]:
    """Loads the windows that a task's records can meet; yields their value bytes, by number."""
    reach, keys = 2 * run.span_ms, run.found.keys[part]
    first, last = (times[part].tolist() for times in run.times_of)
    bounds = [
        (window_store_key(key, max(0, begin - reach)), window_store_key(key, end + 2))
        for key, begin, end in zip(keys, first, last, strict=True)
    ]
    codes = range(part.start, part.stop)
    for code, key, entries in zip(codes, keys, store.range_many(bounds), strict=True):
        for stored_key, stored in entries:
            # A longer key may begin with the same bytes.
            if len(stored_key) == len(key) + STORE_SUFFIX_BYTES:
                run.book.load(code, split_window_store_key(stored_key)[1], unpack_value(stored)[0])
                yield stored[TIMESTAMP_BYTES:]


_LOG_ENTRIES = 1 << 18
"""As many are folded at a time: the log of a whole batch of one key would take gigabytes."""


@dataclass(frozen=True)
class SlidingAggregateSpec(WindowedAggregate):
    """Aggregates per key and sliding window. A function's None: the window is deleted."""

    windows: SlidingWindows
    retention_ms: int
    """Of the store: what it does not show any more is not extended, as in Kafka Streams."""

    def _begin(self, batch: EdgeBatch, inputs: Inputs) -> WindowRun:
        return _Run(self, batch, inputs)

    def _copied(self, key: Any, parents: list[Any]) -> Any:
        # Aggregates may be changed in place, so a copy is read from bytes.
        return self.value_serde.decode(self.value_serde.encode(parents[0]))


class _Run(WindowRun):
    """``last``: row and time of the last update of each window, and its number among all updates,
    -1 = none. ``updates``: windows, rows and times of all updates, and ``shown`` what each shows,
    kept where each is emitted. ``states``: of built-in aggregates the state columns, by window.
    """

    book: SlidingBook

    def __init__(self, spec: SlidingAggregateSpec, batch: EdgeBatch, inputs: Inputs) -> None:
        super().__init__(spec, batch, inputs, skip_null_values=True)
        self.span_ms, self.layout = spec.windows.difference_ms, spec.layout
        self.book = SlidingBook(spec.windows, spec.retention_ms, len(self.found.keys))
        for partition, part in self.found.parts:
            self.stored += stored_windows(self, part, self.views[partition])
        if isinstance(spec.layout, AggregateSpec):
            self.states = spec.layout.state_columns_of(self.known())
            self.values = spec.layout.inputs_of(batch.value, lambda column: column)
        self.last: Int64 = np.empty((3, 0), np.int64)
        self.updates: list[Int64] = [np.empty((3, 0), np.int64)]
        self.shown: list[pa.Array] = []
        self.count = 0
        """How many updates there were."""
        self.logged = 0, 0
        """Entries and copies of the log whose steps were taken."""

    def take_each_record(self) -> Iterator[int]:
        for row in super().take_each_record():
            yield row
            if len(self.book.windows) >= _LOG_ENTRIES:
                self._end_log()
        self._end_log()

    def steps(self) -> Iterator[Step]:
        """See `WindowRun`: new windows begin with what others had before the record, then come the
        updates in order."""
        book = self.book
        for row in self.take_each_record():
            logged, copied = self.logged
            self.logged = len(book.windows), len(book.copies)
            copies = book.copies[copied:]
            for copy in copies:
                yield row, copy.child, (copy.parent,), False, False
            alone = {copy.at for copy in copies if copy.alone}
            for at, window in enumerate(book.windows[logged:], logged):
                yield row, window, (), at not in alone, True

    def _end_log(self) -> None:
        book = self.book
        updates = np.array([book.windows, book.rows, book.times], np.int64)
        windows, rows, times = updates
        more = len(book.keys) - self.last.shape[1]
        self.last = np.concatenate([self.last, np.full((3, more), -1)], axis=1)
        numbers = self.count + np.arange(len(rows))
        for column, last in zip(self.last, (rows, times, numbers), strict=True):
            column[windows] = last  # the last assignment wins
        self.count += len(rows)
        if self.every:
            self.updates.append(updates)
        if isinstance(self.layout, AggregateSpec):
            self._fold_log(self.layout)
        book.begin_log()
        self.logged = 0, 0

    def _fold_log(self, layout: AggregateSpec) -> None:
        windows, known = len(self.book.keys), len(self.states[0])
        log = Contributions.of(self.book, known)
        roots = pa.array(log.roots, mask=log.roots < 0)
        stored = [state.take(roots) for state in self.states]
        values = [None if one is None else one.take(log.rows) for one in self.values]
        group_values = GroupValues(
            stored=stored, present=log.roots >= 0, codes=log.codes, values=values
        )
        after, shown = layout.fold(self.batch, log.rows, group_values, every=self.every)
        if self.every:
            of_known = len(log.codes) - 1 - log.updates
            at = np.where(log.updates < 0, of_known, log.updates)
            both = zip(shown, self.states, strict=True)
            shown = [pa.concat_arrays([*columns]).take(at) for columns in both]
            self.shown.append(layout.finish(shown))
        place = np.arange(windows, dtype=np.int64)
        place[log.windows] = windows + np.arange(len(log.windows))
        self.states = [
            pa.concat_arrays([state, pa.nulls(windows - known, state.type), new]).take(place)
            for state, new in zip(self.states, after, strict=True)
        ]

    def final(self) -> Final:
        """See `WindowRun`; in the order of the last updates."""
        rows, _, numbers = self.last
        changed = np.flatnonzero(numbers >= 0)
        keys, starts = self._places(changed)
        order = np.lexsort((changed, starts, keys))
        newest = np.ones(len(order), bool)
        newest[:-1] = (np.diff(keys[order]) != 0) | (np.diff(starts[order]) != 0)
        found = changed[order[newest]]
        found = found[np.lexsort((numbers[found], rows[found]))]
        return Final(found, numbers[found], rows[found])

    def folded(self, layout: AggregateSpec, windows: Int64) -> tuple[pa.Array, pa.Array]:
        after = [state.take(windows) for state in self.states]
        every = pa.concat_arrays(self.shown) if self.every else layout.finish(after)
        return layout.written(after), every

    def result(self, final: Final, entries: pa.Array, shown: pa.Array) -> TasksResult:
        windows, rows, times = final.windows, final.rows, self.last[1, final.windows]
        keys, starts = self._places(windows)
        own = pa.array(self.found.keys, pa.binary()).take(keys)
        changes = self.changes(keys, window_store_keys(own, starts), entries, times)
        if self.every:
            windows, rows, times = np.concatenate(self.updates, axis=1)
            order = np.argsort(rows, kind="stable")
            windows, rows, times = windows[order], rows[order], times[order]
            shown = shown.take(order)
            _, starts = self._places(windows)
        return self.shaped(changes, rows, (starts, starts + self.span_ms), times, shown)

    def _places(self, windows: Int64) -> tuple[Int64, Int64]:
        keys, starts = (np.array(column, np.int64) for column in (self.book.keys, self.book.starts))
        return keys[windows], starts[windows]
