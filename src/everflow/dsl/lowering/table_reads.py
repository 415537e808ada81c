"""Tables as operators read them: their stores, their latest updates, and what they look up.

A table without a store of its own is made of those that have one (Kafka Streams' value getters,
note 035). Those that keep their history (KIP-889), and those whose entries end (``ttl=``): notes
028 and 030.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everflow.dsl.expressions import Edge
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lowering.stream import Stream, bytes_store
from everflow.errors import TopologyError
from everflow.operators.aggregates.aggregate import AggregateSpec, PythonAggregateSpec
from everflow.operators.joins import JoinedTable, TableTableJoin
from everflow.operators.joins.joined_table import MappedTable, TableOfBoth, TableRead
from everflow.operators.suppress import SuppressSpec
from everflow.operators.table import LatestUpdates, TableSpec, VersionedTableSpec, VisibleUpdates
from everflow.operators.time_to_live import TimeToLiveSpec
from everflow.state.store import VERSIONED, StoreSpec
from everflow.topology.graph import (
    PREPARE,
    FunctionNode,
    Node,
    ProcessorOperator,
    ProjectNode,
    StatefulNode,
    TableOperator,
)
from everflow.windows import Duration, checked_ms, duration_ms


def checked_ttl(ttl: Any, operator: str) -> int:
    """How long an entry stays behind its latest record, in ms."""
    return checked_ms(ttl, f"{operator}: ttl", 1, "; write for example ttl='30 days'")


def with_ttl(
    graph: GraphBuilder,
    operator: AggregateSpec | PythonAggregateSpec | TableSpec,
    store: StoreSpec,
    ttl_ms: int,
    called: str,
) -> tuple[TimeToLiveSpec, tuple[StoreSpec, ...]]:
    """The operator whose entries end, and its stores: the entries, and when they end."""
    spec = TimeToLiveSpec(layout=operator, ttl_ms=ttl_ms)
    index = graph.claim_beside(spec.index, store.name, called)
    return spec, (store, bytes_store(index))


def table_stores(
    graph: GraphBuilder, name: str, edge: Edge, operator: str, ttl: Duration | None = None
) -> tuple[tuple[StoreSpec, ...], TableSpec | VersionedTableSpec | TimeToLiveSpec]:
    """The stores of a table, and what keeps it; ``ttl``: how long it keeps entries."""
    history = graph.history_of(name)
    ttl_ms = None if ttl is None else checked_ttl(ttl, operator)
    if ttl_ms is not None and history is not None:
        raise TopologyError(
            f"{operator} takes Materialized(history=) or ttl=: a table that keeps what its values "
            "were forgets none of its keys; leave one of them out"
        )
    key_serde, value_serde = edge.serdes(operator)
    history_ms = None if history is None else duration_ms(history)
    spec = StoreSpec(
        name=name,
        kind="key_value" if history_ms is None else VERSIONED,
        key_serde=key_serde,
        value_serde=value_serde,
        retention_ms=history_ms,
    )
    if history_ms is not None:
        return (spec,), VersionedTableSpec(name, key_serde, value_serde, history_ms)
    table = TableSpec(name, key_serde, value_serde)
    if ttl_ms is None:
        return (spec,), table
    ending, stores = with_ttl(graph, table, spec, ttl_ms, operator)
    return stores, ending


def is_versioned(graph: GraphBuilder, name: str) -> bool:
    """True if the updates that a table's node gives are those of a versioned table."""
    node = graph.node(name)
    transformed = isinstance(node, StatefulNode) and isinstance(node.operator, ProcessorOperator)
    if isinstance(node, StatefulNode) and node.stores and not transformed:
        return node.stores[0].versioned
    if transformed or isinstance(node, ProjectNode | FunctionNode):
        return is_versioned(graph, node.inputs[0])
    return False


def latest_updates(graph: GraphBuilder, node_name: str, name: str, operator: str) -> str:
    """The node of a table's updates that are the latest when they come (KIP-914): of a table that
    is not versioned all are; of one that is filtered or mapped from a versioned one, what becomes
    of that one's. ``name``: of what reads them."""
    node, called = graph.node(node_name), f"{node_name}-latest-for-{name}"
    if not is_versioned(graph, node_name) or graph.has(called):
        return called if graph.has(called) else node_name
    if is_stateless(node):
        parent = latest_updates(graph, node.inputs[0], name, operator)
        made: Any = node
        return graph.add(replace(made, name=called, inputs=(parent,), label=PREPARE))
    looked_up = stored_table(graph, node_name, operator)
    latest = LatestUpdates(looked_up)
    reads = (looked_up.spec,)
    return graph.add(StatefulNode(called, (node_name,), node.out, PREPARE, latest, reads=reads))


# --- stores ---------------------------------------------------------------------------------------


def joined_table(graph: GraphBuilder, name: str, operator: str) -> JoinedTable:
    """`stored_table` for a join, which needs each of the table's updates."""
    found = stored_table(graph, name, operator)
    node: Any = graph.node(name)
    graph.replace(replace(node, operator=replace(node.operator, emit_every_update=True)))
    return found


