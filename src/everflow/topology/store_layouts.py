"""Says what the bytes of stores and repartition topics mean, and keeps it beside offsets. Pure.

Equal words mean bytes that are read alike (note 013). They are written beside every committed
offset, so that an instance with nothing but changelogs knows them. `fingerprint` lists what must be
the same in all instances of a group: stateless operators may change in a rolling upgrade.
`everflow.topology.compatibility` compares, and refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import pyarrow as pa

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
from everflow.serdes.registered import Registered
from everflow.serdes.windowed import SessionWindowedSerde, TimeWindowedSerde
from everflow.state.store import StoreSpec
from everflow.topology.graph import GlobalTableNode, Graph, SourceNode
from everflow.topology.partitioners import spread_otherwise
from everflow.topology.stream_times import shared_by, timed_by, times_text
from everflow.topology.subtopologies import SubTopologies, SubTopology

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
    if isinstance(serde, Registered):
        # Values are read by the names of their fields; of keys the id of the schema is a part.
        schema = f" {digest([serde.schema.form])}" if key else ""
        words = _words(serde.type, folds, ordered=key, ordered_inside=key)
        return f"{words} as {serde.format_name}{schema}"
    if isinstance(serde, _NAMED_BY_TYPE):
        # Inside a packed field there is JSON.
        return _words(serde.type, folds, ordered=True, ordered_inside=key)
    own = serde.own if isinstance(serde, ByRecord) else serde
    return f"{_words(serde.type, folds, ordered=True, ordered_inside=True)} as {type(own).__name__}"


def repartition_words(graph: Graph) -> dict[str, tuple[str, str]]:
    """`serde_words` of keys and values by repartition topic, without the application's id."""
    return {
        topic: (serde_words(node.key_serde, key=True), serde_words(node.value_serde))
        for node in graph.nodes
        if isinstance(node, SourceNode) and node.kind == "repartition"
        for topic in node.topics
    }


def digest(words: Sequence[str]) -> str:
    """Stands for a layout, or other words, in 17 characters."""
    return "#" + blake2b(_json(words).encode(), digest_size=8).hexdigest()


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


# --- what is kept beside the layouts (note 067) ---------------------------------------------------

_TOPIC = "*"
"""Begins an entry that is no store's. Alone it says that repartition topics are among them; its
value is the digest of the program's `fingerprint`, then ``.N`` after the Nth other program.
``*name``: the digest of a repartition topic's words. Values are empty in the texts of earlier
releases, which pass on each entry whose value is a text."""
_SUB = "*:"
"""Begins an entry that is no topic's: ``*:N``: what sub-topology N reads, a line each."""
_GONE = "*:gone"
"""Entries of earlier programs, a line each, that the program of this text no longer has."""
TIMES = "*:times"
"""Whose the stream times beside the same offset are (`stream_times.times_text`)."""


def is_store(entry: str) -> bool:
    return not entry.startswith(_TOPIC)


def kept_text(
    kept: Mapping[str, Kept],
    subs: SubTopologies,
    found: Iterable[Mapping[str, Kept]],
    most_characters: int,
) -> str:
    """What is written beside offsets: ``kept``, the stores' layouts, and, where there is room, the
    digests of the program and of its repartition topics, whose the stream times are, and what its
    sub-topologies read.
    ``found``: beside the offsets of before. Empty as `to_text`."""
    texts = list(found)
    last, words = newest(texts), repartition_words(subs.topology)
    earlier = topics_in(texts).get("repartition", frozenset()) - words.keys()
    program = {_TOPIC: _program(last, digest(fingerprint(subs)))}
    topics: dict[str, Kept] = {
        **{f"{_TOPIC}{name}": last.get(f"{_TOPIC}{name}", "") for name in earlier},
        **{f"{_TOPIC}{name}": digest(one) for name, one in words.items()},
    }
    own = {store.name for sub in subs.subtopologies for store in sub.stores}
    gone = [*(kept.keys() - own), *(f"{_TOPIC}{name}" for name in earlier)]
    if gone:
        topics[_GONE] = "\n".join(sorted(gone))
    graph = subs.topology
    whose = times_text(timed_by(graph), last.get(TIMES), shared_by(graph))
    times: dict[str, Kept] = {TIMES: whose}
    reads = {f"{_SUB}{sub.index}": "\n".join(reads_of(sub)) for sub in subs.subtopologies}
    whole = _json({**kept, **program, **topics, **times, **reads})
    if len(whole) <= most_characters:
        return whole
    names = {entry: "" for entry in topics if not entry.startswith(_SUB)}
    shorter: list[dict[str, Kept]] = [
        {**program, **topics, **times},
        {**program, **topics},
        {**program, **names},
        {},
    ]
    texts_of = (to_text({**kept, **less}, most_characters) for less in shorter)
    return next(filter(None, texts_of), "")


