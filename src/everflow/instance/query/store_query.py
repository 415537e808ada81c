"""Read-only stores for users: committed content of this instance, page by page (KIP-67, D4). Each
page is one short read transaction: an open one pins the store's pages."""

from __future__ import annotations

import copy
import operator
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import pyarrow as pa

from everflow.errors import RetriableError, StoreMismatchError
from everflow.foreign_names import spelled_here
from everflow.serdes.base import ResultDecoder, SerdeError
from everflow.serdes.windowed import TIME_MAX, session_key, window_store_key
from everflow.snapshots.entry_columns import EntryColumns
from everflow.snapshots.query_errors import (
    InvalidStateStoreError,
    StateMovingError,
    StoreKindError,
)
from everflow.snapshots.snapshot import Rows, batches, opened, scratch_folder
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.state.key_ranges import (
    KeyRange,
    KeyReads,
    SessionReads,
    StoreReads,
    TimedReads,
    WindowReads,
)
from everflow.state.lmdb_env import StoreClosedError
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec, VersionedRecord, VersionsView, record_as_of, records_of
from everflow.state.store_snapshot import StoreSnapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


PAGE_ENTRIES = 1_000
PAGE_BYTES = 1 << 20
ATTEMPTS = 3
"""A read retries so often if its store was closed or removed."""

Entry = tuple[bytes, bytes]
_Asked = tuple[bytes | None, bytes | None, Callable[[bytes], bool] | None]
"""As `KeyRange` has it; no ``keep``: all keys between the bounds."""
_Read = TypeVar("_Read")
_Store = TypeVar("_Store", bound="ReadOnlyStore")


class EntryPlace(NamedTuple):
    partition: int
    key: bytes


class StoreScan(Iterator[tuple[Any, Any]]):
    """A longer result, entry by entry. ``place``: of the last entry, None before the first."""

    def __init__(
        self, found: Iterator[tuple[EntryPlace, bytes]], decode: Callable[[bytes, bytes], Any]
    ) -> None:
        self._found, self._decode = found, decode
        self.place: EntryPlace | None = None

    def __next__(self) -> Any:
        self.place, stored = next(self._found)
        return self._decode(self.place.key, stored)


class StoreReader(ABC):
    """Pages of the replicas of one store that a query may read now; any thread. Follows a store to
    a new path, fails once its task has moved away. One entry may be larger than ``page_bytes``."""

    page_entries = PAGE_ENTRIES
    page_bytes = PAGE_BYTES
    stale = False

    @abstractmethod
    def readable(self) -> Sequence[int]:
        """Partitions with a readable copy here, sorted; empty if there is none."""

    @abstractmethod
    def path(self, partition: int) -> Path:
        """Folder of a replica; InvalidStateStoreError if there is none or it lags too far."""

    @abstractmethod
    def active_paths(self) -> Mapping[int, Path]: ...
    @abstractmethod
    def home(self, key: bytes) -> int: ...

    @abstractmethod
    def require_some(self) -> None:
        """InvalidStateStoreError if no replica can be read."""

    def lag(self, partition: int) -> int | None:
        """Offsets that the partition's replica is behind its changelog; None: not known."""
        return None

    def read(
        self, partition: int, body: Callable[[StoreSnapshot], _Read], path: Path | None = None
    ) -> _Read:
        """``body`` on a snapshot of the partition's replica. ``path``: its last known path."""

        def shown(store: LmdbStore) -> _Read:
            with store.snapshot() as view:
                return body(view)

        return self.of_copy(partition, shown, path)

    def of_copy(
        self, partition: int, body: Callable[[LmdbStore], _Read], path: Path | None = None
    ) -> _Read:
        """``body`` on the partition's replica, again if that is removed meanwhile. See `read`."""
        failure: Exception | None = None
        for _ in range(ATTEMPTS):
            where = path or self.path(partition)
            try:
                return body(LmdbStore.open(where))
            except (StoreMismatchError, StoreClosedError) as error:  # removed or closed meanwhile
                failure, path = error, None
        raise StateMovingError(
            f"Partition {partition} of the store is being rebuilt: retry shortly. ({failure})"
        ) from failure

    def entries(
        self, partition: int, start: bytes | None, end: bytes | None, reverse: bool = False
    ) -> Iterator[Entry]:
        """Entries with ``start <= key < end`` in order of key bytes, falling with ``reverse``."""
        while True:
            page, more = self.read(
                partition,
                lambda view, start=start, end=end: self._page(view, start, end, reverse),  # type: ignore[misc]
            )
            yield from page
            if not more:
                return
            if reverse:
                end = page[-1][0]
            else:
                start = page[-1][0] + b"\x00"

    def _page(
        self, view: StoreSnapshot, start: bytes | None, end: bytes | None, reverse: bool
    ) -> tuple[list[Entry], bool]:
        page: list[Entry] = []
        size = 0
        for entry in view.range(start, end, reverse=reverse):
            if page and (len(page) >= self.page_entries or size >= self.page_bytes):
                return page, True
            page.append(entry)
            size += len(entry[0]) + len(entry[1])
        return page, False


