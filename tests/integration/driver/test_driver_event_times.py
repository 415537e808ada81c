"""The test driver with ``stream.time=lowest`` (note 076)."""

from collections.abc import Iterator
from typing import Any

import pytest

from everflow import StreamsBuilder, Suppressed, TimeWindows, serdes
from everflow.errors import TopologyError
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
