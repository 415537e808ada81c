"""Runs the segments of a resident step (note 014): Arrow twins, Columns by Spark's code.

What they give is what a Spark job's segments give for the same records (`spark.segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from everflow.runtime.commit.batch import BadRecord, BatchRequest
from everflow.runtime.step.step_failure import SparkSays
from everflow.runtime.step.task_step import TaskStep, timed
from everflow.runtime.worker.column_client import ColumnsFailed
from everflow.topology.hops import (
    HopInput,
    HopSchema,
    headers_of,
    narrowed,
    read_hop,
    slots_of,
    wide_rows,
)
from everflow.topology.physical_plan import Projection, Segment, Source


class ColumnComputer(Protocol):
    """Where Columns are computed; owned by one thread."""

    def run(self, number: int, rows: pa.RecordBatch, made: pa.Schema) -> pa.Table:
        """What the segment of this number makes of ``rows``, row by row. Raises ColumnsFailed."""

    def ask(self, number: int, message: pa.Buffer | memoryview) -> bytes:
        """The answer to a message of Python calls (`Call.pickled`). Raises ColumnsFailed."""

    def close(self) -> None:
        """Nothing more is asked."""


class ResidentSegment(Protocol):
    """Makes the slots that the next step reads of those it is given."""

    def run(self, hop: HopInput, columns: ColumnComputer) -> None:
        """Add them to ``hop``."""


@dataclass(frozen=True)
class TwinSegment:
    """A segment without Columns of the user: each of its projections changes a value column on
    Arrow."""

    projections: tuple[tuple[int, int, Callable[[pa.Array], pa.Array]], ...]

    @staticmethod
    def of(segment: Segment) -> TwinSegment | None:
        """The twin of a segment; None where one of its projections has none."""
        twins = []
        for found in segment.projections:
            if not isinstance(found, Projection) or found.node.arrow is None:
                return None
            twins.append((found.input, found.output, found.node.arrow))
        return TwinSegment(tuple(twins))

    def run(self, hop: HopInput, columns: ColumnComputer) -> None:
        """See `ResidentSegment`."""
        for given, made, twin in self.projections:
            batch = hop.batches[given]
            hop.batches[made] = batch.with_columns(value=twin(batch.value))
            hop.rows[made] = hop.rows[given]


@dataclass(frozen=True)
class SegmentInParts:
    """A segment whose projections are run by several means, one after the other."""

    parts: tuple[ResidentSegment, ...]

    def run(self, hop: HopInput, columns: ColumnComputer) -> None:
        """See `ResidentSegment`."""
        for part in self.parts:
            part.run(hop, columns)


@dataclass(frozen=True, kw_only=True)
class ComputedSegment:
    """A segment that Spark's code computes, where it has this ``number``."""

    number: int
    given: HopSchema
    made: HopSchema
    sources: tuple[Source, ...]
    where: tuple[str, ...]
    """Lines of the program whose Columns it runs."""

    def run(self, hop: HopInput, columns: ColumnComputer) -> None:
        """Raises SparkSays naming the record for which a Column cannot be computed."""
        fields = pa.schema(
            [field for slot in self.made.slots for field in self.made.slot_fields(slot)]
        )
        part, rows = narrowed(hop, self.given)
        headers = headers_of(part) if self.given.headers else None
        try:
            table = columns.run(self.number, wide_rows(part, self.given, headers), fields)
        except ColumnsFailed as failure:
            raise SparkSays(failure.text, self._record(part, failure.row), self.where) from failure
        for slot, batch, its_rows in slots_of(part, table, self.made, headers):
            hop.batches[slot], hop.rows[slot] = batch, rows[its_rows]

    def _record(self, hop: HopInput, row: int | None) -> BadRecord | None:
        if row is None:
            return None
        source = next(source for source in self.sources if source.index == int(hop.source[row]))
        return BadRecord(source.topic, int(hop.partition[row]), int(hop.offset[row]), source.node)


def run_levels(
    segments: Sequence[ResidentSegment],
    steps: Sequence[TaskStep],
    columns: ColumnComputer,
    request: BatchRequest,
    hop: HopInput,
    timings: dict[str, float],
) -> str:
    """Decoded records through all levels of a plan, in this process; the last step's text. Raises
    what segments and steps raise."""
    for segment, step in zip(segments, steps, strict=True):
        with timed(timings, f"columns {step.level}" if step.level else "columns"):
            segment.run(hop, columns)
        rows = list(step.run(request, hop, timings))
        if step.hop_out is None:
            break
        hop = read_hop(rows, step.hop_out)
    return str(rows[0].column(0)[0].as_py())
