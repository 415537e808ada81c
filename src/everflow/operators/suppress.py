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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from everflow.errors import BufferFullError
from everflow.operators.due_index import TIME_BYTES, Changes, DueIndex, DueQueue
from everflow.operators.grouping import rows_by_task
from everflow.operators.stored_records import (
    Headers,
    StoredRecords,
    beside_stored,
    packed_record,
    unpacked_record,
)
from everflow.operators.user_code import written_bytes
from everflow.records import EdgeBatch, StoreChanges, TasksResult
from everflow.serdes import Serde
from everflow.state.changelog import unpack_value
from everflow.state.store import Entry, StoreView
from everflow.topology.graph import Inputs, TableOperator

_COUNT = struct.Struct(">Q")
_BOOK = struct.Struct(">QQQ")
_BUFFERED, _TIME_OF, _BOOKED = DueIndex(b"\x00", signed=True), b"\x01", b"\x02"
_DELETION, _VALUE, _WITH_HEADERS = b"\x00", b"\x01", b"\x02"


@dataclass(frozen=True)
class BufferBounds:
    """The most entries and bytes (keys and values, and 8 a key) of a task's buffer, None: any
    number; ``stops``: what happens beyond."""

    records: int | None = None
    bytes: int | None = None
    stops: bool = False

    def over(self, records: int, size: int) -> bool:
        return (self.records is not None and records > self.records) or (
            self.bytes is not None and size > self.bytes
        )

    @property
    def limited(self) -> bool:
        return self.records is not None or self.bytes is not None


@dataclass(frozen=True)
class EarlyResults:
    """Results of a window before it closes: at every ``records``-th update, or when stream time is
    ``wait_ms`` behind the first update that was not shown; None: not so."""

    records: int | None = None
    wait_ms: int | None = None


@dataclass(frozen=True, kw_only=True)
class SuppressSpec(TableOperator):
    """The last update of each key, once stream time is ``wait_ms`` behind the entry's time: the end
    of its window (``by_window``; deletions are dropped), else the time of the first buffered
    update. ``by_start``: of sessions with equal ends the one that began first is out first.

    ``early``: windows also show what they are before they close; at the close only what is new.

    A result has the time of its update and, unless ``headers_of_last``, its headers; else those of
    the record that brings it out. Full, a task's buffer gives the oldest early, or BufferFullError.
    """

    store: str
    where: str | None
    key_serde: Serde
    value_serde: Serde
    """Of the table, not of the buffer's store."""
    wait_ms: int
    by_window: bool
    bounds: BufferBounds = field(default_factory=BufferBounds)
    emit_every_update: bool = False
    by_start: bool = False
    headers_of_last: bool = False
    early: EarlyResults | None = None
    span_ms: int = 0
    """How far before its window's end an entry's time may lie: the windows' size."""

    @property
    def lag_ms(self) -> int:
        return self.wait_ms + self.span_ms

    @property
    def delay_ms(self) -> int:
        """The delay of stream time behind an entry's place when it is emitted (ms)."""
        return self.wait_ms if self.early is None else 0

    def place_of(self, time: int, stream_time: int) -> int:
        if self.early is None:
            return time
        closes = time + self.wait_ms
        wait_ms = self.early.wait_ms
        return closes if wait_ms is None else min(closes, stream_time + wait_ms)

    def run(self, inputs: Inputs) -> TasksResult:
        (batch,) = inputs.sides
        keys = written_bytes(self.key_serde, batch.key, self.store, batch).to_pylist()
        values = written_bytes(self.value_serde, batch.value, self.store, batch).to_pylist()
        headers: Sequence[Headers | None] = [None] * len(batch)
        if batch.headers is not None and not self.headers_of_last:
            headers = batch.headers.to_pylist()
        times = (
            batch.key.field("end").to_numpy().astype(np.int64)
            if self.by_window or self.early is not None
            else batch.timestamp
        )
        after, emitted = dict(inputs.stream_times), list[_Emitted]()
        changes: dict[int, list[StoreChanges]] = {}
        for partition, mine in rows_by_task(batch.partition):
            buffer = self._buffer(inputs, partition, inputs.stream_times[partition])
            updates = []
            for row in mine.tolist():
                entry = _Entry(row, values[row], int(batch.timestamp[row]), headers[row], 0)
                updates.append(_Update(keys[row], int(times[row]), entry))
            emitted += buffer.take(updates)
            after[partition], changes[partition] = buffer.stream_time, buffer.changes()
        return TasksResult(self._shown(batch, emitted), changes, after, {})

    def advance(self, ticks: EdgeBatch, inputs: Inputs) -> TasksResult:
        emitted, changes = list[_Emitted](), dict[int, list[StoreChanges]]()
        for row, partition in enumerate(ticks.partition.tolist()):
            buffer = self._buffer(inputs, partition, int(ticks.timestamp[row]))
            emitted += buffer.passed(row)
            changes[partition] = buffer.changes()
        return TasksResult(self._shown(ticks, emitted), changes, {}, {})

    def _buffer(self, inputs: Inputs, partition: int, stream_time: int) -> _Buffer:
        view = inputs.stores[partition][self.store]
        return _Buffer(spec=self, view=view, stream_time=stream_time)

    def _shown(self, batch: EdgeBatch, emitted: list[_Emitted]) -> EdgeBatch:
        emitted.sort(key=lambda one: one.by)  # stable: one record's are in order already
        stored = [one for one in emitted if one.entry.row < 0]
        place = iter(range(len(batch), len(batch) + len(stored)))
        rows = [next(place) if one.entry.row < 0 else one.entry.row for one in emitted]
        columns = beside_stored(
            batch,
            StoredRecords(
                [one.key for one in stored],
                [one.entry.value for one in stored],
                [one.entry.headers or [] for one in stored],
            ),
            self.key_serde,
            self.value_serde,
            np.array(rows, np.int64),
        )
        shown = batch.take(np.array([one.by for one in emitted], np.int64))
        shown = shown.with_columns(columns.key, columns.value)
        shown.timestamp = np.array([one.entry.time for one in emitted], np.int64)
        if not self.headers_of_last:
            shown.headers = columns.headers
        return shown


