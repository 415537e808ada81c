"""Makes Catalyst's projections of Columns (design D2).

Every slot lives in columns ``p<id>`` (live), ``p<id>_k`` and ``p<id>_x`` (value); expressions of
the user run guarded by their slot's live flag, so that a row that an earlier filter removed is
never evaluated: one row in is one row out, and the row for which a Column fails names the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StringType, StructField, StructType

from everflow.topology.graph import ColumnExpr, joined_sides
from everflow.topology.hops import ColumnRows
from everflow.topology.physical_plan import Choice, ColumnsOp, PhysicalPlan, Projection, Slot


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type of an Arrow type (``null`` becomes string: Spark cannot carry void columns
    through Arrow)."""
    return StringType() if pa.types.is_null(kind) else from_arrow_type(kind)


def struct_type(fields: pa.Schema) -> StructType:
    """Columns of these Arrow types as Spark sees them."""
    return StructType([StructField(field.name, spark_type(field.type)) for field in fields])


def column_rows(plan: PhysicalPlan, op: ColumnsOp) -> ColumnRows:
    """The rows for which it is computed."""
    return ColumnRows(
        given=plan.slots[op.input],
        made=tuple(plan.slots[slot] for slot in op.outputs),
        uses=op.uses,
    )


def computed_slots(frame: DataFrame, plan: PhysicalPlan, op: ColumnsOp) -> DataFrame:
    """A frame of `ColumnRows` -> the columns of the slots that are made, row by row."""
    rows = column_rows(plan, op)
    topics = {source.index: source.topic for source in plan.sources}
    given = rows.given
    frame = frame.select(
        *[F.col(field.name) for field in rows.meta().values()],
        F.lit(True).alias(f"p{given.id}"),
        F.col(f"p{given.id}_k"),
        _assemble(given).alias(f"p{given.id}_x"),
    )
    for projection in op.projections:
        frame = _projected(frame, projection, plan.slots[projection.input], rows, topics)
    columns = [column for slot in rows.made for column in _slot_columns(slot)]
    return frame.select(
        *[
            column.cast(spark_type(field.type)).alias(field.name)
            for column, field in zip(columns, rows.made_schema(), strict=True)
        ]
    )


def _projected(
    frame: DataFrame,
    projection: Projection | Choice,
    given: Slot,
    rows: ColumnRows,
    topics: Mapping[int, str],
) -> DataFrame:
    """One node on one slot. The names the user sees (key, value, ...) exist only inside this
    selection."""
    i, o = projection.input, projection.output
    before = frame.columns
    seen = frame.select(
        "*",
        F.col(f"p{i}_k").alias("key"),
        F.col(f"p{i}_x").alias("value"),
        *[
            (_topic_name(topics) if name == "topic" else F.col(field.name)).alias(name)
            for name, field in rows.meta().items()
        ],
        *[F.col(f"p{i}_x")[side].alias(side) for side in joined_sides(given.type.value)],
    )
    live = F.coalesce(F.col(f"p{i}"), F.lit(False))
    if isinstance(projection, Choice):
        chosen = projection.column.column.cast(spark_type(projection.type))
        value = F.struct(chosen.alias(projection.what), F.col("value").alias("value"))
        new = [
            live.alias(f"p{o}"),
            F.col("key").alias(f"p{o}_k"),
            F.when(live, value).alias(f"p{o}_x"),
        ]
        return seen.select(*[F.col(name) for name in before], *new)
    node = projection.node
    if node.predicate is not None:
        live = F.when(live, F.coalesce(node.predicate.column, F.lit(False))).otherwise(F.lit(False))
        seen = seen.select("*", live.alias(f"p{o}"))
        live = F.col(f"p{o}")
    else:
        seen = seen.select("*", live.alias(f"p{o}"))
    key = _column(node.key, "key")
    value = _column(node.value, "value")
    guarded = F.coalesce(F.col(f"p{o}"), F.lit(False))
    key_type, value_type = spark_type(node.out.key), spark_type(node.out.value)
    return seen.select(
        *[F.col(name) for name in before],
        F.col(f"p{o}"),
        F.when(guarded, key).cast(key_type).alias(f"p{o}_k"),
        F.when(guarded, value).cast(value_type).alias(f"p{o}_x"),
    )


def _column(given: ColumnExpr | None, name: str) -> Column:
    """What a projection gives for key or value: a Column, the text of one, or what is there already
    under ``name``."""
    if given is None:
        return F.col(name)
    column: Column = F.expr(given.column) if isinstance(given.column, str) else given.column
    return column


def _topic_name(topics: Mapping[int, str]) -> Column:
    name = F.lit(None).cast("string")
    for index, topic in topics.items():
        name = F.when(F.col("_src") == index, F.lit(topic)).otherwise(name)
    return name


def _assemble(slot: Slot) -> Column:
    """A slot's value from its flat columns."""
    name = f"p{slot.id}"
    if not pa.types.is_struct(slot.type.value):
        return F.col(f"{name}_v")
    fields = [F.col(f"{name}_v{i}").alias(field.name) for i, field in enumerate(slot.type.value)]
    return F.when(F.coalesce(F.col(f"{name}_vn"), F.lit(False)), F.struct(*fields))


def _slot_columns(slot: Slot) -> Sequence[Column]:
    name = f"p{slot.id}"
    live = F.coalesce(F.col(name), F.lit(False))
    columns = [live, F.col(f"{name}_k")]
    value = F.col(f"{name}_x")
    if not pa.types.is_struct(slot.type.value):
        return [*columns, value]
    return [*columns, value.isNotNull(), *[value[field.name] for field in slot.type.value]]
