"""Recovers, follows, reassigns and releases tasks as the group decides, one event at a time, on the
instance's loop only. A task is in at most one place: recovering, on one stream thread, leaving it,
followed by the state updater, or being released by that. One in no place that was here a moment
ago is suspended, its stores open: it may come back (reference 5.1)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from everflow.clock import Clock, SystemClock
from everflow.errors import EverflowError, RetriableError, TaskMigratedError, TaskTimeoutError
from everflow.instance.commit_gate import GateBook
from everflow.instance.restore.listeners import SuspendReason
from everflow.instance.tasks.task import (
    ActiveTask,
    Dropped,
    Released,
    StandbyTask,
    TaskRole,
    TaskState,
    TaskStore,
    TaskTimeouts,
    concerning,
    deal,
)
from everflow.logs import ABOUT_ASSIGNMENT, counted, rebalance_log, some
from everflow.records import TaskId
from everflow.retry import StoppedError

log = logging.getLogger("everflow")

MIGRATED_PAUSE_MS = 200.0
NAMED = 16


class TaskHolder(Protocol):
    @property
    def number(self) -> int: ...
    def add(self, tasks: Sequence[ActiveTask]) -> None: ...
    def drop(self, tasks: Collection[TaskId], done: Dropped) -> None: ...
    def restart(self, tasks: Collection[TaskId], done: Dropped) -> None: ...


class CopyHolder(Protocol):
    def add(self, tasks: Sequence[StandbyTask]) -> None: ...
    def drop(self, tasks: Collection[TaskId], reason: SuspendReason, done: Released) -> None: ...
    def set_role(self, task: TaskId, role: TaskRole) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TaskServices:
    """Effects of the task manager. ``recover``: recovers tasks and commits their starting offsets;
    blocks; StoppedError once the event is set. ``submit``: runs a function on a restore thread;
    True: it replays a tail only. ``post``: queues a function for the loop, from any thread.
    ``before_release``: commits the deferred offsets of these tasks. ``release``: the member may
    rejoin. ``failed``: True: what timed out is recovered anew; else the instance ends. ``changed``:
    after every event; True: all owned tasks run. ``fits``: a running task has all its inputs.
    ``rest``: a task ended here and left these stores."""

    create: Callable[[TaskId], ActiveTask]
    recover: Callable[[Sequence[ActiveTask], threading.Event], None]
    submit: Callable[[Callable[[], None], bool], object]
    post: Callable[[Callable[[], None]], None]
    before_release: Callable[[Collection[TaskId]], None]
    release: Callable[[], None]
    failed: Callable[[EverflowError], bool]
    changed: Callable[[bool], None]
    fits: Callable[[ActiveTask], bool] = lambda task: True
    rest: Callable[[TaskId, Sequence[TaskStore]], None] = lambda task, stores: None
    close: Callable[[Sequence[TaskStore]], None] = lambda stores: None
    clock: Clock = field(default_factory=SystemClock)


@dataclass(kw_only=True)
class TaskManager:
    """``owned`` and ``copies`` are what the group wants here; the rest is how far it is."""

    gate: GateBook
    threads: Sequence[TaskHolder]
    updater: CopyHolder
    services: TaskServices
    timeouts: TaskTimeouts
    owned: set[TaskId] = field(default_factory=set)
    copies: dict[TaskId, TaskRole] = field(default_factory=dict)
    running: dict[TaskId, int] = field(default_factory=dict)
    recovering: dict[TaskId, threading.Event] = field(default_factory=dict)
    leaving: set[TaskId] = field(default_factory=set)
    """Leaving a thread: to another one, or released."""
    following: dict[TaskId, TaskRole] = field(default_factory=dict)
    letting_go: set[TaskId] = field(default_factory=set)
    suspended: dict[TaskId, ActiveTask] = field(default_factory=dict)
    restarting: set[TaskId] = field(default_factory=set)
    """By a user's wish, until they run again."""
    retiring: frozenset[int] = frozenset()
    """Threads that give up what they have and get nothing; never all of them."""
    _restoring: dict[TaskId, ActiveTask] = field(default_factory=dict)
    _revoked: set[TaskId] = field(default_factory=set)
    _last_thread: dict[TaskId, int] = field(default_factory=dict)
    _closing: bool = False

    def assigned(self, tasks: Collection[TaskId]) -> None:
        """The group assigned these tasks; the gate's book has them already."""
        if tasks:
            _report(logging.INFO, "Assigned %s: %s", tasks)
        self.owned |= set(tasks)
        self._revoked -= set(tasks)
        self.reconcile()

    def revoked(self, tasks: Collection[TaskId]) -> None:
        """Give these up after the batches in flight; then the member may rejoin."""
        _report(logging.INFO, "Revoked %s (they go to another instance): %s", tasks)
        self.owned -= set(tasks)
        self._revoked |= set(tasks)
        self._cancel(tasks)
        self.reconcile()

    def lost(self, tasks: Collection[TaskId]) -> None:
        """Others may own these already: close them without a commit. Copies go on."""
        text = "Lost %s (this instance left the group without a rebalance): %s"
        _report(logging.WARNING, text, tasks)
        self.owned -= set(tasks)
        self._revoked -= set(tasks)
        self._cancel(tasks)
        self.reconcile()

    def roles(self, standby: Collection[TaskId], warmup: Collection[TaskId]) -> None:
        """A completed rebalance assigns these copies; suspended tasks without a role are closed."""
        wanted = {
            **dict.fromkeys(standby, TaskRole.STANDBY),
            **dict.fromkeys(warmup, TaskRole.WARMUP),
        }
        if wanted != self.copies:
            text = "Standby tasks: %s; warm-up tasks: %s"
            rebalance_log.info(text, _names(standby), _names(warmup), extra=ABOUT_ASSIGNMENT)
        self.copies = wanted
        self.reconcile()
        self._close_unwanted(list(self.suspended))

    def deal_without(self, retiring: frozenset[int]) -> None:
        self.retiring = retiring
        self.reconcile()

    def restart(self, tasks: Collection[TaskId]) -> None:
        """Their threads give them up, with their workers, and they are recovered here (note 074).
        Those that do not run are being recovered, or gone: that is a restart."""
        for thread in self.threads:
            here = {task for task in tasks if self.running.get(task) == thread.number}
            if here:
                self.restarting |= here
                _report(logging.INFO, "Restarting %s, by request: %s", here)
                self._give_up(here, partial(thread.restart, here), anew=True)

    def close(self) -> None:
        self._closing = True
        self._cancel(list(self.recovering))

    def reconcile(self) -> None:
        """Start what is missing between the wanted and the present places of tasks."""
        self.restarting &= self.owned
        if not self._closing:
            self._settle_actives()
        self._release_if_done()
        if not self._closing:
            self._settle_copies()
        self.services.changed(self.all_running())

    def all_running(self) -> bool:
        return self.owned == set(self.running) and not self.recovering and not self.leaving

    def handing_over(self) -> frozenset[TaskId]:
        """Revoked tasks that are not released yet; from any thread."""
        return frozenset(self._revoked)

    def idle_stores(self) -> dict[TaskId, tuple[TaskStore, ...]]:
        """Stores of tasks that are being restored or are suspended; from any thread."""
        tasks = [*list(self.suspended.values()), *list(self._restoring.values())]
        return {task.id: task.stores for task in tasks}

    @property
    def _places(self) -> tuple[Collection[TaskId], ...]:
        return self.running, self.recovering, self.leaving, self.following, self.letting_go

    def in_use(self) -> set[TaskId]:
        """Tasks that have, just had or are about to have a role here: their stores stay."""
        return {*self.owned, *self._revoked, *self.copies, *self.suspended}.union(*self._places)

    def _in_none(self, task: TaskId) -> bool:
        return not any(task in place for place in self._places)

    def _settle_actives(self) -> None:
        staying = [thread.number for thread in self.threads if thread.number not in self.retiring]
        dealt = deal(self.owned, staying, self._last_thread, self.running)
        self._last_thread.update(dealt)
        for thread in self.threads:
            self._drop(thread, dealt)
            here = [task for task, number in sorted(dealt.items()) if number == thread.number]
            fresh = [task for task in here if self._in_none(task)]
            # Apart: no task waits for another's whole restore, or for another's silent brokers.
            stalled = self.timeouts.stalled()
            together = [task for task in fresh if task not in stalled]
            for part in (
                [t for t in together if t in self.suspended],
                [t for t in together if t not in self.suspended],
                *([task] for task in fresh if task in stalled),
            ):
                if part:
                    self._recover(part)

    def _settle_copies(self) -> None:
        promoted = [task for task in self.following if task in self.owned]
        others = [task for task in self.following if task not in self.owned]
        migrated = [task for task in others if task not in self.copies]
        self._let_go(promoted, SuspendReason.PROMOTED)
        self._let_go(migrated, SuspendReason.MIGRATED)
        for task, role in self.copies.items():
            if task in self.owned or task in self._revoked:
                continue
            if self.following.get(task, role) is not role:
                self.following[task] = role
                self.updater.set_role(task, role)
            elif self._in_none(task):
                self._follow(task, role)

    def _drop(self, thread: TaskHolder, dealt: Mapping[TaskId, int]) -> None:
        here = [task for task, number in self.running.items() if number == thread.number]
        gone = [task for task in here if dealt.get(task) != thread.number]
        if not gone:
            return
        self._give_up(gone, partial(thread.drop, gone))

    def _give_up(
        self,
        tasks: Collection[TaskId],
        drop: Callable[[Dropped], None],
        *,
        anew: bool = False,
    ) -> None:
        for task in tasks:
            del self.running[task]
        self.leaving |= set(tasks)
        drop(lambda found: self.services.post(lambda: self._dropped(tasks, found, anew)))

    def _dropped(self, asked: Iterable[TaskId], tasks: Sequence[ActiveTask], anew: bool) -> None:
        self.leaving -= set(asked)
        by_id = {task.id: task for task in tasks}
        for task_id in asked:
            task = by_id.get(task_id)
            if task is None:
                continue
            # To be recovered: a task that was lost and came back, or whose last batch is unknown.
            whole = task.state is TaskState.RUNNING and not self.gate.broken(task_id, task.epoch)
            ours = whole and task_id in self.owned and task_id in self.gate.owned()
            if ours and not anew and self.services.fits(task):
                self._start([task])
            else:
                self._suspend(task)
        self.reconcile()

    def _recover(self, ids: Sequence[TaskId]) -> None:
        stop = threading.Event()
        quick = all(task in self.suspended for task in ids)
        tasks = []
        for task_id in ids:
            self.recovering[task_id] = stop
            fresh = self.services.create(task_id)
            task = self.suspended.pop(task_id, fresh)
            task.inputs = fresh.inputs  # a topic may have come since it ran (note 037)
            task.epoch = self.gate.epoch(task_id)
            task.to(TaskState.RESTORING)
            self._restoring[task_id] = task
            tasks.append(task)

        def work() -> None:
            error: EverflowError | None = None
            try:
                self.services.recover(tasks, stop)
            except TaskMigratedError as raised:
                # Evicted: the event of the loss follows. Without it the recovery starts again.
                log.warning("The recovery of tasks %s was stopped: %s", _names(ids), raised)
                self.services.clock.wait(stop, MIGRATED_PAUSE_MS)
                error = StoppedError(str(raised))
            except EverflowError as raised:
                error = raised
            except Exception as raised:  # a defect: must not vanish in the pool
                log.exception("Recovery failed")
                error = EverflowError(f"Recovery of tasks {_names(ids)} failed: {raised!r}")
            self.services.post(lambda: self._recovered(tasks, error))

        self.services.submit(work, quick)

    def _recovered(self, tasks: Sequence[ActiveTask], error: EverflowError | None) -> None:
        for task in tasks:
            self.recovering.pop(task.id, None)
            self._restoring.pop(task.id, None)
        ends = error is not None and not isinstance(error, StoppedError)
        if isinstance(error, RetriableError):
            ends = not self._tried_in_vain(tasks, error)
        elif error is not None and ends:
            self.services.failed(error)
        if ends:
            for task in tasks:
                self._close(task)
            return
        keep = [
            task
            for task in tasks
            if error is None
            and task.id in self.owned
            and not self.gate.broken(task.id, task.epoch)
            and not self._closing
            and self.services.fits(task)
        ]
        kept = {task.id for task in keep}
        for task in tasks:
            if task.id not in kept:
                self._suspend(task)
        for task in keep:
            self.timeouts.progressed(task.id)
            task.to(TaskState.RUNNING)
        self._start(keep)
        self.reconcile()

    def _tried_in_vain(self, tasks: Sequence[ActiveTask], why: RetriableError) -> bool:
        """The tasks concerned, or all, are tried again each by itself. False: the time of one is
        over, and the instance ends."""
        self.timeouts.keep(self.owned)
        concerned = [task.id for task in concerning(tasks, why.partitions) or tasks]
        try:
            self.timeouts.failed(concerned, str(why), self.services.clock.monotonic_ms())
        except TaskTimeoutError as late:
            late.__cause__ = why
            if not self.services.failed(late):
                return False
            for task_id in concerned:
                self.timeouts.progressed(task_id)
        log.warning("Tasks %s cannot be recovered yet: %s", _names(concerned), why)
        return True

    def recovery_failed(self, tasks: Sequence[ActiveTask], why: RetriableError) -> None:
        """A thread could not recover these tasks; its other tasks go on there."""
        for task in tasks:
            self.running.pop(task.id, None)
            self._suspend(task)
        self._tried_in_vain(tasks, why)
        self.reconcile()

    def _start(self, tasks: Sequence[ActiveTask]) -> None:
        self.restarting -= {task.id for task in tasks}
        last, first = self._last_thread, self.threads[0].number
        for thread in self.threads:
            mine = [task for task in tasks if last.get(task.id, first) == thread.number]
            if mine:
                self.running.update({task.id: thread.number for task in mine})
                thread.add(mine)

    def _cancel(self, tasks: Iterable[TaskId]) -> None:
        """End the recoveries that hold one of the tasks; the others of the group start again."""
        for task in tasks:
            if task in self.recovering:
                self.recovering[task].set()

    def _release_if_done(self) -> None:
        busy = self._revoked.intersection({*self.recovering, *self.leaving, *self.running})
        if busy or not self._revoked:
            return
        self.services.before_release(frozenset(self._revoked))
        self.gate.release(self._revoked)
        self._revoked.clear()
        self.services.release()

    def _follow(self, task_id: TaskId, role: TaskRole) -> None:
        before = self.suspended.pop(task_id, None)
        if before is not None:
            task = before.recycle(role)
        else:
            task = StandbyTask(task_id, self.services.create(task_id).stores, role)
        self.following[task_id] = role
        self.updater.add([task])

    def _let_go(self, tasks: Collection[TaskId], reason: SuspendReason) -> None:
        if not tasks:
            return
        for task in tasks:
            del self.following[task]
        self.letting_go |= set(tasks)
        self.updater.drop(
            tasks,
            reason,
            lambda released: self.services.post(lambda: self._released(tasks, released)),
        )

    def _released(self, asked: Iterable[TaskId], tasks: Sequence[StandbyTask]) -> None:
        """The updater has released tasks: a promoted one goes to recovery with open stores."""
        self.letting_go -= set(asked)
        for task in tasks:
            if task.state is TaskState.CREATED:  # it was never opened
                continue
            self._suspend(task.recycle(self.services.create(task.id).inputs))
        self._close_unwanted(asked)
        self.reconcile()

    def _suspend(self, task: ActiveTask) -> None:
        if task.state is not TaskState.SUSPENDED:
            task.to(TaskState.SUSPENDED)
        self.suspended[task.id] = task
        self.services.rest(task.id, task.stores)

    def _close_unwanted(self, tasks: Iterable[TaskId]) -> None:
        for task in tasks:
            if task in self.suspended and not (task in self.owned or task in self.copies):
                self._close(self.suspended.pop(task))

    def _close(self, task: ActiveTask) -> None:
        if task.state in (TaskState.RUNNING, TaskState.RESTORING):
            task.to(TaskState.SUSPENDED)
        task.to(TaskState.CLOSED)
        self.services.close(task.stores)


def _report(level: int, text: str, tasks: Collection[TaskId]) -> None:
    rebalance_log.log(
        level, text, counted(len(tasks), "task"), _names(tasks), extra=ABOUT_ASSIGNMENT
    )


def _names(tasks: Collection[TaskId]) -> str:
    return some(sorted(tasks), NAMED)
