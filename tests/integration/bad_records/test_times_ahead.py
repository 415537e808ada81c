"""Records too far ahead for the brokers are letters; headers of any bytes come through whole."""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from pyspark.sql import functions as F
from typer.testing import CliRunner

from contracts.odd_records import OddRecord, write
from everflow import Processor, StreamsBuilder, TimeWindows, serdes
from everflow.cli.app import app as command
from everflow.dsl.streams import KStream
from everflow.errors import DamagedEntryError, RecordRefusedError
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.metrics import DEAD_LETTERS, DROPPED_RECORDS
from everflow.records import StoreChanges, TopicPartition, listed_headers
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_meta import Owner
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    in_json,
    last_by_key,
    long,
    text,
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
    with closing(LogFetcher.over({"bootstrap.servers": cluster.bootstrap})) as fetcher:
        fetcher.go_to({tp: 0})
        while len(found) < count:
            taken = fetcher.take({tp: 1 << 40}, 30)
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
    assert headers_of(cluster, output, 3) == {b"plain": [], b"odd": named, b"last": named[:2]}
    (letter,) = headers_of(cluster, dead, 1).values()
    assert letter[:4] == named[:4]
    assert letter[4:7] == [(f"__everflow.own.{name}", data) for name, data in named[4:]]
    environment = {"EVERFLOW_BOOTSTRAP_SERVERS": cluster.bootstrap}
    other = cluster.topic("other", 1)
    arguments = ["dlq", "replay", dead, "--to", other, "--yes"]
    done = CliRunner().invoke(command, arguments, env=environment)
    assert "1 dead letter replayed" in done.stderr, done.output
    assert headers_of(cluster, other, 1)[b"bad"][:7] == named


# Records that end their worker, or that a broker refuses.


UNTOLD_GOOD, BAD_AT = 60, 25


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
    values = [str(number) for number in range(UNTOLD_GOOD)]
    values.insert(BAD_AT, bad)
    cluster.write(source, [text("k", value, 1_000 + at) for at, value in enumerate(values)])
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.map_values(function, returns="string").to(output)  # type: ignore[arg-type]
    app.run_through(builder.build(), source, errors_dead_letter_queue_topic_name=dead)
    assert [record.value for record in cluster.read(output)] == [
        str(number).encode() for number in range(UNTOLD_GOOD)
    ]
    (letter,) = cluster.read(dead)
    headers = dict(letter.headers)
    assert (letter.value, headers["__streams.errors.offset"]) == (
        bad.encode(),
        str(BAD_AT).encode(),
    )
    assert headers["__everflow.errors.stage"] == stage.encode()


def test_a_record_too_much_for_an_aggregate_is_a_letter(app: Application, cluster: Cluster) -> None:
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
    assert "key b'big' in store lists, partition 0" in message
    assert f"Record {source}-0@7 has made" in message


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
    assert f"letter left out, {dead}-0@" in replayed.output
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


# A store with unreadable bytes is mended from the changelog, or named; no record is (note 041).


DAMAGE = b"\1\2\3"


def damage(folder: Path, key: bytes) -> None:
    """Bytes in a store on disk that nobody has written through its changelog."""
    (data,) = folder.glob("**/0_0/counts-*/data.mdb")
    store = LmdbStore.open(data.parent)
    meta = store.meta()
    store.apply(
        StoreChanges("counts", [key], [DAMAGE], np.array([1_000], np.int64)),
        position=None,
        expected=Owner(meta.incarnation or "", meta.last_batch or ""),
        batch=meta.last_batch or "",
    )


