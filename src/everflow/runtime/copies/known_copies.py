"""Lists this instance's copies for the group: standbys, warm-ups, restores, folders (note 005).

A copy that would be rebuilt when it is used (`restore_plan.restore_plan`) is none, and is not
reported; one that nobody follows becomes that by waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from everflow.clock import Clock, SystemClock
from everflow.errors import EverflowError
from everflow.records import TaskId, TopicPartition
from everflow.runtime.copies.state_updater import FollowedTask
from everflow.runtime.restore.restoration import (
    DEFAULT_DELETE_RETENTION_MS,
    ChangelogState,
    restore_plan,
    trusted_until_ms,
)
from everflow.runtime.tasks.task import TaskStore
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec

log = logging.getLogger("everflow")


class CopyFolder(Protocol):
    """The part of `StateDirectory` that is needed."""

    def tasks(self) -> list[TaskId]: ...
    def stores(self, task: TaskId) -> list[str]: ...
    def store_path(self, task: TaskId, store: str) -> Path: ...
    def distrusted(self, task: TaskId, store: str) -> str | None: ...


@dataclass(frozen=True)
class AtRest:
    """A copy that nobody follows: the sum of its positions, and until when (wall clock, ms) it
    cannot have missed a delete."""

    offset_sum: int
    until_ms: float = float("inf")
    inputs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """What the group had committed of its task's inputs when it was applied last."""


class Copies:
    """`membership.assignor.LocalCopies` of this instance. ``offset_sums`` does no I/O; any thread
    may call everything.

    ``followed``: the state updater's figures. ``running``: tasks that run active: that the member
    claims them says enough.
    ``recovering``: active tasks that do not run yet, and ``restored``: positions of stores being
    restored, summed per task.
    ``delete_retention_ms``: of a changelog topic, without I/O; ``clock``: how old copies are that
    nobody follows.
    """

    def __init__(
        self,
        followed: Callable[[], Mapping[TaskId, FollowedTask]],
        running: Callable[[], Collection[TaskId]],
        recovering: Callable[[], Collection[TaskId]] = tuple,
        restored: Callable[[], Mapping[TaskId, int]] = dict,
        delete_retention_ms: Callable[[str], int] = lambda topic: DEFAULT_DELETE_RETENTION_MS,
        clock: Clock | None = None,
    ) -> None:
        self._followed = followed
        self._running = running
        self._recovering = recovering
        self._restored = restored
        self._delete_retention_ms = delete_retention_ms
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._at_rest: dict[TaskId, AtRest] = {}

    def offset_sums(self) -> Mapping[TaskId, int]:
        """Sum of the changelog positions of every copy that does not run active here."""
        now_ms = self._clock.now_ms()
        with self._lock:
            # Away for too long a copy would be rebuilt when it is used (unless nothing was written
            # since: not known here).
            sums = {
                task: copy.offset_sum
                for task, copy in self._at_rest.items()
                if now_ms <= copy.until_ms
            }
        sums.update((task, figures.offset_sum) for task, figures in self._followed().items())
        restored = self._restored()
        for task in self._recovering():
            sums[task] = max(sums.get(task, 0), restored.get(task, 0))
        for task in self._running():
            sums.pop(task, None)
        return sums

    def scan(
        self,
        folder: CopyFolder,
        specs: Callable[[int], Iterable[StoreSpec]],
        changelog: Callable[[TaskId, StoreSpec], TopicPartition],
        states: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, ChangelogState]],
    ) -> None:
        """Look at every task folder, once, before the group is joined. A store that cannot be
        judged is left out: then its task looks cold, which costs a restore at most."""
        found: list[tuple[TaskId, StoreSpec, TopicPartition]] = []
        for task in folder.tasks():
            here = set(folder.stores(task))
            for spec in specs(task.subtopology):
                if spec.logging and spec.name in here:
                    found.append((task, spec, changelog(task, spec)))
        try:
            known = states({tp for _, _, tp in found}) if found else {}
        except EverflowError as error:
            log.warning(
                "The copies in the state folder cannot be compared with their changelogs: %s", error
            )
            return
        copies: dict[TaskId, list[AtRest]] = {}
        for task, spec, tp in found:
            copy = _judged(folder, task, spec, known[tp], self._clock.now_ms())
            if copy is not None:
                copies.setdefault(task, []).append(copy)
        rested = {task: _together(stores) for task, stores in sorted(copies.items())}
        with self._lock:
            self._at_rest = rested
        if rested:
            said = ", ".join(f"{task} at {copy.offset_sum}" for task, copy in rested.items())
            log.info("Copies in the state folder: %s", said)

    def applied(self, topics: Collection[str]) -> dict[TopicPartition, int]:
        """What the group has committed at least, by the copies that nobody follows. ``topics``:
        that the program reads now; others it may be forbidden to ask for, or they are gone."""
        with self._lock:
            copies = list(self._at_rest.values())
        return {
            tp: offset
            for copy in copies
            for tp, offset in copy.inputs.items()
            if tp.topic in topics
        }

    def rest(self, task: TaskId, stores: Iterable[TaskStore]) -> None:
        """A task ended here, its copy stays on disk: note how far it is. Reads the stores'
        metadata, a fraction of a ms each."""
        copies = []
        for store in stores:
            if store.changelog is None:
                continue
            try:
                meta = LmdbStore.open(store.path).meta()
            except EverflowError as error:
                log.debug("Copy of task %s: %s", task, error)
                continue
            if meta.position is not None:
                retention_ms = self._delete_retention_ms(store.changelog.topic)
                copies.append(
                    AtRest(meta.position, trusted_until_ms(meta.updated_ms, retention_ms))
                )
        with self._lock:
            if copies:
                self._at_rest[task] = _together(copies)
            else:
                self._at_rest.pop(task, None)

    def forget(self, task: TaskId) -> AtRest | None:
        """Offer the copy to nobody any more: it is about to be removed. Gives what `remember` takes
        back."""
        with self._lock:
            return self._at_rest.pop(task, None)

    def remember(self, task: TaskId, copy: AtRest) -> None:
        with self._lock:
            self._at_rest.setdefault(task, copy)


