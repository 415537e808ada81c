"""The stores of a processor: Python values over a task's entries, with what the batch has changed.

What is written is seen by the next read, goes into the changelog with the batch's commit, a key
once, and is gone if the batch fails. Times in ms. Keys and values that the store's serdes cannot
write raise SerdeError.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from everflow.foreign_names import Telling
from everflow.records import StoreChanges
from everflow.serdes.windowed import (
    SESSION_SUFFIX_BYTES,
    STORE_SUFFIX_BYTES,
    session_key,
    split_session_key,
    split_window_store_key,
    window_store_key,
)
from everflow.state.changelog import unpack_value
from everflow.state.store import StoreSpec, StoreView
from everflow.windows import Windowed

Stored = tuple[int, Any]
"""Time of a stored value, and what `Values` reads: its bytes."""


class Values(Protocol):
    """What reads and writes stored values: a serde, mostly."""

    def encode(self, value: Any, /) -> Any: ...
    def decode(self, data: Any, /) -> Any: ...


class Entries:
    """The bytes of a store in one task: what was committed, and the batch's changes on top."""

    def __init__(self, spec: StoreSpec, view: StoreView) -> None:
        self.spec = spec
        self.values: Values = spec.value_serde
        self._view = view
        self._known: dict[bytes, Stored | None] = {}
        self._changed: dict[bytes, None] = {}
        self._ordered: list[bytes] = []

    def load(self, keys: list[bytes]) -> None:
        """Read what will be asked for, by one call."""
        wanted = [key for key in keys if key not in self._known]
        for key, stored in zip(wanted, self._view.get_many(wanted), strict=True):
            self._known[key] = None if stored is None else unpack_value(stored)

    def get(self, key: bytes) -> Stored | None:
        """The entry of a key."""
        if key not in self._known:
            self.load([key])
        return self._known[key]

    def put(self, key: bytes, value: Any, time: int) -> None:
        """A new value at a time, None: none any more."""
        if key not in self._changed:
            insort(self._ordered, key)
        self._changed.pop(key, None)  # it is the last one written
        self._changed[key] = None
        self._known[key] = None if value is None else (time, value)

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Stored]]:
        """Entries ``start <= key < end`` in key order, as they are now."""
        low = 0 if start is None else bisect_left(self._ordered, start)
        high = len(self._ordered) if end is None else bisect_left(self._ordered, end)
        found = {key: unpack_value(stored) for key, stored in self._view.range(start, end)}
        for key in self._ordered[low:high]:
            entry = self._known[key]
            if entry is None:
                found.pop(key, None)
            else:
                found[key] = entry
        for key in sorted(found, reverse=reverse):
            yield key, found[key]

    def changes(self, deleted_at: int) -> StoreChanges:
        """What has changed, the last of each key, in the order in which it was written."""
        entries = [self._known[key] for key in self._changed]
        return StoreChanges(
            self.spec.name,
            list(self._changed),
            [None if entry is None else entry[1] for entry in entries],
            np.array([deleted_at if entry is None else entry[0] for entry in entries], np.int64),
        )


class StoreClock(NamedTuple):
    """``now``: the time of what a processor writes (ms); ``stream_time``: what its store has left
    behind by its retention is behind this one."""

    now: Callable[[], int]
    stream_time: Callable[[], int]


class _Store(Telling):
    """What the stores of a processor have in common."""

    def __init__(self, entries: Entries, clock: StoreClock) -> None:
        self._entries, self._clock = entries, clock
        self._keys, self._values = entries.spec.key_serde, entries.values

    @property
    def name(self) -> str:
        """As it was declared, without the application's id."""
        return self._entries.spec.name

    def _key(self, key: Any) -> bytes:
        found = self._keys.encode(key)
        if found is None:
            raise ValueError(f"store {self.name!r}: a key is not null")
        return found

    def _kept(self, time: int) -> bool:
        """Whether what expires by ``time`` is not expired yet."""
        retention = self._entries.spec.retention_ms
        return retention is None or time > self._clock.stream_time() - retention

    def _put(self, key: bytes, value: Any) -> None:
        """``value`` as it is stored."""
        self._entries.put(key, value, self._clock.now())