class ReadOnlyStore(StoreReads):
    """A store's part on this instance, by default of active tasks; safe from any thread.

    `KafkaStreams.store` returns one by the store's kind: `ReadOnlyKeyValueStore`,
    `ReadOnlyWindowStore` or `ReadOnlySessionStore`; keys and values are decoded as in the table.
    Nothing is cached: each call reads the tasks and the committed content of its moment, so an
    object may be kept as long as the instance. Iterators read page by page. Each page is committed
    content of one moment, no key is returned twice, and partitions follow one another.

    Every query may raise InvalidStateStoreError: StateMovingError (retry), StateElsewhereError
    (names the owner), StaleStateError (the replica lags). An iterator may also raise one later, if
    its partition migrates. SerdeError: the key is not of the store's type.
    """

    def __init__(
        self,
        spec: StoreSpec,
        reader: StoreReader,
        decode: Callable[[bytes], Any],
        results: ResultDecoder | None = None,
    ) -> None:
        """``decode``, ``results``: the plan's `value_decoder` and `value_results`."""
        self.spec = self._spec = spec
        self._keys = spec.key_serde
        self._reader = reader
        self._decode = decode
        self._results = results or spec.value_serde
        self._behind: EntryPlace | None = None

    def behind(self: _Store, place: EntryPlace | None) -> _Store:
        """A copy of this object (not of the data) that continues a query: its iterators start after
        ``place``, which an iterator of that query had as its attribute ``place``."""
        found = copy.copy(self)
        found._behind = place
        return found

    @property
    def partitions(self) -> tuple[int, ...]:
        """The partitions that this instance can read now. If there are none, queries fail."""
        return tuple(self._reader.readable())

    def approximate_num_entries(self) -> int:
        """Number of entries that can be read here; expired windows count until they are removed."""
        return sum(
            self._reader.read(partition, StoreSnapshot.entries) for partition in self._ready()
        )

    def to_dataframe(
        self, spark: SparkSession | None = None, *, folder: str | Path | None = None
    ) -> DataFrame:
        """All entries of the partitions that this instance can read, as a DataFrame with the
        columns of `everflow.read_state`. If the store was opened with ``stale=True``, another
        column, ``lag``, has the offsets by which a row's replica lags its changelog (0: the active
        task, null: not known). Rows are written as Parquet files to ``folder`` (default: TMPDIR),
        where they stay until the process ends.

        Each partition is the committed content of one moment, copied while batches continue.

        Args:
            spark: by default everflow's session.
            folder: an existing folder on a local disk.

        Raises InvalidStateStoreError as every query; SerdeError for bytes that the serdes do not
        read; StateDiskError where the disk has no room; SetupError for a Spark that is not local.
        """
        from everflow.snapshots.frames import to_dataframe

        columns = EntryColumns(self.spec, self._results, lag=self._reader.stale)
        where = None if folder is None else Path(folder)
        return to_dataframe(
            rows_of(
                columns,
                self._reader,
                self._ready(),
                where,
            ),
            spark,
            where,
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        have = ", ".join(
            sorted(
                n
                for n in dir(type(self))
                if not n.startswith("_") and callable(getattr(type(self), n))
            )
        )
        here = spelled_here(name, dir(type(self)))
        hint = f"It is {here} here." if here else f"It has: {have}."
        raise StoreKindError(
            f"Store {self.spec.name!r} is a {self.spec.kind} store: it has no {name}(). {hint}"
        )

    def _scan(
        self,
        start: bytes | None,
        end: bytes | None,
        keep: Callable[[bytes], bool] | None = None,
        *,
        reverse: bool = False,
    ) -> Iterator[tuple[Any, Any]]:
        first = 0 if self._behind is None else self._behind.partition
        partitions = [partition for partition in self._ready() if partition >= first]
        asked = start, end, keep
        found = (self._entries(partition, asked, reverse) for partition in partitions)
        return StoreScan(chain.from_iterable(found), self._shown)

    def _entries(
        self, partition: int, asked: _Asked, reverse: bool
    ) -> Iterator[tuple[EntryPlace, bytes]]:
        (start, end, keep), behind = asked, self._behind
        if behind is not None and behind.partition == partition:
            if reverse:
                end = behind.key if end is None else min(end, behind.key)
            else:
                start = max(start or b"", behind.key + b"\x00")
        for key, stored in self._reader.entries(partition, start, end, reverse):
            if keep is None or keep(key):
                yield EntryPlace(partition, key), stored

    def _ready(self) -> Sequence[int]:
        """The readable partitions. Raises at the call, not at the first entry."""
        self._reader.require_some()
        partitions = self.partitions
        if self._behind is not None:  # else half a result would seem complete
            self._reader.path(self._behind.partition)
        for partition in partitions:
            self._reader.path(partition)
        return partitions

    def _lookup(self, key: bytes, stored_key: bytes) -> Any:
        found = self._first(key, lambda view: view.get(stored_key))
        return None if found is None else self._value(found)

    def _first(
        self,
        key: bytes,
        ask: Callable[[StoreSnapshot], _Read | None],
    ) -> _Read | None:
        for partition in self._places_of(key):
            if found := self._reader.read(partition, ask):
                return found
        return None

    def _scan_of(
        self,
        key: bytes,
        asked: KeyRange,
        *,
        reverse: bool,
    ) -> Iterator[tuple[Any, Any]]:
        return StoreScan(self._entries_of(key, asked, reverse), self._shown)

    def _entries_of(
        self, key: bytes, asked: KeyRange, reverse: bool
    ) -> Iterator[tuple[EntryPlace, bytes]]:
        places = self._places_of(key) if self._behind is None else [self._behind.partition]
        for partition in places:
            found = False
            for entry in self._entries(partition, asked, reverse):
                found = True
                yield entry
            if found:
                return

    def _shown(self, key: bytes, stored: bytes) -> tuple[Any, Any]:
        return self._decode_key(key), self._value(stored)

    def _places_of(self, key: bytes) -> Iterator[int]:
        """Its own partition, then the others here, for the topic's writer may partition otherwise.
        If its own is not here, the last step raises: "not found" would be a guess."""
        home = self._reader.home(key)
        here = self.partitions
        if home in here:
            yield home
        yield from (
            partition for partition in here if partition != home and self._can_be_read(partition)
        )
        if home not in here:
            self._reader.path(home)
            yield home  # it has arrived meanwhile

    def _can_be_read(self, partition: int) -> bool:
        """False is no reason to refuse a key of another partition."""
        try:
            self._reader.path(partition)
        except (InvalidStateStoreError, RetriableError):
            return False
        return True

    def _key(self, key: Any) -> bytes:
        return key_bytes(self.spec, key)

    def _value(self, stored: bytes) -> Any:
        return self._decode(stored[TIMESTAMP_BYTES:])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.spec.name}>"


