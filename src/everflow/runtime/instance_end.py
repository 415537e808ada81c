"""Ends an instance in one order, each step tried whatever became of those before."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from everflow.clock import Deadline
from everflow.errors import EverflowError, FatalError
from everflow.moves import ABOUT_ASSIGNMENT, moves, some
from everflow.retry import StoppedError, quietly
from everflow.runtime.drain import DRAIN_WITHOUT_BROKER_MS, drain_limit, drained_or_ended
from everflow.runtime.instance import Instance
from everflow.runtime.thread.stream_thread import StreamThread
from everflow.waits import waiting

log = logging.getLogger("everflow")

LOOK_S = 0.1
HURRY_MS = 1_000.0
"""For so long a batch in flight may still end by itself where there is no time, or nobody who could
take its commit."""
HANGS_MS = 30_000.0
"""A batch in flight that has not ended by then hangs: batches are planned to take a tenth of it,
and the watchdog of those that hang has ended before."""
GIVEN_UP_MS = 10_000.0
"""A thread whose batch was cut off ends within a moment, unless nobody knows of a worker to kill:
Spark has no free place for its job, say."""
STEP_MS = 30_000.0
"""A step that only waits for others, who were told to stop, takes a second or two."""
LEAVE_S, LEAVE_WITHOUT_BROKER_S = 5.0, 1.0


@dataclass(kw_only=True)
class InstanceEnd:
    """Ends an instance, started or not. ``leave_group`` as `GroupMember.leave` has it; ``drain_s``
    0: hand nothing over; ``hurry``: set by who does not want to wait; ``told``: what it is at, in
    words."""

    instance: Instance
    leave_group: bool | None
    drain_s: float
    hurry: threading.Event
    told: Callable[[str], None]
    cut_off: bool = False
    """Workers were killed in the middle of a batch: a transaction may be open."""

    def run(self) -> None:
        """Tasks are handed over -> batches end and commit -> offsets held back are committed ->
        stores are flushed -> the group is left. Raises the first failure, after the last step: a
        member that did not leave would keep its tasks from the others for as long as this process
        lives. So a step that waits for others has an end, too, and they are left behind."""
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
        }
        bounded = (self._end_loop, self._end_recoveries, self._checkpoint)
        for name, step in steps.items():
            self.told(name)
            try:
                with waiting(name):
                    if step in bounded:
                        self._bounded(name, step)
                    else:
                        step()
            except Exception as error:
                log.error(
                    "A step of the shutdown failed: %s",
                    error,
                    exc_info=not isinstance(error, EverflowError),
                )
                failures.append(error)
        if failures:
            raise failures[0]

    def _bounded(self, name: str, step: Callable[[], None]) -> None:
        """Does the step, which goes on by itself where it takes too long: FatalError, then."""
        failures: list[Exception] = []

        def work() -> None:
            try:
                step()
            except Exception as error:  # raised where the step is waited for
                failures.append(error)

        instance = self.instance
        running = instance.ports.spawn("everflow-shutdown-step", work)
        limit = Deadline(instance.clock, STEP_MS)
        while not running.join(LOOK_S):
            if limit.expired():
                raise FatalError(
                    f"{name[0].upper()}{name[1:]} has not ended within {STEP_MS / 1000:g} s: the "
                    f"end goes on without it, and the group is left."
                )
        if failures:
            raise failures[0]

    def _drain(self) -> None:
        """D8: go on processing until every task has gone to a hot copy elsewhere, or nobody could
        take one."""
        instance, member = self.instance, self.instance.member
        if self.drain_s <= 0 or instance.stop.is_set() or member.metadata().generation < 0:
            return
        limit = drain_limit(self.drain_s, instance.settings.drain_timeout_ms / 1000)
        moves.info(
            "Handing over the tasks, for %.0f s at most (%s)",
            self.drain_s,
            limit,
            extra=ABOUT_ASSIGNMENT,
        )
        deadline = Deadline(instance.clock, self.drain_s * 1000)
        member.drain(self.leave_group)
        ended: dict[str, Callable[[], bool]] = {
            f"{self.drain_s:.0f} s are over ({limit})": deadline.expired,
            "asked to stop now": self.hurry.is_set,
            "evicted from the group": lambda: member.metadata().generation < 0,
            "a stream thread has ended": lambda: any(thread.join(0) for thread in instance.threads),
            "the brokers do not answer": self._brokers_away,
        }
        reason = drained_or_ended(member.await_drained, ended)
        if reason is not None:
            here = some(sorted(instance.book.owned()))
            moves.warning("Not all tasks were handed over: %s. Still here: %s", reason, here)

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
            # No batch runs any more. Idle workers hold a producer that the next instance on this
            # folder fences; end them.
            self._kill_workers(thread)
        if left:
            raise FatalError(
                f"Stream threads {some(thread.number for thread in left)} have not ended within "
                f"{GIVEN_UP_MS / 1000:g} s after their batches were cut off: no worker of theirs "
                "is known (has Spark a free place for their jobs?), or they wait for something "
                "else. The end goes on without them; their batches are refused by the commit "
                "gate, and their records are processed again."
            )

    def _left_of(self, threads: Sequence[StreamThread]) -> Sequence[StreamThread]:
        """Waits until their batches in flight have ended; those of which one has not. By force
        where nobody wants to wait, no broker could take the commit, or a batch hangs: that is a
        worker's crash, which the next recovery of these tasks makes up for (D6)."""
        clock = self.instance.clock
        hangs, since_ms = Deadline(clock, HANGS_MS), None
        given_up: Deadline | None = None
        while threads := [thread for thread in threads if not thread.join(LOOK_S)]:
            why = self._why_cut_off(hangs)
            if why is None:
                continue
            now_ms = clock.monotonic_ms()
            since_ms = now_ms if since_ms is None else since_ms
            if now_ms - since_ms < HURRY_MS and not hangs.expired():
                continue
            given_up = given_up or Deadline(clock, GIVEN_UP_MS)
            over = given_up.expired()
            for thread in threads:
                if over:
                    # Before the workers are killed: one that comes after that is sent away.
                    self.instance.book.abandon(thread.number)
                self._cut_off(thread, why)
            if over:
                break
        return threads

    def _why_cut_off(self, hangs: Deadline) -> str | None:
        """Why batches in flight may not end by themselves."""
        if self.hurry.is_set():
            return "asked to stop now"
        if hangs.expired():
            return f"it has not ended within {HANGS_MS / 1000:g} s"
        return "the brokers do not answer" if self._brokers_away() else None

    def _cut_off(self, thread: StreamThread, why: str) -> None:
        thread.cut_off = True
        if self._kill_workers(thread):
            self.cut_off = True
            moves.info(
                "Stream thread %d: its batch is cut off (%s); its records are processed again",
                thread.number,
                why,
            )

    def _kill_workers(self, thread: StreamThread) -> bool:
        ports = self.instance.ports
        pids = [pid for pid in self.instance.book.take_pids(thread.number) if ports.is_worker(pid)]
        ports.kill_workers(thread.number, pids)
        return bool(pids)

    def _end_recoveries(self) -> None:
        instance = self.instance
        instance.ports.end_polls()
        instance.ends.close()
        instance.updater.close()
        instance.global_tables.close()
        for pool in (instance.restores, instance.tails, instance.fencing):
            pool.shutdown(wait=True, cancel_futures=True)

    def _abort_cut_off(self) -> None:
        """End what killed workers have left open: others wait for open transactions."""
        if not self.cut_off or not self.instance.settings.exactly_once:
            return
        try:
            if self._brokers_away():
                raise StoppedError("the brokers do not answer")
            self.instance.ports.fence(own=True)
        except EverflowError as error:
            log.warning(
                "A transaction of the batch that was cut off may stay open: %s. It ends with the "
                "next start on this state folder, "
                "or by its time-out.",
                error,
            )

    def _commit_held(self) -> None:
        quietly(lambda: self.instance.deferred.commit([]))

    def _checkpoint(self) -> None:
        self.instance.ports.checkpoint(self.instance.running_tasks())

    def _leave(self) -> None:
        self.instance.member.leave(
            LEAVE_WITHOUT_BROKER_S if self._brokers_away() else LEAVE_S, self.leave_group
        )
