"""What a table holds for each record that asks, through filters, mappers and joins without a store.

Kafka Streams calls it a table's value getter: the store that there is in the end is looked up, and
what lies between is applied to what was found. Here that is a second flow of records beside those
who ask, row by row (note 035). All calls belong to the thread that builds the topology.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.versioned_tables import (
    asked_transformer,
    latest_of,
    transforms_alone,
)
from everflow.dsl.joins import JoinCall, Side, told_table
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable, TableTableJoin
from everflow.operators.joins.table_table import JoinedRows, TableTableRows
from everflow.operators.table_changes import HeldRows, VisibleUpdates
from everflow.operators.versioned_table import LatestUpdates
from everflow.topology.graph import (
    PREPARE,
    EdgeType,
    FunctionNode,
    Node,
    ProjectNode,
    StatefulNode,
)

_OF_THE_RECORD = frozenset({"topic", "partition", "offset", "headers"})
"""What an entry does not have any more."""


def is_kept(table: Side) -> bool:
    """Whether the table's entries lie in a store of its own, or nobody has them."""
    return table.node in _kept_behind(table.graph, table.node)


def _kept_behind(graph: GraphBuilder, name: str) -> tuple[str, ...]:
    """The nodes whose stores have what a table's entries are made of; its own where nothing can be
    made of anything."""
    node = graph.node(name)
    if graph.may_keep(name):
        return (name,)
    if transforms_alone(node):
        return _kept_behind(graph, node.inputs[0])
    if isinstance(node, ProjectNode | FunctionNode) and node.label != "TOSTREAM":
        return _kept_behind(graph, node.inputs[0])
    found = tuple(_parents(graph, node))
    if not found:
        return (name,)
    return tuple(dict.fromkeys(one for parent in found for one in _kept_behind(graph, parent)))


def _parents(graph: GraphBuilder, node: Node) -> Iterator[str]:
    """Of a node without a store, the tables of which its entries are made."""
    operator = node.operator if isinstance(node, StatefulNode) else None
    if isinstance(operator, VisibleUpdates):
        yield node.inputs[1]
    elif isinstance(operator, LatestUpdates):
        yield node.inputs[0]
    elif isinstance(operator, TableTableJoin):
        yield from node.inputs
    elif isinstance(operator, TableTableRows):
        yield from (graph.node(half).inputs[-1] for half in node.inputs)


@dataclass(frozen=True, kw_only=True)
class RowAsker:
    """Who asks a table: the node of its records, and of the join that does."""

    call: JoinCall
    node: str
    join: str
    as_of: bool
    """Whether a table with a history is asked as of the records' times."""
    comes: str | None = None
    """The node at which its records come, where ``node`` was made of that one's: of the latest
    updates of a table with a history."""
    takes_null_keys: bool = False

    def of(self, graph: GraphBuilder, table: str) -> str:
        """The node of what the table holds for each record. TopologyError for a table whose entries
        nobody has."""
        graph.keep(table)
        node, called = graph.node(table), f"{table}-for-{self.join}"
        if graph.has(called):
            return called
        if isinstance(node, ProjectNode | FunctionNode) and node.label != "TOSTREAM":
            self._require_entries(node)
            made: Node = replace(node, inputs=(self.of(graph, node.inputs[0]),), label=PREPARE)
        elif transforms_alone(node):
            made = asked_transformer(node, self.of(graph, node.inputs[0]))
        else:
            parents = tuple(_parents(graph, node))
            if len(parents) == 1:
                return self.of(graph, parents[0])
            made = self._joined(graph, node, parents) if parents else self._looked_up(graph, node)
        return graph.add(replace(made, name=called))

    def _require_entries(self, node: ProjectNode | FunctionNode) -> None:
        value = node.value if isinstance(node, ProjectNode) else None
        read = sorted(_OF_THE_RECORD & (frozenset() if value is None else value.uses))
        if read:
            raise TopologyError(
                f"{self.call.operator} asks {node.name} for what it makes of an entry, and its "
                f"Column reads {', '.join(read)}, which only the entry's record had; keep what it "
                f"gives: store='a-name' in the call that makes it",
                where=self.call.where,
            )

    def _looked_up(self, graph: GraphBuilder, node: Node) -> StatefulNode:
        operator, where = self.call.operator, self.call.where
        table, updates = told_table(graph, node.name, operator, where), node.name
        if not self.as_of:  # what is there now is the latest
            updates = latest_of(graph, node.name, self.join, operator, where)
        return StatefulNode(
            node.name,
            (self.node, updates),
            EdgeType(graph.node(self.node).out.key, node.out.value),
            self.call.where,
            PREPARE,
            HeldRows(
                table=table,
                as_of=self.as_of,
                table_first=graph.reaches_first(node.name, self.comes or self.node),
                takes_null_keys=self.takes_null_keys,
            ),
            reads=(table.spec,),
        )

    def _joined(self, graph: GraphBuilder, node: Node, parents: tuple[str, ...]) -> StatefulNode:
        operator = node.operator if isinstance(node, StatefulNode) else None
        assert isinstance(operator, TableTableJoin | TableTableRows)
        held = tuple(self.of(graph, parent) for parent in parents)
        return StatefulNode(
            node.name, held, node.out, self.call.where, PREPARE, JoinedRows(operator.kind)
        )


def told_behind(table: Side, call: JoinCall) -> JoinedTable:
    """The table as one reads it who is handed its entries: how its keys are written, and the type
    of its values. It gives every update."""
    return replace(tables_behind(table, call)[0], type=table.edge.type.value)


def tables_behind(table: Side, call: JoinCall) -> tuple[JoinedTable, ...]:
    """The tables in stores of which a table's entries are made."""
    graph = table.graph
    names = _kept_behind(graph, table.node)
    return tuple(told_table(graph, name, call.operator, call.where) for name in names)
