"""A group of instances on virtual time with ``stream.time=lowest``: real stream threads, planners
and `GroupTimes` over logs in memory. What a batch does is the test driver's step (`one_answer`).

Instances read ends and each other's times late, batches take their time, one instance may be slow,
tasks move, and records of a partition may begin late or never.
"""

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from everflow import StreamsBuilder
from everflow.clock import Running
from everflow.config import EXACTLY_ONCE_V2, BatchLimits
from everflow.errors import EverflowError
from everflow.instance.commit_gate import GateBook
from everflow.instance.tasks.task import ActiveTask, TaskState
from everflow.instance.thread.group_times import GroupTimes, stream_times_in
from everflow.instance.thread.progress import EventTimes, TimedProgram
from everflow.instance.thread.stream_thread import StreamThread, ThreadServices, ThreadSettings
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.metrics import Metrics
from everflow.protocol.messages import (
    COMMITTED,
    BatchFailedError,
    BatchFailure,
    BatchRequest,
    BatchResult,
    format_metadata,
)
from everflow.records import CommittedOffset, Offsets, TaskId, TopicPartition
from everflow.testing import TopologyTestDriver
from everflow.testing.topics import RawRecord
from everflow.testing.topology_test_driver import log_columns
from everflow.topology.event_time import writers
from everflow.worker.certain_times import certain_times
from everflow.worker.decode import Judge
from everflow_simulation.scheduler import Fiber, Process, Scheduler, SimulatedClock

POLL_MS = 20.0
IDLE_MS = 5_000
CALM_MS = 3 * IDLE_MS
"""All is done, and for so long nothing was committed: nothing more comes."""
FIRST_MS = 100.0
"""Threads are warm, and get their tasks."""


@dataclass(frozen=True)
class _OnFiber:
    fiber: Fiber

    def join(self, timeout_s: float | None = None) -> bool:
        return self.fiber.done


class _PolledEnds(EndOffsets):
    """Polls as events of the scheduler."""

    def __init__(self, group: "Group", clock: SimulatedClock, process: Process) -> None:
        super().__init__(group.ends, clock, POLL_MS)
        self._group, self._process = group, process

    def start(self) -> None:
        self.poll_once()
        self._group.scheduler.after(self.period_ms, self.start, self._process)


@dataclass
class _Job:
    """A thread's worker: a batch takes a while, and is committed at its end."""

    group: "Group"
    instance: "_Instance"

    def run(self, request: BatchRequest, serves: Callable[[int], bool]) -> BatchResult:
        if not request.tasks:
            return BatchResult(outcome=COMMITTED)
        base_ms = self.group.chance.uniform(10, 60)
        self.instance.clock.park(base_ms * self.instance.slowness)
        if self.group.dies_of(request):
            raise BatchFailedError(BatchFailure(kind="worker", error="it died"))
        return self.group.commit(request)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class _Recovery:
    """Puts tasks where their last commit was."""

    group: "Group"

    def recover(
        self, tasks: Sequence[ActiveTask], fence: Collection[str], lost: object = None
    ) -> tuple[Offsets, dict[TopicPartition, CommittedOffset]]:
        for task in tasks:
            self.group.place(task)
        return {}, {}


@dataclass
class _Instance:
    group: "Group"
    name: str
    slowness: float
    paused: bool = False
    threads: list[StreamThread] = field(default_factory=list)
    errors: list[EverflowError] = field(default_factory=list)

    def __post_init__(self) -> None:
        group = self.group
        self.process = Process(self.name)
        self.clock = SimulatedClock(group.scheduler, self.process)
        self.book = GateBook()
        self.ends = _PolledEnds(group, self.clock, self.process)
        times = EventTimes(group.program, lead_ms=group.lead_ms, idle_ms=IDLE_MS)
        self.times = GroupTimes(times, self._committed, self._log_ends, self.clock, self._spawn)

    def _committed(
        self, asked: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, CommittedOffset]:
        self.clock.park(self.group.chance.uniform(0.5, 5.0) * self.slowness)
        found = {tp: self.group.committed[tp] for tp in asked if tp in self.group.committed}
        self.clock.park(self.group.chance.uniform(0.5, 5.0) * self.slowness)
        return found

    def _log_ends(self, asked: Collection[TopicPartition]) -> Offsets:
        self.clock.park(self.group.chance.uniform(0.5, 5.0))
        found = self.group.ends(list(asked))
        self.clock.park(self.group.chance.uniform(0.5, 5.0) * self.slowness)
        return found

    def _spawn(self, name: str, run: Any) -> Running:
        return _OnFiber(self.group.scheduler.spawn(self.process, name, run))

    def open(self, number: int) -> None:
        services = ThreadServices(
            open_job=lambda _: _Job(self.group, self),
            kill_workers=lambda pids: None,
            gate=self.book,
            ends=self.ends,
            recovery=cast(Any, _Recovery(self.group)),
            metrics=Metrics(),
            on_failed=self.errors.append,
            committed=lambda positions: None,
            times=self.times.times,
            paused=lambda: self.paused,
            spawn=self._spawn,
        )
        settings = ThreadSettings(
            application_id="app",
            guarantee=EXACTLY_ONCE_V2,
            transactional_id=f"{self.name}-{number}",
            gate_path="",
            limits=BatchLimits(self.group.most_records, 1 << 40, 1_000_000, 100),
            task_timeout_ms=1e9,
            keep_alive_ms=1e12,
            may_continue=lambda stage, node: True,
        )
        thread = StreamThread(
            number=number,
            settings=settings,
            services=services,
            clock=self.clock,
            new_incarnation=lambda: f"{self.name}i{next(self.group.numbers)}",
        )
        self.threads.append(thread)
        thread.start()


