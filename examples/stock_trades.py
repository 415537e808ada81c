"""Average price per stock in windows of five seconds.

    everflow broker --port 9092 --topic stock-trades:4 --topic average-prices:4
    everflow run stock_trades:builder --application-id stock-averages --bootstrap-servers 127.0.0.1:9092

(in this folder; topics that are read or written must exist). Sum and count are aggregated, the average is
mapped from them, and the results carry a windowed key: the symbol and the start of its window. There is no grace: a
trade that comes after its window has ended in stream time is dropped and counted.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, agg, serdes

builder = StreamsBuilder()
trades = builder.stream(
    "stock-trades", key=serdes.string(), value=serdes.json("symbol string, price double, size int")
)
(
    trades.group_by_key()
    .windowed_by(TimeWindows.of_size("5 seconds"))
    .aggregate(total=agg.sum("value.price"), trades=agg.count(), store="trades-per-stock")
    .to_stream()
    .map_values(average_price=F.col("value.total") / F.col("value.trades"), trades=F.col("value.trades"))
    .to("average-prices")
)
