"""Sliding windows as users write them: counts, functions, cogroup, results when windows close."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import EmitStrategy, SlidingWindows, StreamsBuilder, Suppressed, agg, serdes
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()
TEN = SlidingWindows.of_time_difference(10)


def driver_of(made: Callable[[Any], Any]) -> TopologyTestDriver:
    """Of a table made of groups of the topic ``in``; its results go to ``out``."""
    builder = StreamsBuilder()
    table = made(builder.stream("in", key=TEXT, value=LONG).group_by_key())
    table.to_stream().to("out")
    return TopologyTestDriver(builder.build())


def told(driver: TopologyTestDriver, *records: tuple[str, int | None, int]) -> list[Any]:
    """(start, end, value, time) of what each record gives."""
    topic = driver.create_input_topic("in", TEXT, LONG)
    out = driver.create_output_topic("out", serdes.time_windowed(TEXT, 10), LONG)
    found = []
    for record in records:
        topic.pipe_input(*record)
        found.append([(*one.key[1:], one.value, one.timestamp) for one in out.read_records()])
    return found


def test_a_record_goes_into_the_windows_it_is_near_and_makes_its_own() -> None:
    with driver_of(lambda groups: groups.windowed_by(TEN.grace(5)).count(store="n")) as driver:
        assert told(driver, ("a", 1, 20), ("a", 1, 26), ("a", None, 27), ("a", 1, 23)) == [
            [(10, 20, 1, 20)],
            [(21, 31, 1, 26), (16, 26, 2, 26)],
            [],
            [(21, 31, 2, 26), (16, 26, 3, 26), (13, 23, 2, 23), (24, 34, 1, 26)],
        ]
        view = driver.get_window_store("n")
        assert view.fetch("a", 16) == 3
        assert [(key.start, key.end, count) for key, count in view.all()] == [
            (10, 20, 1),
            (13, 23, 2),
            (16, 26, 3),
            (21, 31, 2),
            (24, 34, 1),
        ]


def test_functions_and_built_ins_give_the_same() -> None:
    records = [("a", 3, 4), ("a", 4, 9), ("a", 5, 17), ("b", 6, 17), ("a", 7, 8), ("a", 8, 21)]
    sums: list[Callable[[Any], Any]] = [
        lambda windowed: windowed.reduce(lambda total, value: total + value, store="n"),
        lambda windowed: windowed.aggregate(
            initializer=int,
            aggregator=lambda value, total: total + value,
            returns="bigint",
            store="n",
        ),
        lambda windowed: windowed.aggregate(total=agg.sum("value"), store="n").map_values(
            F.col("value.total")
        ),
    ]
    found = []
    for made in sums:
        with driver_of(partial(_in_windows, made)) as driver:
            found.append(told(driver, *records))
    assert found[0] == found[1] == found[2]
    assert found[0][1] == [(5, 15, 4, 9), (0, 10, 7, 9)], "those before the difference share one"


def _in_windows(made: Callable[[Any], Any], groups: Any) -> Any:
    return made(groups.windowed_by(TEN))


def test_cogrouped_streams_share_their_windows() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(name, key=TEXT, value=LONG) for name in ("in", "right"))
    both = left.group_by_key().cogroup(lambda value, total: total + value)
    both = both.cogroup(right.group_by_key(), lambda value, total: total - value)
    both.windowed_by(TEN).aggregate(int, store="n", returns="bigint").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        assert told(driver, ("a", 5, 20)) == [[(10, 20, 5, 20)]]
        topic = driver.create_input_topic("right", TEXT, LONG)
        topic.pipe_input("a", None, 24)
        topic.pipe_input("a", 2, 25)
        out = driver.create_output_topic("out", serdes.time_windowed(TEXT, 10), LONG)
        assert [(one.key.start, one.value) for one in out.read_records()] == [(21, -2), (15, 3)]


def test_a_window_gives_its_result_when_stream_time_has_passed_its_end_and_grace() -> None:
    def closed(groups: Any) -> Any:
        windows = groups.windowed_by(TEN.grace(5))
        return windows.emit_strategy(EmitStrategy.on_window_close()).count(store="n")

    with driver_of(closed) as driver:
        assert told(driver, ("a", 1, 20), ("b", 1, 25), ("a", 1, 15), ("b", 1, 26)) == [
            [],
            [],
            [],
            [(10, 20, 2, 20)],
        ]


def test_suppress_lets_a_window_out_when_stream_time_has_reached_its_end_and_grace() -> None:
    def closed(groups: Any) -> Any:
        counts = groups.windowed_by(TEN.grace(5)).count(store="n")
        return counts.suppress(Suppressed.until_window_closes(), store="held")

    with driver_of(closed) as driver:
        assert told(driver, ("a", 1, 20), ("b", 1, 24), ("b", 1, 25)) == [
            [],
            [],
            [(10, 20, 1, 20)],
        ]
