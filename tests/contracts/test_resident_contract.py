"""One contract, two ways to compute Columns: a Spark job over the decoded records, and Arrow."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from everflow import StreamsBuilder, TimeWindows, agg, serdes
from everflow.handlers import Handlers
from everflow.instance.thread.columns import prepared_columns
from everflow.kafka.reading.record_columns import LogColumns
from everflow.records import HEADERS, EdgeBatch, TopicPartition
from everflow.topology.batches import BatchInput
from everflow.topology.plan import DEAD_LETTER_SLOT, PhysicalPlan, plan
from everflow.topology.subtopologies import cut
from everflow.worker.columns import ColumnClient, PreparedColumns
from everflow.worker.decode import Judge, LogDecoder
from everflow.worker.order import Records
from oracle.job_columns import by_jobs

pytestmark = pytest.mark.spark


@dataclass
class Record:
    """A record of the log."""

    place: tuple[str, int, int]
    data: tuple[bytes | None, bytes | None]
    time: int
    head: list[tuple[str, bytes | None]] = field(default_factory=list)


def log_columns(messages: list[Record], headers: bool) -> LogColumns:
    """What a reader of ranges gives for the records."""
    return LogColumns(
        keys=pa.array([m.data[0] for m in messages], pa.binary()),
        values=pa.array([m.data[1] for m in messages], pa.binary()),
        offsets=np.array([m.place[2] for m in messages], np.int64),
        timestamps=np.array([m.time for m in messages], np.int64),
        headers=pa.array([[{"key": k, "value": v} for k, v in m.head] for m in messages], HEADERS)
        if headers
        else None,
    )


def windowed(builder: StreamsBuilder) -> None:
    stream = builder.stream(
        "in", key=serdes.string(), value=serdes.json("a bigint, b struct<c: double>")
    )
    windows = TimeWindows.of_size("1 minute").grace("1 minute")
    grouped = stream.group_by_key().windowed_by(windows)
    grouped.aggregate(
        n=agg.count(), a=agg.sum("value.a"), c=agg.avg("value.b.c"), store="s"
    ).to_stream().to("out")


def summed(builder: StreamsBuilder) -> None:
    stream = builder.stream(
        "in", key=serdes.long(), value=serdes.json("a bigint, b struct<c: double>")
    )
    stream.group_by_key().aggregate(a=agg.max("value.a"), store="s").to_stream().to("out")


def floating(builder: StreamsBuilder) -> None:
    value = serdes.json(
        "a float, b struct<c: double>, l array<double>, m map<string, float>, n array<map<string, "
        "array<double>>>"
    )
    builder.stream("in", key=serdes.string(), value=value).group_by_key().aggregate(
        n=agg.max("value.a"), store="s"
    )


VALUES = [
    b'{"a": 1, "b": {"c": 2.5}}',
    b'{"a": 2}',
    None,
    b'{"b": {"c": null}, "extra": 1}',
    b"{broken",
    b"",
    b"\xff\xfe",
]
KEYS = [
    b"\x00" * 7 + b"\x01",
    b"\x00" * 8,
    b"\x7f" + b"\xff" * 7,
    None,
    b"\x00" * 8,
    b"\x00" * 8,
    b"\x00" * 8,
]
TOO_LARGE = [
    (
        b'{"a": 3.4028235e38, "b": {"c": 1.7976931348623157e308}, "l": [1], "m": {"k": 1}, "n": '
        b'[{"k": '
        b"[1]}]}"
    ),
    b'{"a": 3.5e38}',
    b'{"a": null, "b": null, "l": null, "m": {"k": null}, "n": [{"k": [null]}]}',
    b'{"b": {"c": -1e309}}',
    b'{"l": [null, 1e309]}',
    b'{"m": {"k": -1e39}}',
    b'{"n": [{}, null, {"k": null, "j": [1, 1e309]}]}',
]


def planned(program: object) -> PhysicalPlan:
    builder = StreamsBuilder()
    program(builder)  # type: ignore[operator]
    topology = builder.build()
    return plan(topology, cut(topology).index_of, "app")


def records(program: object) -> list[Record]:
    keys: list[bytes | None] = (
        list(KEYS) if program is summed else [b"k", b"", b"\xffk", None, b"k", b"k", b"l"]
    )
    values = TOO_LARGE if program is floating else VALUES
    return [
        Record(
            ("in", 0, 10 + row), (key, value), 1_000 * row, [("h", b"%d" % row)] if row % 2 else []
        )
        for row, (key, value) in enumerate(zip(keys, values, strict=True))
    ]


def columns(batch: EdgeBatch) -> list[object]:
    headers = None if batch.headers is None else [row or [] for row in batch.headers.to_pylist()]
    arrays: list[Any] = [batch.timestamp, batch.source, batch.partition, batch.offset, batch.seq]
    return [
        batch.key.to_pylist(),
        batch.value.to_pylist(),
        *(array.tolist() for array in arrays),
        headers,
    ]


def decoded(plan: PhysicalPlan, records: list[Record]) -> BatchInput:
    read: dict[TopicPartition, list[Record]] = {}
    for record in records:
        read.setdefault(TopicPartition(*record.place[:2]), []).append(record)
    logs = {tp: log_columns(found, plan.headers) for tp, found in read.items()}
    return LogDecoder.of(plan, Handlers()).run(logs, Judge())


def by_worker(
    plan: PhysicalPlan, columns: Sequence[PreparedColumns], path: str, records: Records
) -> dict[int, EdgeBatch]:
    """The same, by Columns that were prepared for a worker."""
    made = dict(records)
    with closing(ColumnClient(path)) as client:
        for one in columns:
            one(made, client)
    return made


def same(plan: PhysicalPlan, given: Records, expected: Records) -> None:
    """The same records of the same types, in all slots that somebody reads."""
    read = {slot for op in plan.columns for slot in op.outputs}
    assert read <= given.keys() & expected.keys()
    for slot in read:
        here, there = given[slot], expected[slot]
        assert columns(here) == columns(there), slot
        assert (here.key.type, here.value.type) == (there.key.type, there.value.type)


@pytest.mark.parametrize("program", [windowed, summed], ids=lambda program: program.__name__)
@pytest.mark.parametrize("rows", [7, 1, 0])
def test_the_twin_gives_what_a_job_gives(spark: SparkSession, program: object, rows: int) -> None:
    found, messages = planned(program), records(program)[:rows]
    prepared = prepared_columns(found)
    for one in prepared.prepared:
        parts = [part for node in one.nodes for part in (node.predicate, node.made)]
        assert all(part is None or not part.stages for part in parts)
    given = decoded(found, messages).batches
    same(found, by_worker(found, prepared.prepared, prepared.path, given), by_jobs(found, given))


def test_a_number_that_is_too_large_for_its_type_is_no_infinity() -> None:
    batches = decoded(planned(floating), records(floating)).batches
    assert batches[DEAD_LETTER_SLOT].offset.tolist() == [11, 13, 14, 15, 16]