class KeyValueStore(_Store):
    """A value of each key. Written values have the time of the record that is being processed, or
    that of the clock's call. On the
    thread of its task."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of ``key``, or ``default``."""
        entry = self._entries.get(self._key(key))
        return default if entry is None else self._values.decode(entry[1])

    def get_with_timestamp(self, key: Any) -> tuple[Any, int] | None:
        """Value and time (ms) of ``key``; None where there is none."""
        entry = self._entries.get(self._key(key))
        return None if entry is None else (self._values.decode(entry[1]), entry[0])

    def get_all(self, keys: Iterable[Any]) -> list[Any]:
        """The values of many keys, None where there is none, read at once."""
        written = [self._key(key) for key in keys]
        self._entries.load(written)
        found = [self._entries.get(key) for key in written]
        return [None if entry is None else self._values.decode(entry[1]) for entry in found]

    def put(self, key: Any, value: Any) -> None:
        """The value of ``key`` from now on; None deletes it."""
        self._put(self._key(key), self._values.encode(value))

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """`put` for pairs of key and value."""
        for key, value in entries:
            self.put(key, value)

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """The value there is; where there is none, None, and ``value`` is put."""
        known = self.get(key)
        if known is None:
            self.put(key, value)
        return known

    def delete(self, key: Any) -> Any:
        """Take ``key`` out; the value it had."""
        known = self.get(key)
        if known is not None:
            self._put(self._key(key), None)
        return known

    def range(
        self, first: Any = None, last: Any = None, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        """Key and value of ``first`` to ``last``, both included (None: no bound), in the order of
        the keys' bytes. What is written meanwhile is not seen."""
        start = None if first is None else self._key(first)
        end = None if last is None else self._key(last) + b"\x00"
        return self._shown(start, end, reverse)

    def all(self, *, reverse: bool = False) -> Iterator[tuple[Any, Any]]:
        """Key and value of every entry, in the order of the keys' bytes."""
        return self._shown(None, None, reverse)

    def prefix_scan(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """The entries whose keys' bytes begin with those of ``prefix``: ``bytes``, or a value that
        the key's serde writes."""
        start = prefix if isinstance(prefix, bytes) else self._key(prefix)
        bare = start.rstrip(b"\xff")
        end = bare[:-1] + bytes([bare[-1] + 1]) if bare else None
        return self._shown(start, end, False)

    def approximate_num_entries(self) -> int:
        """How many entries there are; it reads them."""
        return sum(1 for _ in self._entries.range(None, None))

    def _shown(
        self, start: bytes | None, end: bytes | None, reverse: bool
    ) -> Iterator[tuple[Any, Any]]:
        found = list(self._entries.range(start, end, reverse=reverse))
        return ((self._keys.decode(key), self._values.decode(value)) for key, (_, value) in found)


class WindowStore(_Store):
    """A value of each key and window start. Windows that stream time has left behind by the store's
    retention are not there, and are not written. On the thread of its task."""

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """The value of the window that starts at ``window_start``; None deletes it."""
        if self._kept(window_start):
            place = window_store_key(self._key(key), window_start)
            self._put(place, self._values.encode(value))

    def fetch(self, key: Any, time: int) -> Any:
        """The value of the window that starts at ``time``; None."""
        if not self._kept(time):
            return None
        entry = self._entries.get(window_store_key(self._key(key), time))
        return None if entry is None else self._values.decode(entry[1])

    def fetch_range(
        self, key: Any, time_from: int, time_to: int, *, reverse: bool = False
    ) -> Iterator[tuple[int, Any]]:
        """Start and value of the key's windows that start from ``time_from`` to ``time_to``, both
        included, in time order."""
        written = self._key(key)
        start = window_store_key(written, max(0, time_from))
        end = window_store_key(written, max(0, time_to + 1))
        length = len(written) + STORE_SUFFIX_BYTES
        for stored_key, (_, value) in list(self._entries.range(start, end, reverse=reverse)):
            at = split_window_store_key(stored_key)[1]
            if len(stored_key) == length and self._kept(at):
                yield at, self._values.decode(value)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[tuple[Windowed, Any]]:
        """Window and value of all keys' windows that start from ``time_from`` to ``time_to``, in
        the order of their keys."""
        for windowed, value in self.all():
            if time_from <= windowed.start <= time_to:
                yield windowed, value

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        """Window and value of all that is there, in the order of the keys, then in time order."""
        size_ms = self._entries.spec.window_size_ms or 0
        for stored_key, (_, value) in list(self._entries.range(None, None)):
            key, start = split_window_store_key(stored_key)
            if self._kept(start):
                windowed = Windowed(self._keys.decode(key), start, start + size_ms)
                yield windowed, self._values.decode(value)


class SessionStore(_Store):
    """A value of each session: a key with its start and end. Sessions that ended more than the
    store's retention before stream time are not there, and are not written. Of one processor, on
    its thread."""

    def put(self, session: Windowed, value: Any) -> None:
        """The value of a session; None deletes it."""
        if self._kept(session.end):
            place = session_key(self._key(session.key), session.start, session.end)
            self._put(place, self._values.encode(value))

    def remove(self, session: Windowed) -> None:
        """Take a session out."""
        self.put(session, None)

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        """The value of the session from ``start`` to ``end``; None."""
        entry = self._entries.get(session_key(self._key(key), start, end))
        if entry is None or not self._kept(end):
            return None
        return self._values.decode(entry[1])

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        """The key's sessions and their values, in the order of their ends."""
        return self.find_sessions(key, 0, (1 << 63) - 1)

    def find_sessions(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed, Any]]:
        """The key's sessions that end at ``earliest_end`` or later and start at ``latest_start`` or
        earlier, in the order of their ends."""
        written = self._key(key)
        length = len(written) + SESSION_SUFFIX_BYTES
        start = session_key(written, 0, max(0, earliest_end))
        for stored_key, (_, value) in list(self._entries.range(start, written + b"\x80")):
            _, begin, end = split_session_key(stored_key)
            if len(stored_key) == length and begin <= latest_start and self._kept(end):
                yield Windowed(key, begin, end), self._values.decode(value)


KINDS: dict[str, type[KeyValueStore | WindowStore | SessionStore]] = {
    "key_value": KeyValueStore,
    "window": WindowStore,
    "session": SessionStore,
}
"""What shows a store, by its kind."""
