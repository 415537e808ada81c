"""One aggregation of a grouped stream or table, or of cogrouped streams: inputs, store, operator.

Grouped tables: design note 021. Cogrouped streams (KIP-150) are one stream, whose records have a
field for each of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow import serdes
from everflow.columns.computation import presence
from everflow.dsl.expressions import (
    Edge,
    Expression,
    TableMapper,
    TablePairs,
    WithoutKey,
    check_parameters,
    checked_serde,
    default_serde,
    fitting_serde,
    is_column,
    key_value_function,
    required_parameters,
    result_serde,
    result_type,
    unless_deleted,
)
from everflow.dsl.graph_builder import GraphBuilder, Stream, store_spec
from everflow.dsl.lowering.joins import in_windows_of
from everflow.dsl.lowering.tables import (
    buffered,
    closes_after_ms,
    emit_each_update,
    latest_updates,
    span_ms,
    stored_table,
    tells_old,
    with_ttl,
)
from everflow.dsl.stores import EmitStrategy, Store, kept_for
from everflow.errors import EverflowError, TopologyError
from everflow.operators.agg import Aggregator, require_comparable
from everflow.operators.aggregates.aggregate import (
    AggregateSpec,
    PythonAggregateSpec,
    PythonAggregator,
    PythonCogroup,
    PythonReducer,
    PythonTableAggregator,
    TableAggregateSpec,
)
from everflow.operators.aggregates.sliding_aggregate import SlidingAggregateSpec
from everflow.operators.aggregates.windowed_aggregate import (
    EACH_UPDATE,
    CountWindowSpec,
    SessionAggregateSpec,
)
from everflow.operators.suppress import BufferBounds
from everflow.operators.table import TableChanges
from everflow.serdes import Serde
from everflow.serdes.arrow_types import type_text
from everflow.serdes.changed import ChangedSerde, changed_type
from everflow.spark.expressions import analyse, spark_type
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    PREPARE,
    ColumnExpr,
    EdgeType,
    MergeNode,
    StatefulNode,
    TableOperator,
)
from everflow.windows import CountWindows, SessionWindows, SlidingWindows, TimeWindows

Windows: TypeAlias = TimeWindows | SlidingWindows | SessionWindows | CountWindows


class Groups:
    """What is aggregated. ``edge``: of what the aggregates' Columns and functions get."""

    nodes: ClassVar[str] = "KSTREAM-{label}-"
    """What Kafka Streams' names of its nodes begin with."""
    numbers = 0
    """How many of its numbers Kafka Streams uses up before."""
    built_in: type[AggregateSpec] = AggregateSpec
    """What built-in aggregates are made of."""

    def __init__(self, graph: GraphBuilder, edge: Edge) -> None:
        self.graph, self.edge = graph, edge

    def grouped(self, operator: str, name: str, nulls: bool) -> Stream:
        """The stream in which equal keys meet in one task. ``name``: of the node that reads it;
        ``nulls``: if it takes records without a value."""
        raise NotImplementedError

    def inputs(self, name: str, stream: Stream, value: ColumnExpr) -> tuple[Stream, ...]:
        """What the operator ``name`` reads of each record, and of what that takes back."""
        edge = Edge.inside(self.edge.type.key, value.type)
        return (stream.projected(f"{name}-inputs", PREPARE, edge, value=value),)

    def called(self, options: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        """The user's functions as one aggregator, and one of them for messages."""
        raise NotImplementedError


class GroupedStream(Groups):
    """A stream grouped by key; its aggregations share one repartition topic, called ``name``."""

    def __init__(self, stream: Stream, name: str | None) -> None:
        super().__init__(stream.graph, stream.edge)
        self.stream, self.name = stream, name

    def grouped(self, operator: str, name: str = "", nulls: bool = True) -> Stream:
        if not self.stream.key_changed:
            return self.stream
        known = self.graph.regrouped.get(self)
        if known is not None:
            self.graph.burn(3)
            return Stream(self.graph, known, self.edge)
        assert self.name is not None
        made = self.stream.repartitioned(self.name, operator)
        self.graph.regrouped[self] = made.node
        return made

    def called(self, options: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        fn = options["aggregator"]
        return PythonAggregator(options["initializer"], _keyed(fn, "aggregator")), fn


class GroupedTable(Groups):
    """Entries of a table by group. ``changes``: their node; ``name``: of the repartition topic."""

    nodes = "KTABLE-{label}-"
    numbers = 2  # sink and source come first in the original
    built_in = TableAggregateSpec

    def __init__(self, graph: GraphBuilder, changes: str, edge: Edge, name: str) -> None:
        super().__init__(graph, edge)
        self.changes, self.name = changes, name

    def grouped(self, operator: str, name: str, nulls: bool) -> Stream:
        key, value = self.edge.serdes(operator)
        edge = EdgeType(self.edge.type.key, changed_type(self.edge.type.value))
        written = key, ChangedSerde(value)
        node = self.graph.regrouped.get(self)
        if node is None:
            node = self.graph.repartition(self.name, self.changes, edge, written)
            self.graph.regrouped[self] = node
        return Stream(self.graph, node, Edge(edge, *written))

    def inputs(self, name: str, stream: Stream, value: ColumnExpr) -> tuple[Stream, ...]:
        sides: list[Stream] = []
        entry = Edge.inside(self.edge.type.key, self.edge.type.value)
        for side in ("new", "old"):
            one = analyse(F.col(f"value.{side}"), stream.edge.type)
            one = replace(one, type=entry.type.value)
            listed = stream.projected(f"{name}-{side}", PREPARE, entry, value=one)
            sides += super().inputs(f"{name}-{side}", listed, value)
        return tuple(sides)

    def called(self, options: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        adder = _keyed(options["adder"], "adder")
        subtractor = _keyed(options["subtractor"], "subtractor")
        called = PythonTableAggregator(PythonAggregator(options["initializer"], adder), subtractor)
        return called, options["adder"]


Member = tuple[GroupedStream, Callable[..., Any]]
"""Of cogrouped streams: one, and its aggregator."""


class CogroupedStreams(Groups):
    """The members' records as one stream of ``struct<which, v0, v1, ...>``; others are null."""

    nodes = "COGROUPKSTREAM-MERGE-"

    def __init__(self, members: tuple[Member, ...]) -> None:
        self.members = members
        self.numbers = len(members)  # an aggregate for each in the original
        first = members[0][0]
        fields = [(f"v{at}", group.edge.type.value) for at, (group, _) in enumerate(members)]
        type_ = pa.struct([("which", pa.int32()), *fields])
        super().__init__(
            first.graph, Edge(EdgeType(first.edge.type.key, type_), first.edge.key_serde, None)
        )

    def grouped(self, operator: str, name: str, nulls: bool) -> Stream:
        inputs = []
        for at, (group, _) in enumerate(self.members):
            stream = group.grouped(operator)
            column = self._tagged(at)
            if not nulls:
                column = F.when(F.col("value").isNotNull(), column)
            ends = in_windows_of(self.edge, stream.edge)
            key = None if ends is None else analyse(ends, stream.edge.type)
            value = replace(analyse(column, stream.edge.type), type=self.edge.type.value)
            made = stream.projected(f"{name}-{at}", PREPARE, self.edge, key=key, value=value)
            inputs.append(made.node)
        merged = MergeNode(f"{name}-inputs", tuple(inputs), self.edge.type, PREPARE)
        return Stream(self.graph, self.graph.add(merged), self.edge)

    def _tagged(self, which: int) -> Column:
        fields = [F.lit(which).alias("which")]
        for at, (group, _) in enumerate(self.members):
            none = F.lit(None).cast(spark_type(group.edge.type.value))
            fields.append((F.col("value") if at == which else none).alias(f"v{at}"))
        return F.struct(*fields)

    def called(self, options: dict[str, Any]) -> tuple[Callable[..., Any], Any]:
        called = tuple(_keyed(fn, "cogroup: aggregator") for _, fn in self.members)
        return PythonCogroup(options["initializer"], called), self.members[0][1]


def _keyed(
    fn: Any, what: str, names: tuple[str, str] = ("value", "aggregate")
) -> Callable[..., Any]:
    """``fn``, which takes ``names`` or the key and ``names``, as a function of both."""
    count = required_parameters(fn) if callable(fn) else 3
    two = count is None
    if count == 2:  # not ``*args`` style: there the longer call is meant
        parameters = inspect.signature(fn).parameters.values()
        two = all(p.kind is not p.VAR_POSITIONAL for p in parameters)
    check_parameters(fn, names if two else ("key", *names), f"aggregate: {what}")
    return WithoutKey(fn) if two else fn


class Aggregation:
    """One aggregation while it is lowered, in the original's order."""

    def __init__(
        self,
        group: Groups,
        windows: Windows | None,
        operator: str,
        store: Store | None,
        name: str | None,
        *,
        emit: EmitStrategy | None = None,
        ttl_ms: int | None = None,
    ) -> None:
        self.emit, self.ttl_ms = emit or EmitStrategy(), ttl_ms
        self.group, self.operator, self.name = group, operator, name
        self.windows, self.graph = windows, group.graph
        self.counts = isinstance(windows, CountWindows)
        self.cut = windows if isinstance(windows, TimeWindows) else None
        self.store = self.graph.claim_store(store, operator)
        self.retention_ms = -1
        if isinstance(windows, CountWindows):
            self.cut = windows.of_numbers
        elif windows is not None:
            options = self.graph.options.get(self.store)
            self.retention_ms = kept_for(options, windows.retention_ms)
        self.kind = "key_value" if windows is None or self.counts else "window"
        self.size_ms = None if self.cut is None else self.cut.size_ms
        if isinstance(windows, SlidingWindows):
            self.size_ms = windows.difference_ms
        elif isinstance(windows, SessionWindows):
            self.kind = "session"
        self.label = "REDUCE" if operator == "reduce" else "AGGREGATE"

    @property
    def takes_nulls(self) -> bool:
        return self.windows is not None and not isinstance(self.windows, SlidingWindows)

    def aggregate(self, fields: dict[str, Aggregator], options: dict[str, Any]) -> Stream:
        return self.built_in(fields, bare=False) if fields else self.functions(options)

    def built_in(self, fields: dict[str, Aggregator], *, bare: bool) -> Stream:
        """Lower built-in aggregates; ``bare``: the value is the single result, not a struct."""
        edge = self.group.edge
        key_serde = edge.written_key(self.operator)
        columns: dict[str, Column] = {}
        lowered = []
        for i, (name, a) in enumerate(fields.items()):
            column = None if a.column is None else f"a{i}"
            by = None if a.by is None else f"b{i}"
            if column is not None:
                columns[column] = self._input(_column(name, a, a.column), a, edge)
            if by is not None:
                columns[by] = _column(name, a, a.by)
            lowered.append(replace(a, column=column, by=by))
        inputs = self._inputs(columns, edge)
        names = None if bare else list(fields)
        try:
            built_in = self.group.built_in.of(
                self.store, key_serde, lowered, names, inputs.type, window=self.cut
            )
        except EverflowError as error:
            raise TopologyError(f"aggregate in store {self.store!r}: {error}") from None
        spec = self._over_windows(built_in)
        value_serde = spec.value_serde if bare else default_serde(spec.result)
        folds = tuple(column.words for column in built_in.columns)
        return self._add(spec, inputs, value_serde, folds)

    def _input(self, column: Column, aggregator: Aggregator, edge: Edge) -> Column:
        """An aggregate's column; Spark's own hash where values are only distinguished."""
        if aggregator.kind != "approx_count_distinct":
            return column
        type_ = analyse(column, edge.type).type
        require_comparable(aggregator.kind, type_)
        if pa.types.is_floating(type_):  # 0.0 equals -0.0
            column = F.when(column == 0, F.lit(0.0).cast(type_text(type_))).otherwise(column)
        return F.when(column.isNotNull(), F.xxhash64(column))

    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any] | None = None,
    ) -> Stream:
        """Lower a reducer, or an adder and a subtractor; the aggregate has the value's type."""
        names = ("aggregate", "value")
        made: Callable[..., Any] = PythonReducer(reducer)
        if subtractor is None:
            check_parameters(reducer, names, "reduce")
        else:
            check_parameters(reducer, names, "reduce: adder")
            check_parameters(subtractor, names, "reduce: subtractor")
            made = PythonTableAggregator(made, PythonReducer(subtractor))
        key_serde, value_serde = self.group.edge.serdes("reduce")
        return self._functions(key_serde, value_serde, made, None)

    def functions(self, options: dict[str, Any]) -> Stream:
        check_parameters(options["initializer"], (), "aggregate: initializer")
        aggregator, named = self.group.called(options)
        merger = None
        if isinstance(self.windows, SessionWindows):
            names = ("earlier aggregate", "later aggregate")
            merger = _keyed(options["merger"], "merger", names)
        value_serde = self._value_serde(options["returns"], options["value"], named)
        key_serde = self.group.edge.written_key("aggregate")
        return self._functions(key_serde, value_serde, aggregator, merger)

    def _functions(
        self,
        key_serde: Serde,
        value_serde: Serde,
        aggregator: Callable[[Any, Any, Any], Any],
        merger: Any,
    ) -> Stream:
        functions = PythonAggregateSpec(
            store=self.store,
            key_serde=key_serde,
            value_serde=value_serde,
            aggregator=aggregator,
            window=self.cut,
        )
        return self._add(self._over_windows(functions, merger), None, value_serde)

    def _over_windows(
        self,
        layout: AggregateSpec | PythonAggregateSpec,
        merger: Callable[[Any, Any, Any], Any] | None = None,
    ) -> TableOperator:
        """The aggregate in its windows; in time windows, or without any, it is its own operator."""
        if isinstance(self.windows, SessionWindows):
            return SessionAggregateSpec(
                layout, self.windows, merger, retention_ms=self.retention_ms
            )
        if isinstance(self.windows, SlidingWindows):
            return SlidingAggregateSpec(layout, self.windows, self.retention_ms)
        if not self.counts:
            return layout
        # Count windows are complete at a record, so they say themselves what is early.
        numbers = self.graph.claim_beside(f"{self.store}-numbers", self.store, self.operator)
        early = EACH_UPDATE
        if self.emit.final:
            early = 0 if self.emit.early is None else self.emit.early.records or 0
        return CountWindowSpec(layout=layout, numbers=numbers, early=early)

    def _value_serde(
        self,
        returns: object,
        value: object,
        aggregator: Callable[..., Any],
    ) -> Serde:
        if value is not None and returns is None:
            return checked_serde(value, "value", "aggregate")
        type_ = result_type(returns, aggregator, "aggregate")
        serde = fitting_serde(value, type_, "value", "aggregate")
        serde = serde or result_serde(returns) or default_serde(type_)
        if serde is None:
            raise TopologyError(
                f"aggregate: returns={returns!r} has no serde of its own; give one with value="
            )
        return serde

    def _inputs(self, columns: dict[str, Column], edge: Edge) -> ColumnExpr:
        """The value that the operator reads: null as a whole where null values are skipped."""
        # nothing of the user's to analyse: a count alone needs no Spark while the program is built
        if not columns:
            return ColumnExpr(
                column="CASE WHEN value IS NOT NULL THEN true END",
                type=pa.bool_(),
                uses=frozenset({"value"}),
                arrow=presence(edge.type.value),
            )
        for column in columns.values():
            # Each alone, so that a message names the one that is wrong.
            analyse(column, edge.type)
        fields = F.struct(*[column.alias(name) for name, column in columns.items()])
        if self.takes_nulls:
            return analyse(fields, edge.type)
        present = F.when(F.col("value").isNotNull(), fields)
        return replace(analyse(present, edge.type), skips_null=True)

    def _add(
        self,
        spec: TableOperator,
        inputs: ColumnExpr | None,
        value_serde: Serde | None,
        folds: tuple[str, ...] = (),
    ) -> Stream:
        graph, group = self.graph, self.group
        graph.burn(group.numbers)
        node_name = graph.node_name(self.name, group.nodes.format(label=self.label))
        stream = group.grouped(self.operator, node_name, self.takes_nulls)
        read = (stream,) if inputs is None else group.inputs(node_name, stream, inputs)
        edge = Edge(
            EdgeType(spec.result_key, spec.result), self._key_serde(spec.key_serde), value_serde
        )
        stores = self._stores(spec, folds)
        if self.ttl_ms is not None:
            assert isinstance(spec, AggregateSpec | PythonAggregateSpec)
            spec, stores = with_ttl(graph, spec, stores[0], self.ttl_ms, self.operator)
        sides = tuple(one.node for one in read)
        node = StatefulNode(node_name, sides, edge.type, self.label, spec, stores)
        table = Stream(graph, graph.add(node), edge)
        if not self.emit.final or self.counts:
            return table
        wait_ms = closes_after_ms(graph, table.node)
        assert wait_ms is not None
        if not isinstance(self.windows, TimeWindows):
            wait_ms += 1  # a record at the very end of a session or sliding window belongs to it
        early = self.emit.early
        kept = "final" if early is None else "early"
        claimed = graph.claim_beside(f"{self.store}-{kept}", self.store, "emit_strategy")
        if early is not None:
            emit_each_update(graph, table.node)
        return buffered(
            table,
            f"{node_name}-{kept}",
            claimed,
            wait_ms=wait_ms,
            by_window=early is None,
            bounds=BufferBounds(),
            span_ms=span_ms(graph, table.node),
            headers_of_last=True,
            by_start=isinstance(self.windows, SessionWindows),
            early=early,
        )

    def _key_serde(self, inner: Serde) -> Serde:
        if self.kind == "session":
            return serdes.session_windowed(inner)
        return inner if self.size_ms is None else serdes.time_windowed(inner, self.size_ms)

    def _stores(self, spec: TableOperator, folds: tuple[str, ...]) -> tuple[StoreSpec, ...]:
        key = self._key_serde(spec.key_serde) if self.counts else spec.key_serde
        kept: dict[str, Any] = {"folds": folds, "private": self.counts}
        if self.kind != "key_value":
            kept |= {"retention_ms": self.retention_ms, "window_size_ms": self.size_ms}
        own = store_spec(self.store, (key, spec.value_serde), self.kind, **kept)
        if not isinstance(spec, CountWindowSpec):
            return (own,)
        return own, store_spec(spec.numbers, (spec.key_serde, serdes.long()), private=True)


def _column(name: str, aggregator: Aggregator, column: object) -> Column:
    if isinstance(column, Column):
        return column
    if isinstance(column, str):
        return F.col(column)
    made = f"agg.{aggregator.kind}"
    raise TopologyError(
        f"aggregate: {name}={made}({column!r}) takes a Column or a column's name, e.g. "
        f"{made}('value.amount')"
    )


def grouped_table(
    table: Stream,
    key: Expression,
    value: Column | None,
    returns: object,
    name: str | None,
    written: tuple[object, object],
) -> GroupedTable:
    """``name``: of the repartition topic; ``written``: the serdes there, None: the types' own."""
    graph = table.graph
    node = graph.new_name("KTABLE-SELECT-")
    updates = latest_updates(graph, table.node, node, "group_by")
    if not tells_old(graph, updates, forced=True):
        stored_table(graph, table.node, "group_by")  # says what it lacks
        raise AssertionError("a table that can be asked knows what it was")
    source, edge = table.behind(updates, table.edge), table.edge
    if is_column(key, "group_by"):
        new_key = unless_deleted(key, edge)
        new_value = None if value is None else unless_deleted(value, edge)
        edge = _written(edge.with_types(new_key.type, new_value and new_value.type), written)
        new = source.projected(
            f"{node}-new", PREPARE, edge, key=new_key, value=new_value, changes_key=True
        )
    else:
        edge, op, fn = _selection(edge, key, value, returns)
        edge = _written(edge, written)
        new = source.called(f"{node}-new", PREPARE, op, fn, edge, changes_key=True)
    out = EdgeType(edge.type.key, changed_type(edge.type.value))
    operator = TableChanges(edge.written_key("group_by"))
    changes = graph.add(StatefulNode(node, (new.node,), out, "SELECT", operator))
    topic = graph.check_repartition_name(name, "group_by")
    return GroupedTable(graph, changes, edge, topic)


def _selection(
    edge: Edge, key: Callable[..., Any], value: Column | None, returns: object
) -> tuple[Edge, str, Callable[..., Any]]:
    """The edge behind a function; its kind; the function."""
    if value is not None:
        raise TopologyError(
            "group_by: value= goes with a Column as key; a function returns both, with "
            "returns=(key type, value type)"
        )
    fn = key_value_function(key, "group_by")
    if not isinstance(returns, tuple) or len(returns) == 1:
        (one,) = returns if isinstance(returns, tuple) else (returns,)
        return edge.returning("group_by", fn, key=one), "select_key", TableMapper(fn)
    if len(returns) != 2:
        raise TopologyError(
            f"group_by: returns={returns!r} names {len(returns)} types; a function returns the "
            "key, or key and value"
        )
    edge = edge.returning("group_by", fn, key=returns[0], value=returns[1])
    return edge, "map", TablePairs(fn)


def _written(edge: Edge, serdes: tuple[object, object]) -> Edge:
    key = fitting_serde(serdes[0], edge.type.key, "key", "group_by")
    value = fitting_serde(serdes[1], edge.type.value, "value", "group_by")
    return edge.with_serdes(key, value)


def aggregate_fields(
    arguments: dict[str, Any], names: tuple[str, ...]
) -> tuple[dict[str, Aggregator], dict[str, Any]]:
    """The built-in aggregates of a call, and its options, of the ``names``, that are none."""
    options = {name: arguments[name] for name in names if name in arguments}
    fields = {name: one for name, one in options.items() if isinstance(one, Aggregator)}
    fields |= arguments["aggregators"]
    return fields, {name: None if name in fields else one for name, one in options.items()}


def check_aggregates(fields: dict[str, Aggregator], options: dict[str, Any]) -> None:
    if callable(fields.get("merger")):
        raise TopologyError("merger= is for sessions: only they merge; leave it out here")
    if options.get("merger") is not None and options["aggregator"] is None:
        raise TopologyError(
            "merger= goes with initializer= and aggregator= functions; built-ins merge by "
            "themselves"
        )
    uses_functions = options["initializer"] is not None or options["aggregator"] is not None
    if uses_functions == bool(fields):
        raise TopologyError(
            "aggregate takes either built-ins, e.g. n=agg.count(), or initializer= and aggregator= "
            "functions"
        )
    for name, aggregator in fields.items():
        if not isinstance(aggregator, Aggregator):
            raise TopologyError(
                f"aggregate: {name}={aggregator!r} is not an aggregate; write for example "
                f"{name}=agg.sum('value.amount')"
            )
