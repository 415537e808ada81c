"""Decides what a stream thread does after a failure. Pure: events in, decisions out.

`StreamThread` reports each event and carries out the `RetryDecision`. An error that the policy
raises ends the thread, unless the uncaught exception handler replaces it. Design note 042 has the
table of events and decisions; see also 041, 047 and 051. Owned by one stream thread; any thread may
read `trouble` and call `troubles`. Times are monotonic ms."""

from __future__ import annotations

import logging
import math
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from everflow.config import BatchLimits
from everflow.errors import (
    BatchTimeoutError,
    ColumnError,
    DamagedEntryError,
    EverflowError,
    FatalError,
    PunctuatorError,
    RecordError,
    RecordRefusedError,
    RecordTooLargeError,
    RepeatedFailureError,
    RetriableError,
    StateDiskError,
    TaskTimeoutError,
    WorkerDiedError,
)
from everflow.instance.tasks.task import (
    ActiveTask,
    StalledTask,
    TaskTimeouts,
    concerning,
    positions_of,
)
from everflow.instance.thread.batching import BatchSize, PlannedBatch, without
from everflow.instance.thread.failure_text import ending, in_full, short
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.logs import some
from everflow.memory import BatchMemory, WorkerMemory
from everflow.protocol.messages import CALLS, LEFT, BadRecord, BatchFailure, BatchResult
from everflow.records import OffsetRange, Ranges, TaskId, TopicPartition
from everflow.retry import FIRST_PAUSE_MS, LONGEST_PAUSE_MS

Tasks = Mapping[TaskId, ActiveTask]
Lines = tuple[tuple[int, str], ...]
"""For the log: level and text."""

LOGGED_AFTER = 2
ENDS_AFTER = 3
ENDS_AFTER_MS = 2_000.0
"""An unknown cause may be gone after a moment; three attempts may take less."""
ABORT_PAUSE_MS = 50.0
SHRINKING = 16
"""Divisor of a batch in which a record is looked for: 100,000 to one in five steps of 1 to 2 s."""
SEARCH_LOGGED_EVERY_MS = 5_000.0
FIRST_WITH_FUNCTIONS = 1_000
"""Bound of a thread's first batch if the plan has Python functions, whose cost is unknown yet."""
BROKERS_AWAY_MS = 5_000.0
LONG_ATTEMPT_MS = 5_000.0
"""A failure that took longer is not met a second time by all tasks together."""
MOST_REPLACEMENTS = 5
REPLACED_WITHIN_MS = 600_000
FIRST_REST_MS = 1_000.0
LONGEST_REST_MS = 60_000.0

_PASSING = frozenset({"migrated", "generation", "data-loss", "retriable"})
"""Kinds of failure that are retried under ``task.timeout.ms``."""
_AT_ONCE = frozenset({"record", "undecodable", "fatal", "spark-gone"})
_SMALLER = frozenset({"worker", "hang"})
"""Kinds that fewer records may not meet, and that one may have caused: no worker is left to say."""
_CERTAIN = frozenset({"hang", "column", "damaged"})
"""Waiting changes nothing: it was long enough, the result is the same, the store was rebuilt."""
_REPLACEABLE = (
    RecordError,
    RecordRefusedError,
    RecordTooLargeError,
    PunctuatorError,
    ColumnError,
    DamagedEntryError,
    WorkerDiedError,
    BatchTimeoutError,
    RepeatedFailureError,
    TaskTimeoutError,
    StateDiskError,
)
"""What another service, setting, more room, or a broker that is back may mend meanwhile."""
_COMPUTING = ("operators", "columns", CALLS)
"""The phases of a batch that grow with its records only."""
_ANSWERS = ("gate", "offsets", "commit")
"""The phases that wait for brokers, and not for records."""
_ADDRESSES = re.compile(
    r"0x[0-9a-f]+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\d+", re.IGNORECASE
)

Sameness = tuple[object, ...]


@dataclass(frozen=True)
class Trouble:
    """Why a stream thread or a task makes no progress. ``since_ms``: wall clock of the first
    failure; ``count``: failures since then; ``text``: the last one in a line."""

    since_ms: int
    count: int
    text: str


