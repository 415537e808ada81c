"""Prepares the Columns of a plan, once (notes 014 and 016), and packs what runs in workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.errors import TopologyError
from everflow.spark.columns import (
    NotComputableError,
    column_rows,
    computed,
    computed_slots,
    empty_frame,
    prepared_later,
    spark_type,
    staged,
    struct_type,
)
from everflow.spark.session import get_session, plain_context
from everflow.topology.describe import physical_text
from everflow.topology.graph import ColumnExpr, EdgeType, Graph, columns_in_sight
from everflow.topology.plan import (
    CATALYST,
    PYTHON,
    Choice,
    ColumnsOp,
    PhysicalPlan,
    Projection,
    columns_of,
    computed_by,
    plan,
)
from everflow.topology.subtopologies import cut
from everflow.travel.parcel import Parcel
from everflow.travel.refusals import TravelCheck
from everflow.worker.columns import (
    ArrowColumns,
    ArrowProjection,
    FunctionColumns,
    Selection,
    SparkColumns,
    Ticket,
)
from everflow.worker.task_step import PreparedColumns


@dataclass(frozen=True)
class ColumnsOfPlan:
    """The prepared Columns of `PhysicalPlan.columns`, and the socket where the instance's JVM
    computes some of them (empty: none)."""

    prepared: tuple[PreparedColumns, ...]
    path: str = ""


def prepared_columns(plan: PhysicalPlan) -> ColumnsOfPlan:
    """Starts Spark SQL where the plan has Columns that Arrow does not compute. TopologyError with
    the user's line for a Column that Spark computes in jobs only."""
    found = [_prepared(plan, op) for op in plan.columns]
    path = next((path for path, _ in found if path), "")
    return ColumnsOfPlan(tuple(columns for _, columns in found), path)


def physical_description(
    topology: Graph, form: Callable[[PhysicalPlan, Mapping[str, int]], str] = physical_text
) -> str:
    """`Topology.describe_physical` for the Spark that is here, which is asked; in the ``form`` of
    text, or of `physical_json`. Raises what `prepared_columns` raises."""
    index_of = cut(topology).index_of
    planned = plan(topology, index_of, "")
    prepared_columns(planned)
    return form(planned, index_of)


def _prepared(plan: PhysicalPlan, op: ColumnsOp) -> tuple[str, PreparedColumns]:
    """Columns, and the socket where they are computed (empty: in the worker)."""
    if not op.outputs:
        return "", ArrowColumns(())  # nobody reads what they make
    by = computed_by(op.projections[0])
    try:
        if by == PYTHON:
            return _function_columns(plan, op)
        if by == CATALYST:
            return spark_columns(plan, op)
        return _arrow_columns(plan, op)
    except NotComputableError as error:
        lines = column_lines(op)
        raise TopologyError(
            f"Spark cannot compute this Column without a Spark job for each batch: {error}. "
            f"Start Spark without what changes its SQL (spark.sql.extensions, other jars), or "
            f"compute the value in a Python function, as in map_values(function, returns=...)",
            where=lines[0] if lines else None,
        ) from error


def _arrow_columns(plan: PhysicalPlan, op: ColumnsOp) -> tuple[str, PreparedColumns]:
    topics = {source.index: source.topic for source in plan.sources}
    projections = tuple(ArrowProjection.of(found, topics) for found in op.projections)
    if all(projection.sure for projection in projections):
        return "", ArrowColumns(projections, op.outputs)
    if plain_context() is None:  # nobody knows what the user's Spark makes of them
        path, spark = spark_columns(plan, op)
        return path, ArrowColumns(projections, op.outputs, spark)
    ticket = Ticket(*prepared_later(lambda: _in_the_jvm(plan, op)))
    return "", ArrowColumns(projections, op.outputs, spark_columns_at(plan, op, ticket))


def spark_columns(plan: PhysicalPlan, op: ColumnsOp) -> tuple[str, SparkColumns]:
    """Columns that the instance's JVM computes, and the socket where it does. NotComputableError
    where it cannot."""
    path, number = _in_the_jvm(plan, op)
    return path, spark_columns_at(plan, op, number)


def _in_the_jvm(plan: PhysicalPlan, op: ColumnsOp) -> tuple[str, int]:
    schema = struct_type(column_rows(plan, op).given_schema())
    return computed(computed_slots(empty_frame(get_session(), schema), plan, op))


def spark_columns_at(plan: PhysicalPlan, op: ColumnsOp, number: int | Ticket) -> SparkColumns:
    return SparkColumns(
        number=number,
        rows=column_rows(plan, op),
        sources=plan.sources,
        where=column_lines(op),
    )


def column_lines(op: ColumnsOp) -> tuple[str, ...]:
    lines = [one.node.where for one in op.projections if isinstance(one, Choice) or columns_of(one)]
    return tuple(dict.fromkeys(line for line in lines if line is not None))


def _function_columns(plan: PhysicalPlan, op: ColumnsOp) -> tuple[str, FunctionColumns]:
    """A projection that calls functions, and the socket where other Columns of it are computed
    (empty: in the worker). NotComputableError as `staged`."""
    (projection,) = op.projections
    assert isinstance(projection, Projection)
    node, given = projection.node, plan.slots[projection.input].type
    paths = []

    def selection(columns: Mapping[str, tuple[ColumnExpr | None, pa.DataType]]) -> Selection:
        path, made = _selection(given, columns)
        paths.append(path)
        return made

    predicate = made = None
    if node.predicate is not None:
        predicate = selection({"predicate": (node.predicate, pa.bool_())})
    if node.key is not None or node.value is not None:
        made = selection({"key": (node.key, node.out.key), "value": (node.value, node.out.value)})
    columns = FunctionColumns(
        name=node.name,
        where=node.where,
        input=projection.input,
        output=projection.output,
        key=node.out.key,
        value=node.out.value,
        predicate=predicate,
        made=made,
        skips_null=node.value is not None and node.value.skips_null,
        sources={source.index: source for source in plan.sources},
    )
    return next(filter(None, paths), ""), columns


def _selection(
    edge: EdgeType, columns: Mapping[str, tuple[ColumnExpr | None, pa.DataType]]
) -> tuple[str, Selection]:
    """Columns over those that a user sees, as he would select them of a DataFrame. One that is None
    stays what it is under its name."""
    uses = frozenset(
        name
        for kept, (given, _) in columns.items()
        for name in ((kept,) if given is None else given.uses)
    )
    reads = columns_in_sight(edge, uses)
    path, stages = staged(
        empty_frame(get_session(), struct_type(reads)).select(
            *[
                _column(given, name).cast(spark_type(kind)).alias(name)
                for name, (given, kind) in columns.items()
            ]
        )
    )
    return path, Selection(reads, stages)


def _column(given: ColumnExpr | None, name: str) -> Column:
    if given is None:
        return F.col(name)
    column: Column = F.expr(given.column) if isinstance(given.column, str) else given.column
    return column


def packed(content: Any, plan: PhysicalPlan) -> Parcel:
    """``content``, whose functions and serdes are the plan's. The DSL has checked each of them, but
    a variable may hold something else by now. Raises TopologyError naming function, variable and
    line."""
    try:
        return Parcel.of(content)
    except Exception:
        check = TravelCheck()
        for op in (*plan.times, *plan.ops):
            if not isinstance(op, ColumnsOp):
                check.require(vars(op), getattr(op, "op", op.name), getattr(op, "where", None))
        raise
