"""Where in a store lies what a range asks for: of keys, of windows and of sessions. Pure.

For queries and processors alike, so that one name means one thing in both: their stores are read
by the methods of `StoreReads` and the classes behind it. Times in ms; those that no window has give
an empty range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, overload

from everflow.serdes import Serde
from everflow.serdes.windowed import (
    TIME_MAX,
    session_key,
    split_session_key,
    split_window_store_key,
    window_store_key,
)
from everflow.state.store import StoreSpec
from everflow.windows import Windowed

_SEQUENCE_MAX = b"\xff" * 4
_LAST_SESSION = session_key(b"", TIME_MAX, TIME_MAX)


class KeyRange(NamedTuple):
    """Stored keys ``start <= key < end`` (None: no bound), of which those belong to it that
    ``keep`` says: a key that is the beginning of another one may lie between that one's windows."""

    start: bytes | None
    end: bytes | None
    keep: Callable[[bytes], bool]


def windows_of(key: bytes, time_from: int, time_to: int) -> KeyRange:
    """The windows of a key that start from ``time_from`` to ``time_to``, both included."""
    keep = _within(key, key, time_from, time_to)
    if not 0 <= time_to >= time_from:
        return KeyRange(key, key, keep)
    start = window_store_key(key, max(0, min(time_from, TIME_MAX)))
    return KeyRange(start, key + _last_window(time_to) + b"\x00", keep)


def windows_between(
    low: bytes | None, high: bytes | None, time_from: int, time_to: int
) -> KeyRange:
    """As `windows_of`, of the keys ``low <= key <= high``; None leaves a side open."""
    end = None if high is None else _after_keys(high, _last_window(time_to))
    return KeyRange(low, end, _within(low, high, time_from, time_to))


def sessions_of(key: bytes, earliest_end: int, latest_start: int) -> KeyRange:
    """The sessions of a key that end at ``earliest_end`` or later and start by ``latest_start``."""
    start = session_key(key, 0, max(0, min(earliest_end, TIME_MAX)))
    keep = _touching(key, key, earliest_end, latest_start)
    return KeyRange(start, key + _LAST_SESSION + b"\x00", keep)


def sessions_between(
    low: bytes | None, high: bytes | None, earliest_end: int, latest_start: int
) -> KeyRange:
    """As `sessions_of`, of the keys ``low <= key <= high``; None leaves a side open."""
    end = None if high is None else _after_keys(high, _LAST_SESSION)
    return KeyRange(low, end, _touching(low, high, earliest_end, latest_start))


