"""Gives records the times that their sources' extractors say, before they are merged (note 032).

What an extractor says of records that this batch does not consume has no effect: they are read
again, and partition times and dropped records are those of what is consumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.operators.user_code import require_users
from everflow.records import EdgeBatch, Int64, TaskId, TopicPartition
from everflow.runtime.commit.batch import BatchRequest
from everflow.runtime.step.record_times import MOST_MS, far_time, no_time
from everflow.runtime.step.step_functions import RecordFailure, raise_all
from everflow.serdes.windowed import python_keys
from everflow.topology.batches import BatchInput
from everflow.topology.graph import (
    RecordContext,
    TimeFunction,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from everflow.topology.plan import Source, TimeOp
from everflow.user_program import shown

SKIPPED = "negative-timestamp"
MOST_NAMED = 500
"""Records that are left to their handler at once."""
_NOT_YET = -1
"""A partition time before the first record."""
_UNTOLD = (
    "; a record without one gets its time in Kafka (record.timestamp, F.col('timestamp')), or a "
    "negative one, with which it is dropped and counted"
)

PartitionTimes = Mapping[int, int]


@dataclass(frozen=True, kw_only=True)
class _Extracted:
    """The times of one source's records; negative for those that are dropped."""

    op: TimeOp
    topic: str
    partition: np.ndarray
    offset: Int64
    times: Int64
    keys: pa.Array

    def dropped(self, consumed: Mapping[TopicPartition, int]) -> list[int]:
        """The rows of those that are consumed and dropped."""
        rows = np.flatnonzero(self.times < 0)
        places = zip(self.partition[rows].tolist(), self.offset[rows].tolist(), strict=True)
        return [
            row
            for row, (partition, offset) in zip(rows.tolist(), places, strict=True)
            if offset < consumed[TopicPartition(self.topic, partition)]
        ]


