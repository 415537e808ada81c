"""A versioned store: `VersionedSnapshot`, read inside one LMDB transaction, and its writes.

The last database holds each key's latest version with a value; the ring those before it by key,
end, start, and a key's latest deletion, with its time as both. `version_changes` is pure.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np

from everflow.records import Int64
from everflow.state import stored_keys
from everflow.state.changelog import pack_value, unpack_value
from everflow.state.store import OPEN, History, Version, accepted
from everflow.state.store_snapshot import SEGMENT_MS_MIN, StoreSnapshot

DELETION, VALUE = b"\x00", b"\x01"
"""First byte of the value of an earlier version."""
_TIMES = struct.Struct(">qq")
_TIME = struct.Struct(">q")
_BEHIND = b"\x80"
"""Sorts behind all times that are not negative."""


class VersionedSnapshot(StoreSnapshot):
    """A `VersionsView` of one moment; as a `StoreView` it shows the latest versions."""

    @property
    def stream_time(self) -> int:
        return self.meta.stream_time

    def latest_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes | None] | None]:
        found: list[tuple[int, bytes | None] | None] = [
            None if entry is None else unpack_value(entry) for entry in self.get_many(keys)
        ]
        absent = [at for at, entry in enumerate(found) if entry is None]
        deletions = self._latest_deletions([keys[at] for at in absent])
        for at, time in zip(absent, deletions, strict=True):
            found[at] = None if time is None else (time, None)
        return found

    def versions_many(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        latest = self.latest_many([key for key, _, _ in asked])
        more = [
            at
            for at, one in enumerate(latest)
            if one is None or one[0] > asked[at][1]  # else it is all that is asked for
        ]
        found: list[list[Version]] = [[] for _ in asked]
        for at, versions in zip(more, self._earlier([asked[at] for at in more]), strict=True):
            found[at] = versions
        for at, one in enumerate(latest):
            if one is not None and one[0] <= asked[at][2]:
                found[at].append(Version(one[0], OPEN, one[1]))
        return found

    def begins_after(self, key: bytes, time: int) -> int:
        first = max(time, self.meta.expired_ms)
        for segment, slot in self._segments():
            if (segment + 1) * (self.meta.segment_ms or SEGMENT_MS_MIN) <= first:
                continue
            with self._txn.cursor(self._ring[slot]) as cursor:
                for stored_key, _ in _of_key(cursor, key, first):
                    end, start = _TIMES.unpack_from(stored_key, len(stored_key) - _TIMES.size)
                    if end <= self.meta.expired_ms:
                        continue
                    if start > time:
                        return int(start)
                    if end > time:  # it ends where the next one begins
                        return int(end)
        latest = self.get(key)
        start = OPEN if latest is None else unpack_value(latest)[0]
        return start if start > time else OPEN

    def every_version(self) -> Iterator[tuple[bytes, Version]]:
        """Keys and shown versions with a value: the latest by key, then those before, unordered."""
        for key, stored in self.range(None, None):
            time, value = unpack_value(stored)
            yield key, Version(time, OPEN, value)
        for _, slot in self._segments():
            for entry in self._scan(self._ring[slot], None, None):
                for one in _valid([entry], self.meta.expired_ms, OPEN):
                    if one.value is not None:
                        yield entry[0][: -_TIMES.size], one

    def _earlier(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        asked = [(key, max(first, self.meta.expired_ms), last) for key, first, last in asked]
        found: list[list[Version]] = [[] for _ in asked]
        for segment, slot in self._segments():
            ends_before = (segment + 1) * (self.meta.segment_ms or SEGMENT_MS_MIN)
            with self._txn.cursor(self._ring[slot]) as cursor:
                for at, (key, first, last) in enumerate(asked):
                    if ends_before > first:
                        found[at] += _valid(_of_key(cursor, key, first), first, last)
        return found

    def _latest_deletions(self, keys: Sequence[bytes]) -> list[int | None]:
        """When keys without a latest value were deleted; None: never, as far as is known."""
        found: list[int | None] = [None] * len(keys)
        open_ = dict(enumerate(keys))
        for _, slot in reversed(self._segments()):
            if not open_:
                break
            with self._txn.cursor(self._ring[slot]) as cursor:
                for at, key in list(open_.items()):
                    last = _last_of_key(cursor, key)
                    if last is not None:
                        del open_[at]
                        end, start = _TIMES.unpack_from(last, len(last) - _TIMES.size)
                        found[at] = start if start == end > self.meta.expired_ms else None
        return found

    def _segments(self) -> list[tuple[int, int]]:
        return sorted((segment, slot) for slot, segment in self.meta.segments.items())


def _of_key(cursor: Any, key: bytes, first: int) -> Iterator[tuple[bytes, bytes]]:
    start, end = key + _TIME.pack(first), key + _BEHIND
    length = len(key) + _TIMES.size
    if cursor.set_range(stored_keys.lower_bound(start)):
        for stored_key, value in stored_keys.in_range(cursor.iternext(), start, end):
            if len(stored_key) == length:  # else of a longer key that begins like this one
                yield stored_key, value


def _last_of_key(cursor: Any, key: bytes) -> bytes | None:
    bound = stored_keys.upper_bound(key + _BEHIND)
    length = len(key) + _TIMES.size
    if (bound is not None and cursor.set_range(bound)) or cursor.last():
        for stored_key, _ in stored_keys.in_range(
            cursor.iterprev(), key, key + _BEHIND, reverse=True
        ):
            if len(stored_key) == length and stored_key.startswith(key):
                found: bytes = stored_key
                return found
    return None


def _valid(
    entries: Iterable[tuple[bytes, bytes]],
    first: int,
    last: int,
) -> Iterator[Version]:
    for stored_key, stored in entries:
        end, start = _TIMES.unpack_from(stored_key, len(stored_key) - _TIMES.size)
        if start > last:
            return
        if end > max(first, start):  # else it is a latest deletion
            value = unpack_value(stored)[1]
            yield Version(start, end, None if value == DELETION else value[1:])


EARLIER = "session"
"""The kind of store whose keys those of earlier versions are."""

Changed = dict[bytes, bytes | None]
"""Stored values by key, None: it goes."""


def version_changes(
    before: VersionedSnapshot,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    times: Int64,
) -> tuple[Changed, Changed]:
    """Latest and earlier versions changed by puts in this order; late ones, null keys left out."""
    history_ms = before.meta.retention_ms or 0
    times = np.asarray(times, np.int64)
    kept = accepted(times, before.stream_time, history_ms)
    put_by_key: dict[bytes, History] = {}
    for at, time in zip(np.flatnonzero(kept).tolist(), times[kept].tolist(), strict=True):
        key = keys[at]
        if key is not None:
            put_by_key.setdefault(key, []).append((time, values[at]))
    oldest = max(before.stream_time, int(times.max(initial=-1))) - history_ms
    latest: Changed = {}
    earlier: Changed = {}
    for (key, new), known in zip(put_by_key.items(), _around(before, put_by_key), strict=True):
        versions = _Versions(known, partial(before.begins_after, key))
        was = _entries(known)
        for time, value in new:
            versions.put(time, value)
        now = _entries(versions.known)
        for ends, stored in now.items():
            if ends[0] > oldest and was.get(ends) != stored:
                earlier[key + _TIMES.pack(*ends)] = pack_value(ends[1], stored)
        for ends in was.keys() - now.keys():
            earlier[key + _TIMES.pack(*ends)] = None
        last = versions.known[-1]
        if last.end == OPEN:
            latest[key] = None if last.value is None else pack_value(last.start, last.value)
    return latest, earlier


def _around(
    before: VersionedSnapshot, put_by_key: Mapping[bytes, History]
) -> Iterator[list[Version]]:
    """For each key the versions into which new ones are put, in order of time."""
    latest = before.latest_many(list(put_by_key))
    asked = [
        (key, time, time)
        for (key, new), one in zip(put_by_key.items(), latest, strict=True)
        for time in sorted({time for time, _ in new if one is None or time < one[0]})
    ]
    found: dict[bytes, list[Version]] = {}
    for (key, _, _), versions in zip(asked, before.versions_many(asked), strict=True):
        for version in versions:
            mine = found.setdefault(key, [])
            if not mine or mine[-1].start != version.start:
                mine.append(version)
    for (key, new), one in zip(put_by_key.items(), latest, strict=True):
        mine = found.get(key, [])
        if one is not None and any(time >= one[0] for time, _ in new):
            mine.append(Version(one[0], OPEN, one[1]))
        yield mine


class _Versions:
    """Versions of a key, each with its end: some of those there are, in order of time."""

    def __init__(self, known: Sequence[Version], begins_after: Callable[[int], int]) -> None:
        self.known = list(known)
        self._begins_after = begins_after

    def put(self, time: int, value: bytes | None) -> None:
        at = bisect_right(self.known, time, key=itemgetter(0))
        before = self.known[at - 1] if at else None
        if before is not None and time < before.end:
            if before.start == time:
                self.known[at - 1] = before._replace(value=value)
                return
            self.known[at - 1] = before._replace(end=time)
            end = before.end
        else:
            end = self._begins_after(time)
            if at < len(self.known):
                end = min(end, self.known[at].start)
        self.known.insert(at, Version(time, end, value))


def _entries(versions: Sequence[Version]) -> dict[tuple[int, int], bytes]:
    """The earlier ones, by end and start; a latest deletion too."""
    found = {
        (one.end, one.start): DELETION if one.value is None else VALUE + one.value
        for one in versions
        if one.end != OPEN
    }
    if versions and versions[-1].end == OPEN and versions[-1].value is None:
        found[versions[-1].start, versions[-1].start] = DELETION
    return found
