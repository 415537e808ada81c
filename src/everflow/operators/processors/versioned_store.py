"""A processor's versioned store (KIP-889), over a task's versions and those of the batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, cast

import numpy as np

from everflow.foreign_names import Telling
from everflow.operators.processors.stores import Values
from everflow.records import StoreChanges
from everflow.state.changelog import unpack_value
from everflow.state.overlay import Overlay
from everflow.state.store import StoreSpec, StoreView
from everflow.state.versions import (
    OPEN,
    History,
    Version,
    VersionedRecord,
    VersionsView,
    begins_after,
    put,
    record_as_of,
    records_of,
    versions_of,
)


class VersionEntries:
    """The versions of a store in one task: what was committed, and the batch's on top. A
    `VersionsView` of both, which reads of a key's versions those that are asked for."""

    def __init__(self, spec: StoreSpec, view: StoreView) -> None:
        self.spec = spec
        self.values: Values = spec.value_serde
        self._view = cast(VersionsView, view)
        self._puts: list[tuple[bytes, bytes | None, int]] = []
        self._put_of: dict[bytes, History] = {}
        self._latest: Overlay[bytes] = Overlay(view, lambda stored: unpack_value(stored)[1])
        self.stream_time = self._view.stream_time

    def versions_many(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        expired = self.stream_time - (self.spec.retention_ms or 0)
        below = self._view.versions_many(asked)
        return [
            [
                one
                for one in self._with_puts(key, committed, first, last)
                if one.end > max(first, expired) and one.start <= last
            ]
            for (key, first, last), committed in zip(asked, below, strict=True)
        ]

    def latest_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes | None] | None]:
        found = self._view.latest_many(keys)
        for at, key in enumerate(keys):
            known = found[at]
            mine = self._put_of.get(key)
            if mine and (known is None or mine[-1][0] >= known[0]):
                found[at] = mine[-1]
        return found

    def begins_after(self, key: bytes, time: int) -> int:
        return min(
            self._view.begins_after(key, time), begins_after(self._put_of.get(key, []), time)
        )

    def put(self, key: bytes, value: bytes | None, time: int) -> int | None:
        """A version's end; None: it is older than the history, and ignored."""
        if time < self.stream_time - (self.spec.retention_ms or 0):
            return None
        self.stream_time = max(self.stream_time, time)
        self._puts.append((key, value, time))
        put(self._put_of.setdefault(key, []), time, value)
        (latest,) = self.latest_many([key])
        assert latest is not None  # there is this one
        if latest[0] == time:
            self._latest.put(key, value)
            return OPEN
        committed = self._view.versions_many([(key, time, time)])[0]
        return next(
            one.end for one in self._with_puts(key, committed, time, time) if one.start == time
        )

    def latest(self) -> Iterator[tuple[bytes, bytes]]:
        """The latest version of each key that has a value, in the order of the keys' bytes, as they
        are now."""
        return self._latest.range(None, None)

    def changes(self, deleted_at: int) -> StoreChanges:
        """All versions that were put, in their order; each has its own time."""
        return StoreChanges(
            self.spec.name,
            [key for key, _, _ in self._puts],
            [value for _, value, _ in self._puts],
            np.array([time for _, _, time in self._puts], np.int64),
        )

    def _with_puts(
        self, key: bytes, committed: list[Version], first: int, last: int
    ) -> Iterable[Version]:
        """The committed versions of an interval, and the batch's."""
        mine = self._put_of.get(key)
        if not mine:
            return committed
        begin = max(0, bisect_right(mine, first, key=itemgetter(0)) - 1)
        end = bisect_right(mine, last, key=itemgetter(0))
        starts = {one.start: one.value for one in committed} | dict(mine[begin:end])
        history = sorted(starts.items(), key=itemgetter(0))
        behind = mine[end][0] if end < len(mine) else OPEN
        if history:
            after = committed[-1].end if committed else self._view.begins_after(key, last)
            behind = min(behind, after)
        return versions_of(history, behind)


class VersionedStore(Telling):
    """Versions of each key's value, within the history retention behind the highest time of a
    version, and the latest. On the thread of its task. Times in ms. ``get`` gives a
    `VersionedRecord`, as in Kafka Streams; a query's gives the latest value alone."""

    VALID_TO_UNDEFINED = -1
    """What `put` returns for a version that is the latest."""
    NOT_PUT = -(1 << 63)
    """What `put` returns for a version that is older than the history."""

    def __init__(self, entries: VersionEntries) -> None:
        self._entries = entries
        self._keys, self._values = entries.spec.key_serde, entries.values

    @property
    def name(self) -> str:
        """As it was declared, without the application's id."""
        return self._entries.spec.name

    def put(self, key: Any, value: Any, timestamp: int) -> int:
        """A version that is valid from ``timestamp``; None deletes. Returns until when it is valid:
        the time of the next version, `VALID_TO_UNDEFINED` for the latest, or `NOT_PUT`."""
        end = self._entries.put(self._key(key), self._values.encode(value), timestamp)
        if end is None:
            return self.NOT_PUT
        return self.VALID_TO_UNDEFINED if end == OPEN else end

    def delete(self, key: Any, timestamp: int) -> VersionedRecord | None:
        """No value from ``timestamp`` on; what was valid then."""
        found = self.get(key, timestamp)
        ignored = self._entries.put(self._key(key), None, timestamp) is None
        return None if ignored else found

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        """The latest version of ``key``, or the one that was valid at ``as_of``; None where there
        was no value, or where that is older than the history and not the latest."""
        history_ms = self._entries.spec.retention_ms or 0
        time = OPEN - 1 if as_of is None else as_of
        return record_as_of(self._entries, self._key(key), time, history_ms, self._values.decode)

    def get_as_of(self, key: Any, as_of: int) -> VersionedRecord | None:
        """`get` with a time, by the name that it has in queries."""
        return self.get(key, as_of)

    def versions(
        self, key: Any, time_from: int = 0, time_to: int = OPEN - 1
    ) -> list[VersionedRecord]:
        """What ``key`` was at some time from ``time_from`` to ``time_to``, both included, in order
        of time; deletions are left out."""
        found = self._entries.versions_many([(self._key(key), time_from, time_to)])[0]
        return records_of(found, self._values.decode)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Key and latest value of every key that has one, in the order of the keys' bytes."""
        found = self._entries.latest()
        return ((self._keys.decode(key), self._values.decode(value)) for key, value in found)

    def _key(self, key: Any) -> bytes:
        found = self._keys.encode(key)
        if found is None:
            raise ValueError(f"store {self.name!r}: a key is not null")
        return found
