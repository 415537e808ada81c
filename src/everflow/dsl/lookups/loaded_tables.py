"""Global tables whose rows Spark loads: any DataFrame, loaded again now and then (design note 033).

All calls belong to the thread that builds the topology; TopologyError, with the user's line and the
cure, for what cannot work. `FrameRows.rows` is called on the instance's own thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from everflow.dsl.expressions import Edge, default_serde
from everflow.dsl.graph_builder import GraphBuilder
from everflow.dsl.lookups.global_tables import GlobalKTable
from everflow.dsl.options.materialized import Materialized
from everflow.errors import TopologyError
from everflow.spark.expressions import arrow_type, without_error_log
from everflow.state.store import StoreSpec
from everflow.topology.graph import EdgeType, LoadedTableNode
from everflow.topology.types import normal_type, same_type, type_text
from everflow.windows import Duration, duration_ms

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
        selected = _selected(_frame_of(self.given), self.key)
        found = _edge_type(selected, None)
        for part, now, then in (
            ("key", found.key, self.type.key),
            ("row", found.value, self.type.value),
        ):
            if not same_type(now, then):
                raise ValueError(
                    f"the {part} is {type_text(now)}, and was {type_text(then)} when the program "
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
    where: str | None,
) -> GlobalKTable:
    """See `StreamsBuilder.global_table_from`."""
    _require_name_alone(store, where)
    kept = graph.claim_store(store, "global_table_from", where)
    refresh_ms = None if refresh is None else duration_ms(refresh)
    if refresh_ms is not None and refresh_ms < 1:
        raise TopologyError(
            f"global_table_from: refresh is above 0, found {refresh_ms} ms", where=where
        )
    column = _key_column(key, where)
    given, found = _given(frame, where)
    if found.isStreaming:
        raise TopologyError(
            "global_table_from takes a DataFrame of rows that are there; a streaming one is "
            "written to a topic first, for builder.global_table",
            where=where,
        )
    try:
        with without_error_log():
            selected = _selected(found, column)
        type_ = _edge_type(selected, where)
    except TopologyError:
        raise
    except Exception as error:
        raise TopologyError(
            f"global_table_from: the key is no column of the DataFrame, which has "
            f"{', '.join(found.columns)} ({str(error).splitlines()[0]})",
            where=where,
        ) from None
    edge = Edge(type_, default_serde(type_.key), default_serde(type_.value))
    key_serde, value_serde = edge.serdes("global_table_from", where)
    node_name = graph.node_name(name, "KTABLE-FRAME-", where)
    node = LoadedTableNode(
        name=node_name,
        inputs=(),
        out=edge.type,
        where=where,
        source=f"{node_name}-rows",
        store=StoreSpec(
            name=kept,
            kind="key_value",
            key_serde=key_serde,
            value_serde=value_serde,
            logging=False,
            where=where,
        ),
        rows=FrameRows(given, column, type_),
        refresh_ms=refresh_ms,
    )
    return GlobalKTable(graph, graph.add(node), edge)


def _require_name_alone(store: object, where: str | None) -> None:
    if isinstance(store, Materialized):
        raise TopologyError(
            f"global_table_from takes the name of its store alone, store={store.name!r}: Spark "
            f"loads it when an instance starts, on its disk, without a changelog, so none of "
            f"Materialized's options is for it",
            where=where,
        )


def _given(frame: object, where: str | None) -> tuple[Frame, DataFrame]:
    """What the user gave, and the DataFrame that it is now."""
    if isinstance(frame, DataFrame):
        return frame, frame
    if callable(frame):
        found = frame()
        if isinstance(found, DataFrame):
            return frame, found
        raise TopologyError(
            f"global_table_from: the function returned {found!r}, not a DataFrame", where=where
        )
    raise TopologyError(
        f"global_table_from takes a DataFrame, or a function without arguments that returns one, "
        f"found {frame!r}",
        where=where,
    )


def _frame_of(given: Frame) -> DataFrame:
    return given if isinstance(given, DataFrame) else given()


def _key_column(key: object, where: str | None) -> Column:
    if isinstance(key, Column):
        return key
    names = [key] if isinstance(key, str) else key
    if isinstance(names, Sequence) and names and all(isinstance(one, str) for one in names):
        return F.col(names[0]) if isinstance(key, str) else F.struct(*names)
    raise TopologyError(
        f"global_table_from: key= is a Column, the name of one or a list of names, found {key!r}",
        where=where,
    )


def _selected(frame: DataFrame, key: Column) -> DataFrame:
    quoted = [f"`{name.replace('`', '``')}`" for name in frame.columns]  # a dot is part of a name
    return frame.select(key.alias("key"), F.struct(*quoted).alias("value"))


def _edge_type(selected: DataFrame, where: str | None) -> EdgeType:
    key, value = (
        normal_type(arrow_type(field.dataType, f"the {part} of the DataFrame", where))
        for part, field in zip(("key", "row"), selected.schema.fields, strict=True)
    )
    return EdgeType(key, value)
