"""Says what a store's bytes mean; refuses to read them as something else. Pure.

Equal words mean bytes that are read alike (note 013). They are written beside every committed
offset, so that an instance with nothing but changelogs knows them. `fingerprint` lists what must be
the same in all instances of a group: stateless operators may change in a rolling upgrade.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa

from everflow.errors import StoreLayoutError, start_over
from everflow.serdes import (
    BooleanSerde,
    BytesSerde,
    DoubleSerde,
    FloatSerde,
    IntegerSerde,
    JsonSerde,
    PackedSerde,
    Serde,
    StringSerde,
)
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.serdes.by_record import ByRecord
from everflow.serdes.lists import ListSerde
from everflow.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde
from everflow.state.store import StoreSpec
from everflow.topology.graph import GlobalTableNode, Graph, SourceNode, StatefulNode
from everflow.topology.partitioners import spread_otherwise
from everflow.topology.subtopologies import SubTopologies, SubTopology
from everflow.user_program import place

_NAMED_BY_TYPE = (
    *(BytesSerde, StringSerde, BooleanSerde, IntegerSerde, FloatSerde, DoubleSerde),
    PackedSerde,
)


class StoreLayout(NamedTuple):
    """Kind, key type and value type of a store, as people read them."""

    kind: str
    key: str
    value: str


Kept = StoreLayout | str
"""A layout; only its `digest` where its words did not fit."""


def layout_of(store: StoreSpec) -> StoreLayout:
    size = "" if store.window_size_ms is None else f" of {store.window_size_ms} ms"
    key = serde_words(store.key_serde, key=True)
    return StoreLayout(f"{store.kind}{size}", key, serde_words(store.value_serde, store.folds))


def serde_words(serde: Serde, folds: tuple[str, ...] = (), *, key: bool = False) -> str:
    """Types and format of what ``serde`` writes; ``folds`` as in `StoreSpec`.

    JSON is read by the names of fields, so their order does not count, unless it is a ``key``: keys
    are equal if their bytes are. What only the user's own serde knows is called by its class.
    """
    if isinstance(serde, TimeWindowedSerde):
        return f"{serde_words(serde.inner, key=True)} in windows of {serde.size_ms} ms"
    if isinstance(serde, SessionWindowedSerde):
        return f"{serde_words(serde.inner, key=True)} in sessions"
    if isinstance(serde, ListSerde):
        return f"list of {serde_words(serde.inner, key=key)}"
    if isinstance(serde, JsonSerde):
        return f"{_words(serde.type, folds, ordered=key, ordered_inside=key)} as JSON"
    if isinstance(serde, _NAMED_BY_TYPE):
        # Inside a packed field there is JSON.
        return _words(serde.type, folds, ordered=True, ordered_inside=key)
    own = serde.own if isinstance(serde, ByRecord) else serde
    return f"{_words(serde.type, folds, ordered=True, ordered_inside=True)} as {type(own).__name__}"


def digest(layout: StoreLayout) -> str:
    """Stands for a layout in 17 characters."""
    return "#" + blake2b(_json(layout).encode(), digest_size=8).hexdigest()


def to_text(layouts: Mapping[str, Kept], most_characters: int) -> str:
    """JSON of layouts by the stores' names, of ``most_characters`` at most (see `idle_sources`):
    the longest become digests. Empty if even those take more: then nothing is kept."""
    kept = dict(layouts)
    for name in sorted(kept, key=lambda name: len(_json(kept[name])), reverse=True):
        if len(_json(kept)) <= most_characters:
            break
        layout = kept[name]
        kept[name] = layout if isinstance(layout, str) else digest(layout)
    text = _json(kept)
    return text if len(text) <= most_characters else ""


def from_json(data: Mapping[str, Any]) -> dict[str, Kept]:
    """Inverse of `to_text`, of the parsed JSON; what no release has written is left out."""
    return {
        name: value if isinstance(value, str) else StoreLayout(*value)
        for name, value in data.items()
        if isinstance(value, str)
        or (isinstance(value, list) and len(value) == len(StoreLayout._fields))
    }


_TOPIC = "*"
"""Begins an entry that is no store's. Alone it says that repartition topics are among them."""


def beside_topics(kept: Mapping[str, Kept], repartition: Iterable[str]) -> dict[str, Kept]:
    """``kept`` with the names of the program's repartition topics (without the application's id),
    so that a later start can tell one that is new from one that was lost."""
    return {**kept, _TOPIC: "", **{f"{_TOPIC}{name}": "" for name in repartition}}


