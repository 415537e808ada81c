"""`KGroupedStream` and its windowed forms: ``count``, ``reduce``, ``aggregate``.

An aggregation with built-ins is lowered to a projection of its inputs (in Catalyst) and a
vectorised operator; one with Python functions calls them record by record. Results are tables;
windowed ones have the key ``struct<key, start, end>`` (ms). All calls belong to the thread that
builds the topology; TopologyError, with the user's line and the cure, for what cannot work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, overload

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
from everflow.dsl.kstream import KStream
from everflow.dsl.ktable import KTable
from everflow.errors import EverflowError, TopologyError
from everflow.foreign_names import Telling
from everflow.location import user_line
from everflow.operators import agg
from everflow.operators.agg import Aggregator
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.python_aggregate import PythonAggregateSpec, PythonAggregator, PythonReducer
from everflow.operators.session_aggregate import (
    ReducerMerger,
    SessionAggregateSpec,
    SessionFunctionSpec,
)
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
from everflow.windows import SessionWindows, TimeWindows


class _Groups(Telling):
    """What groups have in common, whole, in time windows and in sessions."""

    _group: KGroupedStream
    _windows: TimeWindows | SessionWindows | None = None

    @property
    def graph(self) -> GraphBuilder:
        """The graph that is built."""
        return self._group.stream.graph

    @builder_call
    def count(self, *, store: str | None = None, name: str | None = None) -> KTable:
        """Number of records per key (and window or session), ``bigint``. Records with a null key
        are skipped; those with a null value where there are no windows."""
        aggregation = _Aggregation(self._group, self._windows, "count", store, name, user_line())
        return aggregation.built_in({"count": agg.count()}, bare=True)

    @builder_call
    def reduce(
        self,
        reducer: Callable[[Any, Any], Any],
        *,
        store: str | None = None,
        name: str | None = None,
    ) -> KTable:
        """``reducer(aggregate, value)`` over the values of each key (and window or session); the
        first value is taken as it is, None deletes. Sessions that merge are reduced, too:
        ``reducer(earlier, later)``."""
        return _Aggregation(self._group, self._windows, "reduce", store, name, user_line()).reduce(
            reducer
        )

    @builder_call
    def aggregate(
        self,
        *,
        store: str | Aggregator | None = None,
        initializer: Callable[[], Any] | Aggregator | None = None,
        aggregator: Callable[..., Any] | Aggregator | None = None,
        returns: object = None,
        value: Serde | Aggregator | None = None,
        name: str | Aggregator | None = None,
        **aggregators: Aggregator,
    ) -> KTable:
        """Built-ins, ``aggregate(store="s", n=agg.count(), mean=agg.avg("value.delay"))``: the
        value is a struct of the names; or Python functions, ``aggregate(initializer=...,
        aggregator=..., store="s", returns=type or value=serde)``, where ``aggregator`` gets (key,
        value, aggregate) or (value, aggregate) and returns the next aggregate (None deletes).

        Nulls are treated as by ``count``; the key of a windowed result is a `Windowed`. A field may
        be called like an option: it is told by being an aggregate.
        """
        options: dict[str, Any] = {
            "store": store,
            "initializer": initializer,
            "aggregator": aggregator,
        }
        options |= {"returns": returns, "value": value, "name": name}
        return _aggregate(self._group, self._windows, options, aggregators, user_line())


class KGroupedStream(_Groups):
    """Records grouped by key. ``name`` is that of the repartition topic, used where the key was
    changed; several aggregations of one grouped stream share the topic."""

    def __init__(self, stream: KStream, name: str | None) -> None:
        self._group, self._stream, self._name = self, stream, name

    @overload
    def windowed_by(self, windows: TimeWindows) -> TimeWindowedKStream: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream: ...

    @builder_call
    def windowed_by(
        self, windows: TimeWindows | SessionWindows
    ) -> TimeWindowedKStream | SessionWindowedKStream:
        """The same groups, cut into time windows or sessions."""
        if isinstance(windows, TimeWindows):
            return TimeWindowedKStream(self, windows)
        if isinstance(windows, SessionWindows):
            if (
                windows.retention_ms == 0
            ):  # its store would show nothing: every record would be a session of its own
                raise TopologyError(
                    "sessions with a gap of zero need a grace above zero", where=user_line()
                )
            return SessionWindowedKStream(self, windows)
        raise TopologyError(
            f"windowed_by takes TimeWindows or SessionWindows, found {windows!r}; write "
            "TimeWindows.of_size('1 hour').grace('5 minutes') or "
            "SessionWindows.of_inactivity_gap('30 minutes')",
            where=user_line(),
        )

    def grouped(self, operator: str, where: str | None) -> KStream:
        """The stream in which equal keys meet in one task."""
        if not self._stream.key_changed:
            return self._stream
        known: KStream | None = self.graph.regrouped.get(self)
        if known is not None:
            self.graph.burn(3)
            return known
        assert self._name is not None
        made = self._stream.repartitioned(self._name, where, operator)
        self.graph.regrouped[self] = made
        return made

    @property
    def stream(self) -> KStream:
        """The stream that was grouped."""
        return self._stream


class _WindowedKStream(_Groups):
    def __init__(self, group: KGroupedStream, windows: TimeWindows | SessionWindows) -> None:
        self._group, self._windows = group, windows


class TimeWindowedKStream(_WindowedKStream):
    """Groups cut into time windows. Only null keys are skipped: a null value reaches the aggregate,
    and ``count()`` counts it, as in Kafka Streams. Late records, by the operator's own stream time
    and the window's grace, are dropped."""


