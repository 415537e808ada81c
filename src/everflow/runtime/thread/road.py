"""Chooses, once per plan, how micro-batches run: in resident steps, or as Spark jobs.

Notes 004 and 014.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

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
from everflow.spark.session import get_session
from everflow.topology.describe_physical import arrow_alone, as_text, has_twin
from everflow.topology.graph import Graph
from everflow.topology.physical_plan import Choice, PhysicalPlan, Projection, Segment
from everflow.topology.plan import plan
from everflow.topology.subtopologies import cut


@dataclass(frozen=True)
class JobStages:
    """How a micro-batch that is a Spark job is cut into stages, each of which one worker runs: the
    last level of each (-1: reading and decoding), in order. ``segments``: what Arrow computes
    before the step of a level; None where Spark does, at the begin of a stage."""

    ends: tuple[int, ...]
    segments: tuple[TwinSegment | None, ...]

    def levels(self) -> Iterator[tuple[int, int]]:
        """First and last level of each."""
        return zip((-1, *(end + 1 for end in self.ends)), self.ends, strict=False)


def job_stages(plan: PhysicalPlan) -> JobStages:
    """Spark gets rows where it has to compute Columns (note 038)."""
    segments = tuple(_twins_alone(plan, segment) for segment in plan.segments)
    ends = [level - 1 for level, segment in enumerate(segments) if segment is None]
    return JobStages((*ends, plan.levels - 1), segments)


def whole_job(plan: PhysicalPlan) -> JobStages:
    """Spark computes all Columns."""
    return JobStages(tuple(range(-1, plan.levels)), (None,) * plan.levels)


def _twins_alone(plan: PhysicalPlan, segment: Segment) -> TwinSegment | None:
    made = frozenset(slot.id for slot in slots_of_segment(plan, segment.level).slots)
    if not made:
        return TwinSegment(())
    if not arrow_alone(segment):
        return None
    topics = {source.index: source.topic for source in plan.sources}
    return TwinSegment(
        tuple(TwinProjection.of(found, topics) for found in segment.projections), made
    )


@dataclass(frozen=True)
class ResidentRoad:
    """The segments of a plan for its resident steps, and the socket where Columns are computed
    (empty: nowhere)."""

    segments: tuple[ResidentSegment, ...]
    columns: str = ""


def resident_road(plan: PhysicalPlan) -> ResidentRoad:
    """Starts Spark SQL where the plan has Columns. NotComputableError where a micro-batch has to be
    a Spark job."""
    prepared = [_prepared(plan, segment) for segment in plan.segments]
    path = next((path for path, _ in prepared if path), "")
    return ResidentRoad(tuple(segment for _, segment in prepared), path)


def physical_road(
    topology: Graph, form: Callable[[PhysicalPlan, Mapping[str, int], str], str] = as_text
) -> str:
    """`Topology.describe_physical` for the Spark that is here, which is asked; in the ``form`` of
    text, or of `describe_physical.as_json`."""
    index_of = cut(topology).index_of
    planned = plan(topology, index_of, "")
    try:
        resident_road(planned)
    except NotComputableError as error:
        return form(planned, index_of, str(error))
    return form(planned, index_of, "")


def job_segments(plan: PhysicalPlan) -> tuple[ResidentSegment, ...]:
    """For `spark.job_columns`: the test driver's, where a micro-batch has to be a Spark job."""
    return tuple(
        computed_segment(plan, segment.level, segment.level)
        if slots_of_segment(plan, segment.level).slots
        else TwinSegment(())
        for segment in plan.segments
    )


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
    if isinstance(part[0], Projection) and calls(part[0]):
        return calling(plan, part[0])
    if not has_twin(part[0]):
        return service_segment(plan, segment.level)
    topics = {source.index: source.topic for source in plan.sources}
    twins = tuple(TwinProjection.of(found, topics) for found in part)
    made = frozenset(slot.id for slot in slots_of_segment(plan, segment.level).slots)
    if all(twin.sure for twin in twins):
        return "", TwinSegment(twins, made)
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
