"""The programs in examples/ do what their text says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from everflow import serdes
from everflow.testing.topology_test_driver import TopologyTestDriver

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.spark
def test_stock_trades_averages_five_seconds_and_drops_late_trades() -> None:
    spec = importlib.util.spec_from_file_location("stock_trades", EXAMPLES / "stock_trades.py")
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    trade = serdes.json("symbol string, price double, size int")
    with TopologyTestDriver(program.builder.build()) as driver:
        trades = driver.create_input_topic("stock-trades", serdes.string(), trade)
        averages = driver.create_output_topic(
            "average-prices",
            serdes.time_windowed(serdes.string(), 5_000),
            serdes.json("average_price double, trades bigint"),
        )
        for at, price in [(1_000, 10.0), (4_999, 20.0), (5_000, 7.0), (4_000, 99.0)]:
            trades.pipe_input("EF", {"symbol": "EF", "price": price, "size": 1}, at)
        found = [(r.key.start, r.value["average_price"], r.value["trades"]) for r in averages.read_records()]
    assert found == [(0, 10.0, 1), (0, 15.0, 2), (5_000, 7.0, 1)]
