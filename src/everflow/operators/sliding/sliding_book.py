"""Which sliding windows a batch's records go into and make: intervals, no values (pure; KIP-450).

Records are taken one by one in processing order, as Kafka Streams takes them
(KStreamSlidingWindowAggregate): what a record finds, and which windows it makes, depends on all
before it. Aggregates are folded over the result, see `everflow.operators.sliding.sliding_fold` and
`everflow.operators.sliding.sliding_aggregate`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from everflow.operators.turns import Turns
from everflow.serdes.windowed import (
    STORE_SUFFIX_BYTES,
    split_window_store_key,
    window_store_key,
)
from everflow.state.changelog import TIMESTAMP_BYTES, unpack_value
from everflow.state.store import StoreView
from everflow.windows import SlidingWindows


class Copy(NamedTuple):
    """The window ``child`` begins with what ``parent`` held before the entry ``before`` of the log.
    A copy that is ``shown`` is a result of its own, in front of the entry ``at``, with that time
    (None: the child's first entry follows); ``row`` is the record that made it."""

    before: int
    parent: int
    child: int
    at: int
    row: int
    shown: int | None


class SlidingBook:
    """The windows of a batch's keys. A window is a number: first those that were stored, then the
    new ones.

    ``keys``, ``starts``: by window. The log has an entry for each time that a record went into a
    window: ``windows``, ``rows`` and ``times``, the window's latest record time after it. Entries
    and shown copies are the updates, in Kafka Streams' order. ``late``: how many records and
    updates were dropped.
    """

    def __init__(self, windows: SlidingWindows, retention_ms: int, keys: int) -> None:
        """``keys``: how many keys there are. ``stream_time`` is that of the task whose records come
        next, and ``newest_ms`` that of its store: set both before they do."""
        self._difference, self._grace, self._retention = (
            windows.difference_ms,
            windows.grace_ms,
            retention_ms,
        )
        self.stream_time = self.newest_ms = -1
        self.keys: list[int] = []
        self.starts: list[int] = []
        self.late = 0
        # Of each key the windows that are there, in the order of their starts: starts, numbers, and
        # latest record times.
        self._starts: list[list[int]] = [[] for _ in range(keys)]
        self._numbers: list[list[int]] = [[] for _ in range(keys)]
        self._latest: list[list[int]] = [[] for _ in range(keys)]
        self.begin_log()

    def begin_log(self) -> None:
        """Forget the log; the windows stay."""
        self.windows: list[int] = []
        self.rows: list[int] = []
        self.times: list[int] = []
        self.copies: list[Copy] = []

    def load(self, key: int, start: int, latest: int) -> None:
        """A stored window, with the next number; call it before any record, in order of time within
        a key."""
        self._starts[key].append(start)
        self._latest[key].append(latest)
        self._numbers[key].append(self._new(key, start))

    def remove(self, window: int) -> None:
        """A window whose aggregate became null: there is none there any more."""
        key, start = self.keys[window], self.starts[window]
        at = bisect_left(self._starts[key], start)
        numbers = self._numbers[key]
        if at < len(numbers) and numbers[at] == window:
            del self._starts[key][at], numbers[at], self._latest[key][at]

    def add(self, key: int, time: int, row: int) -> None:
        """Take a record; nothing is logged if it is late: the last window it can be in is
        closed."""
        self.stream_time = max(self.stream_time, time)
        closed = self.stream_time - self._grace
        if time + self._difference < closed:
            self.late += 1
        elif time < self._difference:
            self._add_early(key, time, row, closed)
        else:
            self._add(key, time, row, closed)

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
        """KStreamSlidingWindowAggregate.processEarly: windows do not begin before 0, so the records
        before the difference share the one from 0."""
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
        """The places of the windows that the store shows and that start from ``earliest`` on, up to
        just behind ``time``."""
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
        """Let the record into the key's windows from place ``low`` to ``high``, closed ones left
        out."""
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
            self.copies.append(Copy(before, copied, window, len(self.windows), row, None))
        self.windows.append(window)
        self.times.append(time)
        self.rows.append(row)

    def _copy(self, key: int, start: int, row: int, right: tuple[int, int], before: int) -> None:
        """A new window with what was in the window ``right`` (its number and latest time) before
        the record."""
        parent, latest = right
        window = self._there(key, start, latest)
        self.copies.append(Copy(before, parent, window, len(self.windows), row, latest))

    def _there(self, key: int, start: int, latest: int) -> int:
        """A new window, among the key's where its store still shows it."""
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


def stored_windows(
    book: SlidingBook, windows: SlidingWindows, found: Turns, part: slice, store: StoreView
) -> Iterator[bytes]:
    """Loads the stored windows that a task's records can meet; gives their value bytes, in the
    order of the windows' numbers."""
    reach = 2 * windows.difference_ms
    bounds = [
        (window_store_key(key, max(0, first - reach)), window_store_key(key, last + 2))
        for key, first, last in zip(
            found.keys[part], found.first[part].tolist(), found.last[part].tolist(), strict=True
        )
    ]
    codes = range(part.start, part.stop)
    for code, key, entries in zip(codes, found.keys[part], store.range_many(bounds), strict=True):
        for stored_key, stored in entries:
            # A longer key may begin with the same bytes.
            if len(stored_key) == len(key) + STORE_SUFFIX_BYTES:
                book.load(code, split_window_store_key(stored_key)[1], unpack_value(stored)[0])
                yield stored[TIMESTAMP_BYTES:]
