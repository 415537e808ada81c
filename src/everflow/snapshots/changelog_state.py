"""A changelog partition folded to a place, as a restore would fold it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import numpy as np

from everflow.errors import EverflowError
from everflow.kafka.reading.record_columns import Records
from everflow.records import Int64, TopicPartition
from everflow.snapshots.entry_columns import EntryError
from everflow.snapshots.points import Reach
from everflow.state.changelog import SUFFIX_BYTES
from everflow.state.left_out import Chunk, KeptEntry, as_processed
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec


class LoggedRecords(Protocol):
    """A part of a log; see `LogChunk`."""

    @property
    def held(self) -> Records: ...
    @property
    def keys(self) -> list[bytes | None]: ...
    @property
    def values(self) -> list[bytes | None]: ...
    @property
    def timestamps(self) -> Int64: ...
    @property
    def offsets(self) -> Int64: ...
    @property
    def next_position(self) -> int: ...
    @property
    def records(self) -> int: ...


class CommittedLog(Protocol):
    """The part of `LogReader` that is needed here."""

    def read(
        self, tp: TopicPartition, start: int, end: int, *, every: bool = False
    ) -> Iterable[LoggedRecords]:
        """Committed records of offsets ``[start, end)`` in order; ``every``: none is left out,
        though a later one of its key is there."""


class PartitionLog:
    """One changelog partition. ``records``: how many of it were folded. ``left_out``: what
    processing has left out of it (note 065)."""

    def __init__(
        self,
        reader: CommittedLog,
        tp: TopicPartition,
        spec: StoreSpec,
        left_out: Mapping[bytes, KeptEntry] = MappingProxyType({}),
    ) -> None:
        self._reader, self._tp, self._spec, self._left_out = reader, tp, spec, left_out
        self.records = 0

    def new_store(self, folder: Path) -> LmdbStore:
        """An empty store in ``folder``."""
        return LmdbStore.open(folder, kind=self._spec.kind, retention_ms=self._spec.kept_ms)

    def fold(self, store: LmdbStore, reach: Reach) -> None:
        """Into the store. EntryError for a key that the store cannot have; whatever the reader
        raises."""
        read = self._reader.read(self._tp, reach.start, reach.end, every=self._spec.versioned)
        known = {key: one for key, one in self._left_out.items() if one.offset < reach.end}
        start = reach.start
        for chunk in read:
            self._check_keys(chunk, reach)
            position = min(chunk.next_position, reach.end)
            taken: Chunk = chunk
            if self._spec.source_topic is not None:
                taken = as_processed(chunk, start, known, self._spec)
            store.load_chunk(taken.keys, taken.values, taken.timestamps, position)
            start = chunk.next_position
            self.records += chunk.records

    def place_of(self, key: bytes, end: int, start: int = 0) -> str:
        """``topic-3@1207``, where its last record before ``end`` lies, found by reading the log
        again; without the offset where that fails."""
        offset = None
        try:
            for chunk in self._reader.read(self._tp, start, end, every=True):
                held = chunk.held.arrow(False)
                alike = [at for at, one in enumerate(held.keys.to_pylist()) if one == key]
                if alike:
                    offset = int(held.offsets[alike[-1]])
        except EverflowError:
            pass  # the error that is about to be raised says more
        return f"{self._tp}@{'?' if offset is None else offset}"

    def first_time(self, reach: Reach) -> int | None:
        """The time (ms) of the first record; None where there is none."""
        for chunk in self._reader.read(self._tp, reach.start, reach.end, every=True):
            if len(chunk.timestamps):
                return int(np.asarray(chunk.timestamps)[0])
        return None

    def _check_keys(self, chunk: LoggedRecords, reach: Reach) -> None:
        suffix = SUFFIX_BYTES.get(self._spec.kind, 0)
        short = next((key for key in chunk.keys if key is not None and len(key) < suffix), None)
        if short is not None:
            raise EntryError(
                f"The key of {self.place_of(short, reach.end, reach.start)} is not what the "
                f"topology says: {len(short)} bytes, where {self._spec.kind} stores have a key and "
                f"{suffix} bytes behind it. Another program wrote it."
            )
