"""Runs segments at once on rows at hand, for the test driver: the projections of an instance.

Each segment is prepared once, down to its RDD of Arrow batches, and re-run with other rows:
analysing or generating code again for every record would take many times longer than running them.
The rows of segment 0 are put into one object of the JVM that every run reads anew, so no Python
worker is needed; later segments, whose rows have any type, read them from a file in a worker.
"""

from __future__ import annotations

import json
import tempfile
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructField, StructType

from everflow.spark.segments import (
    first_segment,
    hop_into_step,
    hop_out_of_step,
    later_segment,
    spark_type,
)
from everflow.spark.session import get_session
from everflow.topology.physical_plan import PhysicalPlan
from everflow.waits import waiting

_RECORDS = (
    "array<struct<key string, value string, topic string, partition int, offset bigint, time "
    "bigint, "
    "headers array<struct<key string, value string>>>>"
)
"""Log records as JSON; bytes are base64."""


class LocalRun:
    """Runs a plan's segments on data at hand. Uses the shared session; owned by the thread that
    first runs it."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self._plan = plan
        self._session = get_session()
        self._folder = tempfile.TemporaryDirectory(prefix="everflow-driver-")
        self._rdds: dict[int, Any] = {}
        self._rows: Any = None
        self._properties = _sql_properties(self._session)

    def close(self) -> None:
        """Remove the files. Idempotent."""
        self._folder.cleanup()

    def first(self, records: Sequence[tuple[Any, ...]]) -> list[pa.RecordBatch]:
        """Segment 0 over log records ``(key, value, topic, partition, offset, time in ms,
        headers)``."""
        with self._told_once(0):
            if 0 not in self._rdds:
                self._rdds[0] = self._prepare(first_segment(self._log_frame(), self._plan))
            return self._run_first(records)

    def _run_first(self, records: Sequence[tuple[Any, ...]]) -> list[pa.RecordBatch]:
        listed = [
            {
                "key": _text(key),
                "value": _text(value),
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "time": time,
                "headers": [{"key": name, "value": _text(content)} for name, content in headers],
            }
            for key, value, topic, partition, offset, time, headers in records
        ]
        self._rows.update(0, bytearray(json.dumps(listed).encode()))
        return self._collect(0)

    def later(self, batches: Sequence[pa.RecordBatch], level: int) -> list[pa.RecordBatch]:
        """Segment ``level`` over the hop rows of step ``level - 1``."""
        path = str(Path(self._folder.name, f"{level}.arrow"))
        schema = hop_out_of_step(self._plan, level - 1).arrow()
        with pa.OSFile(path, "wb") as out, pa.ipc.new_stream(out, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        with self._told_once(level):
            if level not in self._rdds:
                self._rdds[level] = self._prepare(
                    later_segment(self._file_frame(path, schema), self._plan, level)
                )
            return self._collect(level)

    def _told_once(self, level: int) -> AbstractContextManager[None]:
        """The first run of a segment takes seconds: Spark loads classes, generates code, forks a
        worker."""
        return (
            nullcontext()
            if level in self._rdds
            else waiting("running the first records of this topology through Spark")
        )

    def _log_frame(self) -> DataFrame:
        """Kafka's columns of the records in ``self._rows``, a row read again at every run (tasks
        are serialised anew)."""
        context = self._session.sparkContext
        jvm: Any = context._jvm
        self._rows = jvm.org.apache.spark.sql.catalyst.expressions.GenericInternalRow(1)
        listed = jvm.java.util.ArrayList()
        listed.add(self._rows)
        tag = getattr(getattr(jvm.scala.reflect, "ClassTag$"), "MODULE$").apply(
            self._rows.getClass().getSuperclass()
        )
        seq = jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()
        rdd = context._jsc.sc().parallelize(seq, 1, tag)
        schema = self._session._jsparkSession.parseDataType(
            StructType([StructField("records", BinaryType())]).json()
        )
        rows = DataFrame(
            self._session._jsparkSession.internalCreateDataFrame(rdd, schema, False), self._session
        )
        log = rows.select(F.inline(F.from_json(F.col("records").cast("string"), _RECORDS)))
        header = F.transform(
            "headers",
            lambda h: F.struct(h["key"].alias("key"), F.unbase64(h["value"]).alias("value")),
        )
        return log.select(
            F.unbase64("key").alias("key"),
            F.unbase64("value").alias("value"),
            "topic",
            "partition",
            "offset",
            F.timestamp_millis("time").alias("timestamp"),
            header.alias("headers"),
        )

    def _file_frame(self, path: str, schema: pa.Schema) -> DataFrame:
        def read(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with pa.OSFile(path, "rb") as stream, pa.ipc.open_stream(stream) as reader:
                yield from reader

        types = StructType(
            [StructField(field.name, spark_type(field.type), True) for field in schema]
        )
        return self._session.range(0, 1, 1, 1).mapInArrow(read, types)

    def _prepare(self, frame: DataFrame) -> Any:
        """The frame's RDD of Arrow batches."""
        java: Any = frame.coalesce(
            1
        )._jdf  # one Spark partition: rows keep their order up to the marker
        return java.toArrowBatchRdd(java.queryExecution().executedPlan())

    def _collect(self, level: int) -> list[pa.RecordBatch]:
        schema = hop_into_step(self._plan, level).arrow()
        context: Any = self._session.sparkContext._jsc
        before = context.sc().getLocalProperties()
        context.sc().setLocalProperties(self._properties)
        try:
            found = self._rdds[level].collect()
        finally:
            context.sc().setLocalProperties(before)  # this thread is the user's
        return [pa.ipc.read_record_batch(pa.py_buffer(bytes(batch)), schema) for batch in found]


def _sql_properties(session: SparkSession) -> Any:
    """What Spark SQL sets for the tasks of its own runs: a plain job's tasks would go by
    defaults."""
    jvm: Any = session.sparkContext._jvm
    found = jvm.java.util.Properties()
    for name, setting in session.conf.getAll.items():
        if name.startswith("spark.sql."):
            found.setProperty(name, setting)
    return found


def _text(data: bytes | None) -> str | None:
    return None if data is None else b64encode(data).decode()