def reads_of(sub: SubTopology) -> list[str]:
    """The user's topics, ``pattern P`` for those that match one, and ``*name`` of repartition
    topics."""
    reads: set[str] = set()
    for node in sub.nodes:
        if isinstance(node, SourceNode) and node.kind != "repartition":
            pattern = node.reading.pattern
            reads.update(node.topics if pattern is None else [f"{PATTERN}{pattern.pattern}"])
    return [*sorted(reads), *(f"{_TOPIC}{name}" for name in sub.repartition_sources)]


PATTERN = "pattern "
"""No topic's name has a space."""


def newest(found: Iterable[Mapping[str, Kept]]) -> dict[str, Kept]:
    """The entries of the program that committed last: a partition in which nothing was processed
    since has those of the program before."""
    texts = list(found)
    last = max(map(_programs_before, texts), default=0)
    return {
        entry: kept for one in texts if _programs_before(one) == last for entry, kept in one.items()
    }


def _programs_before(text: Mapping[str, Kept]) -> int:
    """-1: the text does not say which program it is of."""
    own = text.get(_TOPIC, "")
    if not isinstance(own, str) or not own:
        return -1
    number = own.partition(".")[2]
    return int(number) if number.isdecimal() else 0


def _program(last: Mapping[str, Kept], own: str) -> str:
    before = _programs_before(last)
    count = before if program_in(last) in (own, None) else before + 1
    return f"{own}.{count}" if count > 0 else own


def program_in(last: Mapping[str, Kept]) -> str | None:
    """The digest of the program's `fingerprint`; None where it was not kept."""
    own = last.get(_TOPIC, "")
    return (own.partition(".")[0] or None) if isinstance(own, str) else None


def repartition_in(last: Mapping[str, Kept]) -> dict[str, str]:
    """Repartition topics of `newest` entries, and the digest of each one's words, if it is kept."""
    return {
        entry.removeprefix(_TOPIC): kept if isinstance(kept, str) else ""
        for entry, kept in last.items()
        if entry.startswith(_TOPIC) and entry != _TOPIC and not entry.startswith(_SUB)
    }


def reads_in(last: Mapping[str, Kept]) -> dict[int, list[str]] | None:
    """`reads_of` by sub-topology, of `newest` entries; None where they were not kept."""
    found = {
        int(number): kept.split("\n")
        for entry, kept in last.items()
        if (number := entry.removeprefix(_SUB)).isdecimal()
        and entry.startswith(_SUB)
        and isinstance(kept, str)
        and kept
    }
    return found or None


def gone_in(last: Mapping[str, Kept]) -> frozenset[str]:
    """Entries, of `newest` ones, that the program no longer had."""
    kept = last.get(_GONE, "")
    return frozenset(kept.split("\n") if isinstance(kept, str) and kept else ())


def never_read(
    subs: SubTopologies,
    found: Iterable[Mapping[str, Kept]],
    read: Collection[str],
    existing: Collection[str],
    application_id: str,
) -> dict[int, tuple[list[str], list[str]]]:
    """Sub-topologies none of whose topics a program has read, by number: their ``existing``
    changelogs, and these topics, by full names. Empty where nothing was processed yet. ``found``:
    beside committed offsets; ``read``: topics with such. What a program is known to have read has
    lost its offsets: that is another matter."""
    texts = [one for one in found if one]
    if not texts:
        return {}
    prefix = f"{application_id}-"
    known = {*read}
    for topics in (topic for one in texts for topic in (reads_in(one) or {}).values()):
        known |= {re.sub(r"^\*", prefix, topic) for topic in topics}
    return {
        sub.index: (logs, list(sub.inputs(application_id)))
        for sub in subs.subtopologies
        if not known.intersection(sub.inputs(application_id))
        and (
            logs := [
                store.changelog_topic(application_id)
                for store in sub.stores
                if store.logging
                and store.source_topic is None
                and store.changelog_topic(application_id) in existing
            ]
        )
    }


def topics_in(found: Iterable[Mapping[str, Kept]]) -> dict[str, frozenset[str]]:
    """The internal topics that the programs had, without the application's id, by their kinds, of
    which one may be left out. ``found``: beside committed offsets."""
    names = frozenset(name for one in found for name in one)
    if not names:
        return {}
    stores = {name for name in names if is_store(name)}
    known = {"changelog": frozenset(f"{name}-changelog" for name in stores)}
    if _TOPIC in names:
        known["repartition"] = frozenset(repartition_in(dict.fromkeys(names, "")))
    return known


