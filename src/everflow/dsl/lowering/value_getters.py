"""What a table holds for each record that asks, and what its entries were before its updates.

Kafka Streams calls it a table's value getter: the store that there is in the end is looked up, and
what lies between is applied to what was found. Here that is a second flow of records beside those
who ask, row by row; what entries were is a flow beside the updates (note 035).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark.sql import functions as F

from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lowering.join_call import JoinCall, joined_table
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.lowering.versioned import asked_transformer, latest_of, transforms_alone
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable, TableTableJoin
from everflow.operators.joins.table_table import JoinedRows, TableRows, TableTableRows
from everflow.operators.suppress import SuppressSpec
from everflow.operators.table_changes import HeldRows, PreviousValues, VisibleUpdates
from everflow.operators.versioned_table import LatestUpdates
from everflow.spark.expressions import analyse, spark_type
from everflow.topology.graph import (
    PREPARE,
    EdgeType,
    FunctionNode,
    Node,
    ProjectNode,
    StatefulNode,
    TableOperator,
)

_OF_THE_RECORD = frozenset({"topic", "partition", "offset", "headers"})
"""What an entry does not have any more."""


def is_kept(table: Stream) -> bool:
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
        table, updates = joined_table(graph, node.name, operator, where), node.name
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
                null_keys=self.takes_null_keys,
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


def handed_table(table: Stream, call: JoinCall) -> JoinedTable:
    """The table as one reads it who is handed its entries: how its keys are written, and the type
    of its values. It gives every update."""
    return replace(joined_tables(table, call)[0], type=table.edge.type.value)


def joined_tables(table: Stream, call: JoinCall) -> tuple[JoinedTable, ...]:
    """The tables in stores of which a table's entries are made."""
    graph = table.graph
    names = _kept_behind(graph, table.node)
    return tuple(joined_table(graph, name, call.operator, call.where) for name in names)


def previous_updates(graph: GraphBuilder, name: str, *, forced: bool = False) -> str | None:
    """The node of what each update of a table's node had in its place before, row by row, null
    where there was nothing; None where nobody knows it without a store of the table's own. Kafka
    Streams calls these old values, and has them where the table, or what it is made of, is
    materialized. ``forced``: a store that was left out as nobody asked is made."""
    if forced:
        graph.keep(name)
    node, called = graph.node(name), f"{name}-before"
    if graph.has(called):
        return called
    if isinstance(node, StatefulNode):
        made = _before_stateful(graph, node, called, forced)
    elif isinstance(node, ProjectNode | FunctionNode) and node.label != "TOSTREAM":
        parent = previous_updates(graph, node.inputs[0], forced=forced)
        made = None if parent is None else replace(node, inputs=(parent,))
    else:
        made = None
    if made is None:
        return None
    labelled = {} if isinstance(made, StatefulNode) else {"label": PREPARE}
    return graph.add(replace(made, name=called, **labelled))  # type: ignore[arg-type]


def _before_stateful(
    graph: GraphBuilder, node: StatefulNode, called: str, forced: bool
) -> Node | None:
    operator = node.operator
    if transforms_alone(node):
        parent = previous_updates(graph, node.inputs[0], forced=forced)
        return None if parent is None else asked_transformer(node, parent)
    if isinstance(operator, VisibleUpdates):
        return replace(node, inputs=(node.inputs[1], node.inputs[0]), label=PREPARE)
    if isinstance(operator, SuppressSpec):
        return _never(node, called) if operator.by_window else None
    if isinstance(operator, LatestUpdates):
        return _looked_up(node, operator.table, called)
    if isinstance(operator, TableTableJoin):
        return replace(node, operator=replace(operator, was=True), label=PREPARE, parts=())
    if isinstance(operator, TableTableRows):
        return _before_rows(graph, node, operator, forced)
    if not node.stores or not isinstance(operator, TableOperator) or node.stores[0].versioned:
        return None
    return _looked_up(node, JoinedTable(node.stores[0], operator.results, node.out.value), called)


def _before_rows(
    graph: GraphBuilder, node: StatefulNode, operator: TableTableRows, forced: bool
) -> StatefulNode | None:
    """Of a join of tables of which one has no store: either half's results, as they were."""
    given = [graph.node(name) for name in node.inputs]
    owns = [previous_updates(graph, half.inputs[-1], forced=forced) for half in given]
    halves = list[str]()
    for half, own in zip(given, owns, strict=True):
        assert isinstance(half, StatefulNode)
        assert isinstance(half.operator, TableRows)
        if own is None or None in owns:
            return None
        inputs = (half.inputs[0], own, half.inputs[-1])
        before = replace(half.operator, was=True)
        called = f"{half.name}-before"
        halves.append(graph.add(replace(half, name=called, inputs=inputs, operator=before)))
    before_both = replace(operator, was=True)
    return replace(node, inputs=tuple(halves), operator=before_both, label=PREPARE, parts=())


def _looked_up(node: StatefulNode, table: JoinedTable, called: str) -> StatefulNode:
    return StatefulNode(
        called,
        (node.name,),
        node.out,
        node.where,
        PREPARE,
        PreviousValues(table, node.out.key),
        reads=(table.spec,),
    )


def _never(node: Node, called: str) -> ProjectNode:
    """Of results that come once for each key: nothing was there."""
    nothing = F.lit(None).cast(spark_type(node.out.value))
    value = replace(analyse(nothing, node.out, node.where), type=node.out.value)
    return ProjectNode(
        name=called,
        inputs=(node.name,),
        out=node.out,
        where=node.where,
        label=PREPARE,
        value=value,
    )
