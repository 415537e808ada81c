"""Says what a change of a program needs: nothing, a rolling bounce, a migration or a reset. Pure.

Two programs are compared by what outlives their instances (note 067): stores, repartition topics,
input topics and the numbers of sub-topologies, which name tasks. Everything else may change while
instances are replaced one by one. The words are those of `everflow.topology.store_layouts`, so
`everflow check` and the start of an instance judge alike.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from difflib import SequenceMatcher
from enum import IntEnum
from hashlib import blake2b
from types import CodeType, MappingProxyType
from typing import Any

import pyarrow as pa

from everflow.serdes.arrow_types import type_text
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    ColumnExpr,
    GlobalTableNode,
    Node,
    SinkNode,
    SourceNode,
    StatefulNode,
    WholeTableNode,
)
from everflow.topology.partitioners import spread_otherwise
from everflow.topology.store_layouts import (
    Kept,
    StoreLayout,
    difference,
    layout_of,
    serde_words,
)
from everflow.topology.subtopologies import SubTopologies
from everflow.user_program import place


class Effect(IntEnum):
    """What a change needs, the harmless first."""

    SAME = 0
    BOUNCE = 1
    MIGRATION = 2
    RESET = 3

    @property
    def text(self) -> str:
        return _EFFECTS[self]


_EFFECTS = {
    Effect.SAME: "same",
    Effect.BOUNCE: "safe by a rolling bounce",
    Effect.MIGRATION: "needs a migration",
    Effect.RESET: "needs a reset",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One difference. ``kind``: store, repartition topic, input topic, sub-topology, global table,
    partitions or node; ``where``: file and line of the new program, else of the old one."""

    effect: Effect
    kind: str
    name: str
    reason: str
    before: str = ""
    after: str = ""
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class StoreFacts:
    """``layout``: its words, or their digest. ``changelog``: without the application id; empty: it
    has none. ``subtopology``: None where it is not known."""

    layout: Kept
    subtopology: int | None = None
    retention_ms: int | None = None
    changelog: str | None = None
    node: str = ""
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class RepartitionFacts:
    """``words``: of its keys and values, as `serde_words`; None where they are not known.
    ``partitions``: as declared; None: as many as its inputs have."""

    words: tuple[str, str] | None = None
    partitions: int | None = None
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class SubTopologyFacts:
    """What a sub-topology reads: the user's topics (or a pattern), and repartition topics."""

    topics: tuple[str, ...]
    repartition: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NodeFacts:
    """``text``: what it computes and emits, without names, for the comparison; ``shown``: label,
    expressions and types, for people."""

    name: str
    text: str
    shown: str
    where: str | None = None


@dataclass(frozen=True, kw_only=True)
class ProgramFacts:
    """What is compared of a program. ``nodes``: None of an application that is known by its topics
    and committed offsets alone; ``partitions``: of its topics, where a cluster was asked."""

    stores: Mapping[str, StoreFacts]
    repartition: Mapping[str, RepartitionFacts]
    subtopologies: Mapping[int, SubTopologyFacts] | None
    tables: Mapping[str, str]
    nodes: tuple[NodeFacts, ...] | None
    topics: frozenset[str]
    partitions: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def facts_of(subs: SubTopologies) -> ProgramFacts:
    """Of a program that was cut (`everflow.topology.subtopologies.cut`)."""
    graph = subs.topology
    spread = spread_otherwise(graph)
    declared = {topic.name: topic for topic in graph.repartition_topics}
    stores: dict[str, StoreFacts] = {}
    repartition: dict[str, RepartitionFacts] = {}
    within: dict[int, SubTopologyFacts] = {}
    for sub in subs.subtopologies:
        within[sub.index] = SubTopologyFacts(
            topics=tuple(sorted(set(_inputs(sub.nodes)))), repartition=sub.repartition_sources
        )
        for node in sub.nodes:
            if isinstance(node, SourceNode) and node.kind == "repartition":
                for topic in node.topics:
                    repartition[topic] = RepartitionFacts(
                        words=_types(node),
                        partitions=declared[topic].partitions if topic in declared else None,
                        where=node.where,
                    )
            elif isinstance(node, StatefulNode):
                for store in node.stores:
                    stores[store.name] = _store(store, node, sub.index, spread.get(store.name))
    return ProgramFacts(
        stores=stores,
        repartition=repartition,
        subtopologies=within,
        tables={one.node.store.name: _table(one.node) for one in subs.global_tables},
        nodes=tuple(
            NodeFacts(name=node.name, text=text_of(node), shown=shown_of(node), where=node.where)
            for node in graph.nodes
        ),
        topics=frozenset(subs.topics),
    )


def _types(source: SourceNode) -> tuple[str, str]:
    return serde_words(source.key_serde, key=True), serde_words(source.value_serde)


