"""Loads stores from changelogs, in bulk and in chunks, as `restore_plan` decides (D5, D9).

A restore that is cut off loses nothing: every chunk is in the store together with its position, and
the next plan goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol, cast, runtime_checkable

import numpy as np

from everflow.clock import Clock, instant
from everflow.errors import DamagedEntryError, start_over
from everflow.records import Int64, TaskId, TopicPartition
from everflow.runtime.restore.listeners import (
    RestoreListener,
    RestoreProgress,
    SilentListener,
)
from everflow.state.changelog import SUFFIX_BYTES
from everflow.state.left_out import KeptEntry, PlacedChunk, corrected
from everflow.state.lmdb_store import LmdbStore, StoreDamagedError
from everflow.state.store import VERSIONED, StoreSpec
from everflow.state.store_meta import StoreMeta
from everflow.state.task_directory import StateDirectory

# --- restore plan ---------------------------------------------------------------------------------
# Decides what of a changelog a store must read, and whether it may be trusted (D5, D9). Pure.

DEFAULT_DELETE_RETENTION_MS = 86_400_000
AGE_MARGIN_MS_MAX = 3_600_000
AGE_MARGIN_SHARE = 10
"""A store is too old a tenth of ``delete.retention.ms``, at most 1 h, before brokers forget
deletes."""


@dataclass(frozen=True, kw_only=True)
class ChangelogState:
    """What the cluster says of one changelog partition when the plan is made.

    ``start`` and ``end`` are its log start and log end, the end by read_uncommitted (D5).
    ``topic_id`` is None where the brokers know none. ``limit`` is the committed offset where the
    changelog is a reused source topic: the store must not be ahead of it.
    """

    start: int
    end: int
    cluster_id: str | None
    topic_id: str | None
    delete_retention_ms: int = DEFAULT_DELETE_RETENTION_MS
    limit: int | None = None

    def __post_init__(self) -> None:
        # What is no offset must never decide that a store is thrown away.
        if self.start < 0 or self.end < 0 or (self.limit is not None and self.limit < 0):
            raise ValueError(
                f"no offsets of a log: start {self.start}, end {self.end}, limit {self.limit}"
            )


@dataclass(frozen=True)
class RestorePlan:
    """Read offsets ``[start, end)``; with ``rebuild`` into a new, empty store. ``reason`` is for
    people."""

    start: int
    end: int
    rebuild: bool
    reason: str

    @property
    def records_max(self) -> int:
        """Offsets to be read; the records among them are fewer after compaction."""
        return max(0, self.end - self.start)


def restore_plan(
    meta: StoreMeta | None,
    changelog: ChangelogState,
    *,
    now_ms: int,
    kind: str,
    retention_ms: int | None = None,
    distrusted: str | None = None,
) -> RestorePlan:
    """Where to go on with a store, or why it must not be trusted and is rebuilt.

    ``meta`` is None where no store exists; ``kind`` and ``retention_ms`` are what the topology
    wants now; ``distrusted`` is the state folder's own doubt. Rules: design D5, failure scenarios
    13 and 14.
    """
    end = changelog.end if changelog.limit is None else min(changelog.end, changelog.limit)
    end = max(end, changelog.start)
    if distrusted is not None:
        return RestorePlan(changelog.start, end, True, distrusted)
    if meta is None:
        return RestorePlan(changelog.start, end, False, "new store")
    doubt = _doubt(meta, changelog, now_ms, kind, retention_ms)
    if doubt is not None:
        return RestorePlan(changelog.start, end, True, doubt)
    if meta.position is None:
        return RestorePlan(changelog.start, end, False, "new store")
    reason = "up to date" if meta.position == end else f"{end - meta.position} offsets behind"
    return RestorePlan(meta.position, end, False, reason)


def trusted_until_ms(updated_ms: int, delete_retention_ms: int) -> int:
    """Wall clock (ms) until which a store that had followed its changelog at ``updated_ms`` cannot
    have missed a delete."""
    return updated_ms + delete_retention_ms - _margin_ms(delete_retention_ms)


def _margin_ms(delete_retention_ms: int) -> int:
    return min(AGE_MARGIN_MS_MAX, delete_retention_ms // AGE_MARGIN_SHARE)


def _doubt(
    meta: StoreMeta, changelog: ChangelogState, now_ms: int, kind: str, retention_ms: int | None
) -> str | None:
    if meta.kind != kind:
        return f"the store was {meta.kind}, the topology wants {kind}"
    if meta.retention_ms != retention_ms:
        return (
            f"the store's retention was {meta.retention_ms} ms, the topology wants "
            f"{retention_ms} ms"
        )
    position = meta.position
    if position is None:
        return None
    if changelog.cluster_id is not None and meta.cluster_id != changelog.cluster_id:
        return f"it was made from cluster {meta.cluster_id}, this is cluster {changelog.cluster_id}"
    if changelog.topic_id is not None and meta.topic_id != changelog.topic_id:
        return (
            f"it was made from a changelog topic with id {meta.topic_id}, the present one has id "
            f"{changelog.topic_id}: the topic was deleted and created again"
        )
    if not changelog.start <= position <= changelog.end:
        return (
            f"its position {position} is outside the changelog's offsets "
            f"{changelog.start}..{changelog.end}"
        )
    if changelog.limit is not None and position > changelog.limit:
        return (
            f"its position {position} is ahead of offset {changelog.limit}, committed for its "
            f"source topic"
        )
    away_ms = now_ms - meta.updated_ms
    if position < changelog.end and -away_ms > _margin_ms(changelog.delete_retention_ms):
        return (
            f"it says that it followed its changelog until {instant(meta.updated_ms)}, which is "
            f"ahead of this host's clock ({instant(now_ms)}): how long it has not followed it is "
            f"not known"
        )
    if position < changelog.end and now_ms > trusted_until_ms(
        meta.updated_ms, changelog.delete_retention_ms
    ):
        since = "an unknown time" if meta.updated_ms < 0 else f"{away_ms / 1000:.0f} s"
        return (
            f"it has not followed its changelog for {since}; after delete.retention.ms = "
            f"{changelog.delete_retention_ms} ms deletes may be gone from the changelog"
        )
    return None


_NO_TIMESTAMPS: Int64 = np.empty(0, dtype=np.int64)


class LogChunk(Protocol):
    """Committed changelog records, bounded in bytes; ``next_position`` follows the last offset it
    covers."""

    @property
    def keys(self) -> Sequence[bytes | None]: ...
    @property
    def values(self) -> Sequence[bytes | None]: ...
    @property
    def timestamps(self) -> Int64: ...
    @property
    def next_position(self) -> int: ...


class FoldedChunk(LogChunk, Protocol):
    """A chunk that may lack records which a later one of it replaces; ``records`` counts them
    too."""

    @property
    def records(self) -> int: ...


@runtime_checkable
class KnowsOffsets(Protocol):
    """A chunk that knows where its records are."""

    def offset_of(self, key: bytes) -> int | None:
        """Of the last record that has this key."""


class ChangelogReader(Protocol):
    """The part of `kafka.reading.log_reader.LogReader` that restoring needs."""

    def read(
        self, tp: TopicPartition, start: int, end: int, *, every: bool = False
    ) -> Iterable[FoldedChunk]:
        """Committed records of offsets ``[start, end)`` in order; ``every``: none is left out,
        though a later one of its key is there."""


@dataclass(frozen=True)
class PreparedStore:
    """A store claimed for an incarnation, and what it still has to read; ``plan`` is None without a
    changelog."""

    store: LmdbStore
    plan: RestorePlan | None


def prepare_store(
    directory: StateDirectory,
    task: TaskId,
    spec: StoreSpec,
    changelog: ChangelogState | None,
    *,
    incarnation: str,
    now_ms: int,
    sync: str = "none",
) -> PreparedStore:
    """Open, claim and judge one store of a task that becomes active here; a store not to be trusted
    is replaced by an empty one at a new path.

    Claimed before it is judged: no batch of an earlier owner can move it in between. Call it after
    that owner was fenced and with a ``changelog`` looked up after that (D5). ``changelog`` None: a
    store without logging.
    """
    retention_ms = spec.kept_ms
    path = directory.store_path(task, spec.name)
    distrusted = directory.distrusted(task, spec.name)
    store: LmdbStore | None = None
    if distrusted is None:
        try:
            store = LmdbStore.open(path, kind=spec.kind, retention_ms=retention_ms, sync=sync)
            store.claim(incarnation)
        except StoreDamagedError as error:
            distrusted = str(error)
    plan: RestorePlan | None = None
    if changelog is not None:
        meta = None if store is None else store.meta()
        plan = restore_plan(
            meta,
            changelog,
            now_ms=now_ms,
            kind=spec.kind,
            retention_ms=retention_ms,
            distrusted=distrusted,
        )
    if store is None or (plan is not None and plan.rebuild):
        LmdbStore.close_at(path)
        path = directory.rebuild(task, spec.name)
        store = LmdbStore.open(path, kind=spec.kind, retention_ms=retention_ms, sync=sync)
        store.claim(incarnation)
    if changelog is not None:
        store.bind(changelog.cluster_id, changelog.topic_id)
        if store.position is None:
            # What is read from now on misses no delete for as long as that: a first restore that is
            # cut off is not begun anew.
            store.touch(now_ms)
    return PreparedStore(store, plan)


@dataclass(frozen=True, kw_only=True)
class RestoreJob:
    """One store to be restored; the restore ends with an error if ``incarnation`` is not its owner
    any more."""

    task: TaskId
    store_name: str
    store: LmdbStore
    changelog: TopicPartition
    plan: RestorePlan
    incarnation: str | None = None
    reused: StoreSpec | None = None
    """The store's, where the changelog is a reused topic."""
    left_out: Mapping[bytes, KeptEntry] = field(default_factory=dict)
    """What processing left out of that, up to the plan's end."""


