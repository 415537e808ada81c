"""Knows which copies do not get on, and why: each waits by itself, and the others go on (note 051).

Kafka Streams ends a client whose standby task makes no progress for ``task.timeout.ms``. A copy is
not worth an instance that processes: here it is an error in the log, and the copy goes on waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Set
from typing import NamedTuple

from everflow.clock import Clock
from everflow.errors import TaskTimeoutError
from everflow.records import TaskId
from everflow.runtime.tasks.task import TaskRole
from everflow.runtime.tasks.task_timeouts import StalledTask, TaskTimeouts

log = logging.getLogger("everflow")

STALLED_MS = 10_000.0
"""Of a log that has more, records come within this time, or its leader is silent."""
SAY_EVERY_MS = 10_000.0


class StalledCopy(NamedTuple):
    """A copy that does not get on; times are monotonic ms."""

    role: TaskRole
    stalled: StalledTask


class StalledCopies:
    """Owned by the updater's thread; any may call `stalled`."""

    def __init__(self, timeouts: TaskTimeouts, clock: Clock) -> None:
        self._timeouts = timeouts
        self._clock = clock
        self._roles: dict[TaskId, TaskRole] = {}
        self._moved_ms: dict[TaskId, float] = {}
        """When each that is followed last got on, or was last found to be stalled."""
        self._over: set[TaskId] = set()
        """Those whose time is over, which was said."""
        self._said_ms: dict[TaskId, float] = {}
        self._stalled: Mapping[TaskId, StalledCopy] = {}

    # --- what happens ----------------------------------------------------------------------------

    def failed(
        self, tasks: Mapping[TaskId, TaskRole], cause: str, *, rests_after_ms: float | None = None
    ) -> None:
        """One more attempt of each was in vain. ``rests_after_ms``: how long it held the others up;
        the tasks are left alone for a while. None: they are tried again at once."""
        now_ms = self._clock.monotonic_ms()
        for task, role in tasks.items():
            self._roles[task] = role
            try:
                self._timeouts.failed([task], cause, now_ms)
            except TaskTimeoutError as error:
                if task not in self._over:
                    self._over.add(task)
                    log.error("%s; the instance goes on, without this copy", error)
            if now_ms - self._said_ms.get(task, float("-inf")) >= SAY_EVERY_MS:
                self._said_ms[task] = now_ms
                log.warning(
                    "Task %s (%s) cannot follow its changelogs: %s", task, role.value, cause
                )
        if rests_after_ms is not None:
            self._timeouts.rest(tasks, now_ms, rests_after_ms)
        self._publish()

    def progressed(self, task: TaskId) -> None:
        """It was opened, or records came, or there are none left for it."""
        self._moved_ms[task] = self._clock.monotonic_ms()
        if task in self._roles:
            self._forget(task)
            self._publish()

    def behind(self, task: TaskId, role: TaskRole, where: str, cause: str = "") -> None:
        """Its logs have more than it has, and nothing came in this round. ``where``: a log;
        ``cause``: why, as far as that is known."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._moved_ms.setdefault(task, now_ms) >= STALLED_MS:
            self._moved_ms[task] = now_ms
            silent = f"no records came of {where}, though the log has some: its leader is silent"
            self.failed({task: role}, cause or silent)

    def stand_still(self) -> None:
        """Nobody reads now: time does not count."""
        now_ms = self._clock.monotonic_ms()
        self._moved_ms = dict.fromkeys(self._moved_ms, now_ms)

    def keep(self, tasks: Collection[TaskId]) -> None:
        """The others are not followed here any more."""
        gone = [task for task in {*self._roles, *self._moved_ms} if task not in tasks]
        for task in gone:
            self._forget(task)
            self._moved_ms.pop(task, None)
        if gone:
            self._publish()

    # --- what is so ------------------------------------------------------------------------------

    def resting(self) -> Set[TaskId]:
        """Those that are left alone now."""
        return self._timeouts.resting(self._clock.monotonic_ms())

    def stalled(self) -> Mapping[TaskId, StalledCopy]:
        """Those that do not get on, as last seen."""
        return self._stalled

    def _forget(self, task: TaskId) -> None:
        self._timeouts.progressed(task)
        self._roles.pop(task, None)
        self._said_ms.pop(task, None)
        self._over.discard(task)

    def _publish(self) -> None:
        self._stalled = {
            task: StalledCopy(self._roles[task], stalled)
            for task, stalled in self._timeouts.stalled().items()
            if task in self._roles
        }


def concerned(
    roles: Mapping[TaskId, TaskRole],
    silent: Iterable[object],
    logs: Mapping[TaskId, Iterable[object]],
) -> dict[TaskId, TaskRole]:
    """Those of ``roles`` that have one of the ``silent`` logs."""
    gone = set(silent)
    return {task: role for task, role in roles.items() if gone.intersection(logs.get(task, ()))}
