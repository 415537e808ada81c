"""Catalyst writes the JSON that the serde writes, so that it does not matter where a value is
serialised."""

from __future__ import annotations

import datetime as dt
import decimal

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.testing.topology_test_driver import TopologyTestDriver

pytestmark = pytest.mark.spark
TYPE = (
    "s string, n bigint, f double, b boolean, at timestamp, day date, m decimal(9,2), raw binary, "
    "l array<int>, "
    "o struct<x int>, d map<string,int>"
)
FULL = {
    "s": 'é "quoted" \\ \n',
    "n": 2**53 + 1,
    "f": 1.5,
    "b": False,
    "at": dt.datetime(2024, 1, 31, 12, 0, 0, 250, dt.timezone.utc),
    "day": dt.date(2024, 2, 29),
    "m": decimal.Decimal("12.30"),
    "raw": b"\x00\xff",
    "l": [1, None, 3],
    "o": {"x": None},
    "d": [("k", 1)],
}
VALUES = [FULL, dict.fromkeys(FULL), None]


def test_catalyst_and_the_serde_write_the_same_bytes() -> None:
    serde = serdes.json(TYPE)
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serde)
    stream.filter(F.lit(True)).to("catalyst")
    stream.peek(lambda v: None).to("step")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", serdes.string(), serde).pipe_batch(
            [("k", value) for value in VALUES]
        )
        found = [
            driver.create_output_topic(t, serdes.string(), serdes.bytes_()).read_records()
            for t in ("catalyst", "step")
        ]
    for value, left, right in zip(VALUES, *found, strict=True):
        assert left.value == right.value == serde.encode(value)


def test_javas_short_boolean_float_and_lists_go_through_columns_functions_and_stores() -> None:
    """As keys and values of topics, and in a table and its changelog, in the bytes that Java
    writes."""
    short, floats, truth = serdes.short(), serdes.list_(serdes.float_()), serdes.boolean()
    builder = StreamsBuilder()
    lists = builder.table("in", key=short, value=floats, store="lists")
    lists.to_stream().map_values(F.size("value") > 1).to("long", value=truth)
    first = lists.to_stream().map_values(lambda value: value[0], returns=serdes.float_())
    first.filter(F.col("key") < 0).to("first")
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        given = driver.create_input_topic("in", short, floats)
        given.pipe_batch([(-2, [1.5, None]), (258, [0.25]), (-2, [0.5])])
        raw = serdes.bytes_()
        told = {
            topic: dict(driver.create_output_topic(topic, raw, raw).read_key_values())
            for topic in ("app-lists-changelog", "long", "first")
        }
        assert dict(driver.get_key_value_store("lists").all()) == {-2: [0.5], 258: [0.25]}
    minus_two, other = b"\xff\xfe", b"\x01\x02"
    one = b"\x00" + b"\x00" * 4 + b"\x00\x00\x00\x01"
    assert told["app-lists-changelog"] == {
        minus_two: one + b"\x3f\x00\x00\x00",
        other: one + b"\x3e\x80\x00\x00",
    }
    assert told["long"] == {minus_two: b"\x00", other: b"\x00"}
    assert told["first"] == {minus_two: b"\x3f\x00\x00\x00"}
