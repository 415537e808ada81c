"""The resident step: one Spark task that serves many micro-batches (design note 004).

A Spark job per micro-batch costs more than the work of a small one, and the way of a large one from
Kafka through the JVM costs more than reading it in columns here. Where a plan is one step whose
segment has Arrow twins, the step can read its input itself: it asks the driver for the next request
over a socket, runs the very same `TaskStep`, answers with the result, and goes on until it is told
to stop. Gate, transaction, stores and failures are those of a job per batch.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.kafka.reading.log_columns import LogColumns
from everflow.kafka.reading.range_reader import RangeReader
from everflow.records import EdgeBatch, Int64, TopicPartition
from everflow.runtime.commit.batch import FAILED, BatchRequest, BatchResult
from everflow.runtime.step.step_failure import failure_of
from everflow.runtime.step.step_functions import decode_parts
from everflow.runtime.step.task_step import TaskStep, timed
from everflow.runtime.worker.record_times import require_times
from everflow.topology.hops import HopInput, as_text, concat
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

READ_TIMEOUT_S = 30.0
STOP = "stop"


@dataclass(frozen=True)
class TwinSegment:
    """Segment 0 without Columns: decoding, the Arrow twins of its projections, encoding."""

    decodes: tuple[Decode, ...]
    projections: tuple[tuple[int, int, Callable[[pa.Array], pa.Array] | None, Encode | None], ...]
    headers: bool

    @staticmethod
    def of_plan(plan: PhysicalPlan) -> TwinSegment | None:
        """The twin of a plan's only segment; None where it has more than one, or that one has none:
        then a micro-batch is a Spark job."""
        return TwinSegment.of(plan.segments[0], plan.headers) if plan.levels == 1 else None

    @staticmethod
    def of(segment: Segment, headers: bool) -> TwinSegment | None:
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
        return TwinSegment(segment.decodes, tuple(steps), headers)

    def run(self, read: Mapping[TopicPartition, LogColumns]) -> HopInput:
        """What `read_hop` gives for the same records."""
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
        for given, made, twin, encode in self.projections:
            batch = hop.batches[given]
            hop.batches[made] = (
                batch.with_columns(value=twin(batch.value))
                if twin is not None
                else _encoded(encode, batch)
            )
            hop.rows[made] = hop.rows[given]
        if letters:
            hop.batches[DEAD_LETTER_SLOT] = concat(letters)
            hop.rows[DEAD_LETTER_SLOT] = hop.batches[DEAD_LETTER_SLOT].seq
        return hop


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


@dataclass(frozen=True, kw_only=True)
class ResidentStep:
    """What the resident job's only task does; picklable. ``channel`` reads the socket's path (a
    local property)."""

    step: TaskStep
    segment: TwinSegment
    channel: Callable[[], str]
    client: Mapping[str, Any]
    group: str
    read_committed: bool

    def __call__(self) -> None:
        """Serve requests until told to stop, or until one has failed: the driver then ends this
        process."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(self.channel())
            lines = connection.makefile("rwb")
            reader = RangeReader(self.client, self.group, self.read_committed, self.segment.headers)
            try:
                for line in lines:
                    text = line.decode()
                    if text.strip() == STOP:
                        break
                    answer, going_on = self._answer(text, reader)
                    lines.write(answer.encode() + b"\n")
                    lines.flush()
                    if not going_on:
                        break
            finally:
                reader.close()

    def _answer(self, text: str, reader: RangeReader) -> tuple[str, bool]:
        try:
            return self._serve(text, reader), True
        except Exception as error:
            return BatchResult(outcome=FAILED, failure=failure_of(error).to_dict()).to_json(), False

    def _serve(self, text: str, reader: RangeReader) -> str:
        request = BatchRequest.from_json(text)
        timings = {"began": time.time() * 1000}
        with timed(timings, "read"):
            self.step.announce(request, self.step.level)
            if not request.tasks:  # the thread has none yet, so nobody waits
                reader.warm_up({source.topic for source in self.step.sources}, READ_TIMEOUT_S)
            read = reader.read(request.ranges, READ_TIMEOUT_S, request.most_bytes)
            require_times(read.columns)
            request = request.ending(read.ends)
            hop = self.segment.run(read.columns)
        (row,) = self.step.run(request, hop, timings)
        return str(row.column(0)[0].as_py())


def refuse(error: Exception, channel: Callable[[], str]) -> None:
    """Answer the first request with ``error``: there is no step that could serve it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(channel())
        lines = connection.makefile("rwb")
        if lines.readline().decode().strip() != STOP:
            lines.write(
                BatchResult(outcome=FAILED, failure=failure_of(error).to_dict()).to_json().encode()
                + b"\n"
            )
            lines.flush()
