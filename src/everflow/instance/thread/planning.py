"""Plans what the next batch of a stream thread reads. Left for later: inputs of tasks that wait for
another one (``max.task.idle.ms``), that rest after a failure, or whose leaders do not answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from everflow import metrics as names
from everflow.clock import Clock
from everflow.instance.tasks.task import ActiveTask, positions_of
from everflow.instance.thread.batching import PlannedBatch, is_empty, plan_ranges, without
from everflow.instance.thread.progress import BatchTimes
from everflow.instance.thread.retry_policy import RetryPolicy, Tasks
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.metrics import Metrics
from everflow.protocol.messages import LEFT, BatchResult, InputTime
from everflow.records import OffsetRange, Offsets, Ranges, TaskId, TopicPartition
from everflow.topology.graph import input_name
from everflow.topology.idle_sources import IdleSource

FRESH_ENDS_MS = 20.0
"""A batch that is not full waits so long for the present ends of its logs."""


@dataclass(kw_only=True)
class BatchPlanner:
    """Owned by one stream thread. ``clocked``: as in `ThreadSettings`; ``paused()``: KIP-834."""

    idling: TaskIdling
    idle_sources: IdleSources
    clocked: frozenset[int]
    every_ms: Mapping[int, int]
    """Sub-topologies whose rows go to their sinks at intervals (`WriteNode.every_ms`)."""
    retries: RetryPolicy
    ends: EndOffsets
    paused: Callable[[], bool]
    metrics: Metrics
    clock: Clock
    timed: BatchTimes | None = None
    """None: ``stream.time=highest``."""
    ahead_ms: int = 0
    """``max.event.time.ahead``; 0: off."""
    _stuck_at: _Seen | None = None
    """Log ends at which a batch read nothing, and what it was told of times: until they change, the
    next one would not either."""
    _times_ms: float = math.inf
    _planned_ms: float = 0.0
    _written_ms: dict[int, float] = field(default_factory=dict)
    """When records of those with an interval were committed last (monotonic)."""
    _due_ms: float = math.inf

    @property
    def left_ms(self) -> float:
        """Time until the first task has waited long enough, or the first source counts as idle."""
        due_ms = self._due_ms - self.clock.monotonic_ms()
        waits = self.idling.left_ms, self.idle_sources.left_ms, due_ms, self._times_ms
        return max(0.0, min(waits))

    def forget(self) -> None:
        self._stuck_at = None
        if self.timed is not None:
            self.timed.forget()

    def plan(self, tasks: Tasks, *, keep_alive: bool) -> PlannedBatch | None:
        """The next batch; None where there is nothing to do. ``keep_alive``: an empty batch is due,
        because Spark ends a Python worker that is idle for a minute (design section 7)."""
        if self.ends.failure is not None:
            raise self.ends.failure
        now_ms = self.clock.monotonic_ms()
        going = {name: one for name, one in tasks.items() if name not in self.retries.paused_tasks}
        self.retries.stalled.check(going, self.ends, now_ms)
        most = self.retries.size.records(self.retries.bounds)
        available = self._available(tasks)
        few = sum(r.end - r.start for r in available.values()) < most
        # For records that came during the last batch. Brokers that report need not be asked.
        asks = few and bool(available or not self.ends.reports)
        if asks and self.ends.refresh(FRESH_ENDS_MS):
            available = self._available(tasks)
        log_ends = {tp: r.end for tp, r in available.items()}
        if self.timed is not None:
            return self._timed(self.timed, tasks, available, most, keep_alive=keep_alive)
        now_ms = self.clock.monotonic_ms()
        merged = [task.inputs for _, task in sorted(tasks.items()) if len(task.inputs) > 1]
        readable = self.idling.readable(merged, available, now_ms)
        ranges = plan_ranges(self.retries.stalled.chosen(tasks, readable.ranges, now_ms), most)
        idle = self._idle_times(tasks, available)
        stuck = self._stuck_at == _Seen(log_ends)
        if is_empty(ranges) or stuck or self.paused():
            if not keep_alive and not idle:
                return None
            ranges = nothing_of(tasks.values())
        else:
            self.metrics.add(names.ENFORCED_PROCESSING, readable.enforced)
            if idle or self.clocked:  # then tasks that read nothing are served, too
                ranges = {**nothing_of(tasks.values()), **ranges}
        wall_ms, waits = self.clock.now_ms(), readable.waits
        planned = PlannedBatch(
            ranges=ranges,
            log_ends=log_ends,
            wall_clock_ms=wall_ms,
            idle=idle,
            waits=waits,
            most_ms=self._most_ms(wall_ms),
        )
        planned.spare = max(0, most - planned.records)
        return planned

    def _timed(
        self, timed: BatchTimes, tasks: Tasks, available: Ranges, most: int, *, keep_alive: bool
    ) -> PlannedBatch | None:
        """By the least times that are certain (note 076). ``available``: new records."""
        ends, now_ms, wall_ms = self.ends.ends(), self.clock.monotonic_ms(), self.clock.now_ms()
        log_ends = {tp: r.end for tp, r in available.items()}
        idle = self._idle_times(tasks, available)
        waited, after_ms = timed.shared.program.waited, timed.shared.idle_ms
        silence = self.idle_sources.silence
        known = self.ends.failing_ms() <= 0 and not self.paused()
        quiet = silence.silent(after_ms, now_ms) if known else ()
        silent = {tp for tp in quiet if tp in waited}
        until_ms, readable = timed.within(tasks, available, ends, wall_ms)
        ranges = plan_ranges(self.retries.stalled.chosen(tasks, readable, now_ms), most)
        resting = self._resting(tasks)
        going = {name: one for name, one in tasks.items() if name not in resting}
        first = self.retries.first if self.retries.search is not None and most == 1 else ()
        if first:  # its task alone, and nothing that may come before it
            log_of = TopicPartition(first[0].topic, first[0].partition)
            mine = {name: one for name, one in going.items() if log_of in one.inputs}
            if mine.keys() <= timed.left and mine:
                going, ranges = mine, {}
            else:
                first = ()
        found = timed.of(going, ranges, silent, now_ms)
        self._times_ms = now_ms + min(found.wait_ms, silence.left_ms(after_ms, now_ms))
        stuck = self._stuck_at == _Seen(log_ends, found.times, until_ms)
        if is_empty(ranges) or stuck or self.paused():
            due = frozenset[TaskId]() if self.paused() else found.due
            if not keep_alive and not idle and not due:
                return None
            ranges, found = {}, found._replace(due=due)
        served = [
            task
            for name, task in going.items()
            if name in found.due
            or name in idle
            or name.subtopology in self.clocked
            or not ranges.keys().isdisjoint(task.inputs)
        ]
        begins, positions = timed.begins(served), positions_of(served)
        ranges = {**nothing_of(tasks.values()), **ranges}
        for tp, at in begins.items():
            ranges[tp] = OffsetRange(positions[tp], max(at, ranges[tp].end))
        planned = PlannedBatch(
            ranges=ranges,
            log_ends=log_ends,
            wall_clock_ms=wall_ms,
            idle=idle,
            begins=begins,
            due=found.due,
            times=found.times,
            until_ms=until_ms,
            most_ms=self._most_ms(wall_ms),
            most_taken=most,
            first=first,
        )
        planned.spare = max(0, most - planned.records)
        return planned

    def _most_ms(self, wall_ms: int) -> int | None:
        return wall_ms + self.ahead_ms if self.ahead_ms else None

    def committed(
        self, planned: PlannedBatch, result: BatchResult, read: int, tasks: Tasks
    ) -> None:
        if self.timed is not None:
            self.timed.committed(planned, result, tasks, self.clock.monotonic_ms())
        self.idle_sources.advanced(tasks.values(), planned.idle, self._planned_ms)
        if self.every_ms and not result.counts.get(LEFT):  # what is left is not for the next time
            read_of = {tp for tp, one in planned.new.items() if one.end > one.start}
            mine = {one.id.subtopology for one in tasks.values() if read_of & {*one.inputs}}
            now_ms = self.clock.monotonic_ms()
            self._written_ms |= dict.fromkeys(mine & self.every_ms.keys(), now_ms)
        # An input that ran dry may hold the others back (D3): wait for it to grow.
        if not is_empty(planned.new):
            # One whose records wait for answers does not: the next batch waits for these. Nor does
            # one that left records since it had taken as many as it may of others.
            more = result.counts.get(LEFT) or result.next
            waits = read == 0 and not result.silent and not more
            seen = _Seen(planned.log_ends, planned.times, planned.until_ms)
            self._stuck_at = seen if waits else None

    def _idle_times(self, tasks: Tasks, available: Ranges) -> IdleTimes:
        """The times of idle sources after the next batch; none while ends of logs are unknown."""
        now_ms = self.clock.monotonic_ms()
        needed = self.idle_sources.sources or self.timed is not None
        if not needed or self.paused() or self.ends.failing_ms() > 0:
            return {}
        resting = self._resting(tasks)
        known = self.retries.stalled.with_known_ends(tasks, resting, self.ends)
        self._planned_ms = now_ms
        timeless = () if self.timed is None else self.timed.timeless
        some = {tp: one for tp, one in available.items() if tp not in timeless}
        return self.idle_sources.due(known, some, now_ms)

    def _available(self, tasks: Tasks) -> dict[TopicPartition, OffsetRange]:
        return self._unread(tasks.values(), self._resting(tasks))

    def _unread(
        self, tasks: Iterable[ActiveTask], resting: Collection[TaskId]
    ) -> dict[TopicPartition, OffsetRange]:
        positions = None if self.timed is None else self.timed.positions
        return unread(tasks, self.ends.ends(), resting, positions)

    def _resting(self, tasks: Tasks) -> frozenset[TaskId]:
        """Tasks of which nothing is read now. One whose rows are written at intervals rests until
        its time, unless it has records for a whole batch."""
        now_ms = self.clock.monotonic_ms()
        resting, self._due_ms = self.retries.resting(now_ms), math.inf
        for subtopology, every_ms in self.every_ms.items():
            due_ms = self._written_ms.get(subtopology, -math.inf) + every_ms
            mine = [one for name, one in tasks.items() if name.subtopology == subtopology]
            found = self._unread(mine, resting) if now_ms < due_ms else {}
            count = sum(one.end - one.start for one in found.values())
            if found and count < self.retries.size.records(self.retries.bounds):
                resting |= {one.id for one in mine}
                self._due_ms = min(self._due_ms, due_ms)
        return resting


class _Seen(NamedTuple):
    """What a plan was made of."""

    log_ends: Offsets
    times: Mapping[TopicPartition, InputTime] | None = None
    until_ms: Mapping[TopicPartition, int] = MappingProxyType({})


def unread(
    tasks: Iterable[ActiveTask],
    ends: Offsets,
    resting: Collection[TaskId],
    positions: Callable[[ActiveTask], Offsets] | None = None,
) -> dict[TopicPartition, OffsetRange]:
    """The unprocessed offsets of ``tasks``: all inputs of each that has some and does not rest.
    ``positions``: where they begin; None: at the tasks' positions."""
    found: dict[TopicPartition, OffsetRange] = {}
    for task in tasks:
        starts = task.positions if positions is None else positions(task)
        for tp, position in starts.items():
            if ends.get(tp, task.ends.get(tp, -1)) > position and task.id not in resting:
                found |= {
                    tp: OffsetRange(start, max(start, ends.get(tp, task.ends.get(tp, -1))))
                    for tp, start in starts.items()
                }
                break
    return found


