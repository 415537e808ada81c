"""What the demo with two instances measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everflow.records import TaskId


@dataclass(frozen=True, kw_only=True)
class Moves:
    """What was seen. Times in s; pauses: the longest time between two committed batches of a task
    while records waited.

    Attributes:
        rebalances: completed ones, from the second instance's start to its end.
        join_s: from the start of its process until it had its share.
        leave_s: from being told to stop until the process had ended and the first one ran
        everything.
        before: pauses while the first instance was alone; meanwhile: from the second one's start to
        its end.
        moved: the tasks that ran on both.
    """

    instances: int
    rebalances: int
    join_s: float
    leave_s: float
    before: Mapping[TaskId, float]
    meanwhile: Mapping[TaskId, float]
    moved: frozenset[TaskId]

    def longest(self, *, moved: bool) -> float:
        """The longest pause, of the tasks that moved or of those that stayed; 0 if there are
        none."""
        return max(
            (pause for task, pause in self.meanwhile.items() if (task in self.moved) == moved),
            default=0.0,
        )