class SessionWindowedKStream(_WindowedKStream):
    """Groups cut into sessions, which grow and merge with the records (KIP-94). Nulls and late
    records are treated as in `TimeWindowedKStream`. Where a session gets another window, the old
    one gets a tombstone; a result's time is the end of its session."""

    @builder_call
    def aggregate(
        self,
        *,
        store: str | Aggregator | None = None,
        initializer: Callable[[], Any] | Aggregator | None = None,
        aggregator: Callable[..., Any] | Aggregator | None = None,
        merger: Callable[..., Any] | Aggregator | None = None,
        returns: object = None,
        value: Serde | Aggregator | None = None,
        name: str | Aggregator | None = None,
        **aggregators: Aggregator,
    ) -> KTable:
        """As `KGroupedStream.aggregate`, per session. With functions also ``merger``, called with
        (key, aggregate, aggregate) or (aggregate, aggregate), the earlier session's first, where
        two become one."""
        options: dict[str, Any] = {
            "store": store,
            "initializer": initializer,
            "aggregator": aggregator,
            "merger": merger,
        }
        options |= {"returns": returns, "value": value, "name": name}
        return _aggregate(self._group, self._windows, options, aggregators, user_line())


def _aggregate(
    group: KGroupedStream,
    windows: TimeWindows | SessionWindows | None,
    options: dict[str, Any],
    aggregators: dict[str, Aggregator],
    where: str | None,
) -> KTable:
    fields = {
        name: given for name, given in options.items() if isinstance(given, Aggregator)
    } | aggregators
    options = {name: None if name in fields else given for name, given in options.items()}
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
    aggregation = _Aggregation(
        group, windows, "aggregate", options["store"], options["name"], where
    )
    if fields:
        return aggregation.built_in(fields, bare=False)
    return aggregation.functions(options)


