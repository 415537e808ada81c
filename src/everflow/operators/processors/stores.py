"""The stores of a processor: Python values over a task's entries, with what the batch has changed.

What is written is seen by the next read, goes into the changelog with the batch's commit, a key
once, and is gone if the batch fails. Times in ms. Keys and values that the store's serdes cannot
write raise SerdeError.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, NoReturn, Protocol, cast

import numpy as np

from everflow import serdes
from everflow.foreign_names import Telling
from everflow.operators.joins.joined_table import JoinedTable
from everflow.operators.time_to_live import ENDS
from everflow.records import EdgeBatch, StoreChanges
from everflow.serdes import Serde
from everflow.serdes.base import decode_one
from everflow.serdes.windowed import (
    session_key,
    window_store_key,
)
from everflow.state.changelog import expiry_time, expiry_times, pack_value, unpack_value
from everflow.state.key_ranges import KeyReads, SessionReads, StoreReads, WindowReads
from everflow.state.store import (
    OPEN,
    History,
    Overlay,
    StoreSpec,
    StoreView,
    Version,
    VersionedRecord,
    VersionsView,
    begins_after,
    put,
    record_as_of,
    records_of,
    versions_of,
)
from everflow.windows import Windowed

Stored = tuple[int, Any]
"""Time of a stored value, and what `Values` reads: its bytes."""


class ShownValue(NamedTuple):
    """A value as its table shows it, which the batch has brought: nobody has to write it."""

    value: Any


def entry_with(time: int, value: Any) -> Any:
    """The entry of a value's bytes, or of a `ShownValue`; None for None."""
    if value is None or isinstance(value, ShownValue):
        return None if value is None else (time, value)
    return pack_value(time, value)


def read_entry(entry: Any) -> Stored:
    """Time and value of a store's entry, or of one that `entry_with` has made."""
    return entry if isinstance(entry, tuple) else unpack_value(entry)


class Values(Protocol):
    """Reads and writes stored values: a serde, mostly."""

    def encode(self, value: Any, /) -> Any: ...
    def decode(self, data: Any, /) -> Any: ...


class Entries:
    """The bytes of a store in one task: what was committed, and the batch's changes on top."""

    newest_ms: int | None = None
    """The own time of a table's store, with the updates so far; None of a processor's store."""

    def __init__(
        self,
        spec: StoreSpec,
        view: StoreView,
        values: Values | None = None,
    ) -> None:
        self.spec = spec
        self.values = values or spec.value_serde
        self._view = view
        self._read: dict[bytes, Stored | None] = {}
        self._top: Overlay[Stored] = Overlay(view, read_entry)
        self._changed: dict[bytes, None] = {}

    def load(self, keys: list[bytes]) -> None:
        """Read what will be asked for, by one call."""
        wanted = [key for key in keys if key not in self._read]
        for key, stored in zip(wanted, self._view.get_many(wanted), strict=True):
            self._read[key] = None if stored is None else read_entry(stored)

    def get(self, key: bytes) -> Stored | None:
        if key in self._top:
            return self._top.get(key)
        if key not in self._read:
            self.load([key])
        return self._read[key]

    def put(self, key: bytes, value: Any, time: int) -> None:
        """A new value at a time, None: none any more."""
        self._changed.pop(key, None)  # it is the last one written
        self._changed[key] = None
        self._top.put(key, None if value is None else (time, value))

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Stored]]:
        """Entries ``start <= key < end`` in key order, as they are now, read as they are taken."""
        return self._top.range(start, end, reverse=reverse)

    def entries(self) -> int:
        return self._top.entries()

    def changes(self, deleted_at: int) -> StoreChanges:
        """The changes, the last of each key, in the order in which they were written."""
        entries = [self._top.get(key) for key in self._changed]
        return StoreChanges(
            self.spec.name,
            list(self._changed),
            [None if entry is None else entry[1] for entry in entries],
            np.array([deleted_at if entry is None else entry[0] for entry in entries], np.int64),
        )


class StoreClock(NamedTuple):
    """``now``: the time of what a processor writes (ms); ``stream_time``: what its store has left
    behind by its retention is behind this one."""

    now: Callable[[], int]
    stream_time: Callable[[], int]


