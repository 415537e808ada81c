"""Delays requests between a process and the brokers by virtual time that the seed draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from everflow_simulation.scheduler import Process, Scheduler

_T = TypeVar("_T")


@dataclass
class Network:
    """Delays in ms, one way."""

    scheduler: Scheduler
    random: Random
    delay_ms: tuple[float, float] = (0.2, 2.0)

    def delay(self) -> float:
        """One way."""
        return self.random.uniform(*self.delay_ms)

    def send(self, request: Callable[[], object]) -> None:
        """A request nobody waits for. It arrives even if its sender dies meanwhile."""
        self.scheduler.after(self.delay(), lambda: _ignore(request()))

    def call(
        self,
        kind: type[_T],
        request: Callable[[Callable[[_T], None]], None],
        answered: Callable[[_T], None],
        caller: Process,
    ) -> None:
        """A request with an answer of that kind, which a dead caller does not see."""

        def reply(answer: _T) -> None:
            self.scheduler.after(self.delay(), lambda: answered(answer), caller)

        self.scheduler.after(self.delay(), lambda: request(reply))


def _ignore(_: object) -> None:
    return None
