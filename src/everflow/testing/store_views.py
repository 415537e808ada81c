"""Stores of the test driver as a test sees them: decoded, and of the moment of the call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from typing import Any, NamedTuple

from everflow.foreign_names import Telling
from everflow.protocol.messages import TaskContext
from everflow.serdes.windowed import split_session_key, split_window_store_key, window_store_key
from everflow.state.changelog import SUFFIX_BYTES, unpack_value
from everflow.state.store import (
    OPEN,
    InMemoryStore,
    InMemoryVersions,
    StoreSpec,
    VersionedRecord,
    memory_store,
    record_as_of,
    records_of,
)
from everflow.windows import Windowed

Home = Callable[[bytes], int | None]
"""The partition of a key's bytes, where queries look for it first; None: not known."""


class DriverStores(Mapping[str, InMemoryStore]):
    """Stores by name, and the `StoreAccess` of the driver's step. A store of several partitions is
    shown as one, for reading only.

    ``specs``: each store, in how many partitions it is, and where a key is at home.
    """

    def __init__(self, specs: Mapping[str, tuple[StoreSpec, int, Home]]) -> None:
        self._specs = specs
        self._parts: dict[str, list[InMemoryStore]] = {}
        self.empty()

    def empty(self) -> None:
        for name, (spec, count, _) in self._specs.items():
            self._parts[name] = [memory_store(spec) for _ in range(count)]

    def __getitem__(self, name: str) -> InMemoryStore:
        spec, _, home = self._specs[name]
        parts = self._parts[name]
        if len(parts) == 1:
            return parts[0]
        return MergedStore(spec, parts, home)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def replace(self, name: str, store: InMemoryStore) -> None:
        (_,) = self._parts[name]
        self._parts[name] = [store]

    def part(self, name: str, partition: int) -> InMemoryStore:
        """The store of one task; that of a global table has one for all."""
        parts = self._parts[name]
        return parts[partition if len(parts) > 1 else 0]

    @contextmanager
    def view(self, task: TaskContext, spec: StoreSpec) -> Iterator[InMemoryStore]:
        yield self.part(spec.name, task.task.partition)

    def homes(self, keys: Sequence[bytes], partitions: int) -> Sequence[int]:
        """A global table has one partition here."""
        return [0] * len(keys)

    def distrust(self, task: TaskContext, spec: StoreSpec, reason: str) -> None:
        """There is no changelog to rebuild it from."""


class MergedStore(InMemoryStore):
    """The partitions of a store, to be read; a `range` has a key as often as it is there."""

    def __init__(self, spec: StoreSpec, parts: Sequence[InMemoryStore], home: Home) -> None:
        self._parts, self._home = parts, home
        self._suffix = SUFFIX_BYTES.get(spec.kind, 0)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def newest_ms(self) -> int:
        return max(part.newest_ms for part in self._parts)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.part_of(key).get_many([key])[0] for key in keys]

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        parts = (part.range(start, end, reverse=reverse) for part in self._parts)
        return merge(*parts, key=lambda entry: entry[0], reverse=reverse)

    def part_of(self, key: bytes) -> InMemoryStore:
        """The partition that has a key: its own, else the first of the others, as in queries."""
        home = self._home(key[: len(key) - self._suffix])
        parts = self._parts if home is None else [self._parts[home], *self._parts]
        having = (part for part in parts if part.get_many([key])[0] is not None)
        return next(having, parts[0])


class ValueAndTimestamp(NamedTuple):
    """A value and its time (ms). The time of an aggregate is the highest time of its records."""

    value: Any
    timestamp: int


@dataclass(frozen=True)
class _View(Telling):
    spec: StoreSpec
    store: Callable[[], InMemoryStore]
    decode: Callable[[bytes], Any]

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Keys and values, in the order of the stored bytes: the key, then the start of the window
        or the end of the session."""
        return ((key, found.value) for key, found in self.all_with_timestamps())

    def all_with_timestamps(self) -> Iterator[tuple[Any, ValueAndTimestamp]]:
        """As `all`, but each value is a `ValueAndTimestamp`."""
        found = self.store().range(None, None)
        return ((self._shown(key), self._value(stored)) for key, stored in found)

    def _find(
        self,
        key: Any,
        stored_key: Callable[[bytes], bytes],
    ) -> ValueAndTimestamp | None:
        encoded = self.spec.key_serde.encode(key)
        found = None if encoded is None else self.store().get_many([stored_key(encoded)])[0]
        return None if found is None else self._value(found)

    def _value(self, stored: bytes) -> ValueAndTimestamp:
        timestamp, value = unpack_value(stored)
        return ValueAndTimestamp(self.decode(value), timestamp)

    def _shown(self, stored_key: bytes) -> Any:
        return self.spec.key_serde.decode(stored_key)


class KeyValueView(_View):
    """Decoded read access to a key-value store."""

    def get(self, key: Any) -> Any:
        """The value of ``key``, None if absent."""
        found = self.get_with_timestamp(key)
        return None if found is None else found.value

    def get_with_timestamp(self, key: Any) -> ValueAndTimestamp | None:
        """Value and time of ``key``, None if absent."""
        return self._find(key, bytes)


class VersionedView(KeyValueView):
    """Decoded read access to a versioned store; `get` and `all` show the latest versions."""

    def get_as_of(self, key: Any, as_of: int) -> VersionedRecord | None:
        """The version of ``key`` that was valid at ``as_of`` (ms). None in the same cases as in
        `ReadOnlyVersionedStore.get_as_of`."""
        encoded = self.spec.key_serde.encode(key)
        if encoded is None:
            return None
        history_ms = self.spec.retention_ms or 0
        return record_as_of(self._versions(encoded), encoded, as_of, history_ms, self.decode)

    def versions(
        self,
        key: Any,
        first: int = 0,
        last: int = OPEN - 1,
    ) -> list[VersionedRecord]:
        """The versions of ``key`` valid at any time from ``first`` to ``last`` (ms, both included),
        in order of time, without deletions."""
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

    def _shown(self, stored_key: bytes) -> Windowed:
        key, start = split_window_store_key(stored_key)
        size_ms = self.spec.window_size_ms or 0
        return Windowed(self.spec.key_serde.decode(key), start, start + size_ms)


class SessionView(_View):
    """Decoded read access to a session store."""

    def fetch(self, key: Any) -> Iterator[tuple[Windowed, Any]]:
        """The sessions of ``key`` and their values, in order of their ends."""
        return (entry for entry in self.all() if entry[0].key == key)

    def find_sessions(
        self, key: Any, earliest_end: int, latest_start: int
    ) -> Iterator[tuple[Windowed, Any]]:
        """As `fetch`, for sessions that end at ``earliest_end`` or later and start at
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

    def _shown(self, stored_key: bytes) -> Windowed:
        key, start, end = split_session_key(stored_key)
        return Windowed(self.spec.key_serde.decode(key), start, end)
