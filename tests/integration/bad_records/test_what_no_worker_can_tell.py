"""Records that end their worker, or that a broker refuses: found, and left to their handler."""

import os

import pytest
from typer.testing import CliRunner

from everflow import StreamsBuilder, serdes
from everflow.cli.app import app as command
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text, until_failed

pytestmark = [pytest.mark.broker, pytest.mark.spark]
GOOD, BAD_AT = 60, 25


def dies(value: str) -> str:
    if value == "die":
        os._exit(3)
    return value


def outgrows(value: str) -> str:
    """The machine's memory: `MemoryError` at once."""
    return str(len(bytearray(1 << 50))) if value == "outgrow" else value


def large(value: str) -> str:
    return "x" * 50_000 if value == "large" else value


@pytest.mark.parametrize(
    ("function", "bad", "stage"),
    [
        (dies, "die", "processing"),
        (outgrows, "outgrow", "processing"),
        (large, "large", "production"),
    ],
    ids=["worker-dies", "out-of-memory", "too-large"],
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


def test_a_record_too_much_for_an_aggregate_is_a_letter(app: Application, cluster: Cluster) -> None:
    """Its changelog does not take it; the others of its key and of its batch are in."""
    source, output, dead = (cluster.topic(name, 1) for name in ("in", "out", "dead"))
    values = [("big", f"{n}" * 6_000) if n % 2 else ("k", "v") for n in range(9)]
    cluster.write(source, [text(key, value, 1_000 + n) for n, (key, value) in enumerate(values)])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    lists = stream.group_by_key().aggregate(
        initializer=lambda: "",
        aggregator=lambda key, value, before: before + value,
        returns="string",
        store="lists",
    )
    lists.to_stream().map_values(lambda value: len(value), returns="bigint").to(output)
    app.run_through(
        builder.build(),
        source,
        errors_dead_letter_queue_topic_name=dead,
        **{"producer.message.max.bytes": 20_000},
    )
    found = cluster.longs(output)
    assert found == {b"k": 5, b"big": 18_000}
    (letter,) = cluster.read(dead)
    headers = dict(letter.headers)
    assert (letter.key, headers["__streams.errors.offset"]) == (b"big", b"7")
    assert headers["__everflow.errors.stage"] == b"production"
    message = (headers["__streams.errors.message"] or b"").decode()
    assert "the value of key b'big' in store lists, partition 0" in message
    assert f"Record {source}-0@7 has made it so large" in message


@pytest.mark.slow
def test_what_a_compacted_topic_refuses_is_a_letter(app: Application, cluster: Cluster) -> None:
    source, dead = cluster.topic("in", 1), cluster.topic("dead", 1)
    output = cluster.topic("out", 1, cleanup_policy="compact")
    cluster.write(
        source, [Record(None if n == 2 else b"k%d" % n, b"%d" % n, 1_000 + n) for n in range(5)]
    )
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string(), value=serdes.string()).to(output)
    app.run_through(builder.build(), source, errors_dead_letter_queue_topic_name=dead)
    assert [record.value for record in cluster.read(output)] == [b"0", b"1", b"3", b"4"]
    (letter,) = cluster.read(dead)
    headers = dict(letter.headers)
    assert (letter.value, headers["__streams.errors.offset"]) == (b"2", b"2")
    assert headers["__everflow.errors.stage"] == b"production"
    assert b"compacted topic" in (headers["__streams.errors.message"] or b"").lower()


def test_a_letter_its_topic_refuses_is_made_smaller(app: Application, cluster: Cluster) -> None:
    """Above what the producer sends, for its error's text; then above what the topic takes."""
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    dead = cluster.topic("dead", 1, max_message_bytes="3000")
    values = [b"{}", b"{" + b"x" * 990_000, b"{x", b"{}"]
    cluster.write(source, [Record(b"k%d" % n, value, n) for n, value in enumerate(values)])
    builder = StreamsBuilder()
    builder.stream(source, key=serdes.string(), value=serdes.json("n bigint")).to(output)
    app.run_through(builder.build(), source, errors_dead_letter_queue_topic_name=dead)
    assert [record.key for record in cluster.read(output)] == [b"k0", b"k3"]
    large, small = cluster.read(dead)
    assert (large.key, large.value) == (b"k1", None)
    headers = dict(large.headers)
    assert headers["__everflow.errors.left.out"] == b"value (990,001 bytes)"
    assert headers["__streams.errors.offset"] == b"1"
    assert (small.key, small.value) == (b"k2", b"{x")
    replayed = CliRunner().invoke(
        command,
        ["dlq", "replay", dead, "--yes"],
        env={"EVERFLOW_BOOTSTRAP_SERVERS": cluster.bootstrap},
    )
    assert "1 dead letter replayed" in replayed.output, replayed.output
    assert f"1 dead letter left out, {dead}-0@" in replayed.output
    assert f"It is {source}-0@1: read it there" in replayed.output


def test_without_a_topic_a_too_large_record_stops_it(app: Application, cluster: Cluster) -> None:
    source = cluster.topic("in", 1)
    output = cluster.topic("out", 1, max_message_bytes="20000")
    cluster.write(source, [text("k", "large")])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(large, returns="string").to(output)
    streams = app.instance(builder.build())
    streams.start()
    assert until_failed(streams).code == "EF-RECORD-TOO-LARGE"
