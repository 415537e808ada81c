"""How often stream threads run batches, on virtual time: the real `StreamThread` with its plans,
sizes and rests, over logs of which only the records' times are kept, and a job that costs what a
`PacingCase` says.

One run gives the latency of the records, the processor that the batches took, and what each batch
was (`Run`). Nothing of a group is here: the tasks never move. Deterministic for a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from everflow.config import EXACTLY_ONCE_V2, BatchLimits
from everflow.errors import EverflowError
from everflow.instance.commit_gate import GateBook
from everflow.instance.tasks.task import ActiveTask, TaskState
from everflow.instance.thread.stream_thread import StreamThread, ThreadServices, ThreadSettings
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.metrics import Metrics
from everflow.protocol.messages import COMMITTED, BatchRequest, BatchResult
from everflow.records import Offsets, TaskId, TopicPartition
from everflow_simulation.scheduler import Process, Scheduler, SimulatedClock

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NETWORK_MS = 1.0
"""Until a record that was written may be read, and until a waiting thread knows of it."""
GROUP_MS = 3.0
KEYS = 1_000
"""Different keys, where they are not used equally often."""
FIRST_WRITE = 0.6
"""A batch writes its first record behind this share of its processor time."""


LIMITS = BatchLimits(500_000, 64 << 20, 3_000, 100)

Factor = Callable[[float], float]
"""Of costs, at a virtual time (ms)."""


def steady(now_ms: float) -> float:
    """All costs what it does."""
    return 1.0


def between(since_s: float, until_s: float, factor: float) -> Factor:
    """All costs so many times as much for a while."""
    return lambda now_ms: factor if since_s * 1000 <= now_ms < until_s * 1000 else 1.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a batch takes, ms: of the worker's processor, and beside it of the broker's answers.
    ``*_task``: for each task with records; ``marker``: for each of these until the broker has ended
    the transaction, behind the commit."""

    batch: float = 9.0
    task: float = 0.15
    record: float = 0.02
    byte: float = 1e-5
    answer: float = 12.0
    answer_task: float = 0.3
    marker: float = 0.4


@dataclass(frozen=True, kw_only=True)
class PacingCase:
    """A program of ``subtopologies`` in a row over so many ``partitions`` each, and its input.

    Attributes:
        rate: records a second of the first sub-topology; each gives one to the next.
        processor, broker: factors of the costs.
        zipf: exponent of how often keys are used; 0: all equally often.
        hot: share of the records that go to partition 0, besides.
        large_every: each so many-th record has ``large_bytes``; 0: none.
        group: so many records are made within `GROUP_MS`, in different logs.
        link: bytes a second to and from the broker.
        noise: spread (sigma of a log-normal) of the costs of a batch.
    """

    partitions: int = 4
    subtopologies: int = 1
    threads: int = 2
    rate: float = 1_000.0
    seconds: float = 30.0
    costs: Costs = Costs()
    processor: Factor = steady
    broker: Factor = steady
    zipf: float = 0.0
    hot: float = 0.0
    record_bytes: int = 200
    large_every: int = 0
    large_bytes: int = 1_000_000
    group: int = 1
    link: float = math.inf
    noise: float = 0.15
    limits: BatchLimits = LIMITS
    seed: int = 1


TROUBLES: Mapping[str, PacingCase] = {
    "broker ten times slower for a minute": PacingCase(
        subtopologies=2, broker=between(10, 70, 10), seconds=95
    ),
    "the same, 64 partitions": PacingCase(
        partitions=64, subtopologies=2, broker=between(10, 70, 10), seconds=95
    ),
    "the same, 200 partitions": PacingCase(
        partitions=200, subtopologies=2, broker=between(10, 70, 10), seconds=95
    ),
    "all five times dearer for 30 s": PacingCase(
        subtopologies=2, broker=between(0, 30, 5), processor=between(0, 30, 5), seconds=60
    ),
    "transactions of 4 s for 30 s": PacingCase(
        subtopologies=2, broker=between(0, 30, 300), seconds=60
    ),
    "keys by Zipf's law": PacingCase(partitions=16, subtopologies=2, zipf=1.0, seconds=60),
    "nine tenths in one partition": PacingCase(partitions=16, subtopologies=2, hot=0.9, seconds=60),
    "a record of 1 MB in 500": PacingCase(subtopologies=2, large_every=500, seconds=60),
    "links of 100 kB/s": PacingCase(subtopologies=2, link=100_000, rate=100, seconds=60),
}
"""What must not make threads late for long, or restless."""