def topics_in(found: Iterable[Mapping[str, Kept]]) -> dict[str, frozenset[str]]:
    """The internal topics that the programs had, without the application's id, by their kinds, of
    which one may be left out. ``found``: beside committed offsets."""
    names = frozenset(name for one in found for name in one)
    if not names:
        return {}
    stores = {name for name in names if not name.startswith(_TOPIC)}
    known = {"changelog": frozenset(f"{name}-changelog" for name in stores)}
    if _TOPIC in names:
        topics = (name.removeprefix(_TOPIC) for name in names - stores)
        known["repartition"] = frozenset(topics) - {""}
    return known


def layouts_to_keep(
    application_id: str, graph: Graph, found: Iterable[Mapping[str, Kept]]
) -> dict[str, Kept]:
    """Those to be written from now on: of the program's stores, and of those that it no longer has,
    as ``found``. StoreLayoutError for one that was written otherwise than it is read."""
    nodes = [node for node in graph.nodes if isinstance(node, StatefulNode)]
    stores = {store.name: (node, store) for node in nodes for store in node.stores}
    spread = spread_otherwise(graph)
    mine = {name: layout_of(store) for name, (_, store) in stores.items()}
    for name in mine.keys() & spread.keys():
        mine[name] = mine[name]._replace(key=f"{mine[name].key}, spread by {spread[name]}")
    known = [entry for one in found for entry in one.items()]
    wrong = {
        name: differs
        for name, kept in known
        if name in mine and (differs := difference(kept, mine[name]))
    }
    if wrong:
        raise _refusal(
            application_id,
            "\n".join(
                _described(*stores[name], differs) for name, differs in sorted(wrong.items())
            ),
        )
    return {**dict(known), **mine}


def require_readable(application_id: str, graph: Graph) -> None:
    """StoreLayoutError for stores whose bytes Kafka Streams, which ran before, writes otherwise."""
    stores = [
        (node, store, why)
        for node in graph.nodes
        if isinstance(node, StatefulNode)
        for store in node.stores
        if (why := _why_private(store))
    ]
    if stores:
        listed = "\n".join(_described(node, store, why) for node, store, why in stores)
        raise StoreLayoutError(
            f"Application {application_id} was run by Kafka Streams (Java), and everflow cannot "
            f"read what that keeps in these stores, so it was not started.\n{listed}\n"
            "Nothing was read or changed, and the Java application can go on. To go on here, leave "
            "these operators to an application of their own, whose input is what this one writes; "
            "or give the program an application.id of its own: it makes its stores anew, from the "
            f"input. docs/guide/taking-over.md says more.\n{start_over(application_id)}",
            difference=listed,
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


def difference(stored: Kept, now: StoreLayout) -> str:
    """Two lines for each part that differs; empty if none does."""
    if isinstance(stored, str):
        other = (
            f"stored: another layout, which was too long to be kept in words ({stored})\nnow:  "
            f"  {'; '.join(now)}"
        )
        return "" if stored == digest(now) else other
    parts = zip(StoreLayout._fields, stored, now, strict=True)
    return "\n".join(
        f"{part} stored: {then}\n{part} now:    {new}" for part, then, new in parts if then != new
    )


def _described(node: StatefulNode, store: StoreSpec, differs: str) -> str:
    where = store.where or node.where
    lines = [
        f"store {store.name} of {node.name}{f', at {place(where)}' if where else ''}",
        *differs.splitlines(),
    ]
    return "\n    ".join([f"  {lines[0]}", *lines[1:]])


def _refusal(application_id: str, differs: str) -> StoreLayoutError:
    return StoreLayoutError(
        f"Application {application_id} has stored something else than this program reads, so it "
        f"was not started.\n{differs}\nRead as it is written now, what is stored would give wrong "
        "figures. Nothing was read or changed; instances that run the old program go on.\nTo keep "
        "what is stored, write the operator as it was. To keep the change, give the program an "
        "application.id of its own: it makes its stores anew, from the input as auto.offset.reset "
        "says; or give the store another name and start once with --create-new-topics: it begins "
        f"empty, with what is read from then on.\n{start_over(application_id)}",
        difference=differs,
    )


def _json(data: object) -> str:
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


# --- types in words -------------------------------------------------------------------------------


def _words(
    type_: pa.DataType, folds: tuple[str, ...], *, ordered: bool, ordered_inside: bool
) -> str:
    """A type, of a struct its fields; without null or not: the bytes are the same."""
    fields = (
        _fields(type_, ordered, ordered_inside)
        if pa.types.is_struct(type_)
        else [_type(type_, ordered_inside)]
    )
    if folds:
        fields = [f"{field} ({fold})" for field, fold in zip(fields, folds, strict=True)]
    return ", ".join(fields)


def _fields(type_: pa.DataType, ordered: bool, ordered_inside: bool) -> list[str]:
    fields = list(type_) if ordered else sorted(type_, key=lambda field: field.name)
    return [f"{_name(field.name)} {_type(field.type, ordered_inside)}" for field in fields]


def _type(type_: pa.DataType, ordered: bool) -> str:
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(_fields(type_, ordered, ordered))}>"
    if pa.types.is_map(type_):
        return f"map<{_type(type_.key_type, ordered)}, {_type(type_.item_type, ordered)}>"
    if pa.types.is_list(type_):
        return f"array<{_type(type_.value_type, ordered)}>"
    # Spark's word only where it says all: not of other units of time, widths of offsets or
    # decimals, which have other bytes.
    exact = normal_type(type_) == type_ and not pa.types.is_decimal256(type_)
    return type_text(type_) if exact else str(type_)


