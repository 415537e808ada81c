"""Store specifications, and the view that operators read; `InMemoryStore` is the model. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

import numpy as np

from everflow.records import StoreChanges
from everflow.serdes import Serde
from everflow.state.changelog import SUFFIX_BYTES, expiry_times


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """A store as the topology declares it.

    ``kind``: ``key_value``, ``window`` or ``session``. Keys of window stores are ``key bytes +
    8-byte window start (ms, big endian) + 4-byte sequence number`` (Java's WindowKeySchema), of
    session stores ``key bytes + 8-byte end + 8-byte start`` (SessionKeySchema). ``retention_ms``
    (both) is how long windows are kept behind stream time. ``logging`` False = no changelog, best
    effort. ``folds``: what makes each stored field of a built-in aggregate (``count``, ``sum``,
    ...).
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
    folds: tuple[str, ...] = ()

    @property
    def expires(self) -> bool:
        """Whether its keys end with times and stream time leaves entries behind: windows and
        sessions."""
        return self.kind in SUFFIX_BYTES

    @property
    def changelog(self) -> str:
        """Changelog topic name without the application id prefix."""
        return f"{self.name}-changelog"


class StoreView(Protocol):
    """What an operator reads during one micro-batch: committed content plus the batch's own earlier
    changes."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Stored values (8-byte big-endian timestamp + value bytes), in the order of ``keys``; None
        where absent."""

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """Entries with ``start <= key < end`` in key order."""

    def range_many(self, bounds: Sequence[tuple[bytes, bytes]]) -> list[list[tuple[bytes, bytes]]]:
        """The entries of `range` for each of many ranges (start, end)."""


class InMemoryStore:
    """The reference of a store's behaviour: a `StoreView` that committed changes are applied to.
    Single-threaded."""

    def __init__(self, spec: StoreSpec | None = None) -> None:
        self._kind = "key_value" if spec is None else spec.kind
        self._retention_ms = spec.retention_ms if spec is not None and spec.expires else None
        self._entries: dict[bytes, bytes] = {}
        self._ordered: list[bytes] | None = []

    def __len__(self) -> int:
        return len(self._entries)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entries.get(key) for key in keys]

    def range(self, start: bytes | None, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        """See `StoreView`; the entries of the moment of the call."""
        if self._ordered is None:
            self._ordered = sorted(self._entries)
        low = 0 if start is None else bisect_left(self._ordered, start)
        high = len(self._ordered) if end is None else bisect_left(self._ordered, end)
        return iter([(key, self._entries[key]) for key in self._ordered[low:high]])

    def range_many(self, bounds: Sequence[tuple[bytes, bytes]]) -> list[list[tuple[bytes, bytes]]]:
        return [list(self.range(start, end)) for start, end in bounds]

    def apply(self, changes: StoreChanges, stream_time: int = -1) -> None:
        """Puts and deletes in order; then windows with ``start <= stream_time - retention`` go,
        sessions by their end."""
        for key, value, timestamp in zip(
            changes.keys, changes.values, changes.timestamps.tolist(), strict=True
        ):
            if value is None:
                self._entries.pop(key, None)
            else:
                self._entries[key] = timestamp.to_bytes(8, "big", signed=True) + value
        if self._retention_ms is not None:
            keys = list(self._entries)
            for at in np.flatnonzero(
                expiry_times(keys, self._kind) <= stream_time - self._retention_ms
            ).tolist():
                del self._entries[keys[at]]
        self._ordered = None