class ReadOnlyKeyValueStore(KeyReads, ReadOnlyStore):
    """Queries of a key-value store, as Kafka Streams' ReadOnlyKeyValueStore."""

    def get(self, key: Any) -> Any:
        """The value of ``key``, None if it has none. Raises StateElsewhereError if another instance
        has the key's partition."""
        data = self._key(key)
        return self._lookup(data, data)


def values_at_home(
    store: ReadOnlyStore,
    keys: Sequence[tuple[bytes, bytes]],
    decode: Callable[[bytes], Any] | None = None,
) -> list[Any]:
    """Values of many keys (as bytes, and as stored), each partition read at one moment. None: ask
    for that key alone. ``decode`` reads one value; None: they are decoded together."""
    reader = store._reader
    paths, asked = reader.active_paths(), defaultdict[int, list[int]](list)
    for number, (key, _) in enumerate(keys):
        asked[reader.home(key)].append(number)
    values: list[bytes | None] = [None] * len(keys)
    for partition, numbers in asked.items():
        if partition not in paths:
            continue
        wanted = [keys[number][1] for number in numbers]
        found = reader.read(
            partition,
            lambda view, wanted=wanted: list(map(view.get, wanted)),  # type: ignore[misc]
            paths[partition],
        )
        for number, stored in zip(numbers, found, strict=True):
            values[number] = None if stored is None else stored[TIMESTAMP_BYTES:]
    if decode is None:
        decoded: list[Any] = store._results.decode_array(pa.array(values, pa.binary())).to_pylist()
        return decoded
    return [None if value is None else decode(value) for value in values]


def key_bytes(spec: StoreSpec, key: Any) -> bytes:
    """Bytes of a store's key; SerdeError names the store and the type it takes."""
    try:
        data = spec.key_serde.encode(key)
    except SerdeError as error:
        raise SerdeError(f"Keys of store {spec.name!r} are {spec.key_serde!r}: {error}") from error
    if data is None:
        raise SerdeError(f"Keys of store {spec.name!r} are {spec.key_serde!r}, never null.")
    return data


def whole_number(value: Any, what: str) -> int:
    """``value`` as an int; TypeError, naming ``what``, for one that is none."""
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise TypeError(f"{what} must be a whole number, not {value!r}.")


# --- a store as a DataFrame: copied, then read (note 055) -----------------------------------------