@dataclass(frozen=True, kw_only=True)
class RetryDecision:
    """The thread's next action: it logs ``lines``, runs ``planned`` (None: it plans anew), after
    ``pause_ms``. ``keeps_tasks``: that attempt still has the tasks which the group takes away."""

    planned: PlannedBatch | None
    pause_ms: float = 0.0
    keeps_tasks: bool = False
    lines: Lines = ()


@dataclass(frozen=True)
class ReplacementLimits:
    """The limit of replacements of a thread within a time (ms)."""

    most: int = MOST_REPLACEMENTS
    within_ms: float = REPLACED_WITHIN_MS


@dataclass
class Replacements:
    """When there was one, within the last window; monotonic ms."""

    _at_ms: deque[float] = field(default_factory=deque)

    def one_more(self, limits: ReplacementLimits, now_ms: float) -> int | None:
        """The number of replacements within the window, this one included; None: too many."""
        while self._at_ms and now_ms - self._at_ms[0] > limits.within_ms:
            self._at_ms.popleft()
        if len(self._at_ms) >= limits.most:
            return None
        self._at_ms.append(now_ms)
        return len(self._at_ms)


def may_pass(failure: BatchFailure) -> bool:
    return failure.kind in _PASSING


def sameness(failure: BatchFailure) -> Sameness:
    """Equal for failures of one cause: kind, place, text, whatever numbers it names. A hang is met
    at any line of its loop; all entries of a store that cannot be read are one cause."""
    if failure.entry is not None:
        return (failure.kind, failure.entry.store, failure.entry.task)
    line = None if failure.kind == "hang" else failure.line
    return (failure.kind, failure.record, line, failure.where, _ADDRESSES.sub("#", failure.error))


@dataclass(frozen=True)
class RepeatedFailures:
    began_ms: float | None = None
    seen: Mapping[Sameness, int] = field(default_factory=dict)

    def with_one(self, failure: BatchFailure, now_ms: float) -> RepeatedFailures:
        same = sameness(failure)
        counted = {**self.seen, same: self.seen.get(same, 0) + 1}
        return RepeatedFailures(now_ms if self.began_ms is None else self.began_ms, counted)

    def times(self, failure: BatchFailure) -> int:
        return self.seen.get(sameness(failure), 0)

    def in_vain(self, failure: BatchFailure, now_ms: float, smallest: bool) -> bool:
        """True if the thread gives up after ``failure``. ``smallest``: see `PlannedBatch.least`."""
        if failure.kind in _AT_ONCE:
            return True
        searched = failure.kind in _SMALLER and not smallest
        if may_pass(failure) or self.began_ms is None or searched:
            return False
        if failure.kind == "column" and failure.record is not None:
            return smallest  # else the records before it are committed first
        if failure.kind in _CERTAIN:
            return self.times(failure) >= LOGGED_AFTER
        return self.times(failure) >= ENDS_AFTER and now_ms - self.began_ms >= ENDS_AFTER_MS

    def logged_in_full(self, failure: BatchFailure) -> bool:
        return not may_pass(failure) and self.times(failure) == LOGGED_AFTER


@dataclass
class BadRecordSearch:
    """Progress of the search for a record that fails its batch. ``left``: records of the batch that
    failed last, less those committed since; until there are none, batches do not grow again."""

    left: int
    began_ms: float
    _logged_ms: float = 0.0

    def __post_init__(self) -> None:
        self._logged_ms = self.began_ms

    def line(self, planned: PlannedBatch, now_ms: float) -> str | None:
        """To be logged before ``planned`` runs; None where there was a line a moment ago."""
        if now_ms - self._logged_ms < SEARCH_LOGGED_EVERY_MS:
            return None
        self._logged_ms = now_ms
        ranges = sorted(planned.ranges.items())
        tried = some((f"{tp}@{r.start}" for tp, r in ranges if r.end > r.start), 3)
        elapsed_s = (now_ms - self.began_ms) / 1000
        return (
            f"the record is still looked for, {elapsed_s:.0f} s so far: trying "
            f"{planned.records:,} from {tried}"
        )


