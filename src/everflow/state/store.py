"""Store specifications, and the view that operators read; `InMemoryStore` is the model, and an
`Overlay` is changes on top of a view. Pure.

A versioned store holds versions of a key's value (KIP-889). A version is valid from its own time
until that of the next one; the latest has no end. A deletion is a version without a value. The
store keeps what was valid within its history retention, and the latest version of each key for ever
(the latest deletion as long as the history).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, merge
from operator import itemgetter
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from everflow.records import Int64, StoreChanges
from everflow.serdes import Serde
from everflow.state.changelog import SUFFIX_BYTES, expiry_times, pack_value

Flags = npt.NDArray[np.bool_]
OPEN = (1 << 63) - 1
"""The end of the latest version."""

History = list[tuple[int, bytes | None]]
"""A key's versions: time and value, in order of time."""


class Version(NamedTuple):
    """A value (None: a deletion) that is valid from ``start`` until before ``end`` (ms)."""

    start: int
    end: int
    value: bytes | None


class VersionsView(Protocol):
    """A versioned store for operators, beside a `StoreView` of the latest versions. ``stream_time``
    is the highest time of a version (ms), -1 = none yet."""

    @property
    def stream_time(self) -> int: ...

    def latest_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes | None] | None]:
        """The latest version of each key, deletions too: time and value; None: none is kept."""

    def versions_many(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        """The versions of each key that were valid at some time from the first to the last of the
        two (ms, included), in order of time."""

    def begins_after(self, key: bytes, time: int) -> int:
        """The begin of the key's first version after ``time`` (ms); `OPEN`: there is none."""


class VersionedRecord(NamedTuple):
    """A value that is valid from ``timestamp`` (ms) until before ``valid_to`` (None: it is the
    latest)."""

    value: Any
    timestamp: int
    valid_to: int | None


def record_as_of(
    view: VersionsView, key: bytes, time: int, history_ms: int, decode: Callable[[bytes], Any]
) -> VersionedRecord | None:
    """The value of a key at a time (ms); None if there was none, or if that is older than the
    history and not the latest."""
    found = view.versions_many([(key, time, time)])[0]
    if time < view.stream_time - history_ms:
        found = [one for one in found if one.end == OPEN]
    return next(iter(records_of(found, decode)), None)


def records_of(
    versions: Iterable[Version], decode: Callable[[bytes], Any]
) -> list[VersionedRecord]:
    """Versions as users see them, without deletions."""
    return [
        VersionedRecord(decode(one.value), one.start, None if one.end == OPEN else one.end)
        for one in versions
        if one.value is not None
    ]


def put(history: History, time: int, value: bytes | None) -> int:
    at = bisect_left(history, time, key=itemgetter(0))
    if at < len(history) and history[at][0] == time:
        history[at] = (time, value)
    else:
        history.insert(at, (time, value))
    return history[at + 1][0] if at + 1 < len(history) else OPEN


def versions_of(history: History, end: int = OPEN) -> Iterable[Version]:
    """The versions with their ends; ``end``: of the last one."""
    ends = [*(time for time, _ in history), end][1:]
    return (Version(time, end, value) for (time, value), end in zip(history, ends, strict=True))


def versions_within(history: History, first: int, last: int) -> list[Version]:
    """The versions valid at some time from ``first`` to ``last`` (ms); others are not read."""
    begin = max(0, bisect_right(history, first, key=itemgetter(0)) - 1)
    end = bisect_right(history, last, key=itemgetter(0))
    behind = history[end][0] if end < len(history) else OPEN
    return list(versions_of(history[begin:end], behind))


def begins_after(history: History, time: int) -> int:
    at = bisect_right(history, time, key=itemgetter(0))
    return history[at][0] if at < len(history) else OPEN


def accepted(times: Int64, stream_time: int, history_ms: int) -> Flags:
    """Marks the versions that are within the history retention when they arrive, in the order of
    ``times``. ``stream_time``: before them."""
    observed = np.maximum(np.maximum.accumulate(times), stream_time)
    return np.asarray(times >= observed - history_ms, np.bool_)


VERSIONED = "versioned"

Entry = tuple[bytes, bytes]
"""The key of a stored entry, and the entry."""
Bounds = tuple[bytes, bytes]
"""Start and end of a range."""


def left_out_topic(application_id: str, store: str) -> str:
    return f"{application_id}-{store}-left-out-changelog"


@dataclass(frozen=True, kw_only=True)
class StoreSpec:
    """A store as the topology declares it.

    ``kind``: ``key_value``, ``versioned``, ``window`` or ``session``. Keys of window stores are
    ``key bytes + 8-byte window start (ms, big endian) + 4-byte sequence number`` (WindowKeySchema),
    of session stores ``key bytes + 8-byte end + 8-byte start`` (SessionKeySchema). ``retention_ms``
    is how long windows are kept behind `StoreView.newest_ms`; of versioned stores the history
    retention, also for late versions; of a processor's key-value store how long entries live.
    ``logging`` False = no changelog, best effort. ``folds``: what makes each stored field of a
    built-in aggregate (``count``, ``sum``, ...). ``private``: its bytes are not Kafka Streams'.
    """

    name: str
    kind: str
    key_serde: Serde
    value_serde: Serde
    retention_ms: int | None = None
    window_size_ms: int | None = None
    logging: bool = True
    in_memory: bool = False
    """True if it lies in memory, and ends with the instance."""
    topic_config: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    source_topic: str | None = None
    """The user's topic that is its changelog."""
    where: str | None = None
    folds: tuple[str, ...] = ()
    private: bool = False

    @property
    def expires(self) -> bool:
        """True if its keys end with times that stream time leaves behind: windows and sessions."""
        return self.kind in SUFFIX_BYTES

    @property
    def versioned(self) -> bool:
        """True if it keeps what a value was: its changes are versions, each with its time."""
        return self.kind == VERSIONED

    @property
    def kept_ms(self) -> int | None:
        """How far behind its own time its local copy reaches (ms); None: nothing expires."""
        return self.retention_ms if self.expires or self.versioned else None

    def changelog_topic(self, application_id: str) -> str:
        return self.source_topic or f"{application_id}-{self.changelog}"

    def left_out_topic(self, application_id: str) -> str | None:
        """The whole name of the topic that says what processing left out of ``source_topic``."""
        if self.source_topic is None:
            return None
        return left_out_topic(application_id, self.name)

    @property
    def changelog(self) -> str:
        """Changelog topic name without the application id prefix."""
        return f"{self.name}-changelog"


class StoreView(Protocol):
    """A store as an operator reads it during one micro-batch: committed content plus the batch's
    own earlier changes."""

    @property
    def newest_ms(self) -> int:
        """The own time of a window or session store: the highest window start or session end ever
        written to it, deletions included; -1 = none. What is its retention behind is gone. (Kafka
        Streams' ``observedStreamTime`` of a store, which is not that of the operator.)"""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Stored values (8-byte big-endian timestamp + value bytes), in the order of ``keys``; None
        where absent."""

    def entries(self) -> int:
        """About how many there are: those that have expired may be counted as long as they take
        space. Reads none."""

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[Entry]:
        """Entries with ``start <= key < end`` in key order, or in the opposite one, read as they
        are taken."""

    def range_many(self, bounds: Sequence[Bounds]) -> list[list[Entry]]:
        return [list(self.range(start, end)) for start, end in bounds]

    def last_many(self, bounds: Sequence[Bounds]) -> list[Entry | None]:
        return [next(self.range(start, end, reverse=True), None) for start, end in bounds]


@runtime_checkable
class WholeView(StoreView, Protocol):
    """A global table at one moment."""

    @property
    def mark(self) -> int:
        """Another number when it holds something else, from 0 on."""


def last_of_length(
    view: StoreView, bounds: Sequence[Bounds], lengths: Sequence[int]
) -> list[Entry | None]:
    """As `StoreView.last_many`, of the entries whose keys have a length: longer keys may begin with
    the same bytes."""
    found = view.last_many(bounds)
    for at, ((start, _), length) in enumerate(zip(bounds, lengths, strict=True)):
        last = found[at]
        if last is not None and len(last[0]) != length:
            before = view.range(start, last[0], reverse=True)
            found[at] = next((entry for entry in before if len(entry[0]) == length), None)
    return found


T = TypeVar("T")
_FEW = 64
"""Entries that a range copies at once, rather than to have the next change copy all there are."""
_SHARE = 32
"""From this part of the keys on, new ones are sorted in together: one by one, each moves those
behind it."""


class OrderedEntries(Generic[T]):
    """Values by key, which are read in the order of the keys. Single-threaded."""

    def __init__(self) -> None:
        self._of: dict[bytes, T] = {}
        self._keys: list[bytes] = []
        self._fresh: set[bytes] = set()
        """Keys that are not among `_keys` yet."""
        self._gone: set[bytes] = set()
        """Keys that still are among `_keys`."""
        self._readers: WeakSet[Iterator[tuple[bytes, T]]] = WeakSet()
        """Ranges that somebody still has: they read what was there when they were asked for."""

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, key: bytes) -> bool:
        return key in self._of

    def get(self, key: bytes) -> T | None:
        return self._of.get(key)

    def put(self, key: bytes, value: T | None) -> None:
        """None removes it."""
        if value is None:
            self.remove(key)
            return
        self._leave_readers_theirs()
        if key not in self._of:
            if key in self._gone:
                self._gone.discard(key)
            else:
                self._fresh.add(key)
        self._of[key] = value

    def remove(self, key: bytes) -> None:
        if key not in self._of:
            return
        self._leave_readers_theirs()
        del self._of[key]
        if key in self._fresh:
            self._fresh.discard(key)
        else:
            self._gone.add(key)

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, T]]:
        """Keys ``start <= key < end`` with their values, as they are now."""
        keys, of = self._in_order(), self._of
        low = 0 if start is None else bisect_left(keys, start)
        high = len(keys) if end is None else bisect_left(keys, end)
        if high - low <= _FEW:
            few = [(key, of[key]) for key in keys[low:high]]
            return iter(few[::-1] if reverse else few)
        found = _read(keys, of, range(high - 1, low - 1, -1) if reverse else range(low, high))
        self._readers.add(found)
        return found

    def _leave_readers_theirs(self) -> None:
        if self._readers:
            self._of, self._keys = dict(self._of), list(self._keys)
            self._readers = WeakSet()

    def _in_order(self) -> list[bytes]:
        fresh, gone = self._fresh, self._gone
        if not fresh and not gone:
            return self._keys
        if (len(fresh) + len(gone)) * _SHARE > len(self._keys):
            kept = [key for key in self._keys if key not in gone] if gone else self._keys
            # Two runs that are in order each: as many steps as there are keys.
            self._keys = sorted([*kept, *sorted(fresh)])
        else:
            for key in gone:
                del self._keys[bisect_left(self._keys, key)]
            for key in fresh:
                insort(self._keys, key)
        self._fresh, self._gone = set(), set()
        return self._keys


def _read(
    keys: list[bytes],
    of: dict[bytes, T],
    at: Sequence[int],
) -> Iterator[tuple[bytes, T]]:
    for one in at:
        key = keys[one]
        yield key, of[key]


def memory_store(spec: StoreSpec) -> InMemoryStore:
    return InMemoryVersions(spec) if spec.versioned else InMemoryStore(spec)


class InMemoryStore(StoreView):
    """The reference of a store: a `StoreView` that committed changes are applied to; one thread."""

    def __init__(self, spec: StoreSpec | None = None) -> None:
        self._kind = "key_value" if spec is None else spec.kind
        self._retention_ms = spec.retention_ms if spec is not None and spec.expires else None
        self._newest_ms = -1
        self._entries: OrderedEntries[bytes] = OrderedEntries()
        self._expiring: list[tuple[int, bytes]] = []
        """When the keys of windows and sessions expire, as a heap; deleted ones may be there."""
        self.position = 0
        """Goes up with each change."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def newest_ms(self) -> int:
        return self._newest_ms

    def entries(self) -> int:
        return len(self._entries)

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self._entries.get(key) for key in keys]

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[Entry]:
        return self._entries.range(start, end, reverse=reverse)

    def apply(self, changes: StoreChanges) -> None:
        """Puts and deletes in order; then windows with ``start <= newest_ms - retention`` go,
        sessions by their end."""
        self.position += 1
        if self._retention_ms is not None and len(changes):
            written = expiry_times(changes.keys, self._kind)
            self._newest_ms = max(self._newest_ms, int(written.max()))
            for key, time in zip(changes.keys, written.tolist(), strict=True):
                if key not in self._entries:
                    heappush(self._expiring, (time, key))
        for key, value, timestamp in zip(
            changes.keys, changes.values, changes.timestamps.tolist(), strict=True
        ):
            self._entries.put(key, None if value is None else pack_value(timestamp, value))
        if self._retention_ms is not None:
            oldest = self._newest_ms - self._retention_ms
            while self._expiring and self._expiring[0][0] <= oldest:
                self._entries.remove(heappop(self._expiring)[1])


