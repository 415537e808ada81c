"""Global tables in the test driver: filled at once, looked up by a key that is made of a record."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, TopologyError, serdes
from everflow.errors import RecordError
from everflow.testing import TopologyTestDriver
from everflow.topology.describe import as_json, as_mermaid

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()
ORDER = serdes.json("who string, n bigint")
CITY = serdes.json("city string")


@pytest.mark.parametrize("column", [True, False])
def test_a_column_and_a_function_look_up_the_same(column: bool) -> None:
    builder = StreamsBuilder()
    on: Any = F.col("value.who") if column else lambda order: order["who"]
    orders = builder.stream("orders", key=TEXT, value=ORDER)
    cities = builder.global_table("cities", key=TEXT, value=CITY, store="cities")
    orders.join(cities, on=on, n=F.col("left.n"), city=F.col("right.city")).to("inner")
    orders.left_join(
        cities,
        lambda key, mapped, order, city: f"{key} {mapped} {order['n']} {(city or {}).get('city')}",
        on=on,
        returns="string",
    ).to("left")
    with TopologyTestDriver(builder.build()) as driver:
        order = driver.create_input_topic("orders", TEXT, ORDER)
        city = driver.create_input_topic("cities", TEXT, CITY)
        city.pipe_input("ann", {"city": "Rome"})
        driver.pipe_batch(
            {
                order: [
                    ("1", {"who": "ann", "n": 1}),
                    ("2", {"who": "bob", "n": 2}),
                    ("3", {"who": None, "n": 3}),
                    (None, {"who": None, "n": 4}),
                    (None, {"who": "ann", "n": 5}),
                    ("6", None),
                ],
                # In the same batch: it is there for all of them.
                city: [("bob", {"city": "Oslo"})],
            }
        )
        inner = driver.create_output_topic("inner", TEXT, serdes.json("n bigint, city string"))
        assert [(key, *value.values()) for key, value in inner.read_key_values()] == [
            ("1", 1, "Rome"),
            ("2", 2, "Oslo"),
            (None, 5, "Rome"),
        ]
        left = driver.create_output_topic("left", TEXT, TEXT)
        assert [value for _, value in left.read_key_values()] == [
            "1 ann 1 Rome",
            "2 bob 2 Oslo",
            "3 None 3 None",
            "None None 4 None",
            "None ann 5 Rome",
        ]
        city.pipe_input("ann", None)
        order.pipe_input("7", {"who": "ann", "n": 7})
        assert inner.read_key_values() == []
        assert dict(driver.get_key_value_store("cities").all()) == {"bob": {"city": "Oslo"}}
        driver.reset()
        assert dict(driver.get_key_value_store("cities").all()) == {}
        assert driver.produced_topics() == set()


def test_the_key_stays_and_headers_and_times_are_the_records() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("s", key=TEXT, value=LONG)
    table = builder.global_table("g", key=LONG, value=TEXT, store="g")
    joined = stream.join(table, F.col("right"), on=F.col("value") + 1)
    joined.group_by_key().count(store="counts")  # needs no repartition topic: the key is the same
    joined.to("out")
    topology = builder.build()
    assert topology.repartition_topics == ()
    with TopologyTestDriver(topology) as driver:
        driver.create_input_topic("g", LONG, TEXT).pipe_input(3, "three", timestamp=99)
        driver.create_input_topic("s", TEXT, LONG).pipe_input(
            "k", 2, timestamp=7, headers=(("h", b"1"),)
        )
        found = driver.create_output_topic("out", TEXT, TEXT).read_record()
    assert (found.key, found.value, found.timestamp, tuple(found.headers)) == (
        "k",
        "three",
        7,
        (("h", b"1"),),
    )


def test_records_that_cannot_be_read_are_dead_letters_or_stop_the_driver() -> None:
    builder = StreamsBuilder()
    builder.stream("s", key=TEXT, value=TEXT).to("out")
    builder.global_table("g", key=TEXT, value=CITY, store="g")
    topology = builder.build()
    with TopologyTestDriver(topology, dead_letter_topic="dead") as driver:
        raw = driver.create_input_topic("g", TEXT, TEXT)
        raw.pipe_input("a", '{"city": "Rome"}')
        raw.pipe_input("a", "{")
        raw.pipe_input(None, '{"city": "nowhere"}')
        assert dict(driver.get_key_value_store("g").all()) == {"a": {"city": "Rome"}}
        assert driver.create_output_topic("dead", TEXT, TEXT).read_key_values() == [("a", "{")]
    with TopologyTestDriver(topology) as driver:
        raw = driver.create_input_topic("g", TEXT, TEXT)
        raw.pipe_input("a", '{"city": "Rome"}')
        with pytest.raises(RecordError, match="g-0@1"):
            raw.pipe_input("a", "{")


def test_a_global_table_has_a_number_and_no_task() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("g", key=TEXT, value=TEXT, store="g")
    stream = builder.stream("s", key=TEXT, value=TEXT)
    stream.join(table, on=F.col("value"), name="enriched").to("out")
    topology = builder.build()
    assert topology.describe() == (
        "Topologies:\n"
        "   Sub-topology: 0 for global store (will not generate tasks)\n"
        "    Source: KSTREAM-SOURCE-0000000000 (topics: [g])\n"
        "      --> KTABLE-SOURCE-0000000001\n"
        "    Processor: KTABLE-SOURCE-0000000001 (stores: [g])\n"
        "      --> none\n"
        "      <-- KSTREAM-SOURCE-0000000000\n"
        "  Sub-topology: 1\n"
        "    Source: KSTREAM-SOURCE-0000000002 (topics: [s])\n"
        "      --> enriched\n"
        "    Processor: enriched (stores: [])\n"
        "      --> KSTREAM-SINK-0000000003\n"
        "      <-- KSTREAM-SOURCE-0000000002\n"
        "    Sink: KSTREAM-SINK-0000000003 (topic: out)\n"
        "      <-- enriched\n"
        "\n"
    )
    assert '"global": true' in as_json(topology)
    assert 'subgraph sub0["Sub-topology 0"]' in as_mermaid(topology)
    assert "reads s, g; keeps g; writes out" in repr(topology)
    assert table.queryable_store_name == "g"
    assert repr(table) == "GlobalKTable(KTABLE-SOURCE-0000000001: string -> string)"


def test_null_keys_reach_a_left_join_with_a_global_table_through_a_repartition_topic() -> None:
    """KIP-962: the label of the original's join relaxes the filter before the topic."""
    builder = StreamsBuilder()
    table = builder.global_table("g", key=TEXT, value=TEXT, store="g")
    stream = builder.stream("s", key=TEXT, value=TEXT).repartition(name="again")
    stream.left_join(table, F.col("left"), on=F.col("value")).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("s", TEXT, TEXT).pipe_input(None, "there")
        assert driver.create_output_topic("out", TEXT, TEXT).read_key_values() == [(None, "there")]


def test_a_program_of_global_tables_alone_is_refused() -> None:
    builder = StreamsBuilder()
    builder.global_table("g", key=TEXT, value=TEXT, store="g")
    with pytest.raises(TopologyError, match=r"begin with builder\.stream\('topic'\)"):
        builder.build()


def test_a_key_that_the_tables_serde_cannot_write_names_its_record() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("g", key=LONG, value=TEXT, store="g")
    stream = builder.stream("s", key=TEXT, value=TEXT)
    stream.join(table, F.col("right"), on=lambda value: int(value)).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("g", LONG, TEXT).pipe_input(1, "one")
        source = driver.create_input_topic("s", TEXT, TEXT)
        source.pipe_input("k", "1")
        with pytest.raises(RecordError, match="s-0@1"):
            source.pipe_input("k", str(1 << 70))
        assert driver.create_output_topic("out", TEXT, TEXT).read_key_values() == [("k", "one")]
