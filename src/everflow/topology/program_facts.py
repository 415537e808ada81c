"""What of a program outlives its instances: stores, repartition topics, inputs and the numbers of
sub-topologies, which name tasks (note 067); and, for people, what its nodes compute. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from hashlib import blake2b
from types import CodeType, MappingProxyType
from typing import Any

import pyarrow as pa

from everflow.serdes import PackedSerde
from everflow.serdes.arrow_types import type_text
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    ColumnExpr,
    FunctionExpr,
    GlobalTableNode,
    Graph,
    Node,
    SinkNode,
    SourceNode,
    StatefulNode,
    WholeTableNode,
    WriteNode,
)
from everflow.topology.grown_topics import Misfit
from everflow.topology.partitioners import spread_otherwise
from everflow.topology.store_layouts import (
    Kept,
    StoreLayout,
    digest,
    fingerprint,
    is_store,
    layout_of,
    reads_of,
    repartition_words,
    serde_words,
)
from everflow.topology.subtopologies import SubTopologies


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """``layout``: its words, or their digest; empty: it is not known. ``changelog``: without the
    application id; empty: it has none. ``subtopology``: None where it is not known. ``private``:
    why Kafka Streams (Java) writes other bytes. ``gone``: of an earlier program."""

    layout: Kept
    subtopology: int | None = None
    retention_ms: int | None = None
    changelog: str | None = None
    node: str = ""
    where: str | None = None
    private: str = ""
    gone: bool = False


@dataclass(frozen=True, kw_only=True)
class RepartitionFacts:
    """``words``: of its keys and values, as `serde_words`, or their digest; None where they are not
    known. ``partitions``: as declared; None: as many as its inputs have. ``spread``: the function
    or Column that chooses each record's partition; empty: its key does. ``gone``: of an earlier
    program."""

    words: tuple[str, str] | str | None = None
    partitions: int | None = None
    spread: str = ""
    where: str | None = None
    gone: bool = False


@dataclass(frozen=True, kw_only=True)
class SubTopologyFacts:
    """What a sub-topology reads: the user's topics (or a pattern), and repartition topics.
    ``writes``: repartition topics."""

    topics: tuple[str, ...]
    repartition: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """``text``: what it computes and emits, without names, for the comparison; ``shown``: label,
    expressions and types, for people."""

    name: str
    text: str
    shown: str
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class OutputFacts:
    """A topic or a sink that the program writes. ``made``: the digest of all that its records go
    through; ``nodes``, ``stores``: the names of those; ``shown``: the types."""

    made: str
    nodes: tuple[str, ...]
    stores: tuple[str, ...]
    shown: str
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """What is compared of a program. Of an application that is known by its topics and committed
    offsets alone ``tables`` and ``nodes`` are None; ``stores_known`` is False where the stores are
    known by their changelog topics; ``java``: Kafka Streams (Java) committed. ``topics``: inputs,
    without those of global tables. ``partitions``: where a cluster was asked, those of inputs and,
    without the application id, of internal topics: as they are or, of a program, as it needs them.
    ``misfits``: its inputs that have grown away from the state behind them. ``fingerprint``: its
    digest. ``outputs``: by ``topic NAME`` and ``sink NAME``, without internal topics; None where
    ``nodes`` is."""

    stores: Mapping[str, StoreFacts]
    repartition: Mapping[str, RepartitionFacts]
    subtopologies: Mapping[int, SubTopologyFacts] | None
    tables: Mapping[str, str] | None
    nodes: tuple[NodeFacts, ...] | None
    topics: frozenset[str]
    partitions: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    misfits: tuple[Misfit, ...] = ()
    fingerprint: str | None = None
    stores_known: bool = True
    java: bool = False
    outputs: Mapping[str, OutputFacts] | None = None


def facts_of(
    subs: SubTopologies,
    partitions: Mapping[str, int] = MappingProxyType({}),
    misfits: Iterable[Misfit] = (),
) -> ProgramFacts:
    """Of a program that was cut (`everflow.topology.subtopologies.cut`). ``partitions``,
    ``misfits``: as in `ProgramFacts`."""
    graph = subs.topology
    return ProgramFacts(
        stores=stores_of(graph, subs.index_of),
        repartition=repartition_of(graph),
        subtopologies={
            sub.index: reading(reads_of(sub), sub.repartition_sinks) for sub in subs.subtopologies
        },
        tables={one.node.store.name: _table(one.node) for one in subs.global_tables},
        nodes=tuple(
            NodeFacts(name=node.name, text=text_of(node), shown=shown_of(node), where=node.where)
            for node in graph.nodes
        ),
        topics=frozenset(topic for sub in subs.subtopologies for topic in sub.source_topics),
        partitions=partitions,
        misfits=tuple(misfits),
        fingerprint=digest(fingerprint(subs)),
        outputs=outputs_of(graph),
    )


def reading(reads: Iterable[str], writes: tuple[str, ...] = ()) -> SubTopologyFacts:
    """Of `reads_of`."""
    named = list(reads)
    return SubTopologyFacts(
        topics=tuple(topic for topic in named if is_store(topic)),
        repartition=tuple(topic.removeprefix("*") for topic in named if not is_store(topic)),
        writes=writes,
    )


def repartition_of(graph: Graph) -> dict[str, RepartitionFacts]:
    declared = {topic.name: topic.partitions for topic in graph.repartition_topics}
    words = repartition_words(graph)
    spread = {
        str(node.topic): _text(node.partitioner)
        for node in graph.nodes
        if isinstance(node, SinkNode) and isinstance(node.partitioner, ColumnExpr | FunctionExpr)
    }
    return {
        topic: RepartitionFacts(
            words=words[topic],
            partitions=declared.get(topic),
            spread=spread.get(topic, ""),
            where=node.where,
        )
        for node in graph.nodes
        if isinstance(node, SourceNode) and node.kind == "repartition"
        for topic in node.topics
    }


def stores_of(graph: Graph, index_of: Mapping[str, int]) -> dict[str, StoreFacts]:
    spread = spread_otherwise(graph)
    return {
        store.name: _store(store, node, index_of.get(node.name), spread.get(store.name))
        for node in graph.nodes
        if isinstance(node, StatefulNode)
        for store in node.stores
    }


def _store(
    store: StoreSpec, node: StatefulNode, subtopology: int | None, spread: str | None
) -> StoreFacts:
    layout = layout_of(store)
    if spread is not None:
        layout = layout._replace(key=f"{layout.key}, spread by {spread}")
    return StoreFacts(
        layout=layout,
        subtopology=subtopology,
        retention_ms=store.retention_ms,
        changelog=(store.source_topic or store.changelog) if store.logging else "",
        node=node.name,
        where=store.where or node.where,
        private=_why_private(store),
    )


def _why_private(store: StoreSpec) -> str:
    if store.private:
        return "its bytes are internal to each of the two"
    if isinstance(store.value_serde, PackedSerde):
        return (
            "its values are everflow's packed structs; a single aggregate, or value=serdes.json("
            "...) of a Python aggregate, has bytes that Java can have written"
        )
    return ""


def _table(node: WholeTableNode) -> str:
    origin = f"topic {node.topic}" if isinstance(node, GlobalTableNode) else "a DataFrame"
    return f"{origin}; {'; '.join(layout_of(node.store))}"


# --- what results are made of ---------------------------------------------------------------------


def outputs_of(graph: Graph) -> dict[str, OutputFacts]:
    """Of each topic and sink that is written for others than the program itself."""
    by_name = {node.name: node for node in graph.nodes}
    feeding = _feeding(graph)
    ends: dict[str, list[Node]] = {}
    for node in graph.nodes:
        name = _output_name(node)
        if name:
            ends.setdefault(name, []).append(node)
    found = {}
    for name, last in ends.items():
        parts = [by_name[one] for one in _behind([node.name for node in last], feeding)]
        texts = {node.name: _made_text(node) for node in parts}
        edges = sorted(
            f"{texts[node.name]} <- {sorted(texts[one] for one in feeding[node.name])}"
            for node in parts
        )
        stores = {store.name for one in parts for store in _stores_of(one)}
        found[name] = OutputFacts(
            made=_digest(edge.encode() for edge in edges),
            nodes=tuple(sorted(node.name for node in parts)),
            stores=tuple(sorted(stores)),
            shown=", ".join(sorted({_types(node) for node in last})),
            where=last[0].where,
        )
    return found


def _output_name(node: Node) -> str:
    match node:
        case SinkNode(kind="sink", topic=str(topic)):
            return f"topic {topic}"
        case SinkNode(kind="sink") | WriteNode():
            return f"sink {node.name}"
        case _:
            return ""


def _feeding(graph: Graph) -> dict[str, set[str]]:
    """By node, those whose records, or whose stores' rows, it gets."""
    writers: dict[str, set[str]] = {}
    for node in graph.nodes:
        if isinstance(node, SinkNode) and node.kind == "repartition":
            writers.setdefault(f"topic {node.topic}", set()).add(node.name)
        for store in _stores_of(node):
            writers.setdefault(f"store {store.name}", set()).add(node.name)
    found = {}
    for node in graph.nodes:
        read = [f"store {store.name}" for store in _read_by(node)]
        if isinstance(node, SourceNode) and node.kind == "repartition":
            read += [f"topic {topic}" for topic in node.topics]
        found[node.name] = {*node.inputs}.union(*(writers.get(one, set()) for one in read))
        found[node.name].discard(node.name)
    return found


