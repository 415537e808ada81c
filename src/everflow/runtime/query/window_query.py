"""Queries of window stores (KIP-67, KIP-617)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, overload

from everflow.runtime.query.store_query import ReadOnlyStore, whole_number
from everflow.serdes.windowed import TIME_MAX, split_window_store_key, window_store_key
from everflow.state.key_ranges import windows_between, windows_of
from everflow.windows import Windowed

Window = tuple[Windowed, Any]
"""Key with its window, and value."""


class ReadOnlyWindowStore(ReadOnlyStore):
    """Queries of a window store, as Kafka Streams' ReadOnlyWindowStore has them. See
    `ReadOnlyStore`.

    Times are window *starts* in ms since the epoch, both ends inclusive. Keys of results are
    `Windowed`. Expired windows (retention) are not shown.
    """

    def fetch_window(self, key: Any, start: int) -> Any:
        """The value of ``key`` in the window that begins at ``start``, None if there is none."""
        data, start = self._key_bytes(key), whole_number(start, "start (ms)")
        return self._lookup(data, window_store_key(data, start)) if 0 <= start <= TIME_MAX else None

    @overload
    def fetch(self, key: Any, time_from: int, /) -> Any: ...

    @overload
    def fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[Window]: ...

    def fetch(self, key: Any, time_from: int, time_to: int | None = None) -> Any:
        """The windows of one key, in order of time. With one time it is `fetch_window`, as in Kafka
        Streams."""
        if time_to is None:
            return self.fetch_window(key, time_from)
        return self._windows_of(key, time_from, time_to, reverse=False)

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[Window]:
        """`fetch`, the latest window first."""
        return self._windows_of(key, time_from, time_to, reverse=True)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[Window]:
        """Windows of all keys in an interval of time, in the order of the store's bytes: those of
        the key, and behind them the window's start; where a key's bytes begin those of another one,
        that one's windows may lie between its own. On its way it passes the windows of other
        times."""
        return self._windows_between(None, None, time_from, time_to, reverse=False)

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[Window]:
        """`fetch_all` in the opposite order."""
        return self._windows_between(None, None, time_from, time_to, reverse=True)

    def fetch_range(self, first: Any, last: Any, time_from: int, time_to: int) -> Iterator[Window]:
        """`fetch_all` of the keys ``first <= key <= last`` by key bytes; None leaves a side
        open."""
        return self._windows_between(first, last, time_from, time_to, reverse=False)

    def backward_fetch_range(
        self, first: Any, last: Any, time_from: int, time_to: int
    ) -> Iterator[Window]:
        """`fetch_range` in the opposite order."""
        return self._windows_between(first, last, time_from, time_to, reverse=True)

    def _windows_of(
        self, key: Any, time_from: int, time_to: int, *, reverse: bool
    ) -> Iterator[Window]:
        data = self._key_bytes(key)
        asked = windows_of(data, *_interval(time_from, time_to))
        return self._scan_of(data, asked, reverse=reverse)

    def _windows_between(
        self, first: Any, last: Any, time_from: int, time_to: int, *, reverse: bool
    ) -> Iterator[Window]:
        low = None if first is None else self._key_bytes(first)
        high = None if last is None else self._key_bytes(last)
        asked = windows_between(low, high, *_interval(time_from, time_to))
        return self._scan(*asked, reverse=reverse)

    def _decode_key(self, key: bytes) -> Any:
        inner, start = split_window_store_key(key)
        return Windowed(
            self.spec.key_serde.decode(inner), start, start + (self.spec.window_size_ms or 0)
        )


def _interval(time_from: Any, time_to: Any) -> tuple[int, int]:
    return whole_number(time_from, "time_from (ms)"), whole_number(time_to, "time_to (ms)")