@dataclass(kw_only=True)
class Group:
    """``arrivals``: when (ms of virtual time) which record is in its log. ``pause``: from when
    until when the first instance is paused (KIP-834). ``deadly``: the value of a record of a
    repartition topic of which a worker dies. ``chance`` decides the rest: how many
    instances and threads, who has which task, what moves."""

    engine: TopologyTestDriver
    builder: StreamsBuilder
    arrivals: Sequence[tuple[float, RawRecord]]
    chance: random.Random
    lead_ms: int = 60_000
    moves: int = 0
    pause: tuple[float, float] | None = None
    deadly: bytes | None = None
    deaths: int = 0
    paused_with: int = 0
    """So many records had its source partitions that were not done when its pause ended."""
    logs: dict[TopicPartition, list[RawRecord]] = field(default_factory=dict)
    committed: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)
    written: list[RawRecord] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    commits: list[float] = field(default_factory=list)
    """When batches were committed while a log had records that were not done."""
    committed_ms: float = 0.0
    """When the last batch was."""

    def __post_init__(self) -> None:
        self.engine.reset()
        self.inputs: dict[TaskId, tuple[TopicPartition, ...]] = {
            task: tuple(listed) for task, listed in self.engine._topics.inputs.items()
        }
        plan = self.engine._plan
        written_by = writers(self.builder.build(), plan.application_id)
        self.program = TimedProgram.of(self.inputs, plan.sources, written_by)
        self.logs = {tp: [] for listed in self.inputs.values() for tp in listed}
        self.scheduler = Scheduler()
        self.numbers = iter(range(10**9))
        self.most_records = self.chance.choice([20, 100, 1_000_000])
        count = self.chance.choice([1, 2, 3])
        slow = self.chance.choice([None, *range(count)])
        factor = self.chance.choice([3.0, 20.0])
        self.instances = [
            _Instance(self, f"i{n}", factor if n == slow else 1.0) for n in range(count)
        ]
        self.owners: dict[TaskId, tuple[_Instance, StreamThread]] = {}

    def ends(self, asked: Sequence[TopicPartition]) -> Offsets:
        return {tp: len(self.logs[tp]) for tp in asked}

    def run(self, until_ms: float) -> None:
        """Everything up to that virtual time at the latest."""
        for instance in self.instances:
            instance.ends.start()
            instance.times.start()
            for number in range(self.chance.choice([1, 2])):
                instance.open(number)
        for at_ms, record in self.arrivals:
            self.scheduler.at(at_ms, lambda record=record: self._append([record]))  # type: ignore[misc]
        self.scheduler.at(FIRST_MS, self._deal)
        if self.pause is not None:
            self.scheduler.at(self.pause[0], lambda: self._set_paused(True))
            self.scheduler.at(self.pause[1], lambda: self._set_paused(False))
        for _ in range(self.moves):
            self.scheduler.at(self.chance.uniform(FIRST_MS, until_ms / 10), self._move)
        try:
            while self.scheduler.now_ms < until_ms and not self._calm():
                self.scheduler.run_until(self.scheduler.now_ms + IDLE_MS, self._require_health)
        finally:
            self.scheduler.close()

    def _calm(self) -> bool:
        now_ms = self.scheduler.now_ms
        to_come = max(at_ms for at_ms, _ in self.arrivals) + (self.pause or (0.0, 0.0))[1]
        calm = now_ms > max(to_come, self.committed_ms) + CALM_MS
        return calm and not self.unread and self.owners.keys() == self.inputs.keys()

    def _require_health(self) -> None:
        for instance in self.instances:
            if instance.errors:
                raise instance.errors[0]

    def _append(self, records: Iterable[RawRecord]) -> None:
        for record in records:
            self.logs[TopicPartition(record.topic, record.partition)].append(record)

    def _deal(self) -> None:
        for task in self.inputs:
            self._give(task)

    def _set_paused(self, paused: bool) -> None:
        first = self.instances[0]
        first.paused = paused
        if not paused:
            left = self.unread
            self.paused_with = sum(
                left.get(tp, 0)
                for task, (instance, _) in self.owners.items()
                for tp in self.inputs[task]
                if instance is first and tp.topic not in self.program.writers
            )
        self.scheduler.wake(first.process)

    def _give(self, task: TaskId) -> None:
        instance = self.chance.choice(self.instances)
        thread = self.chance.choice(instance.threads)
        instance.book.own([task])
        found = ActiveTask(
            id=task,
            inputs=self.inputs[task],
            state=TaskState.RUNNING,
            epoch=instance.book.epoch(task),
        )
        self.place(found)
        self.owners[task] = instance, thread
        thread.add([found])
        self.scheduler.wake(instance.process)

    def place(self, task: ActiveTask) -> None:
        for tp in task.inputs:
            at = self.committed.get(tp, CommittedOffset(0, ""))
            task.positions[tp] = at.offset
            task.stream_times.update(stream_times_in(at.metadata))

    def _move(self) -> None:
        """From its owner, behind the batch in flight, to another one a while later."""
        task = self.chance.choice(sorted(self.inputs))
        if task not in self.owners:
            return
        instance, thread = self.owners.pop(task)
        pause_ms = self.chance.choice([1.0, 500.0, 3_000.0])

        def given_up(_: Sequence[ActiveTask]) -> None:
            self.scheduler.after(pause_ms, lambda: self._give(task))

        thread.drop([task], given_up)
        self.scheduler.wake(instance.process)

    def dies_of(self, request: BatchRequest) -> bool:
        """Whether the deadly record is taken, and not left to its handler."""
        if self.deadly is None:
            return False
        rows, decoder = self._rows(request), self.engine._decoder
        judge = Judge.of(decoder.handlers, request)
        decoded = decoder.run(log_columns(rows, self.engine._plan.headers), judge)
        certain = certain_times(decoded, decoder.sources, request)
        assert certain is not None
        left_out = {one.record.place for one in request.earlier_failures if one.record is not None}
        found = any(
            kept
            and record.value == self.deadly
            and record.topic in self.program.writers
            and (record.topic, record.partition, offset) not in left_out
            for kept, (record, offset) in zip(certain.kept.tolist(), rows, strict=True)
        )
        self.deaths += found
        return found

    def _rows(self, request: BatchRequest) -> list[tuple[RawRecord, int]]:
        return [
            (self.logs[tp][offset], offset)
            for tp, at in request.ranges.items()
            for offset in range(at.start, at.end)
        ]

    def commit(self, request: BatchRequest) -> BatchResult:
        self.committed_ms = self.scheduler.now_ms
        if self.unread:
            self.commits.append(self.scheduler.now_ms)
        rows = self._rows(request)
        result = self.engine._step_result(request, rows)
        for task, listed in result.changes.items():
            for changes in listed:
                self.engine._stores.part(changes.store, task.partition).apply(changes)
        for context in request.tasks:
            times = {**context.stream_times, **result.stream_times.get(context.task, {})}
            text = format_metadata(request.batch_id, times)
            for tp in self.inputs[context.task]:
                self.committed[tp] = CommittedOffset(result.consumed[tp], text)
        for reasons in result.dropped.values():
            self.dropped.update(reasons)
        written = list(self.engine._written)
        self._append(one for one in written if one.topic in self.program.writers)
        self.written += written
        return BatchResult(
            outcome=COMMITTED,
            consumed=result.consumed,
            stream_times=result.stream_times,
            counts={"in": len(rows)},
            heads=result.heads,
            next=result.next,
            positions={task: {} for task in result.changes},
        )

    @property
    def unread(self) -> dict[TopicPartition, int]:
        done = {tp: self.committed.get(tp, CommittedOffset(0, "")).offset for tp in self.logs}
        return {tp: len(log) - done[tp] for tp, log in self.logs.items() if len(log) > done[tp]}
