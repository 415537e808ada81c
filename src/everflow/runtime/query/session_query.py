"""Queries of session stores (KIP-94, KIP-617)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from everflow.runtime.query.store_query import ReadOnlyStore, whole_number
from everflow.serdes.windowed import TIME_MAX, session_key, split_session_key
from everflow.state.key_ranges import sessions_between, sessions_of
from everflow.windows import Windowed

Session = tuple[Windowed, Any]
"""Key with its session, and value."""


class ReadOnlySessionStore(ReadOnlyStore):
    """Queries of a session store, as Kafka Streams' ReadOnlySessionStore has them. See
    `ReadOnlyStore`.

    Results are ``(Windowed(key, start, end), value)``, in the order of the store's bytes:
    those of the key, and behind them end and start.
    ``find_sessions`` and its like give sessions that end at ``earliest_end`` or later and start at
    ``latest_start`` or earlier: those that touch the interval of time. Sessions whose retention is
    over are not shown.
    """

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        """The value of the session of ``key`` with exactly these bounds, None if there is none."""
        data = self._key_bytes(key)
        start, end = whole_number(start, "start (ms)"), whole_number(end, "end (ms)")
        return (
            self._lookup(data, session_key(data, start, end))
            if 0 <= start <= end <= TIME_MAX
            else None
        )

    def fetch(self, key: Any) -> Iterator[Session]:
        """All sessions of one key."""
        return self._sessions_of(key, 0, TIME_MAX, reverse=False)

    def backward_fetch(self, key: Any) -> Iterator[Session]:
        """`fetch`, the latest session first."""
        return self._sessions_of(key, 0, TIME_MAX, reverse=True)

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[Session]:
        """The sessions of one key that touch an interval of time."""
        return self._sessions_of(key, earliest_end, latest_start, reverse=False)

    def backward_find_sessions(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Session]:
        """`find_sessions`, the latest session first."""
        return self._sessions_of(key, earliest_end, latest_start, reverse=True)

    def fetch_range(self, first: Any, last: Any) -> Iterator[Session]:
        """All sessions of the keys ``first <= key <= last`` by key bytes; None leaves a side
        open."""
        return self._sessions_between(first, last, 0, TIME_MAX, reverse=False)

    def backward_fetch_range(self, first: Any, last: Any) -> Iterator[Session]:
        """`fetch_range` in the opposite order."""
        return self._sessions_between(first, last, 0, TIME_MAX, reverse=True)

    def find_sessions_range(
        self, first: Any, last: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Session]:
        """`find_sessions` of the keys ``first <= key <= last`` by key bytes; None leaves a side
        open."""
        return self._sessions_between(first, last, earliest_end, latest_start, reverse=False)

    def backward_find_sessions_range(
        self, first: Any, last: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Session]:
        """`find_sessions_range` in the opposite order."""
        return self._sessions_between(first, last, earliest_end, latest_start, reverse=True)

    def _sessions_of(
        self, key: Any, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> Iterator[Session]:
        data = self._key_bytes(key)
        asked = sessions_of(data, *_bounds(earliest_end, latest_start))
        return self._scan_of(data, asked, reverse=reverse)

    def _sessions_between(
        self, first: Any, last: Any, earliest_end: int, latest_start: int, *, reverse: bool
    ) -> Iterator[Session]:
        low = None if first is None else self._key_bytes(first)
        high = None if last is None else self._key_bytes(last)
        asked = sessions_between(low, high, *_bounds(earliest_end, latest_start))
        return self._scan(*asked, reverse=reverse)

    def _decode_key(self, key: bytes) -> Any:
        inner, start, end = split_session_key(key)
        return Windowed(self.spec.key_serde.decode(inner), start, end)


def _bounds(earliest_end: Any, latest_start: Any) -> tuple[int, int]:
    return whole_number(earliest_end, "earliest_end (ms)"), whole_number(
        latest_start, "latest_start (ms)"
    )
