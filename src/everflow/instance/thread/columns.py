"""Prepares the Columns of a plan, once (notes 014 and 016), and packs what runs in workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from everflow.errors import TopologyError
from everflow.spark.columns import (
    NotComputableError,
    computed,
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
    ColumnsOp,
    Compute,
    NodeOp,
    PhysicalPlan,
    Projection,
    Stage,
    WriteOp,
    plan,
    why_not_arrow,
)
from everflow.topology.subtopologies import cut
from everflow.travel.pickled_objects import PickledObjects
from everflow.travel.refusals import TravelCheck
from everflow.worker.columns import NodeColumns, PreparedColumns, Selection


@dataclass(frozen=True)
class ColumnsOfPlan:
    """``prepared``: of `PhysicalPlan.columns`; ``path``: where the JVM computes some, or empty."""

    prepared: tuple[PreparedColumns, ...]
    path: str = ""


def prepared_columns(plan: PhysicalPlan) -> ColumnsOfPlan:
    """Starts Spark SQL for Columns that Arrow does not compute; TopologyError if only jobs can."""
    preparing = _Preparing(plan)
    return ColumnsOfPlan(tuple(map(preparing.columns, plan.columns)), preparing.path)


def physical_description(
    topology: Graph, form: Callable[[PhysicalPlan, Mapping[str, int]], str] = physical_text
) -> str:
    """`Topology.describe_physical`, by the Spark here. Raises what `prepared_columns` raises."""
    index_of = cut(topology).index_of
    planned = plan(topology, index_of, "")
    prepared_columns(planned)
    return form(planned, index_of)


_Columns = Mapping[str, tuple[ColumnExpr, pa.DataType]]
"""By the names of what they make, with its types."""


class _Preparing:
    """Prepares the Columns of a plan. ``path``: the socket where the JVM computes some of them."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._plan = plan
        self.path = ""

    def columns(self, op: ColumnsOp) -> PreparedColumns:
        """Those of an operator. What makes a slot that nobody reads is not computed."""
        found = op.projections if op.outputs else ()
        return PreparedColumns(tuple(map(self._node, found)), op.outputs)

    def _node(self, found: Projection) -> NodeColumns:
        node, edge = found.node, self._plan.slots[found.input].type
        made = dict(found.columns)
        kept = {name: made.pop(name) for name in ("kept",) if name in made}
        try:
            return NodeColumns(
                name=node.name,
                where=node.where,
                input=found.input,
                output=found.output,
                predicate=self._selection(edge, kept),
                made=self._selection(edge, made),
                skips_null="value" in made and made["value"][0].skips_null,
                sources=self._plan.sources,
            )
        except NotComputableError as error:
            raise TopologyError(
                f"Spark cannot compute this Column without a Spark job for each batch: {error}. "
                f"Start Spark without what changes its SQL (spark.sql.extensions, other jars), or "
                f"compute the value in a Python function, as in map_values(function, returns=...)",
                where=node.where,
            ) from error

    def _selection(self, edge: EdgeType, columns: _Columns) -> Selection | None:
        """Columns over those that a user sees, as a DataFrame would select them, if there are."""
        if not columns:
            return None
        uses = frozenset(name for column, _ in columns.values() for name in column.uses)
        reads = columns_in_sight(edge, uses)
        made = pa.schema([(name, kind) for name, (_, kind) in columns.items()])
        expressions = [column.arrow for column, _ in columns.values()]
        arrow = tuple(one for one in expressions if one is not None)
        if any(why_not_arrow(*one) for one in columns.values()):
            arrow = ()
        if arrow and all(one.sure for one in arrow):
            return Selection(made=made, arrow=arrow, reads=reads)

        def selected() -> DataFrame:
            return empty_frame(get_session(), struct_type(reads)).select(
                *[_column(*one).alias(name) for name, one in columns.items()]
            )

        if arrow and plain_context() is not None:  # else nobody knows what the user's Spark makes
            ticket = prepared_later(lambda: computed(selected()))
            stages: tuple[Stage, ...] = (Compute(ticket, made),)
        else:
            path, stages = staged(selected())
            self.path = path or self.path
        return Selection(made=made, arrow=arrow, reads=reads, stages=stages)


def _column(expression: ColumnExpr, kind: pa.DataType) -> Column:
    column: Column = (
        F.expr(expression.column) if isinstance(expression.column, str) else expression.column
    )
    return column.cast(spark_type(kind))


def packed(content: Any, plan: PhysicalPlan) -> PickledObjects:
    """TopologyError names function, variable and line of what does not travel any more."""
    try:
        return PickledObjects.of(content)
    except Exception:
        check = TravelCheck()
        for op in (*plan.times, *plan.ops):
            if not isinstance(op, ColumnsOp):
                taken = op.node if isinstance(op, NodeOp | WriteOp) else op
                called = getattr(taken, "op", op.name)
                check.require(vars(taken), called, getattr(op, "where", None))
        raise