def _name(name: str) -> str:
    return name if re.fullmatch(r"[\w.]+", name) else "`" + name.replace("`", "``") + "`"


_LINES_SHOWN = 12


def fingerprint(subs: SubTopologies) -> tuple[str, ...]:
    """Sorted lines without the application id: of input and repartition topics and stores."""
    kept = []
    for one in subs.global_tables:
        topic = one.node.topic if isinstance(one.node, GlobalTableNode) else None
        origin = "a DataFrame" if topic is None else f"topic {topic}"
        kept.append(f"sub-topology {one.index} keeps all of {origin} in {_store(one.node.store)}")
    spread = spread_otherwise(subs.topology)
    kept += [f"store {store} is spread by {by}" for store, by in spread.items()]
    return tuple(sorted([line for sub in subs.subtopologies for line in _lines(sub)] + kept))


def differing_lines(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """The lines that only one side has (``+`` here, ``-`` there), at most 12."""
    only_mine, only_theirs = set(mine) - set(theirs), set(theirs) - set(mine)
    # Sorted by the line, so that the two versions of a store stand side by side.
    lines = sorted(
        [(line, "+", "only here") for line in only_mine]
        + [(line, "-", "only there") for line in only_theirs]
    )
    shown = [f"  {sign} {line}   ({where})" for line, sign, where in lines[:_LINES_SHOWN]]
    if len(lines) > _LINES_SHOWN:
        shown.append(f"  ... and {len(lines) - _LINES_SHOWN} lines more")
    return "\n".join(shown)


def _lines(sub: SubTopology) -> list[str]:
    at = f"sub-topology {sub.index}"
    sources = {
        topic: node for node in sub.nodes if isinstance(node, SourceNode) for topic in node.topics
    }
    # Not the types of the user's topics: what an instance reads of a record is its own affair until
    # it is stored.
    lines = [f"{at} reads {_named(sources[topic], topic)}" for topic in sub.source_topics]
    for topic in sub.repartition_sources:
        key = serde_words(sources[topic].key_serde, key=True)
        value = serde_words(sources[topic].value_serde)
        lines.append(f"{at} reads repartition topic {topic} (key {key}, value {value})")
    lines += [f"{at} writes repartition topic {topic}" for topic in sub.repartition_sinks]
    # A pattern once: an instance that starts when there is one topic more fits the others.
    return list(dict.fromkeys(lines)) + [f"{at} has {_store(store)}" for store in sub.stores]


def _named(source: SourceNode, topic: str) -> str:
    pattern = source.reading.pattern
    return f"topic {topic}" if pattern is None else f"topics that match {pattern.pattern}"


def _store(store: StoreSpec) -> str:
    facts = [f"{store.kind} store {store.name}"]
    if store.retention_ms is not None:
        facts.append(f"retention {store.retention_ms} ms")
    if store.window_size_ms is not None:
        facts.append(f"window {store.window_size_ms} ms")
    changelog = store.source_topic or store.changelog
    facts.append(f"changelog {changelog}" if store.logging else "no changelog")
    layout = layout_of(store)
    return ", ".join(facts) + f" (key {layout.key}, value {layout.value})"
