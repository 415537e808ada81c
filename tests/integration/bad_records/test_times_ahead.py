"""Records too far ahead for the brokers are letters; headers of any bytes come through whole."""

import time
from collections.abc import Sequence
from contextlib import closing

import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner

from contracts.odd_records import OddRecord, write
from everflow import StreamsBuilder, serdes
from everflow.cli.app import app as command
from everflow.errors import RecordRefusedError
from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition, listed_headers
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    in_json,
    last_by_key,
    long,
    until_failed,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]
KEY, VALUE = serdes.string(), serdes.json("n bigint, at bigint")
GOOD, AHEAD = 20, (3, 4, 11)
DAY_MS = 86_400_000


def written(cluster: Cluster, topic: str) -> int:
    """How far ahead the bad ones are."""
    ahead = int(time.time() * 1000) + 30 * DAY_MS
    times = [1_000 + n for n in range(GOOD)]
    for at, row in enumerate(AHEAD):
        times.insert(row, ahead + at)
    cluster.write(topic, [in_json(f"k{n % 3}", {"n": n, "at": at}) for n, at in enumerate(times)])
    return ahead


@pytest.mark.timeout(300)
def test_each_is_a_dead_letter_wherever_it_was_to_go(app: Application, cluster: Cluster) -> None:
    dead, builder = cluster.topic("dead", 1), StreamsBuilder()
    names = ("output", "repartition", "changelog")
    sources = {name: cluster.topic(f"{name}-in", 1) for name in names}
    outputs = {name: cluster.topic(f"{name}-out", 1) for name in names[:2]}
    streams = {
        name: builder.stream(source, key=KEY, value=VALUE, timestamp=F.col("value.at"))
        for name, source in sources.items()
    }
    streams["output"].to(outputs["output"])
    again = streams["repartition"].group_by(F.col("value.n") % 2, name="again")
    again.count(store="parity").to_stream().map(
        lambda key, value: (str(key), value), returns=("string", "bigint")
    ).to(outputs["repartition"])
    streams["changelog"].group_by_key().count(store="counts")
    ahead = {name: written(cluster, source) for name, source in sources.items()}
    with app.running(builder.build(), errors_dead_letter_queue_topic_name=dead) as instance:
        read_all = lambda: all(app.processed(instance, one) for one in sources.values())  # noqa: E731
        wait_until(read_all, 200, "all inputs to be read")
        app.until_processed(instance, f"{app.id}-again-repartition")
        assert sum(dict(instance.store("counts").all()).values()) == GOOD
    assert [record.timestamp for record in cluster.read(outputs["output"])] == [
        1_000 + n for n in range(GOOD)
    ]
    parities = last_by_key(cluster.read(outputs["repartition"])).values()
    assert sum(long(value) or 0 for value in parities) == GOOD
    letters = [dict(letter.headers) for letter in cluster.read(dead)]
    assert sorted(
        (one["__streams.errors.topic"], one["__streams.errors.offset"]) for one in letters
    ) == sorted(
        (source.encode(), str(row).encode()) for source in sources.values() for row in AHEAD
    )
    for one in letters:
        assert one["__everflow.errors.stage"] == b"production"
        name = next(n for n in names if sources[n].encode() == one["__streams.errors.topic"])
        message = (one["__streams.errors.message"] or b"").decode()
        assert "message.timestamp.after.max.ms" in message
        place = f"{sources[name]}-0@{(one['__streams.errors.offset'] or b'').decode()}"
        assert place in message
        at = ahead[name] + AHEAD.index(int(one["__streams.errors.offset"] or 0))
        assert f"Its time is {at} ms" in message


def test_without_a_topic_it_stops_with_record_and_cure(app: Application, cluster: Cluster) -> None:
    source, output = cluster.topic("in", 1), cluster.topic("out", 1)
    written(cluster, source)
    builder = StreamsBuilder()
    builder.stream(source, key=KEY, value=VALUE, timestamp=F.col("value.at")).to(output)
    streams = app.instance(builder.build())
    streams.start()
    error = until_failed(streams)
    assert isinstance(error, RecordRefusedError)
    assert f"made of record {source}-0@{AHEAD[0]}, by node " in str(error)
    assert "timestamp= of the source" in str(error)


def test_a_letter_too_far_ahead_gets_the_present_time(app: Application, cluster: Cluster) -> None:
    source = cluster.topic("in", 1, message_timestamp_after_max_ms=str(2**63 - 1))
    output, dead = cluster.topic("out", 1), cluster.topic("dead", 1)
    now = int(time.time() * 1000)
    times = [1_000, now + 30 * DAY_MS, 2_000, 10**17, 3_000]
    good = [0, 2, 4]
    cluster.write(
        source,
        [Record(b"k%d" % n, b'{"n": 1}' if n != 1 else b"{", at) for n, at in enumerate(times)],
    )
    builder = StreamsBuilder()
    builder.stream(source, key=KEY, value=VALUE).to(output)
    app.run_through(
        builder.build(),
        source,
        errors_dead_letter_queue_topic_name=dead,
        processing_guarantee="at_least_once",
    )
    written = [record.timestamp for record in cluster.read(output)]
    assert list(dict.fromkeys(written)) == [times[n] for n in good], "of each one or more"
    letters = {letter.key: letter for letter in cluster.read(dead)}
    assert letters.keys() == {b"k1", b"k3"}
    undecodable, beyond = letters[b"k1"], letters[b"k3"]
    assert now <= undecodable.timestamp <= int(time.time() * 1000)
    assert beyond.timestamp == 2_000, "that of its neighbour: nothing holds its own"
    assert b"which Spark cannot hold" in (dict(beyond.headers)["__streams.errors.message"] or b"")
    assert dict(beyond.headers)["__streams.errors.exception"] == b"everflow.errors.RecordTimeError"


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
