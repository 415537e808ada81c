"""Writes a topology as Kafka Streams' ``TopologyDescription``, as JSON and as Mermaid. Pure.

Two nodes differ from what the graph holds, so that the text is the original's: a repartition sink
shows the null-key filter that Kafka Streams puts before it, and projections that only prepare a
value are folded into the node they prepare for. Nodes stand in the original's order (larger
sub-tree first, then by name). Neighbours do too, except that the original sorts them while it is
still counting, so behind a merge its order can depend on Java's hash order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from everflow.topology.graph import (
    JOINER,
    PREPARE,
    ColumnExpr,
    FunctionExpr,
    GlobalTableNode,
    Graph,
    LoadedTableNode,
    Node,
    SinkNode,
    SourceNode,
    StatefulNode,
    WholeTableNode,
)
from everflow.topology.subtopologies import GlobalSubTopology, SubTopology, cut
from everflow.topology.types import type_text


@dataclass(kw_only=True)
class Shown:
    """A node as described: ``kind`` is Source, Processor or Sink; ``detail`` what stands in its
    brackets."""

    name: str
    kind: str
    detail: str
    node: Node
    stores: list[str] = field(default_factory=list)
    predecessors: list[str] = field(default_factory=list)
    successors: list[str] = field(default_factory=list)
    size: int = 0


def as_text(topology: Graph) -> str:
    """Kafka Streams' text; internal topics without the application id prefix."""
    parts = ["Topologies:\n "]
    for sub in in_numbers(topology):
        shown = shown_nodes(sub)
        of = " for global store (will not generate tasks)" if _is_global(sub) else ""
        parts.append(f"  Sub-topology: {sub.index}{of}\n")
        parts += [f"    {_node_text(node, shown)}\n" for node in _in_order(shown, shown)]
        parts.append("" if of else "\n")
    return "".join(parts)


def as_json(topology: Graph) -> str:
    """The same as JSON: ``{"subtopologies": [{"id", "global", "nodes": [{"name", "type", "topics" |
    "stores" | "topic", "successors", "predecessors", "key", "value", "where"}]}]}``."""
    found = []
    for sub in in_numbers(topology):
        shown = shown_nodes(sub)
        nodes = [_node_json(node, shown) for node in _in_order(shown, shown)]
        found.append({"id": sub.index, "global": _is_global(sub), "nodes": nodes})
    return json.dumps({"subtopologies": found}, indent=2)


def as_mermaid(topology: Graph) -> str:
    """A Mermaid flowchart: sub-topologies as boxes, topics between them, stores as cylinders."""
    lines = ["flowchart TD"]
    links: list[str] = []
    topics: dict[str, str] = {}

    def topic_id(topic: str) -> str:
        return topics.setdefault(topic, f"topic{len(topics)}")

    for sub in in_numbers(topology):
        shown = shown_nodes(sub)
        ids = {name: f"n{sub.index}_{i}" for i, name in enumerate(shown)}
        lines.append(f'  subgraph sub{sub.index}["Sub-topology {sub.index}"]')
        for name, entry in shown.items():
            lines.append(f'    {ids[name]}["{name}"]')
            lines += [
                f'    {ids[name]} --- store_{ids[name]}[("{store}")]' for store in entry.stores
            ]
            links += [f"  {ids[name]} --> {ids[successor]}" for successor in entry.successors]
            if entry.kind == "Source":
                links += [f"  {topic_id(topic)} --> {ids[name]}" for topic in topics_of(entry)]
            elif entry.kind == "Sink":
                links.append(f"  {ids[name]} --> {topic_id(sink_topic(entry.node))}")
        lines.append("  end")
    lines += [f'  {id_}>"{topic}"]' for topic, id_ in topics.items()]
    return "\n".join(lines + links) + "\n"


def in_numbers(topology: Graph) -> list[SubTopology | GlobalSubTopology]:
    """All sub-topologies, by their numbers."""
    subs = cut(topology)
    return sorted((*subs.subtopologies, *subs.global_tables), key=lambda sub: sub.index)


def _is_global(sub: SubTopology | GlobalSubTopology) -> bool:
    return isinstance(sub, GlobalSubTopology)


def topics_of(entry: Shown) -> tuple[str, ...]:
    """What a source reads."""
    node = entry.node
    return _topics_of(node)


def _topics_of(node: Node) -> tuple[str, ...]:
    if isinstance(node, GlobalTableNode):
        return (node.topic,)
    return node.topics if isinstance(node, SourceNode) else ()


