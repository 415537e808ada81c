"""Prepares the Columns of a plan for its resident steps, once (notes 004 and 014)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from everflow.errors import TopologyError
from everflow.runtime.thread.calling_road import calling, calls, part_plan, parts_of
from everflow.runtime.worker.column_client import Ticket
from everflow.runtime.worker.resident_segments import (
    ComputedSegment,
    ResidentSegment,
    SegmentInParts,
    TwinProjection,
    TwinSegment,
)
from everflow.spark.column_service import NotComputableError, computed, empty_frame
from everflow.spark.prepared_later import prepared_later
from everflow.spark.segments import (
    computed_slots,
    rows_into_segment,
    slots_of_segment,
    spark_schema,
)
from everflow.spark.session import get_session, plain_context
from everflow.topology.describe_physical import as_text, has_twin
from everflow.topology.graph import Graph
from everflow.topology.physical_plan import Choice, PhysicalPlan, Projection, Segment
from everflow.topology.plan import plan
from everflow.topology.subtopologies import cut


@dataclass(frozen=True)
class ResidentRoad:
    """The segments of a plan for its resident steps, and the socket where Columns are computed
    (empty: nowhere)."""

    segments: tuple[ResidentSegment, ...]
    columns: str = ""


def resident_road(plan: PhysicalPlan) -> ResidentRoad:
    """Starts Spark SQL where the plan has Columns that Arrow does not compute. TopologyError with
    the user's line for a Column that Spark computes in jobs only."""
    prepared = [_prepared(plan, segment) for segment in plan.segments]
    path = next((path for path, _ in prepared if path), "")
    return ResidentRoad(tuple(segment for _, segment in prepared), path)


def physical_road(
    topology: Graph, form: Callable[[PhysicalPlan, Mapping[str, int]], str] = as_text
) -> str:
    """`Topology.describe_physical` for the Spark that is here, which is asked; in the ``form`` of
    text, or of `describe_physical.as_json`. Raises what `resident_road` raises."""
    index_of = cut(topology).index_of
    planned = plan(topology, index_of, "")
    resident_road(planned)
    return form(planned, index_of)


def _prepared(plan: PhysicalPlan, segment: Segment) -> tuple[str, ResidentSegment]:
    """A segment, and the socket where its Columns are computed (empty: nowhere)."""
    slots = frozenset(slot.id for slot in slots_of_segment(plan, segment.level).slots)
    if not slots:
        return "", TwinSegment(())  # nobody reads what it makes
    parts = list(parts_of(segment))
    if len(parts) == 1:
        return _prepared_part(plan, segment, parts[0])
    made = [
        _prepared_part(part_plan(plan, segment, part), Segment(1, part), part) for part in parts
    ]
    path = next((path for path, _ in made if path), "")
    return path, SegmentInParts(tuple(part for _, part in made), slots)


def _prepared_part(
    plan: PhysicalPlan, segment: Segment, part: tuple[Projection | Choice, ...]
) -> tuple[str, ResidentSegment]:
    try:
        if isinstance(part[0], Projection) and calls(part[0]):
            return calling(plan, part[0])
        if not has_twin(part[0]):
            return service_segment(plan, segment.level)
        topics = {source.index: source.topic for source in plan.sources}
        twins = tuple(TwinProjection.of(found, topics) for found in part)
        made = frozenset(slot.id for slot in slots_of_segment(plan, segment.level).slots)
        if all(twin.sure for twin in twins):
            return "", TwinSegment(twins, made)
        if plain_context() is None:  # nobody knows what the user's Spark makes of them
            path, number = _prepared_columns(plan, segment.level)
            return path, TwinSegment(twins, made, computed_segment(plan, segment.level, number))
    except NotComputableError as error:
        lines = column_lines(Segment(segment.level, part))
        raise TopologyError(
            f"Spark cannot compute this Column without a Spark job for each batch: {error}. "
            f"Start Spark without what changes its SQL (spark.sql.extensions, other jars), or "
            f"compute the value in a Python function, as in map_values(function, returns=...)",
            where=lines[0] if lines else None,
        ) from error
    ticket = Ticket(*prepared_later(lambda: _prepared_columns(plan, segment.level)))
    return "", TwinSegment(twins, made, computed_segment(plan, segment.level, ticket))


def service_segment(plan: PhysicalPlan, level: int) -> tuple[str, ComputedSegment]:
    """A segment that the instance's JVM computes, and the socket where it does."""
    path, number = _prepared_columns(plan, level)
    return path, computed_segment(plan, level, number)


def _prepared_columns(plan: PhysicalPlan, level: int) -> tuple[str, int]:
    rows = empty_frame(get_session(), spark_schema(rows_into_segment(plan, level)))
    return computed(computed_slots(rows, plan, level))


def computed_segment(plan: PhysicalPlan, level: int, number: int | Ticket) -> ComputedSegment:
    """The segment of this level, computed where it has this ``number``."""
    return ComputedSegment(
        number=number,
        given=rows_into_segment(plan, level),
        made=slots_of_segment(plan, level),
        sources=plan.sources,
        where=column_lines(plan.segments[level]),
    )


def column_lines(*segments: Segment) -> tuple[str, ...]:
    """The lines of the user's program whose Columns Spark computes."""
    found = [one for segment in segments for one in segment.projections]
    lines = [
        one.node.where
        for one in found
        if isinstance(one, Choice) or one.node.predicate or one.node.key or one.node.value
    ]
    return tuple(dict.fromkeys(line for line in lines if line is not None))
