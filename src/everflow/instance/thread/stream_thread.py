"""A stream thread runs the micro-batches of its tasks. `run_once` is the body of its loop (D1). It
owns its `Job`. Other threads send it commands and read its public attributes."""

from __future__ import annotations

import enum
import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from everflow.clock import Clock, Running, Spawn, on_thread
from everflow.config import EXACTLY_ONCE_V2, BatchLimits
from everflow.errors import EverflowError, OtherTopicError, RetriableError, TaskMigratedError
from everflow.instance.commit_gate import GateBook
from everflow.instance.tasks.recovery import Recovery
from everflow.instance.tasks.task import (
    ActiveTask,
    TaskState,
    TaskTimeouts,
    ThreadCommands,
    positions_of,
)
from everflow.instance.thread.batch_counts import BatchCounts
from everflow.instance.thread.batching import PlannedBatch
from everflow.instance.thread.failure_text import ending, short
from everflow.instance.thread.planning import BatchPlanner, IdleSources, TaskIdling
from everflow.instance.thread.progress import BatchTimes, EventTimes
from everflow.instance.thread.retry_policy import (
    ABORT_PAUSE_MS,
    Lines,
    ReplacementLimits,
    RetryDecision,
    RetryPolicy,
    StalledTasks,
    Trouble,
    first_size,
)
from everflow.instance.thread.worker_processes import trace_and_kill
from everflow.instance.topics.end_offsets import EndOffsets
from everflow.logs import rebalance_log
from everflow.memory import WorkerMemory
from everflow.metrics import Metrics
from everflow.protocol.messages import (
    LEFT,
    BatchFailedError,
    BatchFailure,
    BatchId,
    BatchRequest,
    BatchResult,
    TaskContext,
)
from everflow.records import UNBOUNDED_BYTES, Offsets, TaskId, TopicPartition
from everflow.retry import StoppedError
from everflow.topology.idle_sources import IdleSource
from everflow.user_program import ANY_FAILURE

log = logging.getLogger("everflow")


class Job(Protocol):
    """Runs the micro-batches of one thread (`everflow.instance.thread.thread_job.ThreadJob`)."""

    def run(self, request: BatchRequest, serves: Callable[[int], bool]) -> BatchResult:
        """Blocks. ``serves`` is told the worker's process before it gets the request; False: it is
        not given it. BatchFailedError: the batch failed; whether it was committed is not known."""

    def close(self) -> None: ...


OpenJob = Callable[[int], Job]
"""Thread number -> the job."""


@dataclass(frozen=True, kw_only=True)
class ThreadSettings:
    """Constant for the thread's life; times in ms. ``clocked``: sub-topologies that are in every
    batch, for the wall clock calls their methods, or since they are ``asking`` services;
    ``every_ms``: those whose rows are written at intervals;
    ``keep_alive_ms`` is at most the shortest of their intervals. ``idle``: inputs with an idleness
    time-out, by sub-topology and topic. ``functions``: the plan has Python functions;
    ``may_continue``: `RetryPolicy`."""

    application_id: str
    guarantee: str
    transactional_id: str
    gate_path: str
    limits: BatchLimits
    task_timeout_ms: float
    keep_alive_ms: float
    clocked: frozenset[int] = frozenset()
    asking: frozenset[int] = frozenset()
    every_ms: Mapping[int, int] = field(default_factory=dict)
    max_task_idle_ms: int = 0
    max_event_time_ahead_ms: int = 0
    idle: Mapping[int, Mapping[str, IdleSource]] = field(default_factory=dict)
    functions: bool = False
    may_continue: Callable[[str, str | None], bool] = lambda stage, node: False
    transaction_timeout_ms: float | None = None