def _stores_of(node: Node) -> tuple[StoreSpec, ...]:
    match node:
        case StatefulNode(stores=stores):
            return stores
        case WholeTableNode(store=store):
            return (store,)
        case _:
            return ()


def _read_by(node: Node) -> tuple[StoreSpec, ...]:
    if not isinstance(node, StatefulNode):
        return ()
    return (*node.reads, *node.operator.looks_up, *node.stores)  # processors may share theirs


def _behind(names: Iterable[str], feeding: Mapping[str, set[str]]) -> set[str]:
    found, todo = set[str](), list(names)
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += feeding[one]
    return found


def _made_text(node: Node) -> str:
    """A repartition topic makes nothing of its records, however it is called."""
    if isinstance(node, SourceNode | SinkNode) and node.kind == "repartition":
        return f"repartition {_types(node)}"
    kept = [f"{store.retention_ms}" for store in _stores_of(node)]
    return f"{text_of(node)} {', '.join(kept)}"


def _types(node: Node) -> str:
    return f"{type_text(node.out.key)} -> {type_text(node.out.value)}"


# --- what a node computes, without names ----------------------------------------------------------

_NAMES = frozenset(
    {"name", "inputs", "where", "stores", "reads", "parts", "store", "through", "source", "firsts"}
)
"""Fields of nodes and operators that name things; stores and topics are compared by themselves."""


