"""The number of instances that the application should have, with hysteresis (note 049). Pure.

An instance sees its own tasks: the group's balance makes it one of ``members`` that are about as
busy, so that each computes a number for the whole group, and the autoscaler takes the largest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple


class Load(NamedTuple):
    """The state of an instance and its group at one moment.

    ``busy``: mean share of the last 30 s in which its stream threads ran batches (0 to 1); ``lag``:
    records that wait (None: not known); ``rate``: records/s; ``restoring``: an active task does not
    run yet; ``members``: instances in the group; ``tasks``: active ones of the application.
    """

    busy: float
    lag: float | None
    rate: float
    restoring: bool
    members: int
    tasks: int


@dataclass(frozen=True, kw_only=True)
class ScalingRules:
    """``target``: aimed share of time in batches; ``drain_s``: time to work off a backlog, besides
    what arrives; ``up_after_s``, ``down_after_s``: how long a number must last: moves cost."""

    target: float = 0.7
    drain_s: float = 120.0
    up_after_s: float = 15.0
    down_after_s: float = 180.0
    least: int = 1


def wanted(load: Load, rules: ScalingRules) -> int | None:
    """What this moment asks for; None: unknown, or tasks are restored (more would restore more)."""
    if load.restoring or load.lag is None or math.isnan(load.lag):
        return None
    share = load.busy / rules.target
    if load.rate > 0 and load.busy > 0:
        able = load.rate / max(load.busy, 0.01)
        share += load.lag / able / rules.drain_s
    elif load.lag > 0:
        return None  # it has not begun
    most = max(rules.least, load.tasks)
    # A little above a whole number is that number: 2.04 instances are two.
    return min(most, max(rules.least, math.ceil(load.members * share - 0.1)))


@dataclass(kw_only=True)
class DesiredInstances:
    """Keeps a number until another was computed for long enough. One thread; monotonic ms."""

    rules: ScalingRules = field(default_factory=ScalingRules)
    instances: int | None = None
    _asked: tuple[bool, float, int] | None = None
    """For more (or fewer), since when, and how many."""

    def update(self, load: Load, now_ms: float) -> int:
        """The number now. It begins with the instances that there are. Up it goes to the smallest
        that was asked for during the time, down to the largest: a peak is no trend."""
        most = max(self.rules.least, load.tasks, load.members)
        current = self.instances = (
            load.members if self.instances is None else min(self.instances, most)
        )
        now = wanted(load, self.rules)
        if now is None or now == current:
            self._asked = None
            return current
        up = now > current
        if self._asked is None or self._asked[0] != up:
            self._asked = up, now_ms, now
        _, since_ms, number = self._asked
        number = min(number, now) if up else max(number, now)
        self._asked = up, since_ms, number
        after_s = self.rules.up_after_s if up else self.rules.down_after_s
        if now_ms - since_ms >= after_s * 1000:
            self.instances, self._asked = number, None
        return self.instances
