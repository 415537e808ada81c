"""The test of a topology: `pytest test_stock_trades.py`, without a broker. Records go in with their
times, results come out."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from everflow import Windowed, serdes
from everflow.testing import InputTopic, OutputTopic, TopologyTestDriver
from stock_trades import TRADE, builder

MINUTE_MS = 60_000
AVERAGE = serdes.json("mean_price double, trades bigint")


@pytest.fixture
def driver() -> Iterator[TopologyTestDriver]:
    """A new one for each test, with empty stores."""
    with TopologyTestDriver(builder.build()) as driver:
        yield driver


@pytest.fixture
def trades(driver: TopologyTestDriver) -> InputTopic:
    return driver.create_input_topic("stock-trades", serdes.string(), TRADE)


@pytest.fixture
def averages(driver: TopologyTestDriver) -> OutputTopic:
    return driver.create_output_topic(
        "average-prices", serdes.time_windowed(serdes.string(), MINUTE_MS), AVERAGE
    )


def trade(price: float, symbol: str = "EF", size: int = 1) -> dict[str, object]:
    return {"symbol": symbol, "price": price, "size": size}


def test_a_minute_ends_before_the_next_one_begins(
    trades: InputTopic, averages: OutputTopic
) -> None:
    trades.pipe_each(
        [
            ("NYSE", trade(10.0), 1_000),
            ("LSE", trade(20.0, "ef"), 59_999),
            ("NYSE", trade(7.0), 60_000),
        ]
    )
    first, second = Windowed("EF", 0, MINUTE_MS), Windowed("EF", MINUTE_MS, 2 * MINUTE_MS)
    assert averages.read_key_values() == [
        (first, {"mean_price": 10.0, "trades": 1}),
        (first, {"mean_price": 15.0, "trades": 2}),
        (second, {"mean_price": 7.0, "trades": 1}),
    ]


def test_ten_seconds_late_is_in_time_and_more_is_not(
    trades: InputTopic, averages: OutputTopic
) -> None:
    trades.pipe_each([("NYSE", trade(1.0), 69_999), ("NYSE", trade(10.0), 0)])
    trades.pipe_each([("NYSE", trade(1.0), 70_000), ("NYSE", trade(90.0), 0)])
    found = [value for key, value in averages.read_key_values() if key.start == 0]
    assert found == [{"mean_price": 10.0, "trades": 1}]


def test_a_micro_batch_of_many_trades_gives_one_result_for_each_window(
    trades: InputTopic, averages: OutputTopic
) -> None:
    trades.pipe_batch(
        [("NYSE", trade(price), 0) for price in (1.0, 2.0, 6.0)] + [("LSE", trade(5.0, "XY"), 0)]
    )
    found = {key.key: value for key, value in averages.read_key_values()}
    assert found == {"EF": {"mean_price": 3.0, "trades": 3}, "XY": {"mean_price": 5.0, "trades": 1}}


def test_what_is_no_trade_is_left_out(trades: InputTopic, averages: OutputTopic) -> None:
    trades.pipe_input("NYSE", trade(10.0, size=0), 0)
    assert averages.is_empty()
