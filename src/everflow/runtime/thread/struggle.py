"""Keeps what is against a stream thread and its tasks since they last got on.

Failures, pauses, when to give up, and which tasks are in the next batch (note 051). Times are
monotonic ms.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from everflow.clock import Clock
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.retry import FIRST_PAUSE_MS, LONGEST_PAUSE_MS
from everflow.runtime.commit.batch import BatchFailure, BatchResult
from everflow.runtime.tasks.task import ActiveTask, concerning
from everflow.runtime.tasks.task_timeouts import LateTask, TaskTimeouts
from everflow.runtime.thread.batching import PlannedBatch
from everflow.runtime.thread.failure_text import ending, short, told
from everflow.runtime.thread.repeated_failures import RepeatedFailures, Trouble
from everflow.runtime.topics.end_offsets import EndOffsets

log = logging.getLogger("everflow")

Tasks = Mapping[TaskId, ActiveTask]

AWAY_MS = 5_000.0
"""Brokers that answer later than that count as away."""
LONG_MS = 5_000.0
"""A failure that took longer is not met a second time by all tasks together."""


@dataclass(frozen=True)
class Recovering:
    """After a batch whose outcome is not known yet; since when, monotonic ms."""

    failure: BatchFailure
    since_ms: float


@dataclass(frozen=True)
class Hung:
    """A batch that did not end in time: when it began (monotonic), and how long it might take;
    ms."""

    since_ms: float
    limit_ms: float

    def told_of(self, failure: BatchFailure) -> BatchFailure:
        """How the batch failed, in place of how its workers died."""
        text = f"A batch has not ended within {self.limit_ms / 1000:g} s (max.poll.interval.ms)"
        return replace(failure, kind="hang", error=text)


@dataclass(kw_only=True)
class Struggle:
    """Of stream thread ``number``, which begins a new one with each progress, and alone changes
    it."""

    number: int
    clock: Clock
    trouble: Trouble | None = None
    """Any thread may read it."""
    _repeated: RepeatedFailures = field(default_factory=RepeatedFailures)
    _pause_ms: float = FIRST_PAUSE_MS

    def note(self, failure: BatchFailure, *, cut_off: bool) -> None:
        """Count the failure and tell of it: in a line, and in full once it has repeated.
        ``cut_off``: it was brought about here."""
        self._repeated = self._repeated.with_one(failure, self.clock.monotonic_ms())
        before = self.trouble or Trouble(self.clock.now_ms(), 0, "")
        self.trouble = Trouble(before.since_ms, before.count + 1, short(failure))
        if cut_off:
            log.info(
                "Stream thread %d: its batch was cut off by the end of the instance (%s)",
                self.number,
                short(failure),
            )
            return
        if self._repeated.to_be_told(failure):
            log.warning(
                "Stream thread %d: the same failure again, nothing has changed: %s",
                self.number,
                told(failure),
            )
        else:
            log.warning(
                "Stream thread %d: batch failed (%s): %s",
                self.number,
                failure.kind,
                short(failure),
            )
        log.debug("Stream thread %d: the whole cause: %s", self.number, failure.details)

    def require_hope(self, failure: BatchFailure, smallest: bool, records: str) -> None:
        """Raise the error that ends the instance, where another attempt would be in vain.
        ``smallest``: the batch cannot have fewer records; ``records`` names them where they are
        few."""
        if self.in_vain(failure, smallest):
            raise ending(failure, self._repeated.times(failure), records)

    def in_vain(self, failure: BatchFailure, smallest: bool) -> bool:
        """Whether another attempt would be in vain, after a failure that was noted."""
        return self._repeated.in_vain(failure, self.clock.monotonic_ms(), smallest)

    def pause(self, stop: threading.Event) -> None:
        """Before another attempt: longer each time."""
        self.clock.wait(stop, self._pause_ms)
        self._pause_ms = min(self._pause_ms * 2, LONGEST_PAUSE_MS)


@dataclass
class LateTasks:
    """Which of a thread's tasks do not get on, and why; any thread may read `troubles`.
    ``timeouts``: `task.timeout.ms` of each."""

    timeouts: TaskTimeouts

    def look(self, tasks: Tasks, ends: EndOffsets, now_ms: float) -> None:
        """Before a batch is planned: who waits for brokers that do not say where its logs end?
        TaskTimeoutError for one that does so for too long."""
        away = ends.failing_ms() > AWAY_MS
        known, late = ends.ends(), self.timeouts.late()
        if not (away or late or ends.any_silent):
            return  # with a thousand tasks it is worth not to look at each
        for task in tasks.values():
            silent = sorted(ends.silent_ms(task.inputs))
            if silent:
                where = f"the leader of {silent[0]} does not say where that log ends"
                self.timeouts.waits(task.id, where, now_ms)
            elif away:
                self.timeouts.waits(task.id, "no broker says where the logs end", now_ms)
            elif task.id in late and (
                not late[task.id].count
                or all(known.get(tp, 0) <= at for tp, at in task.positions.items())
            ):
                self.timeouts.got_on(task.id)

    def waiting_for_nobody(
        self, tasks: Tasks, resting: Collection[TaskId], ends: EndOffsets
    ) -> list[ActiveTask]:
        """Those whose inputs are silent where they have nothing to read: their brokers say so."""
        known, late = ends.ends().keys(), self.timeouts.late()
        return [
            task
            for task in tasks.values()
            if task.id not in resting
            and task.id not in late
            and known >= set(task.inputs)
            and not ends.silent_ms(task.inputs)
        ]

    def chosen(
        self, tasks: Tasks, ranges: Mapping[TopicPartition, OffsetRange], now_ms: float
    ) -> dict[TopicPartition, OffsetRange]:
        """``ranges``, with nothing of tasks whose turn it is not."""
        if not self.timeouts.any:
            return dict(ranges)
        reading = _reading(tasks.values(), ranges)
        turn = self.timeouts.chosen(reading, now_ms)
        left_out = {tp for task in set(reading).difference(turn) for tp in tasks[task].inputs}
        return {
            tp: OffsetRange(r.start, r.start) if tp in left_out else r for tp, r in ranges.items()
        }

    def failed_with(
        self,
        planned: PlannedBatch | None,
        tasks: Tasks,
        cause: str,
        now_ms: float,
        partitions: Collection[TopicPartition] = (),
    ) -> None:
        """Tasks of a batch are to run again: those of ``partitions`` where there are any, else all.
        TaskTimeoutError for one whose time is over."""
        reading = [] if planned is None else _reading(tasks.values(), planned.ranges)
        self.timeouts.failed(_named(reading, tasks, partitions) or reading or tasks, cause, now_ms)

    def apart(
        self,
        failure: BatchFailure,
        planned: PlannedBatch,
        tasks: Tasks,
        took_ms: float,
        now_ms: float,
    ) -> bool:
        """After a passing failure that was counted: whether tasks of the batch go on without each
        other from now on, since one of them, or those that the failure names, are the reason."""
        reading = _reading(tasks.values(), planned.ranges)
        named = _named(reading, tasks, failure.partitions)
        failed = named or reading
        late = self.timeouts.late()
        if len(tasks) < 2 or any(task not in late for task in failed):
            return False
        if named or len(failed) == 1:
            self.timeouts.rest(failed, now_ms, took_ms)
            return len(failed) < len(tasks)
        if planned.attempt > 1 or took_ms > LONG_MS:
            self.timeouts.set_apart(failed)
            return True
        return False

    def after(
        self,
        result: BatchResult,
        moved: Collection[TaskId],
        tasks: Tasks,
        took_ms: float,
        now_ms: float,
    ) -> None:
        """A batch was committed; ``moved``: the tasks that it brought forward."""
        for task in moved:
            self.timeouts.got_on(task)
        if not result.silent:
            return
        silent = [
            task for task in concerning(tasks.values(), result.silent) if task.id not in moved
        ]
        for one in silent:
            where = ", ".join(str(tp) for tp in one.inputs if tp in result.silent)
            cause = f"no records came of {where}, though the log has some: its leader is silent"
            self.timeouts.failed([one.id], cause, now_ms)
        if silent:
            self.timeouts.rest([one.id for one in silent], now_ms, took_ms)

    def troubles(self, now_ms: float, wall_ms: int) -> dict[TaskId, Trouble]:
        """What keeps tasks from getting on; ``wall_ms``: the same moment by the wall clock."""
        return troubles_of(self.timeouts.late(), now_ms, wall_ms)


def troubles_of(
    late: Mapping[TaskId, LateTask], now_ms: float, wall_ms: int
) -> dict[TaskId, Trouble]:
    """What keeps late tasks from getting on; ``wall_ms``: the moment ``now_ms`` by the wall
    clock."""
    return {
        task: Trouble(int(wall_ms - (now_ms - one.since_ms)), max(1, one.count), one.cause)
        for task, one in late.items()
    }


def _named(
    reading: Iterable[TaskId], tasks: Tasks, partitions: Collection[TopicPartition]
) -> list[TaskId]:
    return [task.id for task in concerning((tasks[one] for one in reading), partitions)]


def _reading(
    tasks: Iterable[ActiveTask], ranges: Mapping[TopicPartition, OffsetRange]
) -> list[TaskId]:
    """Those that have something to read."""
    return [
        task.id
        for task in tasks
        if any(ranges[tp].end > ranges[tp].start for tp in task.inputs if tp in ranges)
    ]
