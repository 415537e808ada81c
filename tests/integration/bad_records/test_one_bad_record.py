"""Poison in a topic, with and without a dead letter topic: it goes to its handler alone, and the
other records come out in order, in seconds (I7)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.dsl.streams import KStream
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, in_json

pytestmark = [pytest.mark.broker, pytest.mark.spark]
GOOD, BAD_AT = 200, 90
IN_SECONDS = 25.0
"""From the start of an instance; room for a busy machine."""
Program = Callable[[KStream], KStream]


def raises(value: dict[str, Any]) -> dict[str, Any]:
    if value["n"] == -1:
        raise LookupError("no such n")
    return {"n": value["n"]}


POISON: dict[str, tuple[Program, bytes]] = {
    "epoch in a timestamp": (
        lambda stream: stream.map_values(raises, returns="n bigint"),
        b'{"n": 7, "t": 1700000000000}',
    ),
    "python function": (
        lambda stream: stream.map_values(raises, returns="n bigint"),
        b'{"n": -1}',
    ),
    "column": (
        lambda stream: stream.map_values(
            F.struct((F.lit(10) / (F.col("value.n") + 1)).alias("q"), F.col("value.n").alias("n"))
        ),
        b'{"n": -1}',
    ),
    "date beyond 9999": (
        lambda stream: stream.map_values(
            F.struct(
                F.col("value.n").alias("n"),
                F.date_add(
                    F.lit("9999-12-31").cast("date"), F.when(F.col("value.n") == -1, 5).otherwise(0)
                ).alias("d"),
            )
        ),
        b'{"n": -1}',
    ),
}


@pytest.mark.parametrize("poison", POISON)
def test_one_bad_record_among_200(app: Application, cluster: Cluster, poison: str) -> None:
    source, output, dead = (cluster.topic(name, 1) for name in ("in", "out", "dead"))
    program, bad = POISON[poison]
    records = [in_json(f"k{n % 3}", {"n": n}, 1_000 + n) for n in range(GOOD)]
    records.insert(BAD_AT, Record(b"bad", bad, 5_000, 0, (("own", b"header"),)))
    cluster.write(source, records)
    builder = StreamsBuilder()
    schema = serdes.json("n bigint, t timestamp")
    program(builder.stream(source, key=serdes.string(), value=schema)).to(output)
    began = time.monotonic()
    app.run_through(
        builder.build(),
        source,
        errors_dead_letter_queue_topic_name=dead,
    )
    assert time.monotonic() - began < IN_SECONDS
    assert [record.key for record in cluster.read(output)] == [
        f"k{n % 3}".encode() for n in range(GOOD)
    ]
    (letter,) = cluster.read(dead)
    assert (letter.key, letter.value, letter.timestamp) == (b"bad", bad, 5_000)
    headers = dict(letter.headers)
    assert headers["own"] == b"header"
    assert headers["__streams.errors.topic"] == source.encode()
    assert headers["__streams.errors.offset"] == str(BAD_AT).encode()
    for name in ("exception", "message"):
        assert headers[f"__streams.errors.{name}"]
