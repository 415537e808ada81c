"""Sources whose topics a pattern names: which of the existing topics they read. Pure (note 037).

Until a start, such a source has its pattern in the place of a topic. Of topics that appear or grow
while a program runs, `growth` finds those that it can read: all that there is stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeVar

from everflow.errors import TopologyError
from everflow.topology.graph import Graph, SourceNode
from everflow.topology.grown_topics import misfits
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut, fixed_tasks, internal_topics

_INTERNAL = ("-changelog", "-repartition")
_Program = TypeVar("_Program", bound=Graph)


def pattern_sources(graph: Graph) -> list[SourceNode]:
    return [
        node
        for node in graph.nodes
        if isinstance(node, SourceNode) and node.reading.pattern is not None
    ]


def matched(
    graph: Graph,
    existing: Iterable[str],
    application_id: str,
) -> dict[str, SourceNode]:
    """The topics that a pattern names, and its source. Kafka's own topics and the application's
    internal ones belong to no pattern. TopologyError for a topic of two sources."""
    named = {
        topic: node
        for node in graph.nodes
        if isinstance(node, SourceNode) and node.reading.pattern is None
        for topic in node.topics
    }
    found: dict[str, SourceNode] = {}
    for topic in sorted(existing):
        own = topic.startswith(f"{application_id}-") and topic.endswith(_INTERNAL)
        if topic.startswith("__") or own:
            continue
        for node in pattern_sources(graph):
            assert node.reading.pattern is not None
            if not node.reading.pattern.fullmatch(topic):
                continue
            other = found.get(topic) or named.get(topic)
            if other is not None:
                raise TopologyError(
                    f"the topic {topic!r} matches the pattern {node.reading.pattern.pattern!r}, "
                    f"and the source at {other.where} reads it too; a topic belongs to one source: "
                    "make the pattern narrower, or use one stream twice",
                    where=node.where,
                )
            found[topic] = node
    return found


def with_topics(
    topology: Topology,
    existing: Iterable[str],
    application_id: str,
) -> Topology:
    """Patterns become the topics there are; TopologyError for one that none matches."""
    sources = pattern_sources(topology)
    if not sources:
        return topology
    found = matched(topology, existing, application_id)
    topics = {
        source.name: tuple(topic for topic, node in found.items() if node.name == source.name)
        for source in sources
    }
    for source in sources:
        if not topics[source.name]:
            raise TopologyError(
                f"no topic matches the pattern {source.topics[0]!r}; create one before the "
                f"application starts, and see that this user may see it. A pattern is that of a "
                "whole name: re.compile('in.*'), not 'in'",
                where=source.where,
                code="EF-SOURCE-TOPIC",
            )
    return _reading(topology, topics)


@dataclass(frozen=True)
class TopicGrowth:
    """``taken``: the partitions of the topics that are read from now on; ``left_out``: why others
    are not. ``where``: the line of each one's source."""

    topology: Graph
    taken: Mapping[str, int]
    left_out: Mapping[str, str]
    where: Mapping[str, str]


_NONE: Mapping[str, int] = MappingProxyType({})