def text_of(node: Node) -> str:
    """Label, what is computed, and the types of the output. Two nodes with one text do the same, as
    far as can be seen: a function is its code and the values that it has closed over."""
    shown = f"{type_text(node.out.key)} -> {type_text(node.out.value)}"
    return f"{_text(node, frozenset({'out'}))}: {shown}"


def shown_of(node: Node) -> str:
    """``FILTER value.n > 3: string -> struct<n:bigint>``."""
    label = getattr(node, "label", None) or type(node).__name__.removesuffix("Node").upper()
    parts = [label]
    for one in fields(node):
        value = getattr(node, one.name)
        if isinstance(value, ColumnExpr):
            parts.append(str(value.column).removeprefix("Column<'").removesuffix("'>"))
        elif callable(value) and hasattr(value, "__qualname__"):
            parts.append(f"{value.__qualname__}()")
    if isinstance(node, SinkNode) and isinstance(node.topic, str):
        parts.append(f"to {node.topic}")
    return f"{' '.join(parts)}: {type_text(node.out.key)} -> {type_text(node.out.value)}"


def _text(value: Any, without: Collection[str] = ()) -> str:
    if value is None or isinstance(value, str | int | float | bool | bytes):
        return repr(value)
    if isinstance(value, ColumnExpr):
        return f"{value.column}"
    if isinstance(value, StoreSpec):
        return "a store"
    if hasattr(value, "encode_array"):  # a serde
        return serde_words(value)
    if isinstance(value, pa.DataType):
        return str(value)
    if isinstance(value, re.Pattern):
        return str(value.pattern)
    if is_dataclass(value) and not isinstance(value, type):
        shown = {
            one.name: _text(getattr(value, one.name))
            for one in fields(value)
            if one.name not in _NAMES and one.name not in without
        }
        parts = [f"{name}={text}" for name, text in shown.items() if text != "None"]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(sorted(f"{_text(k)}: {_text(v)}" for k, v in value.items())) + "}"
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, type):
        return f"{value.__qualname__} {_digest(_code_of_class(value))}"
    if callable(value) and hasattr(value, "__code__"):
        return f"{value.__qualname__} {_digest(_code_of(value))}"
    if hasattr(value, "__wrapped__"):
        return _text(value.__wrapped__)
    return type(value).__qualname__


