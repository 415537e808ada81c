"""Sliding windows as users write them: counts, functions, cogroup, results when windows close."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everflow import EmitStrategy, SlidingWindows, StreamsBuilder, Suppressed, serdes
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
        assert told(driver, ("a", 1, 20), ("b", 1, 24), ("b", 1, 25)) == [[], [], [(10, 20, 1, 20)]]
