"""What a soak runs, and what has to come of it: a program like a user's, whose results follow from
how many records were sent.

JSON trades, two Columns, a re-keying, windows of a minute, a Python function on each result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, Topology, agg, serdes

SYMBOLS, PRICES, SIZES = 200, 97, 10
PERIOD = math.lcm(SYMBOLS, PRICES, SIZES)
"""After so many records the same ones come again."""
PARTITIONS = 4
TASKS = 2 * PARTITIONS
GRACE = "2 minutes"
STORE = "by-minute"
TRADES, TOTALS = "trades", "totals"


def topic(application: str, name: str) -> str:
    """The full name of `TRADES` or `TOTALS`."""
    return f"{application}-{name}"


def symbol_of(number: Any) -> Any:
    """Of a record, or of an array of them."""
    return number % SYMBOLS


def trade(number: int) -> tuple[bytes, bytes]:
    """Key and value of a record; a tenth of them has nothing to count."""
    symbol, price, size = symbol_of(number), 1 + number % PRICES, number % SIZES
    value = f'{{"symbol": "s{symbol}", "price": {price}, "size": {size}, "venue": "everywhere"}}'
    return b"%d" % number, value.encode()


def expected(records: int) -> npt.NDArray[np.int64]:
    """Trades and turnover of each symbol, a row each, when so many records were sent."""
    numbers = np.arange(PERIOD)
    size = numbers % SIZES
    often = records // PERIOD + (numbers < records % PERIOD)
    counts = np.zeros((SYMBOLS, 2), np.int64)
    np.add.at(counts[:, 0], symbol_of(numbers), often * (size > 0))
    np.add.at(counts[:, 1], symbol_of(numbers), often * size * (1 + numbers % PRICES))
    return counts


def total(value: dict[str, Any]) -> str:
    """A result as text."""
    return f"{value['trades']} {value['turnover']}"


def program(application: str) -> Topology:
    """The topology; its topics begin with the application's id."""
    builder = StreamsBuilder()
    trades = builder.stream(
        topic(application, TRADES),
        key=serdes.string(),
        value=serdes.json("symbol string, price bigint, size bigint"),
    )
    (
        trades.filter(F.col("value.size") > 0)
        .map_values(symbol=F.col("value.symbol"), paid=F.col("value.price") * F.col("value.size"))
        .group_by(F.col("value.symbol"), name="by-symbol")
        .windowed_by(TimeWindows.of_size("1 minute").grace(GRACE))
        .aggregate(trades=agg.count(), turnover=agg.sum("value.paid"), store=STORE)
        .map_values(total, returns="string")
        .to_stream()
        .to(topic(application, TOTALS))
    )
    return builder.build()