def _code_of(fn: Callable[..., Any]) -> Iterator[bytes]:
    """What a function does: its code, defaults, and the plain values that it has closed over."""
    yield from _code(fn.__code__)
    yield repr(getattr(fn, "__defaults__", None)).encode()
    for cell in getattr(fn, "__closure__", None) or ():
        try:
            content = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        if hasattr(content, "__code__"):
            yield from _code(content.__code__)
        elif content is None or isinstance(content, str | int | float | bool | bytes | tuple):
            yield repr(content).encode()


def _code(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant).encode()


def _code_of_class(kind: type) -> Iterator[bytes]:
    for name, value in sorted(vars(kind).items()):
        if hasattr(value, "__code__"):
            yield name.encode()
            yield from _code(value.__code__)


def _digest(parts: Iterable[bytes]) -> str:
    found = blake2b(digest_size=4)
    for part in parts:
        found.update(part)
        found.update(b"\0")
    return found.hexdigest()


# --- facts as JSON: a program is read in a process of its own -------------------------------------


def to_json(facts: ProgramFacts) -> str:
    def plain(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        if isinstance(value, Mapping):
            return {str(key): plain(one) for key, one in value.items()}
        if isinstance(value, frozenset):
            return sorted(value)
        if isinstance(value, tuple):
            return [plain(one) for one in value]
        return value

    return json.dumps(plain(facts))


def from_json(text: str) -> ProgramFacts:
    """Inverse of `to_json`."""
    data = json.loads(text)

    def layout(kept: Any) -> Kept:
        return kept if isinstance(kept, str) else StoreLayout(*kept)

    def words(kept: Any) -> Any:
        return tuple(kept) if isinstance(kept, list) else kept

    return ProgramFacts(
        **{
            **data,
            "stores": {
                name: StoreFacts(**{**one, "layout": layout(one["layout"])})
                for name, one in data["stores"].items()
            },
            "repartition": {
                name: RepartitionFacts(**{**one, "words": words(one["words"])})
                for name, one in data["repartition"].items()
            },
            "subtopologies": data["subtopologies"]
            and {
                int(number): SubTopologyFacts(**_tuples(one))
                for number, one in data["subtopologies"].items()
            },
            "nodes": None
            if data["nodes"] is None
            else tuple(NodeFacts(**one) for one in data["nodes"]),
            "outputs": data["outputs"]
            and {name: OutputFacts(**_tuples(one)) for name, one in data["outputs"].items()},
            "topics": frozenset(data["topics"]),
            "misfits": tuple(Misfit(**one) for one in data["misfits"]),
        }
    )


def _tuples(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(one) if isinstance(one, list) else one for name, one in data.items()}
