"""The count of the benchmarks, in everflow's DSL; its twin for Kafka Streams is
`java/CountBench.java`."""

from __future__ import annotations

import os

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from everflow import StreamsBuilder, serdes


def builder() -> StreamsBuilder:
    """Count the records of every key; the topics come from the environment."""
    streams_builder = StreamsBuilder()
    records = streams_builder.stream(
        os.environ[INPUT_TOPIC_VARIABLE], key=serdes.string(), value=serdes.string()
    )
    counts = records.group_by_key().count(store="counts")
    counts.to_stream().to(os.environ[OUTPUT_TOPIC_VARIABLE])
    return streams_builder
