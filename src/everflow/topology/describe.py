"""Writes a topology as Kafka Streams' ``TopologyDescription``, as JSON and as Mermaid. Pure.

So that the text is the original's, a repartition sink shows the null-key filter that Kafka Streams
puts before it, and projections that only prepare a value are folded into the node they prepare for.
Neighbours stand in the original's order, except that this sorts them while it is still counting, so
that behind a merge it can depend on Java's hash order.
"""

from __future__ import annotations

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, NamedTuple

from everflow.serdes.arrow_types import type_text
from everflow.topology.graph import (
    JOINER,
    PREPARE,
    ColumnExpr,
    FunctionExpr,
    FunctionNode,
    GlobalTableNode,
    Graph,
    LoadedTableNode,
    Node,
    PrintNode,
    ProjectNode,
    SinkNode,
    SourceNode,
    StatefulNode,
    TakeNode,
    TimeFunction,
    UnnestNode,
    WholeTableNode,
    WriteNode,
)
from everflow.topology.partitioners import partitioner_name
from everflow.topology.plan import (
    ARROW,
    PYTHON,
    AskOp,
    AssumedOp,
    ColumnsOp,
    NodeOp,
    PhysicalPlan,
    PlanOp,
    Projection,
    SinkOp,
    StatefulOp,
    TimeOp,
    WriteOp,
    computed_by,
    why_not_arrow,
)
from everflow.topology.subtopologies import GlobalSubTopology, SubTopology, cut
from everflow.user_program import place


@dataclass(kw_only=True)
class Shown:
    """A node as described: ``kind`` is Source, Processor or Sink; ``detail``: the text in its
    brackets, of a processor its stores."""

    name: str
    kind: str
    node: Node
    detail: str = ""
    stores: list[str] = field(default_factory=list)
    predecessors: list[str] = field(default_factory=list)
    successors: list[str] = field(default_factory=list)
    size: int = 0


def as_text(topology: Graph) -> str:
    """Kafka Streams' text; internal topics without the application id prefix."""
    parts = ["Topologies:\n "]
    for sub in in_numbers(topology):
        shown = shown_nodes(sub)
        of = ""
        if isinstance(sub, GlobalSubTopology):
            of = " for global store (will not generate tasks)"
        parts.append(f"  Sub-topology: {sub.index}{of}\n")
        parts += [f"    {_node_text(node)}\n" for node in _in_order(shown, shown)]
        parts.append("" if of else "\n")
    return "".join(parts)


def as_json(topology: Graph) -> str:
    """The same as JSON: ``{"subtopologies": [{"id", "global", "nodes": [{"name", "type", "topics" |
    "stores" | "topic", "successors", "predecessors", "key", "value", "where"}]}]}``."""
    found = []
    for sub in in_numbers(topology):
        shown = shown_nodes(sub)
        nodes = [_node_json(node) for node in _in_order(shown, shown)]
        whole = isinstance(sub, GlobalSubTopology)
        found.append({"id": sub.index, "global": whole, "nodes": nodes})
    return json.dumps({"subtopologies": found}, indent=2)


def as_mermaid(topology: Graph) -> str:
    """A Mermaid flowchart: sub-topologies as boxes, topics between them, stores as cylinders."""
    return _drawing(topology)[0]


def drawing_json(topology: Graph) -> str:
    """The same for the dashboard: ``{"text", "boxes": {id: {"node", "tip"} or {"topic"} or
    {"sub"}}}``: what an id in the text stands for, and what to say of a node."""
    text, boxes = _drawing(topology)
    return json.dumps({"text": text, "boxes": boxes})


