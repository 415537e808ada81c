"""Which tasks wait for an input that has nothing (`max.task.idle.ms`), and for how long: pure.

Kafka Streams asks before each record whether every input of the task has one, or is known to have
none; here it is asked before each micro-batch, and the merge ends a batch where an input that is
still waited for runs dry (`everflow.runtime.step.order`). Times are monotonic ms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from everflow.records import OffsetRange, TopicPartition

NEVER = -1
"""``max.task.idle.ms``: whatever is there is processed."""


@dataclass(frozen=True)
class Look:
    """What may be read now.

    Attributes:
        held: partitions of tasks that wait.
        waits: inputs at whose end a batch has to stop, though the log has no more; None: not at any
            input's, even if the log has more.
        enforced: how many tasks go on though an input has nothing.
    """

    held: frozenset[TopicPartition]
    waits: tuple[TopicPartition, ...] | None
    enforced: int

    def of(
        self, available: Mapping[TopicPartition, OffsetRange]
    ) -> dict[TopicPartition, OffsetRange]:
        """``available``, with nothing of tasks that wait."""
        return {
            tp: OffsetRange(r.start, r.start) if tp in self.held else r
            for tp, r in available.items()
        }


@dataclass
class TaskIdling:
    """Of one stream thread, which alone calls it."""

    idle_ms: int
    left_ms: float = math.inf
    """Until the first task has waited long enough, when it was last looked."""
    _until: dict[TopicPartition, float] = field(default_factory=dict)
    """Until when an input that has nothing is waited for; one that has something is left out."""

    def look(
        self,
        tasks: Iterable[Collection[TopicPartition]],
        available: Mapping[TopicPartition, OffsetRange],
        now_ms: float,
    ) -> Look:
        """``tasks``: the inputs of each; ``available``: what each of them has to read, where it has
        something."""
        if self.idle_ms == NEVER:
            return Look(frozenset(), None, 0)
        held: set[TopicPartition] = set()
        waits: list[TopicPartition] = []
        enforced, self.left_ms = 0, math.inf
        known = self._until
        self._until = {}
        for inputs in tasks:
            if len(inputs) < 2:
                continue
            empty = [tp for tp in inputs if (r := available.get(tp)) is None or r.end <= r.start]
            for tp in empty:
                self._until[tp] = known.get(tp, now_ms + self.idle_ms)
            if len(empty) == len(inputs):
                continue
            until = max((self._until[tp] for tp in empty), default=now_ms)
            if until > now_ms:
                held.update(inputs)
                self.left_ms = min(self.left_ms, until - now_ms)
                continue
            enforced += bool(empty)
            if self.idle_ms > 0:
                waits += sorted(set(inputs) - set(empty))
        return Look(frozenset(held), tuple(waits), enforced)
