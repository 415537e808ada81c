"""A data source of PySpark's Python Data Source API as a sink: what Spark does with it for a
micro-batch, for a task's rows (`pyspark.sql.worker.write_into_data_source` and
``python_streaming_sink_runner``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSource,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import from_arrow_schema

from everflow.errors import SinkError
from everflow.sinks.batch import SinkBatch


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
        number = next(iter(batch.ends.values()), 0)
        message: WriterCommitMessage | None = None
        try:
            if isinstance(writer, DataSourceStreamArrowWriter):
                message = writer.write(iter(batch.rows.to_batches()))
            else:
                rows = ArrowTableToRowsConversion.convert(batch.rows, schema)
                message = writer.write(iter(rows))
            if not isinstance(message, WriterCommitMessage):
                raise TypeError(
                    f"{type(writer).__name__}.write returns a WriterCommitMessage, found "
                    f"{type(message).__name__}"
                )
            writer.commit([message], number)
        except BaseException:
            writer.abort([message], number)
            raise
