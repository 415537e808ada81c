"""Turns versions that are put into changes of a versioned store's databases (pure).

See `versioned_snapshot` for what lies where.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from everflow.records import Int64
from everflow.state.changelog import pack_value
from everflow.state.versioned_snapshot import DELETION, VALUE, VersionedSnapshot
from everflow.state.versions import OPEN, History, accepted, put

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
    asked = [
        (key, max(min(time for time, _ in new) - 1, 0), OPEN - 1) for key, new in put_by_key.items()
    ]
    for (key, new), found in zip(put_by_key.items(), before.versions_many(asked), strict=True):
        history: History = [(one.start, one.value) for one in found]
        was = _entries(history)
        for time, value in new:
            put(history, time, value)
        now = _entries(history)
        for ends, stored in now.items():
            if ends[0] > oldest and was.get(ends) != stored:
                earlier[key + _TIMES.pack(*ends)] = pack_value(ends[1], stored)
        for ends in was.keys() - now.keys():
            earlier[key + _TIMES.pack(*ends)] = None
        time, value = history[-1]
        latest[key] = None if value is None else pack_value(time, value)
    return latest, earlier


def _entries(history: History) -> dict[tuple[int, int], bytes]:
    """The earlier versions, by end and start; a latest deletion too."""
    found = {
        (history[at + 1][0], time): DELETION if value is None else VALUE + value
        for at, (time, value) in enumerate(history[:-1])
    }
    if history and history[-1][1] is None:
        found[history[-1][0], history[-1][0]] = DELETION
    return found