def _drawing(topology: Graph) -> tuple[str, dict[str, dict[str, str]]]:
    lines = ["flowchart TD"]
    links: list[str] = []
    topics: dict[str, str] = {}
    boxes: dict[str, dict[str, str]] = {}

    def topic_id(topic: str) -> str:
        return topics.setdefault(topic, f"topic{len(topics)}")

    for sub in in_numbers(topology):
        shown = shown_nodes(sub)
        ids = {name: f"n{sub.index}_{i}" for i, name in enumerate(shown)}
        stores: dict[str, str] = {}
        boxes[f"sub{sub.index}"] = {"sub": str(sub.index)}
        lines.append(f'  subgraph sub{sub.index}["Sub-topology {sub.index}"]')
        for name, entry in shown.items():
            boxes[ids[name]] = {"node": name, "tip": _tip(entry)}
            lines.append(f"    {ids[name]}[{_label(name)}]")
            for store in entry.stores:
                store_id = stores.setdefault(store, f"store{sub.index}_{len(stores)}")
                lines.append(f"    {ids[name]} --- {store_id}[({_label(store)})]")
            links += [f"  {ids[name]} --> {ids[successor]}" for successor in entry.successors]
            if entry.kind == "Source":
                links += [
                    f"  {topic_id(topic)} --> {ids[name]}" for topic in _topics_of(entry.node)
                ]
            elif entry.kind == "Sink":
                links.append(f"  {ids[name]} --> {topic_id(sink_topic(entry.node))}")
        lines.append("  end")
    for topic, id_ in topics.items():
        boxes[id_] = {"topic": topic}
        lines.append(f"  {id_}>{_label(topic)}]")
    return "\n".join(lines + links) + "\n", boxes


def _label(text: str) -> str:
    """Quoted, and every character that Mermaid or HTML could take for its own as a number."""
    return '"' + re.sub(r"[^\w .-]", lambda found: f"#{ord(found[0])};", text) + '"'


def _tip(entry: Shown) -> str:
    node = entry.node
    tip = f"{entry.name}\n{type_text(node.out.key)} -> {type_text(node.out.value)}"
    return tip + (f"\nat {place(node.where)}" if node.where else "")


def in_numbers(topology: Graph) -> list[SubTopology | GlobalSubTopology]:
    subs = cut(topology)
    return sorted((*subs.subtopologies, *subs.global_tables), key=lambda sub: sub.index)


def _topics_of(node: Node) -> tuple[str, ...]:
    if isinstance(node, GlobalTableNode):
        return (node.topic,)
    return node.topics if isinstance(node, SourceNode) else ()


def shown_nodes(sub: SubTopology | GlobalSubTopology) -> dict[str, Shown]:
    if isinstance(sub, GlobalSubTopology):
        return _shown_global(sub.node)
    shown: dict[str, Shown] = {}
    stands_for: dict[str, list[str]] = {}  # names behind which a folded node's inputs stand

    def standing(names: Iterable[str]) -> list[str]:
        return [name for each in names for name in stands_for.get(each, [each])]

    def show(
        name: str,
        node: Node,
        before: Iterable[str],
        stores: Iterable[str] = (),
    ) -> Shown:
        shown[name] = Shown(
            name=name,
            kind="Processor",
            node=node,
            stores=sorted(stores),
            predecessors=list(dict.fromkeys(before)),
        )
        return shown[name]

    for node in sub.nodes:
        inputs = standing(node.inputs)
        if getattr(node, "label", None) in (PREPARE, JOINER):
            stands_for[node.name] = inputs
            continue
        if isinstance(node, StatefulNode) and node.parts:
            for part in node.parts:  # the nodes that Kafka Streams has for it
                show(part.name, node, standing(part.inputs), part.stores)
            read = {name for part in node.parts for name in part.inputs}
            stands_for[node.name] = [part.name for part in node.parts if part.name not in read]
            continue
        if isinstance(node, SinkNode) and node.kind == "repartition":
            inputs = [show(f"{node.name.removesuffix('-sink')}-filter", node, inputs).name]
        stores = (*node.stores, *node.reads) if isinstance(node, StatefulNode) else ()
        entry = show(node.name, node, inputs, (store.name for store in stores))
        entry.kind, entry.detail = _kind(node)
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
    detail = f"topics: [{', '.join(_topics_of(node))}]"
    if isinstance(node, LoadedTableNode):
        detail = f"rows: {node.schedule}"
    source = Shown(
        name=node.source, kind="Source", detail=detail, node=node, successors=[node.name], size=2
    )
    table = Shown(
        name=node.name,
        kind="Processor",
        node=node,
        stores=[node.store.name],
        predecessors=[node.source],
        size=1,
    )
    return {source.name: source, table.name: table}


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
    return "Processor", ""