class InMemoryVersions(InMemoryStore):
    """The reference of a versioned store; as a `StoreView` it shows the latest versions."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        assert spec.retention_ms is not None, f"versioned store {spec.name} without history"
        self._history_ms = spec.retention_ms
        self._versions: dict[bytes, History] = {}
        self._awaited: dict[bytes, int] = {}
        """When to check a key: its entry of `_expiring` that counts."""
        self.stream_time = -1

    def latest_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes | None] | None]:
        return [self._versions[key][-1] if key in self._versions else None for key in keys]

    def versions_many(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        return [
            versions_within(self._versions.get(key, []), first, last) for key, first, last in asked
        ]

    def begins_after(self, key: bytes, time: int) -> int:
        return begins_after(self._versions.get(key, []), time)

    def apply(self, changes: StoreChanges) -> None:
        """Puts versions, but none that is older than the history when it comes; then those that
        ended before the history go."""
        times = np.asarray(changes.timestamps, np.int64)
        kept = accepted(times, self.stream_time, self._history_ms)
        for at in np.flatnonzero(kept).tolist():
            key, time, value = changes.keys[at], int(times[at]), changes.values[at]
            history = self._versions.setdefault(key, [])
            put(history, time, value)
            self._await_end(key, history)
            if history[-1][0] == time:
                self._entries.put(key, None if value is None else pack_value(time, value))
        self.stream_time = max(self.stream_time, int(times.max(initial=-1)))
        oldest = self.stream_time - self._history_ms
        while self._expiring and self._expiring[0][0] <= oldest:
            time, key = heappop(self._expiring)
            if self._awaited.get(key) != time:
                continue
            del self._awaited[key]
            history = self._versions.get(key, [])
            ended = bisect_right(history, oldest, key=itemgetter(0)) - 1
            del history[: max(0, ended)]
            if len(history) == 1 and history[0][1] is None and history[0][0] <= oldest:
                del self._versions[key]
            elif history:
                self._await_end(key, history)

    def _await_end(self, key: bytes, history: History) -> None:
        """Note when the key's first version may go: with the next one, or as a deletion."""
        if len(history) == 1 and history[0][1] is not None:
            return
        time = history[1][0] if len(history) > 1 else history[0][0]
        if key not in self._awaited or time < self._awaited[key]:
            self._awaited[key] = time
            heappush(self._expiring, (time, key))


class Overlay(Generic[T]):
    """The content of ``below``, read as far as it is asked for, and changes since; ``read``
    converts a stored entry to a `T`. A range shows the moment of the call."""

    def __init__(self, below: StoreView, read: Callable[[bytes], T]) -> None:
        self._below, self._read = below, read
        self._live: OrderedEntries[T] = OrderedEntries()
        self._since: dict[bytes, int] = {}
        """The number of each changed key's first change."""
        self._passed: tuple[dict[bytes | None, bytes], dict[bytes | None, bytes]] = {}, {}
        """Up to where all entries below have changed, by where a range begins (backwards: ends):
        a reader that takes out the first again and again would else read all those each time."""
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
        self._live.put(key, value)

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, T]]:
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
