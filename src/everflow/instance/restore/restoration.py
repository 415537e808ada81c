"""Loads stores from changelogs, in bulk and in chunks, as `restore_plan` decides (D5, D9). Every
chunk is in the store together with its position: a restore that is cut off loses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, cast

import numpy as np

from everflow.clock import Clock
from everflow.errors import DamagedEntryError, start_over
from everflow.instance.restore.listeners import RestoreListener, RestoreProgress, RestoreTracker
from everflow.instance.restore.restore_plan import ChangelogState, RestorePlan, restore_plan
from everflow.metrics import Metrics
from everflow.records import Int64, TaskId, TopicPartition
from everflow.state.changelog import SUFFIX_BYTES
from everflow.state.left_out import (
    Chunk,
    CorrectedChunk,
    KeptEntry,
    PlacedChunk,
    SizedChunk,
    corrected,
)
from everflow.state.lmdb_store import LmdbStore, StoreDamagedError
from everflow.state.store import VERSIONED, StoreSpec
from everflow.state.task_directory import StateDirectory

_NO_NUMBERS: Int64 = np.empty(0, dtype=np.int64)
_NOTHING = CorrectedChunk(
    keys=(), values=(), timestamps=_NO_NUMBERS, offsets=_NO_NUMBERS, next_position=0, records=0
)


class ChangelogReader(Protocol):
    """The part of `kafka.reading.log_reader.LogReader` that restoring needs."""

    def read(
        self, tp: TopicPartition, start: int, end: int, *, every: bool = False
    ) -> Iterable[Chunk]:
        """Committed records of ``[start, end)`` in order; ``every``: also those replaced later."""


@dataclass(frozen=True)
class PreparedStore:
    """A store claimed for an incarnation; ``plan`` is None without a changelog."""

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
    """Open, claim and judge one store of a task that becomes active here; one not to be trusted is
    replaced by an empty one at a new path. Claimed first: no earlier owner moves it in between.
    Call it, with a ``changelog`` looked up (None: not logged), after that was fenced (D5)."""
    kind, kept_ms = spec.kind, spec.kept_ms
    opened = partial(LmdbStore.open, kind=kind, retention_ms=kept_ms, sync=sync)
    path = directory.store_path(task, spec.name)
    distrusted = directory.distrusted(task, spec.name)
    store: LmdbStore | None = None
    if distrusted is None:
        try:
            store = opened(path)
            store.claim(incarnation)
        except StoreDamagedError as error:
            distrusted = str(error)
    plan: RestorePlan | None = None
    if changelog is not None:
        meta = None if store is None else store.meta()
        plan = restore_plan(
            meta, changelog, now_ms=now_ms, kind=kind, retention_ms=kept_ms, distrusted=distrusted
        )
    if store is None or (plan is not None and plan.rebuild):
        LmdbStore.close_at(path)
        path = directory.rebuild(task, spec.name)
        store = opened(path)
        store.claim(incarnation)
    if changelog is not None:
        store.bind(changelog.cluster_id, changelog.topic_id)
        if store.position is None:
            # So that a first restore that is cut off does not begin anew.
            store.touch(now_ms)
    return PreparedStore(store, plan)


@dataclass(frozen=True, kw_only=True)
class RestoreJob:
    """One store to restore; the restore fails if ``incarnation`` is no longer its owner."""

    task: TaskId
    store_name: str
    store: LmdbStore
    changelog: TopicPartition
    plan: RestorePlan
    incarnation: str | None = None
    reused: StoreSpec | None = None
    """The store's, where the changelog is a reused topic."""
    left_out: Mapping[bytes, KeptEntry] = field(default_factory=dict)
    """The records of that topic that processing skipped, up to the plan's end."""


