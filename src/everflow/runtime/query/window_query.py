"""Queries of window stores (KIP-67, KIP-617)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from everflow.runtime.query.store_query import (
    TIME_MAX,
    EntryPlace,
    ReadOnlyStore,
    StoreScan,
    after_keys,
    whole_number,
)
from everflow.serdes.windowed import STORE_SUFFIX_BYTES, split_window_store_key, window_store_key
from everflow.windows import Windowed

_SEQUENCE_MAX = b"\xff" * 4

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

    def fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[Window]:
        """The windows of one key, in order of time."""
        return self._windows_of(key, time_from, time_to, reverse=False)

    def backward_fetch(self, key: Any, time_from: int, time_to: int) -> Iterator[Window]:
        """`fetch`, the latest window first."""
        return self._windows_of(key, time_from, time_to, reverse=True)

    def fetch_all(self, time_from: int, time_to: int) -> Iterator[Window]:
        """Windows of all keys in an interval of time, in order of key bytes, then of time. Reads
        the whole store."""
        return self._scan(None, None, _within(None, None, *_interval(time_from, time_to)))

    def backward_fetch_all(self, time_from: int, time_to: int) -> Iterator[Window]:
        """`fetch_all` in the opposite order."""
        return self._scan(
            None, None, _within(None, None, *_interval(time_from, time_to)), reverse=True
        )

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
        time_from, time_to = _interval(time_from, time_to)
        keep = _within(data, data, time_from, time_to)

        def windows() -> Iterator[tuple[EntryPlace, bytes]]:
            if not 0 <= time_to >= time_from:
                return
            start = window_store_key(data, max(0, min(time_from, TIME_MAX)))
            end = window_store_key(data, min(time_to, TIME_MAX))[:-4] + _SEQUENCE_MAX + b"\x00"
            yield from self._entries_of(data, start, end, keep, reverse=reverse)

        return StoreScan(windows(), self._shown)

    def _windows_between(
        self, first: Any, last: Any, time_from: int, time_to: int, *, reverse: bool
    ) -> Iterator[Window]:
        time_from, time_to = _interval(time_from, time_to)
        low = None if first is None else self._key_bytes(first)
        high = None if last is None else self._key_bytes(last)
        end = None if high is None else _after_windows(high, time_to)
        return self._scan(low, end, _within(low, high, time_from, time_to), reverse=reverse)

    def _decode_key(self, key: bytes) -> Any:
        inner, start = split_window_store_key(key)
        return Windowed(
            self.spec.key_serde.decode(inner), start, start + (self.spec.window_size_ms or 0)
        )


def _interval(time_from: Any, time_to: Any) -> tuple[int, int]:
    return whole_number(time_from, "time_from (ms)"), whole_number(time_to, "time_to (ms)")


def _after_windows(last: bytes, time_to: int) -> bytes:
    """Stored keys from here on have a key above ``last`` or a window after ``time_to``."""
    return after_keys(
        last, window_store_key(b"", max(0, min(time_to, TIME_MAX)))[:-4] + _SEQUENCE_MAX
    )


def _within(
    low: bytes | None, high: bytes | None, time_from: int, time_to: int
) -> Callable[[bytes], bool]:
    """Whether a stored key has ``low <= key <= high`` and its window start lies in the interval."""

    def keep(stored_key: bytes) -> bool:
        key, start = (
            stored_key[:-STORE_SUFFIX_BYTES],
            int.from_bytes(stored_key[-STORE_SUFFIX_BYTES:-4], "big", signed=True),
        )
        return (
            time_from <= start <= time_to
            and (low is None or key >= low)
            and (high is None or key <= high)
        )

    return keep
