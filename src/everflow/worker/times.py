"""The times of a micro-batch's records and of its tasks.

A source's extractor says a record's time before inputs are merged (note 032), consumed or not. A
time is at most what Spark holds: microseconds in 64 bits. Idle sources: note 025.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from everflow.errors import RecordTimeError
from everflow.protocol.messages import Ages, BatchRequest
from everflow.records import EdgeBatch, Int64, TaskId, TopicPartition, rises, valid
from everflow.serdes.windowed import python_keys
from everflow.topology.batches import BatchInput
from everflow.topology.graph import (
    RecordContext,
    TimeFunction,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
)
from everflow.topology.plan import TimeOp
from everflow.topology.sources import Source, sources_of_logs
from everflow.user_program import shown
from everflow.worker.failures import Failures, Sources

# --- bounds ---------------------------------------------------------------------------------------


MOST_MS = (2**63 - 1) // 1000
_MOVE_ON = (
    "delete the record (kafka-delete-records), or move the group's offset past it while the "
    "application is stopped."
)


def odd_times(times: Int64) -> bool:
    """True if the time of some record is negative or beyond `MOST_MS`."""
    # One comparison for each record: a negative time is a high one without its sign.
    return bool((times.view(np.uint64) > MOST_MS).any())


def far_times(source: Source, raw: EdgeBatch) -> dict[int, RecordTimeError]:
    """By row, why records of a source are left to their handler: times beyond `MOST_MS`."""
    return {
        row: _far_time(
            int(raw.timestamp[row]),
            f"{source.log(int(raw.partition[row]))}@{int(raw.offset[row])}",
        )
        for row in np.flatnonzero(raw.timestamp > MOST_MS).tolist()
    }


def timely(batch_input: BatchInput, otherwise_ms: int) -> Int64:
    """The times of a batch's rows. A record beyond `MOST_MS` has that of the one before it in its
    partition, else of the next one, else ``otherwise_ms``: it is left out, and its dead letter
    keeps its place."""
    far = batch_input.timestamp > MOST_MS
    times: Int64 = batch_input.timestamp.copy()
    logs = zip(batch_input.source[far].tolist(), batch_input.partition[far].tolist(), strict=True)
    for source, partition in {*logs}:
        rows = np.flatnonzero((batch_input.source == source) & (batch_input.partition == partition))
        good = ~far[rows]
        if not good.any():
            times[rows] = otherwise_ms
            continue
        before = np.maximum.accumulate(np.where(good, np.arange(len(rows)), -1))
        times[rows] = times[rows[np.where(before < 0, int(np.argmax(good)), before)]]
    return times


def refuse_negative(source: Source, decoded: EdgeBatch) -> None:
    """RecordTimeError for the first record with a negative time (FailOnInvalidTimestamp)."""
    rows = np.flatnonzero(decoded.timestamp < 0)
    if len(rows):
        row = int(rows[0])
        place = f"{source.log(int(decoded.partition[row]))}@{int(decoded.offset[row])}"
        raise RecordTimeError(
            f"A record's time is negative, {int(decoded.timestamp[row])} ms (record {place}): its "
            f"producer gave it none, or one before 1970\n"
            f"  Leave such records out with timestamp=LogAndSkipOnInvalidTimestamp() of the "
            f"source, take the time from elsewhere, as in timestamp=F.col('value.at') or "
            f"UsePartitionTimeOnInvalidTimestamp(), or set default.timestamp.extractor for all "
            f"sources. Or correct the producer; {_MOVE_ON}"
        )


def no_time(time_ms: int) -> RecordTimeError:
    return RecordTimeError(
        f"A record's time is negative, {time_ms} ms, and UsePartitionTimeOnInvalidTimestamp knows "
        f"none of an earlier record of its partition; give the source a function that knows one: "
        f"timestamp=lambda key, value, record, partition_time: ..."
    )


def _far_time(time_ms: int, place: str | None) -> RecordTimeError:
    """``place``: ``in-0@7``; None: the user's timestamp= said the time."""
    where = ""
    cure = "timestamp= of its source gave micro- or nanoseconds; divide them, a time is in ms."
    if place is not None:
        where = f" (record {place})"
        cure = (
            "Its producer wrote micro- or nanoseconds where Kafka expects milliseconds. Correct "
            f"the producer; {_MOVE_ON}"
        )
    return RecordTimeError(
        f"A record's time is {time_ms} ms, beyond the year 294247, which Spark cannot hold{where}"
        f"\n  {cure}"
    )


