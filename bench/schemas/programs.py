"""The trades with a schema registry: `everflow run bench.schemas.programs:NAME`.

Their twins are in `bench/java/Schemas.java`.
"""

from __future__ import annotations

import json
import os
from functools import partial

from pyspark.sql import functions as F

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.programs.catalogue import PROGRAMS, Program, Row
from bench.schemas.formats import AVERAGES, AVRO, PROTOBUF, TRADES, decoded, encoded
from everflow import StreamsBuilder, TimeWindows, agg, serdes

REGISTRY_VARIABLE = "BENCH_SCHEMA_REGISTRY"


def _row(kind: str, number: int) -> Row:
    key, value = PROGRAMS["trades"].row(number)
    return key, encoded(kind, json.loads(value))


def _program(kind: str) -> Program:
    trades = PROGRAMS["trades"]
    return Program(
        f"trades-{kind}",
        trades.kind,
        trades.records,
        partial(_row, kind),
        trades.result_key,
        window_bytes=trades.window_bytes,
        decode=partial(decoded, kind),
    )


WITH_SCHEMAS = (_program(AVRO), _program(PROTOBUF))


def _trades(trade: serdes.Serde, average: serdes.Serde) -> StreamsBuilder:
    builder = StreamsBuilder()
    price, size = F.col("value.price"), F.col("value.size")
    (
        builder.stream(os.environ[INPUT_TOPIC_VARIABLE], key=serdes.string(), value=trade)
        .filter((price > 0) & F.col("value.symbol").isNotNull())
        .select_key(F.col("value.symbol"))
        .map_values(amount=price * size, shares=size)
        .group_by_key(name="by-symbol")
        .windowed_by(TimeWindows.of_size("1 minute").grace("1 minute"))
        .aggregate(amount=agg.sum("value.amount"), shares=agg.sum("value.shares"), store="turnover")
        .to_stream()
        .map_values(
            price=F.col("value.amount") / F.col("value.shares"), shares=F.col("value.shares")
        )
        .to(os.environ[OUTPUT_TOPIC_VARIABLE], value=average)
    )
    return builder


def trades_avro() -> StreamsBuilder:
    """The average price of each stock by volume, minute by minute."""
    url = os.environ[REGISTRY_VARIABLE]
    trade, average = (serdes.avro(subject=one, registry=url) for one in (TRADES, AVERAGES))
    return _trades(trade, average)


def trades_protobuf() -> StreamsBuilder:
    """The average price of each stock by volume, minute by minute."""
    url = os.environ[REGISTRY_VARIABLE]
    trade, average = (serdes.protobuf(subject=one, registry=url) for one in (TRADES, AVERAGES))
    return _trades(trade, average)