def nothing_of(tasks: Iterable[ActiveTask]) -> dict[TopicPartition, OffsetRange]:
    return {tp: OffsetRange(at, at) for task in tasks for tp, at in task.positions.items()}


NEVER = -1
"""``max.task.idle.ms``: whatever is there is processed."""


class ReadableInputs(NamedTuple):
    """``ranges``: what may be read now, nothing of tasks that wait. ``waits``: inputs at whose end
    a batch has to stop, though the log has no more; None: at no input's end, even if the log has
    more. ``enforced``: the number of tasks that go on though an input has nothing."""

    ranges: dict[TopicPartition, OffsetRange]
    waits: tuple[TopicPartition, ...] | None
    enforced: int


@dataclass
class TaskIdling:
    """Decides which tasks wait for an input with nothing, and how long, before each batch. Pure;
    monotonic ms. The merge ends a batch where such an input runs dry (`everflow.worker.order`)."""

    idle_ms: int
    left_ms: float = math.inf
    _until: dict[TopicPartition, float] = field(default_factory=dict)
    """Until when an input that has nothing is waited for; one that has something is left out."""

    def readable(
        self, tasks: Iterable[Collection[TopicPartition]], available: Ranges, now_ms: float
    ) -> ReadableInputs:
        """``tasks``: the inputs of each; ``available``: what these have to read, if anything."""
        if self.idle_ms == NEVER:
            return ReadableInputs(dict(available), None, 0)
        waiting: set[TopicPartition] = set()
        waits: list[TopicPartition] = []
        enforced, self.left_ms = 0, math.inf
        known = self._until
        self._until = {}
        for inputs in tasks:
            if len(inputs) < 2:
                continue
            empty = [tp for tp in inputs if (r := available.get(tp)) is None or r.end <= r.start]
            for tp in empty:
                self._until[tp] = known.get(tp, now_ms + self.idle_ms)
            if len(empty) == len(inputs):
                continue
            until = max((self._until[tp] for tp in empty), default=now_ms)
            if until > now_ms:
                waiting.update(inputs)
                self.left_ms = min(self.left_ms, until - now_ms)
                continue
            enforced += bool(empty)
            if self.idle_ms > 0:
                waits += sorted(set(inputs) - set(empty))
        return ReadableInputs(without(available, waiting), tuple(waits), enforced)