# --- extractors -----------------------------------------------------------------------------------


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


class _Extracted(NamedTuple):
    """One source's records with their times; negative for those that are dropped."""

    op: TimeOp
    source: Source
    batch: EdgeBatch

    def dropped(self, consumed: Mapping[TopicPartition, int]) -> list[int]:
        partitions, offsets = self.batch.partition, self.batch.offset
        return [
            row
            for row in np.flatnonzero(self.batch.timestamp < 0).tolist()
            if offsets[row] < consumed[self.source.log(int(partitions[row]))]
        ]


@dataclass(frozen=True)
class ExtractedTimes:
    sources: tuple[_Extracted, ...]

    def stream_times(
        self, consumed: Mapping[TopicPartition, int], request: BatchRequest
    ) -> dict[TaskId, dict[str, int]]:
        """The partition times after the records that are consumed, by task and name."""
        found: dict[TaskId, dict[str, int]] = {}
        for one in self.sources:
            if one.op.kept is None:
                continue
            before, batch = _partition_times(one.op, request), one.batch
            for partition in np.unique(batch.partition).tolist():
                mine = batch.partition == partition
                mine &= batch.offset < consumed[one.source.log(partition)]
                if not mine.any():
                    continue
                time = max(before.get(partition, _NOT_YET), int(batch.timestamp[mine].max()))
                if time != _NOT_YET:
                    task = TaskId(one.op.subtopology, partition)
                    found.setdefault(task, {})[one.op.kept] = time
        return found

    def dropped(self, consumed: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
        """The number of consumed records without a time, by node and reason."""
        counts = Counter[str]()
        for one in self.sources:
            counts[one.op.name] += len(one.dropped(consumed))
        return {name: {SKIPPED: count} for name, count in counts.items() if count}

    def left_out(
        self, consumed: Mapping[TopicPartition, int], request: BatchRequest
    ) -> dict[TopicPartition, list[bytes]]:
        """The keys, as they are written, of the dropped records of topics that are changelogs, too
        (`BatchRequest.reused`)."""
        found: dict[TopicPartition, list[bytes]] = {}
        for one in self.sources:
            rows, topic = one.dropped(consumed), one.source.topic
            if rows and any(tp.topic == topic for tp in request.reused()):
                written = one.source.key_serde.encode_array(one.batch.key.take(rows))
                partitions = one.batch.partition[rows].tolist()
                for partition, key in zip(partitions, written.to_pylist(), strict=True):
                    if key is not None:
                        found.setdefault(one.source.log(partition), []).append(key)
        return found


def extract_times(
    ops: Sequence[TimeOp],
    batch_input: BatchInput,
    sources: Sources,
    request: BatchRequest,
    every_failure: bool = False,
) -> ExtractedTimes:
    """Give the records of the ``ops``' slots their times in ``batch_input``; those with a negative
    time leave. RecordFailure for one (``every_failure``: all) without one, or beyond `MOST_MS`."""
    if ops:
        batch_input.timestamp = batch_input.timestamp.copy()
    found = []
    for op in ops:
        slot = sources[op.source].slot  # another one than the input where a Column says the time
        batch, rows = batch_input.batches.pop(op.input), batch_input.rows.pop(slot)
        batch_input.batches.pop(slot, None)
        failures = Failures(op, sources, batch, every_failure)
        times = _times(op, failures, request)
        far = np.flatnonzero(times > MOST_MS)[:MOST_NAMED].tolist()
        if far:
            failures.raise_of({row: _far_time(int(times[row]), None) for row in far})
        if op.extractor is None:
            batch = batch.with_columns(value=pc.struct_field(batch.value, [1]))
        batch_input.timestamp[rows] = times
        batch = replace(batch, timestamp=times)
        found.append(_Extracted(op, sources[op.source], batch))
        if (times < 0).any():
            keep = np.flatnonzero(times >= 0)
            batch, rows = batch.take(keep), rows[keep]
        batch_input.batches[op.output], batch_input.rows[op.output] = batch, rows
    return ExtractedTimes(tuple(found))


def _times(op: TimeOp, failures: Failures, request: BatchRequest) -> Int64:
    match op.extractor:
        case None:
            return _said_by_column(failures)
        case TimeFunction() as function:
            source = failures.sources[op.source]
            return _said_by_function(function, source, failures, _partition_times(op, request))
        case UsePartitionTimeOnInvalidTimestamp():
            return _filled_in(failures, _partition_times(op, request))
        case WallclockTimestampExtractor():
            return np.full(len(failures.batch), request.wall_clock_ms, np.int64)
        case _:
            return failures.batch.timestamp


def _said_by_column(failures: Failures) -> Int64:
    said = pc.struct_field(failures.batch.value, [0])
    if said.null_count:
        cause = ValueError(f"timestamp= is NULL for this record{_UNTOLD}")
        rows = np.flatnonzero(~valid(said))[:MOST_NAMED]
        failures.raise_of(dict.fromkeys(rows.tolist(), cause))
    times: Int64 = said.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return times


def _said_by_function(
    function: TimeFunction, source: Source, failures: Failures, before: PartitionTimes
) -> Int64:
    """A partition's time depends on the records before, and nothing is said of one that fails."""
    batch = failures.batch
    keys, values = python_keys(batch.key), batch.value.to_pylist()
    records = _contexts(batch, source) if function.takes > 2 else None
    partition_times = dict(before)
    partitions = batch.partition.tolist()
    times = np.empty(len(batch), np.int64)
    for row, partition in enumerate(partitions):
        try:
            highest = partition_times.get(partition, _NOT_YET)
            arguments = (keys[row], values[row], records and records(row), highest)[
                : function.takes
            ]
            time = _whole(
                function.fn(*arguments) if function.takes > 1 else function.fn(values[row])
            )
            times[row] = time
            if time > highest:
                partition_times[partition] = time
        except BaseException as error:
            failures.add(row, error)
    failures.raise_added()
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


def _contexts(batch: EdgeBatch, source: Source) -> Callable[[int], RecordContext]:
    partitions, offsets = batch.partition.tolist(), batch.offset.tolist()
    times = batch.timestamp.tolist()
    headers = [None] * len(batch) if batch.headers is None else batch.headers.to_pylist()

    def context(row: int) -> RecordContext:
        pairs = tuple((one["key"], one["value"]) for one in headers[row] or ())
        return RecordContext(*source.log(partitions[row]), offsets[row], times[row], pairs)

    return context


def _filled_in(failures: Failures, before: PartitionTimes) -> Int64:
    """The records' own times, and for negative ones the highest of the partition so far."""
    batch = failures.batch
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
        failures.raise_of({row: no_time(int(batch.timestamp[row])) for row in rows})
    return times


def _partition_times(op: TimeOp, request: BatchRequest) -> dict[int, int]:
    kept = op.kept
    if kept is None:
        return {}
    return {
        task.task.partition: task.stream_times[kept]
        for task in request.tasks
        if kept in task.stream_times and task.task.subtopology == op.subtopology
    }


def bounded(batch_input: BatchInput, sources: Sources, most_ms: int) -> list[str]:
    """Gives records of source topics that are later than ``most_ms`` that time; says of which
    (``max.event.time.ahead``, note 076)."""
    if not (batch_input.timestamp > most_ms).any():
        return []
    read = np.array([one.kind != "repartition" for one in sources], bool)
    ahead = (batch_input.timestamp > most_ms) & read[batch_input.source]
    remarks = []
    for number in np.unique(batch_input.source[ahead]).tolist():
        rows, source = np.flatnonzero(ahead & (batch_input.source == number)), sources[number]
        first, most = int(rows[0]), int(batch_input.timestamp[rows].max())
        log = source.log(int(batch_input.partition[first]))
        remarks.append(
            f"{source.node}: {len(rows)} records are further ahead of the wall clock than "
            f"max.event.time.ahead allows, the first is {log}@{int(batch_input.offset[first])}, "
            f"the latest has {most} ms; all get the time {most_ms} ms"
        )
    batch_input.timestamp = np.where(ahead, most_ms, batch_input.timestamp)
    for slot, batch in batch_input.batches.items():
        times = batch_input.timestamp[batch_input.rows[slot]]
        batch_input.batches[slot] = replace(batch, timestamp=times)
    return remarks


# --- idle sources ---------------------------------------------------------------------------------


Moved = Mapping[TaskId, Mapping[str, int]]
"""Of each task, to what the times of its silent sources are moved, by the names under which those
are kept."""


def moved(
    request: BatchRequest, sources: Sequence[Source], consumed: Mapping[TopicPartition, int]
) -> Moved:
    """Moves that the request asks for, of tasks that have read all: what is left may be older."""
    if not request.idle:
        return {}
    logs = [tp for tp, end in request.log_ends.items() if consumed[tp] < end]
    behind = {source.task(tp) for tp, source in sources_of_logs(sources, logs).items()}
    return {task: names for task, names in request.idle.items() if task not in behind}


def source_times(
    batch_input: BatchInput,
    sources: Sequence[Source],
    request: BatchRequest,
    consumed: Mapping[TopicPartition, int],
) -> dict[TaskId, dict[str, int]]:
    """The times of sources whose silence counts: the highest of a record that is consumed, or what
    they are moved to."""
    found: dict[TaskId, dict[str, int]] = {}
    before = {task.task: task.stream_times for task in request.tasks}
    for source in sources:
        if source.idle is None:
            continue
        rows = np.flatnonzero(batch_input.source == source.index)
        for partition in np.unique(batch_input.partition[rows]).tolist():
            mine = rows[batch_input.partition[rows] == partition]
            mine = mine[batch_input.offset[mine] < consumed[source.log(partition)]]
            task, name = TaskId(source.subtopology, partition), source.idle.kept
            if len(mine):
                time = max(before[task].get(name, -1), int(batch_input.timestamp[mine].max()))
                found.setdefault(task, {})[name] = time
    for task, names in moved(request, sources, consumed).items():
        found.setdefault(task, {}).update(names)
    return found


# --- ages for the metrics -------------------------------------------------------------------------


def ages_read(
    batch_input: BatchInput,
    sources: Sources,
    consumed: Mapping[TopicPartition, int],
    stream_times: Mapping[TaskId, int],
) -> list[Ages]:
    """Ages of the ``consumed`` records. ``stream_times``: of the tasks before the batch."""
    of, partitions, offsets = batch_input.source, batch_input.partition, batch_input.offset
    if not len(of):
        return []
    changes = (of[1:] != of[:-1]) | (partitions[1:] != partitions[:-1])
    begins = (changes.nonzero()[0] + 1).tolist()
    found = []
    for start, end in zip([0, *begins], [*begins, len(of)], strict=True):
        source, partition = sources[int(of[start])], int(partitions[start])
        read = consumed[source.log(partition)]
        if offsets[end - 1] >= read:
            end = start + int(np.searchsorted(offsets[start:end], read))
        task = TaskId(source.subtopology, partition)
        newest = stream_times.get(task, -1)
        found.append(_of(batch_input.timestamp[start:end], str(task), source.node, newest))
    return [ages for ages in found if ages is not None]


def ages_written(batches: Iterable[tuple[str, EdgeBatch]]) -> list[Ages]:
    found = [_of(batch.timestamp, "", node) for node, batch in batches]
    return [ages for ages in found if ages is not None]


def _of(times: Int64, task: str, node: str, newest: int | None = None) -> Ages | None:
    """The ages of these times; None if all are negative, which are no times."""
    if not len(times):
        return None
    in_order = rises(times)
    least, most = (times[0], times[-1]) if in_order else (times.min(), times.max())
    if least < 0:
        return _of(times[times >= 0], task, node, newest)
    total = float(times.sum(dtype=np.float64))
    found = Ages(task, node, len(times), total, int(least), int(most))
    if newest is None or (in_order and least >= newest):
        return found
    late = np.maximum(np.maximum.accumulate(times), newest) - times
    return found._replace(late_total=float(late.sum(dtype=np.float64)), late_most=int(late.max()))