def _together(stores: Collection[AtRest]) -> AtRest:
    """The copy of a task whose stores these are: too old as soon as one of them is."""
    inputs: dict[TopicPartition, int] = {}
    for store in stores:
        inputs.update({tp: max(at, inputs.get(tp, 0)) for tp, at in store.inputs.items()})
    return AtRest(
        sum(store.offset_sum for store in stores),
        min(store.until_ms for store in stores),
        inputs,
    )


def _judged(
    folder: CopyFolder, task: TaskId, spec: StoreSpec, state: ChangelogState, now_ms: int
) -> AtRest | None:
    """How far a store on disk is; None for one that would be rebuilt."""
    path = folder.store_path(task, spec.name)
    distrusted = folder.distrusted(task, spec.name)
    retention_ms = spec.kept_ms
    try:
        if distrusted is not None or not (path / "data.mdb").exists():
            return None
        store = LmdbStore.open(path)
        meta = store.meta()
        store.close()
    except EverflowError as error:
        log.warning("The copy of %s in task %s is not used: %s", spec.name, task, error)
        return None
    plan = restore_plan(meta, state, now_ms=now_ms, kind=spec.kind, retention_ms=retention_ms)
    if plan.rebuild:
        log.info("The copy of %s in task %s is not used: %s", spec.name, task, plan.reason)
        return None
    if meta.position is None:
        return None
    # One at its changelog's very end may be old: it has missed nothing so far, and that counts from
    # now.
    seen_ms = now_ms if meta.position >= state.end else meta.updated_ms
    # A store over its input topic survives a reset of the offsets, whose host need not be this one.
    told = {} if spec.source_topic is not None else meta.inputs
    return AtRest(
        meta.position,
        trusted_until_ms(seen_ms, state.delete_retention_ms),
        {TopicPartition.parse(tp): offset for tp, offset in told.items()},
    )


# --- freshness ------------------------------------------------------------------------------------
# Until when the stores of running tasks are known to have followed their changelogs (scenario
# 13).
#
# A store says in itself when that was last so; one that has not for ``delete.retention.ms`` is
# rebuilt, as it may have missed deletes. A batch's apply says it for the tasks it touched, but a
# task without records has none for days. That nothing was written to the changelog meanwhile is
# true as long as the task is owned, and that is known of the past only: of a moment before a
# heartbeat was *sent* that the group confirmed. So a claim is made for a moment between two
# batches and counts once two more heartbeats were confirmed in the same ownership. A machine that
# was suspended, or cut off from the group, claims nothing that it does not have.