def _inputs(nodes: Iterable[Node]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, SourceNode) and node.kind != "repartition":
            pattern = node.reading.pattern
            yield from node.topics if pattern is None else (f"pattern {pattern.pattern}",)


def _store(
    store: StoreSpec, node: StatefulNode, subtopology: int, spread: str | None
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
    )


def _table(node: WholeTableNode) -> str:
    origin = f"topic {node.topic}" if isinstance(node, GlobalTableNode) else "a DataFrame"
    return f"{origin}; {'; '.join(layout_of(node.store))}"


# --- what a node computes, without names ----------------------------------------------------------

_NAMES = frozenset(
    {"name", "inputs", "where", "stores", "reads", "parts", "store", "through", "source"}
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


# --- the comparison -------------------------------------------------------------------------------


def changes(old: ProgramFacts, new: ProgramFacts) -> list[Change]:
    """The differences, the gravest first; empty: the programs are the same, as far as is known."""
    renamed = _renamed(old, new)
    found = [
        *_stores(old, new, renamed),
        *_repartition(old, new),
        *_subtopologies(old, new, renamed),
        *_tables(old, new),
        *_nodes(old, new),
    ]
    return sorted(found, key=lambda change: (-change.effect, change.kind, change.name))


def effect_of(found: Sequence[Change]) -> Effect:
    return max((change.effect for change in found), default=Effect.SAME)


_GENERATED = re.compile(r"-\d{10}$")


def _renamed(old: ProgramFacts, new: ProgramFacts) -> dict[str, str]:
    """Stores of the old program that the new one has under another name: of the same layout, and
    in the order of the names, so that generated names that have shifted find their own."""
    gone = sorted(old.stores.keys() - new.stores.keys())
    fresh = sorted(new.stores.keys() - old.stores.keys())
    found: dict[str, str] = {}
    for name in gone:
        mine = old.stores[name]
        for other in fresh:
            its = new.stores[other]
            alike = not _layout_differs(mine, its) and mine.retention_ms == its.retention_ms
            if alike and other not in found.values():
                found[name] = other
                break
    return found


def _layout_differs(old: StoreFacts, new: StoreFacts) -> str:
    if isinstance(new.layout, str):
        return "" if old.layout == new.layout else "another layout"
    return difference(old.layout, new.layout)


def _stores(old: ProgramFacts, new: ProgramFacts, renamed: Mapping[str, str]) -> Iterator[Change]:
    for name, other in renamed.items():
        generated = _GENERATED.search(name) is not None
        yield Change(
            effect=Effect.MIGRATION,
            kind="store",
            name=name,
            reason=f"it is called {other} in the new program, and so is its changelog"
            + (
                ": its name is generated from the number of operators before it, so an operator "
                "was inserted or removed there. Name the store, as in store='counts', and no later "
                "change moves it"
                if generated
                else ""
            ),
            before=name,
            after=other,
            where=new.stores[other].where,
        )
    for name in sorted(old.stores.keys() & new.stores.keys()):
        yield from _store_changes(name, old.stores[name], new.stores[name])
    for name in sorted(old.stores.keys() - new.stores.keys() - renamed.keys()):
        yield Change(
            effect=Effect.MIGRATION,
            kind="store",
            name=name,
            reason="the new program does not have it; its changelog stays until it is deleted",
            before=_words(old.stores[name].layout),
            where=old.stores[name].where,
        )
    for name in sorted(new.stores.keys() - old.stores.keys() - set(renamed.values())):
        yield Change(
            effect=Effect.MIGRATION,
            kind="store",
            name=name,
            reason="it is new: from inputs that are read already it gets only records to come, "
            "unless a migration fills it",
            after=_words(new.stores[name].layout),
            where=new.stores[name].where,
        )


def _store_changes(name: str, old: StoreFacts, new: StoreFacts) -> Iterator[Change]:
    def change(effect: Effect, reason: str, before: object, after: object) -> Change:
        return Change(
            effect=effect,
            kind="store",
            name=name,
            reason=reason,
            before=str(before),
            after=str(after),
            where=new.where or old.where,
        )

    if _layout_differs(old, new):
        effect, reason = _of_layouts(old.layout, new.layout)
        yield change(effect, reason, _words(old.layout), _words(new.layout))
    if old.retention_ms != new.retention_ms and old.subtopology is not None:
        yield change(
            Effect.MIGRATION,
            "its retention changes: the store is rebuilt, and what the old retention has deleted "
            "is not there",
            f"{old.retention_ms} ms",
            f"{new.retention_ms} ms",
        )
    if old.changelog is not None and old.changelog != new.changelog:
        yield change(
            Effect.MIGRATION,
            "its changelog changes",
            old.changelog or "none",
            new.changelog or "none",
        )


def _of_layouts(old: Kept, new: Kept) -> tuple[Effect, str]:
    if isinstance(old, str) or isinstance(new, str):
        return Effect.MIGRATION, "it holds something else; what, was too long to be kept in words"
    if old.kind != new.kind:
        return Effect.RESET, "it is another kind of store, or has windows of another size"
    if old.key != new.key:
        return Effect.RESET, "its keys have another type or are spread otherwise"
    return Effect.MIGRATION, "its values have another type or format"


def _words(layout: Kept) -> str:
    if isinstance(layout, str):
        return layout
    return f"{layout.kind}, key {layout.key}, value {layout.value}"


def _repartition(old: ProgramFacts, new: ProgramFacts) -> Iterator[Change]:
    for name in sorted(old.repartition.keys() | new.repartition.keys()):
        mine, its = old.repartition.get(name), new.repartition.get(name)
        where = (its or mine or RepartitionFacts()).where
        if mine is None or its is None:
            yield Change(
                effect=Effect.MIGRATION,
                kind="repartition topic",
                name=name,
                reason="it is new"
                if mine is None
                else "the new program does not have it; records that wait in it would not be read",
                where=where,
            )
            continue
        if mine.words is not None and its.words is not None and mine.words != its.words:
            key = mine.words[0] != its.words[0]
            yield Change(
                effect=Effect.RESET if key else Effect.MIGRATION,
                kind="repartition topic",
                name=name,
                reason=f"its {'keys' if key else 'values'} have another type or format: records "
                "that wait in it would be read wrongly",
                before=f"key {mine.words[0]}, value {mine.words[1]}",
                after=f"key {its.words[0]}, value {its.words[1]}",
                where=where,
            )
        if mine.partitions != its.partitions and None not in (mine.partitions, its.partitions):
            yield _partitions(name, mine.partitions, its.partitions, where)


def _partitions(name: str, old: int | None, new: int | None, where: str | None) -> Change:
    return Change(
        effect=Effect.MIGRATION,
        kind="partitions",
        name=name,
        reason="the number of its partitions changes, so keys belong to other tasks",
        before=str(old),
        after=str(new),
        where=where,
    )


def _subtopologies(
    old: ProgramFacts, new: ProgramFacts, renamed: Mapping[str, str]
) -> Iterator[Change]:
    if old.subtopologies is None or new.subtopologies is None:
        yield from _topics("", old.topics, new.topics)
        return
    pairs = _paired(old, new, renamed)
    for number, facts in sorted(old.subtopologies.items()):
        other = pairs.get(number)
        if other is None:
            yield from _topics(f"sub-topology {number}, ", facts.topics, ())
            continue
        yield from _topics(f"sub-topology {other}, ", facts.topics, new.subtopologies[other].topics)
        if other != number:
            yield Change(
                effect=Effect.MIGRATION,
                kind="sub-topology",
                name=str(number),
                reason=f"it is number {other} in the new program, so its tasks {number}_0, ... "
                f"are called {other}_0, ...: numbers follow the names of the sources",
                before=str(number),
                after=str(other),
            )
    for number in sorted(new.subtopologies.keys() - set(pairs.values())):
        facts = new.subtopologies[number]
        if facts.topics:
            yield from _topics(f"sub-topology {number}, ", (), facts.topics)


def _paired(old: ProgramFacts, new: ProgramFacts, renamed: Mapping[str, str]) -> dict[int, int]:
    """Old sub-topologies and the new ones that have their stores, else their inputs."""
    assert old.subtopologies is not None
    assert new.subtopologies is not None
    votes: dict[tuple[int, int], int] = {}

    def vote(mine: int | None, its: int | None, weight: int) -> None:
        if mine is not None and its is not None:
            votes[mine, its] = votes.get((mine, its), 0) + weight

    for name, facts in old.stores.items():
        other = new.stores.get(renamed.get(name, name))
        vote(facts.subtopology, None if other is None else other.subtopology, 100)
    for mine, read in old.subtopologies.items():
        for its, reads in new.subtopologies.items():
            shared = {*read.topics, *read.repartition} & {*reads.topics, *reads.repartition}
            vote(mine, its, len(shared) + (mine == its and bool(shared)))
    found: dict[int, int] = {}
    for (mine, its), weight in sorted(votes.items(), key=lambda item: (-item[1], item[0])):
        if weight and mine not in found and its not in found.values():
            found[mine] = its
    return found


def _topics(where: str, old: Collection[str], new: Collection[str]) -> Iterator[Change]:
    for topic in sorted(set(old) - set(new)):
        yield Change(
            effect=Effect.MIGRATION,
            kind="input topic",
            name=topic,
            reason=f"{where}the new program does not read it",
            before="read",
        )
    for topic in sorted(set(new) - set(old)):
        yield Change(
            effect=Effect.MIGRATION,
            kind="input topic",
            name=topic,
            reason=f"{where}the old program does not read it",
            after="read",
        )


def _tables(old: ProgramFacts, new: ProgramFacts) -> Iterator[Change]:
    for name in sorted(old.tables.keys() | new.tables.keys()):
        mine, its = old.tables.get(name, ""), new.tables.get(name, "")
        if mine != its:
            yield Change(
                effect=Effect.MIGRATION,
                kind="global table",
                name=name,
                reason="each instance loads it anew, and all instances need the same one",
                before=mine,
                after=its,
            )


def _nodes(old: ProgramFacts, new: ProgramFacts) -> Iterator[Change]:
    """Those that differ in more than their stores, in the order of the program."""
    if old.nodes is None or new.nodes is None:
        return
    mine, its = old.nodes, new.nodes
    told = {
        (facts.node, new.stores[name].node)
        for name, facts in old.stores.items()
        if name in new.stores and _layout_differs(facts, new.stores[name])
    }
    matched = SequenceMatcher(None, [n.text for n in mine], [n.text for n in its], autojunk=False)
    for what, begin, end, first, last in matched.get_opcodes():
        if what == "equal":
            for one, other in zip(mine[begin:end], its[first:last], strict=True):
                if one.name != other.name and not _shifted(one.name, other.name):
                    yield _node("it has another name", one, other)
            continue
        removed, added = list(mine[begin:end]), list(its[first:last])
        while removed and added:
            one, other = removed.pop(0), added.pop(0)
            if (one.name, other.name) not in told:
                yield _differs(one, other)
        for one in removed:
            yield _node("the new program does not have it", one, None)
        for other in added:
            yield _node("it is new", None, other)


def _shifted(one: str, other: str) -> bool:
    """Both names are generated, and differ in the number alone."""
    return _GENERATED.sub("", one) == _GENERATED.sub("", other)


def _differs(old: NodeFacts, new: NodeFacts) -> Change:
    if old.shown == new.shown:
        return replace(_node("it has other code or other arguments", old, new), before="", after="")
    return _node("it computes something else, or emits other types", old, new)


def _node(reason: str, old: NodeFacts | None, new: NodeFacts | None) -> Change:
    known = new or old
    assert known is not None
    return Change(
        effect=Effect.BOUNCE,
        kind="node",
        name=known.name,
        reason=reason,
        before=old.shown if old else "",
        after=new.shown if new else "",
        where=known.where,
    )


# --- the report -----------------------------------------------------------------------------------

_LONGEST = 160


def report(found: Sequence[Change]) -> str:
    """For people: the verdict, then the changes below what each of them needs."""
    lines = [effect_of(found).text]
    for effect in sorted({change.effect for change in found}, reverse=True):
        lines += ["", f"{effect.text}:"]
        for change in found:
            if change.effect is effect:
                at = f", at {place(change.where)}" if change.where else ""
                lines.append(f"  {change.kind} {change.name}{at}: {change.reason}")
                pair = {"before": change.before, "now": change.after}
                lines += [
                    f"      {word + ':':<8}{_short(text)}" for word, text in pair.items() if text
                ]
    return "\n".join(lines) + "\n"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def report_json(found: Sequence[Change]) -> str:
    """``{"verdict", "changes": [{"effect", "kind", "name", "reason", "before", "after",
    "where"}]}``; the effects are ``same``, ``bounce``, ``migration`` and ``reset``."""
    listed = [
        {
            "effect": change.effect.name.lower(),
            "kind": change.kind,
            "name": change.name,
            "reason": change.reason,
            "before": change.before,
            "after": change.after,
            "where": change.where,
        }
        for change in found
    ]
    verdict = effect_of(found).name.lower()
    return json.dumps({"verdict": verdict, "changes": listed}, indent=2)


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

    return ProgramFacts(
        stores={
            name: StoreFacts(**{**one, "layout": layout(one["layout"])})
            for name, one in data["stores"].items()
        },
        repartition={
            name: RepartitionFacts(**{**one, "words": one["words"] and tuple(one["words"])})
            for name, one in data["repartition"].items()
        },
        subtopologies=data["subtopologies"]
        and {
            int(number): SubTopologyFacts(
                topics=tuple(one["topics"]), repartition=tuple(one["repartition"])
            )
            for number, one in data["subtopologies"].items()
        },
        tables=data["tables"],
        nodes=None if data["nodes"] is None else tuple(NodeFacts(**one) for one in data["nodes"]),
        topics=frozenset(data["topics"]),
        partitions=data["partitions"],
    )
