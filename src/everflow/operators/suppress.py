"""Holds a table's updates back: until windows close, or for some time (KIP-328; design note 021).

The buffer is a store. An entry stands under ``0, time, key`` with ``1`` and the value's bytes, or
``0`` for a deletion, both behind ``2`` and the headers where there are some; where the time does
not follow from the key, it stands under ``1, key``. Times are written so that they sort, also below
0. Early results (note 036) have the number of updates before all that, in 8 bytes.

Where the buffer is bounded, ``2`` has how many entries it holds and their bytes, so that nobody
reads them to know it, and how many entries there are in all with that one, 8 bytes each. It counts
as long as the last one is right: releases before it, and buffers without bounds, leave it as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from everflow.errors import BufferFullError
from everflow.operators.grouping import task_slices
from everflow.operators.joins.held_back import packed_record, unpacked_record
from everflow.operators.joins.joined_values import Stores
from everflow.operators.user_code import written_bytes
from everflow.records import HEADERS, EdgeBatch, StoreChanges, TasksResult, joined_headers
from everflow.serdes import Serde
from everflow.serdes.base import ResultDecoder
from everflow.state.changelog import unpack_value
from everflow.state.store import StoreView

_TIME = struct.Struct(">Q")
_COUNT = struct.Struct(">Q")
_BOOK = struct.Struct(">QQQ")
_LOWEST = 1 << 63
_HELD, _TIME_OF, _BOOKED = b"\x00", b"\x01", b"\x02"
_DELETION, _VALUE, _WITH_HEADERS = b"\x00", b"\x01", b"\x02"

Headers: TypeAlias = "list[dict[str, object]] | None"


@dataclass(frozen=True)
class BufferBounds:
    """The most entries and bytes (keys and values, and 8 a key) of a task's buffer, None: any
    number; ``stops``: what happens beyond."""

    records: int | None = None
    bytes: int | None = None
    stops: bool = False

    def over(self, records: int, size: int) -> bool:
        """Whether a buffer of these is too large."""
        return (self.records is not None and records > self.records) or (
            self.bytes is not None and size > self.bytes
        )

    @property
    def given(self) -> bool:
        """Whether there are any."""
        return self.records is not None or self.bytes is not None


@dataclass(frozen=True)
class EarlyResults:
    """Results of a window before it closes: at every ``records``-th update, or when stream time is
    ``wait_ms`` behind the first update that was not shown; None: not so."""

    records: int | None = None
    wait_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class SuppressSpec:
    """The last update of each key, once stream time is ``wait_ms`` behind the entry's time: the end
    of its window (``by_window``; deletions are dropped), else the time of the first update that was
    held back. The key's later updates take its place. ``by_start``: of sessions with equal ends the
    one that began first comes out first, as where the original's sessions give their final results.

    ``early``: of windows, which also show what they are before they close; at their close only what
    was not shown, and deletions like values.

    A result has the time of its update and, unless ``headers_of_last``, its headers; else those of
    the record that brings it out, as the original's final results have. Buffers are bounded per
    task: what is the oldest is given early, or BufferFullError.
    """

    store: str
    where: str | None
    table_key_serde: Serde
    table_value_serde: Serde
    result_key: pa.DataType
    result: pa.DataType
    wait_ms: int
    by_window: bool
    bounds: BufferBounds = field(default_factory=BufferBounds)
    emit_every_update: bool = False
    by_start: bool = False
    headers_of_last: bool = False
    early: EarlyResults | None = None

    @property
    def held_ms(self) -> int:
        """How far stream time is behind an entry's place when it goes."""
        return self.wait_ms if self.early is None else 0

    def place_of(self, time: int, stream_time: int) -> int:
        """Of an entry that begins to be held; ``time``: the end of its window, or its own."""
        if self.early is None:
            return time
        closes = time + self.wait_ms
        wait_ms = self.early.wait_ms
        return closes if wait_ms is None else min(closes, stream_time + wait_ms)

    @property
    def key_serde(self) -> Serde:
        """Of the table's keys; those of the store are this module's."""
        return self.table_key_serde

    @property
    def value_serde(self) -> Serde:
        """Of the table's values; those of the store are this module's."""
        return self.table_value_serde

    @property
    def results(self) -> ResultDecoder:
        """See `StatefulOperator`."""
        return self.table_value_serde

    def decode_result(self, data: bytes) -> Any:
        """The bytes of its own store as they are: no table shows them."""
        return data

    def process_tasks(
        self, batch: EdgeBatch, stores: Stores, stream_times: Mapping[int, int]
    ) -> TasksResult:
        """See `StatefulOperator`."""
        keys = written_bytes(self.table_key_serde, batch.key, self.store, batch).to_pylist()
        values = written_bytes(self.table_value_serde, batch.value, self.store, batch).to_pylist()
        headers = _listed(None if self.headers_of_last else batch.headers, len(batch))
        times = (
            batch.key.field("end").to_numpy().astype(np.int64)
            if self.by_window or self.early is not None
            else batch.timestamp
        )
        after, given = dict(stream_times), list[_Given]()
        changes: dict[int, list[StoreChanges]] = {}
        order = np.argsort(batch.partition, kind="stable")
        for partition, part in task_slices(batch.partition[order]):
            buffer = _Buffer(
                spec=self,
                view=stores[partition][self.store],
                stream_time=stream_times[partition],
            )
            rows = order[part].tolist()
            updates = [
                _Update(
                    keys[row],
                    int(times[row]),
                    _Entry(row, values[row], int(batch.timestamp[row]), headers[row]),
                )
                for row in rows
            ]
            given += buffer.take(updates)
            after[partition] = buffer.stream_time
            made = buffer.changes()
            if len(made):
                changes[partition] = [made]
        return TasksResult(self._shown(batch, given), changes, after, {})

    def advance_tasks(
        self,
        ticks: EdgeBatch,
        sides: Sequence[EdgeBatch],
        stores: Stores,
        stream_times: Mapping[int, int],
    ) -> TasksResult:
        """See `TimedOperator`."""
        given, changes = list[_Given](), dict[int, list[StoreChanges]]()
        for row, partition in enumerate(ticks.partition.tolist()):
            buffer = _Buffer(
                spec=self,
                view=stores[partition][self.store],
                stream_time=int(ticks.timestamp[row]),
            )
            given += buffer.passed(row)
            made = buffer.changes()
            if len(made):
                changes[partition] = [made]
        return TasksResult(self._shown(ticks, given), changes, {}, {})

    def _shown(self, batch: EdgeBatch, given: list[_Given]) -> EdgeBatch:
        given.sort(key=lambda one: one.by)  # stable: one record's are in order already
        stored = [one for one in given if one.entry.row < 0]
        keys = self.table_key_serde.decode_array(pa.array([one.key for one in stored], pa.binary()))
        values = self.table_value_serde.decode_array(
            pa.array([one.entry.value for one in stored], pa.binary())
        )
        place = iter(range(len(batch), len(batch) + len(stored)))
        rows = [next(place) if one.entry.row < 0 else one.entry.row for one in given]
        at = pa.array(rows, pa.int64())
        shown = batch.take(np.array([one.by for one in given], np.int64)).with_columns(
            pa.concat_arrays([batch.key, keys.cast(batch.key.type)]).take(at),
            pa.concat_arrays([batch.value, values.cast(batch.value.type)]).take(at),
        )
        shown.timestamp = np.array([one.entry.time for one in given], np.int64)
        if self.headers_of_last:
            return shown
        listed = [one.entry.headers for one in stored]
        of_stored = pa.array([one or [] for one in listed], HEADERS) if any(listed) else None
        headers = joined_headers([(batch.headers, len(batch)), (of_stored, len(stored))])
        shown.headers = None if headers is None else headers.take(at)
        return shown


