"""Prepares the parts of a segment whose Columns call Python functions (note 014)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from everflow.runtime.worker.calling_segment import CallingSegment, Selection
from everflow.spark.column_service import empty_frame
from everflow.spark.python_calls import staged
from everflow.spark.segments import spark_type, struct_type
from everflow.spark.session import get_session
from everflow.topology.describe_physical import has_twin
from everflow.topology.graph import ColumnExpr, EdgeType, columns_in_sight
from everflow.topology.physical_plan import Choice, PhysicalPlan, Projection, Segment


def calls(projection: Projection | Choice) -> bool:
    """Whether its Columns call Python functions."""
    return isinstance(projection, Projection) and any(
        given is not None and given.calls for given in _columns(projection)
    )


def _columns(projection: Projection) -> tuple[ColumnExpr | None, ...]:
    return projection.node.predicate, projection.node.key, projection.node.value


def parts_of(segment: Segment) -> Iterator[tuple[Projection | Choice, ...]]:
    """Its projections in order: each that calls functions alone, and together those with twins and
    those without that stand side by side."""
    for (alone, _), found in groupby(segment.projections, lambda one: (calls(one), has_twin(one))):
        if alone:
            yield from ((projection,) for projection in found)
        else:
            yield tuple(found)


def part_plan(
    plan: PhysicalPlan, segment: Segment, part: tuple[Projection | Choice, ...]
) -> PhysicalPlan:
    """A plan whose segment 1 is this part of a segment: it is given what it reads, and makes what
    anybody else reads."""
    made = {projection.output for projection in part}
    read = {projection.input for projection in part} - made
    later = {projection.input for projection in segment.projections if projection not in part}
    into = {slot.id for slot in plan.into_step(segment.level)}
    slots = []
    for slot in plan.slots:
        if slot.id in read:
            slots.append(replace(slot, level=0, in_step=True, last_step=-1, last_segment=1))
        elif slot.id in made & (later | into):
            slots.append(replace(slot, level=1, in_step=False, last_step=1, last_segment=-1))
        else:
            slots.append(replace(slot, level=2, in_step=True))
    return replace(plan, slots=tuple(slots), segments=(Segment(0, ()), Segment(1, part)))


def calling(plan: PhysicalPlan, projection: Projection) -> tuple[str, CallingSegment]:
    """A projection that calls functions, and the socket where other Columns of it are computed
    (empty: nowhere). NotComputableError as `staged`."""
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
    segment = CallingSegment(
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
    return next(filter(None, paths), ""), segment


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