class _Entry(NamedTuple):
    """What is buffered of a key: the row of the update, or -1 if it is from before the batch, its
    value bytes, time (ms) and headers; its ``place``, the time by which it goes; how many updates
    it stands for."""

    row: int
    value: bytes | None
    time: int
    headers: Headers | None
    place: int
    updates: int = 1


class _Update(NamedTuple):
    """An update of a key, and the time (ms) by which the buffer goes."""

    key: bytes
    goes_by: int
    entry: _Entry


class _Emitted(NamedTuple):
    by: int
    key: bytes
    entry: _Entry


@dataclass(kw_only=True)
class _Buffer:
    """A task's buffer during a batch. ``buffered``: by key; ``before``: the places of the stored
    ones that were read. ``count``, ``size``: entries and bytes of the whole buffer, where it is
    bounded; ``booked``: what is stored of them."""

    spec: SuppressSpec
    view: StoreView
    stream_time: int
    buffered: dict[bytes, _Entry] = field(default_factory=dict)
    before: dict[bytes, int] = field(default_factory=dict)
    count: int = 0
    size: int = 0
    booked: bytes | None = None

    def __post_init__(self) -> None:
        self.queue = DueQueue(index=_BUFFERED, view=self.view, by_tail=self.spec.by_start)

    def take(self, updates: list[_Update]) -> Iterator[_Emitted]:
        self._load(updates)
        for key, goes_by, entry in updates:
            self.stream_time = max(self.stream_time, entry.time)
            known, by = self.buffered.get(key), entry.row
            if known is None:
                place, updated = self.spec.place_of(goes_by, self.stream_time), 1
                self.queue.put(place, key)
                self.count += 1
            else:
                place, updated = known.place, known.updates + 1
                self.size -= _size(key, known)
            self.buffered[key] = _Entry(
                by,
                entry.value,
                entry.time,
                entry.headers,
                place,
                updated,
            )
            self.size += _size(key, entry)
            yield from self._due(by)
            early = self.spec.early
            if early is not None and updated == early.records:
                yield from self._out(place, key, by)
            while self.spec.bounds.over(self.count, self.size):
                if self.spec.bounds.stops:
                    raise self._full()
                yield from self._first_out(by)

    def passed(self, by: int) -> Iterator[_Emitted]:
        self._load([])
        yield from self._due(by)

    def _due(self, by: int) -> Iterator[_Emitted]:
        while due := self.queue.pop(self.stream_time - self.spec.delay_ms):
            yield from self._out(*due, by)

    def changes(self) -> list[StoreChanges]:
        made, more, index = Changes(), 0, not self.spec.by_window
        for key, place in self.before.items():
            entry = self.buffered.get(key)
            if entry is None or entry.place != place:
                made.add(_BUFFERED.key(place, key), None, self.stream_time)
                more -= 1
            if entry is None and index:
                made.add(_TIME_OF + key, None, self.stream_time)
                more -= 1
        for key, entry in self.buffered.items():
            if entry.row < 0:
                continue
            value = _packed(entry)
            if self.spec.early is not None:
                value = _COUNT.pack(entry.updates) + value
            made.add(_BUFFERED.key(entry.place, key), value, entry.time)
            if self.before.get(key) != entry.place:
                more += 1
                if index:
                    made.add(_TIME_OF + key, _BUFFERED.time_bytes(entry.place), entry.time)
                    more += key not in self.before
        book = self._book(more)
        if book != self.booked:
            made.add(_BOOKED, book, 0)
        return made.of(self.spec.store)

    def _book(self, more: int) -> bytes | None:
        if not self.spec.bounds.limited or not self.count:
            return None
        entries = self.view.entries() + more + (self.booked is None)
        return _BOOK.pack(self.count, self.size, entries)

    def _load(self, updates: list[_Update]) -> None:
        keys = sorted({update.key for update in updates})
        self._load_book()
        latest = max([self.stream_time, *(update.entry.time for update in updates)])
        self._keep(self.queue.load(latest - self.spec.delay_ms))
        if self.spec.by_window:
            place_of = {update.key: update.goes_by for update in updates}
            stored_keys = [_BUFFERED.key(place_of[key], key) for key in keys]
        else:
            times = self.view.get_many([_TIME_OF + key for key in keys])
            stored_keys = [
                _BUFFERED.prefix + unpack_value(time)[1] + key
                for key, time in zip(keys, times, strict=True)
                if time is not None
            ]
        found = zip(stored_keys, self.view.get_many(stored_keys), strict=True)
        there = [(key, entry) for key, entry in found if entry is not None]
        for key, _ in self._keep(there):
            self.queue.put(_BUFFERED.time_of(key), _BUFFERED.rest_of(key))

    def _load_book(self) -> None:
        (stored,) = self.view.get_many([_BOOKED])
        self.booked = None if stored is None else unpack_value(stored)[1]
        if not self.spec.bounds.limited:
            return
        if self.booked is not None:
            self.count, self.size, entries = _BOOK.unpack(self.booked)
            if entries == self.view.entries():
                return
        self._count()

    def _count(self) -> None:
        """Reads a buffer once that has no count yet, or that others have changed since."""
        self.count = self.size = 0
        for stored_key, stored in _BUFFERED.stored(self.view, None):
            self.count += 1
            self.size += _size(_BUFFERED.rest_of(stored_key), self._entry(0, stored))

    def _keep(self, entries: Iterable[Entry]) -> list[Entry]:
        kept = []
        for stored_key, stored in entries:
            place, key = _BUFFERED.time_of(stored_key), _BUFFERED.rest_of(stored_key)
            if key in self.before:
                continue
            kept.append((stored_key, stored))
            self.before[key] = place
            self.buffered[key] = self._entry(place, stored)
        return kept

    def _entry(self, place: int, stored: bytes) -> _Entry:
        time, data = unpack_value(stored)
        if self.spec.early is None:
            return _unpacked(place, time, data)
        (updates,) = _COUNT.unpack_from(data)
        return _unpacked(place, time, data[_COUNT.size :])._replace(updates=updates)

    def _first_out(self, by: int) -> Iterator[_Emitted]:
        while (read := self.queue.read_on()) is not None:
            self._keep([read])
        if due := self.queue.pop():
            yield from self._out(*due, by)
        else:  # what was booked is more than there is
            self.count = self.size = 0

    def _out(self, place: int, key: bytes, by: int) -> Iterator[_Emitted]:
        """The entry goes, if still there; a result unless it is the deletion of a window."""
        entry = self.buffered.get(key)
        if entry is None or entry.place != place:
            return
        self.count -= 1
        self.size -= _size(key, entry)
        del self.buffered[key]
        if entry.value is not None or not self.spec.by_window:
            yield _Emitted(by, key, entry)

    def _full(self) -> BufferFullError:
        bounds = self.spec.bounds
        most = [f"{bounds.records} records"] if bounds.records is not None else []
        most += [f"{bounds.bytes} bytes"] if bounds.bytes is not None else []
        return BufferFullError(
            f"the buffer {self.spec.store!r} of suppress ({self.spec.where}) holds "
            f"{self.count} records of {self.size} bytes back, and may hold "
            f"{' and '.join(most)} in a task; give it more, use windows with a shorter grace, or "
            "emit_early_when_full() of until_time_limit"
        )


def _packed(entry: _Entry) -> bytes:
    value = _DELETION if entry.value is None else _VALUE + entry.value
    return _WITH_HEADERS + packed_record(entry.headers, value) if entry.headers else value


def _unpacked(place: int, time: int, data: bytes) -> _Entry:
    headers: Headers | None = None
    if data[:1] == _WITH_HEADERS:
        headers, data = unpacked_record(data[1:])
    return _Entry(-1, None if data == _DELETION else data[1:], time, headers, place)


def _size(key: bytes, entry: _Entry) -> int:
    return TIME_BYTES + len(key) + len(entry.value or b"")
