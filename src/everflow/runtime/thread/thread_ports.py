"""What a stream thread is given: its settings, its effects, and the job that runs its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from everflow.config import BatchLimits
from everflow.errors import EverflowError
from everflow.metrics import Metrics
from everflow.runtime.commit.batch import BatchRequest, BatchResult, TaskContext
from everflow.runtime.commit.commit_gate import GateBook
from everflow.runtime.tasks.recovery import Recovery
from everflow.runtime.topics.end_offsets import EndOffsets
from everflow.threads import Spawn, on_thread


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
    ``keep_alive_ms`` is then as short as the shortest of their intervals."""

    application_id: str
    guarantee: str
    transactional_id: str
    gate_path: str
    producer_config: Mapping[str, Any]
    limits: BatchLimits
    task_timeout_ms: float
    keep_alive_ms: float
    clocked: frozenset[int] = frozenset()
    max_task_idle_ms: int = 0


@dataclass(frozen=True, kw_only=True)
class ThreadServices:
    """Effects of a stream thread. ``kill_workers(pids)`` returns when they are gone;
    ``on_failed(error)`` is called once, when the thread ends with an error. ``paused()``: process
    nothing (KIP-834). ``global_tasks()``: where the global tables lie now."""

    open_job: OpenJob
    kill_workers: Callable[[Sequence[int]], None]
    gate: GateBook
    ends: EndOffsets
    recovery: Recovery
    metrics: Metrics
    on_failed: Callable[[EverflowError], None]
    on_committed: Callable[[], None] = lambda: None
    on_warm: Callable[[], None] = lambda: None
    paused: Callable[[], bool] = lambda: False
    global_tasks: Callable[[], list[TaskContext]] = list
    spawn: Spawn = on_thread
