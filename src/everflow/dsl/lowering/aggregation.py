"""One aggregation of a grouped stream or table, or of cogrouped streams: inputs, store, operator.

Each change of an entry of a grouped table takes back what it was from its old group and adds what
it is to its new one, through a repartition topic in Java's bytes (design note 021). Cogrouped
streams are one stream, whose records have a field for each of them (KIP-150).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

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
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lowering.join_call import in_windows_of
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.lowering.table_reads import latest_updates, stored_table, tells_old, with_ttl
from everflow.dsl.lowering.tables import closes_after_ms, early_node, suppress_node
from everflow.dsl.materialized import Materialized
from everflow.dsl.suppressed import EmitStrategy
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
from everflow.operators.aggregates.session_aggregate import (
    SessionAggregateSpec,
)
from everflow.operators.aggregates.sliding_aggregate import SlidingAggregateSpec
from everflow.operators.aggregates.windowed_aggregate import EACH_UPDATE, CountWindowSpec
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
    FunctionNode,
    MergeNode,
    Node,
    ProjectNode,
    StatefulNode,
    TableOperator,
)
from everflow.windows import CountWindows, SessionWindows, SlidingWindows, TimeWindows

Windows: TypeAlias = TimeWindows | SlidingWindows | SessionWindows | CountWindows


class Groups(Protocol):
    """What is aggregated: a grouped stream or table, or cogrouped streams."""

    @property
    def graph(self) -> GraphBuilder:
        """The graph that is built."""

    @property
    def edge(self) -> Edge:
        """Of what the aggregates' Columns and functions get."""

    def grouped(self, operator: str, where: str | None) -> Stream:
        """The stream in which equal keys meet in one task."""


@dataclass(frozen=True, eq=False)
class GroupedStream:
    """A stream grouped by key. ``name`` is that of the repartition topic, used where the key was
    changed; several aggregations of one grouped stream share the topic."""

    stream: Stream
    name: str | None

    @property
    def graph(self) -> GraphBuilder:
        return self.stream.graph

    @property
    def edge(self) -> Edge:
        return self.stream.edge

    def grouped(self, operator: str, where: str | None) -> Stream:
        if not self.stream.key_changed:
            return self.stream
        known = self.graph.regrouped.get(self)
        if known is not None:
            self.graph.burn(3)
            return Stream(self.graph, known, self.edge)
        assert self.name is not None
        made = self.stream.repartitioned(self.name, where, operator)
        self.graph.regrouped[self] = made.node
        return made


@dataclass(frozen=True, eq=False)
class GroupedTable:
    """Entries of a table by group. ``changes``: the node of changes; ``edge``: of groups and
    values; ``name``: of the repartition topic, which several aggregations share."""

    graph: GraphBuilder
    changes: str
    edge: Edge
    name: str

    def grouped(self, operator: str, where: str | None) -> Stream:
        """The changes of each group, in one task."""
        key, value = self.edge.serdes(operator, where)
        edge = EdgeType(self.edge.type.key, changed_type(self.edge.type.value))
        written = key, ChangedSerde(value)
        node = self.graph.regrouped.get(self)
        if node is None:
            node = self.graph.repartition(self.name, self.changes, edge, written, where)
            self.graph.regrouped[self] = node
        return Stream(self.graph, node, Edge(edge, *written))


Member = tuple[GroupedStream, Callable[..., Any]]
"""Of cogrouped streams: one, and its aggregator."""


