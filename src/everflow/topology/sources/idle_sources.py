"""Which sources move stream time on by the wall clock while they are silent (note 025). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from everflow.topology.graph import Graph, Node, SinkNode, SourceNode


@dataclass(frozen=True)
class IdleSource:
    """An input topic of a sub-topology whose silence counts.

    Attributes:
        kept: under which name its time is kept beside the committed offsets: the highest of its
            records, or what it was moved to.
        after_ms: how long a partition has to be silent.
        fed_by: topics that have to be consumed, too, before silence means that there is nothing:
            those from which a repartition topic is written.
    """

    kept: str
    after_ms: int
    fed_by: frozenset[str] = frozenset()


def idle_sources(graph: Graph, application_id: str) -> dict[str, dict[str, IdleSource]]:
    """By source node and topic (as the node names it).

    A repartition topic is moved where every source that it is written from is: then it waits for
    the longest of them, as a record may be on its way from there.
    """
    found: dict[str, dict[str, IdleSource]] = {}
    for node in graph.nodes:
        if not isinstance(node, SourceNode):
            continue
        feeding = _feeding(graph, node)
        after = [one.reading.idle_ms for one in feeding if one.kind != "repartition"]
        known = [ms for ms in after if ms is not None]
        if not known or len(known) < len(after):
            continue
        fed_by = frozenset(
            f"{application_id}-{topic}" if one.kind == "repartition" else topic
            for one in feeding
            if one is not node
            for topic in one.topics
        )
        found[node.name] = {
            topic: IdleSource(name, max(known), fed_by)
            for topic, name in node.names_of_topics("/idle").items()
        }
    return found


def _feeding(graph: Graph, source: SourceNode) -> list[SourceNode]:
    """The source, and of a repartition topic all sources behind it."""
    found = {source.name: source}
    todo = [source]
    while todo:
        one = todo.pop()
        if one.kind != "repartition":
            continue
        for sink in graph.nodes:
            if not isinstance(sink, SinkNode) or sink.topic not in one.topics:
                continue
            for node in sources_of(graph, sink):
                if node.name not in found:
                    found[node.name] = node
                    todo.append(node)
    return list(found.values())


def sources_of(graph: Graph, node: Node) -> list[SourceNode]:
    """The sources from which records reach a node in its sub-topology."""
    by_name = {one.name: one for one in graph.nodes}
    found: dict[str, SourceNode] = {}
    seen, todo = set[str](), [node.name]
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        one = by_name[name]
        if isinstance(one, SourceNode):
            found[name] = one
        todo.extend(one.inputs)
    return list(found.values())
