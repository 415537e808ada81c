"""`LmdbStore`: the local copy of one store of one task, holding committed data only (D4, D5).

A folder with one LMDB environment: the database ``meta`` (one record, `StoreMeta`) and the data. Of
a key-value store that is one database. A window or session store has a ring of them, one for each
time segment: an expired segment is emptied as a whole, and no key is deleted. A versioned store has
one for the latest versions and a ring for older ones (`versioned_snapshot`). The ring's names are
fixed: databases that come and go would leave dead handles in other processes.

Every write is one transaction with the metadata, so the store is the fold of its changelog up to
its own position (I2), whatever is killed and when.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import EverflowError, StateFormatError, StoreMismatchError
from everflow.records import ByteColumn, Int64, StoreChanges
from everflow.serdes.base import numbers_as_bytes
from everflow.state import changelog, stored_keys
from everflow.state.changelog import last_values
from everflow.state.disk import disk_errors
from everflow.state.lmdb_env import FLUSH_MARKER, StoreEnvironment
from everflow.state.store import VERSIONED
from everflow.state.store_meta import NO_INPUTS, Owner, StoreMeta
from everflow.state.store_snapshot import (
    KEY_VALUE,
    SEGMENT_MS_MIN,
    ReadingAhead,
    StoreSnapshot,
    segments_of,
)
from everflow.state.versioned_snapshot import EARLIER, VersionedSnapshot, version_changes


class SortedEntries(NamedTuple):
    """Keys, each once, in their order, and the stored form of each one's value; None: it goes."""

    keys: list[bytes]
    values: list[bytes | None]

    @staticmethod
    def of(found: Mapping[bytes, bytes | None]) -> SortedEntries:
        keys = sorted(found)
        return SortedEntries(keys, list(map(found.__getitem__, keys)))

    def where(self, chosen: npt.NDArray[np.bool_]) -> SortedEntries:
        if chosen.all():
            return self
        rows = np.flatnonzero(chosen).tolist()
        return SortedEntries([self.keys[row] for row in rows], [self.values[row] for row in rows])


def sorted_entries(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], times: Int64
) -> SortedEntries:
    """The last value of each key; null keys are skipped. Columns stay columns until they are
    sorted: a third of the time."""
    if not (isinstance(keys, ByteColumn) and isinstance(values, ByteColumn)):
        return SortedEntries.of(last_values(keys, values, times))
    order = pc.sort_indices(keys.column)  # stable: of equal keys the last one counts
    ordered = keys.column.take(order)
    again = pc.equal(ordered[:-1], ordered[1:])
    if pc.any(again).as_py() or ordered.null_count:
        return SortedEntries.of(last_values(keys, values, times))
    stamps = numbers_as_bytes(times, ">i8")
    stored = pc.binary_join_element_wise(stamps, values.column, pa.scalar(b""))
    return SortedEntries(ordered.to_pylist(), stored.take(order).to_pylist())


KINDS = (KEY_VALUE, VERSIONED, *changelog.SUFFIX_BYTES)
RING = 8
"""Databases of a store whose entries expire. At most four segments live: retention is two of them,
plus both ends."""

_Reached = Callable[[str], None]
_Write = Callable[["lmdb.Transaction[bytes]", StoreMeta, _Reached], StoreMeta]
_META = b"meta"
_DATA = (b"data",)
_SEGMENTS = tuple(b"segment-%d" % slot for slot in range(RING))


def _nothing(name: str) -> None:
    """No point at which a test may end the process."""


class StoreDamagedError(EverflowError, code="EF-STORE-DAMAGED"):
    """The store's files cannot be read; it is rebuilt from its changelog, the reason shown."""