class Aggregation:
    """One aggregation while it is lowered: name, repartition, inputs, store, operator, in the
    original's order."""

    of = "KSTREAM"
    """What Kafka Streams' names of its nodes begin with."""

    def __init__(
        self,
        group: Groups,
        windows: Windows | None,
        operator: str,
        store: str | Materialized | None,
        name: str | None,
        where: str | None,
        *,
        emit: EmitStrategy | None = None,
        ttl_ms: int | None = None,
    ) -> None:
        """``emit``: when windows give their results; ``ttl_ms``: entries end."""
        self.emit, self.ttl_ms = emit or EmitStrategy(), ttl_ms
        self.group, self.operator, self.name, self.where = group, operator, name, where
        self.windows = windows if isinstance(windows, TimeWindows) else None
        self.sliding = windows if isinstance(windows, SlidingWindows) else None
        self.sessions = windows if isinstance(windows, SessionWindows) else None
        self.counts = windows if isinstance(windows, CountWindows) else None
        self.graph = group.graph
        self.store = self.graph.claim_store(store, operator, where)
        self.retention_ms = -1
        if windows is not None and not isinstance(windows, CountWindows):
            self.retention_ms = self.graph.retention_ms(self.store, windows.retention_ms, where)
        self.label = "REDUCE" if operator == "reduce" else "AGGREGATE"

    @property
    def takes_nulls(self) -> bool:
        """True if null values reach the aggregate: not without windows, and not in sliding ones."""
        return (self.windows or self.sessions or self.counts) is not None

    def built_in(self, fields: dict[str, Aggregator], *, bare: bool) -> Stream:
        """Lower built-in aggregates; ``bare``: the value is the single result, not a struct."""
        edge = self.group.edge
        key_serde = edge.written_key(self.operator, self.where)
        columns: dict[str, Column] = {}
        lowered = []
        for i, (name, a) in enumerate(fields.items()):
            column = None if a.column is None else f"a{i}"
            by = None if a.by is None else f"b{i}"
            if column is not None:
                columns[column] = self._input(_column(name, a, a.column, self.where), a, edge)
            if by is not None:
                columns[by] = _column(name, a, a.by, self.where)
            lowered.append(replace(a, column=column, by=by))
        inputs = self._inputs(columns, edge)
        try:
            built_in = self._spec(key_serde, lowered, None if bare else list(fields), inputs.type)
        except EverflowError as error:
            raise TopologyError(
                f"aggregate in store {self.store!r}: {error}", where=self.where
            ) from None
        spec = self._over_windows(built_in)
        value_serde = spec.value_serde if bare else default_serde(spec.result)
        folds = tuple(column.words for column in built_in.columns)
        return self._add(spec, inputs, value_serde, folds)

    def _input(self, column: Column, aggregator: Aggregator, edge: Edge) -> Column:
        """What the operator gets of an aggregate's column: of one whose values are only told apart,
        Spark's own hash."""
        if aggregator.kind != "approx_count_distinct":
            return column
        type_ = analyse(column, edge.type, self.where).type
        require_comparable(aggregator.kind, type_, self.where)
        if pa.types.is_floating(type_):  # 0.0 equals -0.0
            column = F.when(column == 0, F.lit(0.0).cast(type_text(type_))).otherwise(column)
        return F.when(column.isNotNull(), F.xxhash64(column))

    def _spec(
        self,
        key_serde: Serde,
        lowered: list[Aggregator],
        names: list[str] | None,
        inputs: pa.DataType,
    ) -> AggregateSpec:
        return AggregateSpec.of(self.store, key_serde, lowered, names, inputs, window=self._cut)

    def reduce(self, reducer: Callable[[Any, Any], Any]) -> Stream:
        """Lower a Python reducer; the aggregate has the value's type."""
        check_parameters(reducer, ("aggregate", "value"), "reduce", self.where)
        key_serde, value_serde = self.group.edge.serdes("reduce", self.where)
        return self._functions(key_serde, value_serde, PythonReducer(reducer), None)

    def functions(self, options: dict[str, Any]) -> Stream:
        """Lower a Python initializer, aggregator and, for sessions, merger."""
        initializer, aggregator = options["initializer"], options["aggregator"]
        check_parameters(initializer, (), "aggregate: initializer", self.where)
        called = self._with_or_without_key(aggregator, "aggregator", ("value", "aggregate"))
        merger = None
        if self.sessions is not None:
            merger = self._with_or_without_key(
                options["merger"], "merger", ("earlier aggregate", "later aggregate")
            )
        value_serde = self._value_serde(options["returns"], options["value"], aggregator)
        key_serde = self.group.edge.written_key("aggregate", self.where)
        return self._functions(
            key_serde, value_serde, PythonAggregator(initializer, called), merger
        )

    def _with_or_without_key(self, fn: Any, what: str, names: tuple[str, str]) -> Any:
        """``fn`` as a function of the key and ``names``; TopologyError if it can take neither those
        nor ``names`` alone."""
        count = required_parameters(fn) if callable(fn) else 3
        two = count is None or (count == 2 and not _takes_three(fn))
        check_parameters(fn, names if two else ("key", *names), f"aggregate: {what}", self.where)
        return WithoutKey(fn) if two else fn

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
            window=self._cut,
        )
        return self._add(self._over_windows(functions, merger), None, value_serde)

    def _over_windows(
        self,
        layout: AggregateSpec | PythonAggregateSpec,
        merger: Callable[[Any, Any, Any], Any] | None = None,
    ) -> TableOperator:
        """The aggregate in its windows; in time windows, or without any, it is its own operator."""
        if self.sessions is not None:
            return SessionAggregateSpec(
                layout, self.sessions, merger, retention_ms=self.retention_ms
            )
        if self.sliding is not None:
            return SlidingAggregateSpec(layout, self.sliding, self.retention_ms)
        return layout if self.counts is None else self._of_counts(layout)

    @property
    def _cut(self) -> TimeWindows | None:
        return self.windows if self.counts is None else self.counts.of_numbers

    def _of_counts(self, layout: AggregateSpec | PythonAggregateSpec) -> CountWindowSpec:
        """Count windows are complete at a record, so they say themselves what is early."""
        numbers = self.graph.claim_beside(
            f"{self.store}-numbers", self.store, self.operator, self.where
        )
        early = EACH_UPDATE
        if self.emit.final:
            early = 0 if self.emit.early is None else self.emit.early.records or 0
        return CountWindowSpec(layout=layout, numbers=numbers, early=early)

    def _value_serde(self, returns: object, value: object, aggregator: Callable[..., Any]) -> Serde:
        if value is not None:
            given = checked_serde(value, "value", "aggregate", self.where)
            if returns is not None:
                type_ = result_type(returns, aggregator, "aggregate", self.where)
                fitting_serde(given, type_, "value", "aggregate", self.where)
            return given
        type_ = result_type(returns, aggregator, "aggregate", self.where)
        serde = result_serde(returns) or default_serde(type_)
        if serde is None:
            raise TopologyError(
                f"aggregate: returns={returns!r} has no serde of its own; give one with value=",
                where=self.where,
            )
        return serde

    def _inputs(self, columns: dict[str, Column], edge: Edge) -> ColumnExpr:
        """The value that the operator reads. An aggregate that skips null values has one that is
        null as a whole."""
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
            analyse(column, edge.type, self.where)
        fields = F.struct(*[column.alias(name) for name, column in columns.items()])
        if self.takes_nulls:
            return analyse(fields, edge.type, self.where)
        present = F.when(F.col("value").isNotNull(), fields)
        return replace(analyse(present, edge.type, self.where), skips_null=True)

    def _add(
        self,
        spec: TableOperator,
        inputs: ColumnExpr | None,
        value_serde: Serde | None,
        folds: tuple[str, ...] = (),
    ) -> Stream:
        node_name, stream = self._node()
        sources = (stream.node,) if inputs is None else self._prepared(node_name, stream, inputs)
        edge = Edge(
            EdgeType(spec.result_key, spec.result), self._key_serde(spec.key_serde), value_serde
        )
        stores: tuple[StoreSpec, ...] = (self._store_spec(spec, folds),)
        if isinstance(spec, CountWindowSpec):
            stores = (*stores, self._numbers_spec(spec))
        if self.ttl_ms is not None:
            assert isinstance(spec, AggregateSpec | PythonAggregateSpec)
            spec, stores = with_ttl(self.graph, spec, stores[0], self.ttl_ms, self.operator)
        node = StatefulNode(node_name, sources, edge.type, self.where, self.label, spec, stores)
        table = Stream(self.graph, self.graph.add(node), edge)
        if not self.emit.final or self.counts is not None:
            return table
        wait_ms = closes_after_ms(self.graph, table.node)
        assert wait_ms is not None
        if self.windows is None:
            wait_ms += 1  # a record at the very end of a session or sliding window belongs to it
        early = self.emit.early
        kept = "final" if early is None else "early"
        claimed = self.graph.claim_beside(
            f"{self.store}-{kept}", self.store, "emit_strategy", self.where
        )
        closed = suppress_node(
            table, f"{node_name}-{kept}", claimed, wait_ms, True, BufferBounds(), self.where
        )
        final = replace(closed.operator, headers_of_last=True, by_start=self.sessions is not None)
        closed = replace(closed, operator=final)
        if early is not None:
            closed = early_node(closed, self.graph, early)
        return Stream(self.graph, self.graph.add(closed), edge)

    def _node(self) -> tuple[str, Stream]:
        """The operator's name, and the stream that it reads."""
        node_name = self.graph.node_name(self.name, f"{self.of}-{self.label}-", self.where)
        return node_name, self.group.grouped(self.operator, self.where)

    def _prepared(self, name: str, stream: Stream, inputs: ColumnExpr) -> tuple[str, ...]:
        """The nodes that the operator ``name`` reads: its inputs of each record, and of what that
        takes back."""
        return (self._projected(f"{name}-inputs", stream.node, inputs),)

    def _projected(self, name: str, source: str, value: ColumnExpr) -> str:
        key = self.group.edge.type.key
        return self.graph.add(
            ProjectNode(
                name=name,
                inputs=(source,),
                out=EdgeType(key, value.type),
                where=self.where,
                label=PREPARE,
                value=value,
            )
        )

    def _key_serde(self, inner: Serde) -> Serde:
        if self.sessions is not None:
            return serdes.session_windowed(inner)
        if self.sliding is not None:
            return serdes.time_windowed(inner, self.sliding.difference_ms)
        cut = self._cut
        return inner if cut is None else serdes.time_windowed(inner, cut.size_ms)

    def _store_spec(self, spec: TableOperator, folds: tuple[str, ...]) -> StoreSpec:
        kind, size_ms, key_serde = "key_value", None, spec.key_serde
        if self.windows is not None:
            kind, size_ms = "window", self.windows.size_ms
        elif self.sliding is not None:
            kind, size_ms = "window", self.sliding.difference_ms
        elif self.sessions is not None:
            kind = "session"
        elif self.counts is not None:
            key_serde = self._key_serde(spec.key_serde)
        return StoreSpec(
            name=self.store,
            kind=kind,
            key_serde=key_serde,
            value_serde=spec.value_serde,
            retention_ms=None if kind == "key_value" else self.retention_ms,
            window_size_ms=size_ms,
            where=self.where,
            folds=folds,
            private=self.counts is not None,
        )

    def _numbers_spec(self, spec: CountWindowSpec) -> StoreSpec:
        return StoreSpec(
            name=spec.numbers,
            kind="key_value",
            key_serde=spec.key_serde,
            value_serde=serdes.long(),
            where=self.where,
            private=True,
        )


