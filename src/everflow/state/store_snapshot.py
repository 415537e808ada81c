"""`StoreSnapshot`: what a store holds at one moment, read inside one LMDB transaction.

`ReadingAhead` is for a store that does not fit in memory: a page fault takes some 0.1 ms, and disks
serve many at once. Where some of many keys had to wait, threads read all of them (note 050).
"""

from __future__ import annotations

import resource
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from heapq import merge
from itertools import repeat
from operator import itemgetter
from typing import Any

import lmdb
import numpy as np

from everflow.records import Int64
from everflow.state import changelog, stored_keys
from everflow.state.store import VERSIONED, Bounds, Entry, StoreView
from everflow.state.store_meta import StoreMeta

KEYS_MIN = 500
"""Fewer keys are not worth starting threads."""
PROBES = 32
WAITS_MIN = 4
"""Page faults among the probes from which on threads read."""
THREADS = 16
_WHOSE = getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF)


@dataclass(frozen=True)
class ReadingAhead:
    """Prefetches pages of one environment, by `StoreEnvironment.read_beside`. Any thread."""

    transactions: Callable[[], AbstractContextManager[Any]]

    def fetch(self, keys: Sequence[bytes], database: Any) -> None:
        """Get the pages of many stored keys, read or written next, into memory; a hint. Blocks."""
        if len(keys) < KEYS_MIN:
            return
        before = _waits()
        try:
            self._read(keys[:: -(-len(keys) // PROBES)], database)
            if _waits() - before >= WAITS_MIN:
                self._read_at_once(keys, database)
        except (lmdb.MapResizedError, lmdb.ReadersFullError):
            return  # another process has just made the store larger, or too many read

    def _read(self, keys: Sequence[bytes], database: Any) -> None:
        """Read in a transaction of its own, which LMDB needs for each thread."""
        with self.transactions() as txn:
            for key in keys:
                txn.get(key, None, database)

    def _read_at_once(self, keys: Sequence[bytes], database: Any) -> None:
        share = -(-len(keys) // THREADS)
        parts = [keys[first : first + share] for first in range(0, len(keys), share)]
        with ThreadPoolExecutor(THREADS, thread_name_prefix="everflow-read-ahead") as pool:
            for done in [pool.submit(self._read, part, database) for part in parts]:
                done.result()


def _waits() -> int:
    """The number of page faults of this thread so far that waited for a file."""
    return resource.getrusage(_WHOSE).ru_majflt


KEY_VALUE = "key_value"
SEGMENT_MS_MIN = 60_000
_IN_ONE = (KEY_VALUE, VERSIONED)


class StoreSnapshot(StoreView):
    """A `StoreView` of one moment; valid inside the ``with`` block of `LmdbStore.snapshot`, on one
    thread."""

    def __init__(
        self,
        txn: lmdb.Transaction[bytes],
        meta: StoreMeta,
        databases: Sequence[Any],
        ahead: ReadingAhead,
    ) -> None:
        self._txn, self._ahead = txn, ahead
        versioned = meta.kind == VERSIONED
        self._databases = databases[-1:] if versioned else databases
        self._ring = databases[:-1]
        """Of a versioned store: what its earlier versions are in."""
        self.meta = meta
        self._one = meta.kind in _IN_ONE
        """True if all entries that it shows are in its first database."""

    @property
    def newest_ms(self) -> int:
        return self.meta.stream_time

    @property
    def position(self) -> int:
        return self.meta.position or 0

    def get(self, key: bytes) -> bytes | None:
        """The stored value of one key, None: absent: for a few keys, as `get_many` works in
        columns."""
        database = self._databases[0]
        if not self._one:
            time = changelog.expiry_time(key, self.meta.kind)
            segment = time // (self.meta.segment_ms or SEGMENT_MS_MIN)
            for slot, number in self.meta.segments.items():
                if number == segment and time > self.meta.expired_ms:
                    database = self._databases[slot]
                    break
            else:
                return None
        found: bytes | None = self._txn.get(stored_keys.encode(key), None, database)
        if len(key) <= stored_keys.SHORT_BYTES:
            return found
        return stored_keys.read_bucket(found).get(key[stored_keys.SHORT_BYTES :])

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        if self._one:
            return self._get(keys, self._databases[0])
        times = changelog.expiry_times(keys, self.meta.kind)
        expired = times <= self.meta.expired_ms
        found = self._get_segments(keys, segments_of(times, self.meta))
        for index in np.flatnonzero(expired).tolist():
            found[index] = None
        return found

    def _get_segments(self, keys: Sequence[bytes], segments: Int64) -> list[bytes | None]:
        databases = {segment: self._databases[slot] for slot, segment in self.meta.segments.items()}
        first = int(segments[0])
        if (segments == first).all():
            return self._get(keys, databases[first]) if first in databases else [None] * len(keys)
        found: list[bytes | None] = [None] * len(keys)
        for segment, database in databases.items():
            at = np.flatnonzero(segments == segment).tolist()
            for index, value in zip(
                at, self._get([keys[index] for index in at], database), strict=True
            ):
                found[index] = value
        return found

    def _get(self, keys: Sequence[bytes], database: Any) -> list[bytes | None]:
        # One lookup a key beats sorting for `getmulti`: 18 against 38 ms for 50,000 keys.
        get: Callable[..., bytes | None] = self._txn.get
        long = stored_keys.has_long(keys)
        stored = list(map(stored_keys.encode, keys)) if long else stored_keys.encode_short(keys)
        self._ahead.fetch(stored, database)
        found = list(map(get, stored, repeat(None), repeat(database)))
        if not long:
            return found
        return [
            entry
            if len(key) <= stored_keys.SHORT_BYTES
            else stored_keys.read_bucket(entry).get(key[stored_keys.SHORT_BYTES :])
            for key, entry in zip(keys, found, strict=True)
        ]

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[Entry]:
        if self._one:
            return self._scan(self._databases[0], start, end, reverse=reverse)
        expired_ms, length = self.meta.expired_ms, self.meta.segment_ms or SEGMENT_MS_MIN
        scans = []
        for slot, segment in self.meta.segments.items():
            entries = self._scan(self._databases[slot], start, end, reverse=reverse)
            scans.append(
                _visible(entries, self.meta.kind, expired_ms)
                if segment * length <= expired_ms
                else entries
            )
        return merge(*scans, key=itemgetter(0), reverse=reverse)

    def range_many(self, bounds: Sequence[Entry]) -> list[list[Entry]]:
        """`range` for each, in one pass over what is stored; empty results share one list."""
        nothing: list[Entry] = []
        found = [nothing] * len(bounds)
        asked = _Bounds.of(bounds)
        for database in self._shown_databases():
            self._ahead.fetch(asked.starts, database)
            with self._txn.cursor(database) as cursor:
                asked.collect(cursor, found)
        for at, entries in self._ranges_of_long(bounds, asked.long):
            found[at] = entries
        if self._one:
            return found
        expired_ms = self.meta.expired_ms
        return [
            sorted(_visible(iter(entries), self.meta.kind, expired_ms)) if entries else entries
            for entries in found
        ]

    def last_many(self, bounds: Sequence[Bounds]) -> list[Entry | None]:
        """The last entry of each range (start, end); of each database one key is looked up."""
        found: list[Entry | None] = [None] * len(bounds)
        firsts, ends = [start for start, _ in bounds], [end for _, end in bounds]
        if stored_keys.has_long(firsts) or stored_keys.has_long(ends):
            return super().last_many(bounds)
        starts, stored = stored_keys.encode_short(firsts), stored_keys.encode_short(ends)
        unsure: set[int] = set()
        expired_ms = -1 if self._one else self.meta.expired_ms
        for database in self._shown_databases():
            self._ahead.fetch(stored, database)
            with self._txn.cursor(database) as cursor:
                for at, (start, end) in enumerate(zip(starts, stored, strict=True)):
                    if not (cursor.prev() if cursor.set_range(end) else cursor.last()):
                        continue
                    key = cursor.key()
                    if key < start:
                        continue
                    if stored_keys.is_bucket(key) or (
                        not self._one
                        and changelog.expiry_time(key[1:], self.meta.kind) <= expired_ms
                    ):
                        unsure.add(at)
                    elif (known := found[at]) is None or known[0] < key[1:]:
                        found[at] = key[1:], cursor.value()
        for at in unsure:  # among keys that one comparison does not distinguish
            found[at] = next(self.range(*bounds[at], reverse=True), None)
        return found

    def _shown_databases(self) -> Sequence[Any]:
        if self._one:
            return self._databases
        return [self._databases[slot] for slot in self.meta.segments]

    def _ranges_of_long(
        self, bounds: Sequence[Entry], chosen: Iterable[int]
    ) -> Iterator[tuple[int, list[Entry]]]:
        """`range` for ``chosen`` bounds; long keys with a common beginning are read once."""
        by_beginning: dict[bytes, list[int]] = {}
        for at in chosen:
            by_beginning.setdefault(bounds[at][0][: stored_keys.SHORT_BYTES], []).append(at)
        for group in by_beginning.values():
            entries = list(
                self.range(min(bounds[at][0] for at in group), max(bounds[at][1] for at in group))
            )
            keys = [key for key, _ in entries]
            for at in group:
                start, end = bounds[at]
                yield at, entries[bisect_left(keys, start) : bisect_left(keys, end)]

    def _scan(
        self, database: Any, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[Entry]:
        with self._txn.cursor(database) as cursor:
            if not reverse:
                there = cursor.set_range(stored_keys.lower_bound(start))
            else:
                bound = stored_keys.upper_bound(end)
                # From the first key behind the bound, which the filter leaves out, or the last.
                there = (bound is not None and cursor.set_range(bound)) or cursor.last()
            if there:
                stored = cursor.iterprev() if reverse else cursor.iternext()
                yield from stored_keys.in_range(stored, start, end, reverse=reverse)

    def entries(self) -> int:
        """The number of keys (long keys with colliding hashes count once); does not read them."""
        return sum(int(self._txn.stat(database)["entries"]) for database in self._databases)


@dataclass(frozen=True)
class _Bounds:
    """Ranges as stored keys; ``order``: by their starts; ``long``: those that have long keys."""

    starts: list[bytes]
    ends: list[bytes]
    order: list[int]
    long: set[int]

    @staticmethod
    def of(bounds: Sequence[Entry]) -> _Bounds:
        firsts, lasts = [start for start, _ in bounds], [end for _, end in bounds]
        starts, ends = stored_keys.encode_short(firsts), stored_keys.encode_short(lasts)
        long = set[int]()
        if stored_keys.has_long(firsts) or stored_keys.has_long(lasts):
            long = {at for at, ends_of in enumerate(bounds) if stored_keys.has_long(ends_of)}
            starts = list(map(stored_keys.lower_bound, firsts))
        order = sorted(range(len(bounds)), key=starts.__getitem__)
        return _Bounds(starts, ends, order, long)

    def collect(self, cursor: lmdb.Cursor[bytes], found: list[list[Entry]]) -> None:
        """Adds a database's entries to ``found``.

        As starts rise, the first key behind one is the first behind all after it that do not lie
        beyond that key: of many ranges without an entry, between two stored keys, one is looked up.
        """
        starts, ends = self.starts, self.ends
        first = b""
        for at in self.order:
            end = ends[at]
            if end <= first:
                continue
            if first < starts[at]:
                if not cursor.set_range(starts[at]):
                    return
                first = cursor.key()
                if end <= first:
                    continue
            found[at] = [*found[at], *self._from(cursor, at)]
            first = b""

    def _from(self, cursor: lmdb.Cursor[bytes], at: int) -> Iterator[Entry]:
        """The entries from the cursor's on; ranges that meet a long key are left to ``long``."""
        end, more = self.ends[at], True
        while more and (key := cursor.key()) < end:
            if stored_keys.is_bucket(key):  # of a long key that begins like the bounds
                self.long.add(at)
                return
            yield key[1:], cursor.value()
            more = cursor.next()


def segments_of(times: Int64, meta: StoreMeta) -> Int64:
    return np.asarray(times // (meta.segment_ms or SEGMENT_MS_MIN), dtype=np.int64)


def _visible(entries: Iterator[Entry], kind: str, expired_ms: int) -> Iterator[Entry]:
    suffix = changelog.SUFFIX_BYTES[kind]
    return (
        entry
        for entry in entries
        if int.from_bytes(entry[0][-suffix : 8 - suffix], "big", signed=True) > expired_ms
    )
