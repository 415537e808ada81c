"""Looks at the instances, decides, starts and ends: until it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from everflow.autoscale.decision import InstanceSeen, change, rest_s
from everflow.autoscale.processes import start_instance
from everflow.errors import FatalError

LOOK_EVERY_S = 2.0
END_S = 120.0
MOST_FAILURES = 3
"""Instances that ended by themselves, one after the other, before the autoscaler gives up."""
GOOD_AFTER_S = 60.0
"""One that ran so long was no failure of the start."""


class Instance(Protocol):
    """What a loop needs of an instance: a process of this machine, or a place in a cluster."""

    @property
    def number(self) -> int:
        """Its place: a number that ended is used again, with its state."""

    @property
    def where(self) -> str:
        """For people: where it runs."""

    @property
    def ending(self) -> bool:
        """It was told to end."""

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""

    def seen(self) -> InstanceSeen:
        """As it was seen last."""

    def end(self, for_good: bool) -> None:
        """Tell it to end in order, and return at once. ``for_good``: others take its tasks;
        otherwise a static member's wait for its return."""

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within ``timeout_s``."""

    def kill(self) -> None:
        """At once."""

    def tail(self) -> str:
        """The last lines of what it said."""


@dataclass(kw_only=True)
class Autoscaler:
    """Owned by the thread that calls `run`; others may only call `resize`. ``options``: of
    `everflow run`; ``say``: gets a line for each thing that happens; ``looked``: is told of the
    instances after each look."""

    target: str
    options: Sequence[str]
    folder: Path
    least: int
    most: int
    say: Callable[[str], None]
    every_s: float = LOOK_EVERY_S
    start: Callable[[int, str, Sequence[str], Path], Instance] = start_instance
    looked: Callable[[Sequence[Instance]], None] = lambda _: None
    instances: list[Instance] = field(default_factory=list)
    clock: Callable[[], float] = time.monotonic
    _failures: int = 0
    _rests_until_s: float = 0.0
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

    def resize(self, least: int, most: int) -> None:
        """From the next look on. Any thread."""
        self.least, self.most = least, most

    def step(self) -> None:
        """One look, and what follows."""
        self._collect()
        wanted = change([one.seen() for one in self.instances], self.least, self.most)
        if self.clock() >= self._rests_until_s:
            for _ in range(max(0, wanted)):
                self._start_one()
        if wanted < 0:
            last = max(
                (one for one in self.instances if not one.ending), key=lambda one: one.number
            )
            self.say(f"instance {last.number} ends: {self._count() - 1} are enough")
            last.end(for_good=True)
        self.looked(self.instances)

    def _count(self) -> int:
        return sum(1 for one in self.instances if not one.ending)

    def _start_one(self) -> None:
        number = next(n for n in range(1, 1_000) if n not in {one.number for one in self.instances})
        made = self.start(number, self.target, self.options, self.folder / f"instance-{number}")
        self.instances.append(made)
        self._started_s[number] = self.clock()
        self.say(f"instance {number} starts ({made.where})")

    def _collect(self) -> None:
        """Forget those that have ended."""
        for one in [one for one in self.instances if one.code is not None]:
            self.instances.remove(one)
            if one.ending:
                self.say(f"instance {one.number} has ended")
                continue
            ran_s = self.clock() - self._started_s.get(one.number, 0.0)
            self._failures = 1 if ran_s > GOOD_AFTER_S else self._failures + 1
            self.say(f"instance {one.number} ended by itself (exit code {one.code})")
            if self._failures >= MOST_FAILURES:
                self._give_up_or_rest(one)

    def _give_up_or_rest(self, failed: Instance) -> None:
        """As long as others do their work, one that fails again and again (its host is ill) is no
        reason to end them."""
        if not any(one.seen().settled for one in self.instances if one is not failed):
            raise FatalError(
                f"{self._failures} instances ended by themselves, one after the other. The last "
                f"one said ({failed.where}):\n{failed.tail()}"
            )
        rest = rest_s(self._failures - MOST_FAILURES)
        self._rests_until_s = self.clock() + rest
        self.say(
            f"{self._failures} instances ended by themselves, one after the other; the next one "
            f"starts in {rest:g} s. The last one said ({failed.where}):\n{failed.tail()}"
        )

    def _end_all(self) -> None:
        running = [one for one in self.instances if one.code is None]
        if running:
            self.say(f"stopping: {len(running)} instances end in order")
        for one in running:
            one.end(for_good=False)
        deadline = self.clock() + END_S
        for one in running:
            if not one.wait(max(0.1, deadline - self.clock())):
                self.say(f"instance {one.number} does not end: it is killed")
                one.kill()
                one.wait(10.0)
