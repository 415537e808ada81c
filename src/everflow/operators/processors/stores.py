"""The stores of a processor: Python values over a task's entries, with what the batch has changed.

What is written is seen by the next read, goes into the changelog with the batch's commit, a key
once, and is gone if the batch fails. Times in ms. Keys and values that the store's serdes cannot
write raise SerdeError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from everflow.foreign_names import Telling
from everflow.records import StoreChanges
from everflow.serdes.windowed import (
    TIME_MAX,
    session_key,
    split_session_key,
    split_window_store_key,
    window_store_key,
)
from everflow.state.changelog import pack_value, unpack_value
from everflow.state.key_ranges import (
    after_prefix,
    sessions_between,
    sessions_of,
    windows_between,
    windows_of,
)
from everflow.state.overlay import Overlay
from everflow.state.store import StoreSpec, StoreView
from everflow.windows import Windowed

Stored = tuple[int, Any]
"""Time of a stored value, and what `Values` reads: its bytes."""

Found = tuple[Windowed, Any]
"""A key with its window or session, and the value."""


class ShownValue(NamedTuple):
    """A value as its table shows it, which the batch has brought: nobody has to write it."""

    value: Any


def entry_with(time: int, value: Any) -> Any:
    """The entry of a value's bytes, or of a `ShownValue`; None for None."""
    if value is None or isinstance(value, ShownValue):
        return None if value is None else (time, value)
    return pack_value(time, value)


