"""Where a record's time comes from, through the real segments and steps."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    RecordContext,
    StreamsBuilder,
    TimeWindows,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
    serdes,
)
from everflow.errors import RecordError, RecordTimeError
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT = serdes.string()
VALUE = serdes.json("at bigint, day timestamp, n int")
SEEN = serdes.json("time bigint, n int")


def rule(key: str, value: dict[str, Any], record: RecordContext, partition_time: int) -> int:
    """The value's time, else one more than the partition's, else the one that is a header."""
    if value["at"] is not None:
        return int(value["at"])
    return int(dict(record.headers).get("at") or partition_time + 1)


def seen(
    timestamp: Any, rows: list[tuple[int | None, int]], default: Any = None
) -> list[tuple[int, int, int]]:
    """(n, the time that a Column sees, the time of the result) for records (at, time)."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE, timestamp=timestamp)
    fields = F.struct(F.col("timestamp").alias("time"), F.col("value.n").alias("n"))
    stream.map_values(fields).to("out", value=SEEN)
    with TopologyTestDriver(
        builder.build(), default_timestamp_extractor=default, initial_wall_clock_ms=77
    ) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_batch([("k", {"at": at, "n": n}, time) for n, (at, time) in enumerate(rows)])
        out = driver.create_output_topic("out", TEXT, SEEN)
        return [(one.value["n"], one.value["time"], one.timestamp) for one in out.read_records()]


ROWS = [(50, 5), (-1, 6), (None, -7), (40, 8)]


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        pytest.param(
            lambda: F.coalesce("value.at", F.lit(3)),
            [(0, 50, 50), (2, 3, 3), (3, 40, 40)],
            id="column",
        ),
        pytest.param(
            lambda: F.timestamp_millis(F.coalesce("value.at", F.lit(3))),
            [(0, 50, 50), (2, 3, 3), (3, 40, 40)],
            id="timestamp",
        ),
        pytest.param(
            lambda: F.coalesce("value.n", F.lit(3)), [(n, n, n) for n in range(4)], id="int"
        ),
        pytest.param(lambda: rule, [(0, 50, 50), (2, 51, 51), (3, 40, 40)], id="function"),
        pytest.param(
            lambda: lambda value: value["at"] or 9,
            [(0, 50, 50), (2, 9, 9), (3, 40, 40)],
            id="of the value",
        ),
        pytest.param(
            lambda: LogAndSkipOnInvalidTimestamp,
            [(0, 5, 5), (1, 6, 6), (3, 8, 8)],
            id="skip",
        ),
        pytest.param(
            lambda: UsePartitionTimeOnInvalidTimestamp(),
            [(0, 5, 5), (1, 6, 6), (2, 6, 6), (3, 8, 8)],
            id="partition time",
        ),
        pytest.param(
            lambda: WallclockTimestampExtractor(), [(n, 77, 77) for n in range(4)], id="wall clock"
        ),
    ],
)
def test_columns_and_results_have_the_time_that_is_said(timestamp: Any, expected: Any) -> None:
    StreamsBuilder()
    assert seen(timestamp(), ROWS) == expected


def test_a_negative_time_stops_and_names_the_record_and_the_ways_on() -> None:
    for timestamp, default in (
        (None, None),
        (FailOnInvalidTimestamp(), LogAndSkipOnInvalidTimestamp()),
    ):
        with pytest.raises(RecordTimeError) as raised:
            seen(timestamp, ROWS, default)
        assert "negative, -7 ms (record in-0@2)" in str(raised.value)
        assert "timestamp=LogAndSkipOnInvalidTimestamp()" in str(raised.value)
        assert raised.value.code == "EF-RECORD-TIME"


def test_the_default_is_for_sources_that_say_nothing() -> None:
    skip = LogAndSkipOnInvalidTimestamp()
    assert [n for n, _, _ in seen(None, ROWS, skip)] == [0, 1, 3]
    assert [time for _, time, _ in seen(WallclockTimestampExtractor(), ROWS, skip)] == [77] * 4


