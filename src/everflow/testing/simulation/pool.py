"""A thread pool on fibers: first come, first served, a bounded number at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from everflow.testing.simulation.scheduler import Process, Scheduler


@dataclass
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

    def _serve(self) -> None:
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            self._busy -= 1