class Batch(NamedTuple):
    """One that was committed; times in ms."""

    thread: int
    began_ms: float
    elapsed_ms: float
    processor_ms: float
    records: int
    tasks: int


@dataclass
class Run:
    """What was seen. ``written_ms``, ``latency_ms``: of each record of the last sub-topology."""

    batches: list[Batch]
    written_ms: Floats
    latency_ms: Floats
    behind_ms: float
    """Age of the oldest record that was not written at the end."""

    def latency(self, percent: float, since_ms: float = 0, until_ms: float = math.inf) -> float:
        """ms, of the records that were written within that time."""
        found = self.latency_ms[(self.written_ms >= since_ms) & (self.written_ms < until_ms)]
        return float(np.percentile(found, percent)) if len(found) else math.nan

    def cores(self, since_ms: float, until_ms: float) -> float:
        """Of all workers."""
        spent = (one.processor_ms for one in self.batches if since_ms <= one.began_ms < until_ms)
        return sum(spent) / (until_ms - since_ms)

    def intervals(self, thread: int, since_ms: float, until_ms: float = math.inf) -> Floats:
        """Between the starts of a thread's batches, ms."""
        began = [
            one.began_ms
            for one in self.batches
            if one.thread == thread and since_ms <= one.began_ms < until_ms
        ]
        return np.diff(np.array(began))

    def spread(self, since_ms: float, until_ms: float = math.inf) -> float:
        """The intervals' coefficient of variation, of the worst thread."""
        found = [
            self.intervals(thread, since_ms, until_ms)
            for thread in {one.thread for one in self.batches}
        ]
        return max(float(one.std() / one.mean()) for one in found if len(one))

    def late_until_ms(self, bound_ms: float, since_ms: float = 0) -> float:
        """When the last record was written that was later than that; ``since_ms`` if none was."""
        found = self.written_ms[(self.latency_ms > bound_ms) & (self.written_ms >= since_ms)]
        return float(found.max()) if len(found) else since_ms


@dataclass
class _Log:
    """A partition: when its records were made, of those that may be read by now."""

    origin: Floats
    sizes: Ints
    visible: int = 0

    @staticmethod
    def empty() -> _Log:
        return _Log(np.zeros(1024), np.zeros(1024, np.int64))

    def append(self, origin: Floats, size: int) -> None:
        needed = self.visible + len(origin)
        while needed > len(self.origin):
            self.origin = np.concatenate((self.origin, np.zeros_like(self.origin)))
            self.sizes = np.concatenate((self.sizes, np.zeros_like(self.sizes)))
        self.origin[self.visible : needed] = origin
        self.sizes[self.visible : needed] = size
        self.visible = needed


class _Ends(EndOffsets):
    """Brokers that report what comes to an idle thread, and that answer others at once."""

    def __init__(self, world: _World) -> None:
        super().__init__(lambda partitions: {}, world.clock, 20.0)
        self.world, self.reports = world, True

    def refresh(self, timeout_ms: float) -> bool:
        self._ends = self.world.visible()
        return True

    def idle(self, thread: int, waiting: bool) -> None:
        super().idle(thread, waiting)
        if waiting:
            self.world.wait_for_input(thread, self._ends)

    def waits(self, thread: int) -> bool:
        return thread in self._idle


