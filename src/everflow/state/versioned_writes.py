"""Turns versions that are put into changes of a versioned store's databases (pure).

See `versioned_snapshot` for what lies where.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter

import numpy as np

from everflow.records import Int64
from everflow.state.changelog import pack_value
from everflow.state.versioned_snapshot import DELETION, VALUE, VersionedSnapshot
from everflow.state.versions import OPEN, History, Version, accepted

EARLIER = "session"
"""The kind of store whose keys those of earlier versions are."""

Changed = dict[bytes, bytes | None]
"""Stored values by key, None: it goes."""
_TIMES = struct.Struct(">qq")


def version_changes(
    before: VersionedSnapshot,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    times: Int64,
) -> tuple[Changed, Changed]:
    """What changes among the latest versions, and among the earlier ones, when versions are put in
    this order: none that is older than the history when it comes. Null keys are skipped."""
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
    """Of each key the versions in which one is put, in order of time: what is between is not
    read."""
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
        """One more; it splits the one in which it lies."""
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
