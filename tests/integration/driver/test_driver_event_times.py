"""The test driver with ``stream.time=lowest`` (note 076)."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    LogAndSkipOnInvalidTimestamp,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    agg,
    serdes,
)
from everflow.errors import RecordTimeError, TopologyError
from everflow.records import LATE
from everflow.testing import TopologyTestDriver

TEXT, LONG = serdes.string(), serdes.long()


def counted() -> Any:
    builder = StreamsBuilder()
    sales = builder.stream("sales", key=TEXT, value=LONG)
    by = sales.select_key(lambda key, value: str(value % 2), returns="string").group_by_key(
        name="by"
    )
    windows = by.windowed_by(TimeWindows.of_size(10).grace(5)).count(store="counts")
    final = windows.suppress(Suppressed.until_window_closes(), store="held").to_stream()
    texts = final.map(lambda key, value: (str(key), str(value)), returns=("string", "string"))
    texts.to("out", key=TEXT, value=TEXT)
    return builder.build()


@pytest.fixture(scope="module")
def driver() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(
        counted(), partitions=2, stream_time="lowest", stream_time_idle_ms=1_000
    ) as found:
        yield found


def results(driver: TopologyTestDriver) -> list[tuple[Any, Any]]:
    out = driver.create_output_topic("out", TEXT, TEXT)
    return [(one.key, one.value) for one in out.read_records()]


def test_a_window_closes_when_the_slowest_partition_is_past_it(driver: TopologyTestDriver) -> None:
    driver.reset()
    sales = driver.create_input_topic("sales", TEXT, LONG)
    sales.pipe_input("a", 1, 1, partition=0)
    sales.pipe_input("a", 1, 1_000, partition=0)
    assert results(driver) == []
    sales.pipe_input("b", 1, 2, partition=1)
    assert results(driver) == []
    sales.pipe_input("b", 1, 500, partition=1)
    assert results(driver) == [("Windowed(key='1', start=0, end=10)", "2")]


def test_a_silent_partition_is_waited_for_so_long(driver: TopologyTestDriver) -> None:
    driver.reset()
    sales = driver.create_input_topic("sales", TEXT, LONG)
    sales.pipe_input("b", 1, 2, partition=1)
    driver.advance_wall_clock_time(900)
    sales.pipe_input("a", 1, 1, partition=0)
    sales.pipe_input("a", 1, 1_000, partition=0)
    driver.advance_wall_clock_time(99)
    assert results(driver) == []
    driver.advance_wall_clock_time(1)
    assert results(driver) == [("Windowed(key='1', start=0, end=10)", "2")]


def test_a_partition_that_never_had_a_record_is_waited_for_so_long(
    driver: TopologyTestDriver,
) -> None:
    driver.reset()
    sales = driver.create_input_topic("sales", TEXT, LONG)
    sales.pipe_input("a", 1, 1, partition=0)
    sales.pipe_input("a", 1, 1_000, partition=0)
    assert results(driver) == []
    driver.advance_wall_clock_time(1_000)
    assert results(driver) == [("Windowed(key='1', start=0, end=10)", "1")]


def test_one_that_lags_behind_the_grace_loses_nothing(driver: TopologyTestDriver) -> None:
    driver.reset()
    sales = driver.create_input_topic("sales", TEXT, LONG)
    for time in range(0, 1_000, 10):
        sales.pipe_input("a", 1, time, partition=0)
    for time in range(0, 1_000, 10):
        sales.pipe_input("b", 1, time + 1, partition=1)
        assert LATE not in {one for of in driver._result.dropped.values() for one in of}
    assert [count for _, count in results(driver)] == ["2"] * 98


# --- bad records among those that are held back ---------------------------------------------------

MOST = Decimal("9" * 38)
SUMS = serdes.json("x decimal(38,0)")


def sums() -> Any:
    """A sum behind a new key; no error of it names a record."""
    builder = StreamsBuilder()
    sales = builder.stream("sales", key=TEXT, value=SUMS)
    by = sales.select_key(lambda key, value: "all", returns="string").group_by_key(name="by")
    totals = by.aggregate(total=agg.sum("value.x"), store="totals")
    totals.to_stream().map_values(F.col("value.total").cast("string")).to("out", value=TEXT)
    return builder.build()


@pytest.mark.parametrize("bad", [1, 14])
def test_a_bad_record_among_those_that_are_held_back_hurts_only_itself(bad: int) -> None:
    """With 14 of them the batch is halved."""
    with TopologyTestDriver(
        sums(), partitions=2, stream_time="lowest", dead_letter_topic="dead"
    ) as driver:
        sales = driver.create_input_topic("sales", TEXT, SUMS)
        out = driver.create_output_topic("out", TEXT, TEXT)
        dead = driver.create_output_topic("dead", TEXT, SUMS)

        def piped(x: object, time: int, partition: int) -> None:
            sales.pipe_input("k", {"x": x}, time, partition=partition)

        piped(1, 1, 1)
        for n in range(bad):
            piped(n, 20 + 2 * n, 0)
            piped(MOST, 21 + 2 * n, 0)
        piped(MOST, 1_000, 0)
        assert dead.read_records() == []
        piped(5, 22, 1)
        piped(7, 100, 1)
        assert [one.timestamp for one in dead.read_records()] == [21 + 2 * n for n in range(bad)]
        assert out.read_records()[-1].value == str(1 + sum(range(bad)) + 5 + 7)
        piped(9, 2_000, 1)
        assert [one.timestamp for one in dead.read_records()] == [1_000]


# --- wrong times ----------------------------------------------------------------------------------

DAY_MS = 86_400_000
NOW_MS = 100 * DAY_MS
AHEAD = [NOW_MS + DAY_MS, NOW_MS * 1_000]
"""A clock that is a day ahead, and microseconds."""


def sales_of_windows(idle: str | None = None) -> Any:
    """Counts per window and, behind a new key, the same."""
    builder = StreamsBuilder()
    sales = builder.stream("sales", key=TEXT, value=LONG, idle_advance=idle)
    windows = TimeWindows.of_size(1_000).grace(1_000)
    by = sales.select_key(lambda key, value: "all", returns="string").group_by_key(name="by")
    for groups, store in ((sales.group_by_key(), "alone"), (by, "all")):
        counts = groups.windowed_by(windows).count(store=store).to_stream()
        texts = counts.map(lambda key, n: (str(key), str(n)), returns=("string", "string"))
        texts.to(store, key=TEXT, value=TEXT)
    return builder.build()


def counts_of(driver: TopologyTestDriver, topic: str) -> dict[int, int]:
    """The last count of each window, by its start."""
    read = driver.create_output_topic(topic, TEXT, TEXT).read_records()
    return {int(one.key.split("start=")[1].split(",")[0]): int(one.value) for one in read}


@pytest.mark.parametrize(
    ("rule", "idle", "alone"), [("highest", "5 seconds", 1), ("lowest", None, 2)]
)
def test_what_comes_behind_a_silence_may_be_late(rule: str, idle: str | None, alone: int) -> None:
    """With ``lowest`` only behind a new key: its own partition it cannot be late in."""
    with TopologyTestDriver(
        sales_of_windows(idle), partitions=2, stream_time=rule, stream_time_idle_ms=5_000
    ) as driver:
        sales = driver.create_input_topic("sales", TEXT, LONG)
        sales.pipe_input("b", 1, 2, partition=1)
        driver.advance_wall_clock_time(4_999)
        sales.pipe_input("a", 1, 9_000, partition=0)
        driver.advance_wall_clock_time(1)
        sales.pipe_input("b", 1, 3, partition=1)
        assert counts_of(driver, "alone") == {0: alone, 9_000: 1}
        assert counts_of(driver, "all") == {0: 1, 9_000: 1}


@pytest.mark.parametrize("ahead", AHEAD, ids=["a day ahead", "microseconds"])
@pytest.mark.parametrize("rule", ["highest", "lowest"])
def test_a_record_of_a_fast_clock_closes_no_windows_with_a_bound(rule: str, ahead: int) -> None:
    with TopologyTestDriver(
        sales_of_windows(),
        stream_time=rule,
        initial_wall_clock_ms=NOW_MS,
        max_event_time_ahead=500,
    ) as driver:
        sales = driver.create_input_topic("sales", TEXT, LONG)
        sales.pipe_input("a", 1, NOW_MS)
        sales.pipe_batch([("a", 1, ahead), ("a", 1, NOW_MS + 10)])
        sales.pipe_input("a", 1, NOW_MS + 20)
        driver.advance_wall_clock_time(30_000)
        assert counts_of(driver, "alone") == {NOW_MS: 4}
        assert counts_of(driver, "all") == {NOW_MS: 4}


@pytest.mark.parametrize("ahead", AHEAD, ids=["a day ahead", "microseconds"])
@pytest.mark.parametrize(("rule", "counted"), [("highest", 1), ("lowest", 3)])
def test_without_a_bound_it_closes_them_unless_other_partitions_go_on(
    rule: str, counted: int, ahead: int
) -> None:
    with TopologyTestDriver(
        sales_of_windows(), partitions=2, stream_time=rule, initial_wall_clock_ms=NOW_MS
    ) as driver:
        sales = driver.create_input_topic("sales", TEXT, LONG)
        sales.pipe_input("b", 1, NOW_MS, partition=1)
        sales.pipe_input("a", 1, ahead, partition=0)
        for ms in (10, 5_000):
            sales.pipe_input("a", 1, NOW_MS + ms, partition=0)
            sales.pipe_input("b", 1, NOW_MS + ms, partition=1)
        assert counts_of(driver, "all")[NOW_MS] == counted


def test_a_source_may_say_that_its_times_are_microseconds() -> None:
    builder = StreamsBuilder()
    micros = F.timestamp_micros("timestamp")
    builder.stream("sales", key=TEXT, value=LONG, timestamp=micros).to("out")
    with TopologyTestDriver(builder.build(), stream_time="lowest") as driver:
        driver.create_input_topic("sales", TEXT, LONG).pipe_input("a", 1, NOW_MS * 1_000)
        (found,) = driver.create_output_topic("out", TEXT, LONG).read_records()
    assert found.timestamp == NOW_MS


def test_records_without_times_are_waited_for_as_if_there_were_none() -> None:
    with TopologyTestDriver(
        sales_of_windows(),
        partitions=2,
        stream_time="lowest",
        stream_time_idle_ms=1_000,
        default_timestamp_extractor=LogAndSkipOnInvalidTimestamp(),
    ) as driver:
        sales = driver.create_input_topic("sales", TEXT, LONG)
        for n in range(4):
            sales.pipe_input("b", 1, -1, partition=1)
            sales.pipe_input("a", 1, 1_000 * n, partition=0)
            driver.advance_wall_clock_time(300)
        assert counts_of(driver, "all") == {0: 1, 1_000: 1, 2_000: 1, 3_000: 1}


def test_a_topic_without_times_stops_the_instance_with_the_record() -> None:
    with TopologyTestDriver(sales_of_windows(), stream_time="lowest") as driver:
        sales = driver.create_input_topic("sales", TEXT, LONG)
        sales.pipe_input("a", 1, 7)
        with pytest.raises(RecordTimeError) as raised:
            sales.pipe_input("a", 1, -1)
    assert raised.value.code == "EF-RECORD-TIME"
    assert "sales-0@1" in str(raised.value)


def test_nanoseconds_are_a_bad_record_and_move_nothing() -> None:
    with TopologyTestDriver(
        sales_of_windows(), stream_time="lowest", dead_letter_topic="dead"
    ) as driver:
        sales = driver.create_input_topic("sales", TEXT, LONG)
        sales.pipe_batch([("a", 1, 7), ("a", 1, 10**18), ("a", 1, 8)])
        driver.advance_wall_clock_time(30_000)
        assert counts_of(driver, "all") == {0: 2}
        letters = driver.create_output_topic("dead", TEXT, LONG).read_records()
        assert [dict(one.headers)["__streams.errors.offset"] for one in letters] == [b"1"]


def test_what_goes_by_offsets_is_refused_behind_a_re_key() -> None:
    builder = StreamsBuilder()
    counts = (
        builder.stream("sales", key=TEXT, value=LONG)
        .select_key(lambda key, value: key, returns="string")
        .group_by_key(name="by")
        .count(store="counts")
    )
    counts.to_stream().for_each_batch(lambda rows: None, name="rows")
    with pytest.raises(TopologyError, match="repartition"):
        TopologyTestDriver(builder.build(), stream_time="lowest")


def test_another_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="lowest"):
        TopologyTestDriver(counted(), stream_time="least")
