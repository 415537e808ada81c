"""Headers of any bytes: no instance ends of them, and every output has them whole."""

from collections.abc import Sequence
from contextlib import closing

import pytest
from typer.testing import CliRunner

from contracts.odd_records import OddRecord, write
from everflow import StreamsBuilder, serdes
from everflow.cli.app import app as command
from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition, listed_headers
from integration.lifecycle.lifecycle_cluster import Application, Cluster

pytestmark = [pytest.mark.broker, pytest.mark.spark]
HEADERS = (
    ("été".encode("latin-1"), b"\xff"),
    (b"trace\0id", b"1"),
    (b"trace\0id", None),
    (b"", b""),
    (b"__everflow.replayed", b"0@0"),
    (b"__everflow.errors.left.out", b"x"),
    (b"__streams.errors.topic", b"elsewhere"),
)
RECORDS = [
    OddRecord(b"a", b"plain", 1_000),
    OddRecord(b"a", b"odd", 1_001, HEADERS),
    OddRecord(b"b", b"bad", 1_002, HEADERS),
    OddRecord(b"a", b"last", 1_003, HEADERS[:2]),
]


def refuse_bad(value: str) -> str:
    if value == "bad":
        raise LookupError("no such value")
    return value


def headers_of(cluster: Cluster, topic: str, count: int) -> dict[bytes, Sequence[object]]:
    tp = TopicPartition(topic, 0)
    found: dict[bytes, Sequence[object]] = {}
    with closing(FetchTap.over({"bootstrap.servers": cluster.bootstrap})) as tap:
        tap.go_to({tp: 0})
        while len(found) < count:
            taken = tap.take({tp: 1 << 40}, 30)
            assert taken, f"{len(found)} of {count} records"
            for chunk in taken.values():
                columns = chunk.columns(headers=True)
                listed = listed_headers(columns.headers, len(columns))
                found.update(zip(columns.values.to_pylist(), listed, strict=True))
    return found


def test_any_header_passes_program_letters_and_replay(app: Application, cluster: Cluster) -> None:
    source, output, dead = (cluster.topic(name, 1) for name in ("in", "out", "dead"))
    with closing(RecordWriter({"bootstrap.servers": cluster.bootstrap}, None)) as writer:
        write(writer, TopicPartition(source, 0), RECORDS)
    builder = StreamsBuilder()
    text = serdes.string()
    stream = builder.stream(source, key=text, value=text)
    stream.repartition(name="again", partitions=1).map_values(refuse_bad, returns="string").to(
        output
    )
    app.run_through(
        builder.build(),
        source,
        f"{app.id}-again-repartition",
        errors_dead_letter_queue_topic_name=dead,
    )
    named = [(name.decode(errors="replace"), data) for name, data in HEADERS]
    assert headers_of(cluster, output, 3) == {
        b"plain": [],
        b"odd": named,
        b"last": named[:2],
    }
    (letter,) = headers_of(cluster, dead, 1).values()
    assert letter[:4] == named[:4]
    assert letter[4:7] == [(f"__everflow.own.{name}", data) for name, data in named[4:]]
    environment = {"EVERFLOW_BOOTSTRAP_SERVERS": cluster.bootstrap}
    other = cluster.topic("other", 1)
    arguments = ["dlq", "replay", dead, "--to", other, "--yes"]
    done = CliRunner().invoke(command, arguments, env=environment)
    assert "1 dead letter replayed" in done.stderr, done.output
    assert headers_of(cluster, other, 1)[b"bad"][:7] == named