def sink_topic(node: Node) -> str:
    assert isinstance(node, SinkNode)
    if isinstance(node.topic, ColumnExpr):
        return str(node.topic.column)
    if isinstance(node.topic, FunctionExpr):
        return str(getattr(node.topic.fn, "__name__", type(node.topic.fn).__name__))
    return node.topic


def _node_text(entry: Shown) -> str:
    detail = entry.detail or f"stores: [{', '.join(entry.stores)}]"
    lines = [f"{entry.kind}: {entry.name} ({detail})"]
    if entry.kind != "Sink":
        lines.append(f"      --> {', '.join(entry.successors) or 'none'}")
    if entry.kind != "Source":
        lines.append(f"      <-- {', '.join(entry.predecessors) or 'none'}")
    return "\n".join(lines)


def _node_json(entry: Shown) -> dict[str, object]:
    found: dict[str, object] = {"name": entry.name, "type": entry.kind.lower()}
    node = entry.node
    if entry.kind == "Source":
        found["topics"] = sorted(_topics_of(entry.node))
    elif entry.kind == "Sink":
        found["topic"] = sink_topic(node)
    else:
        found["stores"] = entry.stores
    found["predecessors"], found["successors"] = entry.predecessors, entry.successors
    found["key"], found["value"] = type_text(node.out.key), type_text(node.out.value)
    found["where"] = node.where
    return found


# --- the physical description ---------------------------------------------------------------------

BY_RECORD = "by_record"
"""The kind of a serde of the user that takes one value at a time."""


class ExecutionPath(NamedTuple):
    """A node's execution path, the reason, and the line of the program (``file:line``)."""

    node: str
    kind: str
    why: str
    where: str | None


def execution_paths(plan: PhysicalPlan) -> list[ExecutionPath]:
    """The execution path of each node that does something, in the order in which they run."""
    found = [
        ExecutionPath(source.node, *_serdes("reads", source.key_serde, source.value_serde), None)
        for source in plan.sources
    ]
    for op in (*plan.times, *plan.ops):
        found += _of_op(op)
    return list(dict.fromkeys(found))  # behind a merge a node is there once per path


def physical_text(plan: PhysicalPlan, subtopology_of: Mapping[str, int]) -> str:
    """By sub-topology, one line per node: execution path, node, reason, line of the program."""
    listed = execution_paths(plan)
    if not listed:
        return "nothing is computed\n"
    wide = max(len(path.node) for path in listed)
    lines = [f"computed in {summary(listed)}"]
    within: dict[int, list[ExecutionPath]] = {}
    for path in listed:
        within.setdefault(subtopology_of[path.node], []).append(path)
    for number in sorted(within):
        lines.append(f"  Sub-topology {number} (tasks {number}_0, {number}_1, ...)")
        for path in within[number]:
            at = f"  ({path.where})" if path.where else ""
            lines.append(f"    {path.kind:<9}  {path.node:<{wide}}  {path.why}{at}")
    return "\n".join(lines) + "\n"


def physical_json(plan: PhysicalPlan, subtopology_of: Mapping[str, int]) -> str:
    """The same for programs: a list with an object for each node."""
    found = [
        {
            "sub_topology": subtopology_of[path.node],
            "node": path.node,
            "road": path.kind,
            "why": path.why,
            "where": path.where,
        }
        for path in execution_paths(plan)
    ]
    return json.dumps(found, indent=2)


def summary(listed: list[ExecutionPath]) -> str:
    """``Arrow 4, Catalyst 2 nodes``."""
    counts = Counter(path.kind for path in listed)
    return ", ".join(f"{name} {count}" for name, count in counts.most_common()) + " nodes"


def _of_projection(found: Projection) -> ExecutionPath:
    columns = found.columns.values()
    texts = (str(column.column) for column, _ in columns)
    why = ", ".join(text.removeprefix("Column<'").removesuffix("'>") for text in texts)
    if not isinstance(found.node, ProjectNode):
        why = f"the {next(iter(found.columns))} is {why}"
    elif found.node.label == PREPARE:
        why = "prepares values"
    reasons = list(dict.fromkeys(filter(None, (why_not_arrow(*one) for one in columns))))
    by = computed_by(found)
    if by == PYTHON:
        why, reasons = f"calls functions for columns of records: {why}", []
    return ExecutionPath(found.node.name, by, "; ".join([why, *reasons]), found.node.where)


