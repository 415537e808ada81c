"""The average price of each stock, minute by minute: JSON, Columns, a new key, windows.

    everflow broker --port 9092 --topic stock-trades:4 --topic average-prices:4
    everflow run stock_trades:builder --application-id stock-averages --bootstrap-servers
    127.0.0.1:9092

(in this folder; topics that are read or written must exist). Trades arrive under the key of their
exchange, so `group_by` sends them through a repartition topic first: all trades of a symbol meet in
one task. The results carry a windowed key, the symbol and its minute, and come again with every
change. A trade that is more than ten seconds late for its minute, in record time, is dropped and
counted. `test_stock_trades.py` is its test.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, agg, serdes

TRADE = serdes.json("symbol string, price double, size int")

builder = StreamsBuilder()
(
    builder.stream("stock-trades", key=serdes.string(), value=TRADE)
    .filter(F.col("value.size") > 0)
    .group_by(F.upper("value.symbol"), name="by-symbol")
    .windowed_by(TimeWindows.of_size("1 minute").grace("10 seconds"))
    .aggregate(mean_price=agg.avg("value.price"), trades=agg.count(), store="trades-per-minute")
    .to_stream()
    .map_values(mean_price=F.round("value.mean_price", 2), trades=F.col("value.trades"))
    .to("average-prices")
)
