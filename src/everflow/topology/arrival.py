"""Which of two nodes a record reaches first: the order in which Kafka Streams forwards. Pure.

A record goes depth first: a node hands it to its first child, and to the next one when that child
and all behind it are done; children are in the order in which they were added. Two sides of a join
that come from one record therefore have an order, too (note 020).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from everflow.topology.graph import Node


def reaches_first(nodes: Iterable[Node], first: str, second: str) -> bool:
    """Whether a record that reaches both nodes has been through ``first`` when a child that is
    added to ``second`` now gets it. True where no record reaches both.

    That is so where ``first`` comes before ``second``, or behind it: behind a child that is there
    already.
    """
    children = _children(nodes)
    return first in _order(children, second) or _before(children, first, second)


def hands_on_first(nodes: Iterable[Node], first: str, second: str) -> bool:
    """Whether a child that is added to both nodes now gets a record from ``first`` before it gets
    the same from ``second``. True where no record reaches both."""
    children = _children(nodes)
    if first != second and second in _order(children, first):
        return False
    return first in _order(children, second) or _before(children, first, second)


def order_of_arrival(nodes: Iterable[Node]) -> Callable[[str, str], int]:
    """Compares two nodes' names: -1 where a record of both reaches the first one first, or where no
    record reaches both and it was added first."""
    listed = list(nodes)
    children, added = _children(listed), [node.name for node in listed]
    orders = [_order(children, name) for name in added]

    def compared(one: str, other: str) -> int:
        for order in orders:
            if one in order and other in order:
                return order.index(one) - order.index(other)
        return added.index(one) - added.index(other)

    return compared


def _before(children: Mapping[str, list[str]], first: str, second: str) -> bool:
    given = {name for names in children.values() for name in names}
    for root in [name for name in children if name not in given]:
        order = _order(children, root)
        if first in order and second in order:
            return order.index(first) < order.index(second)
    return True


def _children(nodes: Iterable[Node]) -> dict[str, list[str]]:
    """Each node's, in the order in which they were added."""
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
