"""How many partitions the topics of a test driver have, and which of them a record goes to."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from everflow.columns.key_partitions import MURMUR2
from everflow.errors import TopologyError
from everflow.instance.tasks.task import ActiveTask
from everflow.instance.thread.planning import IdleSources, IdleTimes
from everflow.records import OffsetRange, TaskId, TopicPartition
from everflow.serdes import Serde
from everflow.testing.store_views import Home
from everflow.testing.topics import Places
from everflow.topology.graph import FunctionExpr, StatefulNode
from everflow.topology.partitioners import (
    KeyPartitioner,
    key_partitioner,
    key_partitioners,
    partitions_of,
    topics_into_stores,
)
from everflow.topology.plan import PhysicalPlan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import SubTopologies, internal_topics, tasks

Partitions = int | Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class DriverTopics:
    """``counts``: partitions of the topics that tasks read, by their full names; ``others``:
    partitions of topics that are only written. ``by``: partitioners that depend on the key."""

    counts: Mapping[str, int]
    tasks: Sequence[TaskId]
    inputs: Mapping[TaskId, Sequence[TopicPartition]]
    by: Mapping[str, KeyPartitioner]
    others: Partitions

    @staticmethod
    def of(
        topology: Topology,
        subs: SubTopologies,
        application_id: str,
        partitions: Partitions,
        where: str | None,
    ) -> DriverTopics:
        """With ``partitions`` 1 all topics have one, whatever the program says of them; else as on
        a broker. TopologyError where equal keys would not meet, as at the start of an instance, and
        for numbers below 1 and topics that the topology does not read."""
        numbers = [partitions] if isinstance(partitions, int) else list(partitions.values())
        if any(not isinstance(n, int) or isinstance(n, bool) or n < 1 for n in numbers):
            raise TopologyError(
                f"partitions is a number above 0, or such numbers by topic, found {partitions!r}",
                where=where,
            )
        full = {f"{application_id}-{one.name}": one.name for one in topology.repartition_topics}
        if partitions == 1:
            counts = dict.fromkeys([*subs.topics, *full], 1)
        else:
            known = {topic: _count(partitions, topic) for topic in subs.topics}
            internal = internal_topics(subs, known, application_id).repartition
            counts = {**known, **{name: count for name, (count, _) in internal.items()}}
        found = tasks(subs, counts, application_id)
        inputs = {sub.index: sub.inputs(application_id) for sub in subs.subtopologies}
        by = key_partitioners(topology)
        return DriverTopics(
            counts=counts,
            tasks=found,
            inputs={
                task: [
                    TopicPartition(topic, task.partition)
                    for topic in inputs[task.subtopology]
                    if task.partition < counts[topic]
                ]
                for task in found
            },
            by={
                name: by[short]
                for name, short in {**{topic: topic for topic in by}, **full}.items()
                if short in by
            },
            others=partitions,
        )

    def count(self, topic: str) -> int:
        return self.counts.get(topic) or _count(self.others, topic)

    def places(self, topic: str, serde: Serde, said: str | FunctionExpr | None) -> Places:
        """The partitioner of an input topic; ``said``: the one of its producer."""
        count = self.count(topic)
        by = self.by.get(topic, MURMUR2) if said is None else key_partitioner(said, (topic,))

        def place(key: bytes | None, partition: int | None) -> int:
            if partition is not None:
                if not 0 <= partition < count:
                    raise ValueError(
                        f"{topic} has the partitions 0 to {count - 1}, not {partition}; "
                        f"TopologyTestDriver(topology, partitions={partition + 1}) gives it more"
                    )
                return partition
            if key is None or count == 1:
                return 0
            return int(partitions_of(by, topic, pa.array([key], pa.binary()), serde, count)[0])

        return place

    def homes(self, topology: Topology, application_id: str) -> dict[str, tuple[int, Home]]:
        """Store -> its number of partitions, and where queries look for a key."""
        nodes = [node for node in topology.nodes if isinstance(node, StatefulNode)]
        serdes = {spec.name: spec.key_serde for node in nodes for spec in node.stores}
        return {
            name: (
                max((self.counts.get(topic, 1) for topic in topics), default=1),
                self._home(topics, serdes[name]),
            )
            for name, topics in topics_into_stores(topology, application_id).items()
        }

    def _home(self, topics: frozenset[str], serde: Serde) -> Home:
        known = {topic: self.by[topic] for topic in sorted(topics) if topic in self.by}
        if not known or len(known) < len(topics):
            return lambda key: None
        topic, by = next(iter(known.items()))
        count = max(self.counts[one] for one in topics)
        return lambda key: int(
            partitions_of(by, topic, pa.array([key], pa.binary()), serde, count)[0]
        )


def _count(partitions: Partitions, topic: str) -> int:
    return partitions if isinstance(partitions, int) else partitions.get(topic, 1)


class DriverSilence:
    """Idle sources of a test driver, by its wall clock (note 025). ``stream_times``: of the tasks,
    as the driver keeps them; ``inputs``: partitions that each task reads."""

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
        self._idle_sources = IdleSources(self._plan.idle, lambda topics: True)

    def due(self, subtopology: int, now_ms: int) -> IdleTimes:
        """New stream times of idle sources in the tasks of a sub-topology."""
        found = self._due((), now_ms)
        return {task: names for task, names in found.items() if task.subtopology == subtopology}

    def read(self, read: Collection[TopicPartition], moved: IdleTimes, now_ms: int) -> None:
        """After a micro-batch: ``read`` had records, and ``moved`` are the times that it
        advanced."""
        if not self.subtopologies:
            return
        self._due(read, now_ms)
        self._idle_sources.advanced(self._tasks(), moved, now_ms)
        self._due((), now_ms)

    def _due(self, read: Collection[TopicPartition], now_ms: int) -> IdleTimes:
        tasks = self._tasks()
        available = {tp: OffsetRange(0, int(tp in read)) for task in tasks for tp in task.inputs}
        return self._idle_sources.due(tasks, available, now_ms)

    def _tasks(self) -> list[ActiveTask]:
        return [
            ActiveTask(
                id=task, inputs=tuple(listed), stream_times=dict(self._stream_times.get(task, {}))
            )
            for task, listed in self._inputs.items()
        ]
