"""What enters the stores of global tables: records of their topics that can be read.

Their keys are the bytes that the table's own serde writes. The others are dead letters.
Runs where the topic is followed, on one thread; every instance reads the topic, so each sends its
dead letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from everflow.errors import RecordTooLargeError
from everflow.handlers.given import Handlers
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.records import EdgeBatch, Int64, TopicPartition
from everflow.runtime.step.task_step import StepResult
from everflow.runtime.worker.dead_letters import Letters, take_letters
from everflow.runtime.worker.kafka_sink import FLUSH_TIMEOUT_S, SinkWriter
from everflow.runtime.worker.log_decoder import decoded_records
from everflow.runtime.worker.set_aside import Judge
from everflow.topology.physical_plan import Source


@dataclass(frozen=True)
class TakenRecords:
    """A `restoration.FoldedChunk`."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Int64
    next_position: int
    records: int


@dataclass(frozen=True)
class GlobalRecords:
    """``sources`` by topic, each alone in its plan; ``writer``: connected for the first dead
    letter."""

    sources: Mapping[str, Source]
    handlers: Handlers
    writer: Callable[[], SinkWriter]

    def taken(self, tp: TopicPartition, chunk: LogChunk) -> TakenRecords:
        """What enters the store. UndecodableRecord for one that stops the application,
        RetriableError where its handler says RETRY."""
        source = self.sources[tp.topic]
        good, bad = decoded_records(source, _raw(tp, chunk), Judge(self.handlers))
        if len(bad):
            self._send(bad, source)
        raw = chunk.held.arrow(headers=False).values
        return TakenRecords(
            source.key_serde.encode_array(good.key).to_pylist(),
            [raw[int(row)].as_py() for row in good.seq] if len(bad) else raw.to_pylist(),
            good.timestamp,
            chunk.next_position,
            chunk.records,
        )

    def _send(self, letters: EdgeBatch, source: Source) -> None:
        result = StepResult(dead_letters=letters)
        take_letters(result, (source,))
        most: int | None = None
        while out := Letters.of(self.handlers.topic, result.dead_letters, (source,), most):
            writer = self.writer()
            writer.begin()
            try:
                out.write(writer)
                writer.send()
                writer.flush(FLUSH_TIMEOUT_S)
                return
            except RecordTooLargeError as error:
                most = out.smaller(error, most)
                if most is None:
                    raise


def _raw(tp: TopicPartition, chunk: LogChunk) -> EdgeBatch:
    found = chunk.held.arrow(headers=True)
    count = len(found)
    return EdgeBatch(
        key=found.keys,
        value=found.values,
        timestamp=found.timestamps,
        seq=np.arange(count, dtype=np.int64),
        source=np.zeros(count, np.int32),
        partition=np.full(count, tp.partition, np.int32),
        offset=found.offsets,
        headers=found.headers,
    )
