"""The inputs of the plan's tasks: which partitions of a topic a task reads, and how. Pure.

Of a topic that was given a multiple of the partitions of the state behind it each further partition
of a task is a source of its own (`everflow.topology.grown_topics`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from everflow.records import TaskId, TopicPartition
from everflow.serdes import Serde
from everflow.topology.idle_sources import IdleSource
from everflow.topology.partitioners import KeyPartitioner


@dataclass(frozen=True, kw_only=True)
class Source:
    """One input of each task: of ``topic`` (its full name) the partition ``first`` + the task's
    number, if below ``until``. ``index`` is the ``source`` column of its rows."""

    index: int = 0
    topic: str
    subtopology: int
    node: str
    key_serde: Serde
    value_serde: Serde
    offset_reset: str | None = None
    kind: str
    merged: bool = False
    """True where the sub-topology reads several topics: partitions are merged by time (D3)."""
    slot: int = -1
    """The slot of its decoded records."""
    own_times: bool = True
    """True if its records keep their times in Kafka: a negative one stops the application."""
    idle: IdleSource | None = None
    """How it advances stream time while it is idle; None: it does not."""
    timed: str = ""
    """Under which name, with what stands behind it, its times are kept (note 076)."""
    held: bool = False
    """True for a repartition topic whose records are taken in order of time, as far as that is
    certain (note 076)."""
    fed_back: bool = False
    """True if what its sub-topology writes comes back here: no other input waits for it."""
    partitioner: KeyPartitioner | None = None
    """Where a store relies on it; None: no matter, or this application writes the topic."""
    first: int = 0
    """Above 0: the topic has a multiple of the partitions of the state behind it (note 067)."""
    until: int | None = None

    def reads(self, tp: TopicPartition) -> bool:
        within = self.until is None or tp.partition < self.until
        return tp.topic == self.topic and self.first <= tp.partition and within

    def log(self, partition: int) -> TopicPartition:
        """What the task of that number reads of it."""
        return TopicPartition(self.topic, self.first + partition)

    def task(self, tp: TopicPartition) -> TaskId:
        return TaskId(self.subtopology, tp.partition - self.first)


def sources_of_logs(
    sources: Iterable[Source], logs: Iterable[TopicPartition]
) -> dict[TopicPartition, Source]:
    """Which source reads each of these logs; KeyError for one that none reads."""
    by_topic: dict[str, list[Source]] = {}
    for source in sources:
        by_topic.setdefault(source.topic, []).append(source)
    return {tp: next(one for one in by_topic[tp.topic] if one.reads(tp)) for tp in logs}