@dataclass(frozen=True, kw_only=True)
class ThreadServices:
    """Effects of a stream thread. ``kill_workers(pids)`` returns when they have ended;
    ``on_failed(error)`` is called once, when it ends with an error, ``committed(positions)`` and
    ``progressed(tasks)`` behind each commit. ``paused()``: KIP-834. ``paused_parts()``: the
    sub-topologies of paused connectors. ``consumed(topics)``: the
    application has consumed all their records. ``global_tasks()``: where the global tables are
    now. ``uncaught``: `Uncaught.limits_for`. ``give_back(tasks, why)``: these cannot be recovered
    here now. ``times``: the instance's; None: ``stream.time=highest``. ``worker_memory()``: its
    worker's present share. ``topic_ids()``: as of the start.
    ``doubt_topics(topics)``: other topics of these names?"""

    open_job: OpenJob
    kill_workers: Callable[[Sequence[int]], None]
    gate: GateBook
    ends: EndOffsets
    recovery: Recovery
    metrics: Metrics
    on_failed: Callable[[EverflowError], None]
    committed: Callable[[Offsets], None]
    progressed: Callable[[Collection[TaskId]], None] = lambda tasks: None
    on_warm: Callable[[], None] = lambda: None
    paused: Callable[[], bool] = lambda: False
    paused_parts: Callable[[], frozenset[int]] = frozenset
    global_tasks: Callable[[], list[TaskContext]] = list
    consumed: Callable[[Collection[str]], bool] = lambda topics: True
    uncaught: Callable[[EverflowError], ReplacementLimits | None] = lambda _: None
    give_back: Callable[[Sequence[ActiveTask], RetriableError], None] = lambda *_: None
    worker_memory: Callable[[], WorkerMemory] = lambda: WorkerMemory(UNBOUNDED_BYTES)
    topic_ids: Callable[[], Mapping[str, str]] = dict
    doubt_topics: Callable[[Collection[str]], None] = lambda topics: None
    times: EventTimes | None = None
    spawn: Spawn = on_thread


_Value = TypeVar("_Value")


def _of(
    found: Mapping[TopicPartition, _Value] | None, inputs: Collection[TopicPartition]
) -> dict[TopicPartition, _Value] | None:
    return None if found is None else {tp: found[tp] for tp in inputs if tp in found}