def segment_ms(retention_ms: int) -> int:
    """Length of a store's time segments, as in Kafka Streams: half the retention, at least 60 s."""
    return max(retention_ms // 2, SEGMENT_MS_MIN)


class LmdbStore:
    """One store of one task; the same object for every caller of `open` in a process, from any
    thread. Of several processes one writes at a time (LMDB's lock); readers never wait."""

    def __init__(self, path: Path, environment: StoreEnvironment, kind: str) -> None:
        self.path = path
        self.kind = kind
        self._env = environment
        self._ahead = ReadingAhead(environment.read_beside)
        names = {KEY_VALUE: _DATA, VERSIONED: _SEGMENTS + _DATA}.get(kind, _SEGMENTS)
        self._meta = environment.databases[_META]
        # To decode it takes ten times a point read, and it is the same between two commits.
        self._decoded: tuple[bytes, StoreMeta] | None = None
        self._databases: list[Any] = [environment.databases[name] for name in names]

    @staticmethod
    def open(
        path: str | os.PathLike[str],
        *,
        kind: str | None = None,
        retention_ms: int | None = None,
        sync: str = "none",
        map_bytes: int | None = None,
    ) -> LmdbStore:
        """The store in the folder ``path``; with ``kind`` it is created where there is none.

        ``kind`` is one of `KINDS` (all but ``key_value`` need ``retention_ms``); of an
        existing store, what it was created with stays (compare `meta`, `restore_plan` does).
        ``sync="commit"`` makes every process flush at commit; it is kept in the folder. Raises
        StoreMismatchError where there is no store and no ``kind`` (it was rebuilt elsewhere),
        StateFormatError for the format of a later release, StateDiskError if the disk refuses it.
        """
        return _cache.open(
            path, lambda real: _open_files(real, kind, retention_ms, sync, map_bytes)
        )

    @contextmanager
    def snapshot(self) -> Iterator[StoreSnapshot]:
        """The committed content at this moment; short, and no write by this thread inside it."""
        shown = VersionedSnapshot if self.kind == VERSIONED else StoreSnapshot
        with self._env.read() as txn:
            yield shown(txn, self._read_meta(txn), self._databases, self._ahead)

    def meta(self) -> StoreMeta:
        with self._env.read() as txn:
            return self._read_meta(txn)

    @property
    def position(self) -> int | None:
        """Next changelog offset that this store has not seen; None = nothing loaded yet."""
        return self.meta().position

    def apply(
        self,
        changes: StoreChanges,
        *,
        position: int | None,
        expected: Owner,
        batch: str,
        inputs: Mapping[str, int] = NO_INPUTS,
        now_ms: int = -1,
        reached: Callable[[str], None] = _nothing,
    ) -> None:
        """Write a committed batch's changes, in ONE transaction with position and batch id.

        Call it for every store of the task, changes or not, so that all carry the same last batch.
        ``position`` is the next changelog offset, None if nothing was sent; ``inputs``: see
        `StoreMeta`; ``reached("applying")`` is called in the middle of the transaction. Windows
        (sessions) that the written ones leave behind by the retention expire. Raises
        StoreMismatchError, nothing written, unless owner incarnation and last batch are those in
        ``expected``: a stalled orphan cannot overwrite newer state (scenario 3).
        """

        def changed(meta: StoreMeta) -> StoreMeta:
            meta.check_owner(expected, str(self.path))
            return meta.moved_to(
                position,
                str(self.path),
                last_batch=batch,
                inputs={**meta.inputs, **inputs},
                updated_ms=meta.followed(now_ms),
            )

        write = self._writer(changes.keys, changes.values, changes.timestamps)
        self._change(changed, write, reached)

    def load_chunk(
        self,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        timestamps: Int64,
        next_position: int,
        *,
        incarnation: str | None = None,
        now_ms: int = -1,
    ) -> None:
        """Restore: fold one chunk of the changelog into the store, in ONE transaction with its
        position (D9).

        Null keys are skipped, None deletes; keys behind all present ones are appended, which is
        fastest. A versioned store needs every record. StoreMismatchError if ``incarnation`` is not
        None and not the owner's, or for a position before the store's own.
        """
        followed = self._followed(now_ms, incarnation, next_position)
        self._change(followed, self._writer(keys, values, timestamps))

    def claim(self, incarnation: str) -> None:
        """A new owner: from now on only `apply` calls with ``Owner(incarnation, "")`` pass."""
        self._change(lambda meta: replace(meta, incarnation=incarnation, last_batch=None))

    def bind(self, cluster_id: str | None, topic_id: str | None) -> None:
        """Note which cluster's and which topic's offsets the position counts in (scenario 14)."""
        self._change(lambda meta: replace(meta, cluster_id=cluster_id, topic_id=topic_id))

    def touch(self, now_ms: int, incarnation: str | None = None) -> None:
        """Note that the store has followed its changelog to the end until ``now_ms`` without a
        change.

        Called now and then: a store not touched for ``delete.retention.ms`` is rebuilt (scenario
        13). Waits for another process's apply. StoreMismatchError, nothing noted, if
        ``incarnation`` is not None and not the owner's.
        """
        self._change(self._followed(now_ms, incarnation, None))

    def copy_to(self, folder: Path) -> LmdbStore:
        """A store of its own in the empty ``folder``, of what is committed at this moment: a
        long reader reads that, and `close`s it. StateDiskError, StoreClosedError."""
        self._env.copy_to(folder)
        return LmdbStore.open(folder)

    def close(self) -> None:
        """Close it in this process; the next `open` opens it afresh. No thread may be using it."""
        _cache.drop(self.path)

    @staticmethod
    def close_removed() -> None:
        """Close stores whose files were removed or replaced, which frees disk; open reads go on."""
        _cache.drop_retired()

    @staticmethod
    def close_at(path: str | os.PathLike[str]) -> None:
        _cache.drop(Path(os.path.realpath(path)))

    def _read_meta(self, txn: lmdb.Transaction[bytes]) -> StoreMeta:
        data = txn.get(_META, db=self._meta)
        if data is None:
            raise StateFormatError(
                f"The store in {self.path} has no metadata: its creation was cut off. Remove the "
                f"folder."
            )
        known = self._decoded
        if known is None or known[0] != data:
            self._decoded = known = data, StoreMeta.decode(data, str(self.path))
        return known[1]

    def _change(
        self,
        change: Callable[[StoreMeta], StoreMeta],
        write: _Write | None = None,
        reached: _Reached = _nothing,
    ) -> None:

        def body(txn: lmdb.Transaction[bytes]) -> None:
            meta = change(self._read_meta(txn))
            meta = meta if write is None else write(txn, meta, reached)
            data = meta.encode()
            txn.put(_META, data, db=self._meta)
            self._decoded = data, meta  # of no use if this is not committed: its bytes are others

        self._env.write(body)

    def _followed(
        self, now_ms: int, incarnation: str | None, position: int | None
    ) -> Callable[[StoreMeta], StoreMeta]:
        def followed(meta: StoreMeta) -> StoreMeta:
            if incarnation is not None:
                meta.check_owner(meta.owner._replace(incarnation=incarnation), str(self.path))
            moved = meta.moved_to(position, str(self.path))
            return replace(moved, updated_ms=meta.followed(now_ms))

        return followed

    def _writer(
        self, keys: Sequence[bytes | None], values: Sequence[bytes | None], times: Int64
    ) -> _Write:
        """Prepares the write of changes (each key's last value, or its versions)."""
        if self.kind != VERSIONED:
            entries = sorted_entries(keys, values, times)

            def write(
                txn: lmdb.Transaction[bytes], meta: StoreMeta, reached: _Reached
            ) -> StoreMeta:
                if meta.kind == KEY_VALUE:
                    self._write_sorted(txn, self._databases[0], entries, reached)
                    return meta
                return self._write_segments(txn, meta, meta.kind, entries, -1, reached)

            return write

        def write_versions(
            txn: lmdb.Transaction[bytes], meta: StoreMeta, reached: _Reached
        ) -> StoreMeta:
            before = VersionedSnapshot(txn, meta, self._databases, self._ahead)
            latest, older = version_changes(before, keys, values, times)
            self._write_sorted(txn, self._databases[-1], SortedEntries.of(latest), _nothing)
            newest_ms = int(np.max(times, initial=-1))
            earlier = SortedEntries.of(older)
            return self._write_segments(txn, meta, EARLIER, earlier, newest_ms, reached)

        return write_versions

    def _write_segments(
        self,
        txn: lmdb.Transaction[bytes],
        meta: StoreMeta,
        keys_as: str,
        entries: SortedEntries,
        newest_ms: int,
        reached: _Reached,
    ) -> StoreMeta:
        """Write into the ring, by the times in the keys, which are those of a kind of store
        (``keys_as``). ``newest_ms``: lower bound of the store's new time."""
        times = changelog.expiry_times(entries.keys, keys_as)
        segments = segments_of(times, meta)
        meta = self._advance(txn, meta, newest_ms, times)
        slots = {segment: slot for slot, segment in meta.segments.items()}
        # Writes into expired segments are left out, as in Kafka Streams.
        live = [segment for segment in np.unique(segments).tolist() if segment in slots]
        for segment in live:
            chosen = entries.where(segments == segment)
            self._write_sorted(txn, self._databases[slots[segment]], chosen, reached)
        if not live:
            reached("applying")
        return meta

    def _write_sorted(
        self,
        txn: lmdb.Transaction[bytes],
        database: Any,
        entries: SortedEntries,
        reached: Callable[[str], None],
    ) -> None:
        keys, values = entries
        if stored_keys.has_long(keys):
            short = np.array([len(key) <= stored_keys.SHORT_BYTES for key in keys])
            for key, value in zip(*entries.where(~short), strict=True):
                _write_long(txn, database, key, value)
            keys, values = entries.where(short)
        every = stored = stored_keys.encode_short(keys)
        deleted: list[bytes] = []
        present: list[Any] = values
        if None in values:
            deleted = [key for key, value in zip(every, values, strict=True) if value is None]
            stored = [key for key, value in zip(every, values, strict=True) if value is not None]
            present = [value for value in values if value is not None]
        half = len(stored) // 2
        with txn.cursor(database) as cursor:
            append = bool(stored) and (not cursor.last() or cursor.key() < stored[0])
            if not append:  # a page is read before it is changed
                self._ahead.fetch(every, database)
            cursor.putmulti(zip(stored[:half], present[:half], strict=True), append=append)
            reached("applying")
            cursor.putmulti(zip(stored[half:], present[half:], strict=True), append=append)
        for key in deleted:
            txn.delete(key, db=database)

    def _advance(
        self, txn: lmdb.Transaction[bytes], meta: StoreMeta, newest_ms: int, times: Int64
    ) -> StoreMeta:
        """Empty the segments that ``times`` leave behind; give slots to the new ones."""
        if meta.retention_ms is None or meta.segment_ms is None:
            raise StateFormatError(
                f"The {meta.kind} store in {self.path} has no retention. Remove the folder."
            )
        reached_ms = max(meta.stream_time, newest_ms, int(times.max()) if len(times) else -1)
        oldest = (reached_ms - meta.retention_ms) // meta.segment_ms
        segments = {slot: segment for slot, segment in meta.segments.items() if segment >= oldest}
        for slot in meta.segments.keys() - segments.keys():
            txn.drop(self._databases[slot], delete=False)
        for segment in np.unique(segments_of(times, meta)).tolist():
            if segment >= oldest:
                segments[segment % RING] = segment
        return replace(meta, segments=segments, stream_time=reached_ms)


def _write_long(
    txn: lmdb.Transaction[bytes], database: Any, key: bytes, value: bytes | None
) -> None:
    stored, rest = stored_keys.encode(key), key[stored_keys.SHORT_BYTES :]
    entries = stored_keys.read_bucket(txn.get(stored, db=database))
    if value is None:
        entries.pop(rest, None)
    else:
        entries[rest] = value
    if entries:
        txn.put(stored, stored_keys.write_bucket(entries), db=database)
    else:
        txn.delete(stored, db=database)


class _OpenStores:
    """The stores that this process has open, by path: LMDB forbids opening a file twice."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stores: dict[Path, LmdbStore] = {}
        # To resolve a path link by link takes as long as to read. The operating system does it
        # where the file is asked for, so an entry is right as long as the file is the same.
        self._asked_for: dict[str, LmdbStore] = {}

    def open(
        self, path: str | os.PathLike[str], open_files: Callable[[Path], LmdbStore]
    ) -> LmdbStore:
        asked = os.fspath(path)
        with self._lock:
            known = self._asked_for.get(asked)
            if known is not None and known._env.is_at(asked):
                return known
            real = Path(os.path.realpath(asked))
            store = self._stores.get(real)
            if store is None or store._env.stale:
                self.drop_retired()
                store = open_files(real)
                self._stores[real] = store
            self._asked_for[asked] = store
            return store

    def drop_retired(self) -> None:
        with self._lock:
            for gone in [at for at, store in self._stores.items() if store._env.stale]:
                self._popped(gone)._env.close(wait_s=0.0)  # frees the disk space of a removed store

    def drop(self, path: Path) -> None:
        with self._lock:
            if path in self._stores:
                self._popped(path)._env.close()

    def _popped(self, path: Path) -> LmdbStore:
        store = self._stores.pop(path)
        self._asked_for = {at: one for at, one in self._asked_for.items() if one is not store}
        return store

    def forget_inherited(self) -> None:
        self._lock = threading.RLock()
        for store in self._stores.values():
            store._env.close()
        self._stores.clear()
        self._asked_for.clear()


def _open_files(
    path: Path, kind: str | None, retention_ms: int | None, sync: str, map_bytes: int | None
) -> LmdbStore:
    gone = (
        f"There is no store in {path}: it was rebuilt elsewhere or its task was removed. "
        f"Nothing was written."
    )
    if kind is None and not (path / "data.mdb").exists():
        raise StoreMismatchError(gone)
    if kind is not None and kind not in KINDS:
        raise ValueError(f"store kind {kind!r}: expected one of {', '.join(KINDS)}")
    if kind not in (None, KEY_VALUE) and retention_ms is None:
        raise ValueError(f"a {kind} store needs retention_ms")
    try:
        with disk_errors(path, "opened"):
            if kind is not None:
                path.mkdir(parents=True, exist_ok=True)
            if sync == "commit":
                (path / FLUSH_MARKER).touch()
            return _open_environment(path, kind, retention_ms, map_bytes)
    except (
        lmdb.CorruptedError,
        lmdb.InvalidError,
        lmdb.VersionMismatchError,
        lmdb.PanicError,
    ) as error:
        raise StoreDamagedError(
            f"the files of the store in {path} cannot be read: {error}"
        ) from error
    except lmdb.Error as error:
        if kind is None and not (path / "data.mdb").exists():  # removed since it was searched for
            raise StoreMismatchError(gone) from error
        raise


def _open_environment(
    path: Path, kind: str | None, retention_ms: int | None, map_bytes: int | None
) -> LmdbStore:
    # All names, whatever the kind: only the store's own metadata tells which it is.
    sizes = {} if map_bytes is None else {"map_bytes": map_bytes}
    environment = StoreEnvironment(path, (_META, *_DATA, *_SEGMENTS), **sizes)
    database = environment.databases[_META]
    try:
        with environment.read() as txn:
            known = txn.get(_META, db=database)
        if known is None:
            if kind is None:
                raise StoreMismatchError(
                    f"The store in {path} was never finished. Nothing was written."
                )
            expires = kind != KEY_VALUE and retention_ms is not None
            length = segment_ms(retention_ms or 0) if expires else None
            known = StoreMeta(
                kind=kind,
                retention_ms=retention_ms,
                segment_ms=length,
            ).encode()
            environment.write(
                lambda txn: txn.put(
                    _META,
                    known,
                    db=database,
                    overwrite=False,
                )
            )
        return LmdbStore(path, environment, StoreMeta.decode(known, str(path)).kind)
    except BaseException:
        environment.close()
        raise


_cache = _OpenStores()
os.register_at_fork(after_in_child=_cache.forget_inherited)
