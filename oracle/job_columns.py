"""Computes Columns of a plan by Spark jobs over rows at hand.

The truth that everything without jobs is held to (note 014).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.records import EdgeBatch
from everflow.spark.columns import spark_type, struct_type
from everflow.spark.session import get_session
from everflow.topology.graph import ColumnExpr, ProjectNode, columns_in_sight, joined_sides
from everflow.topology.plan import PhysicalPlan, Projection
from everflow.worker.columns import seen

SEEN = ("key", "value", "timestamp", "topic", "partition", "offset", "headers")


def by_jobs(plan: PhysicalPlan, records: Mapping[int, EdgeBatch]) -> dict[int, EdgeBatch]:
    """The records, and what jobs of the shared session make of them by all Columns of the plan.
    Raises PySparkException for what fails."""
    made = dict(records)
    for op in plan.columns:
        for one in op.projections:
            made[one.output] = _projected(plan, one, made[one.input])
    return made


def _projected(plan: PhysicalPlan, one: Projection, batch: EdgeBatch) -> EdgeBatch:
    wanted = dict(one.columns)
    if not isinstance(one.node, ProjectNode):
        ((what, said),) = _selected(plan, one.input, batch, wanted).items()
        both = pa.StructArray.from_arrays([said, batch.value], [what, "value"])
        return batch.with_columns(value=both)
    if "kept" in wanted:
        predicate = {"kept": wanted.pop("kept")}
        kept = _selected(plan, one.input, batch, predicate)["kept"]
        batch = batch.take(np.flatnonzero(kept.fill_null(False).to_numpy(zero_copy_only=False)))
    found = _selected(plan, one.input, batch, wanted) if wanted else {}
    return batch.with_columns(found.get("key"), found.get("value"))


def _selected(
    plan: PhysicalPlan,
    slot: int,
    batch: EdgeBatch,
    wanted: Mapping[str, tuple[ColumnExpr, pa.DataType]],
) -> dict[str, pa.Array]:
    edge = plan.slots[slot].type
    reads = columns_in_sight(edge, frozenset((*SEEN, *joined_sides(edge.value))))
    columns = seen(batch, reads, plan.sources)
    rows = pa.Table.from_arrays(columns, schema=reads)
    # One partition: the rows keep their order.
    frame = get_session().createDataFrame(rows, struct_type(reads)).coalesce(1)
    table = frame.select(
        *[
            _column(given).cast(spark_type(kind)).alias(name)
            for name, (given, kind) in wanted.items()
        ]
    ).toArrow()
    return {
        name: pa.concat_arrays([pa.array([], kind), *table[name].cast(kind).chunks])
        for name, (_, kind) in wanted.items()
    }


def _column(given: ColumnExpr) -> Column:
    column: Column = F.expr(given.column) if isinstance(given.column, str) else given.column
    return column
