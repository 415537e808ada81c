"""`Stream`: what an operator is lowered behind, and the stores of operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from everflow.dsl.expressions import Edge, fitting_serde
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.topics import Partitioner
from everflow.serdes import Serde, bytes_
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    ColumnExpr,
    FunctionNode,
    Operator,
    Part,
    ProjectNode,
    StatefulNode,
)
from everflow.user_program import user_line


@dataclass(frozen=True, eq=False)
class Stream:
    """The records of a stream, or the updates of a table, behind a node of the graph that is built.

    ``key_changed``: an operator before may have changed the key, so that a grouping has to
    repartition first.
    """

    graph: GraphBuilder
    node: str
    edge: Edge
    key_changed: bool = False

    def behind(self, node: str, edge: Edge, changes_key: bool = False) -> Stream:
        """The stream behind ``node``, which reads this one."""
        return Stream(self.graph, node, edge, self.key_changed or changes_key)

    def projected(
        self,
        name: str,
        label: str,
        edge: Edge | None = None,
        *,
        predicate: ColumnExpr | None = None,
        key: ColumnExpr | None = None,
        value: ColumnExpr | None = None,
        changes_key: bool = False,
    ) -> Stream:
        """The stream behind a new node that computes Columns; ``edge``: left out, this one's."""
        edge = edge or self.edge
        node = ProjectNode(
            name=name,
            inputs=(self.node,),
            out=edge.type,
            label=label,
            predicate=predicate,
            key=key,
            value=value,
            changes_key=changes_key,
        )
        return self.behind(self.graph.add(node), edge, changes_key)

    def called(
        self,
        name: str,
        label: str,
        op: str,
        fn: Callable[..., Any],
        edge: Edge,
        *,
        changes_key: bool = False,
    ) -> Stream:
        """The stream behind a new node that calls a function of (key, value) for each record."""
        node = FunctionNode(name, (self.node,), edge.type, label, op, fn, changes_key)
        return self.behind(self.graph.add(node), edge, changes_key)

    def kept(
        self,
        name: str,
        label: str,
        operator: Operator,
        stores: tuple[StoreSpec, ...] = (),
        edge: Edge | None = None,
        *,
        sides: tuple[str, ...] = (),
        reads: tuple[StoreSpec, ...] = (),
        parts: tuple[Part, ...] = (),
    ) -> Stream:
        """What is behind a new stateful node; ``sides``: all that it reads, left out this one."""
        edge = edge or self.edge
        sides = sides or (self.node,)
        node = StatefulNode(name, sides, edge.type, label, operator, stores, reads, parts)
        return self.behind(self.graph.add(node), edge)

    def with_serdes(self, operator: str, key: object | None, value: object | None) -> Stream:
        """The same, written with other serdes. TopologyError for those of other types."""
        key_serde = fitting_serde(key, self.edge.type.key, "key", operator)
        value_serde = fitting_serde(value, self.edge.type.value, "value", operator)
        return self.behind(self.node, self.edge.with_serdes(key_serde, value_serde))

    def repartitioned(
        self,
        name: str,
        operator: str,
        chosen: tuple[int | None, Partitioner | None] = (None, None),
    ) -> Stream:
        """This stream read back from the new repartition topic ``name`` (already checked)."""
        serdes = self.edge.serdes(operator)
        self.graph.burn(3)  # sink, null-key filter, source
        node = self.graph.repartition(name, self.node, self.edge.type, serdes, chosen)
        return Stream(self.graph, node, self.edge)


def store_spec(
    name: str, serdes: tuple[Serde, Serde], kind: str = "key_value", **how: Any
) -> StoreSpec:
    """The store of an operator on the user's line; ``how``: as of `StoreSpec`."""
    key, value = serdes
    where = user_line()
    return StoreSpec(name=name, kind=kind, key_serde=key, value_serde=value, where=where, **how)


def bytes_store(name: str, *, private: bool = False) -> StoreSpec:
    """A store of an operator's own bytes."""
    return store_spec(name, (bytes_(), bytes_()), private=private)


def window_store(
    name: str, serdes: tuple[Serde, Serde], retention_ms: int, size_ms: int | None = None
) -> StoreSpec:
    return store_spec(name, serdes, "window", retention_ms=retention_ms, window_size_ms=size_ms)