@pytest.mark.parametrize(
    ("timestamp", "rows", "says"),
    [
        (
            lambda: F.col("value.at"),
            ROWS,
            r"timestamp=.*NULL.*F\.col\('timestamp'.*in-0@2",
        ),
        (lambda: lambda value: value["at"], ROWS, r"negative.*in-0@2"),
        (lambda: lambda value: 2**70, ROWS, r"divide.*in-0@0"),
        (lambda: lambda value: "now", ROWS, r"'now'.*number"),
        (lambda: lambda value: 1 / 0, ROWS, r"ZeroDivisionError.*in-0@0"),
        (
            lambda: lambda value: __import__("datetime").datetime(2026, 1, 1),
            ROWS,
            r"since 1970: int\(time\.timestamp\(\) \* 1000\)",
        ),
        (lambda: F.col("value.n") * 10**18, ROWS[:1] * 3, "divide them"),
        (
            lambda: UsePartitionTimeOnInvalidTimestamp(),
            ROWS[2:],
            r"partition.*in-0@0",
        ),
    ],
)
def test_an_extractor_without_an_answer_stops_and_names_the_record(
    timestamp: Any, rows: Any, says: str
) -> None:
    StreamsBuilder()
    with pytest.raises((RecordError, RecordTimeError), match=says):
        seen(timestamp(), rows)


def test_windows_tables_and_what_is_re_keyed_go_by_the_time_that_is_said() -> None:
    builder = StreamsBuilder()
    at = F.col("value.at")
    stream = builder.stream("in", key=TEXT, value=VALUE, timestamp=at)
    stream.group_by(F.col("value.n").cast("string"), name="by-n").windowed_by(
        TimeWindows.of_size(10)
    ).count(store="counts").to_stream().to("windows")
    times = F.coalesce(at, F.col("timestamp"))
    table = builder.table("table", key=TEXT, value=VALUE, store="t", timestamp=times)
    table.to_stream().to("changes", value=VALUE)
    window = serdes.time_windowed(TEXT, 10)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_batch([("k", {"at": 25, "n": 1}, 1), ("k", {"at": 12, "n": 2}, 90)])
        counts = driver.create_output_topic("windows", window, serdes.long()).read_records()
        assert [(one.key.start, one.timestamp) for one in counts] == [(20, 25)], "12 is late"
        by_n = driver.create_output_topic(
            "topology-test-driver-by-n-repartition", TEXT, serdes.bytes_()
        )
        assert [one.timestamp for one in by_n.read_records()] == [25, 12]
        tables = driver.create_input_topic("table", TEXT, VALUE)
        tables.pipe_input("k", {"at": 30, "n": 1}, 1)
        stored = driver.get_key_value_store("t").get_with_timestamp("k")
        assert stored is not None
        assert stored.timestamp == 30
        tables.pipe_input("k", None, 31)
        changes = driver.create_output_topic("changes", TEXT, VALUE).read_records()
        assert [one.timestamp for one in changes] == [30, 31]


def test_inputs_of_a_task_are_merged_by_the_times_that_are_said() -> None:
    builder = StreamsBuilder()
    at = F.col("value.at")
    one = builder.stream("one", key=TEXT, value=VALUE, timestamp=at)
    two = builder.stream("two", key=TEXT, value=VALUE, timestamp=at)
    one.merge(two).to("out", value=VALUE)
    with TopologyTestDriver(builder.build()) as driver:
        topics = [driver.create_input_topic(name, TEXT, VALUE) for name in ("one", "two")]
        rows = [[(1, 9), (4, 8)], [(2, 1), (3, 0), (5, 2)]]
        driver.pipe_batch(
            {
                topic: [("k", {"at": at, "n": 0}, time) for at, time in listed]
                for topic, listed in zip(topics, rows, strict=True)
            }
        )
        out = driver.create_output_topic("out", TEXT, VALUE).read_records()
    assert [record.timestamp for record in out] == [1, 2, 3, 4, 5]


def test_a_header_says_the_time() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=VALUE, timestamp=rule).to("out", value=VALUE)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_input("k", {"at": None, "n": 1}, 5, headers=[("at", b"123")])
        (record,) = driver.create_output_topic("out", TEXT, VALUE).read_records()
    assert record.timestamp == 123
