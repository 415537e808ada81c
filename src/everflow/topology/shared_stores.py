"""Processors that share stores: who runs together, and who hands records to whom. Pure (note 040).

What shares a store sees it change record by record, so it runs together, in one step. A processor
that reads another one's results *directly* (through merges and children at most) is handed each
while the other one still runs, as in Kafka Streams. What lies between them otherwise takes the
batch as a whole, and cannot run in the middle of a record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cmp_to_key
from types import MappingProxyType

from everflow.errors import TopologyError
from everflow.topology.arrival import order_of_arrival
from everflow.topology.graph import (
    CHILD,
    Graph,
    Link,
    MergeNode,
    Node,
    ProcessorOperator,
    ProjectNode,
    StatefulNode,
)


def together(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Of each processor that shares a store, through others too: all that do, in the order in which
    a record reaches them."""
    groups: list[tuple[set[str], set[str]]] = []
    for node in graph.nodes:
        if not isinstance(node, StatefulNode) or not isinstance(node.operator, ProcessorOperator):
            continue
        names, stores = {node.name}, {spec.name for spec in node.stores}
        for group in [one for one in groups if one[1] & stores]:
            names, stores = names | group[0], stores | group[1]
            groups.remove(group)
        groups.append((names, stores))
    found = {
        name: tuple(sorted(names, key=cmp_to_key(order_of_arrival(graph.nodes))))
        for names, _ in groups
        if len(names) > 1
        for name in names
    }
    return MappingProxyType(found)


def ways_to(
    graph: Graph, node: Node, group: Collection[str]
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """How a processor's records come to it: from others of its ``group`` directly, and from which
    other nodes."""
    found = list(_ways(graph, node.inputs[0], group, None))
    return (
        tuple(one for one in found if isinstance(one, Link)),
        tuple(one for one in found if not isinstance(one, Link)),
    )


def require_direct(graph: Graph) -> None:
    """TopologyError where something lies between processors that share stores."""
    for name, group in together(graph).items():
        node = graph.node(name)
        _, others = ways_to(graph, node, group)
        for given in (*others, *node.inputs[1:]):
            behind = _ancestors(graph, given) & set(group)
            if behind:
                raise TopologyError(
                    f"{name} shares a store with {sorted(behind)[0]} and reads its results through "
                    f"{given}: both run record by record, and what lies between takes a whole "
                    f"batch; do that in one of the two processors, or give them stores of their "
                    f"own",
                    where=node.where,
                )


def _ways(
    graph: Graph, name: str, group: Collection[str], child: int | None
) -> Iterator[Link | str]:
    node = graph.node(name)
    if name in group:
        yield Link(name, child)
    elif isinstance(node, MergeNode):
        for given in node.inputs:
            yield from _ways(graph, given, group, None)
    elif isinstance(node, ProjectNode) and node.label == CHILD and node.inputs[0] in group:
        yield Link(node.inputs[0], _number(graph, node))
    elif isinstance(node, ProjectNode) and (node.predicate, node.key, node.value) == (None,) * 3:
        yield from _ways(graph, node.inputs[0], group, None)
    else:
        yield name


def _number(graph: Graph, child: ProjectNode) -> int:
    parent = graph.node(child.inputs[0])
    assert isinstance(parent, StatefulNode)
    assert isinstance(parent.operator, ProcessorOperator)
    return parent.operator.children.index(child.name.removeprefix(f"{parent.name}-"))


def _ancestors(graph: Graph, name: str) -> set[str]:
    found, todo = set[str](), [name]
    while todo:
        one = todo.pop()
        if one not in found:
            found.add(one)
            todo += graph.node(one).inputs
    return found
