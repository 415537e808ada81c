"""Stores of the test driver as a test sees them: decoded, and of the moment of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from everflow.foreign_names import Telling
from everflow.serdes.windowed import split_session_key, split_window_store_key, window_store_key
from everflow.state.changelog import unpack_value
from everflow.state.store import (
    OPEN,
    InMemoryStore,
    InMemoryVersions,
    StoreSpec,
    VersionedRecord,
    record_as_of,
    records_of,
)
from everflow.testing.driver_stores import MergedStore
from everflow.windows import Windowed


class ValueAndTimestamp(NamedTuple):
    """A value and the time (ms) of the last record that changed it."""

    value: Any
    timestamp: int


@dataclass(frozen=True)
class _View(Telling):
    spec: StoreSpec
    store: Callable[[], InMemoryStore]
    decode: Callable[[bytes], Any]

    def _find(self, key: Any, stored_key: Callable[[bytes], bytes]) -> ValueAndTimestamp | None:
        encoded = self.spec.key_serde.encode(key)
        found = None if encoded is None else self.store().get_many([stored_key(encoded)])[0]
        return None if found is None else self._value(found)

    def _entries(self) -> Iterator[tuple[bytes, ValueAndTimestamp]]:
        return ((key, self._value(stored)) for key, stored in self.store().range(None, None))

    def _value(self, stored: bytes) -> ValueAndTimestamp:
        timestamp, value = unpack_value(stored)
        return ValueAndTimestamp(self.decode(value), timestamp)


class KeyValueView(_View):
    """Decoded read access to a key-value store."""

    def get(self, key: Any) -> Any:
        """The value of ``key``, None if absent."""
        found = self.get_with_timestamp(key)
        return None if found is None else found.value

    def get_with_timestamp(self, key: Any) -> ValueAndTimestamp | None:
        """Value and time of ``key``, None if absent."""
        return self._find(key, bytes)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values in key-byte order."""
        return ((key, found.value) for key, found in self.all_with_timestamps())

    def all_with_timestamps(self) -> Iterator[tuple[Any, ValueAndTimestamp]]:
        """Keys, and values with their times, in key-byte order."""
        return ((self.spec.key_serde.decode(key), found) for key, found in self._entries())


class VersionedView(KeyValueView):
    """Decoded read access to a versioned store; `get` and `all` show the latest versions."""

    def get_as_of(self, key: Any, as_of: int) -> VersionedRecord | None:
        """What ``key`` was at a time (ms); None where it was nothing, or where that is older than
        the history retention and not the latest."""
        encoded = self.spec.key_serde.encode(key)
        if encoded is None:
            return None
        history_ms = self.spec.retention_ms or 0
        return record_as_of(self._versions(encoded), encoded, as_of, history_ms, self.decode)

    def versions(self, key: Any, first: int = 0, last: int = OPEN - 1) -> list[VersionedRecord]:
        """What ``key`` was from ``first`` to ``last`` (ms, included), in order of time."""
        encoded = self.spec.key_serde.encode(key)
        if encoded is None:
            return []
        return records_of(
            self._versions(encoded).versions_many([(encoded, first, last)])[0], self.decode
        )

    def _versions(self, key: bytes) -> InMemoryVersions:
        store = self.store()
        if isinstance(store, MergedStore):
            store = store.part_of(key)
        assert isinstance(store, InMemoryVersions)
        return store


class WindowView(_View):
    """Decoded read access to a window store."""

    def fetch(self, key: Any, start_ms: int) -> Any:
        """The value of ``key`` in the window that starts at ``start_ms``, None if absent."""
        found = self.fetch_with_timestamp(key, start_ms)
        return None if found is None else found.value

    def fetch_with_timestamp(self, key: Any, start_ms: int) -> ValueAndTimestamp | None:
        """Value and time of ``key`` in the window that starts at ``start_ms``, None if absent."""
        return self._find(key, lambda encoded: window_store_key(encoded, start_ms))

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        """Windows and values in key-byte order, the windows of a key in order of time."""
        return ((window, found.value) for window, found in self.all_with_timestamps())

    def all_with_timestamps(self) -> Iterator[tuple[Windowed, ValueAndTimestamp]]:
        """Windows, and values with their times, in the order of `all`."""
        for stored_key, found in self._entries():
            key, start = split_window_store_key(stored_key)
            yield (
                Windowed(
                    self.spec.key_serde.decode(key), start, start + (self.spec.window_size_ms or 0)
                ),
                found,
            )


class SessionView(_View):
    """Decoded read access to a session store. The time of a session's value is the session's
    end."""

    def all(self) -> Iterator[tuple[Windowed, Any]]:
        """Sessions and values in key-byte order, the sessions of a key in order of time."""
        for stored_key, found in self._entries():
            key, start, end = split_session_key(stored_key)
            yield Windowed(self.spec.key_serde.decode(key), start, end), found.value

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        """The sessions of ``key`` and their values, in order of time."""
        return (entry for entry in self.all() if entry[0].key == key)

    def find_sessions(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed, Any]]:
        """`fetch` of the sessions that end at ``earliest_end`` or later and start at
        ``latest_start`` or earlier."""
        return (
            entry
            for entry in self.fetch(key)
            if entry[0].end >= earliest_end and entry[0].start <= latest_start
        )

    def fetch_session(self, key: Any, start_ms: int, end_ms: int) -> Any:
        """The value of the session of ``key`` with exactly these bounds, None if absent."""
        return next(
            (value for session, value in self.fetch(key) if session[1:] == (start_ms, end_ms)), None
        )