def restore(
    job: RestoreJob,
    reader: ChangelogReader,
    *,
    clock: Clock,
    listener: RestoreListener | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RestoreProgress:
    """Load the job's range into its store, a transaction a chunk; blocks the calling thread.

    The position ends at the plan's end, transaction markers at the tail included. ``stopped`` is
    asked between chunks: then the result is not ``done``. Whatever the reader or the store raises
    goes through after the listener was told (StoreMismatchError if another owner claimed the
    store); DamagedEntryError for a record that is no entry of the store.
    """
    told: RestoreListener = SilentListener() if listener is None else listener
    plan, began_ms = job.plan, clock.monotonic_ms()
    progress = RestoreProgress(
        task=job.task,
        store=job.store_name,
        changelog=job.changelog,
        start=plan.start,
        end=plan.end,
        position=plan.start,
        records=0,
        elapsed_s=0.0,
        rebuild=plan.rebuild,
        reason=plan.reason,
    )
    told.restore_start(progress)
    try:
        for chunk in _chunks(job, reader):
            if stopped():
                told.restore_suspended(progress, "stopped")
                return progress
            position = min(chunk.next_position, plan.end)
            with named_keys(job.task, job.store_name, job.store, job.changelog, chunk):
                _load(job, chunk.keys, chunk.values, chunk.timestamps, position, clock)
            progress = replace(
                progress,
                position=position,
                records=progress.records + chunk.records,
                elapsed_s=(clock.monotonic_ms() - began_ms) / 1000,
            )
            told.batch_restored(progress, chunk.records)
        # Also where nothing was read: an empty range still says how far the store is, and that it
        # is fresh.
        _load(job, (), (), _NO_TIMESTAMPS, plan.end, clock)
    except BaseException as error:
        told.restore_suspended(progress, f"{type(error).__name__}: {error}")
        raise
    progress = replace(
        progress, position=plan.end, elapsed_s=(clock.monotonic_ms() - began_ms) / 1000
    )
    told.restore_end(progress)
    return progress


def restore_all(
    jobs: Iterable[RestoreJob],
    reader: ChangelogReader,
    *,
    clock: Clock,
    listener: RestoreListener | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[RestoreProgress]:
    """`restore` one job after the other, shortest range first, so that tasks become ready one by
    one.

    Ends after the first that was stopped; its progress is the last of the list.
    """
    results: list[RestoreProgress] = []
    for job in sorted(jobs, key=lambda job: (job.plan.records_max, job.task, job.store_name)):
        results.append(restore(job, reader, clock=clock, listener=listener, stopped=stopped))
        if not results[-1].done:
            break
    return results


@contextmanager
def named_keys(
    task: TaskId, name: str, store: LmdbStore, changelog: TopicPartition, chunk: FoldedChunk
) -> Iterator[None]:
    """While a chunk is loaded: DamagedEntryError where it has a key that the store cannot have."""
    try:
        yield
    except ValueError as error:
        named = _key_error(task, name, store.kind, changelog, chunk)
        if named is None:
            raise
        raise named from error


def _key_error(
    task: TaskId, store: str, kind: str, changelog: TopicPartition, chunk: FoldedChunk
) -> DamagedEntryError | None:
    """The error of a chunk's first key that a store of this ``kind`` cannot have; None: there is
    none."""
    suffix = SUFFIX_BYTES.get(kind, 0)
    key = next((key for key in chunk.keys if key is not None and len(key) < suffix), None)
    if key is None:
        return None
    offset = chunk.offset_of(key) if isinstance(chunk, KnowsOffsets) else None
    application = changelog.topic.removesuffix(f"-{store}-changelog")
    return DamagedEntryError(
        f"Store {store} of task {task} cannot be restored: record {changelog}"
        f"@{'?' if offset is None else offset} of its changelog has the key {key!r}, of "
        f"{len(key)} bytes, and keys of {kind} stores end with {suffix} bytes of times. Another "
        f"program wrote it, and no later record takes it back. {start_over(application)}",
        store=store,
        task=task,
        key=key,
        changelog=changelog.topic,
    )


def _chunks(job: RestoreJob, reader: ChangelogReader) -> Iterator[FoldedChunk]:
    if job.plan.records_max:
        every = job.store.kind == VERSIONED
        read = reader.read(job.changelog, job.plan.start, job.plan.end, every=every)
        if job.reused is not None:
            placed = cast("Iterable[PlacedChunk]", read)  # of a log, as reused topics are
            read = corrected(placed, job.plan.start, job.left_out, job.reused)
        yield from read


def _load(
    job: RestoreJob,
    keys: Sequence[bytes | None],
    values: Sequence[bytes | None],
    timestamps: Int64,
    position: int,
    clock: Clock,
) -> None:
    at_end = position >= job.plan.end
    job.store.load_chunk(
        keys,
        values,
        timestamps,
        position,
        incarnation=job.incarnation,
        now_ms=clock.now_ms() if at_end else -1,
    )
