"""A thread pool on fibers: first come, first served, a bounded number at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from everflow_simulation.scheduler import Process, Scheduler


@dataclass(kw_only=True)
class FiberPool:
    """`concurrent.futures.ThreadPoolExecutor` of one simulated process."""

    scheduler: Scheduler
    process: Process
    name: str
    size: int
    _waiting: deque[Callable[[], None]] = field(default_factory=deque)
    _busy: int = 0

    def submit(self, work: Callable[[], None]) -> None:
        """Run it as soon as one of the pool's fibers is free."""
        self._waiting.append(work)
        if self._busy < self.size:
            self._busy += 1
            self.scheduler.spawn(self.process, self.name, self._serve)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """What waits is given up; returns when what runs has ended."""
        self._waiting.clear()
        while self._busy and self.scheduler.current is not None:
            self.scheduler.current.park(10.0, None)

    def _serve(self) -> None:
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._busy -= 1
