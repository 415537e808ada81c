"""A stream thread: one job per micro-batch for its tasks. `run_once` is the loop's body (D1).

Owned by its Python thread, which also owns the `Job`; other threads talk to it through commands and
read its public attributes.
"""

from __future__ import annotations

import enum
import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

from everflow import metrics as names
from everflow.clock import Clock
from everflow.config import BatchLimits
from everflow.errors import EverflowError, OtherTopicError, RetriableError, TaskMigratedError
from everflow.memory.budget import WorkerMemory
from everflow.metrics import Metrics
from everflow.moves import moves
from everflow.records import UNBOUNDED_BYTES, OffsetRange, TaskId, TopicPartition
from everflow.retry import StoppedError
from everflow.runtime.commit.batch import (
    EXACTLY_ONCE_V2,
    BatchFailedError,
    BatchFailure,
    BatchId,
    BatchRequest,
    BatchResult,
    TaskContext,
)
from everflow.runtime.commit.commit_gate import GateBook
from everflow.runtime.tasks.recovery import Recovery
from everflow.runtime.tasks.task import (
    ActiveTask,
    TaskState,
    TaskTimeouts,
    ThreadCommands,
    positions_of,
)
from everflow.runtime.thread import batching
from everflow.runtime.thread.batch_counts import BatchCounts
from everflow.runtime.thread.batching import (
    IdleSources,
    Moves,
    PlannedBatch,
    TaskIdling,
    is_empty,
    plan_ranges,
    unread,
)
from everflow.runtime.thread.failure_text import ending, short
from everflow.runtime.thread.retry_policy import (
    ABORT_PAUSE_MS,
    Lines,
    ReplacementLimits,
    RetryDecision,
    RetryPolicy,
    StalledTasks,
    Trouble,
    first_size,
)
from everflow.runtime.thread.worker_processes import trace_and_kill
from everflow.runtime.topics.end_offsets import EndOffsets
from everflow.threads import Running, Spawn, on_thread
from everflow.topology.sources.idle_sources import IdleSource

# --- thread ports ---------------------------------------------------------------------------------
# What a stream thread is given: its settings, its effects, and the job that runs its batches.


class Job(Protocol):
    """`everflow.runtime.thread.thread_job.ThreadJob`: runs the micro-batches of one thread."""

    def run(self, request: BatchRequest) -> BatchResult:
        """Blocks; BatchFailedError for a job that failed, whatever its transaction did."""

    def close(self) -> None: ...


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


log = logging.getLogger("everflow")

IDLE_WAIT_MS = 1_000.0
FRESH_ENDS_MS = 20.0
"""How long a batch that is not full waits to hear where its logs end now."""
SHOWN_AFTER_MS = 3_000.0
"""A recovery usually takes less: its failed batch is in the log and the metrics, and the state does
not flicker."""


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

    def in_place_of(self, failure: BatchFailure) -> BatchFailure:
        """How the batch failed, in place of how its workers died."""
        text = f"A batch has not ended within {self.limit_ms / 1000:g} s (max.poll.interval.ms)"
        return replace(failure, kind="hang", error=text)


