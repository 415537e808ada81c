"""Connectors as everflow has them: for each a topic of its own, whose records go to one output,
with the name of the instance behind them."""

from __future__ import annotations

import os

from pyspark.sql import functions as F

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from everflow import StreamsBuilder, serdes

CONNECTORS_VARIABLE = "BENCH_CONNECTORS"
INSTANCE_VARIABLE = "BENCH_INSTANCE"


def input_of(prefix: str, connector: int) -> str:
    """The topic of a connector."""
    return f"{prefix}-{connector:03d}"


def builder() -> StreamsBuilder:
    """A sub-topology without state for each connector."""
    text = serdes.string()
    streams_builder = StreamsBuilder()
    name = F.lit(f" {os.environ[INSTANCE_VARIABLE]}")
    for connector in range(int(os.environ[CONNECTORS_VARIABLE])):
        topic = input_of(os.environ[INPUT_TOPIC_VARIABLE], connector)
        ticks = streams_builder.stream(topic, key=text, value=text)
        named = ticks.map_values(F.concat(F.col("value"), name))
        named.to(os.environ[OUTPUT_TOPIC_VARIABLE])
    return streams_builder