def _latest_ends(
    planned: PlannedBatch, served: Sequence[ActiveTask], asking: frozenset[int]
) -> dict[TopicPartition, int]:
    """The worker gets the records that came since the ends were known; of logs that had none where
    it is ``asking`` services. Not of a task that merges several logs: older ones of another may not
    be here yet. A retry reads what was planned."""
    alone = {tp: task.id for task in served if len(task.inputs) == 1 for tp in task.inputs}
    ends = {tp: planned.ranges[tp] for tp in alone if tp in planned.ranges}
    whole = {
        tp: r.end
        for tp, r in ends.items()
        if r.end == planned.log_ends.get(tp, r.end)
        and (r.start < r.end or alone[tp].subtopology in asking)
    }
    return {tp: end + planned.spare // len(whole) for tp, end in whole.items()}


IDLE_WAIT_MS = 1_000.0
SHOWN_AFTER_MS = 3_000.0
"""A recovery usually takes less: log and metrics have its batch, and the state does not flicker."""


@dataclass(frozen=True)
class Recovering:
    """A batch failed and it is not known yet whether it was committed; since when, monotonic ms."""

    failure: BatchFailure
    since_ms: float


@dataclass(frozen=True)
class Hung:
    """A batch that did not end in time: when it began (monotonic), and its limit; ms."""

    since_ms: float
    limit_ms: float


@dataclass(kw_only=True)
class StreamThread:
    """``number`` counts from 0 and is part of the transactional id (D6)."""

    number: int
    settings: ThreadSettings
    services: ThreadServices
    clock: Clock
    new_incarnation: Callable[[], str]
    wake: threading.Event = field(default_factory=threading.Event)
    tasks: dict[TaskId, ActiveTask] = field(default_factory=dict)
    warm: threading.Event = field(default_factory=threading.Event)
    batch_since_ms: float | None = None
    """Monotonic start of the batch in flight, for the watchdog; None between batches."""
    hung: Hung | None = None
    """The last batch whose workers the watchdog killed; set before it kills them."""
    recovering: Recovering | None = None
    cut_off: bool = False
    """The shutdown killed the workers of the batch in flight: its failure is expected."""
    settled_ms: int | None = None
    """Wall clock of the last moment between batches: the stores have all that was committed."""

    def __post_init__(self) -> None:
        self._commands = ThreadCommands()
        self._stop = threading.Event()
        self._job: Job | None = None
        self._next = BatchId("", 0, 0)
        self._planned: PlannedBatch | None = None
        self._refused = False
        """The last batch was aborted because a rebalance ended in the middle of it."""
        self.retries = RetryPolicy(
            limits=self.settings.limits,
            size=first_size(self.settings.functions),
            worker=self.services.worker_memory,
            may_continue=self.settings.may_continue,
            stalled=StalledTasks(TaskTimeouts(self.settings.task_timeout_ms)),
        )
        times = self.services.times
        interval_ms = self.settings.limits.most_rest_ms
        self._timed = None if times is None else BatchTimes(times, self.number, interval_ms)
        self._planner = BatchPlanner(
            timed=self._timed,
            ahead_ms=self.settings.max_event_time_ahead_ms,
            idling=TaskIdling(self.settings.max_task_idle_ms),
            idle_sources=IdleSources(self.settings.idle, self.services.consumed),
            clocked=self.settings.clocked,
            every_ms=self.settings.every_ms,
            retries=self.retries,
            ends=self.services.ends,
            paused=self.services.paused,
            metrics=self.services.metrics,
            clock=self.clock,
        )
        self._counts = BatchCounts(self.services.metrics, self.clock, self.number)
        self._last_job_ms = self.clock.monotonic_ms()
        self._rests_until_ms = 0.0
        """Until then records wait to share the next batch's commit (`commit.interval.ms`)."""
        self._running: Running | None = None

    @property
    def name(self) -> str:
        return f"everflow-stream-{self.number}"

    # --- called from other threads ---------------------------------------------------------------

    @property
    def trouble(self) -> Trouble | None:
        return self.retries.trouble

    def troubles(self) -> dict[TaskId, Trouble]:
        now_ms, wall_ms = self.clock.monotonic_ms(), self.clock.now_ms()
        return self.retries.troubles(list(self.tasks), now_ms, wall_ms)

    @property
    def stalled(self) -> bool:
        """True if it has been recovering all its tasks for a while: the instance is REBALANCING."""
        found = self.recovering
        return found is not None and self.clock.monotonic_ms() - found.since_ms > SHOWN_AFTER_MS

    def end_hanging_batch(self, limit_ms: float) -> None:
        """After ``max.poll.interval.ms`` kill its workers (D7): the thread recovers (D6)."""
        since = self.batch_since_ms
        if since is None or self.clock.monotonic_ms() - since <= limit_ms:
            return
        pids = self.services.gate.take_pids(self.number)
        if pids:
            text = "Stream thread %d: a batch hangs; its workers %s are killed"
            log.warning(text, self.number, list(pids))
            self.hung = Hung(since, limit_ms)
            trace_and_kill(pids, self.clock)

    def start(self) -> None:
        self._running = self.services.spawn(self.name, self._run)

    def add(self, tasks: Sequence[ActiveTask]) -> None:
        """Recovered tasks for this thread, taken over before its next batch."""
        self._commands.add(tasks)
        self.wake.set()

    def drop(
        self,
        tasks: Collection[TaskId],
        done: Callable[[Sequence[ActiveTask]], None],
    ) -> None:
        """Give up tasks after the batch in flight; ``done`` gets them on the stream thread."""
        self._commands.drop(tasks, done)
        self.services.gate.hurry(self.number)
        self.wake.set()

    def restart(
        self, tasks: Collection[TaskId], done: Callable[[Sequence[ActiveTask]], None]
    ) -> None:
        """As `drop`, and end the worker, with all that its sinks hold (note 074)."""

        def given_up(found: Sequence[ActiveTask]) -> None:
            self._end_worker()
            done(found)

        self.drop(tasks, given_up)

    @property
    def paused_tasks(self) -> frozenset[TaskId]:
        """Those of its tasks that do not run since a connector is paused."""
        return self.retries.paused_tasks

    def all_tasks(self) -> list[ActiveTask]:
        """Its tasks, with those that it takes over before its next batch; from any thread."""
        # First: a task is in `tasks` before it leaves here.
        arriving = self._commands.arriving()
        return list({task.id: task for task in (*arriving, *list(self.tasks.values()))}.values())

    def stop(self) -> None:
        self._stop.set()
        self.services.gate.hurry(self.number)
        self.wake.set()

    def join(self, timeout_s: float | None) -> bool:
        return self._running is None or self._running.join(timeout_s)

    # --- the loop --------------------------------------------------------------------------------

    def _run(self) -> None:
        known: dict[TaskId, ActiveTask] = {}
        try:
            self._warm_up()
            while not self._stop.is_set():
                self._turn()
            known = self.tasks
        except StoppedError:
            pass
        except Exception as error:
            log.info("Stream thread %d ends", self.number)  # the instance says why
            self.services.on_failed(self._as_ours(error))
        self._close(known)

    def _as_ours(self, error: Exception) -> EverflowError:
        if isinstance(error, EverflowError):
            return error
        log.error("Stream thread %d failed", self.number, exc_info=error)  # a defect
        return EverflowError(f"Stream thread {self.number} failed: {error!r}")

    def _turn(self) -> None:
        try:
            self.run_once()
        except StoppedError:
            raise
        except Exception as raised:
            error = self._as_ours(raised)
            limits = self.services.uncaught(error)
            now_ms, planned = self.clock.monotonic_ms(), self._planned
            replaced, lines = self.retries.uncaught(
                error,
                limits,
                planned,
                self.tasks,
                now_ms,
            )
            self._log(lines)
            if not replaced:
                raise error from None
            self._begin_anew(error)

    def _begin_anew(self, error: EverflowError) -> None:
        """As a new thread would (KIP-671): with another job, and its tasks are recovered."""
        self._end_worker()
        for task in self.tasks.values():
            if task.state is TaskState.RUNNING:
                task.to(TaskState.RESTORING)
        self._forget_plan()
        failure = BatchFailure(kind="retriable", error=str(error))
        self.recovering = Recovering(failure, self.clock.monotonic_ms())

    def _warm_up(self) -> None:
        """Before the instance joins: the first records would wait seconds for imports and code."""
        try:
            self._run_empty()
        finally:
            self.warm.set()
            self.services.on_warm()

    def _run_empty(self) -> None:
        """Run a batch without tasks: it opens the job, or keeps idle workers alive."""
        batch_id = str(BatchId(self.new_incarnation(), 0, 0))
        self.services.gate.begin(batch_id, self.number, self.settings.guarantee, {})
        request = self._request(batch_id, PlannedBatch(ranges={}, log_ends={}))
        try:
            self._run_on_job(request)
        except BatchFailedError as failure:
            if failure.failure.kind == "fatal":  # a program that no worker can build, say
                raise ending(failure.failure, 1, "") from failure
            # The first real batch meets the same fault, and the retry policy decides then.
            log.warning(
                "Stream thread %d: an empty batch failed: %s", self.number, short(failure.failure)
            )
        finally:
            self._last_job_ms = self.clock.monotonic_ms()
            self.services.gate.end(batch_id)

    def run_once(self) -> bool:
        """One turn of the loop; True if a micro-batch was committed."""
        # 1. Carry out commands, between batches only. A batch that was refused only because the
        # group had moved on counts as in flight: it is committed before its tasks are handed over.
        if not self._refused:
            self._take_commands()
        self._refused = False
        now_ms = self.clock.monotonic_ms()
        if self.tasks and self.retries.failing(now_ms) >= self.tasks.keys():
            self.clock.wait(self.wake, IDLE_WAIT_MS)
            return False
        if self.recovering is not None:
            self._recover_after(self.recovering.failure)
            return False
        # An aborted attempt may have left records in changelogs under at-least-once.
        if self._planned is None:
            self.settled_ms = self.clock.now_ms()
        # 2. Without tasks that run, keep the workers alive.
        if self.retries.paused_tasks >= self.tasks.keys():
            if self._keep_alive_left_ms() <= 0:
                self._run_empty()
            self._wait(min(IDLE_WAIT_MS, self._keep_alive_left_ms()))
            return False
        if self._planned is not None and self.services.paused():
            self.retries.paused()
            self.clock.wait(self.wake, IDLE_WAIT_MS)
            return False
        # 3. Plan: the range of a failed attempt again, or new offsets.
        rest_ms = self._rests_until_ms - self.clock.monotonic_ms()
        if self._planned is None and rest_ms > 0:
            self.clock.wait(self.wake, rest_ms)  # a command ends it
            return False
        planned = self._planned or self._planner.plan(
            self.tasks, keep_alive=self._keep_alive_left_ms() <= 0
        )
        if planned is None:
            if self._wait(min(IDLE_WAIT_MS, self._keep_alive_left_ms(), self._planner.left_ms)):
                # A record has come after a rest: others may share its batch (note 018).
                rest_ms = self.retries.size.wake_rest_ms(self.settings.limits)
                self._rests_until_ms = self.clock.monotonic_ms() + rest_ms
            return False
        # 4. Run it; the workers commit through the gate.
        self._planned = planned
        started_ms = self.clock.monotonic_ms()
        try:
            result = self._run_batch(planned)
        except BatchFailedError as failure:
            # 5. It is not known whether it was committed: kill, fence, recover, retry (D6).
            self._after_failure(failure.failure, self.clock.monotonic_ms() - started_ms)
            return False
        if result is None or not result.committed:
            self._after_abort("ownership-changed" if result is None else result.reason)
            return False
        # 6. Committed, and in the stores: take over the positions.
        self._take_result(planned, result, self.clock.monotonic_ms() - started_ms)
        return True

    def _take_commands(self) -> None:
        self.wake.clear()
        if not self._stop.is_set():
            self.services.gate.at_leisure(self.number)
        changed = self._commands.take(self.tasks)
        if self._pause_tasks() or changed:
            self._begin_with_others()

    def _pause_tasks(self) -> bool:
        """True if others are paused now: what was planned for them is not run again."""
        parts = self.services.paused_parts()
        paused = frozenset(task for task in self.tasks if task.subtopology in parts)
        before, self.retries.paused_tasks = self.retries.paused_tasks, paused
        return paused != before

    def _forget_plan(self) -> None:
        """Drop a planned batch of which nothing was committed: the positions say where to begin."""
        self._planned = None
        self._planner.forget()
        self._next = BatchId(self.new_incarnation(), 0, 0)

    def _begin_with_others(self) -> None:
        """The tasks changed. The job goes on and reads other partitions (I4, design note 006)."""
        # A paused task's time does not count, nor what it failed of.
        self.retries.tasks_changed(self.tasks.keys() - self.retries.paused_tasks)
        self._forget_plan()
        self._rests_until_ms = 0.0  # records of a task that moved have waited long enough
        paused = self.retries.paused_tasks
        self._watch_ends(self.number, self.tasks.keys() - paused, self.wake)
        # Of these the ends are known for their lag: new records wake nobody.
        self._watch_ends(-1 - self.number, paused, threading.Event())
        self._watch_times()
        if self.tasks:
            names = ", ".join(map(str, sorted(self.tasks)))
            besides = f" (paused: {', '.join(map(str, sorted(paused)))})" if paused else ""
            log.info("Stream thread %d runs tasks %s%s", self.number, names, besides)

    def _watch_ends(self, number: int, tasks: Collection[TaskId], wake: threading.Event) -> None:
        partitions = sorted({tp for task in tasks for tp in self.tasks[task].inputs})
        if partitions:
            self.services.ends.watch(number, partitions, wake)
        else:
            self.services.ends.unwatch(number)

    def _watch_times(self) -> None:
        if self.services.times is not None:
            self.services.times.watch(self.number, self.tasks.values(), self.wake)

    def _run_on_job(self, request: BatchRequest) -> BatchResult:
        if self._job is None:
            self._job = self.services.open_job(self.number)
        return self._job.run(request, partial(self.services.gate.serves, request.batch_id))

    def _resting(self) -> frozenset[TaskId]:
        return self.retries.resting(self.clock.monotonic_ms())

    def _keep_alive_left_ms(self) -> float:
        return max(0.0, self._last_job_ms + self.settings.keep_alive_ms - self.clock.monotonic_ms())

    def _wait(self, timeout_ms: float) -> bool:
        """True if something has come: records or a command."""
        if self._stop.is_set():
            return False
        self._counts.log_drops(self.clock.monotonic_ms())
        all_paused = bool(self.tasks) and self.retries.paused_tasks >= self.tasks.keys()
        self.services.ends.idle(self.number, not (self.services.paused() or all_paused))
        woken = self.clock.wait(self.wake, timeout_ms)
        self.services.ends.idle(self.number, False)
        return woken

    def _run_batch(self, planned: PlannedBatch) -> BatchResult | None:
        """The job's result; None if a task is no longer owned (a command will remove it)."""
        batch_id = str(self._next._replace(attempt=planned.attempt))
        epochs = {task.id: task.epoch for task in self.tasks.values()}
        if not self.services.gate.begin(
            batch_id,
            self.number,
            self.settings.guarantee,
            epochs,
        ):
            return None
        since = self.batch_since_ms = self._counts.began_ms = self.clock.monotonic_ms()
        search = self.retries.search
        if search is not None and (line := search.line(planned, since)):
            rebalance_log.info("Stream thread %d: %s", self.number, line)
        try:
            return self._run_on_job(self._request(batch_id, planned))
        except BatchFailedError as error:
            if self.hung is None or self.hung.since_ms != since:
                raise
            limit_s = self.hung.limit_ms / 1000
            text = f"A batch has not ended within {limit_s:g} s (max.poll.interval.ms)"
            raise BatchFailedError(replace(error.failure, kind="hang", error=text)) from error
        finally:
            self.batch_since_ms = None
            self._last_job_ms = self.clock.monotonic_ms()
            self.services.gate.end(batch_id)

    def _request(self, batch_id: str, planned: PlannedBatch) -> BatchRequest:
        """It has tasks with records to read, those that the wall clock calls, and idle sources."""
        settings, resting = self.settings, self._resting()
        calls = bool(planned.ranges) and not self.services.paused()
        reads = {tp for tp, r in planned.new.items() if r.end > r.start}
        served = [
            task
            for name, task in sorted(self.tasks.items())
            if not reads.isdisjoint(task.inputs)
            or name in planned.idle
            or name in planned.due
            or (calls and name.subtopology in settings.clocked and name not in resting)
        ]
        inputs = sorted(tp for task in served for tp in task.inputs if tp in planned.ranges)
        ids = self.services.topic_ids()
        exactly = bool(planned.attempt) or self.retries.search is not None
        # Records that come do not cut an interval short.
        asking = settings.asking - settings.every_ms.keys()
        return BatchRequest(
            batch_id=batch_id,
            thread=self.number,
            attempt=planned.attempt,
            guarantee=settings.guarantee,
            transactional_id=settings.transactional_id,
            wall_clock_ms=planned.wall_clock_ms,
            gate=settings.gate_path,
            ranges={tp: planned.ranges[tp] for tp in inputs},
            log_ends={tp: planned.log_ends.get(tp, planned.ranges[tp].end) for tp in inputs},
            tasks=[task.context() for task in served],
            application_id=settings.application_id,
            global_tasks=self.services.global_tasks(),
            transaction_timeout_ms=settings.transaction_timeout_ms,
            calls_ms=settings.limits.target_ms,
            most_bytes=self.retries.bounds.max_bytes,
            waits=planned.waits,
            idle=planned.idle,
            times=_of(planned.times, inputs),
            until_ms=planned.until_ms,
            most_ms=planned.most_ms,
            most_taken=planned.most_taken,
            earlier_failures=self.retries.skipped(planned),
            patient=len(self.tasks) == 1,
            topic_ids={topic: ids[topic] for topic, _ in inputs if topic in ids},
            latest_ends={} if exactly else _latest_ends(planned, served, asking),
        )

    def _after_abort(self, reason: str) -> None:
        self._counts.again(reason=reason)
        log.info("Stream thread %d: batch aborted (%s); it is run again", self.number, reason)
        now_ms = self.clock.monotonic_ms()
        self._follow(self.retries.batch_aborted(reason, self._planned, self.tasks, now_ms))

    def _after_failure(self, failure: BatchFailure, took_ms: float) -> None:
        """In the order of D6: kill the workers, fence, read the stable offsets, replay, retry."""
        self._counts.again(failure.kind)
        now_ms, wall_ms = self.clock.monotonic_ms(), self.clock.now_ms()
        if failure.connector:  # before the decision, which may be the end
            self._counts.failed(failure.connector, short(failure))
        self._log(self.retries.batch_failed(failure, took_ms, now_ms, wall_ms, self.cut_off))
        if failure.code == OtherTopicError.code:
            self.services.doubt_topics({tp.topic for tp in failure.partitions})
        self.services.kill_workers(self.services.gate.take_pids(self.number))
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
        """Take positions from the committed offsets. A task lost meanwhile has another owner,
        for whose transaction nobody must wait: the recovery begins again without it."""
        restoring = [task for task in self.tasks.values() if task.state is TaskState.RESTORING]
        tasks = [task for task in restoring if not self._lost(task)]
        before = positions_of(tasks)
        if not self._recovered(tasks):
            return
        for task in tasks:
            task.to(TaskState.RUNNING)
        self.recovering = None
        self._watch_times()
        committed = before != positions_of(tasks)
        decision = self.retries.recovered(
            failure, self._planned, self.tasks, before, committed, self.clock.monotonic_ms()
        )
        if committed:
            self._next = self._next._replace(counter=self._next.counter + 1)
        self._follow(decision)

    def _recovered(self, tasks: Sequence[ActiveTask]) -> bool:
        """True if all are recovered. The manager gets back those whose brokers do not answer."""

        def lost() -> bool:
            return any(self._lost(task) for task in tasks)

        exactly_once = self.settings.guarantee == EXACTLY_ONCE_V2
        writers = [self.settings.transactional_id] if exactly_once else []
        fenced = False
        try:
            self.services.recovery.recover((), writers, lost)
            fenced = True
            self.services.recovery.recover(tasks, (), lost)
            return True
        except TaskMigratedError as error:
            log.info("Stream thread %d: %s", self.number, error)
            self.clock.wait(self.wake, ABORT_PAUSE_MS)
        except RetriableError as error:
            log.warning("Stream thread %d cannot recover its tasks: %s", self.number, error)
            now_ms = self.clock.monotonic_ms()
            returned = self.retries.recovery_failed(error, tasks, self.tasks, fenced, now_ms)
            if fenced:
                self._give_back(returned, error)
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

    def _take_result(
        self,
        planned: PlannedBatch,
        result: BatchResult,
        elapsed_ms: float,
    ) -> None:
        batch_id = str(self._next._replace(attempt=planned.attempt))
        read, progressed = 0, []
        for task in _touched(self.tasks, result):
            in_a_record = bool(result.counts.get(LEFT)) and task.times_move(result)  # note 073
            before = self._read_positions(task)
            moved = task.take(result, batch_id)
            if before is not None:  # what is held back was read, though its offset is not committed
                moved = max(moved, _sum_of(self._read_positions(task)) - _sum_of(before))
            read += moved
            if moved or in_a_record:
                progressed.append(task.id)
        now_ms = self.clock.monotonic_ms()
        rest_ms = self.retries.batch_committed(
            result, planned, read, progressed, self.tasks, elapsed_ms, now_ms
        )
        self._planner.committed(planned, result, read, self.tasks)
        self._next = self._next._replace(counter=self._next.counter + 1)
        self._rests_until_ms = self.clock.monotonic_ms() + rest_ms
        text = "Stream thread %d: batch %s, %d records in %.1f ms %s, memory %s"
        figures = (read, elapsed_ms, result.timings, self.retries.memory)
        log.debug(text, self.number, batch_id, *figures)
        self._planned = None
        self._counts.add(result)
        self.services.committed(positions_of(self.tasks[task] for task in progressed))
        self.services.progressed(progressed)

    def _read_positions(self, task: ActiveTask) -> Offsets | None:
        return None if self._timed is None else self._timed.positions(task)

    def _end_worker(self) -> None:
        self._close_job()
        self.services.kill_workers(self.services.gate.take_pids(self.number))

    def _close_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.close()

    def _close(self, known: dict[TaskId, ActiveTask]) -> None:
        """``known``: tasks whose last batch has a known outcome. The others must be recovered."""
        self._counts.log_drops(math.inf)
        self.services.ends.unwatch(self.number)
        self.services.ends.unwatch(-1 - self.number)
        if self.services.times is not None:
            self.services.times.watch(self.number, (), self.wake)
        try:
            self._close_job()
        except Exception:  # Spark's session may have ended already
            log.debug("Stream thread %d: closing its job failed", self.number, exc_info=True)
        self._commands.refuse(known)


def _sum_of(offsets: Offsets | None) -> int:
    return sum((offsets or {}).values())


def _touched(tasks: Mapping[TaskId, ActiveTask], result: BatchResult) -> list[ActiveTask]:
    read, times, stores = result.consumed.keys(), result.stream_times, result.positions
    return [
        task
        for name, task in tasks.items()
        if not read.isdisjoint(task.inputs) or name in times or name in stores
    ]


class StreamThreadExceptionResponse(enum.Enum):
    """What an uncaught exception handler returns: REPLACE_THREAD (a new thread continues, if the
    error may pass), SHUTDOWN_CLIENT (this instance stops) or SHUTDOWN_APPLICATION (all instances
    stop)."""

    REPLACE_THREAD = "REPLACE_THREAD"
    SHUTDOWN_CLIENT = "SHUTDOWN_CLIENT"
    SHUTDOWN_APPLICATION = "SHUTDOWN_APPLICATION"


UncaughtExceptionHandler: TypeAlias = "Callable[[EverflowError], StreamThreadExceptionResponse]"
"""Called with what ends a stream thread or the instance, on the thread that met it; several threads
may call it at once."""


@dataclass(frozen=True)
class Uncaught:
    """The user's handler of uncaught exceptions (KIP-671, note 047), and its limits; without one
    every uncaught error ends the instance. ``shut_down_all``: asks every instance to end."""

    shut_down_all: Callable[[EverflowError], None]
    handler: UncaughtExceptionHandler | None = None
    limits: ReplacementLimits = field(default_factory=ReplacementLimits)

    def limits_for(self, error: EverflowError) -> ReplacementLimits | None:
        """Ask the handler, on the thread that failed, within which limits that is replaced, if at
        all."""
        if self.handler is None:
            return None
        try:
            response: object = self.handler(error)
        except ANY_FAILURE:
            log.exception("The uncaught exception handler failed; this instance ends")
            return None
        if not isinstance(response, StreamThreadExceptionResponse):
            log.error(
                "The uncaught exception handler returned %r instead of a "
                "StreamThreadExceptionResponse; this instance ends",
                response,
            )
        if response is StreamThreadExceptionResponse.SHUTDOWN_APPLICATION:
            self.shut_down_all(error)
        return self.limits if response is StreamThreadExceptionResponse.REPLACE_THREAD else None
