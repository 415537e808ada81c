"""Stateful operators through the real segments, steps and reference stores: null, late and time
rules of reference 1.3 and 1.4."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Windowed,
    serdes,
)
from everflow.dsl.streams import KStream
from everflow.errors import RecordError
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()
VALUE = serdes.json("a string, n int")


def n(value: int | None, a: str = "x") -> dict[str, Any]:
    return {"a": a, "n": value}


def test_a_failing_aggregate_names_its_record() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=LONG).group_by_key()
    grouped.reduce(lambda total, value: total // value, store="s", name="divide").to_stream().to(
        "out"
    )
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, LONG)
        with pytest.raises(RecordError, match="ZeroDivisionError") as failure:
            topic.pipe_batch([("a", 8), ("b", 1), ("a", 0)])
        assert (failure.value.topic, failure.value.offset, failure.value.node) == (
            "in",
            2,
            "divide",
        )
        assert list(driver.get_key_value_store("s").all()) == []


def test_a_column_behind_an_aggregate_and_a_second_aggregate_behind_it() -> None:
    builder = StreamsBuilder()
    counts = (
        builder.stream("in", key=TEXT, value=VALUE).group_by_key().count(store="first").to_stream()
    )
    sizes: KStream = counts.map_values(F.when(F.col("value") > 1, "many").otherwise("one"))
    sizes.group_by(F.col("value"), name="sizes").count(store="second").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic, out = (
            driver.create_input_topic("in", TEXT, VALUE),
            driver.create_output_topic("out", TEXT, LONG),
        )
        topic.pipe_batch([])
        topic.pipe_batch([(None, n(1)), ("a", None)])
        assert out.is_empty(), "batches that change nothing pass through all hops too"
        topic.pipe_each([("a", n(1)), ("b", n(1)), ("a", n(1))])
        assert out.read_key_values() == [("one", 1), ("one", 2), ("many", 1)]
        assert dict(driver.get_key_value_store("first").all()) == {"a": 2, "b": 1}, (
            "changed two hops before the sink"
        )
        assert dict(driver.get_key_value_store("second").all()) == {"one": 2, "many": 1}


def test_a_windowed_key_has_one_form_in_functions_and_their_results_outputs_and_views() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE)
    table = stream.group_by_key().windowed_by(TimeWindows.of_size(10)).count(store="w")
    counts = table.to_stream().filter(lambda window, count: window.start < 30)
    key_type = "key string, start bigint, end bigint"
    value_type = f"window struct<{key_type}>, n bigint"
    counts.map(
        lambda window, count: (
            window._replace(key=window.key.upper()),
            {"window": window, "n": count},
        ),
        returns=(serdes.time_windowed(TEXT, 10), value_type),
    ).to("mapped")
    twice = counts.flat_map(
        lambda window, count: [(window, count)] * 2, returns=(key_type, "bigint")
    )
    twice.to("twice", key=serdes.json(key_type))
    counts.to(lambda window, count: f"from-{window.start}")
    again = counts.group_by_key().aggregate(
        store="longest",
        initializer=lambda: None,
        aggregator=lambda window, n, _: window.end - window.start,
        returns="bigint",
    )
    again.to_stream().to("lengths")
    nested = (
        counts.group_by_key().windowed_by(SessionWindows.of_inactivity_gap(5)).count(store="nested")
    )
    nested.filter(lambda outer, count: outer.key.key == "a").to_stream().to("nested")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, VALUE).pipe_batch(
            [("a", n(1), 1), ("a", n(1), 2), ("a", n(1), 31)]
        )
        key, window = serdes.time_windowed(TEXT, 10), Windowed("a", 0, 10)
        mapped = driver.create_output_topic(
            "mapped", key, serdes.json(value_type)
        ).read_key_values()
        assert mapped == [(Windowed("A", 0, 10), {"window": window._asdict(), "n": 2})]
        read_twice = driver.create_output_topic(
            "twice", serdes.json(key_type), LONG
        ).read_key_values()
        assert read_twice == [(window._asdict(), 2)] * 2, "a topic in JSON has what JSON has"
        assert driver.create_output_topic("from-0", key, LONG).read_table() == {window: 2}
        assert driver.create_output_topic("lengths", key, LONG).read_table() == {window: 10}
        assert dict(driver.get_key_value_store("longest").all()) == {window: 10}
        sessions = driver.create_output_topic(
            "nested", serdes.session_windowed(key), LONG
        ).read_table()
        assert sessions == {Windowed(window, 2, 2): 1}
        assert dict(driver.get_window_store("w").all()) == {Windowed("a", 30, 40): 1}