def shown_nodes(sub: SubTopology | GlobalSubTopology) -> dict[str, Shown]:
    """The described nodes of one sub-topology with their links and sizes."""
    if isinstance(sub, GlobalSubTopology):
        return _shown_global(sub.node)
    shown: dict[str, Shown] = {}
    stands_for: dict[str, list[str]] = {}  # names behind which a folded node's inputs stand

    for node in sub.nodes:
        inputs = [name for given in node.inputs for name in stands_for.get(given, [given])]
        if getattr(node, "label", None) in (PREPARE, JOINER):
            stands_for[node.name] = inputs
            continue
        if isinstance(node, StatefulNode) and node.parts:
            stands_for[node.name] = _show_parts(node, stands_for, shown)
            continue
        if isinstance(node, SinkNode) and node.kind == "repartition":
            filter_name = f"{node.name.removesuffix('-sink')}-filter"
            shown[filter_name] = Shown(
                name=filter_name,
                kind="Processor",
                detail="stores: []",
                node=node,
                predecessors=inputs,
            )
            inputs = [filter_name]
        kind, detail = _kind(node)
        predecessors = list(dict.fromkeys(inputs))
        shown[node.name] = Shown(
            name=node.name,
            kind=kind,
            detail=detail,
            node=node,
            stores=_stores(node),
            predecessors=predecessors,
        )
    for entry in shown.values():
        for name in entry.predecessors:
            shown[name].successors.append(entry.name)
    for entry in reversed(shown.values()):
        entry.size = 1 + sum(shown[name].size for name in entry.successors)
    for entry in shown.values():
        entry.predecessors = [other.name for other in _in_order(shown, entry.predecessors)]
        entry.successors = [other.name for other in _in_order(shown, entry.successors)]
    return shown


def _shown_global(node: WholeTableNode) -> dict[str, Shown]:
    """The two nodes that Kafka Streams has for a global table."""
    source = Shown(
        name=node.source,
        kind="Source",
        detail=f"rows: {node.told}"
        if isinstance(node, LoadedTableNode)
        else f"topics: [{', '.join(_topics_of(node))}]",
        node=node,
        successors=[node.name],
        size=2,
    )
    table = Shown(
        name=node.name,
        kind="Processor",
        detail=f"stores: [{node.store.name}]",
        node=node,
        stores=[node.store.name],
        predecessors=[node.source],
        size=1,
    )
    return {source.name: source, table.name: table}


def _show_parts(
    node: StatefulNode, stands_for: dict[str, list[str]], shown: dict[str, Shown]
) -> list[str]:
    """Adds the nodes that Kafka Streams has for a join; gives those that the next ones read."""
    for part in node.parts:
        inputs = [name for given in part.inputs for name in stands_for.get(given, [given])]
        shown[part.name] = Shown(
            name=part.name,
            kind="Processor",
            detail=f"stores: [{', '.join(sorted(part.stores))}]",
            node=node,
            stores=sorted(part.stores),
            predecessors=list(dict.fromkeys(inputs)),
        )
    read = {name for part in node.parts for name in part.inputs}
    return [part.name for part in node.parts if part.name not in read]


def _in_order(shown: dict[str, Shown], names: dict[str, Shown] | list[str]) -> list[Shown]:
    """Kafka Streams' order: the larger sub-tree first, then by name."""
    return sorted((shown[name] for name in names), key=lambda entry: (-entry.size, entry.name))


def _kind(node: Node) -> tuple[str, str]:
    if isinstance(node, SourceNode):
        if node.reading.pattern is not None and node.topics == (node.reading.pattern.pattern,):
            return "Source", f"topics: {node.topics[0]}"
        return "Source", f"topics: [{', '.join(sorted(node.topics))}]"
    if isinstance(node, SinkNode):
        if isinstance(node.topic, str):
            return "Sink", f"topic: {node.topic}"
        return "Sink", f"extractor class: {sink_topic(node)}"
    return "Processor", f"stores: [{', '.join(_stores(node))}]"


def _stores(node: Node) -> list[str]:
    """The stores that it writes or reads."""
    if not isinstance(node, StatefulNode):
        return []
    return sorted(store.name for store in (*node.stores, *node.reads))


def sink_topic(node: Node) -> str:
    assert isinstance(node, SinkNode)
    if isinstance(node.topic, ColumnExpr):
        return str(node.topic.column)
    if isinstance(node.topic, FunctionExpr):
        return str(getattr(node.topic.fn, "__name__", type(node.topic.fn).__name__))
    return node.topic


def _node_text(entry: Shown, shown: dict[str, Shown]) -> str:
    lines = [f"{entry.kind}: {entry.name} ({entry.detail})"]
    if entry.kind != "Sink":
        lines.append(f"      --> {', '.join(entry.successors) or 'none'}")
    if entry.kind != "Source":
        lines.append(f"      <-- {', '.join(entry.predecessors) or 'none'}")
    return "\n".join(lines)


def _node_json(entry: Shown, shown: dict[str, Shown]) -> dict[str, object]:
    found: dict[str, object] = {"name": entry.name, "type": entry.kind.lower()}
    node = entry.node
    if entry.kind == "Source":
        found["topics"] = sorted(topics_of(entry))
    elif entry.kind == "Sink":
        found["topic"] = sink_topic(node)
    else:
        found["stores"] = entry.stores
    found["predecessors"], found["successors"] = entry.predecessors, entry.successors
    found["key"], found["value"] = type_text(node.out.key), type_text(node.out.value)
    found["where"] = node.where
    return found
