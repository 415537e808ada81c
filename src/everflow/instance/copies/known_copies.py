"""Reports the lag of this instance's copies to the group (note 005), and removes unused state. A
copy that would be rebuilt before its next use (`restore_plan`) is not reported."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from everflow.clock import Clock, SystemClock
from everflow.errors import EverflowError
from everflow.instance.copies.state_updater import FollowedTask
from everflow.instance.restore.restore_plan import (
    DEFAULT_DELETE_RETENTION_MS,
    ChangelogState,
    restore_plan,
    trusted_until_ms,
)
from everflow.instance.tasks.task import TaskStore
from everflow.records import Offsets, TaskId, TopicPartition
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import StoreSpec
from everflow.state.task_directory import StateDirectory

log = logging.getLogger("everflow")


@dataclass(frozen=True)
class AtRest:
    """A copy that nobody follows. ``until_ms``: it has missed no delete before (wall clock)."""

    offset_sum: int
    until_ms: float = float("inf")
    inputs: Offsets = field(default_factory=dict)
    """Offsets of its task's inputs that the group had committed with the last batch in it."""


@dataclass
class Copies:
    """What is on disk, for `membership.assignor`; from any thread. ``recovering``: active tasks
    that do not run yet; ``restored``: their summed positions. ``delete_retention_ms``: no I/O."""

    followed: Callable[[], Mapping[TaskId, FollowedTask]]
    running: Callable[[], Collection[TaskId]]
    recovering: Callable[[], Collection[TaskId]] = tuple
    restored: Callable[[], Mapping[TaskId, int]] = dict
    delete_retention_ms: Callable[[str], int] = lambda topic: DEFAULT_DELETE_RETENTION_MS
    clock: Clock = field(default_factory=SystemClock)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _at_rest: dict[TaskId, AtRest] = field(default_factory=dict)

    def offset_sums(self) -> Mapping[TaskId, int]:
        """The sum of the changelog positions of each copy, without active tasks that run here."""
        now_ms = self.clock.now_ms()
        with self._lock:
            at_rest = self._at_rest.items()
            sums = {task: copy.offset_sum for task, copy in at_rest if now_ms <= copy.until_ms}
        sums.update((task, figures.offset_sum) for task, figures in self.followed().items())
        restored = self.restored()
        for task in self.recovering():
            sums[task] = max(sums.get(task, 0), restored.get(task, 0))
        for task in self.running():
            sums.pop(task, None)
        return sums

    def scan(
        self,
        folder: StateDirectory,
        specs: Callable[[int], Iterable[StoreSpec]],
        changelog: Callable[[TaskId, StoreSpec], TopicPartition],
        states: Callable[[Collection[TopicPartition]], Mapping[TopicPartition, ChangelogState]],
    ) -> None:
        """Read all task folders, once, before the instance joins. What cannot be judged is cold."""
        found: list[tuple[TaskId, StoreSpec, TopicPartition]] = []
        for task in folder.tasks():
            here = set(folder.stores(task))
            for spec in specs(task.subtopology):
                if spec.logging and spec.name in here:
                    found.append((task, spec, changelog(task, spec)))
        try:
            known = states({tp for _, _, tp in found}) if found else {}
        except EverflowError as error:
            text = "The local copies in the state folder cannot be compared with their changelogs"
            log.warning("%s: %s", text, error)
            return
        copies: dict[TaskId, list[AtRest]] = {}
        for task, spec, tp in found:
            copy = _judged(folder, task, spec, known[tp], self.clock.now_ms())
            if copy is not None:
                copies.setdefault(task, []).append(copy)
        rested = {task: _together(stores) for task, stores in sorted(copies.items())}
        with self._lock:
            self._at_rest = rested
        if rested:
            said = ", ".join(f"{task} at {copy.offset_sum}" for task, copy in rested.items())
            log.info("Local copies in the state folder, task at offset sum: %s", said)

    def applied(self, topics: Collection[str]) -> dict[TopicPartition, int]:
        """Lower bounds of the committed offsets of ``topics``, from copies that no task uses."""
        with self._lock:
            found = [item for copy in self._at_rest.values() for item in copy.inputs.items()]
        return {tp: offset for tp, offset in found if tp.topic in topics}

    def rest(self, task: TaskId, stores: Iterable[TaskStore]) -> None:
        """A task ended here and its stores stay on disk: note how far they are."""
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
                retention_ms = self.delete_retention_ms(store.changelog.topic)
                copies.append(
                    AtRest(meta.position, trusted_until_ms(meta.updated_ms, retention_ms))
                )
        with self._lock:
            if copies:
                self._at_rest[task] = _together(copies)
            else:
                self._at_rest.pop(task, None)

    def forget(self, task: TaskId) -> AtRest | None:
        """Stop reporting a copy that is about to be removed. `remember` undoes it."""
        with self._lock:
            return self._at_rest.pop(task, None)

    def remember(self, task: TaskId, copy: AtRest) -> None:
        with self._lock:
            self._at_rest.setdefault(task, copy)