class _Named(Telling):
    def __init__(self, entries: Entries | VersionEntries) -> None:
        self._spec: StoreSpec = entries.spec
        self._keys: Serde = entries.spec.key_serde
        self._values = entries.values

    @property
    def name(self) -> str:
        """The declared name of the store, without the application's id."""
        return self._spec.name

    def _key(self, key: Any) -> bytes:
        found = self._keys.encode(key)
        if found is None:
            raise ValueError(f"store {self.name!r}: a key is not null")
        return found


class _Store(_Named, StoreReads):
    """A store with an order of keys. A longer result is a snapshot of the moment of the call and is
    read lazily, so the first entry of a large store is available at once. Read it before the batch
    ends."""

    def __init__(self, entries: Entries, clock: StoreClock) -> None:
        super().__init__(entries)
        self._entries, self._clock = entries, clock

    def approximate_num_entries(self) -> int:
        """Returns the approximate number of entries. A key-value store with ``ttl`` first deletes
        expired rows; in other stores expired windows and sessions may be counted for a while."""
        return self._entries.entries()

    def _kept(self, time: int) -> bool:
        oldest = self._oldest()
        return oldest is None or time > oldest

    def _oldest(self) -> int | None:
        """Entries that expire at this time, or before it, have expired; None: none does."""
        retention = self._spec.retention_ms
        return None if retention is None else self._clock.stream_time() - retention

    def _put(self, key: bytes, value: Any) -> None:
        self._entries.put(key, value, self._clock.now())

    def _scan(
        self,
        start: bytes | None,
        end: bytes | None,
        keep: Callable[[bytes], bool] | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        lives = self._lives_now()
        found = self._entries.range(start, end, reverse=reverse)
        return (
            (self._decode_key(key), self._values.decode(value))
            for key, (_, value) in found
            if (keep is None or keep(key)) and (lives is None or lives(key))
        )

    def _lives_now(self) -> Callable[[bytes], bool] | None:
        oldest, kind = self._oldest(), self._spec.kind
        if oldest is None or not self._spec.expires:
            return None
        return lambda key: expiry_time(key, kind) > oldest


class KeyValueStore(KeyReads, _Store):
    """A store with a value per key. A written value has the time of the current record, or of the
    punctuator's call. A range does not see later writes. Use the store on its task's thread."""

    def get(self, key: Any, default: Any = None) -> Any:
        """Returns the value of ``key``, or ``default`` if there is none."""
        entry = self._entries.get(self._key(key))
        return default if entry is None else self._values.decode(entry[1])

    def get_with_timestamp(self, key: Any) -> tuple[Any, int] | None:
        """Returns value and time (ms) of ``key``, or None if there is none."""
        entry = self._entries.get(self._key(key))
        return None if entry is None else (self._values.decode(entry[1]), entry[0])

    def get_all(self, keys: Iterable[Any]) -> list[Any]:
        """Returns the values of many keys with one read; None for a key without a value."""
        written = [self._key(key) for key in keys]
        self._entries.load(written)
        found = [self._entries.get(key) for key in written]
        return [None if entry is None else self._values.decode(entry[1]) for entry in found]

    def put(self, key: Any, value: Any) -> None:
        """Sets the value of ``key``; None deletes it."""
        self._put(self._key(key), self._values.encode(value))

    def put_all(self, entries: Iterable[tuple[Any, Any]]) -> None:
        """Calls `put` for each pair of key and value."""
        for key, value in entries:
            self.put(key, value)

    def put_if_absent(self, key: Any, value: Any) -> Any:
        """Returns the value of ``key``. If there is none, sets ``value`` and returns None."""
        known = self.get(key)
        if known is None:
            self.put(key, value)
        return known

    def delete(self, key: Any) -> Any:
        """Deletes ``key`` and returns the value that it had, or None."""
        known = self.get(key)
        if known is not None:
            self.put(key, None)
        return known


class WindowStore(WindowReads, _Store):
    """A store with a value per key and window start. Windows that started ``retention`` or longer
    before stream time are neither returned nor written. Times are window *starts* in ms, both ends
    included; keys of results are `Windowed`. Use the store on its task's thread."""

    def put(self, key: Any, value: Any, window_start: int) -> None:
        """Sets the value of the window that starts at ``window_start``; None deletes it."""
        if self._kept(window_start):
            place = window_store_key(self._key(key), window_start)
            self._put(place, self._values.encode(value))

    def fetch_window(self, key: Any, start: int) -> Any:
        """Returns the value of the window that starts at ``start``, or None if there is none."""
        if not self._kept(start):
            return None
        entry = self._entries.get(window_store_key(self._key(key), start))
        return None if entry is None else self._values.decode(entry[1])


class SessionStore(SessionReads, _Store):
    """A store with a value per session: a key with start and end. Sessions that ended ``retention``
    or longer before stream time are neither returned nor written. ``find_sessions`` and its
    variants return the sessions that end at ``earliest_end`` or later and start at ``latest_start``
    or earlier. Use the store on its task's thread."""

    def put(self, session: Windowed, value: Any) -> None:
        """Sets the value of a session; None deletes it."""
        if self._kept(session.end):
            place = session_key(self._key(session.key), session.start, session.end)
            self._put(place, self._values.encode(value))

    def remove(self, session: Windowed) -> None:
        """Deletes a session, as `put` with None."""
        self.put(session, None)

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        """Returns the value of the session from ``start`` to ``end``, or None if there is none."""
        entry = self._entries.get(session_key(self._key(key), start, end))
        if entry is None or not self._kept(end):
            return None
        return self._values.decode(entry[1])


KINDS: dict[str, type[KeyValueStore | WindowStore | SessionStore]] = {
    "key_value": KeyValueStore,
    "window": WindowStore,
    "session": SessionStore,
}
"""The class that shows a store, by its kind."""


# --- a processor's versioned store (KIP-889), over a task's versions and those of the batch -------


class VersionEntries:
    """The versions of a store in one task: committed ones, and the batch's on top."""

    newest_ms: int | None = None
    """See `Entries`."""

    def __init__(
        self,
        spec: StoreSpec,
        view: StoreView,
        values: Values | None = None,
    ) -> None:
        self.spec = spec
        self.values = values or spec.value_serde
        self._view = cast(VersionsView, view)
        self._puts: list[tuple[bytes, bytes | None, int]] = []
        self._put_of: dict[bytes, History] = {}
        self._latest: Overlay[bytes] = Overlay(view, lambda entry: read_entry(entry)[1])
        self.stream_time = self._view.stream_time

    def versions_many(self, asked: Sequence[tuple[bytes, int, int]]) -> list[list[Version]]:
        expired = self.stream_time - (self.spec.retention_ms or 0)
        below = self._view.versions_many(asked)
        return [
            [
                one
                for one in self._with_puts(key, committed, first, last)
                if one.end > max(first, expired) and one.start <= last
            ]
            for (key, first, last), committed in zip(asked, below, strict=True)
        ]

    def latest_many(self, keys: Sequence[bytes]) -> list[tuple[int, bytes | None] | None]:
        found = self._view.latest_many(keys)
        for at, key in enumerate(keys):
            known = found[at]
            mine = self._put_of.get(key)
            if mine and (known is None or mine[-1][0] >= known[0]):
                found[at] = mine[-1]
        return found

    def begins_after(self, key: bytes, time: int) -> int:
        return min(
            self._view.begins_after(key, time), begins_after(self._put_of.get(key, []), time)
        )

    def put(self, key: bytes, value: bytes | None, time: int) -> int | None:
        """A version's end; None: it is older than the history, and ignored."""
        if time < self.stream_time - (self.spec.retention_ms or 0):
            return None
        self.stream_time = max(self.stream_time, time)
        self._puts.append((key, value, time))
        put(self._put_of.setdefault(key, []), time, value)
        (latest,) = self.latest_many([key])
        assert latest is not None  # there is this one
        if latest[0] == time:
            self._latest.put(key, value)
            return OPEN
        committed = self._view.versions_many([(key, time, time)])[0]
        return next(
            one.end for one in self._with_puts(key, committed, time, time) if one.start == time
        )

    def latest(self) -> Iterator[tuple[bytes, bytes]]:
        """The latest version of each key that has a value, by the keys' bytes, as they are now."""
        return self._latest.range(None, None)

    def changes(self, deleted_at: int) -> StoreChanges:
        """All versions that were put, in their order; each has its own time."""
        return StoreChanges(
            self.spec.name,
            [key for key, _, _ in self._puts],
            [value for _, value, _ in self._puts],
            np.array([time for _, _, time in self._puts], np.int64),
        )

    def _with_puts(
        self, key: bytes, committed: list[Version], first: int, last: int
    ) -> Iterable[Version]:
        """The committed versions of an interval, and the batch's."""
        mine = self._put_of.get(key)
        if not mine:
            return committed
        begin = max(0, bisect_right(mine, first, key=itemgetter(0)) - 1)
        end = bisect_right(mine, last, key=itemgetter(0))
        starts = {one.start: one.value for one in committed} | dict(mine[begin:end])
        history = sorted(starts.items(), key=itemgetter(0))
        behind = mine[end][0] if end < len(mine) else OPEN
        if history:
            after = committed[-1].end if committed else self._view.begins_after(key, last)
            behind = min(behind, after)
        return versions_of(history, behind)


class VersionedStore(_Named):
    """A store of versions of each key's value: those within the version retention (counted from the
    highest time of a put), and the latest. Times in ms. ``get`` returns a `VersionedRecord`, as in
    Kafka Streams; in a query, the latest value only. Use the store on its task's thread."""

    VALID_TO_UNDEFINED = -1
    """`put` returns it for a version that is the latest."""
    NOT_PUT = -(1 << 63)
    """`put` returns it for a version that is older than the history."""

    def __init__(self, entries: VersionEntries) -> None:
        super().__init__(entries)
        self._entries = entries

    def put(self, key: Any, value: Any, timestamp: int) -> int:
        """Adds a version that is valid from ``timestamp``; None deletes the key from then on.
        Returns the end of the version: the time of the next version, `VALID_TO_UNDEFINED` for the
        latest, or `NOT_PUT` if the version is older than the version retention."""
        end = self._entries.put(self._key(key), self._values.encode(value), timestamp)
        if end is None:
            return self.NOT_PUT
        return self.VALID_TO_UNDEFINED if end == OPEN else end

    def delete(self, key: Any, timestamp: int) -> VersionedRecord | None:
        """Deletes the value of ``key`` from ``timestamp`` on. Returns the version that was valid
        then."""
        found = self.get(key, timestamp)
        return None if self.put(key, None, timestamp) == self.NOT_PUT else found

    def get(self, key: Any, as_of: int | None = None) -> VersionedRecord | None:
        """Returns the latest version of ``key``, or the one that was valid at ``as_of``. Returns
        None if there was no value then, or if ``as_of`` lies before the version retention and the
        version of that time is not the latest."""
        history_ms = self._spec.retention_ms or 0
        time = OPEN - 1 if as_of is None else as_of
        return record_as_of(
            self._entries,
            self._key(key),
            time,
            history_ms,
            self._values.decode,
        )

    def get_as_of(self, key: Any, as_of: int) -> VersionedRecord | None:
        """As `get` with ``as_of``, under the name that queries use."""
        return self.get(key, as_of)

    def versions(
        self, key: Any, time_from: int = 0, time_to: int = OPEN - 1
    ) -> list[VersionedRecord]:
        """Returns the versions of ``key`` that were valid at a time from ``time_from`` to
        ``time_to``, both included, in order of time, without deletions."""
        found = self._entries.versions_many([(self._key(key), time_from, time_to)])[0]
        return records_of(found, self._values.decode)

    def all(self) -> Iterator[tuple[Any, Any]]:
        """Returns key and latest value of every key that has a value, ordered by the keys'
        bytes."""
        found = self._entries.latest()
        return ((self._keys.decode(key), self._values.decode(value)) for key, value in found)


# --- the stores of tables, for processors to read (note 040) --------------------------------------
# A processor sees a table as of its record, with the batch's updates up to there. It only reads it.


class _TableValues:
    """Reads what a table's store holds, and what the batch has brought."""

    def __init__(self, name: str, decode: Callable[[bytes], Any]) -> None:
        self._name, self._decode = name, decode

    def decode(self, data: Any) -> Any:
        return data.value if isinstance(data, ShownValue) else self._decode(data)

    def encode(self, value: Any) -> NoReturn:
        raise TypeError(
            f"store {self._name!r} is a table's, and only the table writes it: write to its topic, "
            f"or into a store of the processor's own"
        )


def shown_changes(table: JoinedTable, batch: EdgeBatch) -> StoreChanges:
    """The updates of a table, as changes of its store with `ShownValue`s for bytes."""
    values: list[Any] = [
        None if value is None else ShownValue(value) for value in batch.value.to_pylist()
    ]
    keys = table.keys_of(batch).to_pylist()
    return StoreChanges(table.spec.name, keys, values, batch.timestamp)


class Updates:
    """The updates of a table in one task, put one by one; ``entries``: its store as before."""

    def __init__(self, table: JoinedTable, batch: EdgeBatch, view: StoreView) -> None:
        results = table.results
        decode = getattr(results, "decode", None) or partial(decode_one, results)
        values = _TableValues(table.spec.name, decode)
        made = VersionEntries if table.spec.versioned else Entries
        self.entries: Entries | VersionEntries = made(table.spec, view, values)
        self.entries.newest_ms = self._newest_ms = view.newest_ms
        self._changes = shown_changes(table, batch)
        self._times = batch.timestamp.tolist()

    def put(self, first: int, last: int) -> None:
        keys, values, spec = self._changes.keys, self._changes.values, self.entries.spec
        for at in range(first, last):
            self.entries.put(keys[at], values[at], self._times[at])
        if spec.expires and first < last:
            written = int(expiry_times(keys[first:last], spec.kind).max())
            self.entries.newest_ms = self._newest_ms = max(self._newest_ms, written)


def global_entries(spec: StoreSpec, view: StoreView) -> Entries:
    entries = Entries(spec, view, _TableValues(spec.name, spec.value_serde.decode))
    entries.newest_ms = view.newest_ms
    return entries


# --- a processor's key-value store whose entries end: ``Stores.key_value(ttl=)`` (note 030) -------
# An entry lives until the store's stream time has reached its own time and ``retention_ms`` of its
# spec; it is taken out behind the batch. An index, the store ``<store>-ttl``, says which are due.


def index_of(spec: StoreSpec) -> StoreSpec | None:
    """The store of the times at which entries of ``spec`` are checked; None: they do not end."""
    if spec.kind != "key_value" or spec.retention_ms is None:
        return None
    return StoreSpec(
        name=f"{spec.name}-ttl",
        kind="key_value",
        key_serde=serdes.bytes_(),
        value_serde=serdes.bytes_(),
        logging=spec.logging,
        in_memory=spec.in_memory,
        where=spec.where,
    )


class EndingEntries(Entries):
    """The entries of such a store in one task. The index has a key for each, not later than its
    end, and maybe some for what has been deleted since."""

    def __init__(
        self, spec: StoreSpec, view: StoreView, index: Entries, stream_time: Callable[[], int]
    ) -> None:
        super().__init__(spec, view)
        self._index, self._stream_time = index, stream_time
        self._ttl_ms = spec.retention_ms or 0

    def get(self, key: bytes) -> Stored | None:
        """The entry of a key, as long as it lives."""
        entry = super().get(key)
        return entry if entry is not None and self._lives(entry[0]) else None

    def put(self, key: bytes, value: object, time: int) -> None:
        """As of `Entries`; a value that would have ended already changes nothing."""
        if value is not None:
            if not self._lives(time):
                return
            known = super().get(key)
            if known is None or time < known[0]:
                self._index.put(ENDS.key(time + self._ttl_ms, key), b"", time)
        super().put(key, value, time)

    def range(
        self, start: bytes | None, end: bytes | None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, Stored]]:
        """See `Entries`; those that live now."""
        ended = self._stream_time() - self._ttl_ms
        found = super().range(start, end, reverse=reverse)
        return ((key, entry) for key, entry in found if entry[0] > ended)

    def entries(self) -> int:
        """See `Entries`; what has ended is taken out first, each once."""
        self.take_out_ended()
        return super().entries()

    def take_out_ended(self) -> None:
        """Entries that have ended are deleted; one that was due and lives on is checked again."""
        now = self._stream_time()
        due = [key for key, _ in self._index.range(None, ENDS.key(now + 1))]
        self.load(list(dict.fromkeys(map(ENDS.rest_of, due))))
        for stored_key in due:
            self._index.put(stored_key, None, now)
            key = ENDS.rest_of(stored_key)
            entry = super().get(key)
            if entry is None:
                continue
            if self._lives(entry[0]):
                self._index.put(ENDS.key(entry[0] + self._ttl_ms, key), b"", entry[0])
            else:
                super().put(key, None, now)

    def _lives(self, time: int) -> bool:
        return time + self._ttl_ms > self._stream_time()
