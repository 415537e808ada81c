"""What a stream thread is given: its settings, its effects, and the job that runs its batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from everflow.clock import Spawn, on_thread
from everflow.config import BatchLimits
from everflow.errors import EverflowError, RetriableError
from everflow.memory import WorkerMemory
from everflow.metrics import Metrics
from everflow.records import UNBOUNDED_BYTES, TaskId, TopicPartition
from everflow.runtime.commit.batch import (
    EXACTLY_ONCE_V2,
    BatchFailure,
    BatchRequest,
    BatchResult,
    TaskContext,
)
from everflow.runtime.commit.commit_gate import GateBook
from everflow.runtime.tasks.recovery import Recovery
from everflow.runtime.tasks.task import ActiveTask
from everflow.runtime.thread.batching import PlannedBatch
from everflow.runtime.thread.retry_policy import ReplacementLimits
from everflow.runtime.topics.end_offsets import EndOffsets
from everflow.topology.idle_sources import IdleSource


class Job(Protocol):
    """`everflow.runtime.thread.thread_job.ThreadJob`: runs the micro-batches of one thread."""

    def run(self, request: BatchRequest) -> BatchResult:
        """Blocks; BatchFailedError for a job that failed, whatever its transaction did."""

    def close(self) -> None:
        """Release what was prepared."""


OpenJob = Callable[[int], Job]
"""Thread number -> the job."""


@dataclass(frozen=True, kw_only=True)
class ThreadSettings:
    """What does not change while the thread lives. Times in ms. ``clocked``: sub-topologies whose
    tasks are in every batch, with records or without, since the wall clock calls methods of theirs;
    ``keep_alive_ms`` is then as short as the shortest of their intervals. ``idle``: inputs whose
    silence moves stream time, by sub-topology and topic. ``functions``: the plan has Python
    functions; ``may_continue(stage, node)`` as in `RetryPolicy`."""

    application_id: str
    guarantee: str
    transactional_id: str
    gate_path: str
    limits: BatchLimits
    task_timeout_ms: float
    keep_alive_ms: float
    clocked: frozenset[int] = frozenset()
    max_task_idle_ms: int = 0
    idle: Mapping[int, Mapping[str, IdleSource]] = field(default_factory=dict)
    functions: bool = False
    may_continue: Callable[[str, str | None], bool] = lambda stage, node: False
    transaction_timeout_ms: float | None = None

    def called(self, tasks: Iterable[TaskId]) -> frozenset[TaskId]:
        """Those of ``tasks`` that the wall clock calls."""
        if not self.clocked:
            return frozenset()
        return frozenset(task for task in tasks if task.subtopology in self.clocked)

    @property
    def fenced(self) -> list[str]:
        """Transactional ids under which workers of the thread may have something open."""
        return [self.transactional_id] if self.guarantee == EXACTLY_ONCE_V2 else []


@dataclass(frozen=True, kw_only=True)
class ThreadServices:
    """Effects of a stream thread. ``kill_workers(pids)`` returns when they are gone;
    ``on_failed(error)`` is called once, when the thread ends with an error. ``committed``: told
    where a batch has brought its tasks. ``paused()``: process
    nothing (KIP-834). ``consumed(topics)``: whether the application has consumed all that is in
    them. ``global_tasks()``: where the global tables lie now. ``uncaught(error)``: see
    `Uncaught.limits_for`. ``give_back(tasks, why)``: tasks that cannot be recovered here now; the
    thread has them no more. ``worker_memory()``: what its worker may take, among as many threads as
    there are now. ``topic_ids()``: ids of the topics when the instance started; one that is not
    known is missing. ``doubt_topics(topics)``: leaders say that logs of these are of
    other topics."""

    open_job: OpenJob
    kill_workers: Callable[[Sequence[int]], None]
    gate: GateBook
    ends: EndOffsets
    recovery: Recovery
    metrics: Metrics
    on_failed: Callable[[EverflowError], None]
    committed: Callable[[Mapping[TopicPartition, int]], None]
    on_warm: Callable[[], None] = lambda: None
    paused: Callable[[], bool] = lambda: False
    global_tasks: Callable[[], list[TaskContext]] = list
    consumed: Callable[[Collection[str]], bool] = lambda topics: True
    uncaught: Callable[[EverflowError], ReplacementLimits | None] = lambda _: None
    give_back: Callable[[Sequence[ActiveTask], RetriableError], None] = lambda *_: None
    worker_memory: Callable[[], WorkerMemory] = lambda: WorkerMemory(UNBOUNDED_BYTES)
    topic_ids: Callable[[], Mapping[str, str]] = dict
    doubt_topics: Callable[[Collection[str]], None] = lambda topics: None
    spawn: Spawn = on_thread


def batch_request(
    settings: ThreadSettings,
    batch_id: str,
    number: int,
    planned: PlannedBatch,
    tasks: Mapping[TaskId, ActiveTask],
    called: Collection[TaskId],
    global_tasks: list[TaskContext],
    aside: Sequence[BatchFailure],
    most_bytes: int,
    topic_ids: Mapping[str, str],
) -> BatchRequest:
    """What the workers of thread ``number`` are asked to do: for those of its tasks that have
    something to read, are ``called`` by the wall clock, or have a silent source."""
    reads = {tp for tp, r in planned.ranges.items() if r.end > r.start}
    idle = planned.idle
    named = [
        name
        for name, task in tasks.items()
        if not reads.isdisjoint(task.inputs) or name in idle or name in called
    ]
    served = [tasks[name] for name in sorted(named)]
    inputs = sorted(tp for task in served for tp in task.inputs if tp in planned.ranges)
    return BatchRequest(
        batch_id=batch_id,
        thread=number,
        attempt=planned.attempt,
        guarantee=settings.guarantee,
        transactional_id=settings.transactional_id,
        wall_clock_ms=planned.wall_clock_ms,
        gate=settings.gate_path,
        ranges={tp: planned.ranges[tp] for tp in inputs},
        log_ends={tp: planned.log_ends.get(tp, planned.ranges[tp].end) for tp in inputs},
        tasks=[task.context() for task in served],
        application_id=settings.application_id,
        global_tasks=global_tasks,
        transaction_timeout_ms=settings.transaction_timeout_ms,
        most_bytes=most_bytes,
        waits=planned.waits,
        idle=idle,
        aside=aside,
        patient=len(tasks) == 1,
        topic_ids={topic: topic_ids[topic] for topic, _ in inputs if topic in topic_ids},
    )
