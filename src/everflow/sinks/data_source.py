"""A data source of PySpark's Python Data Source API as a sink: what Spark does with it for a
micro-batch, for a task's rows (`pyspark.sql.worker.write_into_data_source` and
``python_streaming_sink_runner``)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark import TaskContext
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema

from everflow.errors import SinkError
from everflow.records import TaskId
from everflow.sinks.batch import SinkBatch

PARTITIONS = 1 << 20
"""More than any topic has: what a batch's offset is multiplied by for its number."""


@dataclass(frozen=True, eq=False, kw_only=True)
class DataSourceSink:
    """A `Sink`. ``options``: texts, as Spark gives them."""

    source: type[DataSource]
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def write(self, batch: SinkBatch) -> None:
        """See `Sink`; at least once. Raises what the writer raises, after its ``abort``."""
        if len(batch.offsets) > 1:
            raise SinkError(
                f"Sink {batch.sink}: a batch of {self.source.__name__} has a number, so its task "
                f"reads one partition, and task {batch.task} reads "
                f"{', '.join(map(str, sorted(batch.offsets)))}. Write "
                f".repartition(name=...) in front of write_stream."
            )
        schema = from_arrow_schema(batch.rows.schema)
        options: Any = CaseInsensitiveDict(self.options)
        writer = self.source(options).streamWriter(schema, overwrite=False)
        number = number_of(batch)
        message: WriterCommitMessage | None = None
        try:
            with _in_spark_task(batch.task, number):
                message = self._written(writer, batch, schema)
            if not isinstance(message, WriterCommitMessage):
                raise TypeError(
                    f"{type(writer).__name__}.write returns a WriterCommitMessage, found "
                    f"{type(message).__name__}"
                )
            writer.commit([message], number)
        except BaseException:
            writer.abort([message], number)
            raise

    def _written(self, writer: Any, batch: SinkBatch, schema: Any) -> Any:
        if isinstance(writer, DataSourceStreamArrowWriter):
            return writer.write(iter(batch.rows.to_batches()))
        return writer.write(iter(ArrowTableToRowsConversion.convert(batch.rows, schema)))


def number_of(batch: SinkBatch) -> int:
    """``batchId``: writers name files by it, so no two tasks have the same. A task's grow. That of
    rows without an offset is a time, and larger."""
    for end in batch.ends.values():
        return end * PARTITIONS + batch.task.partition
    return time.time_ns()


@contextmanager
def _in_spark_task(task: TaskId, number: int) -> Iterator[None]:
    """Writers ask `TaskContext.get` for partition and attempt, to name what they write. The task of
    Spark that a worker runs in serves all tasks of a stream thread; a test has none."""
    before = TaskContext.get()
    made = object.__new__(TaskContext)
    made._stageId, made._partitionId = task.subtopology, task.partition
    made._taskAttemptId, made._attemptNumber = number, 0
    made._localProperties, made._resources = {}, {}
    TaskContext._setTaskContext(made)
    try:
        yield
    finally:
        TaskContext._setTaskContext(before)
