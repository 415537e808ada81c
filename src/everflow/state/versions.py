"""Versions of a key's value: what a versioned store holds (KIP-889). Pure.

A version is valid from its own time until that of the next one; the last is the latest, and has no
end. A deletion is a version without a value. A store keeps what was valid within its history
retention, and the latest version of each key for ever (the latest deletion as long as the history).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from everflow.records import Int64

Flags = npt.NDArray[np.bool_]
OPEN = (1 << 63) - 1
"""The end of the latest version."""

History = list[tuple[int, bytes | None]]
"""A key's versions: time and value, in order of time."""


class Version(NamedTuple):
    """A value (None: a deletion) that is valid from ``start`` until before ``end`` (ms)."""

    start: int
    end: int
    value: bytes | None


class VersionsView(Protocol):
    """What operators read of a versioned store beside what a `StoreView` shows, which is the latest
    versions. ``stream_time`` is the highest time of a version (ms), -1 = none yet."""

    @property
    def stream_time(self) -> int: ...

    def latest_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes | None] | None]:
        """The latest version of each key, deletions too: time and value; None: none is kept."""

    def versions_many(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        """Of each key the versions that were valid at some time from the first to the last of the
        two (ms, included), in order of time."""

    def begins_after(self, key: bytes, time: int) -> int:
        """When the key's first version begins of those that begin after ``time`` (ms); `OPEN`:
        there is none."""


class VersionedRecord(NamedTuple):
    """A value as users see it: it is valid from ``timestamp`` (ms) until before ``valid_to``; None:
    it is the latest."""

    value: Any
    timestamp: int
    valid_to: int | None


def record_as_of(
    view: VersionsView, key: bytes, time: int, history_ms: int, decode: Callable[[bytes], Any]
) -> VersionedRecord | None:
    """What a key was at a time (ms); None where it was nothing, or where that is older than the
    history and not the latest."""
    found = view.versions_many([(key, time, time)])[0]
    if time < view.stream_time - history_ms:
        found = [one for one in found if one.end == OPEN]
    return next(iter(records_of(found, decode)), None)


def records_of(
    versions: Iterable[Version], decode: Callable[[bytes], Any]
) -> list[VersionedRecord]:
    """Versions as users see them, without deletions."""
    return [
        VersionedRecord(decode(one.value), one.start, None if one.end == OPEN else one.end)
        for one in versions
        if one.value is not None
    ]


def put(history: History, time: int, value: bytes | None) -> int:
    """Puts a version into ``history``; returns its end."""
    at = bisect_left(history, time, key=itemgetter(0))
    if at < len(history) and history[at][0] == time:
        history[at] = (time, value)
    else:
        history.insert(at, (time, value))
    return history[at + 1][0] if at + 1 < len(history) else OPEN


def versions_of(history: History, end: int = OPEN) -> Iterable[Version]:
    """The versions with their ends; ``end``: of the last one."""
    ends = [*(time for time, _ in history), end][1:]
    return (Version(time, end, value) for (time, value), end in zip(history, ends, strict=True))


def versions_within(history: History, first: int, last: int) -> list[Version]:
    """The versions that are valid at some time from ``first`` to ``last`` (ms, included); none of
    the others is looked at."""
    begin = max(0, bisect_right(history, first, key=itemgetter(0)) - 1)
    end = bisect_right(history, last, key=itemgetter(0))
    behind = history[end][0] if end < len(history) else OPEN
    return list(versions_of(history[begin:end], behind))


def begins_after(history: History, time: int) -> int:
    """See `VersionsView`."""
    at = bisect_right(history, time, key=itemgetter(0))
    return history[at][0] if at < len(history) else OPEN


def accepted(times: Int64, stream_time: int, history_ms: int) -> Flags:
    """Which of the versions that come with these times are not older than the history retention
    when they come. ``stream_time``: before them."""
    observed = np.maximum(np.maximum.accumulate(times), stream_time)
    return np.asarray(times >= observed - history_ms, np.bool_)
