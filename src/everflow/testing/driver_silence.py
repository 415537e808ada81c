"""The silence of a test driver's sources, by its wall clock (note 025)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.runtime.thread.planning import IdleSources, IdleTimes
from everflow.topology.physical_plan import PhysicalPlan


@dataclass(frozen=True)
class _Reader:
    id: TaskId
    inputs: tuple[TopicPartition, ...]
    stream_times: Mapping[str, int]


class DriverSilence:
    """Of all sources; ``stream_times``: of the tasks, as the driver keeps them; ``inputs``: what
    each task reads."""

    def __init__(
        self,
        plan: PhysicalPlan,
        stream_times: Mapping[TaskId, Mapping[str, int]],
        inputs: Mapping[TaskId, Sequence[TopicPartition]],
    ) -> None:
        self._plan, self._stream_times, self._inputs = plan, stream_times, inputs
        self.subtopologies = sorted(plan.idle)
        self.forget()

    def forget(self) -> None:
        """As at the start."""
        self._idle_sources = IdleSources(self._plan.idle, lambda topics: True)

    def moves(self, subtopology: int, now_ms: int) -> IdleTimes:
        """What is to be moved in the tasks of a sub-topology."""
        found = self._look((), now_ms)
        return {task: names for task, names in found.items() if task.subtopology == subtopology}

    def read(self, read: Collection[TopicPartition], moved: IdleTimes, now_ms: int) -> None:
        """A micro-batch is over that had records of these partitions and moved times."""
        if not self.subtopologies:
            return
        self._look(read, now_ms)
        self._idle_sources.advanced(self._tasks(), moved, now_ms)
        self._look((), now_ms)

    def _look(self, read: Collection[TopicPartition], now_ms: int) -> IdleTimes:
        tasks = self._tasks()
        available = {tp: OffsetRange(0, int(tp in read)) for task in tasks for tp in task.inputs}
        return self._idle_sources.due(tasks, available, now_ms)

    def _tasks(self) -> list[_Reader]:
        return [
            _Reader(task, tuple(listed), self._stream_times.get(task, {}))
            for task, listed in self._inputs.items()
        ]
