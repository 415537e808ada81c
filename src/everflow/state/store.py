"""Store specifications and the read side that operators see (pure); `InMemoryStore` is the reference implementation."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from everflow.records import StoreChanges
from everflow.serdes import Serde
from everflow.serdes.windowed import split_window_store_key


@dataclass(frozen=True)
class StoreSpec:
    """A store as the topology declares it.

    ``kind``: ``key_value`` or ``window``. Keys of window stores are ``key bytes + 8-byte window start (ms, big endian) +
    4-byte sequence number`` (Java's WindowKeySchema). ``retention_ms`` (window stores) is how long windows are kept behind
    stream time. ``logging`` False = no changelog, best effort.
    """

    name: str
    kind: str
    key_serde: Serde
    value_serde: Serde
    retention_ms: int | None = None
    window_size_ms: int | None = None
    logging: bool = True
    topic_config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    where: str | None = None

    @property
    def changelog(self) -> str:
        """Changelog topic name without the application id prefix."""
        return f"{self.name}-changelog"


class StoreView(Protocol):
    """What an operator reads during one micro-batch: committed content plus the batch's own earlier changes."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Stored values (8-byte big-endian timestamp + value bytes), in the order of ``keys``; None where absent."""

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < end`` in key order."""


class InMemoryStore:
    """The reference of a store's behaviour: a `StoreView` that committed changes are applied to. Single-threaded."""

    def __init__(self, spec: StoreSpec | None = None) -> None:
        self._retention_ms = spec.retention_ms if spec is not None and spec.kind == "window" else None
        self._entries: dict[bytes, bytes] = {}
        self._ordered: list[bytes] | None = []

    def __len__(self) -> int:
        return len(self._entries)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See `StoreView`."""
        return [self._entries.get(key) for key in keys]

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See `StoreView`; the entries of the moment of the call."""
        if self._ordered is None:
            self._ordered = sorted(self._entries)
        low = 0 if start is None else bisect_left(self._ordered, start)
        high = len(self._ordered) if end is None else bisect_left(self._ordered, end)
        return iter([(key, self._entries[key]) for key in self._ordered[low:high]])

    def apply(self, changes: StoreChanges, stream_time: int = -1) -> None:
        """Puts and deletes in order; a window store then drops windows with ``start <= stream_time - retention``."""
        for key, value, timestamp in zip(changes.keys, changes.values, changes.timestamps.tolist(), strict=True):
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = timestamp.to_bytes(8, "big", signed=True) + value
        if self._retention_ms is not None:
            oldest = stream_time - self._retention_ms
            for key in [key for key in self._entries if split_window_store_key(key)[1] <= oldest]:
                del self._entries[key]
        self._ordered = None