def _listed(headers: pa.Array | None, count: int) -> Sequence[Headers]:
    return [None] * count if headers is None else headers.to_pylist()


class _Entry(NamedTuple):
    """What is held back of a key: the row of the update, or -1 if it is from before the batch, its
    value bytes, time (ms) and headers; how many updates it stands for."""

    row: int
    value: bytes | None
    time: int
    headers: Headers
    updates: int = 1


class _Update(NamedTuple):
    """An update of a key, and the time (ms) by which the buffer goes."""

    key: bytes
    goes_by: int
    entry: _Entry


class _Given(NamedTuple):
    """A result, and the row ``by`` which it came."""

    by: int
    key: bytes
    entry: _Entry


@dataclass(kw_only=True)
class _Buffer:
    """A task's buffer during a batch: what was stored before, what has come since.

    ``held``: by place and key; ``places``: the place of each key that has come or is held here,
    None where it is not held any more; ``before``: the stored ones of those that were looked at.
    ``count``, ``size``: entries and bytes of the whole buffer, looked at or not, where it is
    bounded; ``booked``: what is stored of them.
    """

    spec: SuppressSpec
    view: StoreView
    stream_time: int
    held: dict[tuple[int, bytes], _Entry] = field(default_factory=dict)
    places: dict[bytes, int | None] = field(default_factory=dict)
    before: set[tuple[int, bytes]] = field(default_factory=set)
    queue: list[tuple[int, bytes, bytes]] = field(default_factory=list)
    count: int = 0
    size: int = 0
    booked: bytes | None = None
    _rest: Iterator[tuple[bytes, bytes]] = field(default_factory=lambda: iter(()))
    _next: tuple[bytes, bytes] | None = None

    def take(self, updates: list[_Update]) -> Iterator[_Given]:
        """Put the updates in, one after the other; what comes out at each."""
        self._load(updates)
        for update in updates:
            self.stream_time = max(self.stream_time, update.entry.time)
            place = self.places.get(update.key)
            if place is None:
                place = self.spec.place_of(update.goes_by, self.stream_time)
                self.places[update.key] = place
                self._queue(place, update.key)
            known, by = self.held.get((place, update.key)), update.entry.row
            count = 1 if known is None else known.updates + 1
            self._hold(place, update.key, update.entry._replace(updates=count))
            yield from self._due(by)
            early = self.spec.early
            if early is not None and count == early.records:
                yield from self._out(place, update.key, by)
            while self.spec.bounds.over(self.count, self.size):
                if self.spec.bounds.stops:
                    raise self._full()
                yield from self._first_out(by)

    def passed(self, by: int) -> Iterator[_Given]:
        """What comes out with stream time alone."""
        self._load([])
        yield from self._due(by)

    def _due(self, by: int) -> Iterator[_Given]:
        while self.queue and self.queue[0][0] <= self.stream_time - self.spec.held_ms:
            yield from self._oldest_out(by)

    def changes(self) -> StoreChanges:
        """Of the store: what is not held any more, then what came in."""
        keys: list[bytes] = []
        values: list[bytes | None] = []
        times: list[int] = []

        def change(key: bytes, value: bytes | None, time: int) -> None:
            keys.append(key)
            values.append(value)
            times.append(time)

        index = not self.spec.by_window
        more = 0
        known = {key for _, key in self.before}
        for place, key in self.before:
            if (place, key) not in self.held:
                change(_held_key(place, key), None, self.stream_time)
                more -= 1
                if index and self.places.get(key) is None:
                    change(_TIME_OF + key, None, self.stream_time)
                    more -= 1
        for (place, key), entry in self.held.items():
            if entry.row < 0:
                continue
            value = _packed(entry)
            if self.spec.early is not None:
                value = _COUNT.pack(entry.updates) + value
            change(_held_key(place, key), value, entry.time)
            if (place, key) not in self.before:
                more += 1
                if index:
                    change(_TIME_OF + key, _written(place), entry.time)
                    more += key not in known
        book = self._book(more)
        if book != self.booked:
            change(_BOOKED, book, 0)
        return StoreChanges(self.spec.store, keys, values, np.array(times, np.int64))

    def _book(self, more: int) -> bytes | None:
        """What is to be stored of count and size; ``more``: entries than there were."""
        if not self.spec.bounds.given or not self.count:
            return None
        entries = self.view.entries() + more + (self.booked is None)
        return _BOOK.pack(self.count, self.size, entries)

    def _load(self, updates: list[_Update]) -> None:
        """What the updates can meet or let out."""
        keys = sorted({update.key for update in updates})
        self._load_book()
        latest = max([self.stream_time, *(update.entry.time for update in updates)])
        self._keep(self.view.range(_HELD, _held_key(latest - self.spec.held_ms + 1, b"")))
        if self.spec.by_window:
            place_of = {update.key: update.goes_by for update in updates}
            looked_up = [_held_key(place_of[key], key) for key in keys]
        else:
            times = self.view.get_many([_TIME_OF + key for key in keys])
            looked_up = [
                _HELD + unpack_value(time)[1] + key
                for key, time in zip(keys, times, strict=True)
                if time is not None
            ]
        found = zip(looked_up, self.view.get_many(looked_up), strict=True)
        self._keep((key, entry) for key, entry in found if entry is not None)

    def _load_book(self) -> None:
        (stored,) = self.view.get_many([_BOOKED])
        self.booked = None if stored is None else unpack_value(stored)[1]
        if not self.spec.bounds.given:
            return
        self._rest = self.view.range(_HELD, _TIME_OF)
        self._next = next(self._rest, None)
        if self.booked is not None:
            self.count, self.size, entries = _BOOK.unpack(self.booked)
            if entries == self.view.entries():
                return
        self._count()

    def _count(self) -> None:
        """Of a buffer of which nothing is booked, or that others have changed since: it is read,
        once."""
        self.count = self.size = 0
        for stored_key, stored in self.view.range(_HELD, _TIME_OF):
            self.count += 1
            self.size += _size(stored_key[1 + _TIME.size :], self._entry(stored))

    def _reach_first(self) -> None:
        """Keep what is stored and gives way before all that is kept."""
        while self._next is not None:
            if self.queue:
                first = self._turn(*_place_and_key(self._next[0]))
                if self.queue[0] < first and (
                    not self.spec.by_start or self.queue[0][0] < first[0]
                ):
                    return
            self._keep(iter([self._next]))
            self._next = next(self._rest, None)

    def _keep(self, entries: Iterator[tuple[bytes, bytes]]) -> None:
        for stored_key, stored in entries:
            place, key = _place_and_key(stored_key)
            if (place, key) in self.before:
                continue
            self.before.add((place, key))
            self.places[key] = place
            self._queue(place, key)
            self.held[place, key] = self._entry(stored)

    def _entry(self, stored: bytes) -> _Entry:
        """What stands in the store, behind its time."""
        time, data = unpack_value(stored)
        if self.spec.early is None:
            return _unpacked(time, data)
        (updates,) = _COUNT.unpack_from(data)
        return _unpacked(time, data[_COUNT.size :])._replace(updates=updates)

    def _queue(self, place: int, key: bytes) -> None:
        heappush(self.queue, self._turn(place, key))

    def _turn(self, place: int, key: bytes) -> tuple[int, bytes, bytes]:
        """In the order of which entries go."""
        return place, key[-_TIME.size :] if self.spec.by_start else b"", key

    def _hold(self, place: int, key: bytes, entry: _Entry) -> None:
        known = self.held.get((place, key))
        if known is None:
            self.count += 1
        else:
            self.size -= _size(key, known)
        self.held[place, key] = entry
        self.size += _size(key, entry)

    def _first_out(self, by: int) -> Iterator[_Given]:
        """The first of the whole buffer gives way."""
        self._reach_first()
        if self.queue:
            yield from self._oldest_out(by)
        else:  # what was booked is more than there is
            self.count = self.size = 0

    def _oldest_out(self, by: int) -> Iterator[_Given]:
        place, _, key = heappop(self.queue)
        yield from self._out(place, key, by)

    def _out(self, place: int, key: bytes, by: int) -> Iterator[_Given]:
        """The entry goes, if it is still there, and is a result unless it is the deletion of a
        window."""
        entry = self.held.pop((place, key), None)
        if entry is None:
            return
        self.count -= 1
        self.size -= _size(key, entry)
        self.places[key] = None
        if entry.value is not None or not self.spec.by_window:
            yield _Given(by, key, entry)

    def _full(self) -> BufferFullError:
        bounds = self.spec.bounds
        most = [f"{bounds.records} records"] if bounds.records is not None else []
        most += [f"{bounds.bytes} bytes"] if bounds.bytes is not None else []
        return BufferFullError(
            f"the buffer {self.spec.store!r} of suppress ({self.spec.where}) holds "
            f"{self.count} records of {self.size} bytes back, and may hold "
            f"{' and '.join(most)} in a task; give it more, use windows with a shorter grace, or "
            "emit_early_when_full()"
        )


def _packed(entry: _Entry) -> bytes:
    value = _DELETION if entry.value is None else _VALUE + entry.value
    return _WITH_HEADERS + packed_record(entry.headers, value) if entry.headers else value


def _unpacked(time: int, data: bytes) -> _Entry:
    """Inverse of `_packed`."""
    headers: Headers = None
    if data[:1] == _WITH_HEADERS:
        headers, data = unpacked_record(data[1:])
    return _Entry(-1, None if data == _DELETION else data[1:], time, headers)


def _held_key(place: int, key: bytes) -> bytes:
    return _HELD + _written(place) + key


def _place_and_key(stored_key: bytes) -> tuple[int, bytes]:
    return _TIME.unpack_from(stored_key, 1)[0] - _LOWEST, stored_key[1 + _TIME.size :]


def _written(place: int) -> bytes:
    return _TIME.pack(min(max(place + _LOWEST, 0), 2 * _LOWEST - 1))


def _size(key: bytes, entry: _Entry) -> int:
    return _TIME.size + len(key) + len(entry.value or b"")
