"""Where in a store lies what a range asks for: of keys, of windows and of sessions. Pure.

For queries and processors alike, so that one name means one thing in both. Times in ms; those that
no window has give an empty range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from everflow.serdes.windowed import (
    TIME_MAX,
    session_key,
    split_session_key,
    split_window_store_key,
    window_store_key,
)

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

    A key that is a beginning of ``last`` may lie behind it in the store, as its times follow at
    once.
    """
    return max(last[:length] + suffix for length in range(len(last) + 1)) + b"\x00"


def _within(
    low: bytes | None, high: bytes | None, time_from: int, time_to: int
) -> Callable[[bytes], bool]:
    """True if a stored key has ``low <= key <= high`` and its window start lies in the interval."""

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
    """True if a stored key has ``low <= key <= high`` and its session touches the interval."""

    def keep(stored_key: bytes) -> bool:
        key, start, end = split_session_key(stored_key)
        return (
            end >= earliest_end
            and start <= latest_start
            and (low is None or key >= low)
            and (high is None or key <= high)
        )

    return keep
