"""The end of an instance: who may ask for it, and its order.

`InstanceShutdown` is a part of `KafkaStreams`. Whoever asks, from whatever thread and at whatever moment: one thread ends the
instance, once. While `KafkaStreams.start` is still under way that thread only sets the flag that every wait of a start looks
at, and begins when the start has given up: nothing is then made behind its back.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from everflow.clock import Clock, Deadline
from everflow.errors import EverflowError
from everflow.kafka.producer import fence_all
from everflow.moves import moves, some
from everflow.retry import StoppedError, quietly
from everflow.runtime.client_state import ClientState, StateMachine
from everflow.runtime.drain import DRAIN_SHARE, DRAIN_WITHOUT_BROKER_MS, drain_limit, drained_or_ended
from everflow.runtime.thread.worker_processes import is_worker, kill_and_wait
from everflow.runtime.unclosed import close_at_exit
from everflow.runtime.wiring import Ground, close_stores

if TYPE_CHECKING:
    from everflow.config import StreamsConfig
    from everflow.kafka.admin import ClusterAdmin
    from everflow.logs import LogFile
    from everflow.membership.member import GroupMember
    from everflow.runtime.commit.commit_gate import CommitGate, GateBook
    from everflow.runtime.commit.deferred_offsets import DeferredOffsets
    from everflow.runtime.copies.state_keeper import StateKeeper
    from everflow.runtime.copies.state_updater import StateUpdater
    from everflow.runtime.tasks.task import ActiveTask
    from everflow.runtime.tasks.task_manager import TaskManager
    from everflow.runtime.thread.stream_thread import StreamThread
    from everflow.runtime.topics.end_offsets import EndOffsets
    from everflow.runtime.topics.end_sums import EndSums
    from everflow.runtime.topics.topic_watch import TopicWatch
    from everflow.state.task_directory import StateDirectory

log = logging.getLogger("everflow")

LOOK_S = 0.1
HURRY_MS = 1_000.0
"""For so long a batch in flight may still end by itself where there is no time, or nobody who could take its commit."""
START_GIVES_UP_S = 30.0
FENCE_S = 5.0
LEAVE_S, LEAVE_WITHOUT_BROKER_S = 5.0, 1.0


_Instance = TypeVar("_Instance", bound="InstanceShutdown")


class InstanceShutdown:
    """These methods of `KafkaStreams` may be called from any thread; what `start` had not reached is None."""

    config: StreamsConfig
    error: EverflowError | None
    _clock: Clock
    _states: StateMachine
    _book: GateBook
    _stop: threading.Event
    _threads: list[StreamThread]
    _events: queue.SimpleQueue[Callable[[], None] | None]
    _loop: threading.Thread | None
    _pools: tuple[ThreadPoolExecutor, ...]
    _directory: StateDirectory | None
    _log_file: LogFile | None
    _admin: ClusterAdmin | None
    _ground: Ground | None
    _updater: StateUpdater | None
    _end_sums: EndSums | None
    _member: GroupMember | None
    _deferred: DeferredOffsets | None
    _gate: CommitGate | None
    _ends: EndOffsets | None
    _topic_watch: TopicWatch | None
    _manager: TaskManager | None
    _keeper: StateKeeper | None

    def __init__(self) -> None:
        self._closing = threading.Lock()
        self._shutdown: threading.Thread | None = None
        self._start_over = threading.Event()
        """Set while no start is under way."""
        self._start_over.set()
        self._leave_group: bool | None = None
        self._drain_s = 0.0
        self._ending = ""
        """What the end is at, in words; empty before it."""
        self._hurry = threading.Event()
        self._cut_off = False
        """Workers were killed in the middle of a batch: a transaction may be open."""

    @property
    def state(self) -> ClientState:
        """The state now."""
        return self._states.state

    def _running_tasks(self) -> list[ActiveTask]:
        raise NotImplementedError

    def __enter__(self: _Instance) -> _Instance:
        """``with KafkaStreams(...) as streams:`` closes at the end of the block; `start` is still called inside."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """`close`. If the block itself ended well and the instance did not, raises what stopped it."""
        self.close()
        if kind is None and self.error is not None:
            raise self.error

    def close(self, timeout: float = 60.0, leave_group: bool | None = None) -> bool:
        """Hand the tasks over, finish the batches in flight, commit, leave the group, release the folder; False if that took more
        than ``timeout`` seconds (it goes on in the background).

        ``leave_group`` None: a dynamic member drains (every task is processed here until another instance has a hot copy of it,
        at most ``drain.timeout.ms`` and most of ``timeout``) and leaves; a static one (``group.instance.id``) stays in the group,
        silently: its tasks wait for its return. True: drain and leave, also a static one. False: stay silent, also a dynamic one
        (KIP-812).

        During `start`, from another thread: the start gives up what it waits for and returns, the state is NOT_RUNNING.
        """
        self._begin_close(timeout, leave_group)
        return self._states.wait_ended(timeout)

    def _hurry_up(self, timeout_s: float) -> bool:
        """Wait for an end that has begun: from now on it hands nothing over and cuts batches in flight off after a second."""
        self._hurry.set()
        return self._states.wait_ended(timeout_s)

    def _begin_close(self, timeout: float, leave_group: bool | None) -> None:
        """`close` without the waiting."""
        with self._closing:
            if self._states.state is ClientState.CREATED:
                self._states.to(ClientState.PENDING_SHUTDOWN)
                self._states.to(ClientState.NOT_RUNNING)
                return
        leaves = self.config.group_instance_id is None if leave_group is None else leave_group
        drain_s = min(self.config.drain_timeout_ms / 1000, DRAIN_SHARE * timeout) if leaves else 0.0
        self._begin_shutdown(ClientState.PENDING_SHUTDOWN, leave_group, drain_s)

    def _begin_start(self) -> None:
        """From CREATED to REBALANCING, unless it is being closed this moment."""
        with self._closing:
            if self._states.to(ClientState.REBALANCING):
                self._start_over.clear()
                close_at_exit(self)

    def _end_start(self, error: BaseException) -> BaseException | None:
        """A start did not go through: end what it has begun. What its caller is told: nothing where the instance was closed."""
        self._start_over.set()
        told: BaseException | None = _interrupt(error) or error
        if not isinstance(told, Exception):  # Ctrl-C
            self._begin_shutdown(ClientState.PENDING_SHUTDOWN)
        elif self._stop.is_set():  # the wish of somebody else, or the failure of another thread
            told = self.error
        else:
            self.error = error if isinstance(error, EverflowError) else EverflowError(f"The start failed: {error!r}")
            self._begin_shutdown(ClientState.PENDING_ERROR)
        self._states.wait_ended(START_GIVES_UP_S)
        return told

    def _begin_shutdown(self, state: ClientState, leave_group: bool | None = None, drain_s: float = 0.0) -> None:
        with self._closing:
            if self._shutdown is not None or not self._states.to(state):
                return
            self._leave_group, self._drain_s = leave_group, drain_s
            self._shutdown = threading.Thread(target=self._run_shutdown, name="everflow-shutdown", daemon=True)
            self._shutdown.start()

    def _run_shutdown(self) -> None:
        failed = self._states.state is ClientState.PENDING_ERROR
        if not self._start_over.is_set():
            self._ending = "waiting for its start to give up"
            self._stop.set()
            self._start_over.wait()
        try:
            self._shut_down()
        except Exception as error:  # the state must still say that it is over
            log.error("The shutdown did not go through: %s", error, exc_info=not isinstance(error, EverflowError))
            failed = True
        self._states.to(ClientState.ERROR if failed else ClientState.NOT_RUNNING)
        if self._log_file is not None:
            self._log_file.close()

    def _shut_down(self) -> None:
        """Tasks are handed over -> batches end and commit -> offsets held back are committed -> stores are flushed -> the group is
        left -> connections end -> folder released. Each step is tried whatever became of those before: a member that did not leave
        would keep its tasks from the others for as long as this process lives."""
        failures: list[Exception] = []
        steps = {
            "handing the tasks over": self._drain,
            "waiting for what it does this moment": self._end_loop,
            "waiting for the batches in flight": self._end_threads,
            "waiting for restores and copies to stop": self._end_recoveries,
            "ending the transaction of a batch that was cut off": self._abort_cut_off,
            "committing offsets": self._commit_held,
            "closing the stores": self._checkpoint,
            "telling the group that it leaves": self._leave,
            "closing its connections": self._disconnect,
        }
        for self._ending, step in steps.items():
            try:
                step()
            except Exception as error:
                log.error("A step of the shutdown failed: %s", error, exc_info=not isinstance(error, EverflowError))
                failures.append(error)
        self._ending = "writing the stores to disk"
        if self._directory is not None:
            self._directory.close(clean=not failures)
        if failures:
            raise failures[0]

    def _drain(self) -> None:
        """D8: go on processing until every task has gone to a hot copy elsewhere, or nobody could take one."""
        member = self._member
        if self._drain_s <= 0 or self._stop.is_set() or member is None or member.metadata().generation < 0:
            return
        limit = drain_limit(self._drain_s, self.config.drain_timeout_ms / 1000)
        moves.info("Handing over the tasks, for %.0f s at most (%s)", self._drain_s, limit)
        deadline = Deadline(self._clock, self._drain_s * 1000)
        member.drain(self._leave_group)
        ended: dict[str, Callable[[], bool]] = {
            f"{self._drain_s:.0f} s are over ({limit})": deadline.expired,
            "asked to stop now": self._hurry.is_set,
            "evicted from the group": lambda: member.metadata().generation < 0,
            "a stream thread has ended": lambda: any(thread.join(0) for thread in self._threads),
            "the brokers do not answer": self._brokers_away,
        }
        reason = drained_or_ended(member.await_drained, ended)
        if reason is not None:
            moves.warning("Not all tasks were handed over: %s. Still here: %s", reason, some(sorted(self._book.owned())))

    def _brokers_away(self) -> bool:
        return self._ends is not None and self._ends.failing_ms() > DRAIN_WITHOUT_BROKER_MS

    def _end_loop(self) -> None:
        if self._loop is not None and self._loop.ident is not None:
            self._events.put(None)
            self._loop.join()
        if self._manager is not None:
            self._manager.close()

    def _end_threads(self) -> None:
        for thread in self._threads:
            thread.stop()
        self._stop.set()
        for thread in self._threads:
            self._await_thread(thread)
        for thread in self._threads:
            # No batch runs any more. Idle workers hold a producer that the next instance on this folder fences; end them.
            self._kill_workers(thread)

    def _await_thread(self, thread: StreamThread) -> None:
        """Until its batch in flight has ended. By force where nobody wants to wait, or no broker could take its commit: that is a
        worker's crash, which the next recovery of these tasks makes up for (D6)."""
        since_ms: float | None = None
        while not thread.join(LOOK_S):
            if not (self._hurry.is_set() or self._brokers_away()):
                continue
            now_ms = self._clock.monotonic_ms()
            since_ms = now_ms if since_ms is None else since_ms
            if now_ms - since_ms >= HURRY_MS:
                thread.cut_off = True
                if self._kill_workers(thread):
                    self._cut_off = True
                    why = "asked to stop now" if self._hurry.is_set() else "the brokers do not answer"
                    moves.info("Stream thread %d: its batch is cut off (%s); its records are processed again", thread.number, why)

    def _kill_workers(self, thread: StreamThread) -> bool:
        pids = [pid for pid in self._book.take_pids(thread.number) if is_worker(pid)]
        kill_and_wait(pids, self._clock)
        return bool(pids)

    def _end_recoveries(self) -> None:
        if self._topic_watch is not None:
            self._topic_watch.close()
        if self._ends is not None:
            self._ends.close()
        if self._updater is not None:
            self._updater.close()
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)
        if self._end_sums is not None:
            self._end_sums.close()

    def _abort_cut_off(self) -> None:
        """End what killed workers have left open: others wait for open transactions."""
        if not self._cut_off or not self.config.exactly_once or self._directory is None:
            return
        try:
            if self._brokers_away():
                raise StoppedError("the brokers do not answer")
            fence_all(self.config.producer(), self._directory.transactional_ids, FENCE_S)
        except EverflowError as error:
            log.warning(
                "A transaction of the batch that was cut off may stay open: %s. It ends with the next start on this state folder, "
                "or by its time-out.",
                error,
            )

    def _commit_held(self) -> None:
        deferred = self._deferred
        if deferred is not None and self._member is not None:
            quietly(lambda: deferred.commit([]))

    def _leave(self) -> None:
        if self._member is not None:
            self._member.leave(LEAVE_WITHOUT_BROKER_S if self._brokers_away() else LEAVE_S, self._leave_group)
        if self._gate is not None:
            self._gate.close()

    def _disconnect(self) -> None:
        if self._admin is not None:
            self._admin.close()

    def _checkpoint(self) -> None:
        """Note in the stores how fresh they are; `StateDirectory.close` flushes them."""
        if self._keeper is not None:
            self._keeper.close()
        for task in self._running_tasks():
            close_stores(task.stores)


def _interrupt(error: BaseException) -> BaseException | None:
    """The interrupt behind an error: one that comes inside a client's C code surfaces as a SystemError."""
    seen: BaseException | None = error
    while seen is not None and isinstance(seen, Exception):
        seen = seen.__cause__ or seen.__context__
    return seen
