"""`KTable`: the latest value of each key, and its operators. A null deletes, and is passed on.

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import (
    Edge,
    Expression,
    HasEdge,
    is_column,
    is_true,
    predicate,
    result_serde,
    result_type,
    struct_of,
)
from everflow.dsl.functions import TableFilter, TableMapper, key_value_function
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.kstream import KStream, fields_from_options
from everflow.errors import TopologyError
from everflow.location import user_line
from everflow.spark.expressions import analyse
from everflow.topology.graph import ColumnExpr, FunctionNode, ProjectNode
from everflow.topology.types import type_text


class KTable(HasEdge):
    """A changelog stream of ``(key, latest value)``; windowed tables have the key ``struct<key,
    start, end>`` (ms).

    Columns and Python functions are taken as by `KStream`; they are not called for deletions.
    """

    def __init__(self, graph: GraphBuilder, node: str, edge: Edge) -> None:
        self.graph, self.node, self.edge = graph, node, edge

    def __repr__(self) -> str:
        return (
            f"KTable({self.node}: {type_text(self.edge.type.key)} -> "
            f"{type_text(self.edge.type.value)})"
        )

    @builder_call
    def filter(self, predicate: Expression, *, name: str | None = None) -> KTable:
        """The entries for which ``predicate`` is true; an entry that fails is forwarded as a
        deletion, as in Kafka Streams."""
        return self._filter("filter", predicate, name, negate=False)

    @builder_call
    def filter_not(self, predicate: Expression, *, name: str | None = None) -> KTable:
        """The entries that ``filter`` would leave out."""
        return self._filter("filter_not", predicate, name, negate=True)

    @builder_call
    def map_values(
        self,
        mapper: Expression | None = None,
        *,
        returns: object = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """A new value for every entry: a Column, ``field=Column`` arguments (a struct), or a
        function with ``returns=``."""
        where = user_line()
        node_name, returns, fields = fields_from_options(name, returns, fields)
        if bool(fields) == (mapper is not None):
            raise TopologyError(
                "map_values needs either one Column or Python function, or field=Column arguments",
                where=where,
            )
        if fields:
            mapper = struct_of(fields, "map_values", where)
        assert mapper is not None
        prefix = "KTABLE-MAPVALUES-"
        if not is_column(mapper, "map_values", where):
            edge = self.edge.with_types(value=result_type(returns, mapper, "map_values", where))
            edge = edge.with_serdes(value=result_serde(returns))
            mapped = TableMapper(key_value_function(mapper, "map_values", where))
            return self._function(prefix, "MAPVALUES", mapped, edge, node_name, where)
        analyse(mapper, self.edge.type, where)  # judged as the user wrote it, for the message
        value = analyse(F.when(F.col("value").isNotNull(), mapper), self.edge.type, where)
        value = replace(value, skips_null=True)
        return self._project(
            prefix, "MAPVALUES", value, self.edge.with_types(value=value.type), node_name, where
        )

    @builder_call
    def to_stream(self, *, name: str | None = None) -> KStream:
        """The table's changes as a stream; deletions are records with a null value."""
        where = user_line()
        node_name = self.graph.node_name(name, "KTABLE-TOSTREAM-", where)
        node = self.graph.add(
            ProjectNode(
                name=node_name,
                inputs=(self.node,),
                out=self.edge.type,
                where=where,
                label="TOSTREAM",
            )
        )
        return KStream(self.graph, node, self.edge)

    def _filter(
        self, operator: str, condition: Expression, name: str | None, *, negate: bool
    ) -> KTable:
        where = user_line()
        if not is_column(condition, operator, where):
            kept = TableFilter(key_value_function(condition, operator, where), negate)
            return self._function("KTABLE-FILTER-", "FILTER", kept, self.edge, name, where)
        predicate(condition, self.edge, where)
        keep = ~is_true(condition) if negate else condition
        value = analyse(F.when(keep, F.col("value")), self.edge.type, where)
        value = replace(value, skips_null=True)
        return self._project("KTABLE-FILTER-", "FILTER", value, self.edge, name, where)

    def _project(
        self,
        prefix: str,
        label: str,
        value: ColumnExpr,
        edge: Edge,
        name: str | None,
        where: str | None,
    ) -> KTable:
        node_name = self.graph.node_name(name, prefix, where)
        node = self.graph.add(
            ProjectNode(
                name=node_name,
                inputs=(self.node,),
                out=edge.type,
                where=where,
                label=label,
                value=value,
            )
        )
        return KTable(self.graph, node, edge)

    def _function(
        self,
        prefix: str,
        label: str,
        fn: Callable[..., Any],
        edge: Edge,
        name: str | None,
        where: str | None,
    ) -> KTable:
        node_name = self.graph.node_name(name, prefix, where)
        node = FunctionNode(node_name, (self.node,), edge.type, where, label, "map_values", fn)
        return KTable(self.graph, self.graph.add(node), edge)
