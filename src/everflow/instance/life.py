"""Starts an instance once and ends it once; any thread may ask for either, at any moment. An end
during the start sets the flag that every wait of the start checks, and waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from everflow.clock import Clock, Deadline, Spawn
from everflow.errors import EverflowError, FatalError, without_history
from everflow.instance.client_state import STOPPING, ClientState, StateMachine
from everflow.instance.instance import Instance
from everflow.instance.thread.stream_thread import StreamThread
from everflow.logs import ABOUT_ASSIGNMENT, rebalance_log, some
from everflow.retry import StoppedError, quietly, waiting

log = logging.getLogger("everflow")

START_GIVES_UP_MS = 30_000.0
START_POLL_MS = 1_000.0


class InstanceLife:
    """See the module. ``ended``: called once, behind the end, on its thread."""

    def __init__(self, clock: Clock, spawn: Spawn, ended: Callable[[], None]) -> None:
        self._clock, self._spawn, self._ended = clock, spawn, ended
        self.states = StateMachine()
        self.error: EverflowError | None = None
        """Why it is in state ERROR, or what its end could not do."""
        self.instance: Instance | None = None
        """Once the cluster was checked, for good."""
        self.opened = ExitStack()
        """Closes at the end, last first, what a start has opened, also after a failed start."""
        self.stop = threading.Event()
        self.hurry = threading.Event()
        """Set to end the draining and cut off batches in flight."""
        self.ending = ""
        self._lock = threading.Lock()
        self._start_over = threading.Event()
        self._start_over.set()
        self._end_over = threading.Event()

    def start(self, begin: Callable[[], None]) -> BaseException | None:
        """Run ``begin`` in state REBALANCING. Returns its error, unless it was closed meanwhile."""
        with self._lock:
            if not self.states.to(ClientState.REBALANCING):
                return None  # closed this moment
            self._start_over.clear()
        try:
            begin()
        except (Exception, KeyboardInterrupt, SystemExit) as error:
            self._start_over.set()
            return self._start_failed(error)
        finally:
            self._start_over.set()
        return None

    def close(self, leave_group: bool | None, drain_s: float) -> None:
        with self._lock:
            never_ran = self.states.state is ClientState.CREATED
            if never_ran:
                self.states.to(ClientState.PENDING_SHUTDOWN)
                self.states.to(ClientState.NOT_RUNNING)
        if never_ran:
            self._ended()
        else:
            self._begin_end(ClientState.PENDING_SHUTDOWN, leave_group, drain_s)

    def fail(self, error: EverflowError) -> None:
        """The instance cannot go on: begin to end it, in state ERROR, unless it ends already."""
        if self.states.state not in STOPPING:
            self.error = self.error or without_history(error)
            self._begin_end(ClientState.PENDING_ERROR)

    def _start_failed(self, error: BaseException) -> BaseException | None:
        shown: BaseException | None = _interrupt(error) or error
        if not isinstance(shown, Exception):  # Ctrl-C
            self._begin_end(ClientState.PENDING_SHUTDOWN)
        elif self.stop.is_set():  # somebody else has asked to stop, or another thread has failed
            shown = self.error
        else:
            self.error = (
                error
                if isinstance(error, EverflowError)
                else EverflowError(f"The start failed: {error!r}")
            )
            self._begin_end(ClientState.PENDING_ERROR)
        self._clock.wait(self._end_over, START_GIVES_UP_MS)
        return shown

    def _begin_end(
        self, state: ClientState, leave_group: bool | None = None, drain_s: float = 0.0
    ) -> None:
        with self._lock:
            if self.states.to(state):  # the first of all who ask
                self._spawn("everflow-shutdown", lambda: self._end(leave_group, drain_s))

    def _end(self, leave_group: bool | None, drain_s: float) -> None:
        failed = self.states.state is ClientState.PENDING_ERROR
        if not self._start_over.is_set():
            self.ending = "waiting for its start to give up"
            self.stop.set()
            while not self._clock.wait(self._start_over, START_POLL_MS):
                pass
        try:
            self._end_all(leave_group, drain_s)
        except Exception as error:  # the state must still say that it is over
            defect = not isinstance(error, EverflowError)
            log.error("The shutdown failed: %s", error, exc_info=defect)
            if not isinstance(error, EverflowError):
                error = EverflowError(f"The shutdown did not go through: {error!r}")
            self.error = self.error or without_history(error)
        self.states.to(ClientState.ERROR if failed else ClientState.NOT_RUNNING)
        self._ended()
        self._end_over.set()

    def _end_all(self, leave_group: bool | None, drain_s: float) -> None:
        with self.opened:
            try:
                if self.instance is not None:
                    InstanceEnd(self, self.instance, leave_group, drain_s).run()
            finally:
                self.ending = "closing its connections"


def _interrupt(error: BaseException) -> BaseException | None:
    """The interrupt behind an error: inside a client's C code it surfaces as a SystemError."""
    seen: BaseException | None = error
    while seen is not None and isinstance(seen, Exception):
        seen = seen.__cause__ or seen.__context__
    return seen


