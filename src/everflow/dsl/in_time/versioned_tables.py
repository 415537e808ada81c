"""Tables that keep their history (KIP-889), and what works on latest values only.

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

from everflow.dsl.expressions import Edge
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.time_to_live import checked_ttl, with_ttl
from everflow.dsl.joins import Side, kept_table
from everflow.errors import TopologyError
from everflow.operators.table import TableSpec
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.operators.versioned_table import LatestUpdates, VersionedTableSpec
from everflow.state.store import VERSIONED, StoreSpec
from everflow.topology.graph import (
    PREPARE,
    FunctionNode,
    ProcessorOperator,
    ProjectNode,
    StatefulNode,
)
from everflow.windows import Duration, duration_ms


def table_stores(
    graph: GraphBuilder,
    name: str,
    edge: Edge,
    operator: str,
    where: str | None,
    ttl: Duration | None = None,
) -> tuple[tuple[StoreSpec, ...], TableSpec | VersionedTableSpec | TimeToLiveSpec]:
    """The stores of a table, and what keeps it; ``ttl``: how long it keeps entries."""
    history = graph.history_of(name)
    ttl_ms = None if ttl is None else checked_ttl(ttl, operator, where)
    if ttl_ms is not None and history is not None:
        raise TopologyError(
            f"{operator} takes Materialized(history=) or ttl=: a table that keeps what its values "
            "were forgets none of its keys; leave one of them out",
            where=where,
        )
    key_serde, value_serde = edge.serdes(operator, where)
    history_ms = None if history is None else duration_ms(history)
    spec = StoreSpec(
        name=name,
        kind="key_value" if history_ms is None else VERSIONED,
        key_serde=key_serde,
        value_serde=value_serde,
        retention_ms=history_ms,
        where=where,
    )
    if history_ms is not None:
        return (spec,), VersionedTableSpec(name, key_serde, value_serde, history_ms)
    table = TableSpec(name, key_serde, value_serde)
    if ttl_ms is None:
        return (spec,), table
    ending, stores = with_ttl(graph, table, spec, ttl_ms, operator)
    return stores, ending


def is_versioned(graph: GraphBuilder, name: str) -> bool:
    """Whether the updates that a table's node gives are those of a versioned table."""
    node = graph.node(name)
    transformed = isinstance(node, StatefulNode) and isinstance(node.operator, ProcessorOperator)
    if isinstance(node, StatefulNode) and node.stores and not transformed:
        return node.stores[0].versioned
    if transformed or isinstance(node, ProjectNode | FunctionNode):
        return is_versioned(graph, node.inputs[0])
    return False


def latest_updates_of_both(
    left: Side, right: Side, name: str, operator: str, where: str | None
) -> tuple[str, str]:
    """`latest_updates` of the sides of a join."""
    return (
        latest_updates(left, f"{name}-left", operator, where),
        latest_updates(right, f"{name}-right", operator, where),
    )


def latest_updates(table: Side, name: str, operator: str, where: str | None) -> str:
    """The node of the table's updates that are the latest when they come (KIP-914): of a table that
    is not versioned all are. ``name``: of what reads them."""
    if not is_versioned(table.graph, table.node):
        return table.node
    looked_up = kept_table(table, operator, where)
    node = StatefulNode(
        f"{name}-latest",
        (table.node,),
        table.edge.type,
        where,
        PREPARE,
        LatestUpdates(looked_up, table.edge.type.key),
        reads=(looked_up.spec,),
    )
    return table.graph.add(node)
