"""Sources whose topics a pattern names: which topics those are, of the ones there are. Pure.

While a program is built, such a source has its pattern in the place of a topic. At a start, and in
the test driver, the topics that match as a whole take that place (note 037).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from everflow.errors import TopologyError
from everflow.topology.graph import Graph, Node, SourceNode
from everflow.topology.program import Topology

_INTERNAL = ("-changelog", "-repartition")


def pattern_sources(graph: Graph) -> list[SourceNode]:
    """The sources that have a pattern."""
    return [
        node
        for node in graph.nodes
        if isinstance(node, SourceNode) and node.reading.pattern is not None
    ]


def matched(graph: Graph, existing: Iterable[str], application_id: str) -> dict[str, SourceNode]:
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
        if topic.startswith("__") or _internal(topic, application_id):
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


def with_topics(topology: Topology, existing: Iterable[str], application_id: str) -> Topology:
    """The topology whose patterns are replaced by the topics there are; TopologyError for a pattern
    that none matches."""
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
    return replace(topology, nodes=tuple(_with(node, topics) for node in topology.nodes))


def _with(node: Node, topics: Mapping[str, tuple[str, ...]]) -> Node:
    return replace(node, topics=topics[node.name]) if node.name in topics else node  # type: ignore[call-arg]


def _internal(topic: str, application_id: str) -> bool:
    return topic.startswith(f"{application_id}-") and topic.endswith(_INTERNAL)
