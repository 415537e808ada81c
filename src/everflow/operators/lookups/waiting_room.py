"""Holds records of a stream until the entry that they look up is there, or their time is over.

The store has entries for each: under the looked-up key and a number, what the record is; under its
time, and under the clock's when it came where that limits its wait, which say when it is due; and
the next number. Numbers are given as records come.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from everflow.clock import believed_ms
from everflow.records import LAST_SEQ, Int64, StoreChanges
from everflow.serdes import Serde
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.store import StoreSpec, StoreView

_TIME, _LENGTH, _NUMBER = struct.Struct(">q"), struct.Struct(">i"), struct.Struct(">Q")
_TIMES = struct.Struct(">qq")
_BY_KEY, _BY_TIME, _BY_CLOCK, _NEXT = b"k", b"t", b"w", b"n"
NO_ROW = -1
"""Of what did not come with the batch's records."""
BEFORE_ALL, BEHIND_ALL = -1, 2 * LAST_SEQ + 1
"""Places of what no record of the batch has brought."""
_DUE, _UPDATE, _MISS = 0, 0, 1
"""What is due at a record's place is told before the record waits itself; an update has a place of
its own."""


class Waiter(NamedTuple):
    """A record that waits: its number, time, when it came by the wall clock (ms), and what it looks
    up. ``row``: of the batch, `NO_ROW` of one from the store, which is ``stored`` as it was
    written."""

    number: int
    time: int
    came: int
    key: bytes
    row: int
    stored: bytes = b""

    @property
    def since(self) -> int:
        """The time from which it waits: negative ones lie before all."""
        return max(0, self.time)


class Told(NamedTuple):
    """A waiter that waits no longer: its place among the task's events, and the row of the update
    that was waited for, `NO_ROW` where its time is over."""

    place: int
    waiter: Waiter
    found: int


@dataclass(frozen=True, kw_only=True)
class TaskEvents:
    """What happens in a task, by place, which tells the order. ``times`` to ``stream_times``: of
    its records, all of them, in their order; ``misses``: those of them (as numbers) whose entry is
    not there, with the key; ``updates``: place, row and key of each entry that comes."""

    rows: Int64
    places: Int64
    times: Int64
    stream_times: Int64
    misses: Sequence[tuple[int, bytes]]
    updates: Sequence[tuple[int, int, bytes]]
    stream_time: int
    """After all of them."""
    now_ms: int | None = None
    """By the wall clock; None: it ends nobody's wait here."""


@dataclass(frozen=True, kw_only=True)
class WaitingRoom:
    """A record waits until stream time is more than ``grace_ms`` behind it, and for ``timeout_ms``
    by the wall clock (None: however long); of one key at most ``most`` wait: then the one that has
    waited longest gives way, as if its time were over."""

    store: StoreSpec
    key_serde: Serde
    """Of the stream's keys."""
    value_serde: Serde
    """Of the stream's values."""
    grace_ms: int | None
    most: int | None
    timeout_ms: int | None = None

    def settle(self, events: TaskEvents, view: StoreView) -> TaskWaits:
        """Who waits no longer, in order, and who does."""
        return TaskWaits.of(self, events, view)

    def keys(self, view: StoreView) -> list[bytes]:
        """What is waited for."""
        if view.get_many([_NEXT]) == [None]:
            return []  # nobody has ever waited here
        found = dict[bytes, None]()
        for stored, _ in view.range(_BY_KEY, bytes([_BY_KEY[0] + 1])):
            found.setdefault(_key_of(stored))
        return list(found)

    def places(self, waiter: Waiter) -> list[bytes]:
        """The keys of a waiter in the store."""
        number = _NUMBER.pack(waiter.number)
        found = [_prefix(waiter.key) + number, _BY_TIME + _TIME.pack(waiter.since) + number]
        if self.timeout_ms is not None:
            found.append(_BY_CLOCK + _TIME.pack(waiter.came) + number)
        return found