def _together(stores: Collection[AtRest]) -> AtRest:
    """The copy of a task with these stores: it is too old as soon as one of them is."""
    inputs: dict[TopicPartition, int] = {}
    for store in stores:
        inputs.update({tp: max(at, inputs.get(tp, 0)) for tp, at in store.inputs.items()})
    offset_sum = sum(store.offset_sum for store in stores)
    return AtRest(offset_sum, min(store.until_ms for store in stores), inputs)


def _judged(
    folder: StateDirectory, task: TaskId, spec: StoreSpec, state: ChangelogState, now_ms: int
) -> AtRest | None:
    """The position of a store on disk; None if it would be rebuilt."""
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
        log.warning(
            "The local copy of store %s of task %s is not used: %s",
            spec.name,
            task,
            error,
        )
        return None
    plan = restore_plan(
        meta,
        state,
        now_ms=now_ms,
        kind=spec.kind,
        retention_ms=retention_ms,
    )
    if plan.rebuild:
        log.info("The copy of %s in task %s is not used: %s", spec.name, task, plan.reason)
        return None
    if meta.position is None:
        return None
    # A store at the very end of its changelog may be old: it has missed nothing until now.
    seen_ms = now_ms if meta.position >= state.end else meta.updated_ms
    # A store over its input topic survives a reset of the offsets, whose host need not be this one.
    noted = {} if spec.source_topic is not None else meta.inputs
    inputs = {TopicPartition.parse(tp): offset for tp, offset in noted.items()}
    return AtRest(meta.position, trusted_until_ms(seen_ms, state.delete_retention_ms), inputs)


# --- freshness ------------------------------------------------------------------------------------
# A store that was last at the end of its changelog longer ago than ``delete.retention.ms`` is
# rebuilt (scenario 13), and a task without records has no batch for days. Nobody else writes to a
# changelog while its task is owned here, which is certain until a confirmed heartbeat was *sent*: a
# claim for a moment between two batches counts after two more of them in the same ownership.

PROVING_HEARTBEATS = 2
"""At least one of them was sent after the claims were collected."""


@dataclass(frozen=True)
class Settled:
    """A running task between batches, ``at_ms`` (wall clock): all it committed is in its stores."""

    task: TaskId
    epoch: int
    incarnation: str
    stores: tuple[Path, ...]
    at_ms: int


@dataclass
class Freshness:
    """Collects claims (`collect`, on one thread) and writes the proven ones into the stores
    (`note`, which may wait for a batch in flight). ``heartbeats``: confirmed by the group."""

    settled: Callable[[], Collection[Settled]]
    broken: Callable[[TaskId, int], bool]
    heartbeats: Callable[[], int]
    proven: tuple[Settled, ...] = ()
    _claims: Collection[Settled] = ()
    _claimed_at: int = 0

    def collect(self) -> None:
        confirmed = self.heartbeats()
        if self._claimed_at <= confirmed < self._claimed_at + PROVING_HEARTBEATS:
            return
        if confirmed >= self._claimed_at:  # fewer: of another membership, which proves nothing
            self.proven = tuple(
                claim for claim in self._claims if not self.broken(claim.task, claim.epoch)
            )
        self._claims = list(self.settled())
        # After the claims: heartbeats that are sent from now on prove them.
        self._claimed_at = self.heartbeats()

    def note(self) -> None:
        """Write the proven claims; not into a store with another owner, or rebuilt or closed."""
        for claim in self.proven:
            for path in claim.stores:
                try:
                    LmdbStore.open(path).touch(claim.at_ms, claim.incarnation)
                except EverflowError as error:
                    log.debug("Task %s: %s", claim.task, error)


NOTE_PERIOD_MS = 60_000.0
"""Far below `restore_plan.AGE_MARGIN_MS_MAX`, also where deletes are kept for minutes only."""
COLLECT_PERIOD_MS = 10_000.0
"""A collection of a thousand stores takes milliseconds (note 018)."""


