"""Runs the segments of a resident step (note 014): decoding, Arrow twins, Columns by Spark's code.

What they give is what a Spark job's segments give for the same records (`spark.segments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from everflow.kafka.reading.log_columns import LogColumns
from everflow.records import EdgeBatch, Int64, TopicPartition
from everflow.runtime.commit.batch import BadRecord
from everflow.runtime.step.step_failure import SparkSays
from everflow.runtime.step.step_functions import decode_parts
from everflow.runtime.worker.column_client import ColumnClient, ColumnsFailed
from everflow.topology.hops import HopInput, HopSchema, as_text, concat, wide_rows, with_slots
from everflow.topology.physical_plan import (
    DEAD_LETTER_SLOT,
    Decode,
    DecodeOp,
    Encode,
    PhysicalPlan,
    Projection,
    Segment,
    Source,
)


class ResidentSegment(Protocol):
    """Makes the slots that the next step reads of those it is given."""

    def run(self, hop: HopInput, columns: ColumnClient) -> HopInput: ...


@dataclass(frozen=True)
class LogDecoder:
    """Records of the log -> the decoded slots of segment 0, and the dead letters."""

    decodes: tuple[Decode, ...]
    headers: bool

    @staticmethod
    def of(plan: PhysicalPlan) -> LogDecoder:
        """For any plan."""
        return LogDecoder(plan.segments[0].decodes, plan.headers)

    def run(self, read: Mapping[TopicPartition, LogColumns]) -> HopInput:
        """Undecodable records are live on the dead letter slot alone."""
        index = {decode.source.topic: decode.source.index for decode in self.decodes}
        lengths = [len(columns) for columns in read.values()]
        hop = HopInput(
            batches={},
            rows={},
            source=np.repeat(np.array([index[tp.topic] for tp in read], np.int32), lengths),
            partition=np.repeat(np.array([tp.partition for tp in read], np.int32), lengths),
            offset=_joined([columns.offsets for columns in read.values()]),
            timestamp=_joined([columns.timestamps for columns in read.values()]),
            control="{}",
        )
        letters = []
        for decode in self.decodes:
            mine = LogColumns.concat(
                [found for tp, found in read.items() if tp.topic == decode.source.topic],
                self.headers,
            )
            raw = _raw(mine, np.flatnonzero(hop.source == decode.source.index), hop)
            batch, bad = _decode(
                decode, raw, {found.source.index: found.source for found in self.decodes}
            )
            hop.batches[decode.output], hop.rows[decode.output] = batch, batch.seq
            if bad is not None:
                letters.append(bad)
            hop.bytes += raw.key.nbytes + raw.value.nbytes
        if letters:
            hop.batches[DEAD_LETTER_SLOT] = concat(letters)
            hop.rows[DEAD_LETTER_SLOT] = hop.batches[DEAD_LETTER_SLOT].seq
        return hop


@dataclass(frozen=True)
class TwinSegment:
    """A segment without Columns of the user: each of its projections changes a value column on
    Arrow, or encodes."""

    projections: tuple[tuple[int, int, Callable[[pa.Array], pa.Array] | None, Encode | None], ...]

    @staticmethod
    def of(segment: Segment) -> TwinSegment | None:
        """The twin of a segment; None where one of its projections has none."""
        steps: list[tuple[int, int, Callable[[pa.Array], pa.Array] | None, Encode | None]] = []
        for found in segment.projections:
            if isinstance(found, Encode):
                if found.topic is not None:
                    return None
                steps.append((found.input, found.output, None, found))
            elif isinstance(found, Projection) and found.node.arrow is not None:
                steps.append((found.input, found.output, found.node.arrow, None))
            else:
                return None
        return TwinSegment(tuple(steps))

    def run(self, hop: HopInput, columns: ColumnClient) -> HopInput:
        """The slots are added to ``hop``, which is given back."""
        for given, made, twin, encode in self.projections:
            batch = hop.batches[given]
            hop.batches[made] = (
                batch.with_columns(value=twin(batch.value))
                if twin is not None
                else _encoded(encode, batch)
            )
            hop.rows[made] = hop.rows[given]
        return hop


@dataclass(frozen=True, kw_only=True)
class ComputedSegment:
    """A segment that Spark's code computes in the instance's JVM, where it has this ``number``."""

    number: int
    given: HopSchema
    made: HopSchema
    sources: tuple[Source, ...]
    where: tuple[str, ...]
    """Lines of the program whose Columns it runs."""

    def run(self, hop: HopInput, columns: ColumnClient) -> HopInput:
        """Raises SparkSays naming the record for which a Column cannot be computed."""
        fields = pa.schema(
            [field for slot in self.made.slots for field in self.made.slot_fields(slot)]
        )
        try:
            made = columns.run(self.number, wide_rows(hop, self.given), fields)
        except ColumnsFailed as failure:
            raise SparkSays(failure.text, self._record(hop, failure.row), self.where) from failure
        return with_slots(hop, made, self.made)

    def _record(self, hop: HopInput, row: int | None) -> BadRecord | None:
        if row is None:
            return None
        source = next(source for source in self.sources if source.index == int(hop.source[row]))
        return BadRecord(source.topic, int(hop.partition[row]), int(hop.offset[row]), source.node)


def _joined(columns: Sequence[Int64]) -> Int64:
    return np.concatenate(columns) if columns else np.empty(0, np.int64)


def _raw(found: LogColumns, rows: Int64, hop: HopInput) -> EdgeBatch:
    return EdgeBatch(
        key=found.keys,
        value=found.values,
        timestamp=hop.timestamp[rows],
        seq=rows,
        source=hop.source[rows],
        partition=hop.partition[rows],
        offset=hop.offset[rows],
        headers=found.headers,
    )


def _decode(
    decode: Decode, raw: EdgeBatch, sources: dict[int, Source]
) -> tuple[EdgeBatch, EdgeBatch | None]:
    """Decode what the segment would decode; the parts that it leaves raw stay raw."""
    source = decode.source
    serdes = {
        "key": None if decode.raw_key else source.key_serde,
        "value": None if decode.raw_value else source.value_serde,
    }
    for part, serde in serdes.items():
        if serde is not None and serde.kind in ("string", "bytes"):
            column = raw.key if part == "key" else raw.value
            text = as_text(column) if serde.kind == "string" else column
            raw = raw.with_columns(**{part: text})
            serdes[part] = None
    if serdes["key"] is None and serdes["value"] is None:
        return raw, None
    return decode_parts(
        DecodeOp(source.node, -1, decode.output, serdes["key"], serdes["value"]), raw, sources
    )


def _encoded(encode: Encode | None, batch: EdgeBatch) -> EdgeBatch:
    assert encode is not None
    return batch.with_columns(
        _bytes_of(encode.key_serde, batch.key), _bytes_of(encode.value_serde, batch.value)
    )


def _bytes_of(serde: Any, column: pa.Array) -> pa.Array:
    return serde.encode_array(column) if serde.kind in ("string", "bytes", "json") else column