@dataclass
class StalledTasks:
    """Tasks whose brokers do not do their part. ``timeouts``: `task.timeout.ms` of each."""

    timeouts: TaskTimeouts

    def check(self, tasks: Tasks, ends: EndOffsets, now_ms: float) -> None:
        """Before a plan: note tasks whose logs have no known end. TaskTimeoutError for one."""
        away = ends.failing_ms() > BROKERS_AWAY_MS
        known, stalled = ends.ends(), self.timeouts.stalled()
        if not (away or stalled or ends.any_silent):
            return  # with a thousand tasks it is worth not to check each
        for task in tasks.values():
            silent = sorted(ends.silent_ms(task.inputs))
            if silent:
                where = f"the leader of {silent[0]} does not answer where that log ends"
                self.timeouts.waits(task.id, where, now_ms)
            elif away:
                self.timeouts.waits(task.id, "no broker answers where the logs end", now_ms)
            elif task.id in stalled and (
                not stalled[task.id].count
                or all(known.get(tp, 0) <= at for tp, at in task.positions.items())
            ):
                self.timeouts.progressed(task.id)

    def with_known_ends(
        self, tasks: Tasks, resting: Collection[TaskId], ends: EndOffsets
    ) -> list[ActiveTask]:
        """Tasks that do not wait for a broker: their inputs are idle where nothing is to read."""
        known, apart = ends.ends().keys(), {*resting, *self.timeouts.stalled()}
        going = [task for name, task in tasks.items() if name not in apart]
        silent = ends.silent_ms
        return [one for one in going if known >= set(one.inputs) and not silent(one.inputs)]

    def chosen(
        self, tasks: Tasks, ranges: Ranges, now_ms: float
    ) -> dict[TopicPartition, OffsetRange]:
        """``ranges``, with nothing of tasks whose turn it is not."""
        if not self.timeouts.any:
            return dict(ranges)
        reading = _reading(tasks.values(), ranges)
        turn = self.timeouts.chosen(reading, now_ms)
        left_out = {tp for task in set(reading).difference(turn) for tp in tasks[task].inputs}
        return without(ranges, left_out)

    def failed(
        self,
        planned: PlannedBatch | None,
        tasks: Tasks,
        cause: str,
        now_ms: float,
        partitions: Collection[TopicPartition] = (),
    ) -> None:
        """Count an attempt for a batch's tasks, or those of ``partitions``. TaskTimeoutError."""
        reading = [] if planned is None else _reading(tasks.values(), planned.ranges)
        self.timeouts.failed(_named(reading, tasks, partitions) or reading or tasks, cause, now_ms)

    def separate(
        self,
        failure: BatchFailure,
        planned: PlannedBatch,
        tasks: Tasks,
        took_ms: float,
        now_ms: float,
    ) -> bool:
        """True if the tasks that caused a passing failure go on apart from the batch's others."""
        reading = _reading(tasks.values(), planned.ranges)
        named = _named(reading, tasks, failure.partitions)
        failed = named or reading
        stalled = self.timeouts.stalled()
        if len(tasks) < 2 or any(task not in stalled for task in failed):
            return False
        if named or len(failed) == 1:
            self.timeouts.rest(failed, now_ms, took_ms)
            return len(failed) < len(tasks)
        if planned.attempt > 1 or took_ms > LONG_ATTEMPT_MS:
            self.timeouts.set_apart(failed)
            return True
        return False

    def committed(
        self,
        result: BatchResult,
        progressed: Collection[TaskId],
        tasks: Tasks,
        took_ms: float,
        now_ms: float,
    ) -> None:
        """``progressed``: tasks that got on. Others with a silent log rest. TaskTimeoutError."""
        for task in progressed:
            self.timeouts.progressed(task)
        if not result.silent:
            return
        found = concerning(tasks.values(), result.silent)
        silent = [task for task in found if task.id not in progressed]
        for one in silent:
            where = ", ".join(str(tp) for tp in one.inputs if tp in result.silent)
            cause = f"{where} has more records, but its leader does not send them"
            self.timeouts.failed([one.id], cause, now_ms)
        if silent:
            self.timeouts.rest([one.id for one in silent], now_ms, took_ms)


def troubles_of(
    stalled: Mapping[TaskId, StalledTask], now_ms: float, wall_ms: int
) -> dict[TaskId, Trouble]:
    """Why stalled tasks make no progress; ``wall_ms``: the moment ``now_ms`` by the wall clock."""
    return {
        task: Trouble(int(wall_ms - (now_ms - one.since_ms)), max(1, one.count), one.cause)
        for task, one in stalled.items()
    }