# --- idle sources (note 025) ----------------------------------------------------------------------

IdleTimes = Mapping[TaskId, Mapping[str, int]]
"""The times to which idle sources advance: by task, and the name under which a time is kept."""
AGAIN_MS = 1_000.0
"""Time between two questions whether the topics that feed a source are consumed."""


@dataclass
class Silence:
    """Measures since when inputs have had nothing to read; monotonic ms."""

    _since: dict[TopicPartition, float] = field(default_factory=dict)

    def measure(self, tasks: Iterable[ActiveTask], available: Ranges, now_ms: float) -> None:
        """As `IdleSources.due`."""
        known = self._since
        self._since = {
            tp: known.get(tp, now_ms)
            for task in tasks
            for tp in task.inputs
            if (waiting := available.get(tp)) is None or waiting.end <= waiting.start
        }

    def since(self, tp: TopicPartition) -> float | None:
        """None: it has something to read, or it is not known."""
        return self._since.get(tp)

    def silent(self, after_ms: float, now_ms: float) -> list[TopicPartition]:
        return [tp for tp, since in self._since.items() if now_ms - since >= after_ms]

    def left_ms(self, after_ms: float, now_ms: float) -> float:
        """Until the next one has been silent for so long."""
        left = (since + after_ms - now_ms for since in self._since.values())
        return min((ms for ms in left if ms > 0), default=math.inf)


