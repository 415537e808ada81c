"""`CogroupedKStream`: several grouped streams aggregated into one table (KIP-150).

Each stream has an aggregator of its own; all of them work on one aggregate of a key (and window or
session). All calls belong to the thread that builds the topology; TopologyError, with the user's
line and the cure, for what cannot work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.aggregation import Aggregation, Windows
from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import Edge
from everflow.dsl.functions import check_parameters
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.joins import in_windows_of
from everflow.dsl.kstream import KStream
from everflow.dsl.ktable import KTable
from everflow.dsl.options.materialized import Materialized
from everflow.errors import TopologyError
from everflow.foreign_names import Telling
from everflow.location import user_line
from everflow.operators.python_aggregate import PythonCogroup
from everflow.serdes import Serde
from everflow.spark.expressions import analyse, spark_type
from everflow.topology.graph import PREPARE, EdgeType, MergeNode, ProjectNode
from everflow.topology.types import same_type, type_text, write_alike
from everflow.windows import CountWindows, SessionWindows, SlidingWindows, TimeWindows

if TYPE_CHECKING:
    from everflow.dsl.grouped import KGroupedStream

    Member = tuple[KGroupedStream, Callable[..., Any]]


class _Cogroups(Telling):
    """What cogrouped streams have in common, whole, in time windows and in sessions."""

    _members: tuple[Member, ...]
    _windows: Windows | None = None

    @property
    def graph(self) -> GraphBuilder:
        """The graph that is built."""
        return self._members[0][0].graph

    def _aggregated(self, options: dict[str, Any], where: str | None) -> KTable:
        aggregation = _CogroupAggregation(
            _Union(self._members),
            self._windows,
            "aggregate",
            options.pop("store"),
            options.pop("name"),
            where,
        )
        return aggregation.cogrouped(options)


class CogroupedKStream(_Cogroups):
    """Grouped streams, each with its aggregator: ``grouped.cogroup(aggregator).cogroup(other,
    its_aggregator).aggregate(...)``."""

    def __init__(self, members: tuple[Member, ...]) -> None:
        self._members = members

    @builder_call
    def cogroup(self, grouped: KGroupedStream, aggregator: Callable[..., Any]) -> CogroupedKStream:
        """And another stream, of the same keys; ``aggregator`` gets (key, value, aggregate) or
        (value, aggregate)."""
        where = user_line()
        first = self._members[0][0]
        if not isinstance(grouped, type(first)) or grouped.graph is not first.graph:
            raise TopologyError(
                f"cogroup takes a grouped stream of the same StreamsBuilder, found {grouped!r}; "
                "write other.group_by_key()",
                where=where,
            )
        mine, its = first.edge, grouped.edge
        if not same_type(mine.type.key, its.type.key) or not write_alike(
            mine.key_serde, its.key_serde
        ):
            raise TopologyError(
                f"cogroup brings equal keys together, and the keys are "
                f"{type_text(mine.type.key)} written as {mine.key_serde!r} and "
                f"{type_text(its.type.key)} written as {its.key_serde!r}; group one side anew with "
                f"group_by(..., name='a-name', key_serde={mine.key_serde!r})",
                where=where,
                code="EF-COPARTITION",
            )
        return CogroupedKStream((*self._members, (grouped, aggregator)))

    @overload
    def windowed_by(
        self, windows: TimeWindows | SlidingWindows | CountWindows
    ) -> TimeWindowedCogroupedKStream: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream: ...

    @builder_call
    def windowed_by(
        self, windows: Windows
    ) -> TimeWindowedCogroupedKStream | SessionWindowedCogroupedKStream:
        """The same streams, cut into time windows, sliding windows, count windows or sessions."""
        self._members[0][0].windowed_by(windows)  # refuses what are none
        if isinstance(windows, SessionWindows):
            return SessionWindowedCogroupedKStream(self._members, windows)
        return TimeWindowedCogroupedKStream(self._members, windows)

    @builder_call
    def aggregate(
        self,
        initializer: Callable[[], Any],
        *,
        store: str | Materialized | None = None,
        returns: object = None,
        value: Serde | None = None,
        name: str | None = None,
    ) -> KTable:
        """The table of the aggregates, which begin with ``initializer()``; nulls as in
        `KGroupedStream.aggregate`. ``returns``: the aggregate's type, or ``value``: its serde.
        A result has the headers of the record that made it."""
        options = {"initializer": initializer, "store": store, "returns": returns, "value": value}
        return self._aggregated({**options, "name": name}, user_line())


class TimeWindowedCogroupedKStream(_Cogroups):
    """Cogrouped streams in time, sliding or count windows; late is what is late for all of them."""

    def __init__(
        self, members: tuple[Member, ...], windows: TimeWindows | SlidingWindows | CountWindows
    ) -> None:
        self._members, self._windows = members, windows

    @builder_call
    def aggregate(
        self,
        initializer: Callable[[], Any],
        *,
        store: str | Materialized | None = None,
        returns: object = None,
        value: Serde | None = None,
        name: str | None = None,
    ) -> KTable:
        """As `CogroupedKStream.aggregate`; the table's keys are `Windowed`, and null values reach
        the aggregators (not those of sliding windows).
        A result has the headers of the record that made it."""
        options = {"initializer": initializer, "store": store, "returns": returns, "value": value}
        return self._aggregated({**options, "name": name}, user_line())


class SessionWindowedCogroupedKStream(_Cogroups):
    """Cogrouped streams in sessions; late is what is late for all of them together."""

    def __init__(self, members: tuple[Member, ...], windows: SessionWindows) -> None:
        self._members, self._windows = members, windows

    @builder_call
    def aggregate(
        self,
        initializer: Callable[[], Any],
        merger: Callable[..., Any],
        *,
        store: str | Materialized | None = None,
        returns: object = None,
        value: Serde | None = None,
        name: str | None = None,
    ) -> KTable:
        """As `CogroupedKStream.aggregate`, per session; ``merger`` gets (key, aggregate, aggregate)
        or (aggregate, aggregate), the earlier session's first, where two become one.
        A result has the headers of the record that made it."""
        options = {"initializer": initializer, "store": store, "returns": returns, "value": value}
        return self._aggregated({**options, "merger": merger, "name": name}, user_line())


class _Union:
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

    def grouped(self, operator: str, where: str | None) -> KStream:
        """See `Groups`: it is made with the operator's name, by `made`."""
        raise AssertionError("cogrouped streams are put together by name")

    def made(self, name: str, operator: str, where: str | None, *, nulls: bool) -> KStream:
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
        return KStream(self.graph, self.graph.add(merged), self.edge)

    def _tagged(self, which: int) -> Column:
        fields = [F.lit(which).alias("which")]
        for at, (group, _) in enumerate(self.members):
            none = F.lit(None).cast(spark_type(group.edge.type.value))
            fields.append((F.col("value") if at == which else none).alias(f"v{at}"))
        return F.struct(*fields)


class _CogroupAggregation(Aggregation):
    """An aggregation with an aggregator for each stream."""

    of = "COGROUPKSTREAM"
    group: _Union

    def cogrouped(self, options: dict[str, Any]) -> KTable:
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

    def _node(self) -> tuple[str, KStream]:
        self.graph.burn(len(self.group.members))  # an aggregate for each in the original
        name = self.graph.node_name(self.name, f"{self.of}-MERGE-", self.where)
        return name, self.group.made(name, self.operator, self.where, nulls=self.takes_nulls)