@dataclass(kw_only=True)
class StreamThread:
    """See the module. ``number`` counts from 0 and is part of the transactional id (D6)."""

    number: int
    settings: ThreadSettings
    services: ThreadServices
    clock: Clock
    new_incarnation: Callable[[], str]
    wake: threading.Event = field(default_factory=threading.Event)
    tasks: dict[TaskId, ActiveTask] = field(default_factory=dict)
    warm: threading.Event = field(default_factory=threading.Event)
    """Set once the workers of this thread's hops run."""
    batch_since_ms: float | None = None
    """Monotonic start of the batch in flight, for the watchdog; None between batches."""
    hung: Hung | None = None
    """The last batch whose workers the watchdog has ended; it says so before it does."""
    recovering: Recovering | None = None
    """While it recovers from a batch that failed: none of the tasks is processed."""
    cut_off: bool = False
    """The end of the instance has killed the workers of the batch in flight: its failure is no
    news."""
    settled_ms: int | None = None
    """Wall clock of the last moment between batches: everything that was committed here until then
    is in the stores."""

    def __post_init__(self) -> None:
        self._commands = ThreadCommands()
        self._stop = threading.Event()
        self._job: Job | None = None
        self._next = BatchId("", 0, 0)
        self._planned: PlannedBatch | None = None
        self._refused = False
        """The last batch was aborted because a rebalance had ended in the middle of it."""
        self._stuck_at: Mapping[TopicPartition, int] | None = None
        self.retries = RetryPolicy(
            limits=self.settings.limits,
            size=first_size(self.settings.functions),
            worker=self.services.worker_memory,
            may_continue=self.settings.may_continue,
            stalled=StalledTasks(TaskTimeouts(self.settings.task_timeout_ms)),
        )
        self._idling = TaskIdling(self.settings.max_task_idle_ms)
        self._idle_sources = IdleSources(self.settings.idle, self.services.consumed)
        self._counts = BatchCounts(self.services.metrics, self.clock, self.number)
        self._last_job_ms = self._looked_ms = self.clock.monotonic_ms()
        self._rested_ms = 0.0
        """Until when it leaves records for the next batch's commit (`commit.interval.ms`)."""
        self._running: Running | None = None

    @property
    def name(self) -> str:
        return f"everflow-stream-{self.number}"

    # --- called from other threads ---------------------------------------------------------------

    @property
    def trouble(self) -> Trouble | None:
        """Why it makes no progress; None since the last progress."""
        return self.retries.trouble

    def troubles(self) -> dict[TaskId, Trouble]:
        """Why its tasks make no progress."""
        now_ms, wall_ms = self.clock.monotonic_ms(), self.clock.now_ms()
        return self.retries.troubles(list(self.tasks), now_ms, wall_ms)

    @property
    def stalled(self) -> bool:
        """Whether it has been recovering all its tasks for a while: the brokers are away, say, or a
        changelog is gone. The instance is REBALANCING then."""
        recovering = self.recovering
        return (
            recovering is not None
            and self.clock.monotonic_ms() - recovering.since_ms > SHOWN_AFTER_MS
        )

    def end_hanging_batch(self, limit_ms: float) -> None:
        """Kill the workers of its batch if that has run for longer than ``limit_ms``
        (``max.poll.interval.ms``, D7): its job fails and the thread recovers (D6)."""
        since = self.batch_since_ms
        if since is None or self.clock.monotonic_ms() - since <= limit_ms:
            return
        pids = self.services.gate.take_pids(self.number)
        if pids:
            log.warning(
                "Stream thread %d: a batch hangs, ending its workers %s", self.number, list(pids)
            )
            self.hung = Hung(since, limit_ms)
            trace_and_kill(pids, self.clock)

    def start(self) -> None:
        self._running = self.services.spawn(self.name, self._run)

    def add(self, tasks: Sequence[ActiveTask]) -> None:
        """Recovered tasks for this thread, taken over before its next batch."""
        self._commands.add(tasks)
        self.wake.set()

    def drop(self, tasks: Collection[TaskId], done: Callable[[Sequence[ActiveTask]], None]) -> None:
        """Give up tasks after the batch in flight; ``done`` gets those it held, on this thread."""
        self._commands.drop(tasks, done)
        self.wake.set()

    def held(self) -> list[ActiveTask]:
        """Its tasks, those it takes over before its next batch included; from any thread."""
        # First: a task is in `tasks` before it leaves here.
        arriving = self._commands.arriving()
        return list({task.id: task for task in (*arriving, *list(self.tasks.values()))}.values())

    def stop(self) -> None:
        """End after the batch in flight; returns at once."""
        self._stop.set()
        self.wake.set()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the end of the thread; False when it still runs."""
        return self._running is None or self._running.join(timeout_s)

    # --- the loop --------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._warm_up()
            while not self._stop.is_set():
                self._turn()
            self._close(self.tasks)
        except StoppedError:
            self._close({})
        except EverflowError as error:
            self._fail(error)
            self._close({})
        except Exception as error:  # a defect: the instance stops and says where
            log.exception("Stream thread %d failed", self.number)
            self._fail(EverflowError(f"Stream thread {self.number} failed: {error!r}"))
            self._close({})

    def _turn(self) -> None:
        """`run_once`; where that fails, and the user's handler says so, go on as a new thread."""
        try:
            self.run_once()
        except StoppedError:
            raise
        except Exception as error:
            if not isinstance(error, EverflowError):  # a defect
                log.exception("Stream thread %d failed", self.number)
                error = EverflowError(f"Stream thread {self.number} failed: {error!r}")
            limits = self.services.uncaught(error)
            now_ms = self.clock.monotonic_ms()
            replaced, lines = self.retries.uncaught(
                error, limits, self._planned, self.tasks, now_ms
            )
            self._log(lines)
            if not replaced:
                raise error from None
            self._begin_anew(error)

    def _begin_anew(self, error: EverflowError) -> None:
        """Nothing of what was is trusted (KIP-671): another job, and its tasks are recovered."""
        self._close_job()
        self.services.kill_workers(self.services.gate.take_pids(self.number))
        for task in self.tasks.values():
            if task.state is TaskState.RUNNING:
                task.to(TaskState.RESTORING)
        self._forget_plan()
        failure = BatchFailure(kind="retriable", error=str(error))
        self.recovering = Recovering(failure, self.clock.monotonic_ms())

    def _warm_up(self) -> None:
        """Prepare the job and start the workers of its hops before the instance joins the group: an
        empty batch. Otherwise the first records would wait seconds for plans, daemons, imports and
        compiled code."""
        try:
            self._run_empty()
        finally:
            self.warm.set()
            self.services.on_warm()

    def _run_empty(self) -> None:
        """A batch over nothing and no task: opens the job, or keeps the workers of an instance that
        only has standbys alive."""
        batch_id = str(BatchId(self.new_incarnation(), 0, 0))
        self.services.gate.begin(batch_id, self.number, self.settings.guarantee, {})
        request = self._request(batch_id, PlannedBatch(ranges={}, log_ends={}))
        try:
            self._opened_job().run(request)
        except BatchFailedError as failure:
            if failure.failure.kind == "fatal":  # a program that no worker can build, say
                raise ending(failure.failure, 1, "") from failure
            # The first real batch meets the same fault and has the rules for it.
            log.warning(
                "Stream thread %d: an empty batch failed: %s", self.number, short(failure.failure)
            )
        finally:
            self._last_job_ms = self.clock.monotonic_ms()
            self.services.gate.end(batch_id)

    def run_once(self) -> bool:
        """One turn of the loop; True if a micro-batch was committed."""
        # 1. Take what the task manager wants: between batches only, so a batch never loses a task
        # under its feet. One that was refused only because the group had moved on counts as in
        # flight, once: who hands its tasks over commits it first.
        if not self._refused:
            self._take_commands()
        self._refused = False
        if self.tasks and self._resting() >= self.tasks.keys():
            self.clock.wait(self.wake, IDLE_WAIT_MS)
            return False
        if self.recovering is not None:
            self._recover_after(self.recovering.failure)
            return False
        # An attempt that was aborted may have left records in changelogs at least once.
        if self._planned is None:
            self.settled_ms = self.clock.now_ms()
        # 2. Nothing to do without tasks.
        if not self.tasks:
            if self._keep_alive_left_ms() <= 0:
                self._run_empty()
            self._wait(min(IDLE_WAIT_MS, self._keep_alive_left_ms()))
            return False
        if self._planned is not None and self.services.paused():
            self.retries.paused()
            self.clock.wait(self.wake, IDLE_WAIT_MS)
            return False
        # 3. Which offsets: the range of a failed attempt again, or what is new.
        if self._planned is None and (rest_ms := self._rested_ms - self.clock.monotonic_ms()) > 0:
            self.clock.wait(self.wake, rest_ms)  # a command ends it
            return False
        planned = self._planned or self._plan()
        if planned is None:
            left_ms = min(self._idling.left_ms, self._idle_sources.left_ms)
            self._wait(min(IDLE_WAIT_MS, self._keep_alive_left_ms(), left_ms))
            return False
        # 5. Run it; the workers commit through the gate.
        self._planned = planned
        started_ms = self.clock.monotonic_ms()
        try:
            result = self._run_batch(planned)
        except BatchFailedError as failure:
            # 6. Outcome unknown: kill, fence, read, replay; then the same range again (D6).
            self._after_failure(failure.failure, self.clock.monotonic_ms() - started_ms)
            return False
        if result is None or not result.committed:
            self._after_abort("ownership-changed" if result is None else result.reason)
            return False
        # 7. Committed and applied: take over positions.
        self._take_result(planned, result, self.clock.monotonic_ms() - started_ms)
        return True

    # --- steps 1-4 -------------------------------------------------------------------------------

    def _take_commands(self) -> None:
        self.wake.clear()
        if self._commands.take(self.tasks):
            self._begin_with_others()

    def _forget_plan(self) -> None:
        """Nothing of it was committed, positions say where to begin."""
        self._planned = self._stuck_at = None
        self._next = BatchId(self.new_incarnation(), 0, 0)

    def _begin_with_others(self) -> None:
        """The job goes on, it only reads other partitions (I4, design note 006)."""
        partitions = sorted({tp for task in self.tasks.values() for tp in task.inputs})
        self.retries.tasks_changed(self.tasks)
        self._forget_plan()
        if not partitions:
            self.services.ends.unwatch(self.number)
            return
        self.services.ends.watch(self.number, partitions, self.wake)
        log.info(
            "Stream thread %d runs tasks %s", self.number, ", ".join(map(str, sorted(self.tasks)))
        )

    def _opened_job(self) -> Job:
        """Usually the one of the warm-up."""
        if self._job is None:
            self._job = self.services.open_job(self.number)
        return self._job

    def _plan(self) -> PlannedBatch | None:
        if self.services.ends.failure is not None:
            raise self.services.ends.failure
        self.retries.before_plan(self.tasks, self.services.ends, self.clock.monotonic_ms())
        most = self.retries.size.records(self.retries.bounds)
        available = self._available()
        few = sum(r.end - r.start for r in available.values()) < most
        # What came during the last batch need not wait for the one after the next. Who knows of
        # nothing need not ask, either, where it is told while it waits.
        asks = few and bool(available or not self.services.ends.tells)
        if asks and self.services.ends.refresh(FRESH_ENDS_MS):
            available = self._available()
        log_ends = {tp: r.end for tp, r in available.items()}
        look = self._idling.look(batching.merged(self.tasks), available, self.clock.monotonic_ms())
        offered = self.retries.stalled.chosen(
            self.tasks, look.of(available), self.clock.monotonic_ms()
        )
        ranges = plan_ranges(offered, most)
        idle = self._silent(available)
        if is_empty(ranges) or self._stuck_at == log_ends or self.services.paused():
            # An empty batch now and then keeps the Python workers alive (idle for a minute, Spark
            # ends them: design section 7).
            if self._keep_alive_left_ms() > 0 and not idle:
                return None
            ranges = batching.nothing_of(self.tasks.values())
        else:
            self.services.metrics.add(names.ENFORCED_PROCESSING, look.enforced)
            if idle or self.settings.clocked:  # then tasks are served that read nothing, too
                ranges = {**batching.nothing_of(self.tasks.values()), **ranges}
        return PlannedBatch(
            ranges=ranges,
            log_ends=log_ends,
            wall_clock_ms=self.clock.now_ms(),
            idle=idle,
            waits=look.waits,
        )

    def _silent(self, available: Mapping[TopicPartition, OffsetRange]) -> Moves:
        """Which sources' times the next batch moves on by their silence: none while nobody knows
        where the logs end."""
        ends, now_ms = self.services.ends, self.clock.monotonic_ms()
        if not self.settings.idle or self.services.paused() or ends.failing_ms() > 0:
            return {}
        tasks = self.retries.stalled.with_known_ends(self.tasks, self._resting(), ends)
        self._looked_ms = now_ms
        return self._idle_sources.due(tasks, available, now_ms)

    def _available(self) -> dict[TopicPartition, OffsetRange]:
        return unread(self.tasks.values(), self.services.ends.ends(), self._resting())

    def _resting(self) -> frozenset[TaskId]:
        return self.retries.resting(self.clock.monotonic_ms())

    def _keep_alive_left_ms(self) -> float:
        return max(0.0, self._last_job_ms + self.settings.keep_alive_ms - self.clock.monotonic_ms())

    def _wait(self, timeout_ms: float) -> None:
        if self._stop.is_set():
            return
        self._counts.tell(self.clock.monotonic_ms())
        self.services.ends.idle(self.number, not self.services.paused())
        self.clock.wait(self.wake, timeout_ms)
        self.services.ends.idle(self.number, False)

    # --- step 5 ----------------------------------------------------------------------------------

    def _run_batch(self, planned: PlannedBatch) -> BatchResult | None:
        """The job's result; None if a task is no longer owned (its removal is on the way)."""
        batch_id = str(self._next._replace(attempt=planned.attempt))
        epochs = {task.id: task.epoch for task in self.tasks.values()}
        if not self.services.gate.begin(batch_id, self.number, self.settings.guarantee, epochs):
            return None
        since = self.batch_since_ms = self.clock.monotonic_ms()
        self._counts.begin(since)
        search = self.retries.search
        if search is not None and (line := search.line(planned, since)):
            moves.info("Stream thread %d: %s", self.number, line)
        try:
            return self._opened_job().run(self._request(batch_id, planned))
        except BatchFailedError as error:
            if self.hung is not None and self.hung.since_ms == since:
                raise BatchFailedError(self.hung.in_place_of(error.failure)) from error
            raise
        finally:
            self.batch_since_ms = None
            self._last_job_ms = self.clock.monotonic_ms()
            self.services.gate.end(batch_id)

    def _request(self, batch_id: str, planned: PlannedBatch) -> BatchRequest:
        calls = bool(planned.ranges) and not self.services.paused()
        return batch_request(
            self.settings,
            batch_id,
            self.number,
            planned,
            self.tasks,
            self.settings.called(self.tasks.keys() - self._resting()) if calls else (),
            self.services.global_tasks(),
            self.retries.skipped(planned),
            self.retries.bounds.max_bytes,
            self.services.topic_ids(),
        )

    # --- step 6 ----------------------------------------------------------------------------------

    def _after_abort(self, reason: str) -> None:
        """The gate or the group said no and the workers aborted: nothing happened, the same range
        runs again."""
        self._counts.again(reason=reason)
        log.info("Stream thread %d: batch aborted (%s), running it again", self.number, reason)
        now_ms = self.clock.monotonic_ms()
        self._follow(self.retries.batch_aborted(reason, self._planned, self.tasks, now_ms))

    def _after_failure(self, failure: BatchFailure, took_ms: float) -> None:
        """D6's order: end the workers, fence, read stable offsets, replay the changelog's tail;
        then retry."""
        self._counts.again(failure.kind)
        now_ms, wall_ms = self.clock.monotonic_ms(), self.clock.now_ms()
        self._log(self.retries.batch_failed(failure, took_ms, now_ms, wall_ms, self.cut_off))
        if failure.code == OtherTopicError.code:
            self.services.doubt_topics({tp.topic for tp in failure.partitions})
        pids = self.services.gate.take_pids(self.number)
        self.services.kill_workers(pids)
        for task in self.tasks.values():
            task.to(TaskState.RESTORING)
        self.recovering = Recovering(failure, self.clock.monotonic_ms())
        self._recover_after(failure)

    def _follow(self, decision: RetryDecision) -> None:
        self._log(decision.lines)
        self._planned, self._refused = decision.planned, decision.keeps_tasks
        if decision.pause_ms > 0:
            self.clock.wait(self._stop, decision.pause_ms)

    def _log(self, lines: Lines) -> None:
        for level, text in lines:
            log.log(level, "Stream thread %d: %s", self.number, text)

    def _recover_after(self, failure: BatchFailure) -> None:
        """Learn what the failed batch did. `Recovery.recover` takes the positions from the
        committed offsets, so a batch that did commit is not run again. Tasks that are lost
        meanwhile are their new owner's, whose open transactions nobody here may wait for: the
        recovery begins again without them, once their removal has arrived."""
        tasks = [
            task
            for task in self.tasks.values()
            if task.state is TaskState.RESTORING and not self._lost(task)
        ]
        before = positions_of(tasks)
        if not self._recovered(tasks):
            return
        for task in tasks:
            task.to(TaskState.RUNNING)
        self.recovering = None
        committed = before != positions_of(tasks)
        decision = self.retries.recovered(
            failure, self._planned, self.tasks, before, committed, self.clock.monotonic_ms()
        )
        if committed:
            self._next = self._next._replace(counter=self._next.counter + 1)
        self._follow(decision)

    def _recovered(self, tasks: Sequence[ActiveTask]) -> bool:
        """Whether all are where the log is. Those whose brokers do not do their part are given
        back: they are waited for elsewhere."""
        lost = lambda: any(self._lost(task) for task in tasks)  # noqa: E731
        fenced = False
        try:
            self.services.recovery.recover((), self.settings.fenced, lost)
            fenced = True
            self.services.recovery.recover(tasks, (), lost)
            return True
        except TaskMigratedError as error:
            log.info("Stream thread %d: %s", self.number, error)
            self.clock.wait(self.wake, ABORT_PAUSE_MS)
        except RetriableError as error:
            log.warning("Stream thread %d cannot recover its tasks: %s", self.number, error)
            now_ms = self.clock.monotonic_ms()
            given = self.retries.recovery_failed(error, tasks, self.tasks, fenced, now_ms)
            if fenced:
                self._give_back(given, error)
        return False

    def _give_back(self, tasks: Sequence[ActiveTask], why: RetriableError) -> None:
        for task in tasks:
            del self.tasks[task.id]
        if not self.tasks:
            self.recovering = None
        self._begin_with_others()
        self.services.give_back(tasks, why)

    def _lost(self, task: ActiveTask) -> bool:
        return self.services.gate.broken(task.id, task.epoch)

    # --- step 7 ----------------------------------------------------------------------------------

    def _take_result(self, planned: PlannedBatch, result: BatchResult, elapsed_ms: float) -> None:
        batch_id = str(self._next._replace(attempt=planned.attempt))
        read, progressed = 0, []
        for task in batching.touched(self.tasks, result):
            moved = task.take(result, batch_id)
            read += moved
            if moved:
                progressed.append(task.id)
        now_ms = self.clock.monotonic_ms()
        rest_ms = self.retries.batch_committed(
            result, planned, read, progressed, self.tasks, elapsed_ms, now_ms
        )
        self._idle_sources.moved(self.tasks.values(), planned.idle, self._looked_ms)
        self._next = self._next._replace(counter=self._next.counter + 1)
        self._rested_ms = self.clock.monotonic_ms() + rest_ms
        log.debug(
            "Stream thread %d: batch %s, %d records in %.1f ms %s, memory %s",
            self.number,
            batch_id,
            read,
            elapsed_ms,
            result.timings,
            self.retries.memory,
        )
        # An input that ran dry may hold the others back (D3): wait for it to grow.
        if not is_empty(planned.ranges):
            self._stuck_at = planned.log_ends if read == 0 and not result.silent else None
        self._planned = None
        self._counts.add(result)
        self.services.committed(positions_of(self.tasks[task] for task in progressed))

    # --- the end ---------------------------------------------------------------------------------

    def _fail(self, error: EverflowError) -> None:
        log.info("Stream thread %d stops", self.number)  # the instance says why
        self.services.on_failed(error)

    def _close_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.close()

    def _close(self, known: dict[TaskId, ActiveTask]) -> None:
        """``known``: tasks whose last batch has a known outcome. The others must be recovered
        before they run anywhere."""
        self._counts.tell(math.inf)
        self.services.ends.unwatch(self.number)
        try:
            self._close_job()
        except Exception:  # the session may be gone already
            log.debug("Stream thread %d: closing its job failed", self.number, exc_info=True)
        self._commands.refuse(known)


