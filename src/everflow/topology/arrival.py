"""The order in which a record reaches nodes, which is that in which Kafka Streams forwards. Pure.

A record goes depth first, through children in the order in which they were added (note 020). Where
several results of one record come to one place by two ways, no order of the ways is right: the
first result goes both ways, and then the second one. `ways_in_turn` finds such places, and says how
a record comes to each operator, in bytes that have the order of arrival (note 031).

Processors that share a store run together (note 040). One that reads another's results *directly*
(through merges and children) gets each while the other runs; else it takes whole batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

from everflow.errors import TopologyError
from everflow.topology.graph import (
    CHILD,
    FunctionNode,
    Graph,
    Link,
    MergeNode,
    Node,
    ProcessorOperator,
    ProjectNode,
    SourceNode,
    StatefulNode,
    UnnestNode,
    input_name,
)

DIGIT = 0x80
"""Added to the bytes of an edge, which are never 0: so a shorter way sorts before those that it
begins."""


class Way(NamedTuple):
    """From the operator or topic that makes records to one that reads them. ``edges``: numbers
    among a node's children; ``table_bytes``: the length of what lies behind the record's table."""

    maker: str
    edges: bytes
    table_bytes: int = 0


@dataclass(frozen=True)
class Ways:
    """The ways of records to an operator, for each slot of each side. ``member``: bytes that tell
    it from others that it runs together with. ``several``: one record may give several results."""

    sides: tuple[tuple[Way, ...], ...]
    member: bytes
    several: bool


def reaches_first(nodes: Iterable[Node], first: str, second: str) -> bool:
    """True if a record that reaches both nodes has been through ``first`` when a child that is
    added to ``second`` now gets it. True where no record reaches both."""
    children = _children(nodes)
    return first in _order(children, second) or _before(children, first, second)


def hands_on_first(nodes: Iterable[Node], first: str, second: str) -> bool:
    """True if a child that is added to both nodes now gets a record from ``first`` before it gets
    the same from ``second``. True where no record reaches both."""
    children = _children(nodes)
    if first != second and second in _order(children, first):
        return False
    return first in _order(children, second) or _before(children, first, second)


def in_order_of_arrival(nodes: Iterable[Node], node: MergeNode) -> list[str]:
    """A merge's inputs, in the order in which they hand on what one record has become on each."""
    listed = list(nodes)
    before = listed[: listed.index(node)]

    def later(one: str, other: str) -> int:
        return 0 if one == other else -1 if hands_on_first(before, one, other) else 1

    return sorted(node.inputs, key=cmp_to_key(later))


def gives_several(node: Node) -> bool:
    if isinstance(node, StatefulNode):
        return not node.operator.one_result
    if isinstance(node, FunctionNode):
        return node.op.startswith("flat_map")
    return isinstance(node, UnnestNode)


def ways_in_turn(
    nodes: Iterable[Node],
    sides_of: Mapping[str, tuple[tuple[str, ...], ...]],
    together: Mapping[str, tuple[str, ...]],
    subtopology_of: Mapping[str, int],
) -> dict[str, Ways]:
    """The ways to the operators and sinks of sub-topologies that have a place to which several
    results of one record come by two ways. ``sides_of``: the nodes that each side reads."""
    listed = list(nodes)
    children, found = _children(listed), dict[str, tuple[Way, ...]]()
    read: dict[str, tuple[tuple[Way, ...], ...]] = {}
    for node in listed:

        def behind(name: str, reader: Node = node) -> tuple[Way, ...]:
            number = children[name].index(reader.name) if len(children[name]) > 1 else None
            edge = b"" if number is None else _digits(number)
            return tuple(one._replace(edges=one.edges + edge) for one in found[name])

        if node.name in sides_of:
            read[node.name] = tuple(
                tuple(way for name in side for way in behind(name)) for side in sides_of[node.name]
            )
            passes_on = isinstance(node, StatefulNode) and node.operator.passes_on
            table_bytes = len(read[node.name][0][0].edges) if passes_on else 0
            found[node.name] = (Way(node.name, b"", table_bytes),)
        elif isinstance(node, SourceNode):
            found[node.name] = tuple(
                Way(f"{node.name}/{input_name(topic, first)}", b"")
                for topic in node.topics
                for first in node.firsts_of(topic)
            )
        else:
            inputs = list(node.inputs) if isinstance(node, ProjectNode) else []
            if isinstance(node, MergeNode):
                inputs = in_order_of_arrival(listed, node)
            found[node.name] = tuple(way for name in inputs for way in behind(name))
    places = _Places()
    for node in listed:
        if node.name in read:
            places.add(node, read[node.name])
    wanted = {subtopology_of[name] for name in places.in_turn}
    return {
        node.name: _ways(node, read[node.name], together.get(node.name, ()))
        for node in listed
        if node.name in read and subtopology_of[node.name] in wanted
    }


def _ways(node: Node, sides: tuple[tuple[Way, ...], ...], group: tuple[str, ...]) -> Ways:
    numbered = [_digits(number) if len(sides) > 1 else b"" for number in range(len(sides))]
    return Ways(
        sides=tuple(
            tuple(way._replace(edges=way.edges + number) for way in side)
            for side, number in zip(sides, numbered, strict=True)
        ),
        member=_digits(group.index(node.name)) if group else b"",
        several=gives_several(node),
    )


