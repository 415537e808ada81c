"""Records that end their worker, or that a broker refuses: found, and left to their handler."""

from __future__ import annotations

import os

import pytest

from everflow import StreamsBuilder, serdes
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text, until_failed

pytestmark = [pytest.mark.broker, pytest.mark.spark]
GOOD, BAD_AT = 60, 25


def dies(value: str) -> str:
    if value == "die":
        os._exit(3)
    return value


def large(value: str) -> str:
    return "x" * 50_000 if value == "large" else value


@pytest.mark.parametrize(
    ("function", "bad", "stage"),
    [(dies, "die", "processing"), (large, "large", "production")],
    ids=["worker-dies", "too-large"],
)
def test_the_record_is_a_dead_letter_and_the_others_come_out_in_order(
    app: Application, cluster: Cluster, function: object, bad: str, stage: str
) -> None:
    source, dead = cluster.topic("in", 1), cluster.topic("dead", 1)
    output = cluster.topic("out", 1, max_message_bytes="20000")
    values = [str(number) for number in range(GOOD)]
    values.insert(BAD_AT, bad)
    cluster.write(source, [text("k", value, 1_000 + at) for at, value in enumerate(values)])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(function, returns="string").to(output)  # type: ignore[arg-type]
    app.run_through(builder.build(), source, errors_dead_letter_queue_topic_name=dead)
    assert [record.value for record in cluster.read(output)] == [
        str(number).encode() for number in range(GOOD)
    ]
    (letter,) = cluster.read(dead)
    headers = dict(letter.headers)
    assert (letter.value, headers["__streams.errors.offset"]) == (
        bad.encode(),
        str(BAD_AT).encode(),
    )
    assert headers["__everflow.errors.stage"] == stage.encode()


def test_without_a_topic_a_record_that_is_too_large_stops_the_instance(
    app: Application, cluster: Cluster
) -> None:
    source = cluster.topic("in", 1)
    output = cluster.topic("out", 1, max_message_bytes="20000")
    cluster.write(source, [text("k", "large")])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(large, returns="string").to(output)
    streams = app.instance(builder.build())
    streams.start()
    assert until_failed(streams).code == "EF-RECORD-TOO-LARGE"
