"""Tables: what a stream becomes, filtered and mapped ones, and stores of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow import serdes
from everflow.dsl.expressions import (
    Edge,
    Expression,
    TableFilter,
    TableMapper,
    is_column,
    is_true,
    key_value_function,
    predicate,
    result_serde,
    result_type,
    struct_of,
    unless_deleted,
)
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lowering.processors import TRANSFORMERS, ProcessorCall, Transformer
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.lowering.table_reads import is_versioned, table_stores, tells_old
from everflow.dsl.materialized import Materialized
from everflow.dsl.suppressed import Suppressed
from everflow.errors import TopologyError
from everflow.operators.aggregates.aggregate import AggregateSpec, PythonAggregateSpec
from everflow.operators.aggregates.session_aggregate import SessionAggregateSpec
from everflow.operators.aggregates.sliding_aggregate import SlidingAggregateSpec
from everflow.operators.aggregates.windowed_aggregate import CountWindowSpec
from everflow.operators.suppress import BufferBounds, EarlyResults, SuppressSpec
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
from everflow.windows import Duration


def table_of(
    stream: Stream,
    store: str | Materialized | None,
    key: Serde | None,
    value: Serde | None,
    ttl: Duration | None,
    name: str | None,
    where: str | None,
) -> Stream:
    """The table that a stream becomes as a changelog."""
    graph = stream.graph
    claimed = graph.claim_store(store, "to_table", where)
    node_name = graph.node_name(name, "KSTREAM-TOTABLE-", where)
    stream = stream.with_serdes("to_table", key, value, where)
    stores, operator = table_stores(graph, claimed, stream.edge, "to_table", where, ttl)
    if stream.key_changed:
        topic = graph.check_repartition_name(name or claimed, "to_table", where)
        stream = stream.repartitioned(topic, where, "to_table")
    node = StatefulNode(
        node_name, (stream.node,), stream.edge.type, where, "TOTABLE", operator, stores
    )
    return Stream(graph, graph.add(node), stream.edge)


@dataclass(frozen=True)
class TableCall:
    """A call that makes a table of another: its name, the store and the node's name that it asks
    for, the line."""

    operator: str
    store: str | Materialized | None
    name: str | None
    where: str | None

    def filtered(self, table: Stream, condition: Expression, *, negate: bool) -> Stream:
        """The entries for which the condition is true."""
        where = self.where
        if not is_column(condition, self.operator, where):
            fails = TableFilter(key_value_function(condition, self.operator, where), negate)
            return self._function(table, "KTABLE-FILTER-", "FILTER", fails, table.edge)
        predicate(condition, table.edge, where)
        keep = ~is_true(condition) if negate else condition
        value = analyse(F.when(keep, F.col("value")), table.edge.type, where)
        value = replace(value, skips_null=True)
        return self._project(table, "KTABLE-FILTER-", "FILTER", value, table.edge)

    def mapped(
        self,
        table: Stream,
        mapper: Expression | None,
        fields: dict[str, Column],
        returns: object,
    ) -> Stream:
        """A new value for every entry."""
        where = self.where
        if bool(fields) == (mapper is not None):
            raise TopologyError(
                "map_values needs either one Column or Python function, or field=Column arguments",
                where=where,
            )
        if fields:
            mapper = struct_of(fields, "map_values", where)
        assert mapper is not None
        prefix, label = "KTABLE-MAPVALUES-", "MAPVALUES"
        if not is_column(mapper, "map_values", where):
            edge = table.edge.with_types(value=result_type(returns, mapper, "map_values", where))
            edge = edge.with_serdes(value=result_serde(returns))
            called = TableMapper(key_value_function(mapper, "map_values", where))
            return self._function(table, prefix, label, called, edge)
        value = unless_deleted(mapper, table.edge, where)
        return self._project(table, prefix, label, value, table.edge.with_types(value=value.type))

    def transformed(
        self,
        table: Stream,
        transformer: Transformer,
        returns: object,
        stores: Iterable[StoreSpec | str],
    ) -> Stream:
        """A new value for every update by a transformer of the user's."""
        graph = table.graph
        call = ProcessorCall("transform_values", transformer, stores, self.name, self.where)
        edge = table.edge
        if returns is not None:
            kind = result_type(returns, call.named, "transform_values", self.where)
            edge = edge.with_types(value=kind).with_serdes(value=result_serde(returns))
        node_name = graph.node_name(self.name, "KTABLE-TRANSFORMVALUES-", self.where)
        label = "TRANSFORMVALUES" if self.store is None else PREPARE
        values = self._values_of(node_name)
        made = call.node(table, values, edge, TRANSFORMERS, keeps_key=True, label=label)
        result = self._in_store(table, made.name, edge, node_name)
        if self.store is not None and made.stores + made.reads:
            both = graph.node(result.node)
            assert isinstance(both, StatefulNode)
            names = [spec.name for spec in (*both.stores, *made.stores, *made.reads)]
            part = Part(node_name, (table.node,), tuple(names))
            graph.replace(replace(both, parts=(part,)))
        return result

    @property
    def _filters(self) -> bool:
        return self.operator in ("filter", "filter_not")

    def _values_of(self, node: str) -> str:
        """The node that makes the values of ``node``."""
        return node if self.store is None else f"{node}-values"

    def _project(
        self, table: Stream, prefix: str, label: str, value: ColumnExpr, edge: Edge
    ) -> Stream:
        node_name = table.graph.node_name(self.name, prefix, self.where)
        made = ProjectNode(
            name=self._values_of(node_name),
            inputs=(table.node,),
            out=edge.type,
            where=self.where,
            label=label if self.store is None else PREPARE,
            value=value,
        )
        return self._kept(table, made, edge, node_name)

    def _function(
        self, table: Stream, prefix: str, label: str, fn: Callable[..., Any], edge: Edge
    ) -> Stream:
        node_name = table.graph.node_name(self.name, prefix, self.where)
        made = FunctionNode(
            self._values_of(node_name),
            (table.node,),
            edge.type,
            self.where,
            label if self.store is None else PREPARE,
            "map_values",
            fn,
        )
        return self._kept(table, made, edge, node_name)

    def _kept(self, table: Stream, made: Node, edge: Edge, node_name: str) -> Stream:
        """The table of a new node, in a store where one is asked for; a filter without one emits no
        deletion of what was not there."""
        graph = table.graph
        compares = self._filters and self.store is None and not is_versioned(graph, table.node)
        if compares and tells_old(graph, table.node):
            prepared: Any = made
            new = graph.add(replace(prepared, name=f"{node_name}-new", label=PREPARE))
            visible = VisibleUpdates()
            node = StatefulNode(node_name, (new,), made.out, made.where, "FILTER", visible)
            return Stream(graph, graph.add(node), edge)
        return self._in_store(table, graph.add(made), edge, node_name)

    def _in_store(self, table: Stream, node: str, edge: Edge, node_name: str) -> Stream:
        made = Stream(table.graph, node, edge)
        if self.store is None:
            return made
        return stored(
            made,
            node_name,
            self.store,
            self.operator,
            self.where,
            only_visible=self._filters and not is_versioned(table.graph, table.node),
        )