PROVING_HEARTBEATS = 2
"""One of them was sent after the first look, whichever was under way then."""


@dataclass(frozen=True)
class Settled:
    """A running task at a moment between two batches: all that it had committed is in its stores.

    Attributes:
        epoch: its ownership (`GateBook.epoch`).
        incarnation: who may write to its stores.
        stores: where they lie.
        at_ms: the moment, wall clock.
    """

    task: TaskId
    epoch: int
    incarnation: str
    stores: tuple[Path, ...]
    at_ms: int


class Freshness:
    """Collects claims (`look`, often, on one thread) and writes those that are proven into the
    stores (`note`, which waits for the apply of a batch in flight: on a thread that may).

    Args:
        settled: running tasks as of their threads' last moment between batches.
        broken: (task, epoch) whether that ownership is over.
        heartbeats: how many of them the group has confirmed.
    """

    def __init__(
        self,
        settled: Callable[[], Collection[Settled]],
        broken: Callable[[TaskId, int], bool],
        heartbeats: Callable[[], int],
    ) -> None:
        self._settled, self._broken, self._heartbeats = settled, broken, heartbeats
        self._claims: Collection[Settled] = ()
        self._claimed_at = 0
        self.proven: tuple[Settled, ...] = ()
        """The latest that have been proven."""

    def look(self) -> None:
        """Take over what has been proven, and make new claims."""
        confirmed = self._heartbeats()
        if self._claimed_at <= confirmed < self._claimed_at + PROVING_HEARTBEATS:
            return
        if (
            confirmed >= self._claimed_at
        ):  # fewer: another membership, which proves nothing of this one
            self.proven = tuple(
                claim for claim in self._claims if not self._broken(claim.task, claim.epoch)
            )
        self._claims = list(self._settled())
        # After the claims: what is sent from now on is sent after them.
        self._claimed_at = self._heartbeats()

    def note(self) -> None:
        """Write the proven claims. A store that has another owner by now, was rebuilt or closed, is
        left alone."""
        for claim in self.proven:
            for path in claim.stores:
                try:
                    LmdbStore.open(path).touch(claim.at_ms, claim.incarnation)
                except EverflowError as error:
                    log.debug("Task %s: %s", claim.task, error)


# --- state keeper ---------------------------------------------------------------------------------
# Keeps the state folder in order: running stores stay trusted, what nobody needs goes.
#
# Looking is the instance's loop's, the work that may wait (for a batch's apply, for the disk) has
# a thread of its own.

NOTE_PERIOD_MS = 60_000.0
"""Far below the margin of an hour that is left to stores (`restore_plan.AGE_MARGIN_MS_MAX`), also
where deletes are kept for minutes only."""
LOOK_PERIOD_MS = 10_000.0
"""Between two looks at the stores, as one at a thousand takes milliseconds: a note has claims that
are twice as old at the most (note 018)."""