def _column(name: str, aggregator: Aggregator, given: object, where: str | None) -> Column:
    if isinstance(given, Column):
        return given
    if isinstance(given, str):
        return F.col(given)
    made = f"agg.{aggregator.kind}"
    raise TopologyError(
        (
            f"aggregate: {name}={made}({given!r}) takes a Column or a column's name, e.g. "
            f"{made}('value.amount')"
        ),
        where=where,
    )


def _takes_three(fn: Callable[..., Any]) -> bool:
    """True if ``fn`` is ``*args`` style, so that the longer call is meant."""
    return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(fn).parameters.values())


class CogroupedStreams:
    """The members' records as one stream of ``struct<which, v0, v1, ...>``: the value of member
    ``which`` in its field, null in the others."""

    def __init__(self, members: tuple[Member, ...]) -> None:
        self.members = members
        first = members[0][0]
        self.graph: GraphBuilder = first.graph
        fields = [(f"v{at}", group.edge.type.value) for at, (group, _) in enumerate(members)]
        type_ = pa.struct([("which", pa.int32()), *fields])
        key = first.edge
        self.edge = Edge(EdgeType(key.type.key, type_), key.key_serde, None)

    def grouped(self, operator: str, where: str | None) -> Stream:
        """See `Groups`: it is made with the operator's name, by `made`."""
        raise AssertionError("cogrouped streams are put together by name")

    def made(self, name: str, operator: str, where: str | None, *, nulls: bool) -> Stream:
        """The stream that the operator ``name`` reads; ``nulls``: with records without a value."""
        inputs = []
        for at, (group, _) in enumerate(self.members):
            stream = group.grouped(operator, where)
            value = self._tagged(at)
            if not nulls:
                value = F.when(F.col("value").isNotNull(), value)
            key = in_windows_of(self.edge, stream.edge)
            inputs.append(
                self.graph.add(
                    ProjectNode(
                        name=f"{name}-{at}",
                        inputs=(stream.node,),
                        out=self.edge.type,
                        where=where,
                        label=PREPARE,
                        key=None if key is None else analyse(key, stream.edge.type, where),
                        value=replace(
                            analyse(value, stream.edge.type, where), type=self.edge.type.value
                        ),
                    )
                )
            )
        merged = MergeNode(f"{name}-inputs", tuple(inputs), self.edge.type, where, PREPARE)
        return Stream(self.graph, self.graph.add(merged), self.edge)

    def _tagged(self, which: int) -> Column:
        fields = [F.lit(which).alias("which")]
        for at, (group, _) in enumerate(self.members):
            none = F.lit(None).cast(spark_type(group.edge.type.value))
            fields.append((F.col("value") if at == which else none).alias(f"v{at}"))
        return F.struct(*fields)