@dataclass
class IdleSources:
    """Says to which times ``sources`` (of sub-topologies, by input) are moved that are idle;
    monotonic ms.
    ``consumed(topics)``: the application has consumed all their records; asks the brokers."""

    sources: Mapping[int, Mapping[str, IdleSource]]
    consumed: Callable[[Collection[str]], bool]
    left_ms: float = math.inf
    silence: Silence = field(default_factory=Silence)
    _moved: dict[TopicPartition, float] = field(default_factory=dict)
    """When a time was moved last."""
    _asked: dict[frozenset[str], tuple[float, bool]] = field(default_factory=dict)

    def due(
        self,
        tasks: Iterable[ActiveTask],
        available: Ranges,
        now_ms: float,
    ) -> IdleTimes:
        """The times to advance. ``tasks``: those of whose inputs the ends are known; an input is
        idle if it has nothing in ``available``, and has a time once it had a record."""
        found: dict[TaskId, dict[str, int]] = {}
        self.left_ms = math.inf
        known = list(tasks)
        self.silence.measure(known, available, now_ms)
        for task in known if self.sources else ():
            for tp, source in self._of(task):
                since = self.silence.since(tp)
                if since is None:
                    continue
                since = max(since, self._moved.get(tp, since))
                time = task.stream_times.get(source.kept, -1)
                silent_ms = now_ms - since
                if time < 0:
                    continue
                if silent_ms < source.after_ms:
                    self.left_ms = min(self.left_ms, source.after_ms - silent_ms)
                elif self._is_fed(source, now_ms):
                    found.setdefault(task.id, {})[source.kept] = time + int(silent_ms)
                else:
                    self.left_ms = min(self.left_ms, AGAIN_MS)
        return found

    def advanced(self, tasks: Iterable[ActiveTask], times: IdleTimes, at_ms: float) -> None:
        """The ``times`` of `due` at ``at_ms`` were committed, as far as the tasks have them."""
        if not self.sources:
            return
        for task in tasks:
            names = times.get(task.id, {})
            for tp, source in self._of(task):
                reached = task.stream_times.get(source.kept, -1) >= names.get(source.kept, math.inf)
                if reached:
                    self._moved[tp] = at_ms

    def _of(self, task: ActiveTask) -> Iterator[tuple[TopicPartition, IdleSource]]:
        sources = self.sources.get(task.id.subtopology, {})
        for tp in task.inputs:
            source = sources.get(input_name(tp.topic, tp.partition - task.id.partition))
            if source is not None:
                yield tp, source

    def _is_fed(self, source: IdleSource, now_ms: float) -> bool:
        if not source.fed_by:
            return True
        asked_ms, answer = self._asked.get(source.fed_by, (-math.inf, False))
        if now_ms - asked_ms >= AGAIN_MS:
            answer = self.consumed(source.fed_by)
            self._asked[source.fed_by] = now_ms, answer
        return answer
