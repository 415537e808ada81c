"""What becomes of a stream thread that cannot go on (KIP-671): the user's answer, and its limits.

Kafka Streams replaces a thread as often as the handler says so. A cause that does not pass then
costs a recovery and a batch again and again, for ever, and nobody is told. So a
replacement is for causes that may pass, waits longer each time, and is given up when there were too
many within a window.
"""

from __future__ import annotations

import enum
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from everflow.errors import (
    BatchTimeoutError,
    ColumnError,
    DamagedEntryError,
    EverflowError,
    FatalError,
    RecordError,
    RecordRefusedError,
    RecordTooLargeError,
    RepeatedFailureError,
    StateDiskError,
    TaskTimeoutError,
    WorkerDiedError,
)
from everflow.records import TaskId, TopicPartition
from everflow.runtime.tasks.task import ActiveTask
from everflow.runtime.thread.batching import PlannedBatch
from everflow.runtime.thread.repeated_failures import Trouble

log = logging.getLogger("everflow")

MOST = 5
WITHIN_MS = 600_000
FIRST_REST_MS = 1_000.0
LONGEST_REST_MS = 60_000.0
_MAY_PASS = (
    RecordError,
    RecordRefusedError,
    RecordTooLargeError,
    ColumnError,
    DamagedEntryError,
    WorkerDiedError,
    BatchTimeoutError,
    RepeatedFailureError,
    TaskTimeoutError,
    StateDiskError,
)
"""What another service, another setting of a topic, more memory or room, or a broker that is back
may mend while the instance runs; a damaged entry, who writes another one into the changelog."""


class StreamThreadExceptionResponse(enum.Enum):
    """What a handler of uncaught exceptions answers: REPLACE_THREAD, SHUTDOWN_CLIENT (this
    instance) or SHUTDOWN_APPLICATION (all of them)."""

    REPLACE_THREAD = "REPLACE_THREAD"
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"
    SHUTDOWN_APPLICATION = "SHUTDOWN_APPLICATION"


UncaughtExceptionHandler: TypeAlias = "Callable[[EverflowError], StreamThreadExceptionResponse]"
"""Called with what ends a stream thread, on that thread."""


def may_pass(error: EverflowError) -> bool:
    """Whether a new thread may get on where this error ended one. A defect of everflow's own may;
    what says that only a restart mends it does not."""
    return isinstance(error, _MAY_PASS) or not isinstance(error, FatalError)


@dataclass
class Uncaught:
    """The user's handler with its limits; without one every uncaught error ends the instance. Its
    threads call it, each with its own number. ``shut_down_all``: asks every instance to end."""

    shut_down_all: Callable[[EverflowError], None]
    handler: UncaughtExceptionHandler | None = None
    most: int = MOST
    within_ms: float = WITHIN_MS
    _replaced: dict[int, deque[float]] = field(default_factory=dict)

    def rest_ms(self, number: int, error: EverflowError, now_ms: float) -> float | None:
        """For how long what fails is left alone before thread ``number`` goes on as a new one;
        None: the instance ends. ``now_ms``: monotonic."""
        response = self._answer(error)
        if response is StreamThreadExceptionResponse.SHUTDOWN_APPLICATION:
            self.shut_down_all(error)
        if response is not StreamThreadExceptionResponse.REPLACE_THREAD:
            return None
        if not may_pass(error):
            log.error(
                "Stream thread %d is not replaced: a new one would meet the same at once ([%s])",
                number,
                error.code,
            )
            return None
        before = self._replaced.setdefault(number, deque())
        while before and now_ms - before[0] > self.within_ms:
            before.popleft()
        if len(before) >= self.most:
            log.error(
                "Stream thread %d is not replaced again: it was %d times within %g s",
                number,
                len(before),
                self.within_ms / 1000,
            )
            return None
        before.append(now_ms)
        rest_ms = min(LONGEST_REST_MS, FIRST_REST_MS * 2.0 ** (len(before) - 1))
        log.warning(
            "Stream thread %d is replaced (%d of %d within %g s), what failed rests for %g s: %s",
            number,
            len(before),
            self.most,
            self.within_ms / 1000,
            rest_ms / 1000,
            error,
        )
        return rest_ms

    def _answer(self, error: EverflowError) -> StreamThreadExceptionResponse:
        if self.handler is None:
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        try:
            response: object = self.handler(error)
        except Exception:  # the user's code
            log.exception("The uncaught exception handler failed; this instance ends")
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        if not isinstance(response, StreamThreadExceptionResponse):
            log.error(
                "The uncaught exception handler answered %r, which is no "
                "StreamThreadExceptionResponse; this instance ends",
                response,
            )
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT
        return response


@dataclass
class Quarantine:
    """Tasks of one stream thread that rest after they have failed, while its others go on. Changed
    by that thread alone; any may read `troubles`."""

    _resting: dict[TaskId, tuple[float, Trouble]] = field(default_factory=dict)

    def put(
        self, tasks: Iterable[TaskId], until_ms: float, now_wall_ms: int, error: EverflowError
    ) -> None:
        """Until so late, monotonic; each failure of the same task counts."""
        first = str(error).partition("\n")[0]
        for task in tasks:
            before = self._resting.get(task)
            was = Trouble(now_wall_ms, 0, "") if before is None else before[1]
            self._resting[task] = (until_ms, Trouble(was.since_ms, was.count + 1, first))

    def resting(self, now_ms: float) -> frozenset[TaskId]:
        """Those whose time is not over."""
        return frozenset(task for task, (until, _) in self._resting.items() if now_ms < until)

    def got_on(self, task: TaskId) -> None:
        """It is well again."""
        self._resting.pop(task, None)

    def keep(self, tasks: Collection[TaskId]) -> None:
        """The others are somebody else's now."""
        for task in self._resting.keys() - set(tasks):
            del self._resting[task]

    def troubles(self) -> dict[TaskId, Trouble]:
        """Of those that have not got on since."""
        return {task: trouble for task, (_, trouble) in list(self._resting.items())}


def culprits(
    error: EverflowError, tasks: Mapping[TaskId, ActiveTask], planned: PlannedBatch | None
) -> Collection[TaskId]:
    """Whose fault it is that the batch failed; all tasks where that cannot be told."""
    if isinstance(error, TaskTimeoutError | DamagedEntryError) and error.task is not None:
        return [error.task] if error.task in tasks else list(tasks)
    if isinstance(error, RecordError):
        where = TopicPartition(error.topic, error.partition)
        found = [task.id for task in tasks.values() if where in task.inputs]
    else:
        read = (
            set()
            if planned is None
            else {tp for tp, r in planned.ranges.items() if r.end > r.start}
        )
        found = [task.id for task in tasks.values() if read & set(task.inputs)]
    return found if len(found) == 1 else list(tasks)