def read_entry(entry: Any) -> Stored:
    """Time and value of a store's entry, or of one that `entry_with` has made."""
    return entry if isinstance(entry, tuple) else unpack_value(entry)


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
        self._read: dict[bytes, Stored | None] = {}
        self._top: Overlay[Stored] = Overlay(view, read_entry)
        self._changed: dict[bytes, None] = {}

    def load(self, keys: list[bytes]) -> None:
        """Read what will be asked for, by one call."""
        wanted = [key for key in keys if key not in self._read]
        for key, stored in zip(wanted, self._view.get_many(wanted), strict=True):
            self._read[key] = None if stored is None else read_entry(stored)

    def get(self, key: bytes) -> Stored | None:
        """The entry of a key."""
        if key in self._top:
            return self._top.get(key)
        if key not in self._read:
            self.load([key])
        return self._read[key]

    def put(self, key: bytes, value: Any, time: int) -> None:
        """A new value at a time, None: none any more."""
        self._changed.pop(key, None)  # it is the last one written
        self._changed[key] = None
        self._top.put(key, None if value is None else (time, value))

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Stored]]:
        """Entries ``start <= key < end`` in key order, as they are now, read as they are taken: as
        long as the batch runs."""
        return self._top.range(start, end, reverse=reverse)

    def entries(self) -> int:
        """About how many there are."""
        return self._top.entries()

    def changes(self, deleted_at: int) -> StoreChanges:
        """What has changed, the last of each key, in the order in which it was written."""
        entries = [self._top.get(key) for key in self._changed]
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
    """What the stores of a processor have in common. Longer results are of the moment of the call:
    what is written meanwhile is not seen. They are read as they are taken, so the first entry of a
    large store costs no more than that of a small one; take what you need before the micro-batch
    ends."""

    def __init__(self, entries: Entries, clock: StoreClock) -> None:
        self._entries, self._clock = entries, clock
        self._keys, self._values = entries.spec.key_serde, entries.values

    @property
    def name(self) -> str:
        """As it was declared, without the application's id."""
        return self._entries.spec.name

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Key and value of every entry, in the order of the store's bytes: those of the key, and
        behind them the times of a window or session. So those of one key are in order of time;
        where its bytes begin those of another key (``b`` and ``b\\0``), that one's may lie between
        them, as in Kafka Streams."""
        return self._scan(None, None)

    def reverse_all(self) -> Iterator[tuple[Any, Any]]:
        """`all` in the opposite order."""
        return self._scan(None, None, reverse=True)

    def approximate_num_entries(self) -> int:
        """About how many entries there are, without a look at them: those whose time is over may
        be counted for a while."""
        return self._entries.entries()

    def _key(self, key: Any) -> bytes:
        found = self._keys.encode(key)
        if found is None:
            raise ValueError(f"store {self.name!r}: a key is not null")
        return found

    def _bound(self, key: Any) -> bytes | None:
        return None if key is None else self._key(key)

    def _kept(self, time: int) -> bool:
        """Whether what expires by ``time`` is not expired yet."""
        oldest = self._oldest()
        return oldest is None or time > oldest

    def _oldest(self) -> int | None:
        """What expires by this time, or before it, has expired; None: nothing does."""
        retention = self._entries.spec.retention_ms
        return None if retention is None else self._clock.stream_time() - retention

    def _put(self, key: bytes, value: Any) -> None:
        """``value`` as it is stored."""
        self._entries.put(key, value, self._clock.now())

    def _scan(
        self,
        start: bytes | None,
        end: bytes | None,
        keep: Callable[[bytes], bool] | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        lives = self._lives_now()
        found = self._entries.range(start, end, reverse=reverse)
        return (
            (self._shown(key), self._values.decode(value))
            for key, (_, value) in found
            if (keep is None or keep(key)) and (lives is None or lives(key))
        )

    def _shown(self, stored_key: bytes) -> Any:
        """The key of an entry as results have it."""
        return self._keys.decode(stored_key)

    def _lives_now(self) -> Callable[[bytes], bool] | None:
        """Which stored keys have not expired at this moment; None: all."""
        return None


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

    def range(self, first: Any = None, last: Any = None) -> Iterator[tuple[Any, Any]]:
        """Key and value of ``first`` to ``last``, both included (None: no bound), in the order of
        the keys' bytes. What is written meanwhile is not seen."""
        return self._between(first, last, reverse=False)

    def reverse_range(self, first: Any = None, last: Any = None) -> Iterator[tuple[Any, Any]]:
        """`range`, from ``last`` down to ``first``."""
        return self._between(first, last, reverse=True)

    def prefix_scan(self, prefix: Any) -> Iterator[tuple[Any, Any]]:
        """The entries whose keys' bytes begin with those of ``prefix``: ``bytes``, or a value that
        the key's serde writes."""
        start = bytes(prefix) if isinstance(prefix, bytes | bytearray) else self._key(prefix)
        return self._scan(start, after_prefix(start))

    def _between(self, first: Any, last: Any, *, reverse: bool) -> Iterator[tuple[Any, Any]]:
        end = self._bound(last)
        return self._scan(
            self._bound(first), None if end is None else end + b"\x00", reverse=reverse
        )


class WindowStore(_Store):
    """A value of each key and window start. Windows that stream time has left behind by the store's
    retention are not there, and are not written. Times are window *starts* in ms, both ends
    included; keys of results are `Windowed`. On the thread of its task."""

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """The value of the window that starts at ``window_start``; None deletes it."""
        if self._kept(window_start):
            place = window_store_key(self._key(key), window_start)
            self._put(place, self._values.encode(value))

    def fetch_window(self, key: Any, start: int) -> Any:
        """The value of the window that starts at ``start``; None."""
        if not self._kept(start):
            return None
        entry = self._entries.get(window_store_key(self._key(key), start))
        return None if entry is None else self._values.decode(entry[1])

    @overload
    def fetch(self, key: Any, time_from: int, /) -> Any: ...

    @overload
    def fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[Found]: ...

    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        """The windows of one key, in order of time. With one time it is `fetch_window`, as in Kafka
        Streams."""
        if time_to is None:
            return self.fetch_window(key, time_from)
        return self._scan(*windows_of(self._key(key), time_from, time_to))

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[Found]:
        """`fetch`, the latest window first."""
        return self._scan(*windows_of(self._key(key), time_from, time_to), reverse=True)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[Found]:
        """Windows of all keys in an interval of time, in the order of `all`. On its way it passes
        the windows of other times."""
        return self.fetch_range(None, None, time_from, time_to)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[Found]:
        """`fetch_all` in the opposite order."""
        return self.backward_fetch_range(None, None, time_from, time_to)

    def fetch_range(self, first: Any, last: Any, time_from: int, time_to: int) -> Iterator[Found]:
        """`fetch_all` of the keys ``first <= key <= last`` by key bytes; None leaves a side
        open."""
        bounds = self._bound(first), self._bound(last)
        return self._scan(*windows_between(*bounds, time_from, time_to))

    def backward_fetch_range(
        self, first: Any, last: Any, time_from: int, time_to: int
    ) -> Iterator[Found]:
        """`fetch_range` in the opposite order."""
        bounds = self._bound(first), self._bound(last)
        return self._scan(*windows_between(*bounds, time_from, time_to), reverse=True)

    def _shown(self, stored_key: bytes) -> Windowed:
        key, start = split_window_store_key(stored_key)
        size_ms = self._entries.spec.window_size_ms or 0
        return Windowed(self._keys.decode(key), start, start + size_ms)

    def _lives_now(self) -> Callable[[bytes], bool] | None:
        oldest = self._oldest()
        return None if oldest is None else lambda key: split_window_store_key(key)[1] > oldest