def differing_parts(stored: Kept, now: Kept) -> tuple[str, str] | None:
    """The parts that differ, as they are stored and as they are now; None if none does, or if it is
    not known what is stored (empty)."""
    if isinstance(stored, str) or isinstance(now, str):
        same = not stored or not now or _digest(stored) == _digest(now)
        return None if same else (words_of(stored), words_of(now))
    parts = list(zip(StoreLayout._fields, stored, now, strict=True))
    differ = [(part, then, new) for part, then, new in parts if then != new]
    if not differ:
        return None
    short = [(part, *differing_words(then, new)) for part, then, new in differ]
    return (
        "; ".join(f"{part} {then}" for part, then, _ in short),
        "; ".join(f"{part} {new}" for part, _, new in short),
    )


def differing_words(then: str, now: str) -> tuple[str, str]:
    """What differs of two words of types (`serde_words`): of structs the fields that came, went or
    have another type, inner ones by their paths, or the order of the fields; else the whole."""
    (before, then_as), (after, now_as) = _parsed(then), _parsed(now)
    if before is None or after is None:
        return then, now
    left, right = _differing(before, after, "")
    if then_as != now_as:
        left.append(f"written{then_as or ' as such'}")
        right.append(f"written{now_as or ' as such'}")
    return ", ".join(left), ", ".join(right)


def differing_types(then: str, now: str) -> tuple[str, str]:
    """As `differing_words`, of the types of a node's results (``string -> struct<a:int>``) behind
    its label; the whole where more than the type of the values differs."""
    (head, _, before), (its_head, _, after) = then.rpartition(" -> "), now.rpartition(" -> ")
    if head != its_head or before == after:
        return then, now
    left, right = _differing({"value": before}, {"value": after}, "")
    return ", ".join(left), ", ".join(right)


def _differing(
    then: Mapping[str, str], now: Mapping[str, str], path: str
) -> tuple[list[str], list[str]]:
    left, right = [], []
    for name in dict.fromkeys((*then, *now)):
        one, other = then.get(name), now.get(name)
        if one == other:
            continue
        (depth, mine), (its_depth, its) = _inner(one or ""), _inner(other or "")
        if mine is not None and its is not None and depth == its_depth:
            own = _differing(mine, its, f"{path}{name}{depth * '[]'}.")
            left += own[0]
            right += own[1]
            continue
        left.append(f"no {path}{name}" if one is None else f"{path}{name} {one}")
        right.append(f"no {path}{name}" if other is None else f"{path}{name} {other}")
    if not left and list(then) != list(now):
        at = f" in {path[:-1]}" if path else ""
        left.append(f"order{at} {', '.join(then)}")
        right.append(f"order{at} {', '.join(now)}")
    return left, right


def _parsed(words: str) -> tuple[dict[str, str] | None, str]:
    """Types by the names of fields, and how they are written (`` as JSON``); None where the words
    are no fields."""
    parts = _split(words)
    last, found, form = parts[-1].rpartition(" as ")
    parts = [*parts[:-1], last] if found else parts
    return _by_name(parts), f"{found}{form}" if found else ""


def _inner(words: str) -> tuple[int, dict[str, str] | None]:
    """The fields of a struct, and in how many arrays it is."""
    depth = 0
    while words.startswith("array<") and words.endswith(">"):
        depth, words = depth + 1, words[len("array<") : -1]
    if not words.startswith("struct<") or not words.endswith(">"):
        return depth, None
    return depth, _by_name(_split(words[len("struct<") : -1]))


def _by_name(parts: Sequence[str]) -> dict[str, str] | None:
    fields = {}
    for part in parts:
        found = re.fullmatch(r"(`(?:[^`]|``)+`|[\w.]+)[ :](.+)", part)
        if found is None:
            return None
        fields[found[1]] = found[2]
    return fields


def _split(words: str) -> list[str]:
    """At commas outside brackets and quoted names."""
    parts, depth, quoted = [""], 0, False
    for one in words:
        quoted ^= one == "`"
        depth += 0 if quoted else (one in "<([") - (one in ">)]")
        if one == "," and not depth and not quoted:
            parts.append("")
        else:
            parts[-1] += one
    return [part.strip() for part in parts]


def _digest(kept: Kept) -> str:
    return kept if isinstance(kept, str) else digest(kept)


def words_of(layout: Kept) -> str:
    if isinstance(layout, str):
        return f"another one, too long to be kept in words ({layout})" if layout else ""
    return f"{layout.kind}, key {layout.key}, value {layout.value}"


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
    words = repartition_words(subs.topology)
    return tuple(sorted([line for sub in subs.subtopologies for line in _lines(sub, words)] + kept))


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


def _lines(sub: SubTopology, words: Mapping[str, tuple[str, str]]) -> list[str]:
    at = f"sub-topology {sub.index}"
    sources = {
        topic: node for node in sub.nodes if isinstance(node, SourceNode) for topic in node.topics
    }
    # Not the types of the user's topics: what an instance reads of a record is its own affair until
    # it is stored.
    lines = [f"{at} reads {_named(sources[topic], topic)}" for topic in sub.source_topics]
    for topic in sub.repartition_sources:
        key, value = words[topic]
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