@dataclass(frozen=True)
class ExtractedTimes:
    """What a batch's extractors said."""

    sources: tuple[_Extracted, ...]

    def stream_times(
        self, consumed: Mapping[TopicPartition, int], request: BatchRequest
    ) -> dict[TaskId, dict[str, int]]:
        """The partition times after the records that are consumed, by task and name."""
        found: dict[TaskId, dict[str, int]] = {}
        for one in self.sources:
            if one.op.kept is None:
                continue
            before = _partition_times(one.op, request)
            for partition in np.unique(one.partition).tolist():
                mine = one.partition == partition
                mine &= one.offset < consumed[TopicPartition(one.topic, partition)]
                if mine.any():
                    time = max(before.get(partition, _NOT_YET), int(one.times[mine].max()))
                    task = TaskId(one.op.subtopology, partition)
                    found.setdefault(task, {})[one.op.kept] = time
        return found

    def dropped(self, consumed: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
        """How many of the records that are consumed have no time, by node and reason."""
        found: dict[str, dict[str, int]] = {}
        for one in self.sources:
            count = len(one.dropped(consumed))
            if count:
                reasons = found.setdefault(one.op.name, {SKIPPED: 0})
                reasons[SKIPPED] += count
        return found

    def left_out(
        self,
        consumed: Mapping[TopicPartition, int],
        request: BatchRequest,
        sources: Mapping[int, Source],
    ) -> dict[TopicPartition, list[bytes]]:
        """The keys, as they are written, of the dropped records of topics that are changelogs, too
        (`BatchRequest.reused`)."""
        found: dict[TopicPartition, list[bytes]] = {}
        for one in self.sources:
            rows = one.dropped(consumed)
            if rows and any(tp.topic == one.topic for tp in request.reused()):
                written = sources[one.op.source].key_serde.encode_array(one.keys.take(rows))
                partitions = one.partition[rows].tolist()
                for partition, key in zip(partitions, written.to_pylist(), strict=True):
                    if key is not None:
                        found.setdefault(TopicPartition(one.topic, partition), []).append(key)
        return found


def extract_times(
    ops: Sequence[TimeOp],
    hop: BatchInput,
    sources: Mapping[int, Source],
    request: BatchRequest,
    every_failure: bool = False,
) -> ExtractedTimes:
    """Give the records of the ``ops``' slots their times; those that get a negative one leave.
    Changes ``hop``.

    Raises RecordFailure for a record of which an extractor says no time, or one beyond `MOST_MS`;
    ``every_failure``: for all of them.
    """
    if ops:
        hop.timestamp = hop.timestamp.copy()
    found = []
    for op in ops:
        slot = sources[op.source].slot  # another one than the input where a Column says the time
        batch, rows = hop.batches.pop(op.input), hop.rows.pop(slot)
        hop.batches.pop(slot, None)
        times = _times(op, batch, sources, request, every_failure)
        _require_near(op, batch, times, sources)
        topic = sources[op.source].topic
        found.append(
            _Extracted(
                op=op,
                topic=topic,
                partition=batch.partition,
                offset=batch.offset,
                times=times,
                keys=batch.key,
            )
        )
        if op.extractor is None:
            batch = batch.with_columns(value=pc.struct_field(batch.value, [1]))
        hop.timestamp[rows] = times
        batch = replace(batch, timestamp=times)
        if (times < 0).any():
            keep = np.flatnonzero(times >= 0)
            batch, rows = batch.take(keep), rows[keep]
        hop.batches[op.output], hop.rows[op.output] = batch, rows
    return ExtractedTimes(tuple(found))


def _times(
    op: TimeOp,
    batch: EdgeBatch,
    sources: Mapping[int, Source],
    request: BatchRequest,
    every_failure: bool,
) -> Int64:
    match op.extractor:
        case None:
            return _said_by_column(op, batch, sources)
        case TimeFunction() as function:
            before = _partition_times(op, request)
            return _said_by_function(op, function, batch, sources, before, every_failure)
        case UsePartitionTimeOnInvalidTimestamp():
            return _filled_in(op, batch, sources, _partition_times(op, request))
        case WallclockTimestampExtractor():
            return np.full(len(batch), request.wall_clock_ms, np.int64)
        case _:
            return batch.timestamp


def _said_by_column(op: TimeOp, batch: EdgeBatch, sources: Mapping[int, Source]) -> Int64:
    said = pc.struct_field(batch.value, [0])
    if said.null_count:
        cause = ValueError(f"timestamp= is NULL for this record{_UNTOLD}")
        rows = np.flatnonzero(said.is_null().to_numpy(zero_copy_only=False))[:MOST_NAMED]
        raise_all([RecordFailure.of(op, sources, batch, row, cause) for row in rows.tolist()])
    times: Int64 = said.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return times


def _said_by_function(
    op: TimeOp,
    function: TimeFunction,
    batch: EdgeBatch,
    sources: Mapping[int, Source],
    before: PartitionTimes,
    every_failure: bool,
) -> Int64:
    """Record by record, as a partition's time depends on what was said of those before; nothing is
    said of one that fails, so those behind it see what they would see without it."""
    keys, values = python_keys(batch.key), batch.value.to_pylist()
    records = _contexts(batch, sources[op.source].topic) if function.takes > 2 else None
    partition_times = dict(before)
    partitions = batch.partition.tolist()
    times = np.empty(len(batch), np.int64)
    failures: list[RecordFailure] = []
    for row, partition in enumerate(partitions):
        try:
            highest = partition_times.get(partition, _NOT_YET)
            given: tuple[Any, ...]
            if function.takes == 1:
                given = (values[row],)
            elif records is None:
                given = keys[row], values[row]
            else:
                given = (keys[row], values[row], records(row), highest)[: function.takes]
            time = _whole(function.fn(*given))
            times[row] = time
            if time > highest:
                partition_times[partition] = time
        except BaseException as error:
            require_users(error)
            failures.append(RecordFailure.of(op, sources, batch, row, error))
            if not every_failure:
                break
    if failures:
        raise_all(failures)
    return times


def _whole(said: Any) -> int:
    """TypeError for what is no number of ms, ValueError for one beyond 64 bits."""
    if isinstance(said, (int, np.integer)) and not isinstance(said, bool):
        if not -(2**63) <= said < 2**63:
            raise ValueError(f"timestamp= gave {said}; divide it, a time is in ms")
        return int(said)
    if said is None:
        raise TypeError(f"timestamp= gave no time{_UNTOLD}")
    cure = ": int(time.timestamp() * 1000)" if hasattr(said, "timestamp") else ""
    raise TypeError(
        f"timestamp= gave {shown(said)} ({type(said).__name__}); a time is a whole number of ms "
        f"since 1970{cure}"
    )


def _contexts(batch: EdgeBatch, topic: str) -> Callable[[int], RecordContext]:
    """What a function is told of the record in a row."""
    partitions, offsets = batch.partition.tolist(), batch.offset.tolist()
    times = batch.timestamp.tolist()
    headers = [None] * len(batch) if batch.headers is None else batch.headers.to_pylist()

    def context(row: int) -> RecordContext:
        pairs = tuple((one["key"], one["value"]) for one in headers[row] or ())
        return RecordContext(topic, partitions[row], offsets[row], times[row], pairs)

    return context


def _filled_in(
    op: TimeOp, batch: EdgeBatch, sources: Mapping[int, Source], before: PartitionTimes
) -> Int64:
    """The records' own times, and for negative ones the highest of the partition so far."""
    if not (batch.timestamp < 0).any():
        return batch.timestamp
    times: Int64 = batch.timestamp.copy()
    for partition in np.unique(batch.partition).tolist():
        rows = np.flatnonzero(batch.partition == partition)
        known = np.maximum(times[rows], before.get(partition, _NOT_YET))
        highest = np.maximum.accumulate(known)
        times[rows] = np.where(times[rows] < 0, highest, times[rows])
    unknown = np.flatnonzero(times < 0)
    if len(unknown):
        rows = unknown[:MOST_NAMED].tolist()
        causes = {row: no_time(int(batch.timestamp[row])) for row in rows}
        raise_all([RecordFailure.of(op, sources, batch, *one) for one in causes.items()])
    return times


def _require_near(
    op: TimeOp, batch: EdgeBatch, times: Int64, sources: Mapping[int, Source]
) -> None:
    """RecordFailure for the records whose times lie beyond `MOST_MS`."""
    failures = []
    for row in np.flatnonzero(times > MOST_MS)[:MOST_NAMED].tolist():
        cause = far_time(None, int(times[row]), extracted=True)
        failures.append(RecordFailure.of(op, sources, batch, row, cause))
    if failures:
        raise_all(failures)


def _partition_times(op: TimeOp, request: BatchRequest) -> dict[int, int]:
    """Partition times before the batch, by partition."""
    kept = op.kept
    if kept is None:
        return {}
    return {
        task.task.partition: task.stream_times[kept]
        for task in request.tasks
        if kept in task.stream_times and task.task.subtopology == op.subtopology
    }
