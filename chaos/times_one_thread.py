"""The results of a program of `./run chaos times` by one thread in order of time."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from chaos.times_programs import TEXT, program
from chaos.times_truth import Record, Seen, Truth
from everflow import serdes
from everflow.serdes import Serde
from everflow.testing import TopologyTestDriver

BATCH = 2_000


def one_thread(name: str, truth: Truth, records: Sequence[Record], batch: int = BATCH) -> Seen:
    """By Kafka Streams' own rule of time, which needs nothing else if records come in order."""
    ordered, seen = sorted(records, key=lambda one: one.time), Seen(truth)
    with TopologyTestDriver(program(name, str).build()) as driver:
        inputs = {
            topic: driver.create_input_topic(topic, TEXT, _json_of(records, topic))
            for topic in truth.topics
        }
        outputs = {
            output: driver.create_output_topic(output, TEXT, TEXT) for output in truth.outputs
        }
        for first in range(0, len(ordered), batch):
            piped: dict[Any, list[tuple[Any, ...]]] = defaultdict(list)
            for one in ordered[first : first + batch]:
                piped[inputs[one.topic]].append((one.key, dict(one.value), one.time))
            driver.pipe_batch(piped)
            for output, topic in outputs.items():
                for record in topic.read_records():
                    value = record.value
                    seen.add(output, record.key, None if value is None else json.loads(value))
    return seen


def _json_of(records: Sequence[Record], topic: str) -> Serde:
    """The serde of a topic's values, by one of them."""
    value = next(one.value for one in records if one.topic == topic)
    kinds = {int: "bigint", str: "string"}
    return serdes.json(", ".join(f"{name} {kinds[type(of)]}" for name, of in value.items()))