class SessionStore(_Store):
    """A value of each session: a key with its start and end. Sessions that ended more than the
    store's retention before stream time are not there, and are not written. ``find_sessions`` and
    its like give sessions that end at ``earliest_end`` or later and start at ``latest_start`` or
    earlier. On the thread of its task."""

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

    def fetch(self, key: Any) -> Iterator[Found]:
        """All sessions of one key, in the order of their ends."""
        return self.find_sessions(key, 0, TIME_MAX)

    def backward_fetch(self, key: Any) -> Iterator[Found]:
        """`fetch`, the latest session first."""
        return self.backward_find_sessions(key, 0, TIME_MAX)

    def fetch_range(self, first: Any, last: Any) -> Iterator[Found]:
        """All sessions of the keys ``first <= key <= last`` by key bytes; None leaves a side
        open."""
        return self.find_sessions_range(first, last, 0, TIME_MAX)

    def backward_fetch_range(self, first: Any, last: Any) -> Iterator[Found]:
        """`fetch_range` in the opposite order."""
        return self.backward_find_sessions_range(first, last, 0, TIME_MAX)

    def find_sessions(self, key: Any, earliest_end: int, latest_start: int) -> Iterator[Found]:
        """The sessions of one key that touch an interval of time, in the order of their ends."""
        return self._scan(*sessions_of(self._key(key), earliest_end, latest_start))

    def backward_find_sessions(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Found]:
        """`find_sessions`, the latest session first."""
        return self._scan(*sessions_of(self._key(key), earliest_end, latest_start), reverse=True)

    def find_sessions_range(
        self, first: Any, last: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Found]:
        """`find_sessions` of the keys ``first <= key <= last`` by key bytes; None leaves a side
        open."""
        bounds = self._bound(first), self._bound(last)
        return self._scan(*sessions_between(*bounds, earliest_end, latest_start))

    def backward_find_sessions_range(
        self, first: Any, last: Any, earliest_end: int, latest_start: int
    ) -> Iterator[Found]:
        """`find_sessions_range` in the opposite order."""
        bounds = self._bound(first), self._bound(last)
        return self._scan(*sessions_between(*bounds, earliest_end, latest_start), reverse=True)

    def _shown(self, stored_key: bytes) -> Windowed:
        key, start, end = split_session_key(stored_key)
        return Windowed(self._keys.decode(key), start, end)

    def _lives_now(self) -> Callable[[bytes], bool] | None:
        oldest = self._oldest()
        return None if oldest is None else lambda key: split_session_key(key)[2] > oldest


KINDS: dict[str, type[KeyValueStore | WindowStore | SessionStore]] = {
    "key_value": KeyValueStore,
    "window": WindowStore,
    "session": SessionStore,
}
"""What shows a store, by its kind."""
