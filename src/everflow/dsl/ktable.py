"""`KTable`: the latest value of each key, and its operators. A null deletes, and is passed on.

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.builder_call import builder_call
from everflow.dsl.expressions import (
    Edge,
    Expression,
    checked_column,
    fields_from_options,
    is_column,
    is_true,
    predicate,
    result_serde,
    result_type,
    struct_of,
    unless_deleted,
)
from everflow.dsl.functions import TableFilter, TableMapper, key_value_function
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.in_time.table_updates import previous_updates
from everflow.dsl.in_time.versioned_tables import is_versioned
from everflow.dsl.joins import store_of
from everflow.dsl.kstream import KStream
from everflow.dsl.options.materialized import Materialized
from everflow.dsl.processors.processor_call import ProcessorCall
from everflow.dsl.processors.suppliers import TRANSFORMERS, Transformer
from everflow.dsl.suppressed import Suppressed
from everflow.dsl.suppressed import suppressed as suppressed_node
from everflow.dsl.table_groups import GroupCall
from everflow.dsl.table_joins import TableJoins, stored
from everflow.errors import TopologyError
from everflow.location import user_line
from everflow.operators.table_changes import VisibleUpdates
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
from everflow.topology.types import type_text

if TYPE_CHECKING:
    from everflow.dsl.grouped_table import KGroupedTable


class KTable(TableJoins):
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

    @property
    def queryable_store_name(self) -> str | None:
        """What `KafkaStreams.store` finds its entries by; None where they are in no store, as
        behind a ``filter`` without ``store=``, or behind ``suppress``."""
        spec = store_of(self.graph, self.node)
        return None if spec is None else spec.name

    @builder_call
    def filter(
        self,
        predicate: Expression,
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable:
        """The entries for which ``predicate`` is true; an entry that fails is forwarded as a
        deletion, if it did not fail before. ``store``: keeps them, for queries and joins. Headers
        stay."""
        return self._filter("filter", predicate, store, name, negate=False)

    @builder_call
    def filter_not(
        self,
        predicate: Expression,
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable:
        """The entries that ``filter`` would leave out. Headers stay."""
        return self._filter("filter_not", predicate, store, name, negate=True)

    @builder_call
    def map_values(
        self,
        mapper: Expression | None = None,
        *,
        returns: object = None,
        store: str | Materialized | Column | None = None,
        name: str | Column | None = None,
        **fields: Column,
    ) -> KTable:
        """A new value for every entry: a Column, ``field=Column`` arguments (a struct), or a
        function with ``returns=``. ``store``: keeps the result, for queries and joins.
        Headers stay."""
        where = user_line()
        node_name, returns, fields = fields_from_options(name, returns, fields)
        if isinstance(store, Column):
            fields, store = {**fields, "store": store}, None
        kept = _Kept("map_values", store, node_name, where)
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
            return self._function(prefix, "MAPVALUES", mapped, edge, kept)
        value = unless_deleted(mapper, self.edge, where)
        return self._project(
            prefix, "MAPVALUES", value, self.edge.with_types(value=value.type), kept
        )

    @builder_call
    def transform_values(
        self,
        transformer: Transformer,
        *,
        returns: object = None,
        stores: Iterable[StoreSpec | str] = (),
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable:
        """A new value for every update by the user's code: a `ValueTransformer` class, a function
        that makes one, or a function of (key, value) or (key, value, context). Called for
        deletions, too, with None. ``returns``: the type of the new value, where it is another one;
        ``stores``: what it may use, as of `KStream.process`; ``store``: keeps the result, for
        queries; joins and groupings need it of a transformer with stores or a clock alone, and have
        another one made otherwise. Headers stay."""
        call = ProcessorCall("transform_values", transformer, stores, name, user_line())
        kept = _Kept("transform_values", store, name, call.where)
        edge = self.edge
        if returns is not None:
            kind = result_type(returns, call.named, "transform_values", call.where)
            edge = edge.with_types(value=kind).with_serdes(value=result_serde(returns))
        node_name = self.graph.node_name(name, "KTABLE-TRANSFORMVALUES-", call.where)
        label = "TRANSFORMVALUES" if store is None else PREPARE
        values = kept.values_of(node_name)
        made = call.node(self, values, edge, TRANSFORMERS, keeps_key=True, label=label)
        table = self._in_store(made.name, edge, node_name, kept)
        if store is not None and made.stores + made.reads:
            both = self.graph.node(table.node)
            assert isinstance(both, StatefulNode)
            names = [spec.name for spec in (*both.stores, *made.stores, *made.reads)]
            part = Part(node_name, (self.node,), tuple(names))
            self.graph.replace(replace(both, parts=(part,)))
        return table

    @builder_call
    def suppress(
        self,
        suppressed: Suppressed,
        *,
        store: str | Materialized | None = None,
        name: str | None = None,
    ) -> KTable:
        """Holds updates back: until windows close, ``suppress(Suppressed.until_window_closes(),
        store="final")``, or for some time, ``Suppressed.until_time_limit("1 minute")``.

        ``store``: keeps what is held back. Stream time advances with records only: the last windows
        wait for the next record, of any key, in the same partition.
        Headers are those of the update.
        """
        node = suppressed_node(self, suppressed, store, name, user_line())
        return KTable(self.graph, node, self.edge)

    @builder_call
    def to_stream(self, *, name: str | None = None) -> KStream:
        """The table's changes as a stream; deletions are records with a null value.
        Headers stay."""
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

    @builder_call
    def print_table(
        self, title: str | None = None, *, rows: int = 20, name: str | None = None
    ) -> None:
        """Prints the table's changes as they come, as `KStream.print_table`."""
        self.to_stream().print_table(title, rows=rows, name=name)

    @builder_call
    def group_by(
        self,
        key: Expression,
        value: Column | None = None,
        *,
        returns: object = None,
        name: str | None = None,
        key_serde: Serde | None = None,
        value_serde: Serde | None = None,
    ) -> KGroupedTable:
        """The entries grouped anew, through the repartition topic
        ``<application.id>-<name>-repartition``: ``key``, and ``value`` where it is another one, as
        Columns; or a function that returns the key, with ``returns=type``, or key and value, with
        ``returns=(key type, value type)``.

        An entry without a new key or value is in no group. What an entry was is looked up in the
        table's store, or in those of what it is made of. Headers stay.
        """
        where = user_line()
        checked_column(value, "value", "group_by", where)
        call = GroupCall(
            key=key,
            value=value,
            returns=returns,
            key_serde=key_serde,
            value_serde=value_serde,
            where=where,
        )
        return self.graph.faces.grouped_table(
            *call.made(self), self.graph.check_repartition_name(name, "group_by", where)
        )

    def _filter(
        self,
        operator: str,
        condition: Expression,
        store: str | Materialized | None,
        name: str | None,
        *,
        negate: bool,
    ) -> KTable:
        where = user_line()
        kept = _Kept(operator, store, name, where)
        if not is_column(condition, operator, where):
            fails = TableFilter(key_value_function(condition, operator, where), negate)
            return self._function("KTABLE-FILTER-", "FILTER", fails, self.edge, kept)
        predicate(condition, self.edge, where)
        keep = ~is_true(condition) if negate else condition
        value = analyse(F.when(keep, F.col("value")), self.edge.type, where)
        value = replace(value, skips_null=True)
        return self._project("KTABLE-FILTER-", "FILTER", value, self.edge, kept)

    def _project(
        self, prefix: str, label: str, value: ColumnExpr, edge: Edge, kept: _Kept
    ) -> KTable:
        node_name = self.graph.node_name(kept.name, prefix, kept.where)
        made = ProjectNode(
            name=kept.values_of(node_name),
            inputs=(self.node,),
            out=edge.type,
            where=kept.where,
            label=label if kept.store is None else PREPARE,
            value=value,
        )
        return self._kept(made, edge, node_name, kept)

    def _function(
        self, prefix: str, label: str, fn: Callable[..., Any], edge: Edge, kept: _Kept
    ) -> KTable:
        node_name = self.graph.node_name(kept.name, prefix, kept.where)
        made = FunctionNode(
            kept.values_of(node_name),
            (self.node,),
            edge.type,
            kept.where,
            label if kept.store is None else PREPARE,
            "map_values",
            fn,
        )
        return self._kept(made, edge, node_name, kept)

    def _kept(self, made: Node, edge: Edge, node_name: str, kept: _Kept) -> KTable:
        """The table of a new node, in a store where one is asked for; a filter without one tells no
        deletion of what was not there."""
        before = None
        if kept.filters and kept.store is None and not is_versioned(self.graph, self.node):
            before = previous_updates(self.graph, self.node)
        if before is not None:
            return KTable(self.graph, self._visible(made, before, node_name), edge)
        return self._in_store(self.graph.add(made), edge, node_name, kept)

    def _in_store(self, node: str, edge: Edge, node_name: str, kept: _Kept) -> KTable:
        if kept.store is not None:
            node = stored(
                self.graph,
                node,
                edge,
                node_name,
                kept.store,
                kept.operator,
                kept.where,
                only_visible=kept.filters and not is_versioned(self.graph, self.node),
            )
        return KTable(self.graph, node, edge)

    def _visible(self, made: Node, before: str, node_name: str) -> str:
        """The node of a filter's updates; ``made``: the filter, ``before``: what was."""
        prepared: dict[str, Any] = {"label": PREPARE}
        new = self.graph.add(replace(made, name=f"{node_name}-new", **prepared))
        old = self.graph.add(replace(made, name=f"{node_name}-old", inputs=(before,), **prepared))
        return self.graph.add(
            StatefulNode(node_name, (old, new), made.out, made.where, "FILTER", VisibleUpdates())
        )


@dataclass(frozen=True)
class _Kept:
    """A call that makes a table: its name, the store and the node's name that it asks for, the
    line."""

    operator: str
    store: str | Materialized | None
    name: str | None
    where: str | None

    @property
    def filters(self) -> bool:
        """Whether the call is that of a filter."""
        return self.operator in ("filter", "filter_not")

    def values_of(self, node: str) -> str:
        """The node that makes the values of ``node``."""
        return node if self.store is None else f"{node}-values"
