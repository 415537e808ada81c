"""Global tables, whole on every instance, and joins of streams with them (design note 026).

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.dsl.expressions import Edge, Expression, is_column, unless_deleted
from everflow.dsl.functions import (
    ForeignKeyOf,
    TableMapper,
    key_value_function,
    required_parameters,
)
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.joins import JoinCall, Side
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable, JoinKind
from everflow.operators.joins.foreign_keys import selected_type
from everflow.operators.joins.joined_values import joined_type
from everflow.operators.joins.stream_global import StreamGlobalJoin, mapped_type
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    PREPARE,
    EdgeType,
    FunctionNode,
    ProjectNode,
    StatefulNode,
    WholeTableNode,
)
from everflow.topology.types import same_type, type_text


class GlobalKTable(Side):
    """A table that every instance has as a whole. It has no operators: streams are joined with it,
    ``stream.join(global_table, on=...)``, and `KafkaStreams.store` reads it."""

    def __init__(self, graph: GraphBuilder, node: str, edge: Edge) -> None:
        self.graph, self.node, self.edge = graph, node, edge

    @property
    def queryable_store_name(self) -> str:
        """What `KafkaStreams.store` finds it by."""
        return self._store.name

    @property
    def joined(self) -> JoinedTable:
        """The table as a join reads it."""
        return JoinedTable(self._store, self._store.value_serde, self.edge.type.value)

    @property
    def _store(self) -> StoreSpec:
        node = self.graph.node(self.node)
        assert isinstance(node, WholeTableNode)
        return node.store

    def __repr__(self) -> str:
        return (
            f"GlobalKTable({self.node}: {type_text(self.edge.type.key)} -> "
            f"{type_text(self.edge.type.value)})"
        )


def joined_with_global(
    left: Side,
    right: GlobalKTable,
    kind: JoinKind,
    call: JoinCall,
    on: Expression | None,
    windows: object,
    grace: object,
    store: object,
    name: str | None,
) -> tuple[str, Edge]:
    """The node of a stream's records with their entries, and their edge."""
    if kind is JoinKind.OUTER:
        raise TopologyError(
            "outer_join is for two streams or two tables: changes of a global table give no "
            "results; use left_join",
            where=call.where,
        )
    if windows is not None or grace is not None or store is not None:
        raise TopologyError(
            f"{call.operator} with a global table takes no windows=, grace= or store=: it looks up "
            f"what the table holds now",
            where=call.where,
        )
    if right.graph is not left.graph:
        raise TopologyError(
            f"{call.operator} takes a global table of the same StreamsBuilder", where=call.where
        )
    graph = left.graph
    # Kafka Streams calls both kinds so.
    node_name = graph.node_name(name, "KSTREAM-LEFTJOIN-", call.where)
    selected = with_mapped_key(left, right, on, call.operator, node_name, call.where)
    joiner = call.joiner
    if joiner is not None and not isinstance(joiner, Column) and required_parameters(joiner) == 4:
        call = replace(call, mapped=True)
    types = (left.edge.type.value, right.edge.type.value)
    value = mapped_type(*types, right.edge.type.key) if call.mapped else joined_type(*types)
    edge = left.edge.with_types(value=value)
    node = StatefulNode(
        node_name,
        (selected,),
        edge.type,
        call.where,
        "JOIN",
        StreamGlobalJoin(right.joined, kind, call.mapped),
    )
    return call.made(graph, graph.add(node), edge, table=False)


def with_mapped_key(
    left: Side,
    right: Side,
    on: Expression | None,
    operator: str,
    name: str,
    where: str | None,
) -> str:
    """The node of the stream's records as `selected_type`, with the key of ``right`` that ``on``
    makes of them; for a null value none is made. ``name``: of the node that reads it."""
    graph, edge, wanted = left.graph, left.edge, right.edge.type.key
    if on is None:
        raise TopologyError(
            f"{operator} needs on=, the key to look up: on=F.col('value.a_field'), or "
            f"on=F.col('key') for the records' own",
            where=where,
        )
    out = EdgeType(edge.type.key, selected_type(wanted, edge.type.value))
    what, node = f"{operator}: on", f"{name}-on"
    if not is_column(on, what, where):
        selected = TableMapper(ForeignKeyOf(key_value_function(on, what, where)))
        return graph.add(
            FunctionNode(node, (left.node,), out, where, PREPARE, "map_values", selected)
        )
    found = unless_deleted(on, edge, where).type
    if not same_type(found, wanted):
        raise TopologyError(
            f"{operator}: on= is {type_text(found)}, and the table's keys are "
            f"{type_text(wanted)}; write on=(...).cast({type_text(wanted)!r})",
            where=where,
        )
    both = F.struct(on.alias("fk"), F.col("value").alias("value"))
    value = replace(unless_deleted(both, edge, where), type=out.value)
    return graph.add(
        ProjectNode(
            name=node, inputs=(left.node,), out=out, where=where, label=PREPARE, value=value
        )
    )
