"""Lists what must be the same in all instances; tells two programs' difference in words. Pure.

Two instances may share a group only if a task means the same to both: the same sub-topologies,
reading the same topics, with stores of the same kind, retention and types. Stateless operators are
not in it: they may change in a rolling upgrade.
"""

from __future__ import annotations

from collections.abc import Sequence

from everflow.state.store import StoreSpec
from everflow.topology.graph import GlobalTableNode, SourceNode, WholeTableNode
from everflow.topology.partitioners import spread_otherwise
from everflow.topology.store_layouts import layout_of, serde_words
from everflow.topology.subtopologies import SubTopologies, SubTopology

_LINES_SHOWN = 12


def fingerprint(subs: SubTopologies) -> tuple[str, ...]:
    """The sorted lines, without the application id: one per input topic, repartition topic written,
    and store."""
    kept = [
        f"sub-topology {one.index} keeps all of {_origin(one.node)} in {_store(one.node.store)}"
        for one in subs.global_tables
    ]
    spread = spread_otherwise(subs.topology)
    kept += [f"store {store} is spread by {by}" for store, by in spread.items()]
    return tuple(sorted([line for sub in subs.subtopologies for line in _lines(sub)] + kept))


def difference(mine: Sequence[str], theirs: Sequence[str]) -> str:
    """What only one side has, a line each (``+`` here, ``-`` there), at most 12 lines; empty if
    they are equal."""
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


def _origin(node: WholeTableNode) -> str:
    return f"topic {node.topic}" if isinstance(node, GlobalTableNode) else "a DataFrame"


def _lines(sub: SubTopology) -> list[str]:
    at = f"sub-topology {sub.index}"
    sources = {
        topic: node for node in sub.nodes if isinstance(node, SourceNode) for topic in node.topics
    }
    # Not the types of the user's topics: what an instance reads of a record is its own affair until
    # it is stored.
    lines = [f"{at} reads {_named(sources[topic], topic)}" for topic in sub.source_topics]
    lines += [
        f"{at} reads repartition topic {topic} ({_types(sources[topic])})"
        for topic in sub.repartition_sources
    ]
    lines += [f"{at} writes repartition topic {topic}" for topic in sub.repartition_sinks]
    # A pattern once: an instance that starts when there is one topic more fits the others.
    return list(dict.fromkeys(lines)) + [f"{at} has {_store(store)}" for store in sub.stores]


def _named(source: SourceNode, topic: str) -> str:
    pattern = source.reading.pattern
    return f"topic {topic}" if pattern is None else f"topics that match {pattern.pattern}"


def _types(node: SourceNode) -> str:
    return f"key {serde_words(node.key_serde, key=True)}, value {serde_words(node.value_serde)}"


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
