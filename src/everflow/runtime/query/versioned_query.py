"""Queries of versioned stores (KIP-889, KIP-960, KIP-968)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from everflow.runtime.query.store_query import ReadOnlyKeyValueStore, whole_number
from everflow.serdes.windowed import TIME_MAX
from everflow.state.versions import VersionedRecord, VersionsView, record_as_of, records_of

_Found = TypeVar("_Found")


class ReadOnlyVersionedStore(ReadOnlyKeyValueStore):
    """Queries of a versioned store: what Kafka Streams answers to VersionedKeyQuery and
    MultiVersionedKeyQuery. What `ReadOnlyKeyValueStore` has shows the latest versions.

    Times are ms since the epoch. A version that ended before the history retention is not shown.
    """

    def get_as_of(self, key: Any, as_of: int) -> VersionedRecord | None:
        """What ``key`` was at a time; None where it was nothing, or where that is older than the
        history retention and not the latest."""
        data, time = self._key_bytes(key), whole_number(as_of, "as_of (ms)")
        history_ms = self.spec.retention_ms or 0
        return self._first(
            data, lambda view: record_as_of(view, data, time, history_ms, self._decode)
        )

    def versions(
        self, key: Any, time_from: int = 0, time_to: int = TIME_MAX - 1
    ) -> list[VersionedRecord]:
        """What ``key`` was at some time from ``time_from`` to ``time_to``, both included, in order
        of time; deletions are left out."""
        data = self._key_bytes(key)
        first, last = (
            whole_number(time, f"{what} (ms)")
            for time, what in ((time_from, "time_from"), (time_to, "time_to"))
        )
        return (
            self._first(
                data,
                lambda view: records_of(view.versions_many([(data, first, last)])[0], self._decode),
            )
            or []
        )

    def _first(self, key: bytes, ask: Callable[[VersionsView], _Found | None]) -> _Found | None:
        """The answer of the first partition that has one."""
        for partition in self._places_of(key):
            found = self._reader.read(partition, lambda snapshot: ask(cast(VersionsView, snapshot)))
            if found:
                return found
        return None
