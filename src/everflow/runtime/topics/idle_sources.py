"""How long inputs have been silent, and to what that moves their times (note 025).

The wall clock is the machine's that never goes back; what a partition's time is, is in the task,
beside its positions. Of one stream thread, which alone calls it. Times in ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.topology.idle_sources import IdleSource

Moves = Mapping[TaskId, Mapping[str, int]]
"""Of each task, to what the times of its silent sources are to be moved, by the names under which
those are kept."""
AGAIN_MS = 1_000.0
"""Where what feeds a topic is not consumed, it is asked for again after this time."""


class Reader(Protocol):
    """`everflow.runtime.tasks.task.ActiveTask`."""

    @property
    def id(self) -> TaskId: ...

    @property
    def inputs(self) -> tuple[TopicPartition, ...]: ...

    @property
    def stream_times(self) -> Mapping[str, int]: ...


@dataclass
class IdleSources:
    """``sources``: those that count, by sub-topology and topic. ``consumed(topics)``: whether the
    application has consumed all that is in them; asks the brokers."""

    sources: Mapping[int, Mapping[str, IdleSource]]
    consumed: Callable[[Collection[str]], bool]
    left_ms: float = math.inf
    """Until the first time is to be moved, when it was last looked."""
    _since: dict[TopicPartition, float] = field(default_factory=dict)
    _asked: dict[frozenset[str], tuple[float, bool]] = field(default_factory=dict)

    def due(
        self,
        tasks: Iterable[Reader],
        available: Mapping[TopicPartition, OffsetRange],
        now_ms: float,
    ) -> Moves:
        """What is to be moved in tasks whose inputs' ends are known, by their silence: they have
        nothing in ``available``. A partition without a record so far has no time, and is not
        moved."""
        found: dict[TaskId, dict[str, int]] = {}
        self.left_ms = math.inf
        known = self._since
        self._since = {}
        for task in tasks:
            sources = self.sources.get(task.id.subtopology, {})
            for tp in task.inputs:
                source, waiting = sources.get(tp.topic), available.get(tp)
                if source is None or (waiting is not None and waiting.end > waiting.start):
                    continue
                since = self._since[tp] = known.get(tp, now_ms)
                time = task.stream_times.get(source.kept, -1)
                silent_ms = now_ms - since
                if time < 0:
                    continue
                if silent_ms < source.after_ms:
                    self.left_ms = min(self.left_ms, source.after_ms - silent_ms)
                elif self._is_fed(source, now_ms):
                    found.setdefault(task.id, {})[source.kept] = time + int(silent_ms)
                else:
                    self.left_ms = min(self.left_ms, AGAIN_MS)
        return found

    def moved(self, tasks: Iterable[Reader], moves: Moves, at_ms: float) -> None:
        """What was asked for at ``at_ms`` is committed, as far as the tasks say so: silence is
        counted from then."""
        if not self.sources:
            return
        for task in tasks:
            names = moves.get(task.id, {})
            for topic, source in self.sources.get(task.id.subtopology, {}).items():
                tp = TopicPartition(topic, task.id.partition)
                reached = task.stream_times.get(source.kept, -1) >= names.get(source.kept, math.inf)
                if reached and tp in self._since:
                    self._since[tp] = at_ms

    def _is_fed(self, source: IdleSource, now_ms: float) -> bool:
        """Whether nothing is on its way to the topic."""
        if not source.fed_by:
            return True
        asked_ms, answer = self._asked.get(source.fed_by, (-math.inf, False))
        if now_ms - asked_ms >= AGAIN_MS:
            answer = self.consumed(source.fed_by)
            self._asked[source.fed_by] = now_ms, answer
        return answer
