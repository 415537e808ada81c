"""Tables that keep their history (KIP-889), and those whose entries end (``ttl=``).

Design notes 028 and 030. `latest_of` is for what works on latest values only.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeGuard

from everflow import serdes
from everflow.dsl.expressions import Edge
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lowering.join_call import stored_table
from everflow.dsl.lowering.stream import Stream
from everflow.errors import TopologyError
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.processors.process import ProcessSpec
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.table import TableSpec
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.operators.versioned_table import LatestUpdates, VersionedTableSpec
from everflow.state.store import VERSIONED, StoreSpec
from everflow.topology.graph import (
    PREPARE,
    FunctionNode,
    Node,
    ProcessorOperator,
    ProjectNode,
    StatefulNode,
)
from everflow.windows import Duration, duration_ms


def checked_ttl(ttl: Any, operator: str, where: str | None) -> int:
    """In ms; TopologyError for what is not above zero."""
    ttl_ms = duration_ms(ttl)
    if ttl_ms < 1:
        raise TopologyError(
            f"{operator}: ttl says how long an entry stays behind its latest record, and is above "
            f"0; found {ttl_ms} ms; write for example ttl='30 days'",
            where=where,
        )
    return ttl_ms


def with_ttl(
    graph: GraphBuilder,
    operator: AggregateSpec | PythonAggregateSpec | TableSpec,
    store: StoreSpec,
    ttl_ms: int,
    called: str,
) -> tuple[TimeToLiveSpec, tuple[StoreSpec, ...]]:
    """The operator whose entries end, and its stores: the entries, and when they end."""
    spec = TimeToLiveSpec(inner=operator, ttl_ms=ttl_ms)
    index = StoreSpec(
        name=graph.claim_beside(spec.index, store.name, called, store.where),
        kind="key_value",
        key_serde=serdes.bytes_(),
        value_serde=serdes.bytes_(),
        where=store.where,
    )
    return spec, (store, index)


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


def transforms_alone(node: Node) -> TypeGuard[StatefulNode]:
    """Whether the node is that of ``transform_values`` without a store of any kind."""
    operator = node.operator if isinstance(node, StatefulNode) else None
    return isinstance(operator, ProcessSpec) and operator.may_be_asked


def asked_transformer(node: StatefulNode, asked: str) -> StatefulNode:
    """The transformer of such a node for the entries that the node ``asked`` gives. As in Kafka
    Streams it is one by itself, called with None where there is no entry."""
    assert isinstance(node.operator, ProcessSpec)
    return replace(node, inputs=(asked,), operator=node.operator.asked, label=PREPARE)


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
    left: Stream, right: Stream, name: str, operator: str, where: str | None
) -> tuple[str, str]:
    """`latest_updates` of the sides of a join."""
    return (
        latest_updates(left, f"{name}-left", operator, where),
        latest_updates(right, f"{name}-right", operator, where),
    )


def latest_updates(table: Stream, name: str, operator: str, where: str | None) -> str:
    """The node of the table's updates that are the latest when they come (KIP-914): of a table that
    is not versioned all are; of one that is filtered or mapped from a versioned one, what becomes
    of that one's. ``name``: of what reads them."""
    return latest_of(table.graph, table.node, name, operator, where)


def latest_of(
    graph: GraphBuilder, node_name: str, name: str, operator: str, where: str | None
) -> str:
    """As `latest_updates`, of a table's node."""
    node, called = graph.node(node_name), f"{node_name}-latest-for-{name}"
    if not is_versioned(graph, node_name) or graph.has(called):
        return called if graph.has(called) else node_name
    if isinstance(node, ProjectNode | FunctionNode) or transforms_alone(node):
        parent = latest_of(graph, node.inputs[0], name, operator, where)
        return graph.add(replace(node, name=called, inputs=(parent,), label=PREPARE))
    looked_up = stored_table(graph, node_name, operator, where)
    latest = StatefulNode(
        called,
        (node_name,),
        node.out,
        where,
        PREPARE,
        LatestUpdates(looked_up, node.out.key),
        reads=(looked_up.spec,),
    )
    return graph.add(latest)
