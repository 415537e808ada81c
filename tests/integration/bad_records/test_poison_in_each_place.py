"""A bad record in each place of one program goes to its handler alone; all else comes out."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from pyspark.sql import functions as F

from everflow import Processor, StreamsBuilder, TimeWindows, serdes
from everflow.dsl.streams import KStream
from everflow.metrics import DEAD_LETTERS, DROPPED_RECORDS
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    Record,
    in_json,
    last_by_key,
    long,
    text,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]
GOOD, BAD_AT = 30, 17
BAD = -1
KEY, VALUE = serdes.string(), serdes.json("n bigint, at bigint")
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


def written(cluster: Cluster, name: str, where: Where) -> None:
    records = [in_json(key_of(name, n), {"n": n, "at": 1_000 + n}, 1_000 + n) for n in range(GOOD)]
    own = (("own", b"header"),)
    records.insert(BAD_AT, Record(*PLACES[name].bad, 1_000 + BAD_AT, 0, own))
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
        written(cluster, name, wheres[name])
        place.program(builder, wheres[name])
    with app.running(builder.build(), errors_dead_letter_queue_topic_name=dead) as streams:
        sources = [where.source for where in wheres.values()]
        read_all = lambda: all(app.processed(streams, one) for one in sources)  # noqa: E731
        wait_until(read_all, 200, "all inputs to be read")
        app.until_processed(streams, f"{app.id}-again-repartition")
        figures = streams.metrics()
    found = {name: came_out(cluster, name, where) for name, where in wheres.items()}
    assert found == {
        name: GOOD if place.counts else [key_of(name, n).encode() for n in range(GOOD)]
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
        (where.source.encode(), str(BAD_AT).encode(), PLACES[name].stage.encode())
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
    assert f"skipped by a global table: {table}-0@0" in caplog.text
    assert "dropped 1 record without a key" in caplog.text


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