class _Aggregation:
    """One aggregation while it is lowered: name, repartition, inputs, store, operator, in the
    original's order."""

    def __init__(
        self,
        group: KGroupedStream,
        windows: TimeWindows | SessionWindows | None,
        operator: str,
        store: str | None,
        name: str | None,
        where: str | None,
    ) -> None:
        self.group, self.operator, self.name, self.where = group, operator, name, where
        self.windows = windows if isinstance(windows, TimeWindows) else None
        self.sessions = windows if isinstance(windows, SessionWindows) else None
        self.graph = group.stream.graph
        self.store = self.graph.claim_store(store, operator, where)
        self.label = "REDUCE" if operator == "reduce" else "AGGREGATE"

    @property
    def windowed(self) -> bool:
        """Whether results are per window or session."""
        return self.windows is not None or self.sessions is not None

    def built_in(self, fields: dict[str, Aggregator], *, bare: bool) -> KTable:
        """Lower built-in aggregates; ``bare``: the value is the single result, not a struct."""
        edge = self.group.stream.edge
        key_serde = edge.written_key(self.operator, self.where)
        columns = {
            f"a{i}": _column(name, a, self.where)
            for i, (name, a) in enumerate(fields.items())
            if a.column is not None
        }
        inputs = self._inputs(columns, edge)
        lowered = [
            Aggregator(a.kind, None if a.column is None else f"a{i}")
            for i, a in enumerate(fields.values())
        ]
        try:
            built_in = AggregateSpec.of(
                self.store,
                key_serde,
                lowered,
                None if bare else list(fields),
                inputs.type,
                window=self.windows,
            )
        except EverflowError as error:
            raise TopologyError(
                f"aggregate in store {self.store!r}: {error}", where=self.where
            ) from None
        spec = built_in if self.sessions is None else SessionAggregateSpec(built_in, self.sessions)
        value_serde = spec.value_serde if bare else default_serde(spec.result)
        folds = tuple(column.op for column in built_in.columns)
        return self._add(spec, inputs, value_serde, folds)

    @builder_call
    def reduce(self, reducer: Callable[[Any, Any], Any]) -> KTable:
        """Lower a Python reducer; the aggregate has the value's type."""
        check_parameters(reducer, ("aggregate", "value"), "reduce", self.where)
        key_serde, value_serde = self.group.stream.edge.serdes("reduce", self.where)
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
        key_serde = self.group.stream.edge.written_key("aggregate", self.where)
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
        aggregator: PythonAggregator | PythonReducer,
        merger: Any,
    ) -> KTable:
        functions = PythonAggregateSpec(
            store=self.store,
            key_serde=key_serde,
            value_serde=value_serde,
            aggregator=aggregator,
            window=self.windows,
        )
        spec = (
            functions
            if self.sessions is None
            else SessionFunctionSpec(functions, self.sessions, merger)
        )
        return self._add(spec, None, value_serde)

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
        """The value that the operator reads. Unwindowed aggregates skip null values, so theirs is
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
        if self.windowed:
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
        node_name = self.graph.node_name(self.name, f"KSTREAM-{self.label}-", self.where)
        stream = self.group.grouped(self.operator, self.where)
        source = stream.node
        if inputs is not None:
            listed = EdgeType(stream.edge.type.key, inputs.type)
            prepared = ProjectNode(
                name=f"{node_name}-inputs",
                inputs=(source,),
                out=listed,
                where=self.where,
                label=PREPARE,
                value=inputs,
            )
            source = self.graph.add(prepared)
        edge = Edge(
            EdgeType(spec.result_key, spec.result), self._key_serde(spec.key_serde), value_serde
        )
        node = StatefulNode(
            node_name,
            (source,),
            edge.type,
            self.where,
            self.label,
            spec,
            (self._store_spec(spec, folds),),
        )
        return KTable(self.graph, self.graph.add(node), edge)

    def _key_serde(self, inner: Serde) -> Serde:
        if self.sessions is not None:
            return serdes.session_windowed(inner)
        return inner if self.windows is None else serdes.time_windowed(inner, self.windows.size_ms)

    def _store_spec(self, spec: StatefulOperator, folds: tuple[str, ...]) -> StoreSpec:
        kind, retention_ms, size_ms = "key_value", None, None
        if self.windows is not None:
            kind, retention_ms, size_ms = "window", self.windows.retention_ms, self.windows.size_ms
        elif self.sessions is not None:
            kind, retention_ms = "session", self.sessions.retention_ms
        return StoreSpec(
            name=self.store,
            kind=kind,
            key_serde=spec.key_serde,
            value_serde=spec.value_serde,
            retention_ms=retention_ms,
            window_size_ms=size_ms,
            where=self.where,
            folds=folds,
        )


def _column(name: str, aggregator: Aggregator, where: str | None) -> Column:
    given = aggregator.column
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