@dataclass(kw_only=True)
class RetryPolicy:
    """``may_continue(stage, node)``: whether a record that fails there need not stop the instance.
    ``worker()``: the share of the instance's memory that the thread's worker may use now."""

    limits: BatchLimits
    size: BatchSize
    worker: Callable[[], WorkerMemory]
    may_continue: Callable[[str, str | None], bool]
    stalled: StalledTasks
    quarantine: TaskTimeouts = field(default_factory=lambda: TaskTimeouts(math.inf))
    """Tasks that rest after an uncaught error, while the thread's others go on."""
    paused_tasks: frozenset[TaskId] = frozenset()
    """Of paused connectors (note 074)."""
    memory: BatchMemory = field(default_factory=BatchMemory)
    search: BadRecordSearch | None = None
    first: tuple[BadRecord, ...] = ()
    """What the next batch of a search takes first (`BatchResult.next`)."""
    trouble: Trouble | None = None
    _repeated: RepeatedFailures = field(default_factory=RepeatedFailures)
    _pause_ms: float = FIRST_PAUSE_MS
    _due_ms: float = 0.0
    """When the next batch may begin, by what batches cost."""
    _failed_after_ms: float = 0.0
    _part: int = 0
    """Which task's records were last run alone, to find the one that ends its worker."""
    _skipped: dict[tuple[str, int, int], BatchFailure] = field(default_factory=dict)
    """By place of a record on which earlier attempts failed: its handler decides."""
    _replacements: Replacements = field(default_factory=Replacements)

    def __post_init__(self) -> None:
        self._bounds = self.limits, self.limits

    @property
    def bounds(self) -> BatchLimits:
        fitting = self.memory.most_bytes(self.limits.max_bytes, self.worker())
        limits, known = self._bounds
        if limits is not self.limits or known.max_bytes != fitting:
            known = replace(self.limits, max_bytes=fitting)
            self._bounds = self.limits, known
        return known

    def resting(self, now_ms: float) -> frozenset[TaskId]:
        """Tasks of which nothing is read now."""
        return self.failing(now_ms) | self.paused_tasks

    def failing(self, now_ms: float) -> frozenset[TaskId]:
        """Tasks that rest after failures."""
        return self.quarantine.resting(now_ms) | self.stalled.timeouts.resting(now_ms)

    def skipped(self, planned: PlannedBatch) -> tuple[BatchFailure, ...]:
        return tuple(
            failure
            for (topic, partition, offset), failure in self._skipped.items()
            if (wanted := planned.ranges.get(TopicPartition(topic, partition))) is not None
            and wanted.start <= offset < wanted.end
        )

    def troubles(
        self, tasks: Iterable[TaskId], now_ms: float, wall_ms: int
    ) -> dict[TaskId, Trouble]:
        trouble = self.trouble
        return {
            **({} if trouble is None else dict.fromkeys(tasks, trouble)),
            **troubles_of(self.stalled.timeouts.stalled(), now_ms, wall_ms),
            **troubles_of(self.quarantine.stalled(), now_ms, wall_ms),
        }

    def tasks_changed(self, tasks: Collection[TaskId]) -> None:
        self.quarantine.keep(tasks)
        self.stalled.timeouts.keep(tasks)
        self.search, self.first = None, ()
        self._skipped.clear()
        self._forget_failures()

    def paused(self) -> None:
        """The instance processes nothing: time without progress does not count."""
        self.stalled.timeouts.keep(())
        self._forget_failures()

    def batch_failed(
        self, failure: BatchFailure, took_ms: float, now_ms: float, wall_ms: int, cut_off: bool
    ) -> Lines:
        """It may be committed. ``cut_off``: the end of the instance killed its workers."""
        self._failed_after_ms = took_ms
        self._repeated = self._repeated.with_one(failure, now_ms)
        before = self.trouble or Trouble(wall_ms, 0, "")
        self.trouble = Trouble(before.since_ms, before.count + 1, short(failure))
        if cut_off:
            text = f"its batch was cut off by the end of the instance ({short(failure)})"
            return ((logging.INFO, text),)
        first = (
            f"the same failure again, nothing has changed: {in_full(failure)}"
            if self._repeated.logged_in_full(failure)
            else f"batch failed ({failure.kind}): {short(failure)}"
        )
        return (logging.WARNING, first), (logging.DEBUG, f"the whole cause: {failure.details}")

    def recovery_failed(
        self,
        error: RetriableError,
        restoring: Sequence[ActiveTask],
        tasks: Tasks,
        fenced: bool,
        now_ms: float,
    ) -> Sequence[ActiveTask]:
        """The tasks to give back: none before earlier workers are ``fenced`` and cannot commit."""
        self.stalled.failed(None, tasks, str(error), now_ms)
        return (concerning(restoring, error.partitions) or restoring) if fenced else ()

    def recovered(
        self,
        failure: BatchFailure,
        planned: PlannedBatch | None,
        tasks: Tasks,
        owned: Collection[TopicPartition],
        committed: bool,
        now_ms: float,
    ) -> RetryDecision:
        """``owned``: partitions that the thread still reads; a bad record of another is its new
        owner's. ``committed``: ``planned``, which failed, had been."""
        # Even a commit is no progress: the next batch meets the same (Spark gone, or a full disk).
        if failure.kind == "spark-gone" or (committed and failure.kind == "fatal"):
            raise ending(failure, 1, "")
        if committed:
            self._forget_failures()
            text = "the failed batch had been committed, going on behind it"
            return RetryDecision(planned=None, lines=((logging.INFO, text),))
        bad = failure.record
        unknown = planned is not None and failure.kind in _SMALLER and planned.is_unknown
        smallest = planned is None or (planned.least(failure, _inputs(tasks)) and not unknown)
        foreign = bad is not None and TopicPartition(bad.topic, bad.partition) not in owned
        if not foreign:
            in_vain = self._repeated.in_vain(failure, now_ms, smallest)
            found = bad is not None or in_vain
            if planned is not None and found and self._skip(failure, planned):
                self._forget_failures()
                what = planned.named() if bad is None else short(failure)
                return RetryDecision(
                    planned=replace(planned, attempt=planned.attempt + 1),
                    lines=((logging.WARNING, f"the record is left to its handler: {what}"),),
                )
            if in_vain:
                records = planned.named() if planned is not None else ""
                raise ending(failure, self._repeated.times(failure), records)
        # A search ends by itself, and an attempt that hangs takes as long as a task may stall.
        counts = smallest or failure.kind not in _SMALLER
        again = self._next_attempt(
            planned,
            tasks,
            short(failure),
            now_ms,
            failure.partitions,
            counts=counts,
        )
        lines: Lines = ()
        if again is not None:
            if failure.kind == "retriable" and self.stalled.separate(
                failure, again, tasks, self._failed_after_ms, now_ms
            ):
                return RetryDecision(planned=None)
            searching = self.search is not None
            smaller = self._smaller(failure, again, tasks, now_ms)
            if not searching and self.search is not None and not again.smallest:
                lines = ((logging.WARNING, "its record is looked for in smaller batches"),)
            again = smaller
        pause_ms, self._pause_ms = self._pause_ms, min(self._pause_ms * 2, LONGEST_PAUSE_MS)
        return RetryDecision(planned=again, pause_ms=pause_ms, lines=lines)

    def batch_aborted(
        self, reason: str, planned: PlannedBatch | None, tasks: Tasks, now_ms: float
    ) -> RetryDecision:
        cause = f"batches are aborted again and again: {reason}"
        again = self._next_attempt(planned, tasks, cause, now_ms)
        moved_on = reason.startswith("generation")
        return RetryDecision(
            planned=again,
            # after a rebalance the tasks may still be here; else the member has to rejoin first
            pause_ms=0.0 if moved_on else ABORT_PAUSE_MS,
            keeps_tasks=moved_on and again is not None and again.attempt == 1,
        )

    def batch_committed(
        self,
        result: BatchResult,
        planned: PlannedBatch,
        read: int,
        progressed: Collection[TaskId],
        tasks: Tasks,
        elapsed_ms: float,
        now_ms: float,
    ) -> float:
        """Returns the ms to rest: for more records, or for the broker."""
        for task in progressed:
            self.quarantine.progressed(task)
        self.stalled.committed(result, progressed, tasks, elapsed_ms, now_ms)
        bounds = self.bounds
        full = self.size.is_full(bounds, read)
        self.first = tuple(result.next)
        # Of records that are held back, others are taken than are read.
        limited = planned.most_taken is not None and (result.next or not planned.most_taken)
        searched = planned.most_taken or 0 if limited else read
        self._learn(result, planned.records, read, elapsed_ms, bounds, searched)
        self._searched(searched)
        self._forget_failures()
        if self._skipped:
            at = positions_of(tasks.values())
            for topic, partition, offset in list(self._skipped):
                if at.get(TopicPartition(topic, partition), 0) > offset:
                    del self._skipped[topic, partition, offset]
        began_ms = now_ms - elapsed_ms
        self._due_ms = self.size.due_ms(bounds, self._due_ms, began_ms, now_ms)
        left = result.counts.get(LEFT)  # these wait for their answers in the next one
        # ``next``: more than a batch may take is there.
        if full or left or result.next or not bounds.most_rest_ms:
            return 0.0
        return max(0.0, self._due_ms - now_ms, self.size.ending_rest_ms)

    def uncaught(
        self,
        error: EverflowError,
        limits: ReplacementLimits | None,
        planned: PlannedBatch | None,
        tasks: Tasks,
        now_ms: float,
    ) -> tuple[bool, Lines]:
        """Whether a thread that an error would end is replaced: never without ``limits``."""
        if limits is None:
            return False, ()
        if not is_replaceable(error):
            text = f"not replaced: a new one would meet the same at once ([{error.code}])"
            return False, ((logging.ERROR, text),)
        count, within_s = self._replacements.one_more(limits, now_ms), limits.within_ms / 1000
        if count is None:
            text = f"not replaced again: it was {limits.most} times within {within_s:g} s"
            return False, ((logging.ERROR, text),)
        rest_ms = min(LONGEST_REST_MS, FIRST_REST_MS * 2.0 ** (count - 1))
        failing = at_fault(error, tasks, planned)
        self.quarantine.failed(failing, str(error).partition("\n")[0], now_ms)
        self.quarantine.rest_until(failing, now_ms + rest_ms)
        # Nothing of what was is trusted (KIP-671).
        self.stalled.timeouts.keep(())
        self.search, self.first = None, ()
        self._skipped.clear()
        self._forget_failures()
        text = (
            f"replaced ({count} of {limits.most} within {within_s:g} s), what failed rests "
            f"for {rest_ms / 1000:g} s: {error}"
        )
        return True, ((logging.WARNING, text),)

    def _forget_failures(self) -> None:
        self._repeated, self.trouble, self._pause_ms = RepeatedFailures(), None, FIRST_PAUSE_MS

    def _next_attempt(
        self,
        planned: PlannedBatch | None,
        tasks: Tasks,
        cause: str,
        now_ms: float,
        partitions: Collection[TopicPartition] = (),
        counts: bool = True,
    ) -> PlannedBatch | None:
        """``counts``: the attempt counts for `task.timeout.ms`. TaskTimeoutError."""
        again = None if planned is None else replace(planned, attempt=planned.attempt + 1)
        if counts:
            self.stalled.failed(again, tasks, cause, now_ms, partitions)
        return again

    def _skip(self, failure: BatchFailure, planned: PlannedBatch) -> bool:
        """Leave a known record to its handler in the next attempt, once, unless it said FAIL."""
        record = failure.record
        if failure.judged or failure.kind == "undecodable":
            return False
        if record is None and failure.kind in _SMALLER:
            record = planned.only_record()
        if record is None or record.place in self._skipped:
            return False
        if not self.may_continue(failure.stage, record.node):
            return False
        for one in (replace(failure, record=record), *failure.also):
            if one.record is not None:
                self._skipped.setdefault(one.record.place, replace(one, also=()))
        return True

    def _smaller(
        self, failure: BatchFailure, planned: PlannedBatch, tasks: Tasks, now_ms: float
    ) -> PlannedBatch:
        """The next batch: ``planned``, which counts the failed attempt, or fewer of its records."""
        if failure.kind == "worker":
            self.memory = self.memory.doubted()
        if failure.kind in _SMALLER and planned.is_unknown:
            return replace(planned, most_taken=0)  # its worker says which record it is
        column = failure.record if failure.kind == "column" else None
        if column is not None and (before := planned.until(column.place)) is not None:
            return before
        records = self._fewer(failure, planned)
        if records is None:
            return planned
        if failure.kind in _SMALLER:
            self.search = self.search or BadRecordSearch(planned.reach, now_ms)
            self.search.left = planned.reach
        self.size = replace(self.size, bound=records)
        alone = failure.kind in _SMALLER and planned.smallest
        if alone and (parts := planned.parts(_inputs(tasks))):
            # A part that does not fail is committed: the next part's turn.
            self._part += 1
            return parts[self._part % len(parts)]
        return planned.fewer(self.size.records(self.bounds))

    def _fewer(self, failure: BatchFailure, planned: PlannedBatch) -> int | None:
        repeated = planned.attempt > 1 or self.search is not None
        if failure.kind == "hang" or (failure.kind == "worker" and repeated):
            fewer = max(1, min(self.size.bound, planned.reach) // SHRINKING)
            return min(fewer, self._fitting(planned)) if failure.kind == "hang" else fewer
        if repeated and self._failed_after_ms > self.limits.target_ms:
            # Whatever the time-out was that it has met, half as much may not meet it.
            return max(1, min(planned.reach // 2, self._fitting(planned)))
        return None

    def _fitting(self, planned: PlannedBatch) -> int:
        share = self.limits.target_ms / max(self._failed_after_ms, 1.0)
        return max(1, int(planned.reach * min(1.0, share)))

    def _learn(
        self,
        result: BatchResult,
        planned: int,
        read: int,
        elapsed_ms: float,
        bounds: BatchLimits,
        searched: int,
    ) -> None:
        if result.silent:  # it waited for a leader: that says nothing of what records cost
            elapsed_ms = min(elapsed_ms, self.limits.target_ms)
        computing_ms = sum(
            spent for name, spent in result.timings.items() if name.startswith(_COMPUTING)
        )
        answers_ms = sum(result.timings.get(name, 0.0) for name in _ANSWERS)
        raw_bytes = result.counts.get("bytes")
        before = self.size.bound
        self.size = self.size.after(
            bounds,
            planned,
            read,
            elapsed_ms,
            raw_bytes,
            computing_ms,
            result.blocked_ms,
            answers_ms,
            result.processor_ms,
        )
        self.memory = self.memory.after(raw_bytes or 0, bounds.max_bytes, result.memory)
        if self.search is not None and self.search.left > searched:
            self.size = replace(self.size, bound=min(self.size.bound, before))

    def _searched(self, searched: int) -> None:
        if self.search is not None:
            self.search.left -= searched
            if self.search.left <= 0:
                self.search = None


def first_size(functions: bool) -> BatchSize:
    return BatchSize(FIRST_WITH_FUNCTIONS) if functions else BatchSize()


def is_replaceable(error: EverflowError) -> bool:
    """True if a new thread may succeed where this error ended one. A defect of ours may pass."""
    return isinstance(error, _REPLACEABLE) or not isinstance(error, FatalError)


def at_fault(
    error: EverflowError, tasks: Tasks, planned: PlannedBatch | None
) -> Collection[TaskId]:
    """The tasks whose fault it is that the batch failed; all where that cannot be said."""
    if isinstance(error, TaskTimeoutError | DamagedEntryError) and error.task is not None:
        return [error.task] if error.task in tasks else list(tasks)
    if isinstance(error, RecordError):
        where = TopicPartition(error.topic, error.partition)
        found = [task.id for task in tasks.values() if where in task.inputs]
    elif isinstance(error, PunctuatorError):
        found = [task.id for task in concerning(tasks.values(), error.partitions)]
    else:
        found = [] if planned is None else _reading(tasks.values(), planned.ranges)
    return found if len(found) == 1 else list(tasks)


def _inputs(tasks: Tasks) -> list[Collection[TopicPartition]]:
    return [task.inputs for _, task in sorted(tasks.items())]


def _named(
    reading: Iterable[TaskId], tasks: Tasks, partitions: Collection[TopicPartition]
) -> list[TaskId]:
    return [task.id for task in concerning((tasks[one] for one in reading), partitions)]


def _reading(tasks: Iterable[ActiveTask], ranges: Ranges) -> list[TaskId]:
    return [
        task.id
        for task in tasks
        if any(ranges[tp].end > ranges[tp].start for tp in task.inputs if tp in ranges)
    ]