class CogroupAggregation(Aggregation):
    """An aggregation with an aggregator for each stream."""

    of = "COGROUPKSTREAM"
    group: CogroupedStreams

    def cogrouped(self, options: dict[str, Any]) -> Stream:
        """Lower the initializer, the aggregators and, for sessions, the merger."""
        initializer = options["initializer"]
        check_parameters(initializer, (), "aggregate: initializer", self.where)
        called = tuple(
            self._with_or_without_key(fn, "cogroup: aggregator", ("value", "aggregate"))
            for _, fn in self.group.members
        )
        merger = None
        if self.sessions is not None:
            names = ("earlier aggregate", "later aggregate")
            merger = self._with_or_without_key(options["merger"], "merger", names)
        value_serde = self._value_serde(
            options["returns"], options["value"], self.group.members[0][1]
        )
        key_serde = self.group.edge.written_key("aggregate", self.where)
        return self._functions(key_serde, value_serde, PythonCogroup(initializer, called), merger)

    def _node(self) -> tuple[str, Stream]:
        self.graph.burn(len(self.group.members))  # an aggregate for each in the original
        name = self.graph.node_name(self.name, f"{self.of}-MERGE-", self.where)
        return name, self.group.made(name, self.operator, self.where, nulls=self.takes_nulls)