@dataclass(kw_only=True)
class TaskWaits:
    """One task's part of a batch. ``told``: who waits no longer, in order."""

    room: WaitingRoom
    events: TaskEvents
    told: list[Told] = field(default_factory=list)
    waiting: dict[bytes, dict[int, Waiter]] = field(default_factory=dict)
    gone: list[Waiter] = field(default_factory=list)
    """From the store."""
    retimed: dict[int, Waiter] = field(default_factory=dict)
    """Waiters of the store, as they are there, that wait from now on: the clock by which they came
    is ahead of the present one."""
    next_number: int = 0
    first_number: int = 0
    heap: list[tuple[int, int, int, int, bytes]] = field(default_factory=list)
    """Place, turn in it, and then: time and number of who is due, its key; or the row, and -1."""

    @staticmethod
    def of(room: WaitingRoom, events: TaskEvents, view: StoreView) -> TaskWaits:
        found = TaskWaits(room=room, events=events)
        found._load(view)
        missed = {key for _, key in events.misses}
        found.heap += [
            (int(events.places[at]), _MISS, at, NO_ROW, key) for at, key in events.misses
        ]
        found.heap += [
            (place, _UPDATE, row, NO_ROW, key)
            for place, row, key in events.updates
            if key in found.waiting or key in missed
        ]
        heapify(found.heap)
        while found.heap:
            place, turn, one, number, key = heappop(found.heap)
            if number != NO_ROW:
                found._time_over(place, key, number)
            elif turn == _MISS:
                found._wait(place, one, key)
            else:
                found._release(place, one, key)
        return found

    @property
    def stays(self) -> list[Waiter]:
        """Records of the batch that wait now."""
        return [
            one for waiters in self.waiting.values() for one in waiters.values() if one.row >= 0
        ]

    def written(self, stored: Sequence[bytes]) -> StoreChanges | None:
        """The store's changes; ``stored``: what the waiters of `stays` are."""
        keys: list[bytes] = []
        values: list[bytes | None] = []
        times: list[int] = []
        for one in self.gone:
            places = self.room.places(one)
            keys += places
            values += [None] * len(places)
            times += [self.events.stream_time] * len(places)
        for old in self.retimed.values():
            keys.append(self.room.places(old)[-1])
            values.append(None)
            times.append(self.events.stream_time)
        again = [self.waiting[old.key][number] for number, old in self.retimed.items()]
        data_of = [*stored, *(one.stored for one in again)]
        for one, data in zip([*self.stays, *again], data_of, strict=True):
            places = self.room.places(one)
            keys += places
            values += [_TIMES.pack(one.time, one.came) + data, *([one.key] * (len(places) - 1))]
            times += [one.time] * len(places)
        if self.next_number != self.first_number:
            keys.append(_NEXT)
            values.append(_NUMBER.pack(self.next_number))
            times.append(self.events.stream_time)
        if not keys:
            return None
        return StoreChanges(self.room.store.name, keys, values, np.array(times, np.int64))

    # --- what is there ---------------------------------------------------------------------------

    def _load(self, view: StoreView) -> None:
        """Who waits for keys of the batch's events, and who is due with one of its records."""
        (number,) = view.get_many([_NEXT])
        if number is None and not self.events.misses:
            return  # nobody has ever waited here
        self.next_number = self.first_number = (
            0 if number is None else _NUMBER.unpack(number[TIMESTAMP_BYTES:])[0]
        )
        asked = {key for _, _, key in self.events.updates}
        if self.room.most is not None:
            asked |= {key for _, key in self.events.misses}
        keys = sorted(asked)
        bounds = [(_prefix(key), _prefix(key) + b"\xff" * (_NUMBER.size + 1)) for key in keys]
        for key, entries in zip(keys, view.range_many(bounds), strict=True):
            for stored, value in entries:
                self._come(_number_of(stored), key, value[TIMESTAMP_BYTES:])
        self._load_due(view)

    def _load_due(self, view: StoreView) -> None:
        """Who is due with a record of the batch, and by the clock."""
        room, events, listed = self.room, self.events, list[tuple[bytes, bytes]]()
        if room.grace_ms is not None and len(events.stream_times):
            end = int(events.stream_times[-1]) - room.grace_ms
            listed += view.range(_BY_TIME, _BY_TIME + _TIME.pack(max(end, 0)))
        if room.timeout_ms is not None and events.now_ms is not None:
            end = max(events.now_ms - room.timeout_ms + 1, 0)
            listed += view.range(_BY_CLOCK, _BY_CLOCK + _TIME.pack(end))
            ahead = events.now_ms + room.timeout_ms + 1
            listed += view.range(_BY_CLOCK + _TIME.pack(ahead), bytes([_BY_CLOCK[0] + 1]))
        due = {_number_of(place): key[TIMESTAMP_BYTES:] for place, key in listed}
        more = [(n, key) for n, key in due.items() if n not in self.waiting.get(key, {})]
        values = view.get_many([_prefix(key) + _NUMBER.pack(n) for n, key in more])
        for (n, key), value in zip(more, values, strict=True):
            assert value is not None
            self._come(n, key, value[TIMESTAMP_BYTES:])

    def _come(self, number: int, key: bytes, value: bytes) -> None:
        time, came = _TIMES.unpack_from(value)
        waiter = Waiter(number, time, came, key, NO_ROW, value[_TIMES.size :])
        timeout_ms, now_ms = self.room.timeout_ms, self.events.now_ms
        if timeout_ms is not None and now_ms is not None:
            waiter, old = waiter._replace(came=believed_ms(came, now_ms, timeout_ms)), waiter
            if waiter.came != came:
                self.retimed[number] = old
        self.waiting.setdefault(key, {})[number] = waiter
        self._await_end(waiter, 0)
        if timeout_ms is not None and now_ms is not None and came + timeout_ms <= now_ms:
            self.heap.append((BEHIND_ALL, _DUE, came, number, key))

    # --- events ----------------------------------------------------------------------------------

    def _await_end(self, waiter: Waiter, at: int) -> None:
        """Note where its time is over, if it is in this batch; ``at``: the record with which it
        came."""
        running, grace_ms = self.events.stream_times, self.room.grace_ms
        if grace_ms is None:
            return
        found = int(np.searchsorted(running, waiter.since + grace_ms, side="right"))
        found = max(found, at)
        if found < len(running):
            place = int(self.events.places[found])
            heappush(self.heap, (place, _DUE, waiter.since, waiter.number, waiter.key))

    def _wait(self, place: int, at: int, key: bytes) -> None:
        time, row = int(self.events.times[at]), int(self.events.rows[at])
        waiter = Waiter(self.next_number, time, self.events.now_ms or 0, key, row)
        grace_ms, stream_time = self.room.grace_ms, int(self.events.stream_times[at])
        if grace_ms is not None and waiter.since + grace_ms < stream_time:
            self.told.append(Told(place, waiter, NO_ROW))
            return
        self.next_number += 1
        waiters = self.waiting.setdefault(key, {})
        waiters[waiter.number] = waiter
        self._await_end(waiter, at)
        if self.room.most is not None and len(waiters) > self.room.most:
            self._time_over(place, key, min(waiters))

    def _time_over(self, place: int, key: bytes, number: int) -> None:
        waiter = self.waiting.get(key, {}).pop(number, None)
        if waiter is not None:
            self._end(place, waiter, NO_ROW)

    def _release(self, place: int, row: int, key: bytes) -> None:
        for _, waiter in sorted(self.waiting.pop(key, {}).items()):
            self._end(place, waiter, row)

    def _end(self, place: int, waiter: Waiter, found: int) -> None:
        self.told.append(Told(place, waiter, found))
        if waiter.row < 0:
            self.gone.append(self.retimed.pop(waiter.number, waiter))


def _prefix(key: bytes) -> bytes:
    return _BY_KEY + _LENGTH.pack(len(key)) + key


def _number_of(stored: bytes) -> int:
    found: int = _NUMBER.unpack(stored[-_NUMBER.size :])[0]
    return found


def _key_of(stored: bytes) -> bytes:
    return stored[len(_BY_KEY) + _LENGTH.size : -_NUMBER.size]
