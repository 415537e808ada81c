"""One aggregation of a grouped stream or table while it is lowered: inputs, store, operator, nodes.

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow import serdes
from everflow.columns.builder import presence
from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import (
    Edge,
    checked_serde,
    default_serde,
    fitting_serde,
    result_serde,
    result_type,
)
from everflow.dsl.functions import WithoutKey, check_parameters, required_parameters
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.time_to_live import with_ttl
from everflow.dsl.kstream import KStream
from everflow.dsl.ktable import KTable
from everflow.dsl.options.materialized import Materialized
from everflow.dsl.suppressed import EmitStrategy, closes_after_ms, early_node, suppress_node
from everflow.errors import EverflowError, TopologyError
from everflow.operators.agg import Aggregator
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.count_windows import EACH_UPDATE, CountWindowSpec
from everflow.operators.python_aggregate import PythonAggregateSpec, PythonAggregator, PythonReducer
from everflow.operators.session_aggregate import (
    ReducerMerger,
    SessionAggregateSpec,
    SessionFunctionSpec,
)
from everflow.operators.sliding.sliding_aggregate import SlidingAggregateSpec, SlidingFunctionSpec
from everflow.operators.suppress import BufferBounds
from everflow.serdes import Serde
from everflow.spark.expressions import analyse
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    PREPARE,
    ColumnExpr,
    EdgeType,
    ProjectNode,
    StatefulNode,
    StatefulOperator,
)
from everflow.topology.types import type_text
from everflow.windows import CountWindows, SessionWindows, SlidingWindows, TimeWindows

Windows: TypeAlias = TimeWindows | SlidingWindows | SessionWindows | CountWindows


class Groups(Protocol):
    """What is aggregated: a grouped stream or table."""

    @property
    def graph(self) -> GraphBuilder:
        """The graph that is built."""

    @property
    def edge(self) -> Edge:
        """Of what the aggregates' Columns and functions get."""

    def grouped(self, operator: str, where: str | None) -> KStream:
        """The stream in which equal keys meet in one task."""


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
        """Whether null values reach the aggregate: not without windows, and not in sliding ones."""
        return (self.windows or self.sessions or self.counts) is not None

    def built_in(self, fields: dict[str, Aggregator], *, bare: bool) -> KTable:
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
        spec: StatefulOperator = built_in
        if self.sessions is not None:
            spec = SessionAggregateSpec(built_in, self.sessions, retention_ms=self.retention_ms)
        elif self.sliding is not None:
            spec = SlidingAggregateSpec(built_in, self.sliding, self.retention_ms)
        elif self.counts is not None:
            spec = self._of_counts(built_in)
        value_serde = spec.value_serde if bare else default_serde(spec.result)
        folds = tuple(column.words for column in built_in.columns)
        return self._add(spec, inputs, value_serde, folds)

    def _input(self, column: Column, aggregator: Aggregator, edge: Edge) -> Column:
        """What the operator gets of an aggregate's column: of one whose values are only told apart,
        Spark's own hash."""
        if aggregator.kind != "approx_count_distinct":
            return column
        type_ = analyse(column, edge.type, self.where).type
        if pa.types.is_map(type_):
            raise TopologyError(
                f"agg.approx_count_distinct takes values that can be compared, the column is "
                f"{type_text(type_)}",
                where=self.where,
            )
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

    @builder_call
    def reduce(self, reducer: Callable[[Any, Any], Any]) -> KTable:
        """Lower a Python reducer; the aggregate has the value's type."""
        check_parameters(reducer, ("aggregate", "value"), "reduce", self.where)
        key_serde, value_serde = self.group.edge.serdes("reduce", self.where)
        return self._functions(
            key_serde, value_serde, PythonReducer(reducer), ReducerMerger(reducer)
        )

    def functions(self, options: dict[str, Any]) -> KTable:
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
    ) -> KTable:
        functions = PythonAggregateSpec(
            store=self.store,
            key_serde=key_serde,
            value_serde=value_serde,
            aggregator=aggregator,
            window=self._cut,
        )
        spec: StatefulOperator = functions
        if self.sessions is not None:
            spec = SessionFunctionSpec(
                functions, self.sessions, merger, retention_ms=self.retention_ms
            )
        elif self.sliding is not None:
            spec = SlidingFunctionSpec(functions, self.sliding, self.retention_ms)
        elif self.counts is not None:
            spec = self._of_counts(functions)
        return self._add(spec, None, value_serde)

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
                twin=presence(edge.type.value),
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
        spec: StatefulOperator,
        inputs: ColumnExpr | None,
        value_serde: Serde | None,
        folds: tuple[str, ...] = (),
    ) -> KTable:
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
        table = KTable(self.graph, self.graph.add(node), edge)
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
        return KTable(self.graph, self.graph.add(closed), edge)

    def _node(self) -> tuple[str, KStream]:
        """The operator's name, and the stream that it reads."""
        node_name = self.graph.node_name(self.name, f"{self.of}-{self.label}-", self.where)
        return node_name, self.group.grouped(self.operator, self.where)

    def _prepared(self, name: str, stream: KStream, inputs: ColumnExpr) -> tuple[str, ...]:
        """The nodes that the operator ``name`` reads: its inputs, of each record."""
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

    def _store_spec(self, spec: StatefulOperator, folds: tuple[str, ...]) -> StoreSpec:
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
    """Whether ``fn`` is ``*args`` style, so that the longer call is meant."""
    return any(p.kind is p.VAR_POSITIONAL for p in inspect.signature(fn).parameters.values())