class TableAggregation(Aggregation):
    """An aggregation that takes back and adds."""

    of = "KTABLE"

    def reduced(self, adder: Any, subtractor: Any) -> Stream:
        """Lower a Python adder and subtractor; the aggregate has the value's type."""
        for what, fn in (("adder", adder), ("subtractor", subtractor)):
            check_parameters(fn, ("aggregate", "value"), f"reduce: {what}", self.where)
        key_serde, value_serde = self.group.edge.serdes("reduce", self.where)
        called = PythonTableAggregator(PythonReducer(adder), PythonReducer(subtractor))
        return self._called(key_serde, value_serde, called)

    def functions(self, options: dict[str, Any]) -> Stream:
        """Lower a Python initializer, adder and subtractor."""
        check_parameters(options["initializer"], (), "aggregate: initializer", self.where)
        names = ("value", "aggregate")
        adder = self._with_or_without_key(options["adder"], "adder", names)
        subtractor = self._with_or_without_key(options["subtractor"], "subtractor", names)
        value_serde = self._value_serde(options["returns"], options["value"], options["adder"])
        key_serde = self.group.edge.written_key("aggregate", self.where)
        called = PythonTableAggregator(PythonAggregator(options["initializer"], adder), subtractor)
        return self._called(key_serde, value_serde, called)

    def _called(
        self,
        key_serde: Serde,
        value_serde: Serde,
        aggregator: PythonTableAggregator,
    ) -> Stream:
        spec = PythonAggregateSpec(
            store=self.store,
            key_serde=key_serde,
            value_serde=value_serde,
            aggregator=aggregator,
        )
        return self._add(spec, None, value_serde)

    def _spec(
        self,
        key_serde: Serde,
        lowered: list[Aggregator],
        names: list[str] | None,
        inputs: pa.DataType,
    ) -> AggregateSpec:
        return TableAggregateSpec.of(self.store, key_serde, lowered, names, inputs)

    def _node(self) -> tuple[str, Stream]:
        self.graph.burn(2)  # sink and source come first in the original
        node_name = self.graph.node_name(self.name, f"{self.of}-{self.label}-", self.where)
        return node_name, self.group.grouped(self.operator, self.where)

    def _prepared(self, name: str, stream: Stream, inputs: ColumnExpr) -> tuple[str, ...]:
        sides = []
        for side in ("new", "old"):
            value = analyse(F.col(f"value.{side}"), stream.edge.type, self.where)
            value = replace(value, type=self.group.edge.type.value)
            listed = self._projected(f"{name}-{side}", stream.node, value)
            sides.append(self._projected(f"{name}-{side}-inputs", listed, inputs))
        return tuple(sides)


