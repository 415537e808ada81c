"""Keeps the state folder in order: running stores stay trusted, what nobody needs goes.

Looking is the instance's loop's, the work that may wait (for a batch's apply, for the disk) has a
thread of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from everflow.clock import Clock
from everflow.errors import EverflowError
from everflow.records import TaskId
from everflow.runtime.copies.known_copies import AtRest, Freshness
from everflow.state.lmdb_store import LmdbStore

log = logging.getLogger("everflow")

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
        """Quick; often."""
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