class _World:
    def __init__(self, case: PacingCase) -> None:
        self.case = case
        self.scheduler = Scheduler()
        self.process = Process("instance")
        self.clock = SimulatedClock(self.scheduler, self.process)
        self.random = np.random.default_rng(case.seed)
        self.batches: list[Batch] = []
        self.written: list[tuple[float, Floats]] = []
        self.logs: dict[TopicPartition, _Log] = {}
        self.weights = self._weights()
        for index in range(case.subtopologies):
            for number in range(case.partitions):
                self.logs[_input(TaskId(index, number))] = _Log.empty()
        self._arrivals: dict[int, Floats] = {}
        self._generate()
        self.ends = _Ends(self)
        self.book = GateBook()
        self.threads = [self._thread(number) for number in range(case.threads)]
        self._deal()

    # --- input ------------------------------------------------------------------------------------

    def _weights(self) -> Floats:
        """How much of all each partition gets."""
        case = self.case
        if case.zipf:
            uses = 1.0 / np.arange(1, KEYS + 1) ** case.zipf
            places = self.random.integers(0, case.partitions, KEYS)
            found: Floats = np.bincount(places, uses, case.partitions).astype(np.float64)
        else:
            found = np.ones(case.partitions)
        found = found / found.sum() * (1 - case.hot)
        found[0] += case.hot
        return found

    def _generate(self) -> None:
        case = self.case
        count = int(case.rate * case.seconds)
        groups = self.random.uniform(0, case.seconds * 1000, -(-count // case.group))
        times = np.repeat(groups, case.group)[:count]
        if case.group > 1:
            times += self.random.uniform(0, GROUP_MS, count)
        times.sort()
        places = self.random.choice(case.partitions, count, p=self.weights)
        sizes = np.full(count, case.record_bytes)
        if case.large_every:
            sizes[case.large_every - 1 :: case.large_every] = case.large_bytes
        for number in range(case.partitions):
            log = self.logs[_input(TaskId(0, number))]
            log.origin, log.sizes = times[places == number], sizes[places == number]
        for thread in range(case.threads):
            self._arrivals[thread] = times[places % case.threads == thread] + NETWORK_MS

    def visible(self) -> Offsets:
        now_ms = self.scheduler.now_ms - NETWORK_MS
        for number in range(self.case.partitions):
            log = self.logs[_input(TaskId(0, number))]
            log.visible = int(np.searchsorted(log.origin, now_ms, "right"))
        return {tp: log.visible for tp, log in self.logs.items()}

    def wait_for_input(self, thread: int, known: Offsets) -> None:
        now = self.visible()
        mine = [tp for tp in now if tp.partition % self.case.threads == thread]
        if any(now[tp] > known.get(tp, 0) for tp in mine):
            self.scheduler.after(NETWORK_MS, lambda: self._wake(thread), self.process)
            return
        times = self._arrivals[thread]
        at = int(np.searchsorted(times, self.scheduler.now_ms, "right"))
        if at < len(times):
            self.scheduler.at(
                float(times[at]) + NETWORK_MS, lambda: self._wake(thread), self.process
            )

    def _wake(self, thread: int) -> None:
        if self.ends.waits(thread):
            self.ends.refresh(0)
            self.threads[thread].wake.set()

    def write(self, index: int, at_ms: float, origin: Floats) -> None:
        """Records of a committed batch, for sub-topology ``index``."""
        places = self.random.choice(self.case.partitions, len(origin), p=self.weights)

        def show() -> None:
            for number in np.unique(places):
                tp = _input(TaskId(index, int(number)))
                self.logs[tp].append(origin[places == number], self.case.record_bytes)
            for thread in {int(number) % self.case.threads for number in places}:
                self._wake(thread)

        self.scheduler.at(at_ms, show, self.process)

    # --- threads ----------------------------------------------------------------------------------

    def _thread(self, number: int) -> StreamThread:
        def failed(error: EverflowError) -> None:
            raise error

        services = ThreadServices(
            open_job=lambda _: _Job(self, number),
            kill_workers=lambda pids: None,
            gate=self.book,
            ends=self.ends,
            recovery=cast(Any, None),
            metrics=Metrics(),
            on_failed=failed,
            committed=lambda positions: None,
        )
        settings = ThreadSettings(
            application_id="pace",
            guarantee=EXACTLY_ONCE_V2,
            transactional_id=f"pace-{number}",
            gate_path="",
            limits=self.case.limits,
            task_timeout_ms=300_000,
            keep_alive_ms=1e12,
        )
        return StreamThread(
            number=number,
            settings=settings,
            services=services,
            clock=self.clock,
            new_incarnation=lambda: "i",
        )

    def _deal(self) -> None:
        ids = [TaskId(*_task(tp)) for tp in self.logs]
        self.book.own(ids)
        for thread in self.threads:
            mine = [task for task in ids if task.partition % self.case.threads == thread.number]
            tasks = [
                ActiveTask(
                    id=task,
                    inputs=(_input(task),),
                    state=TaskState.RUNNING,
                    epoch=self.book.epoch(task),
                    positions={_input(task): 0},
                )
                for task in mine
            ]
            thread.add(tasks)

    def run(self) -> Run:
        try:
            for thread in self.threads:
                self.scheduler.spawn(self.process, thread.name, thread._run)
            self.scheduler.run_until(self.case.seconds * 1000)
            self.visible()
            return self._seen()
        finally:
            self.scheduler.close()

    def _seen(self) -> Run:
        counts = [len(origin) for _, origin in self.written]
        written_ms = np.repeat(np.array([at for at, _ in self.written]), counts)
        origins = np.concatenate([np.zeros(0), *(origin for _, origin in self.written)])
        unread = [
            self.scheduler.now_ms - log.origin[position : log.visible].min()
            for thread in self.threads
            for task in thread.tasks.values()
            for tp, position in task.positions.items()
            if (log := self.logs[tp]).visible > position
        ]
        behind_ms = float(max(unread, default=0.0))
        return Run(self.batches, written_ms, written_ms - origins, behind_ms)


@dataclass
class _Job:
    """`stream_thread.Job`: takes the time and hands on the records."""

    world: _World
    number: int
    _ended_ms: float = 0.0
    """When the broker had ended the last transaction."""

    def close(self) -> None:
        """Nothing is held."""

    def run(self, request: BatchRequest, serves: Callable[[int], bool]) -> BatchResult:
        world, case, costs = self.world, self.world.case, self.world.case.costs
        serves(1)
        began_ms = world.clock.monotonic_ms()
        read = {tp: r for tp, r in request.ranges.items() if r[1] > r[0]}
        if not read:
            return BatchResult(outcome=COMMITTED)
        origins: dict[int, list[Floats]] = {}
        count, size = 0, 0
        for tp, (start, end) in read.items():
            log = world.logs[tp]
            origins.setdefault(_task(tp)[0], []).append(log.origin[start:end].copy())
            count += end - start
            size += int(log.sizes[start:end].sum())
        noise = float(np.exp(case.noise * world.random.standard_normal()))
        own_ms = costs.batch + costs.task * len(read) + costs.record * count + costs.byte * size
        own_ms *= noise * case.processor(began_ms)
        world.clock.park(own_ms * FIRST_WRITE)
        blocked_ms = max(0.0, self._ended_ms - world.clock.monotonic_ms())
        world.clock.park(blocked_ms)
        world.clock.park(own_ms * (1 - FIRST_WRITE))
        factor = case.broker(world.clock.monotonic_ms())
        answer_ms = (costs.answer + costs.answer_task * len(read)) * factor * noise
        moved = size + count * case.record_bytes
        world.clock.park(answer_ms + moved / case.link * 1000)
        now_ms = world.clock.monotonic_ms()
        self._ended_ms = now_ms + costs.marker * len(read) * factor
        for index, found in origins.items():
            origin = np.concatenate(found)
            if index + 1 < case.subtopologies:
                world.write(index + 1, now_ms + NETWORK_MS, origin)
            else:
                world.written.append((now_ms, origin))
        world.batches.append(
            Batch(self.number, began_ms, now_ms - began_ms, own_ms, count, len(read))
        )
        return BatchResult(
            outcome=COMMITTED,
            consumed={tp: end for tp, (_, end) in request.ranges.items()},
            counts={"in": count, "bytes": size},
            timings={
                "operators": own_ms * 0.3,
                "offsets": answer_ms * 0.25,
                "commit": answer_ms * 0.2,
            },
            blocked_ms=blocked_ms,
            processor_ms=own_ms,
        )


def _input(task: TaskId) -> TopicPartition:
    return TopicPartition(f"input-{task.subtopology}", task.partition)


def _task(tp: TopicPartition) -> tuple[int, int]:
    return int(tp.topic.removeprefix("input-")), tp.partition


def simulate(case: PacingCase) -> Run:
    """Run it."""
    return _World(case).run()