@dataclass(frozen=True, kw_only=True)
class GroupCall:
    """A call of ``group_by`` as the user wrote it."""

    key: Expression
    value: Column | None
    returns: object
    key_serde: object
    value_serde: object
    where: str | None

    def made(self, table: Stream, name: str | None) -> GroupedTable:
        """The groups; ``name``: of the repartition topic."""
        changes, edge = self._lowered(table)
        topic = table.graph.check_repartition_name(name, "group_by", self.where)
        return GroupedTable(table.graph, changes, edge, topic)

    def _lowered(self, table: Stream) -> tuple[str, Edge]:
        """The node of changes, and the edge of groups and values."""
        graph = table.graph
        name = graph.new_name("KTABLE-SELECT-")
        updates = latest_updates(table, name, "group_by", self.where)
        if not tells_old(graph, updates, forced=True):
            stored_table(graph, table.node, "group_by", self.where)  # says what it lacks
            raise AssertionError("a table that can be asked knows what it was")
        edge, select = self._selection(table.edge)
        changes = StatefulNode(
            name,
            (graph.add(select(f"{name}-new", updates)),),
            EdgeType(edge.type.key, changed_type(edge.type.value)),
            self.where,
            "SELECT",
            TableChanges(edge.written_key("group_by", self.where)),
        )
        return graph.add(changes), edge

    def _selection(self, edge: Edge) -> tuple[Edge, Callable[[str, str], Node]]:
        """The edge of groups and values, and what makes the node that selects them."""
        where = self.where
        if is_column(self.key, "group_by", where):
            key = unless_deleted(self.key, edge, where)
            value = None if self.value is None else unless_deleted(self.value, edge, where)
            edge = self._with_serdes(edge.with_types(key.type, value and value.type))

            def projected(name: str, source: str) -> Node:
                return ProjectNode(
                    name=name,
                    inputs=(source,),
                    out=edge.type,
                    where=where,
                    label=PREPARE,
                    key=key,
                    value=value,
                    changes_key=True,
                )

            return edge, projected
        edge, op, fn = self._function(edge)

        def called(name: str, source: str) -> Node:
            return FunctionNode(
                name, (source,), edge.type, where, PREPARE, op, fn, changes_key=True
            )

        return edge, called

    def _function(self, edge: Edge) -> tuple[Edge, str, Callable[..., Any]]:
        where = self.where
        if self.value is not None:
            raise TopologyError(
                "group_by: value= goes with a Column as key; a function returns both, with "
                "returns=(key type, value type)",
                where=where,
            )
        assert callable(self.key)
        fn = key_value_function(self.key, "group_by", where)
        parts = self.returns if isinstance(self.returns, tuple) else (self.returns,)
        types = [result_type(part, fn, "group_by", where) for part in parts]
        if len(types) > 2:
            raise TopologyError(
                f"group_by: returns={self.returns!r} names {len(types)} types; a function returns "
                "the key, or key and value",
                where=where,
            )
        made = edge.with_types(*types).with_serdes(*(result_serde(part) for part in parts))
        made = self._with_serdes(made)
        if len(types) == 1:
            return made, "select_key", TableMapper(fn)
        return made, "map", TablePairs(fn)

    def _with_serdes(self, edge: Edge) -> Edge:
        key, value = (
            fitting_serde(given, type_, part, "group_by", self.where)
            for given, type_, part in (
                (self.key_serde, edge.type.key, "key"),
                (self.value_serde, edge.type.value, "value"),
            )
        )
        return edge.with_serdes(key, value)


def given_fields(
    options: dict[str, Any], aggregators: dict[str, Aggregator]
) -> tuple[dict[str, Aggregator], dict[str, Any]]:
    """The built-in aggregates of a call, and its options: one that is an aggregate is a field."""
    fields = {
        name: given for name, given in options.items() if isinstance(given, Aggregator)
    } | aggregators
    return fields, {name: None if name in fields else given for name, given in options.items()}


def check_aggregates(
    fields: dict[str, Aggregator], options: dict[str, Any], where: str | None
) -> None:
    """TopologyError unless the call has built-in aggregates, or functions."""
    if callable(fields.get("merger")):
        raise TopologyError(
            "merger= is for sessions: only they merge; leave it out here", where=where
        )
    if options.get("merger") is not None and options["aggregator"] is None:
        raise TopologyError(
            (
                "merger= goes with initializer= and aggregator= functions; built-ins merge by "
                "themselves"
            ),
            where=where,
        )
    uses_functions = options["initializer"] is not None or options["aggregator"] is not None
    if uses_functions == bool(fields):
        raise TopologyError(
            (
                "aggregate takes either built-ins, e.g. n=agg.count(), or initializer= and "
                "aggregator= "
                "functions"
            ),
            where=where,
        )
    for name, given in fields.items():
        if not isinstance(given, Aggregator):
            raise TopologyError(
                (
                    f"aggregate: {name}={given!r} is not an aggregate; write for example "
                    f"{name}=agg.sum('value.amount')"
                ),
                where=where,
            )
