"""Runs the segments of a resident step (note 014): Arrow twins, Columns by Spark's code.

What they give is what a Spark job's segments give for the same records (`spark.segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.columns.computation import LeftToSpark, Twin
from everflow.records import EdgeBatch, no_headers
from everflow.runtime.commit.batch import BadRecord, BatchRequest
from everflow.runtime.step.step_failure import SparkSays
from everflow.runtime.step.task_step import TaskStep
from everflow.runtime.step.timings import timed
from everflow.runtime.worker.column_client import ColumnsFailed, Ticket
from everflow.topology.graph import ColumnExpr
from everflow.topology.hops import (
    HopInput,
    HopSchema,
    headers_of,
    narrowed,
    read_hop,
    slots_of,
    wide_rows,
)
from everflow.topology.physical_plan import Choice, Projection, Source


class ColumnComputer(Protocol):
    """Where Columns are computed; owned by one thread."""

    def run(self, number: int | Ticket, rows: pa.RecordBatch, made: pa.Schema) -> pa.Table:
        """What the segment of this number makes of ``rows``, row by row. Raises ColumnsFailed."""

    def ask(self, number: int, message: pa.Buffer | memoryview) -> bytes:
        """The answer to a message of Python calls (`Call.pickled`). Raises ColumnsFailed."""

    def close(self) -> None:
        """Nothing more is asked."""


class ResidentSegment(Protocol):
    """Makes the slots that the next step reads of those it is given."""

    def run(self, hop: HopInput, columns: ColumnComputer) -> None:
        """Add them to ``hop``."""


@dataclass(frozen=True, kw_only=True)
class TwinProjection:
    """A projection from slot ``input`` to slot ``output`` whose Columns all have twins (None: what
    is there already)."""

    input: int
    output: int
    topics: Mapping[int, str]
    predicate: Twin | None = None
    key: Twin | None = None
    value: Twin | None = None
    beside: Twin | None = None
    """What it says of each record: each value becomes ``struct<WHAT, value>``."""
    what: str = ""

    @staticmethod
    def of(found: Projection | Choice, topics: Mapping[int, str]) -> TwinProjection:
        """Of a projection that has twins (`describe_physical.has_twin`)."""
        if isinstance(found, Choice):
            return TwinProjection(
                input=found.input,
                output=found.output,
                topics=topics,
                beside=found.column.twin,
                what=found.what,
            )
        node = found.node
        return TwinProjection(
            input=found.input,
            output=found.output,
            topics=topics,
            predicate=_twin(node.predicate),
            key=_twin(node.key),
            value=_twin(node.value),
        )

    @property
    def sure(self) -> bool:
        """Whether Arrow never leaves it to Spark."""
        given = (self.predicate, self.key, self.value, self.beside)
        return all(twin is None or twin.computation.sure for twin in given)

    def run(self, hop: HopInput) -> None:
        """Raises LeftToSpark."""
        batch, rows = hop.batches[self.input], hop.rows[self.input]
        if self.predicate is not None:
            kept = self._made(self.predicate, batch).fill_null(False)
            if kept.true_count < len(batch):
                keep = np.flatnonzero(kept.to_numpy(zero_copy_only=False))
                batch, rows = batch.take(keep), rows[keep]
        key = None if self.key is None else self._made(self.key, batch)
        value = None if self.value is None else self._made(self.value, batch)
        if self.beside is not None:
            said = self._made(self.beside, batch)
            value = pa.StructArray.from_arrays([said, batch.value], [self.what, "value"])
        hop.batches[self.output], hop.rows[self.output] = batch.with_columns(key, value), rows

    def _made(self, twin: Twin, batch: EdgeBatch) -> pa.Array:
        return twin.run(seen(batch, twin.reads, self.topics), len(batch))


@dataclass(frozen=True)
class TwinSegment:
    """A segment on Arrow alone. ``made``: the slots that somebody reads behind it. ``spark``: what
    has the truth where Arrow is not sure of it; None where it always is."""

    projections: tuple[TwinProjection, ...]
    made: frozenset[int] = frozenset()
    spark: ResidentSegment | None = None

    def run(self, hop: HopInput, columns: ColumnComputer) -> None:
        """See `ResidentSegment`; raises what ``spark`` raises."""
        given = set(hop.batches)
        try:
            for projection in self.projections:
                projection.run(hop)
        except LeftToSpark:
            if self.spark is None:
                raise
            _forget_others(hop, given)
            self.spark.run(hop, columns)
        else:
            _forget_others(hop, given | self.made)


@dataclass(frozen=True)
class SegmentInParts:
    """A segment whose projections are run by several means, one after the other. ``made``: the
    slots that somebody reads behind it."""

    parts: tuple[ResidentSegment, ...]
    made: frozenset[int]

    def run(self, hop: HopInput, columns: ColumnComputer) -> None:
        """See `ResidentSegment`."""
        given = set(hop.batches)
        for part in self.parts:
            part.run(hop, columns)
        _forget_others(hop, given | self.made)


def _forget_others(hop: HopInput, kept: Collection[int]) -> None:
    for slot in [slot for slot in hop.batches if slot not in kept]:
        del hop.batches[slot], hop.rows[slot]


@dataclass(frozen=True, kw_only=True)
class ComputedSegment:
    """A segment that Spark's code computes, where it has this ``number``, or gets one for a
    ticket."""

    number: int | Ticket
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
        headers = headers_of(part)
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
    rows = through_levels(segments, steps, columns, request, hop, timings)
    return str(rows[0].column(0)[0].as_py())


def through_levels(
    segments: Sequence[ResidentSegment],
    steps: Sequence[TaskStep],
    columns: ColumnComputer,
    request: BatchRequest,
    hop: HopInput,
    timings: dict[str, float],
) -> list[pa.RecordBatch]:
    """As `run_levels`, for levels that follow one another: the rows of the last of them."""
    rows: list[pa.RecordBatch] = []
    if not steps[0].remembered:
        hop = replace(hop, ran={})
    for segment, step in zip(segments, steps, strict=True):
        with (
            timed(timings, f"columns {step.level}" if step.level else "columns"),
            step.independent(hop, function=True),
        ):
            segment.run(hop, columns)
        rows = list(step.run(request, hop, timings))
        if step is not steps[-1]:
            assert step.hop_out is not None
            hop = replace(read_hop(rows, step.hop_out), known=hop.known, ran=hop.ran)
    return rows


def _twin(given: ColumnExpr | None) -> Twin | None:
    return None if given is None else given.twin


def seen(batch: EdgeBatch, reads: pa.Schema, topics: Mapping[int, str]) -> list[pa.Array]:
    """What a user sees of the records, in columns."""
    made: dict[str, Callable[[], pa.Array]] = {
        "key": lambda: batch.key,
        "value": lambda: batch.value,
        "timestamp": lambda: pa.array(batch.timestamp, pa.int64()),
        "topic": lambda: pa.array([topics[index] for index in batch.source.tolist()], pa.string()),
        "partition": lambda: pa.array(batch.partition, pa.int32()),
        "offset": lambda: pa.array(batch.offset, pa.int64()),
        "headers": lambda: no_headers(len(batch)) if batch.headers is None else batch.headers,
        "left": lambda: pc.struct_field(batch.value, "left"),
        "right": lambda: pc.struct_field(batch.value, "right"),
    }
    return [made[field.name]().cast(field.type) for field in reads]