@dataclass
class StateMaintenance:
    """Keeps running stores trusted and removes unused state. `turn` runs on the instance's loop."""

    freshness: Freshness
    cleaner: StateCleaner
    sweep: Callable[[], None]
    clock: Clock
    _noting: Future[None] | None = None
    _next_collect_ms: float = 0.0

    def __post_init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="everflow-state-keeper")
        self._next_note_ms = self.clock.monotonic_ms() + NOTE_PERIOD_MS
        self._start(self._delete)  # what an earlier process could not delete any more

    def turn(self) -> None:
        now_ms = self.clock.monotonic_ms()
        if now_ms >= self._next_collect_ms:
            self._next_collect_ms = now_ms + COLLECT_PERIOD_MS
            self.freshness.collect()
        if now_ms >= self._next_note_ms and (self._noting is None or self._noting.done()):
            self._next_note_ms = now_ms + NOTE_PERIOD_MS
            self._noting = self._start(self.freshness.note)
        if self.cleaner.clean():
            self._start(self._delete)

    def close(self) -> None:
        self._start(self.freshness.note)
        self._worker.shutdown(wait=True)

    def _delete(self) -> None:
        LmdbStore.close_removed()
        self.sweep()

    def _start(self, work: Callable[[], None]) -> Future[None]:
        def run() -> None:
            try:
                work()
            except Exception:  # the instance goes on, and the next round tries again
                log.exception("Cleaning up the state folder failed")

        return self._worker.submit(run)


CLEAN_MS_MAX = 60_000.0
SETTLE_MS = 5_000.0
"""A generation lasts so long before anything is removed: all parts have its assignment."""


@dataclass
class IdleTasks:
    """How long task folders have been unused. Pure; monotonic ms, without time in suspension."""

    delay_ms: float
    _since: dict[TaskId, float] = field(default_factory=dict)
    _generation: int = -1
    _generation_ms: float = 0.0

    def after(
        self,
        present: Collection[TaskId],
        used: Collection[TaskId],
        generation: int | None,
        now_ms: float,
    ) -> list[TaskId]:
        """The tasks to remove now, sorted. ``generation``: None in a rebalance, or not running."""
        self._since = {task: self._since.get(task, now_ms) for task in present if task not in used}
        if generation is None or generation != self._generation:
            self._generation, self._generation_ms = -1 if generation is None else generation, now_ms
            return []
        if now_ms - self._generation_ms < SETTLE_MS:
            return []
        return sorted(
            task for task, since_ms in self._since.items() if now_ms - since_ms >= self.delay_ms
        )


@dataclass
class StateCleaner:
    """Removes the state of tasks that had no role here for ``state.cleanup.delay.ms``, on the
    instance's loop, and only in a settled group: else copies wait for the next assignment (I6)."""

    folder: StateDirectory
    copies: Copies
    used: Callable[[], Collection[TaskId]]
    generation: Callable[[], int | None]
    clock: Clock
    delay_ms: float
    _next_ms: float = 0.0

    def __post_init__(self) -> None:
        self._idle = IdleTasks(self.delay_ms)

    def clean(self) -> bool:
        """Rename what is due, for `StateDirectory.sweep` to delete; True if some was."""
        now_ms = self.clock.monotonic_ms()
        if now_ms < self._next_ms:
            return False
        self._next_ms = now_ms + min(CLEAN_MS_MAX, max(SETTLE_MS / 5, self.delay_ms / 10))
        generation = self.generation()
        due = self._idle.after(self.folder.tasks(), self.used(), generation, now_ms)
        removed = [task for task in due if self._remove(task, generation)]
        if removed:
            log.info(
                "Removed the state of tasks that were not assigned here for %g s "
                "(state.cleanup.delay.ms): %s",
                self.delay_ms / 1000,
                ", ".join(map(str, removed)),
            )
        return bool(removed)

    def _remove(self, task: TaskId, generation: int | None) -> bool:
        """Stop reporting the copy first, then check the generation again: a join under way may have
        reported the copy, and the leader may assign the task here because of it (I5)."""
        copy = self.copies.forget(task)
        try:
            if self.generation() == generation:
                self.folder.remove_task(task)
                return True
        except (EverflowError, OSError) as error:
            text = "The state of task %s, which is not assigned here, could not be removed: %s"
            log.warning(text, task, error)
        if copy is not None:
            self.copies.remember(task, copy)
        return False
