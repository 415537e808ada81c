"""Sources whose idle partitions advance stream time by the wall clock (note 025). Pure.

Beside each committed offset stand the stream times of the task's operators with a state, and the
layouts of the stores, as far as they fit. Brokers refuse a commit with more than 4,096 bytes
(``offset.metadata.max.bytes``): `require_metadata_fits` refuses such a program while it is built.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from everflow.errors import TopologyError
from everflow.topology.event_time import names_of
from everflow.topology.graph import Graph, Node, SinkNode, SourceNode, StatefulNode
from everflow.topology.stream_times import node_of, timed_by, times_now
from everflow.topology.subtopologies import SubTopology, cut


@dataclass(frozen=True)
class IdleSource:
    """An input of a sub-topology's tasks whose silence counts.

    Attributes:
        kept: under which name its time, that of its records or what it was moved to, is kept.
        after_ms: how long a partition has to be silent.
        fed_by: topics from which a repartition topic is written, to be consumed before.
    """

    kept: str
    after_ms: int
    fed_by: frozenset[str] = frozenset()


def idle_sources(graph: Graph, application_id: str) -> dict[str, dict[str, IdleSource]]:
    """Idle sources by source node and input (`input_name`, of topics as the node names them).

    A repartition topic is idle when every source that it is written from is; it waits for the
    longest of them, since a record may be on its way from there.
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
            read: IdleSource(name, max(known), fed_by)
            for read, name in node.names_of_topics("/idle").items()
        }
    return found


def _feeding(graph: Graph, source: SourceNode) -> list[SourceNode]:
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
    before = graph.before(node.name)
    return [one for one in graph.nodes if one.name in before and isinstance(one, SourceNode)]


MOST_BYTES = 4_096
OTHERS_BYTES = 64
"""The prefix, the batch's id, what separates the parts."""
_TIME_BYTES = len(',"":1700000000000')
_Idle = Mapping[str, Mapping[str, IdleSource]]


def bytes_for_layouts(graph: Graph, *, lowest: bool = False) -> int:
    """The bytes that every task of the program leaves; ``lowest``: with ``stream.time=lowest``."""
    idle = idle_sources(graph, "")
    taken = max((_times_bytes(sub, idle, lowest) for sub in cut(graph).subtopologies), default=0)
    return max(0, MOST_BYTES - OTHERS_BYTES - taken)


@dataclass(frozen=True)
class ProgramTimes:
    """What a program makes of stream times beside offsets. ``timed``: `timed_by`; ``places``:
    sub-topologies by node; ``room``: the bytes that its own times and its layouts leave there."""

    timed: Mapping[str, str]
    places: Mapping[str, int]
    room: int

    def now(self, found: Mapping[str, int], text: object) -> dict[str, int]:
        """`times_now`, by the names of this program."""
        return times_now(found, text, self.timed)

    def fitting(self, times: Mapping[str, int], subtopology: int) -> dict[str, int]:
        """Those of a task of the sub-topology, and of others so many as fit: a node that has gone,
        or to another sub-topology, may come back."""
        own = {node for node, place in self.places.items() if place == subtopology}
        return fitting(times, own, self.room)


def program_times(
    graph: Graph, places: Mapping[str, int], layouts: str, *, lowest: bool = False
) -> ProgramTimes:
    """``places``: as there; ``layouts``: the text beside offsets; ``lowest``: as above."""
    room = bytes_for_layouts(graph, lowest=lowest) - len(layouts.encode())
    return ProgramTimes(timed_by(graph), places, room)


def fitting(times: Mapping[str, int], own: Collection[str], room: int) -> dict[str, int]:
    """``times`` by name, of nodes that are not a task's ``own`` so many as fit into ``room`` bytes:
    brokers would refuse the whole commit."""
    found = {}
    for name, time_ms in sorted(times.items()):
        if node_of(name) not in own:
            room -= len(name.encode()) + _TIME_BYTES
            if room < 0:
                continue
        found[name] = time_ms
    return found


def require_metadata_fits(graph: Graph, *, lowest: bool = False) -> None:
    """TopologyError where the stream times of a task do not fit, with the cure; ``lowest``: as
    above."""
    idle = idle_sources(graph, "")
    for sub in cut(graph).subtopologies:
        taken = _times_bytes(sub, idle, lowest)
        if taken + OTHERS_BYTES <= MOST_BYTES:
            continue
        stateful = [node for node in sub.nodes if isinstance(node, StatefulNode)]
        raise TopologyError(
            f"sub-topology {sub.index} has {len(stateful)} operators with a state; their stream "
            f"times are kept beside its committed offsets, take {taken:,} bytes there, and brokers "
            f"take {MOST_BYTES:,}. Cut the sub-topology in two: send a stream before some of them "
            f"through repartition(name=...); or give the operators short names, name='n1'",
            where=(*sub.nodes[:1], *stateful)[-1].where,
        )


def _times_bytes(sub: SubTopology, idle: _Idle, lowest: bool) -> int:
    names = {name for node in sub.nodes for name in _timed(node, idle)}
    if lowest:
        names.update(name for node in sub.nodes for name in names_of(node))
    return sum(len(name.encode()) + _TIME_BYTES for name in names)


def _timed(node: Node, idle: _Idle) -> list[str]:
    if isinstance(node, SourceNode):
        moved = [one.kept for one in idle.get(node.name, {}).values()]
        return [*node.partition_times().values(), *moved]
    if not isinstance(node, StatefulNode):
        return []
    return [node.name, *(f"{node.name}/{one}" for one in node.operator.marks)]