class StateKeeper:
    """``look`` belongs to one thread; ``close`` comes after its last call. ``sweep``:
    `StateDirectory.sweep`."""

    def __init__(
        self, freshness: Freshness, cleaner: StateCleaner, sweep: Callable[[], None], clock: Clock
    ) -> None:
        self._freshness, self._cleaner, self._sweep, self._clock = freshness, cleaner, sweep, clock
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="everflow-state-keeper")
        self._noting: Future[None] | None = None
        self._next_look_ms = 0.0
        self._next_note_ms = clock.monotonic_ms() + NOTE_PERIOD_MS
        self._start(self._delete)  # what an earlier life did not get to delete

    def look(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + LOOK_PERIOD_MS
            self._freshness.look()
        if now_ms >= self._next_note_ms and (self._noting is None or self._noting.done()):
            self._next_note_ms = now_ms + NOTE_PERIOD_MS
            self._noting = self._start(self._freshness.note)
        if self._cleaner.look():
            self._start(self._delete)

    def close(self) -> None:
        """Note what is proven. No batch runs any more, so nothing is waited for but a deletion
        under way."""
        self._start(self._freshness.note)
        self._worker.shutdown(wait=True)

    def _delete(self) -> None:
        LmdbStore.close_removed()
        self._sweep()

    def _start(self, work: Callable[[], None]) -> Future[None]:
        def run() -> None:
            try:
                work()
            except Exception:  # not worth the instance; the next round tries again
                log.exception("Keeping the state folder in order failed")

        return self._worker.submit(run)


# --- state cleaner --------------------------------------------------------------------------------
# Removes state of tasks without a role here for ``state.cleanup.delay.ms``, as Kafka Streams
# does.
#
# Within the delay such a copy is worth keeping: it is offered to the group, and whoever gets the
# task back restores the tail only. Later it costs disk space for nothing. Never removed is what
# is in use, what the group may just be giving back, and anything while the instance does not run
# in a settled group: after a crash or an eviction the copies wait until the group has decided
# (I6).

LOOK_MS_MAX = 60_000.0
SETTLE_MS = 5_000.0
"""How long a generation must last before anything is removed: its decisions have arrived everywhere
in the instance by then."""


class IdleTasks:
    """How long each task folder has been nobody's (pure). Monotonic ms: a suspended machine's time
    does not count."""

    def __init__(self, delay_ms: float) -> None:
        self.delay_ms = delay_ms
        self._since: dict[TaskId, float] = {}
        self._generation, self._generation_ms = -1, 0.0

    def after(
        self,
        present: Collection[TaskId],
        used: Collection[TaskId],
        generation: int | None,
        now_ms: float,
    ) -> list[TaskId]:
        """The tasks to be removed now, sorted. ``present``: those with a folder; ``used``: those in
        any role; ``generation``: of the group, None while the instance does not run or a rebalance
        is under way."""
        self._since = {task: self._since.get(task, now_ms) for task in present if task not in used}
        if generation is None or generation != self._generation:
            self._generation, self._generation_ms = -1 if generation is None else generation, now_ms
            return []
        if now_ms - self._generation_ms < SETTLE_MS:
            return []
        return sorted(
            task for task, since_ms in self._since.items() if now_ms - since_ms >= self.delay_ms
        )


class TaskFolders(Protocol):
    """The part of `StateDirectory` that is needed."""

    def tasks(self) -> list[TaskId]: ...
    def remove_task(self, task: TaskId) -> None: ...


class Offered(Protocol):
    """The part of `Copies` that is needed."""

    def forget(self, task: TaskId) -> AtRest | None: ...
    def remember(self, task: TaskId, copy: AtRest) -> None: ...


class StateCleaner:
    """Looks now and then and removes; on the instance's loop, where no task can get a role
    meanwhile.

    Args:
        used: tasks in any role here.
        generation: of the group; None while the instance does not run or a rebalance is under way.
    """

    def __init__(
        self,
        folder: TaskFolders,
        copies: Offered,
        used: Callable[[], Collection[TaskId]],
        generation: Callable[[], int | None],
        clock: Clock,
        delay_ms: float,
    ) -> None:
        self._folder, self._copies, self._used, self._generation, self._clock = (
            folder,
            copies,
            used,
            generation,
            clock,
        )
        self._idle = IdleTasks(delay_ms)
        self._next_ms = 0.0

    def look(self) -> bool:
        """Remove what is due; True if something was, and `StateDirectory.sweep` frees the disk
        space. Quick: folders are only renamed; one that cannot be stays, with a warning."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + min(LOOK_MS_MAX, max(SETTLE_MS / 5, self._idle.delay_ms / 10))
        generation = self._generation()
        removed = [task for task in self._due(generation, now_ms) if self._remove(task, generation)]
        if removed:
            log.info(
                (
                    "Removed the state of tasks that have had no role here for %g s "
                    "(state.cleanup.delay.ms): %s"
                ),
                self._idle.delay_ms / 1000,
                ", ".join(map(str, removed)),
            )
        return bool(removed)

    def _due(self, generation: int | None, now_ms: float) -> list[TaskId]:
        return self._idle.after(self._folder.tasks(), self._used(), generation, now_ms)

    def _remove(self, task: TaskId, generation: int | None) -> bool:
        """First the copy is offered no more, then the group is looked at again: a join that is
        under way may have told of it, and the leader may be giving us the task because of it
        (I5)."""
        copy = self._copies.forget(task)
        try:
            if self._generation() == generation:
                self._folder.remove_task(task)
                return True
        except (EverflowError, OSError) as error:
            log.warning("The state of task %s, which has no role here, stays: %s", task, error)
        if copy is not None:
            self._copies.remember(task, copy)
        return False
