"""Versioned tables in the driver: lookups as of a time, what reads them, processors' stores."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    StreamsBuilder,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()


def read(driver: TopologyTestDriver, topic: str, value: Any = LONG) -> list[tuple[Any, ...]]:
    found = driver.create_output_topic(topic, TEXT, value).read_records()
    return [(one.key, one.value, one.timestamp) for one in found]


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
