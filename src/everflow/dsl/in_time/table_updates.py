"""What entries of a table were before its updates: in its store, or computed from that (note 035).

All calls belong to the thread that builds the topology.
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from pyspark.sql import functions as F

from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.versioned_tables import asked_transformer, transforms_alone
from everflow.operators.joins import JoinedTable, TableTableJoin
from everflow.operators.joins.table_table import TableRows, TableTableRows
from everflow.operators.suppress import SuppressSpec
from everflow.operators.table_changes import PreviousValues, VisibleUpdates
from everflow.operators.versioned_table import LatestUpdates
from everflow.spark.expressions import analyse, spark_type
from everflow.topology.graph import (
    PREPARE,
    FunctionNode,
    Node,
    ProjectNode,
    StatefulNode,
    StatefulOperator,
)


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
    if not node.stores or not hasattr(operator, "process_tasks") or node.stores[0].versioned:
        return None
    results = cast(StatefulOperator, operator).results
    return _looked_up(node, JoinedTable(node.stores[0], results, node.out.value), called)


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
