"""Filters of tables without a store: no deletion of what was never visible, as in Kafka Streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import KTable, StreamsBuilder, Suppressed, TimeWindows, serdes
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT = serdes.string()
FIRST = [("a", "x", 1), ("a", "xy", 2), ("a", "x", 3), ("b", None, 4), ("b", "xy", 5)]
THEN = [("b", None, 6), ("a", None, 7), ("a", None, 8), ("c", "x", 9)]


def has(letter: str) -> Any:
    return F.contains(F.col("value"), F.lit(letter))


def told(make: Callable[[KTable], KTable], every: bool) -> list[list[tuple[Any, Any]]]:
    """What the two batches give."""
    builder = StreamsBuilder()
    make(builder.table("in", key=TEXT, value=TEXT, store="s")).to_stream().to("out")
    found = []
    with TopologyTestDriver(builder.build(), emit_every_update=every) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        out = driver.create_output_topic("out", TEXT, TEXT)
        for records in (FIRST, THEN):
            driver.pipe_batch({topic: records})
            found.append(out.read_key_values())
        stored = driver.get_key_value_store("s")
        assert dict(stored.all()) == {"c": "x"}
    return found


FILTERS: dict[str, Callable[[KTable], KTable]] = {
    "a Column": lambda table: table.filter(has("y")),
    "a function": lambda table: table.filter(lambda value: "y" in value),
    "the other half": lambda table: table.filter_not(~has("y")),
    "filters behind one another": lambda table: table.filter(has("x")).filter_not(
        lambda key, value: "y" not in value
    ),
}


@pytest.mark.parametrize("filters", FILTERS)
def test_what_was_never_visible_is_not_deleted(filters: str) -> None:
    make = FILTERS[filters]
    every = [[("a", "xy"), ("a", None), ("b", "xy")], [("b", None)]]
    assert told(make, every=True) == every
    assert told(make, every=False) == [[("b", "xy")], [("b", None)]]
    # With a store it is the same.
    stored = told(lambda table: make(table).map_values(F.col("value"), store="kept"), every=True)
    assert stored == every


def test_a_mapper_before_a_filter_is_asked_what_the_entry_was() -> None:
    found = told(
        lambda table: (
            table.map_values(F.concat("value", F.lit("-")))
            .map_values(lambda value: value + "z", returns="string")
            .filter(has("y"))
            .map_values(F.upper("value"))
            .filter(lambda value: value.endswith("-Z"))
        ),
        every=True,
    )
    assert found == [[("a", "XY-Z"), ("a", None), ("b", "XY-Z")], [("b", None)]]


def test_final_results_that_fail_are_not_deleted() -> None:
    builder = StreamsBuilder()
    counts = (
        builder.stream("in", key=TEXT, value=TEXT)
        .group_by_key()
        .windowed_by(TimeWindows.of_size(10))
        .count(store="counts")
        .suppress(Suppressed.until_window_closes(), store="final")
    )
    counts.filter(F.col("value") > 1).to_stream().select_key(F.col("key.key")).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        for key, time in [("a", 1), ("b", 2), ("b", 3), ("z", 99)]:
            topic.pipe_input(key, "v", timestamp=time)
        out = driver.create_output_topic("out", TEXT, serdes.long())
        assert out.read_key_values() == [("b", 2)]


def test_an_aggregate_that_was_never_visible_is_not_deleted() -> None:
    builder = StreamsBuilder()
    counts = builder.stream("in", key=TEXT, value=TEXT).group_by_key().count(store="counts")
    counts.filter(F.col("value") > 1).to_stream().to("out")
    topology = builder.build()
    assert "KTABLE-FILTER-" in topology.describe()
    with TopologyTestDriver(topology) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        out = driver.create_output_topic("out", TEXT, serdes.long())
        topic.pipe_input("a", "v")
        assert out.read_key_values() == []
        topic.pipe_input("a", "v")
        assert out.read_key_values() == [("a", 2)]
