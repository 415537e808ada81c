"""Segments: the stateless Column operators of one level as one Catalyst projection (design D2).

A segment turns rows (Kafka records on level 0, hop rows later) into hop rows. Every slot lives in
columns ``p<id>`` (live), ``p<id>_k`` and ``p<id>_x`` (value); expressions of the user run guarded
by their slot's live flag, so that a row that an earlier filter removed is never evaluated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StringType, StructField, StructType

from everflow.topology.graph import ColumnExpr, joined_sides
from everflow.topology.hops import HopSchema
from everflow.topology.physical_plan import (
    Choice,
    PhysicalPlan,
    Projection,
    Segment,
    Slot,
)


def spark_type(kind: pa.DataType) -> DataType:
    """The Spark type of an Arrow type (``null`` becomes string: Spark cannot carry void columns
    through Arrow)."""
    return StringType() if pa.types.is_null(kind) else from_arrow_type(kind)


def struct_type(fields: pa.Schema) -> StructType:
    """Columns of these Arrow types as Spark sees them."""
    return StructType([StructField(field.name, spark_type(field.type)) for field in fields])


def spark_schema(schema: HopSchema) -> StructType:
    """A hop's schema as Spark sees it."""
    return struct_type(schema.arrow())


def rows_into_segment(plan: PhysicalPlan, level: int) -> HopSchema:
    """Schema of the rows that segment ``level`` is given where it is computed without a job: the
    slots that its projections read."""
    read = {projection.input for projection in plan.segments[level].projections}
    slots = tuple(slot for slot in plan.out_of_step(level - 1) if slot.id in read)
    return HopSchema(slots, plan.segments[level].reads_headers, bare=True)


def slots_of_segment(plan: PhysicalPlan, level: int) -> HopSchema:
    """The slots that segment ``level`` makes of such rows."""
    made = {projection.output for projection in plan.segments[level].projections}
    slots = tuple(slot for slot in plan.into_step(level) if slot.id in made)
    return HopSchema(slots, plan.segments[level].reads_headers, bare=True)


def computed_slots(rows: DataFrame, plan: PhysicalPlan, level: int) -> DataFrame:
    """`rows_into_segment` -> the columns of `slots_of_segment` alone, without rows' metadata."""
    made = slots_of_segment(plan, level)
    frame = _projected(rows, plan, level, rows_into_segment(plan, level))
    columns = [column for slot in made.slots for column in _slot_columns(slot)]
    fields = [field for slot in made.slots for field in made.slot_fields(slot)]
    return frame.select(
        *[c.cast(spark_type(f.type)).alias(f.name) for c, f in zip(columns, fields, strict=True)]
    )


def _projected(rows: DataFrame, plan: PhysicalPlan, level: int, incoming: HopSchema) -> DataFrame:
    columns = [F.col(field.name) for field in incoming.meta()]
    for slot in incoming.slots:
        columns += [
            F.col(f"p{slot.id}"),
            F.col(f"p{slot.id}_k"),
            _assemble(slot).alias(f"p{slot.id}_x"),
        ]
    return _run(rows.select(*columns), plan.segments[level], plan)


# --- projections ----------------------------------------------------------------------------------


def _run(frame: DataFrame, segment: Segment, plan: PhysicalPlan) -> DataFrame:
    names = {source.index: source.topic for source in plan.sources}
    for projection in segment.projections:
        frame = _project(frame, projection, plan, names)
    return frame


def _project(
    frame: DataFrame,
    projection: Projection | Choice,
    plan: PhysicalPlan,
    topics: dict[int, str],
) -> DataFrame:
    """One node on one slot. The names the user sees (key, value, ...) exist only inside this
    selection."""
    i, o = projection.input, projection.output
    before = frame.columns
    seen = frame.select(
        "*",
        F.col(f"p{i}_k").alias("key"),
        F.col(f"p{i}_x").alias("value"),
        F.col("_ts").alias("timestamp"),
        _topic_name(topics).alias("topic"),
        F.col("_part").alias("partition"),
        F.col("_off").alias("offset"),
        (
            F.col("_hdr")
            if "_hdr" in before
            else F.lit(None).cast("array<struct<key:string,value:binary>>")
        ).alias("headers"),
        *[F.col(f"p{i}_x")[side].alias(side) for side in joined_sides(plan.slots[i].type.value)],
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
    return F.expr(given.column) if isinstance(given.column, str) else cast(Column, given.column)


def _topic_name(topics: dict[int, str]) -> Column:
    name = F.lit(None).cast("string")
    for index, topic in topics.items():
        name = F.when(F.col("_src") == index, F.lit(topic)).otherwise(name)
    return name


# --- hop rows -------------------------------------------------------------------------------------


def _assemble(slot: Slot) -> Column:
    """A slot's value from its flat hop columns."""
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
