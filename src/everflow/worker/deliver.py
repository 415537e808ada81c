"""Gives the rows of a micro-batch to sinks outside Kafka, task by task (note 072)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import EverflowError, RetriableError
from everflow.handlers import PRODUCTION, is_outage
from everflow.operators.user_code import require_users
from everflow.protocol.messages import SINKS, BatchRequest, Rows, timed
from everflow.records import LAST_SEQ, EdgeBatch, OffsetRange, TaskId, TopicPartition
from everflow.sinks.batch import RefusedRows, SinkAhead, SinkBatch
from everflow.topology.graph import WriteNode
from everflow.topology.sources import sources_of_logs
from everflow.worker.crash_points import SINK_PARTLY, SINK_WRITTEN
from everflow.worker.failures import Failures, RecordFailure, Sources, of_connector
from everflow.worker.task_step import GivenRows, StepResult


def deliver(
    request: BatchRequest, result: StepResult, sources: Sources, reached: Callable[[str], None]
) -> list[Rows]:
    """Calls each sink once for a task's rows, and returns what each has. SinkAhead where the batch
    is to end earlier; RecordFailure for rows that a sink refuses; RetriableError, with the task's
    partitions."""
    offsets: dict[TaskId, dict[TopicPartition, OffsetRange]] = {}
    for tp, source in sources_of_logs(sources, request.ranges).items():
        found = OffsetRange(request.ranges[tp].start, result.consumed[tp])
        offsets.setdefault(source.task(tp), {})[tp] = found
    delivered = []
    for given in result.given:
        for task, rows, of_clock in _parts(given):
            batch = SinkBatch(
                rows=rows_of(given.op.node, rows, sources),
                application_id=request.application_id,
                sink=given.op.name,
                task=task,
                offsets={} if of_clock else offsets.get(task, {}),
                keys=given.op.node.key or (),
                timestamps=pa.array(rows.timestamp),
                deletes=rows.value.is_null() if rows.value.null_count else None,
                topic_ids=request.topic_ids,
            )
            took: dict[str, float] = {}
            try:
                with timed(took, SINKS):
                    _write(given, rows, batch, sources, offsets.get(task, {}))
            except EverflowError as error:
                of_connector(error, batch.sink)
                raise
            delivered.append(Rows(batch.sink, len(batch.rows), batch.rows.nbytes, took[SINKS]))
            reached(SINK_PARTLY)
    reached(SINK_WRITTEN)
    return delivered


def _parts(given: GivenRows) -> Iterator[tuple[TaskId, EdgeBatch, bool]]:
    """The rows of each task, and those that a clock alone has made."""
    batch = given.batch
    clocks: npt.NDArray[np.bool_] = batch.seq == LAST_SEQ
    for partition in np.unique(batch.partition).tolist():
        for of_clock in (False, True):
            rows = np.flatnonzero((batch.partition == partition) & (clocks == of_clock))
            if len(rows):
                part = batch if len(rows) == len(batch) else batch.take(rows)
                yield TaskId(given.op.subtopology, partition), part, of_clock


def _write(
    given: GivenRows,
    rows: EdgeBatch,
    batch: SinkBatch,
    sources: Sources,
    inputs: dict[TopicPartition, OffsetRange],
) -> None:
    op = given.op
    try:
        refuse_other_keys(op.node, rows)
        op.node.sink.write(batch)
    except RefusedRows as refused:
        Failures(op, sources, rows, every=True).raise_of(refused.rows, PRODUCTION)
    except RetriableError as error:
        raise RetriableError(f"Sink {op.name}: {error}", inputs) from error
    except (SinkAhead, EverflowError):
        raise
    except BaseException as error:
        require_users(error)
        if is_outage(error):
            raise RetriableError(f"Sink {op.name} does not answer: {error}", inputs) from error
        raise RecordFailure(None, op.where, error, stage=PRODUCTION) from error


def refuse_other_keys(node: WriteNode, batch: EdgeBatch) -> None:
    """RefusedRows where a field of the value that is called as a column of the key has another
    value; a null, as of a deletion, is none."""
    if not node.key or not pa.types.is_struct(batch.value.type):
        return
    of_value = dict(_fields("value", batch.value))
    refused: dict[int, BaseException] = {}
    for name, (_, column) in zip(node.key, _fields("key", batch.key), strict=False):
        if name not in of_value:
            continue
        for row in np.flatnonzero(_are_other(column, of_value[name])).tolist():
            refused[row] = ValueError(
                f"the key and the value's field {name!r} have other values, and both belong to "
                f"the column {name!r}: name the key's otherwise with key=, or leave the field out "
                f"with map_values"
            )
    if refused:
        raise RefusedRows(refused)


def _are_other(key: pa.Array, value: pa.Array) -> npt.NDArray[np.bool_]:
    """Of each row; null is no value."""
    if pa.types.is_nested(key.type):  # Arrow compares no structs
        pairs = zip(key.to_pylist(), value.to_pylist(), strict=True)
        return np.array([None not in pair and pair[0] != pair[1] for pair in pairs], bool)
    found = pc.fill_null(pc.not_equal(key, value), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def rows_of(node: WriteNode, batch: EdgeBatch, sources: Sources) -> pa.Table:
    """One column for each field of a struct. See `WriteNode`."""
    if node.key is not None:
        keys = [column for _, column in _fields("key", batch.key)]
        values = [one for one in _fields("value", batch.value) if one[0] not in node.key]
        named = [*zip(node.key, keys, strict=False), *values]
        return pa.table([column for _, column in named], [name for name, _ in named])
    first = np.array([source.first for source in sources], np.int32)
    topics = pa.DictionaryArray.from_arrays(
        pa.array(batch.source), pa.array([source.topic for source in sources])
    )
    partitions = batch.partition + first[batch.source]
    named = [
        *_fields("key", batch.key, "key."),
        *_fields("value", batch.value, "value."),
        ("timestamp", pa.array(batch.timestamp)),
        ("topic", topics.dictionary_decode()),
        ("partition", pa.array(partitions, pa.int32())),
        ("offset", pa.array(batch.offset)),
    ]
    return pa.table([column for _, column in named], [name for name, _ in named])


def _fields(name: str, column: pa.Array, spread: str = "") -> Iterator[tuple[str, pa.Array]]:
    if not pa.types.is_struct(column.type) or not column.type.num_fields:
        yield name, column
        return
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    for one, values in zip(column.type, column.flatten(), strict=True):
        yield f"{spread}{one.name}", values
