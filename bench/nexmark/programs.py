"""The queries of `examples/nexmark.py` as programs of the bench: `everflow run
bench.nexmark.programs:q5`; the topics come from the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from everflow import StreamsBuilder
from nexmark import QUERIES, program


def _of_environment(query: str) -> StreamsBuilder:
    return program(query, os.environ[INPUT_TOPIC_VARIABLE], os.environ[OUTPUT_TOPIC_VARIABLE])


PROGRAMS: dict[str, Callable[[], StreamsBuilder]] = {
    query: partial(_of_environment, query) for query in QUERIES
}
globals().update(PROGRAMS)
