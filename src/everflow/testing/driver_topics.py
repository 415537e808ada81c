"""How many partitions the topics of a test driver have, and which of them a record goes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from everflow.columns.key_partitions import MURMUR2
from everflow.errors import TopologyError
from everflow.records import TaskId, TopicPartition
from everflow.serdes import Serde
from everflow.testing.driver_stores import Home
from everflow.testing.topics import Places
from everflow.topology.graph import FunctionExpr, StatefulNode
from everflow.topology.partitioners import (
    KeyPartitioner,
    key_partitioner,
    key_partitioners,
    partitions_of,
    topics_into_stores,
)
from everflow.topology.program import Topology
from everflow.topology.subtopologies import SubTopologies, internal_topics, tasks

Partitions = int | Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class DriverTopics:
    """By the whole names of topics: ``counts`` of those that tasks read; ``others``: how many a
    topic has that is only written. ``by``: how keys are spread, where a key says it."""

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
        a broker. TopologyError where equal keys would not meet, as at the start of an instance,
        and for numbers below 1 and topics that the topology does not read."""
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
        """How many partitions a topic has."""
        return self.counts.get(topic) or _count(self.others, topic)

    def places(self, topic: str, serde: Serde, said: str | FunctionExpr | None) -> Places:
        """Where the records of an input topic go; ``said``: of its producer."""
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
        """Of each store: in how many partitions it is, and where queries look for a key."""
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
