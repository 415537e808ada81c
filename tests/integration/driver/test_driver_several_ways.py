"""Several results of one record that come to one place by several ways: result by result, as Kafka
Streams forwards (note 031)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    BufferConfig,
    KStream,
    Materialized,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT = serdes.string()


def words(builder: StreamsBuilder) -> KStream:
    return builder.stream("in", key=TEXT, value=TEXT).flat_map_values(
        lambda value: value.split(), returns="string"
    )


def told(topology: Topology, *records: tuple[Any, Any, int]) -> list[tuple[Any, Any]]:
    with TopologyTestDriver(topology, emit_every_update=True) as driver:
        driver.pipe_batch({driver.create_input_topic("in", TEXT, TEXT): list(records)})
        return driver.create_output_topic("out", TEXT, TEXT).read_key_values()


WAYS: dict[str, Callable[[KStream], KStream]] = {
    "functions": lambda stream: stream.map_values(lambda v: v + "!", returns="string"),
    "Columns": lambda stream: stream.map_values(F.concat("value", F.lit("!"))),
    "a step behind a Column behind a step": lambda stream: stream.map_values(
        F.concat("value", F.lit("!"))
    ).peek(lambda key, value: None),
    "several steps": lambda stream: (
        stream.map_values(F.concat("value", F.lit("?")))
        .map_values(lambda v: v[:-1], returns="string")
        .map_values(F.concat("value", F.lit("!")))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_result_goes_all_its_ways_before_the_next_one(way: str) -> None:
    builder = StreamsBuilder()
    stream = words(builder)
    WAYS[way](stream).merge(stream).map_values(lambda v: v + ".", returns="string").to("out")
    found = told(builder.build(), ("a", "x y", 1), ("b", "z", 2))
    assert found == [
        ("a", "x!."),
        ("a", "x."),
        ("a", "y!."),
        ("a", "y."),
        ("b", "z!."),
        ("b", "z."),
    ]


@pytest.mark.parametrize("history", [None, "1 hour"])
def test_each_result_meets_the_table_as_it_has_made_it(history: str | None) -> None:
    builder = StreamsBuilder()
    stream = words(builder)
    table = stream.to_table(store=Materialized("s", history=history) if history else "s")
    both = F.concat("left", F.lit("&"), "right")
    stream.join(table, both).to("out")
    assert told(builder.build(), ("a", "x y", 1)) == [("a", "x&x"), ("a", "y&y")]


@pytest.mark.parametrize("history", [None, "1 hour"])
def test_a_table_has_an_entry_before_those_behind_it_ask(history: str | None) -> None:
    """The view's change comes to the join first; by then the table has its entry."""
    builder = StreamsBuilder()
    table = words(builder).to_table(store=Materialized("s", history=history) if history else "s")
    view = table.map_values(F.concat("value", F.lit("'")), store="view")
    both = F.concat("left", F.lit("&"), "right")
    table.join(view, both).to_stream().to("out")
    found = told(builder.build(), ("a", "x y", 1))
    assert found == [("a", "x&x'"), ("a", "x&x'"), ("a", "y&y'"), ("a", "y&y'")]


def test_nothing_is_late_because_of_its_neighbours() -> None:
    """Both entries go out with the last record; the second one's time closes the first one's
    window."""
    builder = StreamsBuilder()
    entries = (
        builder.table("in", key=TEXT, value=TEXT, store="s")
        .suppress(Suppressed.until_time_limit(50, BufferConfig.max_records(9)), store="b")
        .to_stream()
    )
    counts = (
        entries.group_by_key()
        .windowed_by(SlidingWindows(5, 100))
        .count(store="counts")
        .to_stream()
        .map(lambda key, count: (key.key, str(count)), returns=("string", "string"))
    )
    windows = counts.merge(entries).group_by_key(name="again").windowed_by(TimeWindows(10, 10, 0))
    last = windows.reduce(lambda one, other: f"{one}+{other}", store="last")
    last.to_stream().map(lambda key, value: (key.key, value), returns=("string", "string")).to(
        "out"
    )
    found = told(builder.build(), ("a", "x", 100), ("b", "y", 140), ("c", "z", 400))
    assert found == [("a", "1"), ("a", "1+x"), ("b", "1"), ("b", "1+y")]
