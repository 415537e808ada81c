"""How much of a program is kept beside its committed offsets, where brokers take 4,096 bytes. Pure.

Beside each offset stand the stream times of all operators with a state in that task, without which
a restart would let late records in, and what the stores are like, as far as there is room. A broker
refuses the whole commit where they are longer (``offset.metadata.max.bytes``), so what cannot fit
is told while the program is built.
"""

from __future__ import annotations

from collections.abc import Mapping

from everflow.errors import TopologyError
from everflow.topology.graph import Graph, Node, SourceNode, StatefulNode
from everflow.topology.sources.idle_sources import IdleSource, idle_sources
from everflow.topology.subtopologies import SubTopology, cut

MOST_BYTES = 4_096
OTHERS_BYTES = 64
"""The prefix, the batch's id, what separates the parts."""
_TIME_BYTES = len(',"":1700000000000')
_Idle = Mapping[str, Mapping[str, IdleSource]]


def room_for_layouts(graph: Graph) -> int:
    """The bytes that every task of the program leaves."""
    idle = idle_sources(graph, "")
    taken = max((_times_bytes(sub, idle) for sub in cut(graph).subtopologies), default=0)
    return max(0, MOST_BYTES - OTHERS_BYTES - taken)


def require_room(graph: Graph) -> None:
    """TopologyError where the stream times of a task do not fit, with the cure."""
    idle = idle_sources(graph, "")
    for sub in cut(graph).subtopologies:
        taken = _times_bytes(sub, idle)
        if taken + OTHERS_BYTES <= MOST_BYTES:
            continue
        stateful = [node for node in sub.nodes if isinstance(node, StatefulNode)]
        raise TopologyError(
            f"sub-topology {sub.index} has {len(stateful)} operators with a state; their stream "
            f"times are kept beside its committed offsets, take {taken:,} bytes there, and brokers "
            f"take {MOST_BYTES:,}. Cut the sub-topology in two: send a stream before some of them "
            f"through repartition(name=...); or give the operators short names, name='n1'",
            where=stateful[-1].where,
        )


def _times_bytes(sub: SubTopology, idle: _Idle) -> int:
    names = (name for node in sub.nodes for name in _timed(node, idle))
    return sum(len(name.encode()) + _TIME_BYTES for name in names)


def _timed(node: Node, idle: _Idle) -> list[str]:
    """The names under which times of the node are kept: its own, and of what the wall clock
    calls; a source's partition times, and those that its silence moves."""
    if isinstance(node, SourceNode):
        moved = [one.kept for one in idle.get(node.name, {}).values()]
        return [*node.partition_times().values(), *moved]
    if not isinstance(node, StatefulNode):
        return []
    return [node.name, *(f"{node.name}/{one}" for one in node.operator.marks)]
