"""Tables: what a stream becomes, filtered and mapped ones, and stores of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.expressions import (
    Edge,
    Expression,
    TableFilter,
    TableMapper,
    is_column,
    is_true,
    key_value_function,
    predicate,
    struct_of,
    unless_deleted,
)
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lowering.processors import TRANSFORMERS, ProcessorCall, Transformer
from everflow.dsl.lowering.stream import Stream, bytes_store
from everflow.dsl.lowering.table_reads import is_versioned, table_stores, tells_old
from everflow.dsl.stores import Materialized
from everflow.dsl.suppressed import Suppressed
from everflow.errors import TopologyError
from everflow.operators.aggregates.aggregate import AggregateSpec, PythonAggregateSpec
from everflow.operators.aggregates.sliding_aggregate import SlidingAggregateSpec
from everflow.operators.aggregates.windowed_aggregate import CountWindowSpec, SessionAggregateSpec
from everflow.operators.suppress import SuppressSpec
from everflow.operators.table import TableSpec, VisibleUpdates
from everflow.serdes import Serde
from everflow.spark.expressions import analyse
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    PREPARE,
    ColumnExpr,
    FunctionNode,
    Node,
    Part,
    ProjectNode,
    StatefulNode,
)
from everflow.user_program import user_line
from everflow.windows import Duration


def table_of(
    stream: Stream,
    store: str | Materialized | None,
    key: Serde | None,
    value: Serde | None,
    ttl: Duration | None,
    name: str | None,
) -> Stream:
    """The table that a stream becomes as a changelog."""
    graph = stream.graph
    claimed = graph.claim_store(store, "to_table")
    node_name = graph.node_name(name, "KSTREAM-TOTABLE-")
    stream = stream.with_serdes("to_table", key, value)
    stores, operator = table_stores(graph, claimed, stream.edge, "to_table", ttl)
    if stream.key_changed:
        topic = graph.check_repartition_name(name or claimed, "to_table")
        stream = stream.repartitioned(topic, "to_table")
    return stream.kept(node_name, "TOTABLE", operator, stores)


@dataclass(frozen=True)
class TableCall:
    """A call that makes a table of another: its name, the store and the node's name that it asks
    for."""

    table: Stream
    operator: str
    store: str | Materialized | None
    name: str | None

    def filtered(self, condition: Expression) -> Stream:
        """The entries for which the condition is true."""
        edge, negate = self.table.edge, self.operator == "filter_not"
        if not is_column(condition, self.operator):
            fails = TableFilter(key_value_function(condition, self.operator), negate)
            return self._made("FILTER", fails, edge)
        predicate(condition, edge)
        keep = ~is_true(condition) if negate else condition
        value = analyse(F.when(keep, F.col("value")), edge.type)
        return self._made("FILTER", replace(value, skips_null=True), edge)

    def mapped(
        self, mapper: Expression | None, fields: dict[str, Column], returns: object
    ) -> Stream:
        """A new value for every entry."""
        if bool(fields) == (mapper is not None):
            raise TopologyError(
                "map_values needs either one Column or Python function, or field=Column arguments"
            )
        if fields:
            mapper = struct_of(fields, "map_values")
        assert mapper is not None
        edge = self.table.edge
        if is_column(mapper, "map_values"):
            value = unless_deleted(mapper, edge)
            return self._made("MAPVALUES", value, edge.with_types(value=value.type))
        edge = edge.returning("map_values", mapper, value=returns)
        called = TableMapper(key_value_function(mapper, "map_values"))
        return self._made("MAPVALUES", called, edge)

    def transformed(
        self, transformer: Transformer, returns: object, stores: Iterable[StoreSpec | str]
    ) -> Stream:
        """A new value for every update by a transformer of the user's."""
        table, graph = self.table, self.table.graph
        call = ProcessorCall("transform_values", transformer, stores, self.name)
        edge = table.edge
        if returns is not None:
            edge = edge.returning("transform_values", call.named, value=returns)
        name = graph.node_name(self.name, "KTABLE-TRANSFORMVALUES-")
        if self.store is None:
            call.node(table, name, edge, TRANSFORMERS, label="TRANSFORMVALUES")
            return table.behind(name, edge)
        made = call.node(table, f"{name}-values", edge, TRANSFORMERS, label=PREPARE)
        result = stored(table.behind(made.name, edge), name, self.store, self.operator)
        if made.stores + made.reads:
            both = graph.node(result.node)
            assert isinstance(both, StatefulNode)
            names = [spec.name for spec in (*both.stores, *made.stores, *made.reads)]
            part = Part(name, (table.node,), tuple(names))
            graph.replace(replace(both, parts=(part,)))
        return result

    def _made(self, kind: str, value: ColumnExpr | Callable[..., Any], edge: Edge) -> Stream:
        """The table of new values, in a store where one is asked for; a filter without one emits no
        deletion of what was not there."""
        table, graph = self.table, self.table.graph
        node_name = graph.node_name(self.name, f"KTABLE-{kind}-")
        hides = kind == "FILTER" and not is_versioned(graph, table.node)
        compares = hides and self.store is None and tells_old(graph, table.node)
        name, label = node_name, kind
        if compares or self.store is not None:
            name, label = f"{node_name}-{'new' if compares else 'values'}", PREPARE
        if isinstance(value, ColumnExpr):
            made = table.projected(name, label, edge, value=value)
        else:
            made = table.called(name, label, "map_values", value, edge)
        if compares:
            return made.kept(node_name, kind, VisibleUpdates())
        if self.store is None:
            return made
        return stored(made, node_name, self.store, self.operator, only_visible=hides)


