"""Which tasks this instance holds, recovers, moves and gives up: reacts to the group's decisions, one event at a time.

Runs on the instance's loop only (`KafkaStreams`); threads and recoveries answer through ``post``, which queues an event. A task
is always in one place: recovering, on one stream thread, or being given up by it. `reconcile` moves it on from there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from everflow.errors import EverflowError, TaskMigratedError
from everflow.records import TaskId
from everflow.runtime.commit_gate import GateBook
from everflow.runtime.retry import StoppedError
from everflow.runtime.task import ActiveTask, TaskState, deal

log = logging.getLogger("everflow")

MIGRATED_PAUSE_S = 0.2


class TaskHolder(Protocol):
    """The part of a `StreamThread` that the task manager needs."""

    @property
    def number(self) -> int: ...
    def add(self, tasks: Sequence[ActiveTask]) -> None: ...
    def drop(self, tasks: Collection[TaskId], done: Callable[[Sequence[ActiveTask]], None]) -> None: ...


@dataclass(frozen=True)
class TaskServices:
    """Effects of the task manager.

    Attributes:
        create: a task in state CREATED.
        recover: recovers tasks and commits their starting offsets; blocks; ends with StoppedError when the event is set.
        submit: runs a function on a restore thread.
        post: queues a function for the instance's loop; callable from any thread.
        before_release: commits what is still deferred of these tasks, before they are given up.
        release: tells the member that the revoked tasks are closed.
        failed: the instance has to stop.
        changed: called after every event with "all owned tasks run".
    """

    create: Callable[[TaskId], ActiveTask]
    recover: Callable[[Sequence[ActiveTask], threading.Event], None]
    submit: Callable[[Callable[[], None]], None]
    post: Callable[[Callable[[], None]], None]
    before_release: Callable[[Collection[TaskId]], None]
    release: Callable[[], None]
    failed: Callable[[EverflowError], None]
    changed: Callable[[bool], None]


@dataclass
class TaskManager:
    """See the module. ``owned`` is what the group wants here; the rest is how far it is."""

    gate: GateBook
    threads: Sequence[TaskHolder]
    services: TaskServices
    owned: set[TaskId] = field(default_factory=set)
    running: dict[TaskId, int] = field(default_factory=dict)
    recovering: dict[TaskId, threading.Event] = field(default_factory=dict)
    leaving: set[TaskId] = field(default_factory=set)
    """On their way from a thread: moved to another, or given up."""
    _revoked: set[TaskId] = field(default_factory=set)
    _last_thread: dict[TaskId, int] = field(default_factory=dict)
    _closing: bool = False

    # --- events from the group -------------------------------------------------------------------

    def assigned(self, tasks: Collection[TaskId]) -> None:
        """These tasks became ours (the gate's book knows already)."""
        log.info("Assigned tasks: %s", _names(tasks))
        self.owned |= set(tasks)
        self._revoked -= set(tasks)
        self.reconcile()

    def revoked(self, tasks: Collection[TaskId]) -> None:
        """Give these up after the batches in flight; then the member may rejoin."""
        log.info("Revoked tasks: %s", _names(tasks))
        self.owned -= set(tasks)
        self._revoked |= set(tasks)
        self._cancel(tasks)
        self.reconcile()

    def lost(self, tasks: Collection[TaskId]) -> None:
        """Others may own these already: close them without a commit (the gate refuses it since the moment of the loss)."""
        log.warning("Lost tasks: %s", _names(tasks))
        self.owned -= set(tasks)
        self._revoked -= set(tasks)
        self._cancel(tasks)
        self.reconcile()

    def close(self) -> None:
        """Start nothing any more and end the recoveries."""
        self._closing = True
        self._cancel(list(self.recovering))

    # --- moving on -------------------------------------------------------------------------------

    def reconcile(self) -> None:
        """Do what is missing between what is owned and what runs."""
        if not self._closing:
            dealt = deal(self.owned, [thread.number for thread in self.threads], self._last_thread)
            self._last_thread.update(dealt)
            for thread in self.threads:
                self._drop(thread, dealt)
                fresh = [task for task, number in sorted(dealt.items()) if number == thread.number and self._is_nowhere(task)]
                if fresh:
                    self._recover(fresh)
        self._release_if_done()
        self.services.changed(self.all_running())

    def all_running(self) -> bool:
        """Whether every owned task runs and none is on its way."""
        return self.owned == set(self.running) and not self.recovering and not self.leaving

    def _is_nowhere(self, task: TaskId) -> bool:
        return task not in self.running and task not in self.recovering and task not in self.leaving

    def _drop(self, thread: TaskHolder, dealt: dict[TaskId, int]) -> None:
        gone = [t for t, number in self.running.items() if number == thread.number and dealt.get(t) != number]
        if not gone:
            return
        for task in gone:
            del self.running[task]
        self.leaving |= set(gone)
        thread.drop(gone, lambda tasks: self.services.post(lambda: self._dropped(gone, tasks)))

    def _dropped(self, asked: Iterable[TaskId], tasks: Sequence[ActiveTask]) -> None:
        """A thread has let go. A task that is still ours goes to its new thread as it is; the others are closed."""
        self.leaving -= set(asked)
        by_id = {task.id: task for task in tasks}
        for task_id in asked:
            task = by_id.get(task_id)
            if task is None:
                continue
            # Owned without a break since it ran? A task that was lost and came back must be recovered.
            if task_id in self.owned and task_id in self.gate.owned() and not self.gate.broken(task_id, task.epoch):
                self._start([task])
            else:
                _close(task)
        self.reconcile()

    def _recover(self, ids: Sequence[TaskId]) -> None:
        stop = threading.Event()
        tasks = []
        for task_id in ids:
            self.recovering[task_id] = stop
            task = self.services.create(task_id)
            task.epoch = self.gate.epoch(task_id)
            task.to(TaskState.RESTORING)
            tasks.append(task)

        def work() -> None:
            error: EverflowError | None = None
            try:
                self.services.recover(tasks, stop)
            except TaskMigratedError as raised:
                # Evicted: the loss is on its way as an event. Where it is not, the recovery starts again.
                log.warning("Recovery of tasks %s given up: %s", _names(ids), raised)
                stop.wait(MIGRATED_PAUSE_S)
                error = StoppedError(str(raised))
            except EverflowError as raised:
                error = raised
            except Exception as raised:  # a defect: must not vanish in the pool
                log.exception("Recovery failed")
                error = EverflowError(f"Recovery of tasks {_names(ids)} failed: {raised!r}")
            self.services.post(lambda: self._recovered(tasks, error))

        self.services.submit(work)

    def _recovered(self, tasks: Sequence[ActiveTask], error: EverflowError | None) -> None:
        for task in tasks:
            self.recovering.pop(task.id, None)
        if error is not None and not isinstance(error, StoppedError):
            for task in tasks:
                _close(task)
            self.services.failed(error)
            return
        keep = [
            task
            for task in tasks
            if error is None and task.id in self.owned and not self.gate.broken(task.id, task.epoch) and not self._closing
        ]
        for task in tasks:
            if task not in keep:
                _close(task)
        for task in keep:
            task.to(TaskState.RUNNING)
        self._start(keep)
        self.reconcile()

    def _start(self, tasks: Sequence[ActiveTask]) -> None:
        for thread in self.threads:
            mine = [task for task in tasks if self._last_thread.get(task.id, self.threads[0].number) == thread.number]
            if mine:
                self.running.update({task.id: thread.number for task in mine})
                thread.add(mine)

    def _cancel(self, tasks: Iterable[TaskId]) -> None:
        """End the recoveries that hold one of the tasks; the others of the group start again."""
        for task in tasks:
            if task in self.recovering:
                self.recovering[task].set()

    def _release_if_done(self) -> None:
        if not self._revoked:
            return
        if any(task in self.recovering or task in self.leaving or task in self.running for task in self._revoked):
            return
        self.services.before_release(frozenset(self._revoked))
        self.gate.release(self._revoked)
        self._revoked.clear()
        self.services.release()


def _close(task: ActiveTask) -> None:
    if task.state in (TaskState.RUNNING, TaskState.RESTORING):
        task.to(TaskState.SUSPENDED)
    if task.state is not TaskState.CLOSED:
        task.to(TaskState.CLOSED)


def _names(tasks: Collection[TaskId]) -> str:
    return ", ".join(map(str, sorted(tasks))) or "none"