# --- the shutdown ---------------------------------------------------------------------------------

POLL_S = 0.1
HURRY_MS = 1_000.0
"""For so long a batch may end by itself after `hurry`, or while no broker takes its commit."""
HANGS_MS = 30_000.0
"""Then a batch hangs: batches are planned to take a tenth of it."""
CUT_OFF_MS = 10_000.0
"""A thread whose batch was cut off ends within a moment, unless none of its workers is known."""
STEP_MS = 30_000.0
LEAVE_S, LEAVE_WITHOUT_BROKER_S = 5.0, 1.0


@dataclass
class InstanceEnd:
    """Ends an instance, started or not. ``leave_group``: see `GroupMember.leave`; ``drain_s`` 0: no
    task is handed over."""

    life: InstanceLife
    instance: Instance
    leave_group: bool | None
    drain_s: float
    cut_off: bool = False
    """Workers were killed in the middle of a batch: a transaction may be open."""

    def run(self) -> None:
        """Try each step whatever the others did, for a limited time. Raises the first failure."""
        failures: list[Exception] = []
        steps = {
            "handing the tasks over": self._drain,
            "finishing the events of its loop": self._end_loop,
            "waiting for the batches in flight": self._end_threads,
            "waiting for restores and copies to stop": self._end_recoveries,
            "ending the transaction of a batch that was cut off": self._abort_cut_off,
            "committing offsets": lambda: quietly(lambda: self.instance.deferred.commit([])),
            "closing the stores": self._checkpoint,
            "leaving the group": self._leave,
        }
        bounded = (self._end_loop, self._end_recoveries, self._checkpoint)
        for name, step in steps.items():
            self.life.ending = name
            try:
                with waiting(name):
                    if step in bounded:
                        self._bounded(name, step)
                    else:
                        step()
            except Exception as error:
                defect = not isinstance(error, EverflowError)
                log.error("A step of the shutdown failed: %s", error, exc_info=defect)
                failures.append(error)
        if failures:
            raise failures[0]

    def _bounded(self, name: str, step: Callable[[], None]) -> None:
        """Run a step with a time limit; FatalError after it, and the step goes on by itself."""
        failures: list[Exception] = []

        def work() -> None:
            try:
                step()
            except Exception as error:  # raised where the step is waited for
                failures.append(error)

        instance = self.instance
        running = instance.ports.spawn("everflow-shutdown-step", work)
        limit = Deadline(instance.clock, STEP_MS)
        while not running.join(POLL_S):
            if limit.expired():
                raise FatalError(
                    f"{name[0].upper()}{name[1:]} has not ended within {STEP_MS / 1000:g} s: the "
                    f"shutdown goes on without it, and the instance leaves the group."
                )
        if failures:
            raise failures[0]

    def _drain(self) -> None:
        """D8: go on processing until every task is handed over, or none could take it."""
        instance, member = self.instance, self.instance.member
        if self.drain_s <= 0 or instance.stop.is_set() or member.metadata().generation < 0:
            return
        limit = drain_limit(self.drain_s, instance.settings.drain_timeout_ms / 1000)
        text = "Handing over the tasks, for %.0f s at most (%s)"
        rebalance_log.info(text, self.drain_s, limit, extra=ABOUT_ASSIGNMENT)
        deadline = Deadline(instance.clock, self.drain_s * 1000)
        member.drain(self.leave_group)
        ended: dict[str, Callable[[], bool]] = {
            f"{self.drain_s:.0f} s are over ({limit})": deadline.expired,
            "asked to stop now": self.life.hurry.is_set,
            "evicted from the group": lambda: member.metadata().generation < 0,
            "a stream thread has ended": lambda: any(thread.join(0) for thread in instance.threads),
            "the brokers do not answer": self._brokers_away,
        }
        reason = drained_or_ended(member.await_drained, ended)
        if reason is not None:
            here = some(sorted(instance.book.owned()))
            rebalance_log.warning(
                "Not all tasks were handed over: %s. Not handed over: %s", reason, here
            )

    def _brokers_away(self) -> bool:
        return self.instance.ends.failing_ms() > DRAIN_WITHOUT_BROKER_MS

    def _end_loop(self) -> None:
        self.instance.loop.end()
        self.instance.manager.close()

    def _end_threads(self) -> None:
        threads = list(self.instance.threads)
        for thread in threads:
            thread.stop()
        self.instance.stop.set()
        left = self._left_of(threads)
        for thread in threads:
            # No batch runs. Idle workers hold a producer, which the folder's next instance fences.
            self._kill_workers(thread)
        if left:
            raise FatalError(
                f"Stream threads {some(thread.number for thread in left)} have not ended within "
                f"{CUT_OFF_MS / 1000:g} s after their batches were cut off: none of their workers "
                "is known (has Spark a free slot for their jobs?), or they wait for others. "
                "The shutdown goes on without them; the commit gate refuses their batches, and "
                "their records are processed again."
            )

    def _left_of(self, threads: Sequence[StreamThread]) -> Sequence[StreamThread]:
        """Wait for the batches in flight, or cut them off (D6); returns threads that still run."""
        clock = self.instance.clock
        hangs, since_ms = Deadline(clock, HANGS_MS), None
        cut_off_limit: Deadline | None = None
        while threads := [thread for thread in threads if not thread.join(POLL_S)]:
            why = self._why_cut_off(hangs)
            if why is None:
                continue
            now_ms = clock.monotonic_ms()
            since_ms = now_ms if since_ms is None else since_ms
            if now_ms - since_ms < HURRY_MS and not hangs.expired():
                continue
            cut_off_limit = cut_off_limit or Deadline(clock, CUT_OFF_MS)
            over = cut_off_limit.expired()
            for thread in threads:
                if over:
                    # Before the workers are killed: later ones are refused.
                    self.instance.book.abandon(thread.number)
                self._cut_off(thread, why)
            if over:
                break
        return threads

    def _why_cut_off(self, hangs: Deadline) -> str | None:
        if self.life.hurry.is_set():
            return "asked to stop now"
        if hangs.expired():
            return f"it has not ended within {HANGS_MS / 1000:g} s"
        return "the brokers do not answer" if self._brokers_away() else None

    def _cut_off(self, thread: StreamThread, why: str) -> None:
        thread.cut_off = True
        if self._kill_workers(thread):
            self.cut_off = True
            text = "Stream thread %d: its batch is cut off (%s); its records are processed again"
            rebalance_log.info(text, thread.number, why)

    def _kill_workers(self, thread: StreamThread) -> bool:
        ports = self.instance.ports
        pids = [pid for pid in self.instance.book.take_pids(thread.number) if ports.is_worker(pid)]
        ports.kill_workers(thread.number, pids)
        return bool(pids)

    def _end_recoveries(self) -> None:
        instance = self.instance
        instance.ports.end_polls()
        instance.ends.close()
        if instance.group_times is not None:
            instance.group_times.close()
        instance.updater.close()
        instance.global_tables.close()
        for pool in (instance.restores, instance.tails, instance.fencing):
            pool.shutdown(wait=True, cancel_futures=True)

    def _abort_cut_off(self) -> None:
        """End the transactions of killed workers: readers wait for open transactions."""
        if not self.cut_off or not self.instance.settings.exactly_once:
            return
        try:
            if self._brokers_away():
                raise StoppedError("the brokers do not answer")
            self.instance.ports.fence(own=True)
        except EverflowError as error:
            log.warning(
                "A transaction of the batch that was cut off may stay open: %s. The next start on "
                "this state folder ends it, or its time-out.",
                error,
            )

    def _checkpoint(self) -> None:
        self.instance.ports.checkpoint(self.instance.running_tasks())

    def _leave(self) -> None:
        self.instance.member.leave(
            LEAVE_WITHOUT_BROKER_S if self._brokers_away() else LEAVE_S, self.leave_group
        )


# --- handing tasks over (D8) ----------------------------------------------------------------------

DRAIN_SHARE = 0.8
"""The part of the time-out of `close` for draining; the rest is for ending."""
DRAIN_WITHOUT_BROKER_MS = 3_000.0


def leaves(leave_group: bool | None, *, static: bool) -> bool:
    """True if a member that ends leaves its group (KIP-812); by default a static one stays."""
    return not static if leave_group is None else leave_group


def drain_limit(drain_s: float, drain_timeout_s: float) -> str:
    """What ends a drain: ``drain.timeout.ms``, or a part of the time-out of `close` if less."""
    if drain_s >= drain_timeout_s:
        return "drain.timeout.ms"
    return f"{DRAIN_SHARE:.0%} of close(timeout={drain_s / DRAIN_SHARE:g})"


def drained_or_ended(
    await_drained: Callable[[float], bool], ended: Mapping[str, Callable[[], bool]]
) -> str | None:
    """Wait until ``await_drained`` (seconds) returns True; returns a reason that applies before."""
    while not await_drained(POLL_S):
        for reason, applies in ended.items():
            if applies():
                return reason
    return None