def _digits(number: int) -> bytes:
    """Two bytes that are never 0."""
    high, low = divmod(number, DIGIT)
    return bytes((DIGIT | high, DIGIT | low))


class _Places:
    """The makers behind which each operator is, and whether several results of one record reach it
    or have met before it. Operators are added in topological order."""

    def __init__(self) -> None:
        self._behind: dict[str, frozenset[str]] = {}
        self._several: set[str] = set()
        self._met: set[str] = set()
        self.in_turn: list[str] = []
        """Operators for which no order of the ways is that of the records."""

    def add(self, node: Node, sides: tuple[tuple[Way, ...], ...]) -> None:
        """``sides``: what it reads."""
        ways = [way for side in sides for way in side]
        behind = [
            [self._behind.get(way.maker, frozenset((way.maker,))) for way in side] for side in sides
        ]
        makers = [one for side in behind for one in side]
        self._behind[node.name] = frozenset((node.name,)).union(*makers)
        met = any(way.maker in self._met for way in ways)
        several = gives_several(node) or any(way.maker in self._several for way in ways)
        met_before, in_turn = met, False
        count = len(sides)
        meets = node.operator.meets(count) if isinstance(node, StatefulNode) else [range(count)]
        for group in meets:
            pairs = combinations([one for side in dict.fromkeys(group) for one in behind[side]], 2)
            common = [one & other for one, other in pairs if one & other]
            if common:
                more = met_before or len(common) > 1 or any(one & self._several for one in common)
                met, several, in_turn = True, True, in_turn or more
        self._met.update([node.name] if met else ())
        self._several.update([node.name] if several else ())
        self.in_turn += [node.name] if in_turn else []


def _before(
    children: Mapping[str, list[str]], first: str, second: str, otherwise: bool = True
) -> bool:
    """``otherwise``: the answer where no record reaches both."""
    behind = {name for names in children.values() for name in names}
    for root in [name for name in children if name not in behind]:
        order = _order(children, root)
        if first in order and second in order:
            return order.index(first) < order.index(second)
    return otherwise


def _children(nodes: Iterable[Node]) -> dict[str, list[str]]:
    listed = list(nodes)
    found: dict[str, list[str]] = {node.name: [] for node in listed}
    for node in listed:
        for name in dict.fromkeys(node.inputs):
            found[name].append(node.name)
    return found


def _order(children: Mapping[str, list[str]], root: str) -> list[str]:
    """The nodes behind ``root`` in the order in which a record reaches them for the first time."""
    found: dict[str, None] = {}
    todo = [root]
    while todo:
        name = todo.pop()
        if name not in found:
            found[name] = None
            todo += reversed(children[name])
    return list(found)


def together(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """For each processor that shares a store: all that do, as records reach them."""
    groups: list[tuple[set[str], set[str]]] = []
    for node in graph.nodes:
        if not isinstance(node, StatefulNode) or not isinstance(node.operator, ProcessorOperator):
            continue
        names, stores = {node.name}, {spec.name for spec in node.stores}
        for group in [one for one in groups if one[1] & stores]:
            names, stores = names | group[0], stores | group[1]
            groups.remove(group)
        groups.append((names, stores))
    children, added = _children(graph.nodes), [node.name for node in graph.nodes]

    def later(one: str, other: str) -> int:
        by_place = added.index(one) < added.index(other)
        return -1 if _before(children, one, other, by_place) else 1

    found = {
        name: tuple(sorted(names, key=cmp_to_key(later)))
        for names, _ in groups
        if len(names) > 1
        for name in names
    }
    return MappingProxyType(found)


def ways_to(
    graph: Graph, node: Node, group: Collection[str]
) -> tuple[tuple[Link, ...], tuple[str, ...]]:
    """The links from others of its ``group`` to a processor, and the other nodes that it reads."""
    found = list(_results_of(graph, node.inputs[0], group))
    links = tuple(one for one in found if isinstance(one, Link))
    return links, tuple(one for one in found if not isinstance(one, Link))


def require_direct(graph: Graph) -> None:
    """TopologyError where something lies between processors that share stores."""
    for name, group in together(graph).items():
        node = graph.node(name)
        _, others = ways_to(graph, node, group)
        for other in (*others, *node.inputs[1:]):
            behind = graph.before(other) & set(group)
            if behind:
                raise TopologyError(
                    f"{name} shares a store with {sorted(behind)[0]} and reads its results through "
                    f"{other}: both run record by record, and what lies between takes a whole "
                    "batch; do that in one of the two processors, or give them stores of their own",
                    where=node.where,
                )


def _results_of(graph: Graph, name: str, group: Collection[str]) -> Iterator[Link | str]:
    node = graph.node(name)
    if name in group:
        yield Link(name, None)
    elif isinstance(node, MergeNode):
        for each in node.inputs:
            yield from _results_of(graph, each, group)
    elif isinstance(node, ProjectNode) and node.label == CHILD and node.inputs[0] in group:
        parent: Any = graph.node(node.inputs[0])  # a processor
        number = parent.operator.children.index(node.name.removeprefix(f"{parent.name}-"))
        yield Link(parent.name, number)
    elif isinstance(node, ProjectNode) and (node.predicate, node.key, node.value) == (None,) * 3:
        yield from _results_of(graph, node.inputs[0], group)
    else:
        yield name
