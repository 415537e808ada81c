"""Says whose a stream time beside an offset is, when operators have other names now. Pure.

Stream times are kept by the names of nodes. A generated name shifts when an operator is inserted
before its node: the node would know no stream time, and take late records, or go by another one's,
and drop good records. So the text beside the offset (note 013) also says what each name kept the
time of: the store of an operator, the topics of a source. Releases that do not know the entry empty
it, and then the names are those of the program that ran last, as before.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from types import MappingProxyType

from everflow.topology.graph import Graph, SourceNode, StatefulNode

_BEHIND = re.compile("[/+]")
"""Begins what stands behind a node's name: a method, a topic, a partition of several."""
_EACH = 4
"""Characters of a hash: all of a program share 4,096 bytes with much else."""


def node_of(name: str) -> str:
    """The node in the name of a stream time."""
    return _BEHIND.split(name, maxsplit=1)[0]


def timed_by(graph: Graph) -> dict[str, str]:
    """What names nodes for good, by their names: the first store that no other node uses, or what
    a source reads whose times are kept. Other nodes go by their names."""
    found = {node: store for node, store, own in _by_stores(graph) if own}
    sources = [node for node in graph.nodes if isinstance(node, SourceNode)]
    idle = any(source.reading.idle_ms is not None for source in sources)
    for source in sources:
        if idle or source.partition_times():
            pattern = source.reading.pattern
            read = "\n".join(source.topics) if pattern is None else pattern.pattern
            found[source.name] = f"{source.kind} {read}"
    return found


def shared_by(graph: Graph) -> dict[str, str]:
    """Nodes that have no store for themselves, with the first one that they share: should one of
    them have it alone in a later program, the time of the latest of them is its."""
    return {node: store for node, store, own in _by_stores(graph) if not own}


def _by_stores(graph: Graph) -> list[tuple[str, str, bool]]:
    """Nodes, the first store that no other one uses, else the first, and whether it is so."""
    stateful = [node for node in graph.nodes if isinstance(node, StatefulNode) and node.stores]
    users = Counter(store.name for node in stateful for store in node.stores)
    firsts = [min(node.stores, key=lambda store: users[store.name] > 1) for node in stateful]
    return [
        (node.name, store.name, users[store.name] == 1)
        for node, store in zip(stateful, firsts, strict=True)
    ]


def times_text(
    timed: Mapping[str, str],
    before: object = "",
    shared: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Of `timed_by` and `shared_by`, 8 characters a node: the hash of what names it, and that of
    its name. Of the text ``before`` it has the nodes that are gone, whose times go on: they may
    come back. Empty where two hashes are equal: then all go by their names."""
    named = {*timed.values(), *shared.values()}
    pairs = {_hash(node): _hash(what) for node, what in sorted({**timed, **shared}.items())}
    if len({*pairs.values()}) < len(named) or len(pairs) < len(timed) + len(shared):
        return ""
    here = {*pairs.values()}
    gone = {node: what for node, what in _pairs(before).items() if what not in here}
    return "".join(f"{what}{node}" for node, what in {**gone, **pairs}.items())


def times_now(found: Mapping[str, int], text: object, timed: Mapping[str, str]) -> dict[str, int]:
    """Stream times (ms) by the names of this program. ``found``: by those of the program that wrote
    ``text``; ``timed``: `timed_by` of this one. The time of a node that is gone goes on under its
    name, unless that is another node's now."""
    if not isinstance(text, str) or not text:
        return dict(found)
    was = _pairs(text)
    now = {_hash(what): node for node, what in timed.items()}
    times: dict[str, int] = {}
    for name, time_ms in found.items():
        node = node_of(name)
        here = now.get(was.get(_hash(node), ""))
        if here is not None:
            name = here + name[len(node) :]
            times[name] = max(time_ms, times.get(name, time_ms))
        elif node not in timed or _reads(timed[node], name[len(node) :]):
            times[name] = time_ms
    return times


def _reads(what: str, behind: str) -> bool:
    """True if what stands behind a node's name is a topic that the node reads, too."""
    _, _, topics = what.partition(" ")
    return behind.startswith("/") and _BEHIND.split(behind[1:])[0] in topics.split("\n")


def _pairs(text: object) -> dict[str, str]:
    """What named nodes, by the nodes: hashes."""
    if not isinstance(text, str):
        return {}
    starts = range(0, len(text), 2 * _EACH)
    return {text[at + _EACH : at + 2 * _EACH]: text[at : at + _EACH] for at in starts}


def _hash(text: str) -> str:
    return b64encode(blake2b(text.encode(), digest_size=_EACH * 3 // 4).digest()).decode()
