"""`KGroupedTable`: the entries of a table grouped anew, ``count``, ``reduce`` and ``aggregate``.

Each change of an entry takes back what it was from its old group and adds what it is to its new
one, through a repartition topic in Java's bytes (design note 021). All calls belong to the thread
that builds the topology; TopologyError, with the user's line and the cure, for what cannot work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from everflow.dsl.aggregation import Aggregation
from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Edge
from everflow.dsl.functions import check_parameters
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.kstream import KStream
from everflow.dsl.ktable import KTable
from everflow.dsl.options.materialized import Materialized
from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.location import user_line
from everflow.operators import agg
from everflow.operators.agg import Aggregator
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.table_aggregate import (
    PythonTableAggregator,
    PythonTableReducer,
    TableAggregateSpec,
)
from everflow.serdes import Serde
from everflow.serdes.changed import ChangedSerde, changed_type
from everflow.spark.expressions import analyse
from everflow.topology.graph import ColumnExpr, EdgeType


class KGroupedTable(Telling):
    """Entries of a table by group. ``name`` is that of the repartition topic, which several
    aggregations of one grouped table share."""

    def __init__(self, graph: GraphBuilder, changes: str, edge: Edge, name: str) -> None:
        """``changes``: the node of changes; ``edge``: of groups and values."""
        self._graph, self._changes, self._edge, self._name = graph, changes, edge, name

    @builder_call
    def count(self, *, store: str | Materialized | None = None, name: str | None = None) -> KTable:
        """Number of entries per group, ``bigint``; 0 for one that has lost all of them.
        A result has the headers of the change that made it."""
        aggregation = _TableAggregation(self, None, "count", store, name, user_line())
        return aggregation.built_in({"count": agg.count()}, bare=True)

    @builder_call
    def reduce(
        self,
        adder: Callable[[Any, Any], Any],
        subtractor: Callable[[Any, Any], Any],
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable:
        """``subtractor(aggregate, old)`` for what an entry was, ``adder(aggregate, new)`` for what
        it is; the first value is taken as it is, None deletes.
        A result has the headers of the change that made it."""
        where = user_line()
        aggregation = _TableAggregation(self, None, "reduce", store, name, where)
        return aggregation.reduced(adder, subtractor)

    @builder_call
    def aggregate(
        self,
        *,
        store: str | Materialized | Aggregator | None = None,
        initializer: Callable[[], Any] | Aggregator | None = None,
        adder: Callable[..., Any] | Aggregator | None = None,
        subtractor: Callable[..., Any] | Aggregator | None = None,
        returns: object = None,
        value: Serde | Aggregator | None = None,
        name: str | Aggregator | None = None,
        **aggregators: Aggregator,
    ) -> KTable:
        """Built-ins that can take back, ``aggregate(store="s", n=agg.count(),
        total=agg.sum("value.amount"), mean=agg.avg("value.amount"))``; or Python functions,
        ``aggregate(initializer=..., adder=..., subtractor=..., store="s", returns=type)``, which
        get (key, value, aggregate) or (value, aggregate).

        A group that has lost all its entries has the count 0, the sum and the mean null; None of a
        function deletes. A field may be called like an option: it is told by being an aggregate.
        A result has the headers of the change that made it.
        """
        options: dict[str, Any] = {"store": store, "name": name, "initializer": initializer}
        options |= {"adder": adder, "subtractor": subtractor, "returns": returns, "value": value}
        where = user_line()
        fields = {
            key: given for key, given in options.items() if isinstance(given, Aggregator)
        } | aggregators
        options = {key: None if key in fields else given for key, given in options.items()}
        functions = [options[key] for key in ("initializer", "adder", "subtractor")]
        if any(one is not None for one in functions) == bool(fields):
            raise TopologyError(
                "aggregate of a grouped table takes either built-ins, e.g. n=agg.count(), or "
                "initializer=, adder= and subtractor= functions",
                where=where,
            )
        aggregation = _TableAggregation(
            self, None, "aggregate", options["store"], options["name"], where
        )
        if fields:
            return aggregation.built_in(fields, bare=False)
        return aggregation.functions(options)

    @property
    def graph(self) -> GraphBuilder:
        """The graph that is built."""
        return self._graph

    @property
    def edge(self) -> Edge:
        """Of groups and values."""
        return self._edge

    def grouped(self, operator: str, where: str | None) -> KStream:
        """The changes of each group, in one task."""
        known: KStream | None = self._graph.regrouped.get(self)
        if known is not None:
            return known
        key, value = self._edge.serdes(operator, where)
        edge = EdgeType(self._edge.type.key, changed_type(self._edge.type.value))
        serdes = key, ChangedSerde(value)
        node = self._graph.repartition(self._name, self._changes, edge, serdes, where)
        made = KStream(self._graph, node, Edge(edge, *serdes))
        self._graph.regrouped[self] = made
        return made


class _TableAggregation(Aggregation):
    """An aggregation that takes back and adds."""

    of = "KTABLE"

    def reduced(self, adder: Any, subtractor: Any) -> KTable:
        """Lower a Python adder and subtractor; the aggregate has the value's type."""
        for what, fn in (("adder", adder), ("subtractor", subtractor)):
            check_parameters(fn, ("aggregate", "value"), f"reduce: {what}", self.where)
        key_serde, value_serde = self.group.edge.serdes("reduce", self.where)
        return self._called(key_serde, value_serde, PythonTableReducer(adder, subtractor))

    def functions(self, options: dict[str, Any]) -> KTable:
        """Lower a Python initializer, adder and subtractor."""
        check_parameters(options["initializer"], (), "aggregate: initializer", self.where)
        names = ("value", "aggregate")
        adder = self._with_or_without_key(options["adder"], "adder", names)
        subtractor = self._with_or_without_key(options["subtractor"], "subtractor", names)
        value_serde = self._value_serde(options["returns"], options["value"], options["adder"])
        key_serde = self.group.edge.written_key("aggregate", self.where)
        called = PythonTableAggregator(options["initializer"], adder, subtractor)
        return self._called(key_serde, value_serde, called)

    def _called(
        self,
        key_serde: Serde,
        value_serde: Serde,
        aggregator: PythonTableAggregator | PythonTableReducer,
    ) -> KTable:
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
        return TableAggregateSpec.of_table(self.store, key_serde, lowered, names, inputs)

    def _node(self) -> tuple[str, KStream]:
        self.graph.burn(2)  # sink and source come first in the original
        node_name = self.graph.node_name(self.name, f"{self.of}-{self.label}-", self.where)
        return node_name, self.group.grouped(self.operator, self.where)

    def _prepared(self, name: str, stream: KStream, inputs: ColumnExpr) -> tuple[str, ...]:
        sides = []
        for side in ("old", "new"):
            value = analyse(F.col(f"value.{side}"), stream.edge.type, self.where)
            value = replace(value, type=self.group.edge.type.value)
            listed = self._projected(f"{name}-{side}", stream.node, value)
            sides.append(self._projected(f"{name}-{side}-inputs", listed, inputs))
        return tuple(sides)
