"""Changes on top of a store, which is read as far as it is asked for. Pure.

What a range gives is of the moment of the call: nobody has to read it whole for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from typing import Generic, TypeVar

from everflow.records import StoreChanges
from everflow.state.changelog import pack_value
from everflow.state.store import Bounds, Entry, OrderedEntries, StoreView

T = TypeVar("T")


class Overlay(Generic[T]):
    """The content of ``below`` and changes since; ``read`` converts a stored entry to a `T`."""

    def __init__(self, below: StoreView, read: Callable[[bytes], T]) -> None:
        self._below, self._read = below, read
        self._live: OrderedEntries[T] = OrderedEntries()
        self._since: dict[bytes, int] = {}
        """The number of each changed key's first change."""
        self._passed: tuple[dict[bytes | None, bytes], dict[bytes | None, bytes]] = {}, {}
        """To where all entries below have changed, by where a range begins, and for ranges
        backwards by where they end: whoever takes the first entry out, and asks for the first one
        again, would meet all that it has taken out."""
        self._uncounted: list[bytes] = []
        self._covered = 0
        """The number of changed keys that are below, without the `_uncounted` ones."""

    def __contains__(self, key: bytes) -> bool:
        return key in self._since

    def get(self, key: bytes) -> T | None:
        return self._live.get(key)

    def put(self, key: bytes, value: T | None) -> None:
        if key not in self._since:
            self._since[key] = len(self._since)
            self._uncounted.append(key)
        if value is None:
            self._live.remove(key)
        else:
            self._live.put(key, value)

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, T]]:
        """Entries ``start <= key < end`` in the order of the keys, as they are now."""
        passed = self._passed[reverse].get(end if reverse else start)
        low, high = start, end
        if passed is not None:
            low, high = (start, passed) if reverse else (passed, end)
        stored = self._below.range(low, high, reverse=reverse)
        if not self._since:
            read = self._read
            return ((key, read(entry)) for key, entry in stored)
        kept = self._unchanged(stored, end if reverse else start, len(self._since), reverse)
        live = self._live.range(start, end, reverse=reverse)
        return merge(live, kept, key=itemgetter(0), reverse=reverse)

    def entries(self) -> int:
        """The number of entries, as far as ``below`` knows it; reads only those that changed."""
        found = self._below.get_many(self._uncounted)
        self._covered += sum(entry is not None for entry in found)
        self._uncounted = []
        return max(0, self._below.entries() - self._covered) + len(self._live)

    def _unchanged(
        self,
        stored: Iterator[tuple[bytes, bytes]],
        bound: bytes | None,
        moment: int,
        reverse: bool,
    ) -> Iterator[tuple[bytes, T]]:
        last: bytes | None = None
        first = True
        since, read = self._since, self._read
        for key, entry in stored:
            at = since.get(key)
            if at is not None and at < moment:
                last = key
                continue
            if first:
                self._note_passed(bound, last, reverse)
                first = False
            yield key, read(entry)
        if first:
            self._note_passed(bound, last, reverse)

    def _note_passed(self, bound: bytes | None, last: bytes | None, reverse: bool) -> None:
        if last is not None:
            self._passed[reverse][bound] = last if reverse else last + b"\x00"


class OverlayView(Overlay[bytes], StoreView):
    """A `StoreView` with the running batch's changes, for operators that share a store (D5)."""

    def __init__(self, below: StoreView) -> None:
        super().__init__(below, bytes)
        self.below = below

    def remember(self, changes: StoreChanges) -> None:
        for key, value, time in zip(
            changes.keys, changes.values, changes.timestamps.tolist(), strict=True
        ):
            self.put(key, None if value is None else pack_value(time, value))

    @property
    def newest_ms(self) -> int:
        """See `StoreView`; without the batch's own changes."""
        return self.below.newest_ms

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        missing = [key for key in keys if key not in self]
        found = dict(zip(missing, self.below.get_many(missing), strict=True)) if missing else {}
        return [self.get(key) if key in self else found[key] for key in keys]

    def range_many(self, bounds: Sequence[Bounds]) -> list[list[Entry]]:
        return super().range_many(bounds) if self._since else self.below.range_many(bounds)

    def last_many(self, bounds: Sequence[Bounds]) -> list[Entry | None]:
        return super().last_many(bounds) if self._since else self.below.last_many(bounds)
