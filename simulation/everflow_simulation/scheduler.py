"""Virtual time: a queue of events, processes, and code that waits while no time passes outside.

Everything runs one piece at a time, in the order of (virtual time, number of the event), so one
seed gives one history (I8). Code that blocks (recovery, a stream thread's batch) runs unchanged on
a `Fiber`: an OS thread that only ever runs while the scheduler waits for it, and that hands back
when the code waits on a `SimulatedClock`.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


class SimulationError(Exception):
    """The simulation itself was used wrongly, or got into a state it does not have."""


class FiberKilledError(BaseException):
    """Ends the code of a killed process where it waits; a BaseException, as a SIGKILL is not caught
    either."""


@dataclass(eq=False)
class Process:
    """One operating-system process: it may be paused (its events wait) or dead (they are
    dropped)."""

    name: str
    alive: bool = True
    paused_until_ms: float = 0.0
    wall_offset_ms: float = 0.0
    parked: list[Fiber] = field(default_factory=list)


@dataclass(eq=False)
class Timer:
    """An event in the queue; ``cancel`` takes it out."""

    action: Callable[[], None]
    owner: Process | None
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Fiber:
    """Blocking code of one process. Only the scheduler resumes it; only its own code parks it."""

    def __init__(
        self, scheduler: Scheduler, owner: Process, name: str, target: Callable[[], None]
    ) -> None:
        self.owner, self.name = owner, name
        self.event: threading.Event | None = None
        self.timer: Timer | None = None
        self.done = False
        self._scheduler = scheduler
        self._target = target
        self._go = threading.Lock()
        self._go.acquire()
        self._killed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    def resume(self) -> None:
        """Run until the code waits again or ends. On the scheduler's thread only."""
        if self.done:
            return
        self.event, self.timer = None, None
        if self in self.owner.parked:
            self.owner.parked.remove(self)
        previous, self._scheduler.current = self._scheduler.current, self
        if self._started:
            self._go.release()
        else:
            self._started = True
            self._thread.start()
        self._scheduler.back.acquire()
        self._scheduler.current = previous
        if self._scheduler.fiber_error is not None:
            error, self._scheduler.fiber_error = self._scheduler.fiber_error, None
            raise error

    def park(self, timeout_ms: float, event: threading.Event | None) -> None:
        """Wait for ``event`` or for virtual time to pass. On the fiber's own thread only."""
        self.event = event
        self.timer = self._scheduler.after(timeout_ms, self.resume, self.owner)
        self.owner.parked.append(self)
        self._scheduler.back.release()
        self._go.acquire()
        if self._killed:
            raise FiberKilledError(self.name)

    def kill(self) -> None:
        """End the code where it waits."""
        if self.timer is not None:
            self.timer.cancel()
        if not self._started:
            self.done = True
        self._killed = True
        self.resume()

    def _run(self) -> None:
        try:
            self._target()
        except FiberKilledError:
            pass
        except BaseException as error:
            self._scheduler.fiber_error = error
        finally:
            self.done = True
            self._scheduler.back.release()


class Scheduler:
    """The queue of events and virtual time, in ms from 0."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self.current: Fiber | None = None
        self.back = threading.Lock()
        self.back.acquire()
        self.fiber_error: BaseException | None = None
        self.handled = 0
        """Events so far."""
        self._queue: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()
        self._fibers: list[Fiber] = []

    def at(self, time_ms: float, action: Callable[[], None], owner: Process | None = None) -> Timer:
        """Run ``action`` at a virtual time (now, if that has passed)."""
        timer = Timer(action, owner)
        heapq.heappush(self._queue, (max(time_ms, self.now_ms), next(self._numbers), timer))
        return timer

    def after(
        self, delay_ms: float, action: Callable[[], None], owner: Process | None = None
    ) -> Timer:
        """Run ``action`` after a delay."""
        return self.at(self.now_ms + max(0.0, delay_ms), action, owner)

    def spawn(self, owner: Process, name: str, target: Callable[[], None]) -> Fiber:
        """Blocking code of a process; it begins with an event of its own."""
        fiber = Fiber(self, owner, name, target)
        self._fibers = (
            [other for other in self._fibers if not other.done]
            if len(self._fibers) > 4096
            else self._fibers
        )
        self._fibers.append(fiber)
        self.after(0, fiber.resume, owner)
        return fiber

    def step(self, limit_ms: float = math.inf) -> bool:
        """The next event not after ``limit_ms``; False when there is none."""
        while self._queue and self._queue[0][0] <= limit_ms:
            time_ms, number, timer = heapq.heappop(self._queue)
            owner = timer.owner
            if timer.cancelled or (owner is not None and not owner.alive):
                continue
            if owner is not None and owner.paused_until_ms > time_ms:
                heapq.heappush(self._queue, (owner.paused_until_ms, number, timer))
                continue
            self.now_ms = time_ms
            self.handled += 1
            timer.action()
            if owner is not None and owner.parked:
                self.wake(owner)
            return True
        return False

    def run_until(self, time_ms: float, check: Callable[[], object] = lambda: None) -> None:
        """All events up to a virtual time, which is then now; ``check`` is called after each."""
        while self.step(time_ms):
            check()
        self.now_ms = max(self.now_ms, time_ms)

    def wake(self, owner: Process) -> None:
        """Bring back what waits for an event that is set now. Events are set by the process's own
        code, so it is enough to check after each piece of it."""
        for fiber in list(owner.parked):
            if (
                fiber.event is not None
                and fiber.event.is_set()
                and fiber.timer is not None
                and not fiber.timer.cancelled
            ):
                fiber.timer.cancel()
                fiber.event = None
                fiber.timer = self.after(0, fiber.resume, owner)

    def kill(self, owner: Process) -> None:
        """SIGKILL: nothing of the process runs any more."""
        owner.alive = False
        for fiber in self._fibers:
            if fiber.owner is owner and not fiber.done:
                fiber.kill()
        self._fibers = [fiber for fiber in self._fibers if not fiber.done]

    def close(self) -> None:
        """End all code that still waits."""
        for fiber in self._fibers:
            fiber.owner.alive = False
            fiber.kill()
        self._fibers.clear()
        self._queue.clear()


@dataclass
class SimulatedClock:
    """`everflow.clock.Clock` of one process: its wall clock may jump, waiting costs virtual time
    only."""

    scheduler: Scheduler
    process: Process
    epoch_ms: float = 1_700_000_000_000.0

    def now_ms(self) -> int:
        return int(self.epoch_ms + self.scheduler.now_ms + self.process.wall_offset_ms)

    def monotonic_ms(self) -> float:
        return self.scheduler.now_ms

    def wait(self, event: threading.Event, timeout_ms: float) -> bool:
        if not event.is_set():
            self.park(timeout_ms, event)
        return event.is_set()

    def park(self, timeout_ms: float, event: threading.Event | None = None) -> None:
        """Let virtual time pass. SimulationError outside of a fiber: such code must not wait."""
        fiber = self.scheduler.current
        if fiber is None:
            raise SimulationError("code that runs on no fiber cannot wait")
        fiber.park(timeout_ms, event)
