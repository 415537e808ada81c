"""Versioned tables in the driver: lookups as of a time, what reads them, processors' stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    Materialized,
    Processor,
    Record,
    Stores,
    StreamsBuilder,
    VersionedRecord,
    serdes,
)
from everflow.snapshots.query_errors import StoreKindError
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()
PAIR = serdes.json("left bigint, right bigint")


def piped(driver: TopologyTestDriver, topic: str, records: Sequence[tuple[str, Any, int]]) -> None:
    made = driver.create_input_topic(topic, TEXT, LONG)
    for key, value, time in records:
        made.pipe_input(key, value, timestamp=time)


def read(driver: TopologyTestDriver, topic: str, value: Any = LONG) -> list[tuple[Any, ...]]:
    found = driver.create_output_topic(topic, TEXT, value).read_records()
    return [(one.key, one.value, one.timestamp) for one in found]


PRICES = [("a", 1, 10), ("a", 3, 30), ("a", 2, 20), ("b", 7, 25), ("a", None, 40)]


@pytest.fixture
def prices() -> tuple[StreamsBuilder, Any]:
    builder = StreamsBuilder()
    return builder, builder.table(
        "prices", store=Materialized("prices", history=100), key=TEXT, value=LONG
    )


def test_its_store_shows_versions(prices: tuple[StreamsBuilder, Any]) -> None:
    with TopologyTestDriver(prices[0].build()) as driver:
        piped(driver, "prices", [*PRICES, ("c", 9, 200), ("a", 5, 99)])
        store = driver.get_versioned_store("prices")
        assert store.versions("a", 100) == []
        assert store.versions("c") == [VersionedRecord(9, 200, None)]
        assert store.get_as_of("b", 150) == (7, 25, None)
        assert store.get_as_of("b", 24) is None
        assert [store.get("a"), store.get("c"), store.get_as_of("a", 35)] == [None, 9, None]
        assert list(store.all()) == [("b", 7), ("c", 9)]
        with pytest.raises(StoreKindError, match="get_versioned_store"):
            driver.get_key_value_store("prices")


def test_a_stream_passes_all_updates_and_a_group_the_latest(
    prices: tuple[StreamsBuilder, Any],
) -> None:
    builder, table = prices
    table.to_stream().to("all")
    table.filter(F.col("value") > 1).to_stream().to("high")
    table.group_by(F.lit("all"), F.col("value"), name="by").reduce(
        lambda total, new: total + new, lambda total, old: total - old, store="sum"
    ).to_stream().to("sums")
    with TopologyTestDriver(builder.build()) as driver:
        piped(driver, "prices", PRICES)
        assert read(driver, "all") == PRICES
        assert [value for _, value, _ in read(driver, "high")] == [None, 3, 2, 7, None]
        assert [value for _, value, _ in read(driver, "sums")] == [1, 3, 10, 7]


def test_tables_are_joined_by_their_latest_values(prices: tuple[StreamsBuilder, Any]) -> None:
    builder, table = prices
    other = builder.table("amounts", store="amounts", key=TEXT, value=LONG)
    table.outer_join(other).to_stream().to("both")
    table.join(other, on=F.col("value").cast("string"), name="fk").to_stream().to("foreign")
    with TopologyTestDriver(builder.build()) as driver:
        piped(driver, "amounts", [("a", 100, 5), ("2", 50, 5), ("3", 60, 5)])
        piped(driver, "prices", PRICES)
        both = [(k, v and (v["left"], v["right"])) for k, v, _ in read(driver, "both", PAIR)]
        assert both[3:] == [
            ("a", (1, 100)),
            ("a", (3, 100)),
            ("b", (7, None)),
            ("a", (None, 100)),
        ]
        foreign = [(k, v and (v["left"], v["right"])) for k, v, _ in read(driver, "foreign", PAIR)]
        assert foreign == [("a", (3, 60)), ("a", None)]


def test_records_that_wait_keep_time_and_headers(prices: tuple[StreamsBuilder, Any]) -> None:
    builder, table = prices
    stream = builder.stream("orders", key=TEXT, value=LONG)
    stream.left_join(table, grace=10, store="waiting").to("priced")
    with TopologyTestDriver(builder.build()) as driver:
        orders = driver.create_input_topic("orders", TEXT, LONG)
        piped(driver, "prices", PRICES[:2])
        orders.pipe_input("a", 1, timestamp=25, headers=[("n", b"1"), ("x", None)])
        orders.pipe_input(None, 2, timestamp=26, headers=[("n", b"2")])
        piped(driver, "prices", PRICES[2:])
        orders.pipe_input("b", 3, timestamp=35, headers=[("n", b"3")])
        orders.pipe_input("b", 4, timestamp=10, headers=[("n", b"4")])
        out = driver.create_output_topic("priced", TEXT, PAIR)
        assert [
            (one.key, tuple(one.value.values()), one.timestamp, list(one.headers))
            for one in out.read_records()
        ] == [
            (None, (2, None), 26, [("n", b"2")]),
            ("a", (1, 2), 25, [("n", b"1"), ("x", None)]),
            ("b", (4, None), 10, [("n", b"4")]),
        ]


class Corrections(Processor):
    """Puts each value as of ten ms before its record; tells until when it is valid, and what was
    valid then before."""

    def process(self, record: Record) -> None:
        store, time = self.context.store("past"), record.timestamp - 10
        before = store.get(record.key, time)
        if record.value is None:
            found = store.delete(record.key, time)
            assert found == before
            end = -2
        else:
            end = store.put(record.key, record.value, time)
        was = -1 if before is None else before.value
        latest = [value for _, value in store.all()]
        self.context.forward(
            record.with_value(f"{end} {was} {latest} {len(store.versions(record.key))}")
        )


def test_a_processor_puts_versions() -> None:
    builder = StreamsBuilder()
    past = Stores.versioned("past", key=TEXT, value=LONG, history=50)
    stream = builder.stream("in", key=TEXT, value=LONG)
    stream.process(Corrections, stores=[past], returns=("string", "string")).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, LONG)
        topic.pipe_input("a", 1, timestamp=20)
        driver.pipe_batch({topic: [("a", 3, 40), ("a", 2, 30), ("b", 9, 100), ("a", 5, 49)]})
        topic.pipe_input("a", None, timestamp=101)
        assert [value for _, value, _ in read(driver, "out", TEXT)] == [
            "-1 -1 [1] 1",
            "-1 1 [3] 2",
            "30 1 [3] 3",
            "-1 -1 [3, 9] 1",
            f"{-(1 << 63)} 3 [3, 9] 1",
            "-2 3 [9] 1",
        ]
        assert driver.get_versioned_store("past").get_as_of("a", 90) == (3, 30, 91)


def test_an_as_of_join_takes_columns_functions_and_json() -> None:
    builder = StreamsBuilder()
    quote = serdes.json("price double, venue string")
    trades = builder.stream("trades", key=TEXT, value=serdes.json("symbol string, size bigint"))
    quotes = builder.stream("quotes", key=TEXT, value=quote)
    keyed = trades.select_key(F.col("value.symbol"))
    keyed.join_asof(
        quotes,
        tolerance="1 second",
        how="left",
        store="quotes",
        name="by-symbol",
        amount=F.col("left.size") * F.col("right.price"),
    ).to("amounts")
    keyed.join_asof(
        quotes,
        lambda key, one, other: f"{key} {one['size']} {other['venue']}",
        returns="string",
        tolerance=1_000,
        grace=10,
        store="late-quotes",
        name="late-by-symbol",
    ).to("texts")
    with TopologyTestDriver(builder.build()) as driver:
        trade = driver.create_input_topic("trades", TEXT, serdes.json("symbol string, size bigint"))
        asked = driver.create_input_topic("quotes", TEXT, quote)
        asked.pipe_input("A", {"price": 2.0, "venue": "x"}, timestamp=1_000)
        trade.pipe_input(None, {"symbol": "A", "size": 3}, timestamp=1_500)
        trade.pipe_input(None, {"symbol": "A", "size": 4}, timestamp=2_001)
        asked.pipe_input("A", {"price": 5.0, "venue": "y"}, timestamp=1_400)
        trade.pipe_input(None, {"symbol": "A", "size": 5}, timestamp=2_011)
        amounts = read(driver, "amounts", serdes.json("amount double"))
        assert [value["amount"] for _, value, _ in amounts] == [6.0, None, 25.0]
        assert read(driver, "texts", TEXT) == [("A", "A 3 x", 1_500), ("A", "A 4 y", 2_001)]
