"""Decides which records enter the stores of global tables: those that can be read. The others are
dead letters; every instance reads the topic, so each sends its dead letters."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from everflow.errors import RecordRefusedError, RecordTooLargeError
from everflow.handlers import Handlers
from everflow.kafka.reading.record_columns import LogColumns
from everflow.protocol.messages import LetterGroup
from everflow.records import EdgeBatch, Int64, TopicPartition
from everflow.state.left_out import as_written
from everflow.topology.plan import Source
from everflow.worker.decode import Judge, decoded_records
from everflow.worker.letters import Letters, take_letters
from everflow.worker.sink import FLUSH_TIMEOUT_S, LetterWriter
from everflow.worker.task_step import StepResult

KEYLESS = "null-key"
"""Why a record enters no table."""


@dataclass(frozen=True)
class TakenRecords:
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    timestamps: Int64
    next_position: int
    records: int


Left = Callable[[int, Mapping[str, Mapping[str, int]], Sequence[LetterGroup], Sequence[str]], None]
"""Takes the records that did not enter the store: the number of dead letters; others by node and
reason; those that their handler left out, by cause, and the first few in a line each."""


@dataclass(frozen=True)
class GlobalRecords:
    """``sources`` by topic; ``writer``: for dead letters; ``tell``: counts what is left out."""

    sources: Mapping[str, Source]
    handlers: Handlers
    writer: Callable[[], LetterWriter]
    tell: Left = lambda *_: None

    def taken(
        self, tp: TopicPartition, found: LogColumns, next_position: int, records: int
    ) -> TakenRecords:
        """The records that enter the store. UndecodableRecord stops the application,
        RetriableError."""
        source = self.sources[tp.topic]
        raw_batch = _raw(tp, found)
        good, bad = decoded_records(source, raw_batch, Judge(self.handlers), unread=found.unread)
        if len(bad) or good.key.null_count:
            self._leave_out(bad, good.key.null_count, source)
        raw = found.values
        values = [raw[int(row)].as_py() for row in good.seq] if len(bad) else raw.to_pylist()
        return TakenRecords(
            source.key_serde.encode_array(good.key).to_pylist(),
            as_written(values, source.value_serde),
            good.timestamp,
            next_position,
            records,
        )

    def _leave_out(self, bad: EdgeBatch, keyless: int, source: Source) -> None:
        result = StepResult(dead_letters=bad if len(bad) else None)
        lines = take_letters(result, (source,))
        sent = self._sent(result, source)
        if keyless:
            result.dropped.setdefault(source.node, {})[KEYLESS] = keyless
        self.tell(sent, result.dropped, result.letters, lines)

    def _sent(self, result: StepResult, source: Source) -> int:
        now_ms = int(time.time() * 1000)
        letters = Letters.of(self.handlers.topic, result.dead_letters, (source,), now_ms)
        if letters is None:
            return 0
        while True:
            writer = self.writer()
            writer.begin()
            try:
                writer.write(*letters.columns())
                writer.send()
                writer.flush(FLUSH_TIMEOUT_S)
                return len(letters.letters)
            except (RecordTooLargeError, RecordRefusedError) as error:
                letters.refused(error)


def _raw(tp: TopicPartition, found: LogColumns) -> EdgeBatch:
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
