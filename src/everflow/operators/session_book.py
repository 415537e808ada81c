"""Which sessions a batch's records open, extend and merge: intervals, no values (pure; KIP-94).

Records are taken one by one in processing order, as Kafka Streams takes them: what a record finds
depends on all before it. Aggregates are folded over the result, see
`everflow.operators.session_aggregate`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from everflow.operators.fold import Merge
from everflow.operators.session_order import SessionOrder
from everflow.serdes.windowed import SESSION_SUFFIX_BYTES, session_key, split_session_key
from everflow.state.store import Entry, StoreView
from everflow.windows import SessionWindows

_FAR_FUTURE_MS = (1 << 56) - 1
"""Two million years: the highest time whose first byte is 0."""


class SessionBook:
    """The sessions of a batch's keys. A session is a number: first those that were stored, then the
    new ones.

    A session that grows keeps its number; one made of several gets a new one. ``keys``, ``starts``,
    ``ends``: by session; ``codes``: the session of each contribution (a record that was not late);
    ``gone``: stored sessions whose window is no more -> the contribution that ended it. With
    ``history`` also ``replaced``, every window that a contribution replaced as (contribution,
    start, end), and ``after``, the window that each contribution went into.
    """

    def __init__(
        self,
        windows: SessionWindows,
        keys: int,
        *,
        retention_ms: int | None = None,
        history: bool = False,
    ) -> None:
        """``keys``: how many keys there are. ``retention_ms``: of the store, None = that of the
        windows. ``stream_time`` (ms) is that of the task whose records come next: set it before
        they do."""
        self.gap_ms, self._open_ms = windows.gap_ms, windows.retention_ms
        self._retention_ms = self._open_ms if retention_ms is None else retention_ms
        self._live = [SessionOrder() for _ in range(keys)]
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
        self._live[key].append(self._new(key, start, end), end)

    def add(self, key: int, time: int) -> bool:
        """Take a record; False if it is late: the session it would be in, itself included, is
        closed: stream time is more than gap and grace behind its end."""
        gap = self.gap_ms
        live, starts = self._live[key], self.starts
        # A store shows no session that ends before its retention, though it may still be there (as
        # in Kafka Streams).
        earliest = max(time - gap, self.stream_time - self._retention_ms + 1)
        if time > self.stream_time:
            self.stream_time = time
        ends, sessions = live.ends[-1], live.sessions[-1]
        if ends and ends[-1] >= earliest and starts[sessions[-1]] <= time:
            # The usual case: it belongs to the latest session, which is no other's neighbour.
            block, at, met = len(live.ends) - 1, len(ends) - 1, [sessions[-1]]
        else:
            block, at = live.first_from(earliest)
            sessions, latest = live.sessions[block], time + gap
            if at < len(sessions) and starts[sessions[at]] <= latest:
                met = list(takewhile(lambda s: starts[s] <= latest, live.following(block, at)))
            else:
                met = []
        end = max(time, self.ends[met[-1]]) if met else time
        if end < self.stream_time - self._open_ms:
            return False
        if met:
            session = self._join(live, block, at, met, min(time, starts[met[0]]), end)
        else:
            session = self._new(key, time, time)
            live.insert(block, at, session, time)
        self.codes.append(session)
        if self._history:
            self.after.append((self.starts[session], self.ends[session]))
        return True

    def remove(self, key: int, session: int) -> None:
        """A session whose aggregate became null with the last contribution: there is none there any
        more."""
        self._left(session, len(self.codes) - 1)
        self._live[key].remove(session, self.ends[session])

    def _new(self, key: int, start: int, end: int) -> int:
        self.keys.append(key)
        self.starts.append(start)
        self.ends.append(end)
        return len(self.keys) - 1

    def _join(
        self, live: SessionOrder, block: int, at: int, met: list[int], start: int, end: int
    ) -> int:
        """Let the sessions ``met`` of a key, from a place on, become one with these bounds."""
        contribution = len(self.codes)
        if self._history and start < end:
            self.replaced += [(contribution, self.starts[one], self.ends[one]) for one in met]
        session = met[0]
        if len(met) == 1:
            if (start, end) == (self.starts[session], self.ends[session]):
                return session
            self._left(session, contribution)
            self.starts[session], self.ends[session] = start, end
        else:
            for parent in met:
                self._left(parent, contribution)
            session = self._new(self.keys[session], start, end)
            self.merges.append(Merge(contribution, session, tuple(met)))
        live.replace(block, at, len(met), session, end)
        return session

    def _left(self, session: int, contribution: int) -> None:
        if session < self.stored:
            self.gone.setdefault(session, contribution)

    def live(self) -> Iterator[int]:
        """The sessions that there are now, in no particular order."""
        for of_key in self._live:
            yield from of_key


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
    latest = [last + book.gap_ms for last in last_ms]
    bounds = [
        (session_key(key, 0, max(first - book.gap_ms, 0)), session_key(key, 0, min(to + 1, end)))
        for key, first, to in zip(keys, first_ms, latest, strict=True)
    ]
    found = store.range_many(bounds)
    newest_ms = store.newest_ms
    for code, key, to, (_, behind), entries in zip(codes, keys, latest, bounds, found, strict=True):
        for entry in _of_key(key, entries):
            _, session_start, session_end = split_session_key(entry[0])
            book.load(code, session_start, session_end)
            loaded.append(entry)
        if to >= newest_ms:
            continue
        # Records that are behind: of the sessions that end later one may have begun by then.
        for entry in _of_key(key, store.range(behind, session_key(key, 0, end))):
            _, session_start, session_end = split_session_key(entry[0])
            if session_start > to:
                break
            book.load(code, session_start, session_end)
            loaded.append(entry)
    return loaded


def _of_key(key: bytes, entries: Iterable[Entry]) -> Iterator[Entry]:
    """Without those of longer keys that begin with the same bytes."""
    length = len(key) + SESSION_SUFFIX_BYTES
    return (entry for entry in entries if len(entry[0]) == length)
