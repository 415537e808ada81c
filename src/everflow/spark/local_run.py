"""Segments run at once on rows at hand, for the test driver: the same Catalyst projections that an instance runs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from everflow.spark.segments import first_segment, hop_out_of_step, later_segment, spark_type
from everflow.spark.session import get_session
from everflow.topology.hops import HEADERS
from everflow.topology.plan import PhysicalPlan

_LOG = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("headers", HEADERS),
    ]
)


class LocalRun:
    """Runs a plan's segments on Arrow data. Uses the shared session; not thread-safe.

    Each segment is prepared once over a one-row frame whose Python worker reads the rows from a file, and re-run with another
    content: analysing the projections again for every record would take many times longer than running them.
    """

    def __init__(self, plan: PhysicalPlan) -> None:
        self._plan = plan
        self._session = get_session()
        self._folder = tempfile.TemporaryDirectory(prefix="everflow-driver-")
        self._frames: dict[int, DataFrame] = {}

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._folder.cleanup()

    def first(self, records: Sequence[tuple[Any, ...]]) -> list[pa.RecordBatch]:
        """Segment 0 over log records ``(key, value, topic, partition, offset, time in ms, headers)``."""
        columns = list(zip(*records, strict=True)) if records else [[] for _ in _LOG]
        times = [time * 1000 for time in columns[5]]
        headers = [[{"key": name, "value": value} for name, value in found] for found in columns[6]]
        arrays = [*columns[:5], times, headers]
        batch = pa.record_batch([pa.array(a, f.type) for a, f in zip(arrays, _LOG, strict=True)], schema=_LOG)
        return self._run(0, [batch], _LOG)

    def later(self, batches: Sequence[pa.RecordBatch], level: int) -> list[pa.RecordBatch]:
        """Segment ``level`` over the hop rows of step ``level - 1``."""
        return self._run(level, batches, hop_out_of_step(self._plan, level - 1).arrow())

    def _run(self, level: int, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> list[pa.RecordBatch]:
        path = str(Path(self._folder.name, f"{level}.arrow"))
        with pa.OSFile(path, "wb") as out, pa.ipc.new_stream(out, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        if level not in self._frames:
            self._frames[level] = self._prepare(level, path, schema)
        table: pa.Table = self._frames[level].toArrow()
        return table.to_batches()

    def _prepare(self, level: int, path: str, schema: pa.Schema) -> DataFrame:
        def read(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with pa.OSFile(path, "rb") as stream, pa.ipc.open_stream(stream) as reader:
                yield from reader

        types = StructType([StructField(field.name, spark_type(field.type), True) for field in schema])
        rows = self._session.range(0, 1, 1, 1).mapInArrow(read, types)
        frame = first_segment(rows, self._plan) if level == 0 else later_segment(rows, self._plan, level)
        return frame.coalesce(1)  # one Spark partition: rows keep their order up to the marker
