"""``KTable.suppress``, and results of windows that close: held back in a store (KIP-328)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from everflow import serdes
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.lowering.table_reads import is_versioned
from everflow.dsl.materialized import Materialized
from everflow.dsl.suppressed import Suppressed
from everflow.errors import TopologyError
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.count_windows import CountWindowSpec
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.session_aggregate import SessionAggregateSpec
from everflow.operators.sliding.sliding_aggregate import SlidingAggregateSpec
from everflow.operators.suppress import BufferBounds, EarlyResults, SuppressSpec
from everflow.state.store import StoreSpec
from everflow.topology.graph import FunctionNode, Node, ProjectNode, StatefulNode


def suppressed(
    table: Stream,
    given: object,
    store: str | Materialized | None,
    name: str | None,
    where: str | None,
) -> Stream:
    """The table whose updates are held back."""
    if not isinstance(given, Suppressed):
        raise TopologyError(
            f"suppress takes Suppressed.until_window_closes() or "
            f"Suppressed.until_time_limit('1 minute'), found {given!r}",
            where=where,
        )
    graph, bounds = table.graph, given.buffer.bounds
    if is_versioned(graph, table.node):
        raise TopologyError(
            "suppress holds back the updates of a table's latest values, and this table keeps "
            "its history, whose updates come in any order; suppress a table without history=",
            where=where,
        )
    by_window = given.wait_ms is None
    if by_window and bounds.given and not bounds.stops:
        raise TopologyError(
            "a buffer that gives entries early has results that are not final; write "
            "BufferConfig.unbounded(), or BufferConfig.max_records(...).shut_down_when_full()",
            where=where,
        )
    wait_ms = given.wait_ms
    if wait_ms is None:
        wait_ms = closes_after_ms(graph, table.node)
    if wait_ms is None and _by_numbers(graph, table.node):
        raise TopologyError(
            "count windows close with their last record, not by time; give one result of each with "
            "windowed.emit_strategy(EmitStrategy.on_window_close()) in front of count(...), "
            "reduce(...) or aggregate(...)",
            where=where,
        )
    if wait_ms is None:
        raise TopologyError(
            "until_window_closes is for tables of windows: "
            "stream.group_by_key().windowed_by(TimeWindows.of_size('1 minute')).count(...); other "
            "tables take Suppressed.until_time_limit('1 minute')",
            where=where,
        )
    if not by_window:
        emit_each_update(graph, table.node)
    node_name = graph.node_name(name, "KTABLE-SUPPRESS-", where)
    claimed = graph.claim_store(store, "suppress", where)
    node = suppress_node(table, node_name, claimed, wait_ms, by_window, bounds, where)
    return Stream(graph, graph.add(node), table.edge)


def suppress_node(
    table: Stream,
    name: str,
    store: str,
    wait_ms: int,
    by_window: bool,
    bounds: BufferBounds,
    where: str | None,
) -> StatefulNode:
    """The node ``name``, whose buffer is the store ``store``."""
    key_serde, value_serde = table.edge.serdes("suppress", where)
    spec = SuppressSpec(
        store=store,
        where=where,
        table_key_serde=key_serde,
        table_value_serde=value_serde,
        result_key=table.edge.type.key,
        result=table.edge.type.value,
        wait_ms=wait_ms,
        by_window=by_window,
        bounds=bounds,
    )
    kept = StoreSpec(
        name=store,
        kind="key_value",
        key_serde=serdes.bytes_(),
        value_serde=serdes.bytes_(),
        where=where,
        private=True,
    )
    return StatefulNode(name, (table.node,), table.edge.type, where, "SUPPRESS", spec, (kept,))


def early_node(closed: StatefulNode, graph: GraphBuilder, early: EarlyResults) -> StatefulNode:
    """The node ``closed`` that gives final results, with early ones too."""
    for given in closed.inputs:
        emit_each_update(graph, given)
    return replace(closed, operator=replace(closed.operator, early=early, by_window=False))


def closes_after_ms(graph: GraphBuilder, name: str) -> int | None:
    """How far behind a window's end stream time has to be for no record to change it any more: the
    longest of all windows that the table is made of; None where there are none."""
    node = graph.node(name)
    operator: Any = node.operator if isinstance(node, StatefulNode) else None
    if isinstance(operator, SessionAggregateSpec):
        return operator.windows.retention_ms
    if isinstance(operator, SlidingAggregateSpec):
        return operator.windows.grace_ms
    if isinstance(operator, AggregateSpec | PythonAggregateSpec) and operator.window is not None:
        return operator.window.grace_ms
    found = [closes_after_ms(graph, given) for given in node.inputs]
    known = [wait_ms for wait_ms in found if wait_ms is not None]
    return max(known) if found and len(known) == len(found) else None


def _by_numbers(graph: GraphBuilder, name: str) -> bool:
    """Whether the table is made of count windows."""
    node = graph.node(name)
    if isinstance(node, StatefulNode) and isinstance(node.operator, CountWindowSpec):
        return True
    return any(_by_numbers(graph, given) for given in node.inputs)


def emit_each_update(graph: GraphBuilder, name: str) -> None:
    """Whoever counts updates, or goes by the first one, needs all of them from the table's
    operators."""
    node: Node = graph.node(name)
    if isinstance(node, StatefulNode) and hasattr(node.operator, "emit_every_update"):
        every: Any = node.operator
        graph.replace(replace(node, operator=replace(every, emit_every_update=True)))
        if graph.has(f"{name}-before"):  # row by row what those were
            emit_each_update(graph, f"{name}-before")
    elif isinstance(node, ProjectNode | FunctionNode):
        for given in node.inputs:
            emit_each_update(graph, given)
