"""Global tables, whole on every instance, and joins of streams with them (design note 026).

Their records are a topic's, or rows that Spark loads from any DataFrame, again now and then (033).
`FrameRows.rows` is called on the instance's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from everflow.dsl.expressions import (
    Edge,
    Expression,
    default_serde,
    required_parameters,
)
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lowering.join_call import JoinCall, with_foreign_key
from everflow.dsl.lowering.stream import Stream
from everflow.dsl.stores import Materialized
from everflow.errors import TopologyError
from everflow.operators.joins import JoinedTable, JoinKind
from everflow.operators.joins.joined_table import joined_type
from everflow.operators.joins.stream_table import StreamGlobalJoin, mapped_type
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.spark.expressions import arrow_type, without_error_log
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    EdgeType,
    LoadedTableNode,
    WholeTableNode,
    same_type,
)
from everflow.windows import Duration, checked_ms


def whole_table(table: Stream) -> JoinedTable:
    """The global table as a join reads it."""
    node = table.graph.node(table.node)
    assert isinstance(node, WholeTableNode)
    return JoinedTable(node.store, node.store.value_serde, table.edge.type.value)


def joined_with_global(
    call: JoinCall,
    right: Stream,
    on: Expression | None,
    windows: object,
    grace: object,
) -> Stream:
    """The stream's records with their entries."""
    if call.kind is JoinKind.OUTER:
        raise TopologyError(
            "outer_join is for two streams or two tables: changes of a global table give no "
            "results; use left_join"
        )
    if windows is not None or grace is not None or call.store is not None:
        raise TopologyError(
            f"{call.operator} with a global table takes no windows=, grace= or store=: it looks up "
            f"what the table holds now"
        )
    call.check_builder(right)
    left, joiner = call.left, call.joiner
    # Kafka Streams calls both kinds so.
    node_name = left.graph.node_name(call.name, "KSTREAM-LEFTJOIN-")
    selected = with_foreign_key(left, right, on, call.operator, f"{node_name}-on")
    if joiner is not None and not isinstance(joiner, Column) and required_parameters(joiner) == 4:
        call = replace(call, mapped=True)
    types = (left.edge.type.value, right.edge.type.value)
    value = mapped_type(*types, right.edge.type.key) if call.mapped else joined_type(*types)
    operator = StreamGlobalJoin(whole_table(right), call.kind, call.mapped)
    edge = left.edge.with_types(value=value)
    return call.made(selected.kept(node_name, "JOIN", operator, edge=edge))


Frame: TypeAlias = DataFrame | Callable[[], DataFrame]
Key: TypeAlias = str | Column | Sequence[str]


@dataclass(frozen=True)
class FrameRows:
    """What gives the rows of a `LoadedTableNode`."""

    given: Frame
    key: Column
    type: EdgeType

    def rows(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Keys and values, in the types of the edge. Raises what Spark and the user's function
        raise; ValueError where the DataFrame has other columns than when the program was built."""
        frame = self.given if isinstance(self.given, DataFrame) else self.given()
        selected = _selected(frame, self.key)
        found = _edge_type(selected)
        for part, name in (("key", "key"), ("value", "row")):
            now, then = getattr(found, part), getattr(self.type, part)
            if not same_type(now, then):
                raise ValueError(
                    f"the {name} is {type_text(now)}, and was {type_text(then)} when the program "
                    f"was built"
                )
        for batch in selected.toArrow().to_batches():
            yield batch.column(0).cast(self.type.key), batch.column(1).cast(self.type.value)


def loaded_table(
    graph: GraphBuilder,
    frame: object,
    key: object,
    refresh: Duration | None,
    store: object,
    name: str | None,
) -> Stream:
    if isinstance(store, Materialized):
        raise TopologyError(
            f"global_table_from takes the name of its store alone, store={store.name!r}: Spark "
            f"loads it when an instance starts, on its disk, without a changelog, so none of "
            f"Materialized's options is for it"
        )
    kept = graph.claim_store(store, "global_table_from")
    refresh_ms = None if refresh is None else checked_ms(refresh, "global_table_from: refresh", 1)
    column = _key_column(key)
    given, found = _given(frame)
    if found.isStreaming:
        raise TopologyError(
            "global_table_from takes a DataFrame of rows that are there; a streaming one is "
            "written to a topic first, for builder.global_table"
        )
    try:
        with without_error_log():
            selected = _selected(found, column)
        type_ = _edge_type(selected)
    except TopologyError:
        raise
    except Exception as error:
        raise TopologyError(
            f"global_table_from: the key is no column of the DataFrame, which has "
            f"{', '.join(found.columns)} ({str(error).splitlines()[0]})"
        ) from None
    edge = Edge(type_, default_serde(type_.key), default_serde(type_.value))
    key_serde, value_serde = edge.serdes("global_table_from")
    node_name = graph.node_name(name, "KTABLE-FRAME-")
    node = LoadedTableNode(
        name=node_name,
        inputs=(),
        out=edge.type,
        source=f"{node_name}-rows",
        store=StoreSpec(
            name=kept, kind="key_value", key_serde=key_serde, value_serde=value_serde, logging=False
        ),
        rows=FrameRows(given, column, type_),
        refresh_ms=refresh_ms,
    )
    return Stream(graph, graph.add(node), edge)


def _given(frame: object) -> tuple[Frame, DataFrame]:
    """What the user gave, and the DataFrame that it is now."""
    found = frame() if callable(frame) else frame
    if isinstance(found, DataFrame):
        return found if found is frame else cast(Frame, frame), found
    verb = "which returned" if callable(frame) else "found"
    raise TopologyError(
        "global_table_from takes a DataFrame, or a function without arguments that returns one, "
        f"{verb} {found!r}"
    )


def _key_column(key: object) -> Column:
    if isinstance(key, Column):
        return key
    names = [key] if isinstance(key, str) else key
    if isinstance(names, Sequence) and names and all(isinstance(one, str) for one in names):
        return F.col(names[0]) if isinstance(key, str) else F.struct(*names)
    raise TopologyError(
        f"global_table_from: key= is a Column, the name of one or a list of names, found {key!r}"
    )


def _selected(frame: DataFrame, key: Column) -> DataFrame:
    quoted = [f"`{name.replace('`', '``')}`" for name in frame.columns]  # a dot is part of a name
    return frame.select(key.alias("key"), F.struct(*quoted).alias("value"))


def _edge_type(selected: DataFrame) -> EdgeType:
    key, value = (
        normal_type(arrow_type(field.dataType, f"the {part} of the DataFrame"))
        for part, field in zip(("key", "row"), selected.schema.fields, strict=True)
    )
    return EdgeType(key, value)
