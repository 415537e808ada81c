"""Chooses, once per plan, how micro-batches run: in resident steps, or as Spark jobs.

Notes 004 and 014.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from everflow.runtime.worker.resident_segments import ComputedSegment, ResidentSegment, TwinSegment
from everflow.spark.column_service import NotComputableError, computed, empty_frame
from everflow.spark.segments import (
    computed_slots,
    rows_into_segment,
    slots_of_segment,
    spark_schema,
)
from everflow.spark.session import get_session
from everflow.topology.physical_plan import PhysicalPlan, Projection, Segment

log = logging.getLogger("everflow")


@dataclass(frozen=True)
class ResidentRoad:
    """The segments of a plan for its resident steps, and the socket where Columns are computed
    (empty: nowhere)."""

    segments: tuple[ResidentSegment, ...]
    columns: str = ""


def resident_road(plan: PhysicalPlan) -> ResidentRoad | None:
    """None where a micro-batch has to be a Spark job. Starts Spark SQL where the plan has
    Columns."""
    segments: list[ResidentSegment] = []
    path = ""
    try:
        for segment in plan.segments:
            twin = TwinSegment.of(segment)
            if twin is None:
                path, made = _computed(plan, segment.level)
                segments.append(made)
            else:
                segments.append(twin)
    except NotComputableError as error:
        log.warning("Every batch is a Spark job of its own, which is slower: %s", error)
        return None
    return ResidentRoad(tuple(segments), path)


def _computed(plan: PhysicalPlan, level: int) -> tuple[str, ComputedSegment]:
    given, made = rows_into_segment(plan, level), slots_of_segment(plan, level)
    rows = empty_frame(get_session(), spark_schema(given))
    path, number = computed(computed_slots(rows, plan, level))
    where = column_lines(plan.segments[level])
    return path, ComputedSegment(
        number=number, given=given, made=made, sources=plan.sources, where=where
    )


def column_lines(*segments: Segment) -> tuple[str, ...]:
    """The lines of the user's program whose Columns Spark computes."""
    nodes = [
        found.node
        for segment in segments
        for found in segment.projections
        if isinstance(found, Projection)
    ]
    lines = [node.where for node in nodes if node.predicate or node.key or node.value]
    return tuple(dict.fromkeys(line for line in lines if line is not None))