def after_prefix(prefix: bytes) -> bytes | None:
    """The smallest bytes behind all that begin with ``prefix``; None: there are none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else None


def _last_window(time_to: int) -> bytes:
    return window_store_key(b"", max(0, min(time_to, TIME_MAX)))[:-4] + _SEQUENCE_MAX


def _after_keys(last: bytes, suffix: bytes) -> bytes:
    """Stored keys from here on have a key above ``last``, or ``last`` and more than ``suffix``
    behind it.

    A key that is a beginning of ``last`` may lie behind it, as its times follow at once.
    """
    return max(last[:length] + suffix for length in range(len(last) + 1)) + b"\x00"


def _within(
    low: bytes | None, high: bytes | None, time_from: int, time_to: int
) -> Callable[[bytes], bool]:

    def keep(stored_key: bytes) -> bool:
        key, start = split_window_store_key(stored_key)
        return (
            time_from <= start <= time_to
            and (low is None or key >= low)
            and (high is None or key <= high)
        )

    return keep


def _touching(
    low: bytes | None, high: bytes | None, earliest_end: int, latest_start: int
) -> Callable[[bytes], bool]:

    def keep(stored_key: bytes) -> bool:
        key, start, end = split_session_key(stored_key)
        return (
            end >= earliest_end
            and start <= latest_start
            and (low is None or key >= low)
            and (high is None or key <= high)
        )

    return keep


# --- the methods by which stores are read (KIP-67, KIP-617) ---------------------------------------

Found = tuple[Windowed, Any]
"""A key with its window or session, and the value."""


class StoreReads:
    """Of every kind. Results are key and value, decoded, in the order of the store's bytes. A
    subclass says how a range is read (`_scan`)."""

    _spec: StoreSpec
    _keys: Serde

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Returns key and value of every entry, in the order of the store's bytes: the key's bytes,
        then the times of a window or session. Entries of one key are thus in time order. If one
        key's bytes are a prefix of another's (``b`` and ``b\\0``), their entries may be mixed, as
        in Kafka Streams. A query returns one partition after the other."""
        return self._scan(None, None)

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        """As `all`, in reverse order (a query: within each partition)."""
        return self._scan(None, None, reverse=True)

    def _key(self, key: Any) -> bytes:
        raise NotImplementedError

    def _bound(self, key: Any) -> bytes | None:
        return None if key is None else self._key(key)

    def _scan(
        self,
        start: bytes | None,
        end: bytes | None,
        keep: Callable[[bytes], bool] | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        raise NotImplementedError

    def _scan_of(
        self,
        key: bytes,
        asked: KeyRange,
        *,
        reverse: bool,
    ) -> Iterator[tuple[Any, Any]]:
        """`_scan` of one key."""
        return self._scan(*asked, reverse=reverse)

    def _decode_key(self, stored_key: bytes) -> Any:
        return self._keys.decode(stored_key)


class KeyReads(StoreReads):
    """Of a key-value store."""

    def range(self, first: Any = None, last: Any = None) -> Iterator[tuple[Any, Any]]:
        """Returns ``(key, value)`` of the keys ``first <= key <= last`` (as bytes); None leaves a
        side open."""
        return self._scan(*self._bounds(first, last))

    def reverse_range(
        self,
        first: Any = None,
        last: Any = None,
    ) -> Iterator[tuple[Any, Any]]:
        """As `range`, from ``last`` down to ``first``."""
        return self._scan(*self._bounds(first, last), reverse=True)

    def prefix_scan(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """Returns ``(key, value)`` of the keys whose bytes begin with ``prefix``: bytes, or a value
        that the key's serde encodes (text for text keys)."""
        start = bytes(prefix) if isinstance(prefix, bytes | bytearray) else self._key(prefix)
        return self._scan(start, after_prefix(start))

    def _bounds(self, first: Any, last: Any) -> tuple[bytes | None, bytes | None]:
        return self._bound(first), None if last is None else self._key(last) + b"\x00"


class TimedReads(StoreReads):
    """Of a store whose keys end with times."""

    _of_key: Callable[[bytes, int, int], KeyRange]
    _of_keys: Callable[[bytes | None, bytes | None, int, int], KeyRange]

    def _of(
        self, key: Any, since: int, until: int, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        data = self._key(key)
        return self._scan_of(data, self._of_key(data, since, until), reverse=reverse)

    def _between(
        self, first: Any, last: Any, since: int, until: int, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        asked = self._of_keys(self._bound(first), self._bound(last), since, until)
        return self._scan(*asked, reverse=reverse)


class WindowReads(TimedReads):
    """Of a window store. Times are window *starts* in ms, both ends included."""

    _of_key = staticmethod(windows_of)
    _of_keys = staticmethod(windows_between)

    def fetch_window(self, key: Any, start: int) -> Any:
        """The value of ``key`` in the window that begins at ``start``, None if there is none."""
        raise NotImplementedError

    @overload
    def fetch(self, key: Any, time_from: int, /) -> Any: ...

    @overload
    def fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[Found]: ...

    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        """Returns the windows of one key that start from ``time_from`` to ``time_to``, in time
        order. With one time: as `fetch_window`."""
        if time_to is None:
            return self.fetch_window(key, time_from)
        return self._of(key, time_from, time_to)

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[Found]:
        """As `fetch`, the latest window first."""
        return self._of(key, time_from, time_to, reverse=True)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[Found]:
        """Returns the windows of all keys that start from ``time_from`` to ``time_to``, in the
        order of `all`. Scans the whole store."""
        return self._between(None, None, time_from, time_to)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[Found]:
        """As `fetch_all`, in reverse order."""
        return self._between(None, None, time_from, time_to, reverse=True)

    def fetch_range(
        self,
        first: Any,
        last: Any,
        time_from: int,
        time_to: int,
    ) -> Iterator[Found]:
        """As `fetch_all`, of the keys ``first <= key <= last`` (as bytes); None leaves a side
        open."""
        return self._between(first, last, time_from, time_to)

    def backward_fetch_range(
        self, first: Any, last: Any, time_from: int, time_to: int
    ) -> Iterator[Found]:
        """As `fetch_range`, in reverse order."""
        return self._between(first, last, time_from, time_to, reverse=True)

    def _decode_key(self, stored_key: bytes) -> Windowed:
        key, start = split_window_store_key(stored_key)
        return Windowed(self._keys.decode(key), start, start + (self._spec.window_size_ms or 0))


class SessionReads(TimedReads):
    """Of a session store."""

    _of_key = staticmethod(sessions_of)
    _of_keys = staticmethod(sessions_between)

    def fetch(self, key: Any) -> Iterator[Found]:
        """Returns all sessions of one key, in the order of their ends."""
        return self._of(key, 0, TIME_MAX)

    def backward_fetch(self, key: Any) -> Iterator[Found]:
        """As `fetch`, the latest session first."""
        return self._of(key, 0, TIME_MAX, reverse=True)

    def find_sessions(
        self,
        key: Any,
        earliest_end: int,
        latest_start: int,
    ) -> Iterator[Found]:
        """Returns the sessions of one key that end at ``earliest_end`` or later and start at
        ``latest_start`` or earlier, in the order of their ends."""
        return self._of(key, earliest_end, latest_start)

    def backward_find_sessions(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Found]:
        """As `find_sessions`, the latest session first."""
        return self._of(key, earliest_end, latest_start, reverse=True)

    def fetch_range(self, first: Any, last: Any) -> Iterator[Found]:
        """All sessions of the keys ``first <= key <= last`` (as bytes); None leaves a side open."""
        return self._between(first, last, 0, TIME_MAX)

    def backward_fetch_range(self, first: Any, last: Any) -> Iterator[Found]:
        """As `fetch_range`, in reverse order."""
        return self._between(first, last, 0, TIME_MAX, reverse=True)

    def find_sessions_range(
        self, first: Any, last: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Found]:
        """As `find_sessions`, of the keys ``first <= key <= last`` (as bytes); None leaves a side
        open."""
        return self._between(first, last, earliest_end, latest_start)

    def backward_find_sessions_range(
        self, first: Any, last: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Found]:
        """As `find_sessions_range`, in reverse order."""
        return self._between(first, last, earliest_end, latest_start, reverse=True)

    def _decode_key(self, stored_key: bytes) -> Windowed:
        key, start, end = split_session_key(stored_key)
        return Windowed(self._keys.decode(key), start, end)
