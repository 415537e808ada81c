"""Looks at the instances, decides, starts and ends: until it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everflow.autoscale.decision import change
from everflow.autoscale.processes import AutoscaledInstance, start_instance
from everflow.errors import FatalError

LOOK_EVERY_S = 2.0
END_S = 120.0
MOST_FAILURES = 3
"""Instances that ended by themselves, one after the other, before the autoscaler gives up."""
GOOD_AFTER_S = 60.0
"""One that ran so long was no failure of the start."""


@dataclass(kw_only=True)
class Autoscaler:
    """Owned by the thread that calls `run`. ``options``: of `everflow run`; ``say``: gets a line
    for each thing that happens."""

    target: str
    options: Sequence[str]
    folder: Path
    least: int
    most: int
    say: Callable[[str], None]
    every_s: float = LOOK_EVERY_S
    start: Callable[[int, str, Sequence[str], Path], AutoscaledInstance] = start_instance
    instances: list[AutoscaledInstance] = field(default_factory=list)
    _failures: int = 0
    _started_s: dict[int, float] = field(default_factory=dict)

    def run(self, stop: threading.Event) -> None:
        """Until ``stop`` is set; then all instances end in order. FatalError where they end by
        themselves again and again."""
        try:
            while True:
                self.step()
                if stop.wait(self.every_s):
                    return
        finally:
            self._end_all()

    def step(self) -> None:
        """One look, and what follows."""
        self._collect()
        wanted = change([one.seen() for one in self.instances], self.least, self.most)
        for _ in range(max(0, wanted)):
            self._start_one()
        if wanted < 0:
            last = max(
                (one for one in self.instances if not one.ending), key=lambda one: one.number
            )
            self.say(f"instance {last.number} ends: {self._count() - 1} are enough")
            last.end()

    def _count(self) -> int:
        return sum(1 for one in self.instances if not one.ending)

    def _start_one(self) -> None:
        number = next(n for n in range(1, 1_000) if n not in {one.number for one in self.instances})
        made = self.start(number, self.target, self.options, self.folder / f"instance-{number}")
        self.instances.append(made)
        self._started_s[number] = time.monotonic()
        self.say(
            f"instance {number} starts (process {made.process.pid}), watched at "
            f"http://{made.address}/status, its log: {made.log}"
        )

    def _collect(self) -> None:
        """Forget those that have ended."""
        for one in [one for one in self.instances if one.code is not None]:
            self.instances.remove(one)
            if one.ending:
                self.say(f"instance {one.number} has ended")
                continue
            ran_s = time.monotonic() - self._started_s.get(one.number, 0.0)
            self._failures = 1 if ran_s > GOOD_AFTER_S else self._failures + 1
            self.say(f"instance {one.number} ended by itself (exit code {one.code})")
            if self._failures >= MOST_FAILURES:
                raise FatalError(
                    f"{self._failures} instances ended by themselves, one after the other. The "
                    f"last one said ({one.log}):\n{one.tail()}"
                )

    def _end_all(self) -> None:
        running = [one for one in self.instances if one.code is None]
        if running:
            self.say(f"stopping: {len(running)} instances end in order")
        for one in running:
            one.end()
        deadline = time.monotonic() + END_S
        for one in running:
            try:
                one.process.wait(max(0.1, deadline - time.monotonic()))
            except Exception:
                self.say(f"instance {one.number} does not end: it is killed")
                one.kill()
                one.process.wait(10)