def stored(
    table: Stream, name: str, store: object, operator: str, *, only_visible: bool = False
) -> Stream:
    """The table in a ``store`` that the node ``name`` keeps; ``only_visible``: see `TableSpec`."""
    claimed = table.graph.claim_store(store, operator)
    node = kept_node(table, name, claimed, operator, only_visible=only_visible)
    return table.behind(table.graph.add(node), table.edge)


def kept_node(
    table: Stream, name: str, store: str, operator: str, *, only_visible: bool = False
) -> StatefulNode:
    """The node of `stored`, which is not added to the graph."""
    key_serde, value_serde = table.edge.serdes(operator)
    spec = StoreSpec(name=store, kind="key_value", key_serde=key_serde, value_serde=value_serde)
    kept = TableSpec(store, key_serde, value_serde, only_visible=only_visible)
    out = table.edge.type
    return StatefulNode(name, (table.node,), out, "MATERIALIZED", kept, (spec,))


# --- ``KTable.suppress``, and results of windows that close: held back in a store (KIP-328) -------


def suppressed(
    table: Stream, given: object, store: str | Materialized | None, name: str | None
) -> Stream:
    """The table whose updates are held back."""
    if not isinstance(given, Suppressed):
        raise TopologyError(
            f"suppress takes Suppressed.until_window_closes() or "
            f"Suppressed.until_time_limit('1 minute'), found {given!r}"
        )
    graph, bounds = table.graph, given.buffer.bounds
    if is_versioned(graph, table.node):
        raise TopologyError(
            "suppress holds back the updates of a table's latest values, and this table keeps "
            "its history, whose updates come in any order; suppress a table without history="
        )
    by_window = given.wait_ms is None
    if by_window and bounds.given and not bounds.stops:
        raise TopologyError(
            "a buffer that gives entries early has results that are not final; write "
            "BufferConfig.unbounded(), or BufferConfig.max_records(...).shut_down_when_full()"
        )
    wait_ms = given.wait_ms
    if wait_ms is None:
        wait_ms = closes_after_ms(graph, table.node)
    if wait_ms is None and _by_numbers(graph, table.node):
        raise TopologyError(
            "count windows close with their last record, not by time; give one result of each with "
            "windowed.emit_strategy(EmitStrategy.on_window_close()) in front of count(...), "
            "reduce(...) or aggregate(...)"
        )
    if wait_ms is None:
        raise TopologyError(
            "until_window_closes is for tables of windows: "
            "stream.group_by_key().windowed_by(TimeWindows.of_size('1 minute')).count(...); other "
            "tables take Suppressed.until_time_limit('1 minute')"
        )
    if not by_window:
        emit_each_update(graph, table.node)
    node_name = graph.node_name(name, "KTABLE-SUPPRESS-")
    claimed = graph.claim_store(store, "suppress")
    return held_back(table, node_name, claimed, wait_ms=wait_ms, by_window=by_window, bounds=bounds)


def held_back(table: Stream, name: str, store: str, **how: Any) -> Stream:
    """The table behind a node with the buffer ``store``; ``how``: of `SuppressSpec`."""
    key_serde, value_serde = table.edge.serdes("suppress")
    spec = SuppressSpec(
        store=store,
        where=user_line(),
        key_serde=key_serde,
        value_serde=value_serde,
        **how,
    )
    return table.kept(name, "SUPPRESS", spec, (bytes_store(store, private=True),))


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
    """True if the table is made of count windows."""
    node = graph.node(name)
    if isinstance(node, StatefulNode) and isinstance(node.operator, CountWindowSpec):
        return True
    return any(_by_numbers(graph, given) for given in node.inputs)


def emit_each_update(graph: GraphBuilder, name: str) -> None:
    """Have the table's operators give all updates, for those who count them."""
    node: Node = graph.node(name)
    if isinstance(node, StatefulNode) and hasattr(node.operator, "emit_every_update"):
        every: Any = node.operator
        graph.replace(replace(node, operator=replace(every, emit_every_update=True)))
        if graph.has(f"{name}-before"):  # row by row what those were
            emit_each_update(graph, f"{name}-before")
    elif isinstance(node, ProjectNode | FunctionNode):
        for given in node.inputs:
            emit_each_update(graph, given)
