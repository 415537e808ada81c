"""The program of the sinks: it writes each record as a row.

`everflow run bench.sinks.program:builder`; topic and sink come from the environment.
"""

from __future__ import annotations

import json
import os

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE
from everflow import StreamsBuilder, serdes

OPTIONS_VARIABLE = "BENCH_SINKS_OPTIONS"
"""What `write_stream` is called with, in JSON."""
VALUE = "n bigint, item string, price double"


def builder() -> StreamsBuilder:
    """A row has the fields of the record's value."""
    streams_builder = StreamsBuilder()
    records = streams_builder.stream(
        os.environ[INPUT_TOPIC_VARIABLE], key=serdes.string(), value=serdes.json(VALUE)
    )
    records.write_stream(name="rows", **json.loads(os.environ[OPTIONS_VARIABLE]))
    return streams_builder
