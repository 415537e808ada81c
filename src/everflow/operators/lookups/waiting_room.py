"""Holds records of a stream until the entry that they look up is there, or their time is over.

The store has entries for each: under the looked-up key and a number, what the record is; under its
time, and under the clock's when it came where that limits its wait, which say when it is due; and
the next number. Numbers are given as records come.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from everflow.clock import believed_ms
from everflow.operators.due_index import Changes, DueIndex, DueQueue
from everflow.records import LAST_SEQ, Int64, StoreChanges
from everflow.serdes import Serde
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.key_ranges import after_prefix
from everflow.state.store import Entry, StoreSpec, StoreView

_LENGTH, _NUMBER = struct.Struct(">i"), struct.Struct(">Q")
_TIMES = struct.Struct(">qq")
_BY_KEY, _NEXT = b"k", b"n"
_BY_TIME, _BY_CLOCK = DueIndex(b"t"), DueIndex(b"w")
NO_ROW = -1
"""Of what did not come with the batch's records."""
BEFORE_ALL, BEHIND_ALL = -1, 2 * LAST_SEQ + 1
"""Places of what no record of the batch has brought."""


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
        if view.get_many([_NEXT]) == [None]:
            return []  # nobody has ever waited here
        found = dict[bytes, None]()
        for stored, _ in view.range(_BY_KEY, after_prefix(_BY_KEY)):
            found.setdefault(_key_of(stored))
        return list(found)

    def places(self, waiter: Waiter) -> list[bytes]:
        """The keys of a waiter in the store."""
        number = _NUMBER.pack(waiter.number)
        found = [_prefix(waiter.key) + number, _BY_TIME.key(waiter.since, number)]
        if self.timeout_ms is not None:
            found.append(_BY_CLOCK.key(waiter.came, number))
        return found


@dataclass(kw_only=True)
class TaskWaits:
    """One task's part of a batch. ``told``: who waits no longer, in order. ``waiters``: who waits,
    by number; ``waiting``: their numbers by key. ``gone``: from the store. ``retimed``: waiters of
    the store, as they are there, that wait from now on, because the clock by which they came is
    ahead of the present one."""

    room: WaitingRoom
    events: TaskEvents
    by_time: DueQueue
    by_clock: DueQueue
    told: list[Told] = field(default_factory=list)
    waiters: dict[int, Waiter] = field(default_factory=dict)
    waiting: dict[bytes, dict[int, None]] = field(default_factory=dict)
    gone: list[Waiter] = field(default_factory=list)
    retimed: dict[int, Waiter] = field(default_factory=dict)
    next_number: int = 0
    first_number: int = 0

    @staticmethod
    def of(room: WaitingRoom, events: TaskEvents, view: StoreView) -> TaskWaits:
        found = TaskWaits(
            room=room,
            events=events,
            by_time=DueQueue(index=_BY_TIME, view=view),
            by_clock=DueQueue(index=_BY_CLOCK, view=view),
        )
        found._load(view)
        found._take_events()
        return found

    @property
    def stays(self) -> list[Waiter]:
        """Records of the batch that wait now."""
        return [one for one in self.waiters.values() if one.row >= 0]

    def written(self, stored: Sequence[bytes]) -> list[StoreChanges]:
        """The store's changes; ``stored``: what the waiters of `stays` are."""
        made, stream_time = Changes(), self.events.stream_time
        for one in self.gone:
            for place in self.room.places(one):
                made.add(place, None, stream_time)
        for old in self.retimed.values():
            made.add(self.room.places(old)[-1], None, stream_time)
        again = [self.waiters[number] for number in self.retimed]
        data_of = [*stored, *(one.stored for one in again)]
        for one, data in zip([*self.stays, *again], data_of, strict=True):
            under_key, *due = self.room.places(one)
            made.add(under_key, _TIMES.pack(one.time, one.came) + data, one.time)
            for place in due:
                made.add(place, one.key, one.time)
        if self.next_number != self.first_number:
            made.add(_NEXT, _NUMBER.pack(self.next_number), stream_time)
        return made.of(self.room.store.name)

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
        room, events, listed = self.room, self.events, list[Entry]()
        if room.grace_ms is not None and len(events.stream_times):
            listed += self.by_time.load(int(events.stream_times[-1]) - room.grace_ms - 1)
        if room.timeout_ms is not None and events.now_ms is not None:
            listed += self.by_clock.load(events.now_ms - room.timeout_ms)
            listed += _BY_CLOCK.stored(view, None, events.now_ms + room.timeout_ms)
        due = {_number_of(place): key[TIMESTAMP_BYTES:] for place, key in listed}
        more = [(n, key) for n, key in due.items() if n not in self.waiters]
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
        self._add(waiter)

    # --- events ----------------------------------------------------------------------------------

    def _take_events(self) -> None:
        """Misses and updates in the order of their places. What is due at a record's place is told
        before the record waits itself; an update has a place of its own."""
        events = self.events
        missed = {key for _, key in events.misses}
        misses = [(int(events.places[at]), at, key, True) for at, key in events.misses]
        updates = [
            (place, row, key, False)
            for place, row, key in events.updates
            if key in self.waiting or key in missed
        ]
        ordered = sorted(misses + updates, key=lambda one: one[:2])
        places = [place for place, *_ in ordered]
        seen = np.searchsorted(events.places, places, side="right").tolist()
        for (place, one, key, is_miss), count in zip(ordered, seen, strict=True):
            self._tell_due(count)
            if is_miss:
                self._wait(place, one, key)
            else:
                self._release(place, one, key)
        self._tell_due(len(events.stream_times))
        if self.room.timeout_ms is not None and events.now_ms is not None:
            while due := self.by_clock.pop(events.now_ms - self.room.timeout_ms):
                self._time_over(BEHIND_ALL, _number_of(due.rest))

    def _tell_due(self, count: int) -> None:
        """Who is due with the first ``count`` records."""
        running, grace_ms = self.events.stream_times, self.room.grace_ms
        if grace_ms is None or not count:
            return
        while due := self.by_time.pop(int(running[count - 1]) - grace_ms - 1):
            at = int(np.searchsorted(running, due.time + grace_ms, side="right"))
            self._time_over(int(self.events.places[at]), _number_of(due.rest))

    def _wait(self, place: int, at: int, key: bytes) -> None:
        time, row = int(self.events.times[at]), int(self.events.rows[at])
        waiter = Waiter(self.next_number, time, self.events.now_ms or 0, key, row)
        grace_ms, stream_time = self.room.grace_ms, int(self.events.stream_times[at])
        if grace_ms is not None and waiter.since + grace_ms < stream_time:
            self.told.append(Told(place, waiter, NO_ROW))
            return
        self.next_number += 1
        self._add(waiter)
        self.by_time.put(waiter.since, _NUMBER.pack(waiter.number))
        waiters = self.waiting[key]
        if self.room.most is not None and len(waiters) > self.room.most:
            self._time_over(place, min(waiters))

    def _add(self, waiter: Waiter) -> None:
        self.waiters[waiter.number] = waiter
        self.waiting.setdefault(waiter.key, {})[waiter.number] = None

    def _time_over(self, place: int, number: int) -> None:
        waiter = self.waiters.get(number)
        if waiter is not None:
            del self.waiting[waiter.key][number]
            self._end(place, waiter, NO_ROW)

    def _release(self, place: int, row: int, key: bytes) -> None:
        for number in sorted(self.waiting.pop(key, {})):
            self._end(place, self.waiters[number], row)

    def _end(self, place: int, waiter: Waiter, found: int) -> None:
        del self.waiters[waiter.number]
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