def rows_of(
    columns: EntryColumns, reader: StoreReader, partitions: Sequence[int], folder: Path | None
) -> Rows:
    """The rows of these partitions, each of the moment in which it is begun."""

    def parts() -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        with scratch_folder(folder) as home:
            for partition in partitions:
                lag = reader.lag(partition) if columns.lag else None
                with opened(_copied(reader, partition, home)) as copy:

                    def blame(key: bytes, partition: int = partition) -> str:
                        store = columns.spec.name
                        return f"the key {key!r:.200} in partition {partition} of store {store!r}"

                    yield partition, batches(copy, columns, partition, blame, lag)

    return Rows(columns.schema, parts())


def _copied(reader: StoreReader, partition: int, home: Path) -> LmdbStore:
    def copied(store: LmdbStore) -> LmdbStore:
        place = home / f"{partition}-{sum(1 for _ in home.iterdir())}"
        place.mkdir()
        return store.copy_to(place)

    return reader.of_copy(partition, copied)


class _Timed(TimedReads):
    """Refuses times that are none. ``_times``: the names of an interval's arguments."""

    _times: tuple[str, str]

    def _of(
        self, key: Any, since: Any, until: Any, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        return super()._of(key, *_interval(since, until, *self._times), reverse=reverse)

    def _between(
        self, first: Any, last: Any, since: Any, until: Any, *, reverse: bool = False
    ) -> Iterator[tuple[Any, Any]]:
        times = _interval(since, until, *self._times)
        return super()._between(first, last, *times, reverse=reverse)


def _interval(
    since: Any, until: Any, first: str = "time_from", last: str = "time_to"
) -> tuple[int, int]:
    return whole_number(since, f"{first} (ms)"), whole_number(until, f"{last} (ms)")


class ReadOnlySessionStore(_Timed, SessionReads, ReadOnlyStore):
    """Queries of a session store, as Kafka Streams' ReadOnlySessionStore (KIP-94, KIP-617).

    Results are ``(Windowed(key, start, end), value)``, in the order of the store's bytes: the key,
    then end and start. ``find_sessions`` and its variants return sessions that overlap an interval:
    they end at ``earliest_end`` or later and start at ``latest_start`` or earlier. Sessions whose
    retention is over are not returned.
    """

    _times = ("earliest_end", "latest_start")

    def fetch_session(self, key: Any, start: int, end: int) -> Any:
        """The value of the session of ``key`` with exactly these bounds, None if there is none."""
        data = self._key(key)
        start, end = whole_number(start, "start (ms)"), whole_number(end, "end (ms)")
        if 0 <= start <= end <= TIME_MAX:
            return self._lookup(data, session_key(data, start, end))
        return None


class ReadOnlyWindowStore(_Timed, WindowReads, ReadOnlyStore):
    """Queries of a window store, as Kafka Streams' ReadOnlyWindowStore (KIP-67, KIP-617).

    Times are window *starts* in ms since the epoch, both ends inclusive. Keys of results are
    `Windowed`. Expired windows (retention) are not returned.
    """

    _times = ("time_from", "time_to")

    def fetch_window(self, key: Any, start: int) -> Any:
        """The value of ``key`` in the window that starts at ``start``, None if there is none."""
        data, start = self._key(key), whole_number(start, "start (ms)")
        return self._lookup(data, window_store_key(data, start)) if 0 <= start <= TIME_MAX else None


class ReadOnlyVersionedStore(ReadOnlyKeyValueStore):
    """Queries of a versioned store, as Kafka Streams' VersionedKeyQuery and MultiVersionedKeyQuery
    (KIP-889, KIP-960, KIP-968). ``get``, ``all`` and the ranges return the latest versions.

    Times are ms since the epoch. A version that ended before the history retention is not returned.
    """

    def get_as_of(self, key: Any, as_of: int) -> VersionedRecord | None:
        """The version of ``key`` at the time ``as_of`` (ms). None if the key had no value then, or
        if ``as_of`` is before the history retention and the key has a later version."""
        data, time = self._key(key), whole_number(as_of, "as_of (ms)")
        history_ms = self.spec.retention_ms or 0

        def ask(view: StoreSnapshot) -> VersionedRecord | None:
            return record_as_of(
                cast(VersionsView, view),
                data,
                time,
                history_ms,
                self._decode,
            )

        return self._first(data, ask)

    def versions(
        self, key: Any, time_from: int = 0, time_to: int = TIME_MAX - 1
    ) -> list[VersionedRecord]:
        """The versions of ``key`` that were valid at any time from ``time_from`` to ``time_to``
        (ms, both included), in order of time, without deletions."""
        data = self._key(key)
        first, last = _interval(time_from, time_to)

        def ask(view: StoreSnapshot) -> list[VersionedRecord]:
            found = cast(VersionsView, view).versions_many([(data, first, last)])
            return records_of(found[0], self._decode)

        return self._first(data, ask) or []
