"""Says how long a task may go without progress (KIP-572), and when it is tried again: pure.

Times are monotonic ms, the limit is ``task.timeout.ms``.
A task's time begins with its first failure and is over with its first progress. While it lasts the
task rests between two attempts, so that those beside it get on: the longer an attempt has held them
up, the longer it rests.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from everflow.errors import TaskTimeoutError
from everflow.records import TaskId

FIRST_REST_MS = 500.0
SHARE_OF_OTHERS = 3.0
"""How much more of the time belongs to tasks that get on than to attempts of one that does not."""
PART_OF_LIMIT = 0.25
"""No rest is longer than that, or there would be too few attempts in the time."""


@dataclass
class StalledTask:
    """One that does not get on. ``since_ms``: its first failure since it last did; ``count``: how
    many since; ``cause``: of the last."""

    since_ms: float
    count: int = 0
    cause: str = ""
    until_ms: float = 0.0
    """It rests until then."""
    alone: bool = False
    """Nobody knows whether it or one beside it fails: it is tried by itself."""


@dataclass
class TaskTimeouts:
    """``limit_ms``: ``task.timeout.ms``; a first failure is never too late, as in Kafka Streams.
    Owned by one thread; any may call `stalled`."""

    limit_ms: float
    _stalled: dict[TaskId, StalledTask] = field(default_factory=dict)
    _others_until_ms: float = 0.0
    """Until then those that get on have the time."""

    def failed(self, tasks: Iterable[TaskId], cause: str, now_ms: float) -> None:
        """One more attempt of each was in vain. TaskTimeoutError for one whose time is over."""
        for task in tasks:
            stalled = self._stalled.setdefault(task, StalledTask(now_ms))
            stalled.count += 1
            stalled.cause = cause
            self._require(task, now_ms)

    def waits(self, task: TaskId, cause: str, now_ms: float) -> None:
        """It waits for a broker, without an attempt. TaskTimeoutError if its time is over."""
        stalled = self._stalled.setdefault(task, StalledTask(now_ms))
        stalled.cause = stalled.cause or cause
        self._require(task, now_ms)

    def _require(self, task: TaskId, now_ms: float) -> None:
        stalled = self._stalled[task]
        if now_ms - stalled.since_ms > self.limit_ms:
            raise TaskTimeoutError(
                f"Task {task} made no progress for {(now_ms - stalled.since_ms) / 1000:.0f} s "
                f"(task.timeout.ms: {self.limit_ms / 1000:g} s); the last failure: {stalled.cause}",
                task,
            )

    def rest(self, tasks: Iterable[TaskId], now_ms: float, took_ms: float) -> None:
        """Leave tasks that failed alone for a while; ``took_ms``: how long their last attempt held
        the others up."""
        most_ms = self.limit_ms * PART_OF_LIMIT
        self._others_until_ms = now_ms + min(SHARE_OF_OTHERS * took_ms, most_ms)
        for task in tasks:
            stalled = self._stalled[task]
            growing_ms = FIRST_REST_MS * 2.0 ** min(stalled.count - 1, 16)
            wanted = max(growing_ms, SHARE_OF_OTHERS * took_ms)
            stalled.until_ms, stalled.alone = now_ms + min(wanted, most_ms), True

    def rest_until(self, tasks: Iterable[TaskId], until_ms: float) -> None:
        """Leave tasks that failed alone until then."""
        for task in tasks:
            self._stalled[task].until_ms = until_ms

    def set_apart(self, tasks: Iterable[TaskId]) -> None:
        """One of these tasks, which have failed together, may be the reason: each by itself."""
        for task in tasks:
            self._stalled[task].alone = True

    def progressed(self, task: TaskId) -> None:
        """It made progress, or has nothing to do: its time begins anew."""
        self._stalled.pop(task, None)

    def keep(self, tasks: Collection[TaskId]) -> None:
        """The others are somebody else's now."""
        for task in self._stalled.keys() - set(tasks):
            del self._stalled[task]

    def resting(self, now_ms: float) -> frozenset[TaskId]:
        """Those that are left alone now."""
        return frozenset(
            task for task, stalled in self._stalled.items() if now_ms < stalled.until_ms
        )

    def chosen(self, tasks: Collection[TaskId], now_ms: float) -> Collection[TaskId]:
        """Which of ``tasks``, none of which rests, are in the next batch: all, or one of those that
        are tried by themselves, or the others."""
        alone = [task for task in tasks if task in self._stalled and self._stalled[task].alone]
        others = [task for task in tasks if task not in alone]
        if not alone or (others and now_ms < self._others_until_ms):
            return others
        return [min(alone, key=lambda task: (self._stalled[task].until_ms, task))]

    @property
    def any(self) -> bool:
        """Whether there are tasks that do not get on."""
        return bool(self._stalled)

    def stalled(self) -> dict[TaskId, StalledTask]:
        """Those that do not get on."""
        return dict(self._stalled)
