"""Entries that wait in a store until a time: the index that finds those that are due, in order.

An entry stands under a prefix, its time in 8 bytes, and what tells it apart from others of that
time, so the entries that are due are the beginning of a range.

The classes here serve one task during one micro-batch. They read the store and write nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from everflow.records import StoreChanges
from everflow.state.key_ranges import after_prefix
from everflow.state.store import Entry, StoreView

_PLAIN, _SIGNED = struct.Struct(">q"), struct.Struct(">Q")
_SIGN = 1 << 63
TIME_BYTES = 8


@dataclass(frozen=True)
class DueIndex:
    """Writes the keys of waiting entries. ``prefix``: of all of them; a store may hold several
    indexes. ``signed``: negative times sort before 0. Without it an entry with one is never due."""

    prefix: bytes = b""
    signed: bool = False

    def key(self, time: int, rest: bytes = b"") -> bytes:
        return self.prefix + self.time_bytes(time) + rest

    def time_bytes(self, time: int) -> bytes:
        time = min(max(time, -_SIGN), _SIGN - 1)
        return _SIGNED.pack(time + _SIGN) if self.signed else _PLAIN.pack(time)

    def time_of(self, key: bytes) -> int:
        at = len(self.prefix)
        if self.signed:
            return int(_SIGNED.unpack_from(key, at)[0]) - _SIGN
        return int(_PLAIN.unpack_from(key, at)[0])

    def rest_of(self, key: bytes) -> bytes:
        return key[len(self.prefix) + TIME_BYTES :]

    def stored(
        self, view: StoreView, last: int | None, after: int | None = None
    ) -> Iterator[Entry]:
        """Stored keys and entries after time ``after`` up to ``last`` (ms; None: no bound)."""
        start = self.prefix or None if after is None else self.key(after + 1)
        if last is None:
            return view.range(start, after_prefix(self.prefix))
        if last < 0 and not self.signed:
            return iter(())
        return view.range(start, self.key(last + 1))


class Due(NamedTuple):
    """A waiting entry: its time (ms), and what tells it apart from others of that time."""

    time: int
    rest: bytes


@dataclass(kw_only=True)
class DueQueue:
    """Waiting entries by time and ``rest``, from the store (`load`, `read_on`) and the batch
    (`put`). Its user checks whether an entry has gone or has another time by now. ``by_tail``:
    those of one time are ordered by the last 8 bytes of their ``rest`` first."""

    index: DueIndex
    view: StoreView
    by_tail: bool = False
    _heap: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    _read: int | None = None
    """The store was read up to this time."""
    _further: Iterator[Entry] | None = None
    _next: Entry | None = None

    def __iter__(self) -> Iterator[Due]:
        return (Due(time, rest) for time, _, rest in self._heap)

    def put(self, time: int, rest: bytes) -> None:
        heappush(self._heap, (time, rest[-TIME_BYTES:] if self.by_tail else b"", rest))

    def load(self, last: int) -> list[Entry]:
        """Adds the stored entries up to time ``last`` (ms) and returns them, with stored keys."""
        found = list(self.index.stored(self.view, last, self._read))
        self._read = last
        for key, _ in found:
            self.put(self.index.time_of(key), self.index.rest_of(key))
        return found

    def read_on(self) -> Entry | None:
        """Adds and returns the next stored entry, if it comes before all that are in the queue;
        None otherwise. `load` comes before, never after."""
        if self._further is None:
            self._further = self.index.stored(self.view, None, self._read)
            self._next = next(self._further, None)
        found = self._next
        if found is None:
            return None
        time, rest = self.index.time_of(found[0]), self.index.rest_of(found[0])
        if self._heap:
            first, _, first_rest = self._heap[0]
            if time > first or (time == first and not self.by_tail and rest > first_rest):
                return None
        self._next = next(self._further, None)
        self.put(time, rest)
        return found

    def pop(self, last: int | None = None) -> Due | None:
        """Takes out the first entry, if its time is not after ``last`` (ms; None: no bound)."""
        if not self._heap or (last is not None and self._heap[0][0] > last):
            return None
        time, _, rest = heappop(self._heap)
        return Due(time, rest)


@dataclass
class Changes:
    """Collects the changes of one store in one task, in order."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes | None] = field(default_factory=list)
    times: list[int] = field(default_factory=list)

    def add(self, key: bytes, value: bytes | None, time: int) -> None:
        self.keys.append(key)
        self.values.append(value)
        self.times.append(time)

    def of(self, store: str) -> list[StoreChanges]:
        if not self.keys:
            return []
        return [StoreChanges(store, self.keys, self.values, np.array(self.times, np.int64))]
