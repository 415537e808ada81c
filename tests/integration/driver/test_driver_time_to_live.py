"""Tables whose entries end, through the real segments, steps and stores: results, tombstones,
changelogs, and what reads such a table."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, agg, serdes
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()
RECORDS = [
    ("a", "x", 0),
    ("b", "x", 4),
    ("a", "y", 6),
    ("c", "x", 15),
    ("b", "y", 16),
    ("d", "", 26),
]


def tell(program: Any, records: Any = RECORDS) -> tuple[list[Any], dict[Any, Any], dict[Any, Any]]:
    """The results of the table record by record, its store and its changelog."""
    builder = StreamsBuilder()
    program(builder).to_stream().to("out", value=LONG)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, TEXT)
        topic.pipe_each(records)
        out = driver.create_output_topic("out", TEXT, LONG).read_records()
        return (
            [(one.key, one.value, one.timestamp) for one in out],
            dict(driver.get_key_value_store("s").all()),
            dict(driver.get_key_value_store("s-ttl").all()),
        )


def test_aggregates_reducers_and_tables_end_too() -> None:
    values = {"x": 1, "y": 2, "": 0}

    def number(b: StreamsBuilder) -> Any:
        return b.stream("in", key=TEXT, value=TEXT).map_values(
            lambda value: values[value], returns="bigint"
        )

    def reduced(b: StreamsBuilder) -> Any:
        return number(b).group_by_key().reduce(lambda one, two: one + two, store="s", ttl=10)

    def kept(b: StreamsBuilder) -> Any:
        return number(b).to_table(store="s", ttl=10)

    def summed(b: StreamsBuilder) -> Any:
        table = number(b).group_by_key().aggregate(n=agg.sum("value"), store="s", ttl="10 ms")
        return table.map_values(F.col("value.n"))

    ends = [("b", None, 14), ("a", None, 16), ("c", None, 25), ("b", None, 26)]
    for program in (reduced, kept, summed):
        given, store, _ = tell(program)
        assert [one for one in given if one[1] is None] == ends
        assert list(store) == ["d"]


def test_a_grouped_table_takes_back_what_has_ended() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key=TEXT, value=TEXT, store="s", ttl=10)
    table.group_by(F.col("value"), name="g").count(store="n")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, TEXT).pipe_each(RECORDS[:5])

        assert dict(driver.get_key_value_store("n").all()) == {"x": 1, "y": 1}