# --- uncaught -------------------------------------------------------------------------------------
# Asks the user's uncaught exception handler what becomes of a stream thread (KIP-671).
#
# Kafka Streams replaces a thread as often as the handler says so. A cause that does not pass then
# costs a recovery and a batch again and again, for ever, and nobody sees it. So `RetryPolicy`
# replaces a thread for causes that may pass, after longer and longer rests, and a limited number
# of times within a window.


class StreamThreadExceptionResponse(enum.Enum):
    """What a handler of uncaught exceptions answers: REPLACE_THREAD, SHUTDOWN_CLIENT (this
    instance) or SHUTDOWN_APPLICATION (all of them)."""

    REPLACE_THREAD = "REPLACE_THREAD"
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"
    SHUTDOWN_APPLICATION = "SHUTDOWN_APPLICATION"


UncaughtExceptionHandler: TypeAlias = "Callable[[EverflowError], StreamThreadExceptionResponse]"
"""Called with what ends a stream thread, on that thread."""


@dataclass(frozen=True)
class Uncaught:
    """The user's handler with its limits; without one every uncaught error ends the instance.
    ``shut_down_all``: asks every instance to end."""

    shut_down_all: Callable[[EverflowError], None]
    handler: UncaughtExceptionHandler | None = None
    limits: ReplacementLimits = field(default_factory=ReplacementLimits)

    def limits_for(self, error: EverflowError) -> ReplacementLimits | None:
        """Ask the handler, on the thread that failed: within which limits that thread is replaced;
        None: the instance ends."""
        response = self._answer(error)
        if response is StreamThreadExceptionResponse.SHUTDOWN_APPLICATION:
            self.shut_down_all(error)
        return self.limits if response is StreamThreadExceptionResponse.REPLACE_THREAD else None

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