def _of_op(op: PlanOp | TimeOp) -> Iterator[ExecutionPath]:
    match op:
        case ColumnsOp():
            yield from map(_of_projection, op.projections)
        case TimeOp(extractor=TimeFunction() as extractor):
            yield ExecutionPath(
                op.name, PYTHON, f"calls {_texts(extractor.fn)} for times", op.where
            )
        case TimeOp(extractor=extractor) if extractor is not None:
            yield ExecutionPath(
                op.name,
                ARROW,
                f"times by {type(extractor).__name__}",
                op.where,
            )
        case NodeOp(node=FunctionNode(fn=fn, calls=calls)):
            many = "" if calls is None else f", up to {calls.concurrency} at a time"
            yield ExecutionPath(
                op.name,
                PYTHON,
                f"calls {_texts(fn)} for each record{many}",
                op.where,
            )
        case AskOp():
            yield ExecutionPath(
                op.name, PYTHON, f"calls {_texts(op.operator)} for entries", op.where
            )
        case NodeOp(node=TakeNode(taken=taken)):
            answer = "true" if taken else "false"
            yield ExecutionPath(
                op.name,
                ARROW,
                f"the records whose answer is {answer}",
                None,
            )
        case AssumedOp(by=by):
            path = PYTHON if _texts(by) else ARROW
            why = f"checks that each key is where {partitioner_name(by)} puts it"
            yield ExecutionPath(op.name, path, why, op.where)
        case NodeOp(node=UnnestNode()):
            yield ExecutionPath(op.name, ARROW, "a record for each element of a list", None)
        case NodeOp(node=PrintNode(rows=rows)):
            yield ExecutionPath(
                op.name,
                ARROW,
                f"prints {rows} rows of a batch at most",
                op.where,
            )
        case WriteOp(node=WriteNode(sink=sink)):
            called = _texts(sink)
            what = f"calls {called}" if called else f"writes to {sink!r}"
            yield ExecutionPath(
                op.name, PYTHON if called else ARROW, f"{what} once for a task's rows", op.where
            )
        case StatefulOp():
            stores = "store " + ", ".join(
                spec.name for spec in (*op.stores, *op.reads, *op.looks_up)
            )
            called = _texts(op.operator)
            path, why = (PYTHON, f"{stores}: calls {called}") if called else (ARROW, stores)
            yield ExecutionPath(op.name, path, why, op.where)
        case SinkOp():
            if callable(op.topic):
                why = f"calls {_texts(op.topic)} for each record's topic"
                yield ExecutionPath(op.name, PYTHON, why, op.where)
            if callable(op.partitioner):
                why = f"calls {_texts(op.partitioner)} for each record's partition"
                yield ExecutionPath(op.name, PYTHON, why, op.where)
            yield ExecutionPath(op.name, *_serdes("writes", op.key_serde, op.value_serde), op.where)


def _serdes(verb: str, key: Any, value: Any) -> tuple[str, str]:
    """Python where a serde of the user is called for each record."""
    own = [serde for serde in (key, value) if serde.kind == BY_RECORD]
    if own:
        return PYTHON, f"{verb} by {', '.join(map(repr, own))}, record by record"
    return ARROW, f"{verb} {key!r}, {value!r}"


def _functions(found: Any) -> Iterator[Callable[..., Any]]:
    """The user's functions, at any depth of our records."""
    if is_dataclass(found) and not isinstance(found, type):
        for field in fields(found):
            if not field.name.endswith("serde"):
                yield from _functions(getattr(found, field.name))
    elif callable(found) and not isinstance(found, type):
        yield found


def _texts(found: Any) -> str:
    return ", ".join(map(_function_text, _functions(found)))


def _function_text(fn: Callable[..., Any]) -> str:
    """Name and, where it is known, file and line."""
    name = getattr(fn, "__qualname__", type(fn).__qualname__)
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"