def stored_table(graph: GraphBuilder, name: str, operator: str) -> JoinedTable:
    """The table of a node as an operator behind it looks up its entries; a store that was left out
    is made. TopologyError for one without a store."""
    graph.keep(name)
    node = graph.node(name)
    if isinstance(node, StatefulNode) and isinstance(node.operator, SuppressSpec):
        raise TopologyError(
            f"{operator} looks entries up in the table's store, and suppress keeps only what it "
            f"holds back; keep its results: .to_stream().to_table(store='a-name')"
        )
    found = store_of(graph, name)
    if found is None:
        raise TopologyError(
            f"{operator} looks entries up in the table's store, and {name} has none; "
            f"give it one: store='a-name' in the call that makes it"
        )
    assert isinstance(node, StatefulNode)
    results: Any = node.operator
    return JoinedTable(found, results.results, node.out.value)


def store_of(graph: GraphBuilder, name: str) -> StoreSpec | None:
    """The store that has the entries of a table's node, or, of final results, of what they are
    results of; None: there is none."""
    node = graph.node(name)
    if (
        not isinstance(node, StatefulNode)
        or not node.stores
        or isinstance(node.operator, ProcessorOperator)
    ):
        return None
    if isinstance(node.operator, SuppressSpec):
        return store_of(graph, node.inputs[0]) if node.operator.headers_of_last else None
    return node.stores[0]


# --- tables that may have no store ----------------------------------------------------------------

_OF_THE_RECORD = frozenset({"topic", "partition", "offset", "headers"})
"""What an entry does not have any more."""


def is_stateless(node: Node) -> bool:
    """True if a table's node makes a value of each entry alone."""
    if isinstance(node, StatefulNode):
        return node.operator.asked is not None
    return isinstance(node, ProjectNode | FunctionNode) and node.label != "TOSTREAM"


def read_table(
    table: Stream,
    operator: str,
    sides: list[str],
    comes: str,
    called: str = "",
    *,
    as_of: bool = False,
) -> TableRead:
    """How an operator looks a table up. ``sides``: the nodes that the operator reads, to which
    those of the tables' updates are added; ``comes``: the node whose records ask; ``called``: of
    what reads latest updates of a table with a history, unless it is asked ``as_of`` the records'
    times. TopologyError for a table whose entries nobody has."""
    graph = table.graph

    def read(name: str) -> TableRead:
        graph.keep(name)
        node = graph.node(name)
        found = node.operator if isinstance(node, StatefulNode) else None
        if is_stateless(node):
            _require_entries(node, operator)
            return mapped(read(node.inputs[0]), node)
        if isinstance(found, VisibleUpdates | LatestUpdates):
            return read(node.inputs[0])
        if isinstance(found, TableTableJoin):
            left, right = (read(one) for one in node.inputs[:2])
            return TableOfBoth(left, right, found.kind, node.out.value)
        joined, updates = joined_table(graph, name, operator), name
        if not as_of:  # what is there now is the latest
            updates = latest_updates(graph, name, called, operator)
        if updates not in sides:
            sides.append(updates)
        first = graph.reaches_first(name, comes)
        return replace(joined, side=sides.index(updates), first=first, as_of=as_of)

    return read(table.node)


def _require_entries(node: Node, operator: str) -> None:
    value = node.value if isinstance(node, ProjectNode) else None
    read = sorted(_OF_THE_RECORD & (frozenset() if value is None else value.uses))
    if read:
        raise TopologyError(
            f"{operator} asks {node.name} for what it makes of an entry, and its Column reads "
            f"{', '.join(read)}, which only the entry's record had; keep what it gives: "
            "store='a-name' in the call that makes it"
        )


def mapped(table: TableRead, node: Node) -> MappedTable:
    """What a stateless node behind it makes of a table's entries."""
    if isinstance(table, MappedTable):
        return MappedTable(table.source, (*table.nodes, node.name), node.out.value)
    return MappedTable(table, (node.name,), node.out.value)


def specs_of(*tables: TableRead) -> tuple[StoreSpec, ...]:
    """The stores that these tables read, each once."""
    return tuple({one.spec.name: one.spec for table in tables for one in table.stored}.values())


def tells_old(graph: GraphBuilder, name: str, *, forced: bool = False) -> bool:
    """True if it is known what the entries of a table's node were before its updates: where the
    table, or what it is made of, has a store. ``forced``: a store that was left out as nobody asked
    is made."""
    if forced:
        graph.keep(name)
    node = graph.node(name)
    if is_stateless(node):
        return tells_old(graph, node.inputs[0], forced=forced)
    if not isinstance(node, StatefulNode):
        return False
    operator = node.operator
    if isinstance(operator, SuppressSpec):
        return operator.by_window
    if operator.old_from or isinstance(operator, LatestUpdates):
        return True
    return (
        bool(node.stores) and isinstance(operator, TableOperator) and not node.stores[0].versioned
    )
