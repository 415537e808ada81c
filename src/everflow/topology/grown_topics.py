"""Inputs with more partitions than the state behind them (note 067). Pure.

A key that is hashed into 2n partitions lies in p or n + p where it lies in p of n. So of n tasks
number p reads p, n + p, ... (Samza's SEP-5): each key stays where its state is, also while some
producers still know n partitions only. Of any other number nothing like that holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from everflow.records import TopicPartition
from everflow.topology.graph import Graph, SourceNode
from everflow.topology.partitioners import (
    KeyField,
    KeyFunction,
    assumed_partitioners,
    key_partitioners,
    keyed_sources,
    partitioner_name,
)
from everflow.topology.subtopologies import SubTopologies, cut

_Program = TypeVar("_Program", bound=Graph)


@dataclass(frozen=True)
class Misfit:
    """An input whose ``partitions`` take keys to other tasks than the ``tasks`` with their state,
    and ``why``. ``where``: the line of its source."""

    topic: str
    partitions: int
    tasks: int
    why: str
    where: str | None

    @property
    def text(self) -> str:
        source = f" (source at {self.where})" if self.where else ""
        return (
            f"topic {self.topic}{source} has {self.partitions} partitions, and the stores behind "
            f"it have {self.tasks}: {self.why}"
        )

    @property
    def cure(self) -> str:
        return (
            f"put .repartition(name='a-name', partitions={self.partitions}) behind the source, and "
            f"carry the state over with everflow migrate"
        )


def misfits(
    subs: SubTopologies,
    counts: Mapping[str, int],
    fixed: Mapping[int, int],
    before: Mapping[str, int] = MappingProxyType({}),
) -> list[Misfit]:
    """The inputs that do not fit. ``counts``: partitions now; ``fixed``: tasks by sub-topology
    (`fixed_tasks`); ``before``: how many partitions of an input were read until now, if known."""
    return [
        Misfit(topic, counts[topic], number, why, node.where)
        for node, topic, number in _grown(subs, counts, fixed)
        if (why := _why_not(subs.topology, node, topic, counts[topic], number, before.get(topic)))
    ]


def grown_topics(
    subs: SubTopologies, counts: Mapping[str, int], fixed: Mapping[int, int]
) -> dict[str, tuple[int, int]]:
    """The topics with more partitions than tasks: both numbers."""
    return {topic: (counts[topic], tasks) for _, topic, tasks in _grown(subs, counts, fixed)}


def read_before(committed: Iterable[TopicPartition]) -> dict[str, int]:
    """How many partitions of each topic were read, by those with a committed offset."""
    found: dict[str, int] = {}
    for tp in committed:
        found[tp.topic] = max(found.get(tp.topic, 0), tp.partition + 1)
    return found


def _grown(
    subs: SubTopologies, counts: Mapping[str, int], fixed: Mapping[int, int]
) -> Iterator[tuple[SourceNode, str, int]]:
    """Topics with more partitions than tasks, with their sources and the number of tasks."""
    for node in subs.topology.nodes:
        if isinstance(node, SourceNode) and node.kind != "repartition":
            tasks = fixed.get(subs.index_of[node.name])
            for topic in node.topics if tasks is not None else ():
                if tasks is not None and counts.get(topic, 0) > tasks:
                    yield node, topic, tasks


def _why_not(
    graph: Graph, node: SourceNode, topic: str, partitions: int, tasks: int, before: int | None
) -> str:
    if partitions % tasks:
        return "it is no multiple, so keys are in other partitions than their state"
    if before is not None and before < tasks:
        return f"it had {before}, so keys are in other partitions than their state"
    reused = [
        store.name
        for one in graph.nodes
        for store in getattr(one, "stores", ())
        if store.source_topic == topic
    ]
    if reused:
        return (
            f"it is the changelog of table {reused[0]}, too "
            f"(topology.optimization=reuse.ktable.source.topics), whose entries would be in two "
            f"tasks"
        )
    relied_on = [key_partitioners(graph)[topic]] if node.name in keyed_sources(graph) else []
    for name, assumed in assumed_partitioners(graph).items():
        relied_on += [assumed] if node.name in graph.before(name) else []
    for by in relied_on:
        if isinstance(by.by if isinstance(by, KeyField) else by, KeyFunction):
            return (
                f"its keys are spread by {partitioner_name(by)}, of which it is not known whether "
                f"it puts each into a partition of the same task"
            )
    return ""


def with_shares(
    topology: _Program, counts: Mapping[str, int], fixed: Mapping[int, int]
) -> _Program:
    """Each source says which partitions a task reads of its topics (`SourceNode.firsts`)."""
    subs, found = cut(topology), dict[str, list[tuple[str, tuple[int, ...]]]]()
    for node, topic, tasks in _grown(subs, counts, fixed):
        found.setdefault(node.name, []).append((topic, tuple(range(0, counts[topic], tasks))))
    nodes = (
        replace(node, firsts=tuple(found.get(node.name, ())))
        if isinstance(node, SourceNode)
        else node
        for node in topology.nodes
    )
    return replace(topology, nodes=tuple(nodes))