@dataclass(kw_only=True)
class FilledStore:
    """A store that its changelog fills, and how far it is."""

    store: LmdbStore
    incarnation: str | None
    progress: RestoreProgress
    began_ms: float

    def load(self, chunk: Chunk, position: int, clock: Clock, *, at_end: bool) -> None:
        """Store a chunk together with the position behind it. StoreMismatchError if another owner
        claimed the store, DamagedEntryError for a key that it cannot have."""
        of, now_ms = self.progress, clock.now_ms() if at_end else -1
        records = (chunk.keys, chunk.values, chunk.timestamps)
        owner = self.incarnation
        try:
            self.store.load_chunk(*records, position, incarnation=owner, now_ms=now_ms)
        except ValueError as error:
            named = _key_error(of, self.store.kind, chunk)
            if named is None:
                raise
            raise named from error
        elapsed_s = (clock.monotonic_ms() - self.began_ms) / 1000
        end, count = max(of.end, position), of.records + chunk.records
        size = chunk.bytes if isinstance(chunk, SizedChunk) else 0
        self.progress = replace(
            of,
            position=position,
            end=end,
            records=count,
            elapsed_s=elapsed_s,
            bytes=of.bytes + size,
        )


def progress_of(
    task: TaskId, store: str, changelog: TopicPartition, plan: RestorePlan
) -> RestoreProgress:
    return RestoreProgress(
        task=task,
        store=store,
        changelog=changelog,
        start=plan.start,
        end=plan.end,
        position=plan.start,
        records=0,
        elapsed_s=0.0,
        rebuild=plan.rebuild,
        reason=plan.reason,
    )


def restore(
    job: RestoreJob,
    reader: ChangelogReader,
    *,
    clock: Clock,
    listener: RestoreListener | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> RestoreProgress:
    """Load the job's range into its store, a transaction per chunk; blocks. The position ends
    behind transaction markers at the tail. ``stopped`` is asked between chunks: after True the
    result is not ``done``. Raises what `FilledStore.load` raises, once the listener was called."""
    user = listener or RestoreTracker(Metrics())
    plan = job.plan
    filled = FilledStore(
        store=job.store,
        incarnation=job.incarnation,
        progress=progress_of(job.task, job.store_name, job.changelog, plan),
        began_ms=clock.monotonic_ms(),
    )
    user.restore_start(filled.progress)
    try:
        for chunk in _chunks(job, reader):
            if stopped():
                user.restore_suspended(filled.progress, "stopped")
                return filled.progress
            position = min(chunk.next_position, plan.end)
            filled.load(chunk, position, clock, at_end=position >= plan.end)
            user.batch_restored(filled.progress, chunk.records)
        # Also without records: it notes how far the store is, and that it is fresh.
        filled.load(_NOTHING, plan.end, clock, at_end=True)
    except BaseException as error:
        user.restore_suspended(filled.progress, f"{type(error).__name__}: {error}")
        raise
    user.restore_end(filled.progress)
    return filled.progress


def restore_all(
    jobs: Iterable[RestoreJob],
    reader: ChangelogReader,
    *,
    clock: Clock,
    listener: RestoreListener | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> list[RestoreProgress]:
    """`restore` shortest range first: tasks become ready one by one. Ends after a stopped one."""
    results: list[RestoreProgress] = []
    for job in sorted(jobs, key=lambda job: (job.plan.records_max, job.task, job.store_name)):
        results.append(restore(job, reader, clock=clock, listener=listener, stopped=stopped))
        if not results[-1].done:
            break
    return results


def _key_error(of: RestoreProgress, kind: str, chunk: Chunk) -> DamagedEntryError | None:
    suffix = SUFFIX_BYTES.get(kind, 0)
    key = next((key for key in chunk.keys if key is not None and len(key) < suffix), None)
    if key is None:
        return None
    offset: int | None = getattr(chunk, "offset_of", lambda _: None)(key)
    application = of.changelog.topic.removesuffix(f"-{of.store}-changelog")
    return DamagedEntryError(
        f"Store {of.store} of task {of.task} cannot be restored: record {of.changelog}"
        f"@{'?' if offset is None else offset} of its changelog has the key {key!r}, of "
        f"{len(key)} bytes, and keys of {kind} stores end with {suffix} bytes of times. Another "
        f"program wrote it, and no later record takes it back. {start_over(application)}",
        store=of.store,
        task=of.task,
        key=key,
        changelog=of.changelog.topic,
    )


def _chunks(job: RestoreJob, reader: ChangelogReader) -> Iterator[Chunk]:
    if job.plan.records_max:
        every = job.store.kind == VERSIONED
        read = reader.read(job.changelog, job.plan.start, job.plan.end, every=every)
        if job.reused is not None:
            placed = cast("Iterable[PlacedChunk]", read)  # of a log, as reused topics are
            read = corrected(placed, job.plan.start, job.left_out, job.reused)
        yield from read
