"""One contract, two ways to read a batch: Catalyst's first segment and the resident step's Arrow
twin give the same hop."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, agg, serdes
from everflow.kafka.reading.log_columns import LogColumns
from everflow.records import HEADERS, EdgeBatch, TopicPartition
from everflow.runtime.worker.column_client import ColumnClient
from everflow.runtime.worker.resident_segments import LogDecoder, TwinSegment
from everflow.spark.local_run import LocalRun
from everflow.spark.segments import hop_into_step
from everflow.topology.hops import HopInput, read_hop
from everflow.topology.physical_plan import DEAD_LETTER_SLOT, PhysicalPlan
from everflow.topology.plan import plan
from everflow.topology.subtopologies import cut

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
        pa.array([m.data[0] for m in messages], pa.binary()),
        pa.array([m.data[1] for m in messages], pa.binary()),
        np.array([m.place[2] for m in messages], np.int64),
        np.array([m.time for m in messages], np.int64),
        pa.array([[{"key": k, "value": v} for k, v in m.head] for m in messages], HEADERS)
        if headers
        else None,
    )


def counted(builder: StreamsBuilder) -> None:
    builder.stream("in", key=serdes.string(), value=serdes.string()).group_by_key().count(
        store="s"
    ).to_stream().to("out")


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


def copied(builder: StreamsBuilder) -> None:
    builder.stream("in", key=serdes.string(), value=serdes.bytes_()).to("out")


def floating(builder: StreamsBuilder) -> None:
    value = serdes.json(
        "a float, b struct<c: double>, l array<double>, m map<string, float>, n array<map<string, "
        "array<double>>>"
    )
    builder.stream("in", key=serdes.string(), value=value).group_by_key().aggregate(
        n=agg.max("value.a"), store="s"
    )


PROGRAMS = [counted, windowed, summed, copied, floating]
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
    arrays: list[Any] = [batch.timestamp, batch.source, batch.partition, batch.offset]
    values = batch.value.to_pylist()
    for value in values:
        if (
            isinstance(value, dict) and "error" in value
        ):  # the step's own parser says more of the cause
            value["error"] = value["error"].split("): ")[0].rstrip(")")
    return [batch.key.to_pylist(), values, *(array.tolist() for array in arrays), headers]


def through_catalyst(found: PhysicalPlan, messages: list[Record]) -> HopInput:
    log = [(*m.data, *m.place, m.time, m.head) for m in messages]
    return read_hop(LocalRun(found).first(log), hop_into_step(found, 0))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("rows", [7, 1, 0])
def test_the_twin_gives_what_catalyst_gives(
    spark: SparkSession, program: object, rows: int
) -> None:
    found, messages = planned(program), records(program)[:rows]
    twin = TwinSegment.of(found.segments[0])
    assert twin is not None
    expected = through_catalyst(found, messages)
    decoded = LogDecoder.of(found).run(
        {TopicPartition("in", 0): log_columns(messages, found.headers)}
    )
    given = twin.run(decoded, ColumnClient(""))
    for slot in found.into_step(0):
        if len(expected.batches[slot.id]) or slot.id in given.batches:
            assert columns(given.batches[slot.id])[:6] == columns(expected.batches[slot.id])[:6], (
                slot
            )
            assert given.batches[slot.id].key.type == expected.batches[slot.id].key.type
            assert given.batches[slot.id].value.type == expected.batches[slot.id].value.type
            if found.headers:
                assert columns(given.batches[slot.id])[6] == columns(expected.batches[slot.id])[6]
            np.testing.assert_array_equal(
                given.offset[given.rows[slot.id]], given.batches[slot.id].offset
            )


def test_a_number_that_is_too_large_for_its_type_is_no_infinity(spark: SparkSession) -> None:
    batches = through_catalyst(planned(floating), records(floating)).batches
    assert batches[DEAD_LETTER_SLOT].offset.tolist() == [11, 13, 14, 15, 16]


def test_columns_of_the_user_have_no_twin(spark: SparkSession) -> None:
    def filtered(builder: StreamsBuilder) -> None:
        builder.stream("in", key=serdes.string(), value=serdes.string()).filter(
            F.col("value") != ""
        ).to("out")

    found = planned(filtered)
    assert TwinSegment.of(found.segments[0]) is None
