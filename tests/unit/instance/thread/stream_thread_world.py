"""A stream thread with a fake job and fake recovery, for tests of its loop and of its failures."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from everflow.config import EXACTLY_ONCE_V2, BatchLimits
from everflow.instance.commit_gate import GateBook
from everflow.instance.tasks.recovery import CommittedLowerBounds, Recovery
from everflow.instance.tasks.task import ActiveTask, TaskState, TaskStore
from everflow.instance.thread.stream_thread import StreamThread, ThreadServices, ThreadSettings
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.metrics import Metrics
from everflow.protocol.messages import COMMITTED, BatchRequest, BatchResult
from everflow.records import CommittedOffset, TaskId, TopicPartition
from everflow.topology.graph import Graph
from everflow.topology.idle_sources import IdleSource, program_times
from unit.manual_clock import ManualClock

IN = TopicPartition("in", 0)
TASK = TaskId(0, 0)
OTHER, OTHER_TASK = TopicPartition("in", 1), TaskId(0, 1)


class World:
    """A log of one partition, a job whose behaviour the test sets, and a record of everything that
    was done."""

    def __init__(self, idle: Mapping[int, Mapping[str, IdleSource]] | None = None) -> None:
        self.clock = ManualClock(1_000)
        self.end = 0
        self.committed_offset = 0
        self.paused = False
        self.paused_parts: frozenset[int] = frozenset()
        self.done: list[str] = []
        self.opened: list[int] = []
        self.given_back: list[list[TaskId]] = []
        self.requests: list[BatchRequest] = []
        self.behave: Callable[[BatchRequest], BatchResult] = self.commit
        self.book = GateBook()
        self.book.own([TASK])
        self.ends = EndOffsets(
            lambda partitions: dict.fromkeys(partitions, self.end), self.clock, 15
        )
        self.metrics = Metrics()
        self.lower_bounds = CommittedLowerBounds(self.clock)
        self.incarnations = iter(f"i{n}" for n in range(1_000))
        recovery = Recovery(
            ports=self,
            application_id="app",
            offset_reset={},
            lower_bounds=self.lower_bounds,
            clock=self.clock,
            timeout_ms=10_000,
            stop=threading.Event(),
            new_incarnation=lambda: next(self.incarnations),
            times=program_times(Graph(()), {}, ""),
        )
        services = ThreadServices(
            open_job=self.open_job,
            kill_workers=lambda pids: self.done.append(f"kill {list(pids)}"),
            gate=self.book,
            ends=self.ends,
            recovery=recovery,
            metrics=self.metrics,
            on_failed=lambda error: self.done.append(f"failed {error}"),
            committed=self.lower_bounds.raised,
            give_back=lambda tasks, why: self.given_back.append([task.id for task in tasks]),
            paused=lambda: self.paused,
            paused_parts=lambda: self.paused_parts,
        )
        limits = BatchLimits(100, 1 << 30, 1_000)
        settings = ThreadSettings(
            application_id="app",
            guarantee=EXACTLY_ONCE_V2,
            transactional_id="app-p-0",
            gate_path="gate",
            limits=limits,
            task_timeout_ms=10_000,
            keep_alive_ms=30_000,
            idle=idle or {},
        )
        self.thread = StreamThread(
            number=0,
            settings=settings,
            services=services,
            clock=self.clock,
            new_incarnation=lambda: next(self.incarnations),
        )

    def give_task(self, task_id: TaskId = TASK, tp: TopicPartition = IN) -> ActiveTask:
        epoch = self.book.epoch(task_id)
        task = ActiveTask(id=task_id, inputs=(tp,), stores=(), state=TaskState.RUNNING, epoch=epoch)
        task.positions[tp] = self.committed_offset if task_id == TASK else 0
        self.thread.add([task])
        return task

    def fed(self, behave: Callable[[BatchRequest], BatchResult], end: int = 10) -> ActiveTask:
        """`TASK`, with records up to ``end``, of which each batch does this."""
        self.behave, task = behave, self.give_task()
        self.end = end
        return task

    def open_job(self, number: int) -> World:
        self.opened.append(number)
        return self

    def turn(self) -> bool:
        self.ends.poll_once()
        return self.thread.run_once()

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.turn()

    # the job
    def run(self, request: BatchRequest, serves: Callable[[int], bool]) -> BatchResult:
        self.requests.append(request)
        assert serves(99)
        return self.behave(request)

    def close(self) -> None:
        self.done.append("close job")

    def commit(self, request: BatchRequest) -> BatchResult:
        consumed = {tp: wanted.end for tp, wanted in request.ranges.items()}
        self.committed_offset = consumed.get(IN, self.committed_offset)
        read = sum(wanted.end - wanted.start for wanted in request.ranges.values())
        return BatchResult(
            outcome=COMMITTED,
            consumed=consumed,
            stream_times={TASK: {"A": self.committed_offset}},
            counts={"in": read},
        )

    # recovery's ports
    def fence(self, transactional_ids: Collection[str]) -> None:
        self.done.append(f"fence {','.join(transactional_ids)}")

    def committed(
        self, partitions: Sequence[TopicPartition], *, stable: bool = True
    ) -> Mapping[TopicPartition, CommittedOffset]:
        self.done.append("committed")
        return {IN: CommittedOffset(self.committed_offset, "")}

    def purged(self) -> Sequence[TopicPartition]:
        return ()

    def log_ends(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, self.end)

    stable_ends = log_ends

    def log_starts(
        self, partitions: Sequence[TopicPartition], *, known: bool = False
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def offsets_since(
        self, partitions: Sequence[TopicPartition], time_ms: int
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(partitions, 0)

    def restore(
        self, task: ActiveTask, incarnation: str, targets: Mapping[TopicPartition, int]
    ) -> tuple[TaskStore, ...]:
        self.done.append("restore")
        return ()