def test_a_store_is_rebuilt_and_a_changelog_that_is_damaged_ends_the_instance(
    app: Application, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    source, output, dead = (cluster.topic(name, 1) for name in ("in", "out", "dead"))
    builder = StreamsBuilder()
    stream = builder.stream(source, key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to(output)
    records = [text(key, "v", 1_000) for key in ("bad", "good")]
    streams = app.instance(builder.build(), errors_dead_letter_queue_topic_name=dead)
    streams.start()
    try:
        cluster.write(source, records)
        app.until_processed(streams, source)
        damage(app.state, b"bad")
        with caplog.at_level(logging.WARNING):
            cluster.write(source, records)
            app.until_processed(streams, source)
        found = cluster.longs(output)
        assert found == {b"bad": 2, b"good": 2}
        assert "Rebuilding counts of task 0_0 " in caplog.text

        changelog = f"{app.id}-counts-changelog"
        cluster.write(changelog, [Record(b"bad", DAMAGE, 1_000, 0)])
        damage(app.state, b"bad")
        cluster.write(source, records)
        error = until_failed(streams)
    finally:
        streams.close(60.0)
    assert isinstance(error, DamagedEntryError)
    assert (error.store, str(error.task), error.key) == ("counts", "0_0", b"bad")
    assert error.changelog == changelog
    for part in (
        "Store counts of task 0_0 is damaged: the entry of key 'bad' (b'bad') cannot be read",
        repr(DAMAGE),
        f"changelog {changelog}, partition 0",
        "read by node ",
        "No record of the input is to blame",
        "was rebuilt from its changelog",
    ):
        assert part in str(error)
    assert cluster.read(dead) == []


# A bad record in each place of one program goes to its handler alone.


POISON_GOOD, POISON_BAD_AT = 30, 17
BAD = -1
BEYOND_MS = 10**18
"""Later than anything holds: microseconds of microseconds."""


def checked(value: dict[str, Any]) -> dict[str, Any]:
    if value["n"] == BAD:
        raise LookupError("no such n")
    return value


def summed(key: str, value: dict[str, Any], before: int) -> int:
    return before + (1 if checked(value) else 0)


def several(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield value
    checked(value)


class Passes(Processor):
    def process(self, record: Any) -> None:
        checked(record.value)
        self.context.forward(record)


@dataclass(frozen=True)
class Refusing:
    """Writes any n but the bad one."""

    type = VALUE.type

    def encode(self, value: dict[str, Any]) -> bytes:
        return str(checked(value)["n"]).encode()

    def decode(self, data: bytes) -> dict[str, Any]:
        return {"n": int(data), "at": None}


class Where(NamedTuple):
    """A program's topics: what it reads, what it writes, and one that it looks things up in."""

    source: str
    output: str
    other: str


class Place(NamedTuple):
    """A program with one place that fails. ``bad``: key and value of the bad record; ``counts``:
    its output is a count by key."""

    program: Callable[[StreamsBuilder, Where], object]
    stage: str = "processing"
    bad: tuple[bytes, bytes] = (b"bad", b'{"n": -1, "at": 1}')
    counts: bool = False


def read(builder: StreamsBuilder, where: Where, key: Any = KEY, timestamp: Any = None) -> KStream:
    return builder.stream(where.source, key=key, value=VALUE, timestamp=timestamp)


def behind_a_join(builder: StreamsBuilder, where: Where) -> None:
    table = builder.table(where.other, key=KEY, value=serdes.json("m bigint"), store="m-of-key")
    joined = read(builder, where).join(table, n=F.col("left.n"), m=F.col("right.m"))
    joined.map_values(F.struct((F.lit(10) / (F.col("value.n") + F.col("value.m"))).alias("q"))).to(
        where.output
    )


def counted(builder: StreamsBuilder, where: Where) -> None:
    read(builder, where).group_by_key().aggregate(
        initializer=int, aggregator=summed, returns="bigint", store="sums"
    ).to_stream().to(where.output)


def in_windows(builder: StreamsBuilder, where: Where) -> None:
    windows = read(builder, where).group_by_key().windowed_by(TimeWindows.of_size("1 day"))
    windows.aggregate(
        initializer=int, aggregator=summed, returns="bigint", store="window-sums"
    ).to_stream().select_key(lambda key, value: key.key, returns="string").to(where.output)


def re_keyed(builder: StreamsBuilder, where: Where) -> None:
    read(builder, where).group_by(
        lambda key, value: key if checked(value) else "", returns="string", name="again"
    ).count(store="again-counts").to_stream().to(where.output)


def times(builder: StreamsBuilder, where: Where) -> None:
    read(builder, where, timestamp=F.col("value.at")).to(where.output)


def epoch_in_a_timestamp(builder: StreamsBuilder, where: Where) -> None:
    value = serdes.json("n bigint, t timestamp")
    stream = builder.stream(where.source, key=KEY, value=value)
    stream.map_values(lambda value: value["n"], returns="bigint").to(where.output)


def date_beyond_9999(builder: StreamsBuilder, where: Where) -> None:
    days = F.when(F.col("value.n") == BAD, 5).otherwise(0)
    late = F.date_add(F.lit("9999-12-31").cast("date"), days)
    read(builder, where).map_values(F.struct("value.n", late.alias("d"))).to(where.output)


def refused_by_the_sink(builder: StreamsBuilder, where: Where) -> None:
    read(builder, where).to(where.output, value=Refusing())  # type: ignore[arg-type]


PLACES = {
    "value": Place(
        lambda builder, where: read(builder, where).to(where.output),
        "deserialization",
        (b"bad", b"{"),
    ),
    "key": Place(
        lambda builder, where: read(builder, where, serdes.json("k string")).to(where.output),
        "deserialization",
        (b"bad", b'{"n": 1, "at": 1}'),
    ),
    "epoch-in-a-timestamp": Place(
        epoch_in_a_timestamp, "deserialization", (b"bad", b'{"n": 7, "t": 1700000000000}')
    ),
    "date-beyond-9999": Place(date_beyond_9999, "production"),
    "function": Place(
        lambda builder, where: (
            read(builder, where).map_values(checked, returns=VALUE).to(where.output)
        )
    ),
    "generator": Place(
        lambda builder, where: (
            read(builder, where).flat_map_values(several, returns=VALUE).to(where.output)
        )
    ),
    "processor": Place(
        lambda builder, where: (
            read(builder, where).process(Passes, returns=(KEY, VALUE)).to(where.output)
        )
    ),
    "column-behind-a-join": Place(behind_a_join),
    "time": Place(times, bad=(b"bad", b'{"n": 1, "at": %d}' % BEYOND_MS)),
    "aggregate": Place(counted, counts=True),
    "window": Place(in_windows, counts=True),
    "re-key": Place(re_keyed, counts=True),
    "serde-of-a-sink": Place(refused_by_the_sink, "production"),
    "topic-of-a-sink": Place(
        lambda builder, where: read(builder, where).to(
            lambda key, value: where.output if value["n"] != BAD else "no topic of this name!"
        )
    ),
    "partitioner": Place(
        lambda builder, where: read(builder, where).to(
            where.output, partitioner=lambda topic, key, value, count: int(not checked(value))
        )
    ),
}


def key_of(name: str, number: int) -> str:
    key = f"k{number % 3}"
    return f'{{"k":"{key}"}}' if name == "key" else key


def poison_written(cluster: Cluster, name: str, where: Where) -> None:
    records = [
        in_json(key_of(name, n), {"n": n, "at": 1_000 + n}, 1_000 + n) for n in range(POISON_GOOD)
    ]
    own = (("own", b"header"),)
    records.insert(POISON_BAD_AT, Record(*PLACES[name].bad, 1_000 + POISON_BAD_AT, 0, own))
    cluster.write(where.source, records)
    cluster.write(where.other, [in_json(key, {"m": 1}) for key in ("k0", "k1", "k2", "bad")])


def came_out(cluster: Cluster, name: str, where: Where) -> list[bytes | None] | int:
    """The keys of all records, or how many were counted."""
    records = cluster.read(where.output)
    if PLACES[name].counts:
        return sum(long(value) or 0 for value in last_by_key(records).values())
    return [record.key for record in records]


@pytest.mark.timeout(300)
def test_each_goes_to_its_handler_alone(app: Application, cluster: Cluster) -> None:
    dead, builder = cluster.topic("dead", 1), StreamsBuilder()
    wheres: dict[str, Where] = {}
    for name, place in PLACES.items():
        topics = (cluster.topic(f"{name}-{part}", 1) for part in ("in", "out", "other"))
        wheres[name] = Where(*topics)
        poison_written(cluster, name, wheres[name])
        place.program(builder, wheres[name])
    with app.running(builder.build(), errors_dead_letter_queue_topic_name=dead) as streams:
        sources = [where.source for where in wheres.values()]
        read_all = lambda: all(app.processed(streams, one) for one in sources)  # noqa: E731
        wait_until(read_all, 200, "all inputs to be read")
        app.until_processed(streams, f"{app.id}-again-repartition")
        figures = streams.metrics()
    found = {name: came_out(cluster, name, where) for name, where in wheres.items()}
    assert found == {
        name: POISON_GOOD
        if place.counts
        else [key_of(name, n).encode() for n in range(POISON_GOOD)]
        for name, place in PLACES.items()
    }
    written_letters = cluster.read(dead)
    assert {(letter.key, letter.value) for letter in written_letters} == {
        one.bad for one in PLACES.values()
    }
    letters = [dict(letter.headers) for letter in written_letters]
    assert sorted(
        (one["__streams.errors.topic"], one["__streams.errors.offset"], one[STAGE])
        for one in letters
    ) == sorted(
        (where.source.encode(), str(POISON_BAD_AT).encode(), PLACES[name].stage.encode())
        for name, where in wheres.items()
    )
    for one in letters:
        assert one["own"] == b"header"
        assert one["__streams.errors.exception"]
        assert one["__streams.errors.message"]
        assert one["__everflow.errors.node"]
        assert one["__everflow.errors.task"]
    assert figures[DEAD_LETTERS] == len(PLACES)


STAGE = "__everflow.errors.stage"


def test_what_enters_no_global_table_is_counted_and_told(
    app: Application, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    source, output, dead = (cluster.topic(name, 1) for name in ("in", "out", "dead"))
    table = cluster.topic("table", 1)
    cluster.write(table, [text("a", "{"), text(None, '{"m": 2}'), in_json("a", {"m": 3})])
    cluster.write(source, [in_json("a", {"n": 1, "at": 1})])
    builder = StreamsBuilder()
    looked_up = builder.global_table(table, key=KEY, value=serdes.json("m bigint"), store="m")
    stream = builder.stream(source, key=KEY, value=VALUE)
    stream.join(looked_up, on=F.col("key"), m=F.col("right.m")).to(output)
    with app.running(builder.build(), errors_dead_letter_queue_topic_name=dead) as streams:
        app.until_processed(streams, source)
        figures = streams.metrics()
    assert [record.value for record in cluster.read(output)] == [b'{"m":3}']
    (letter,) = cluster.read(dead)
    assert dict(letter.headers)["__streams.errors.topic"] == table.encode()
    assert (figures[DEAD_LETTERS], figures[DROPPED_RECORDS]) == (1, 1)
    assert f"global table: {table}-0@0" in caplog.text
    assert re.search("dropped 1 .*key", caplog.text)


def test_a_handler_failing_on_a_global_table_is_named(app: Application, cluster: Cluster) -> None:
    """And not after task.timeout.ms, as brokers that do not answer."""
    source, output, table = (cluster.topic(name, 1) for name in ("in", "out", "table"))
    cluster.write(table, [text("a", "{")])

    def broken(context: object, error: BaseException) -> Any:
        raise RuntimeError("no handler today")

    builder = StreamsBuilder()
    looked_up = builder.global_table(table, key=KEY, value=serdes.json("m bigint"), store="m")
    stream = builder.stream(source, key=KEY, value=VALUE)
    stream.join(looked_up, on=F.col("key"), m=F.col("right.m")).to(output)
    streams = app.instance(builder.build(), deserialization_exception_handler=broken)
    with pytest.raises(Exception, match="no handler today"):
        streams.start()