def stored(
    table: Stream,
    name: str,
    store: object,
    operator: str,
    where: str | None,
    *,
    only_visible: bool = False,
) -> Stream:
    """The table in a ``store`` that the node ``name`` keeps; ``only_visible``: see `TableSpec`."""
    claimed = table.graph.claim_store(store, operator, where)
    node = kept_node(table, name, claimed, operator, where, only_visible=only_visible)
    return table.behind(table.graph.add(node), table.edge)


def kept_node(
    table: Stream,
    name: str,
    store: str,
    operator: str,
    where: str | None,
    *,
    only_visible: bool = False,
) -> StatefulNode:
    """The node of `stored`, which is not added to the graph."""
    key_serde, value_serde = table.edge.serdes(operator, where)
    spec = StoreSpec(
        name=store, kind="key_value", key_serde=key_serde, value_serde=value_serde, where=where
    )
    kept = TableSpec(store, key_serde, value_serde, only_visible=only_visible)
    out = table.edge.type
    return StatefulNode(name, (table.node,), out, where, "MATERIALIZED", kept, (spec,))


# --- ``KTable.suppress``, and results of windows that close: held back in a store (KIP-328) -------


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
        key_serde=key_serde,
        value_serde=value_serde,
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
    """True if the table is made of count windows."""
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