def growth(
    topology: Graph,
    counts: Mapping[str, int],
    existing: Mapping[str, int],
    application_id: str,
    internal: Mapping[str, int] = _NONE,
) -> TopicGrowth:
    """``counts``: partitions of the user's topics that the program reads; ``existing``: of all;
    ``internal``: of its own, by full name. Each new or wider topic is taken or left out by itself,
    in the order of names."""
    taken: dict[str, int] = {}
    left_out: dict[str, str] = {}
    where: dict[str, str] = {}
    for topic, read in _sources(topology).items():
        partitions, now = existing.get(topic, 0), {**counts, **taken}
        if (
            0 < counts.get(topic, 0) < partitions
            and why_not_grown(topology, now, topic, partitions, application_id, internal) is None
        ):
            where[topic], taken[topic] = str(read.where), partitions
    if not pattern_sources(topology):
        return TopicGrowth(topology, taken, left_out, where)
    shape = _internal_partitions(topology, counts, application_id, internal)
    for topic in sorted(existing.keys() - counts.keys()):
        partitions = existing[topic]
        try:
            source = matched(topology, [topic], application_id).get(topic)
            if source is None or not partitions:
                continue
            where[topic] = str(source.where)
            # Behind the topics that there are: what was numbered keeps its number.
            wider = _reading(topology, {source.name: (*source.topics, topic)})
            now = {**counts, **taken, topic: partitions}
            other = _internal_partitions(wider, now, application_id, internal)
            fixed = fixed_tasks(cut(wider), internal, application_id)
            unfit = [one for one in misfits(cut(wider), now, fixed) if one.topic == topic]
        except TopologyError as error:
            where.setdefault(topic, str(error.where))
            left_out[topic] = str(error).partition("\n  at ")[0]
            continue
        if unfit:
            left_out[topic] = unfit[0].text
            continue
        changed = sorted(name for name, number in other.items() if shape[name] != number)
        if changed:
            left_out[topic] = (
                f"it has {partitions} partitions, and {changed[0]} has {shape[changed[0]]}, which "
                f"cannot become {other[changed[0]]}: keys would leave their state"
            )
            continue
        topology, taken[topic] = wider, partitions
    return TopicGrowth(topology, taken, left_out, where)


def _sources(topology: Graph) -> dict[str, SourceNode]:
    sources = [node for node in topology.nodes if isinstance(node, SourceNode)]
    return {
        topic: source
        for source in sources
        if source.kind != "repartition"
        for topic in sorted(source.topics)
    }


def why_not_grown(
    topology: Graph,
    counts: Mapping[str, int],
    topic: str,
    partitions: int,
    application_id: str,
    internal: Mapping[str, int] = _NONE,
) -> str | None:
    """Why a running program does not read the new partitions of one of its inputs; None: it does,
    for each key stays where its state is, or none has a state. ``internal``: as for `growth`."""
    source = _sources(topology).get(topic)
    if source is None or partitions <= counts[topic]:
        return ""
    subs, now = cut(topology), {**counts, topic: partitions}
    sub = next(one for one in subs.subtopologies if one.index == subs.index_of[source.name])
    fixed = fixed_tasks(subs, internal, application_id)
    if sub.stores and sub.index not in fixed:
        return (
            f"store {sub.stores[0].name} behind it has no changelog: what it has of keys that go "
            f"to new tasks would be lost without a word"
        )
    if counts[topic] < fixed.get(sub.index, 0):
        return f"the stores behind it have {fixed[sub.index]}, more than the topic had"
    for one in misfits(subs, now, fixed, counts):
        if one.topic == topic:
            return f"{one.text}: {one.cure}"
    before = _internal_partitions(topology, counts, application_id, internal)
    try:
        after = _internal_partitions(topology, now, application_id, internal)
    except TopologyError as error:
        return str(error).partition("\n  at ")[0]
    changed = sorted(name for name, number in after.items() if before[name] != number)
    if changed:
        return (
            f"{changed[0]} would need {after[changed[0]]} partitions and has {before[changed[0]]}"
        )
    return None


def _internal_partitions(
    topology: Graph, counts: Mapping[str, int], application_id: str, internal: Mapping[str, int]
) -> dict[str, int]:
    found = internal_topics(cut(topology), counts, application_id, existing=internal)
    return {
        name: partitions
        for topics in (found.repartition, found.changelog)
        for name, (partitions, _) in topics.items()
    }


def _reading(topology: _Program, topics: Mapping[str, tuple[str, ...]]) -> _Program:
    nodes = (
        replace(node, topics=topics[node.name])
        if isinstance(node, SourceNode) and node.name in topics
        else node
        for node in topology.nodes
    )
    return replace(topology, nodes=tuple(nodes))
