"""Which sessions a batch's records open, extend and merge: intervals, no values (pure; KIP-94).

Records are taken one by one in processing order, as Kafka Streams takes them: what a record finds
depends on all before it. Aggregates are folded over the result, see
`everflow.operators.session_fold` and `everflow.operators.session_aggregate`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from everflow.serdes.windowed import SESSION_SUFFIX_BYTES, session_key, split_session_key
from everflow.state.store import StoreView
from everflow.windows import SessionWindows

_FAR_FUTURE_MS = (1 << 56) - 1
"""Two million years: the highest time whose first byte is 0."""


class Merge(NamedTuple):
    """Sessions ``parents`` (in order of time) that became the new session ``session`` with the
    contribution ``at``, the record that lies between them: a merged session always has a
    contribution of its own."""

    at: int
    session: int
    parents: tuple[int, ...]


@dataclass
class _OfKey:
    """The live sessions of one key, in order of time: they neither overlap nor touch."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    sessions: list[int] = field(default_factory=list)


class SessionBook:
    """The sessions of a batch's keys. A session is a number: first those that were stored, then the
    new ones.

    A session that grows keeps its number; one made of several gets a new one. ``keys``, ``starts``,
    ``ends``: by session; ``codes``: the session of each contribution (a record that was not late);
    ``gone``: stored sessions whose window is no more -> the contribution that ended it. With
    ``history`` also ``replaced``, every window that a contribution replaced as (contribution,
    start, end), and ``after``, the window that each contribution went into.
    """

    def __init__(self, windows: SessionWindows, keys: int, *, history: bool = False) -> None:
        """``keys``: how many keys there are. ``stream_time`` (ms) is that of the task whose records
        come next: set it before they do."""
        self.gap_ms, self._retention_ms = windows.gap_ms, windows.retention_ms
        self._live = [_OfKey() for _ in range(keys)]
        self.stream_time = -1
        self.stored = 0
        self.keys: list[int] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.codes: list[int] = []
        self.merges: list[Merge] = []
        self.gone: dict[int, int] = {}
        self.replaced: list[tuple[int, int, int]] = []
        self.after: list[tuple[int, int]] = []
        self._history = history

    def load(self, key: int, start: int, end: int) -> None:
        """A stored session, with the next number; call it before any record, in order of time
        within a key."""
        self.stored += 1
        self._insert(self._live[key], len(self._live[key].ends), key, start, end)

    def add(self, key: int, time: int) -> bool:
        """Take a record; False if it is late: the session it would be in, itself included, is
        closed: stream time is more than gap and grace behind its end."""
        gap = self.gap_ms
        live = self._live[key]
        starts, ends = live.starts, live.ends
        # A store shows no session that ends before its retention, though it may still be there (as
        # in Kafka Streams).
        earliest = max(time - gap, self.stream_time - self._retention_ms + 1)
        if time > self.stream_time:
            self.stream_time = time
        low = len(ends) - 1
        if low >= 0 and starts[low] <= time and ends[low] >= earliest:
            # The usual case: it belongs to the latest session, which is no other's neighbour.
            high = low + 1
        else:
            low = high = bisect_left(ends, earliest)
            while high < len(ends) and starts[high] <= time + gap:
                high += 1
        end = ends[high - 1] if high > low and ends[high - 1] > time else time
        if end < self.stream_time - self._retention_ms:
            return False
        if high == low:
            self._insert(live, low, key, time, time)
        else:
            self._join(live, low, high, min(time, starts[low]), end)
        self.codes.append(live.sessions[low])
        if self._history:
            self.after.append((live.starts[low], live.ends[low]))
        return True

    def remove(self, key: int, session: int) -> None:
        """A session whose aggregate became null with the last contribution: there is none there any
        more."""
        live = self._live[key]
        at = bisect_left(live.ends, self.ends[session])
        while live.sessions[at] != session:  # one that is hidden may end at the same time
            at += 1
        self._left(session, len(self.codes) - 1)
        del live.starts[at], live.ends[at], live.sessions[at]

    def _new(self, key: int, start: int, end: int) -> int:
        self.keys.append(key)
        self.starts.append(start)
        self.ends.append(end)
        return len(self.keys) - 1

    def _insert(self, live: _OfKey, at: int, key: int, start: int, end: int) -> None:
        live.starts.insert(at, start)
        live.ends.insert(at, end)
        live.sessions.insert(at, self._new(key, start, end))

    def _join(self, live: _OfKey, low: int, high: int, start: int, end: int) -> None:
        """Let the sessions ``low`` to ``high`` of a key become one with these bounds."""
        contribution = len(self.codes)
        if self._history and start < end:
            self.replaced += [
                (contribution, live.starts[at], live.ends[at]) for at in range(low, high)
            ]
        session = live.sessions[low]
        if high - low == 1:
            if (start, end) == (live.starts[low], live.ends[low]):
                return
            self._left(session, contribution)
            self.starts[session], self.ends[session] = start, end
        else:
            parents = tuple(live.sessions[low:high])
            for parent in parents:
                self._left(parent, contribution)
            session = self._new(self.keys[parents[0]], start, end)
            self.merges.append(Merge(contribution, session, parents))
        live.starts[low:high], live.ends[low:high], live.sessions[low:high] = (
            [start],
            [end],
            [session],
        )

    def _left(self, session: int, contribution: int) -> None:
        if session < self.stored:
            self.gone.setdefault(session, contribution)

    def live(self) -> Iterator[int]:
        """The sessions that there are now, in no particular order."""
        for of_key in self._live:
            yield from of_key.sessions


def read_sessions(
    book: SessionBook,
    store: StoreView,
    codes: Sequence[int],
    keys: Sequence[bytes],
    first_ms: Sequence[int],
    last_ms: Sequence[int],
) -> list[tuple[bytes, bytes]]:
    """Load the stored sessions that a task's records of ``keys``, whose numbers are ``codes``, can
    meet from ``first_ms`` to ``last_ms``.

    Returns the store's entries, in the order of the sessions' numbers.
    """
    loaded = []
    # No session ends after this; with it, keys that begin with ``key`` and go on with text lie
    # outside.
    end = max(book.stream_time, max(last_ms, default=0), _FAR_FUTURE_MS) + 1
    bounds = [
        (session_key(key, 0, max(first - book.gap_ms, 0)), session_key(key, 0, end))
        for key, first in zip(keys, first_ms, strict=True)
    ]
    found = store.range_many(bounds)
    for code, key, last, entries in zip(codes, keys, last_ms, found, strict=True):
        for entry in entries:
            if len(entry[0]) != len(key) + SESSION_SUFFIX_BYTES:
                continue  # a longer key that begins with the same bytes
            _, session_start, session_end = split_session_key(entry[0])
            if session_start > last + book.gap_ms:
                break
            book.load(code, session_start, session_end)
            loaded.append(entry)
    return loaded
