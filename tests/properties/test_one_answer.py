"""With ``stream.time=lowest`` the final results are those of one thread that takes all records in
order of time, whoever reads what first (note 076)."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from everflow.records import LATE, TopicPartition
from everflow.testing import TopologyTestDriver
from everflow.testing.topics import RawRecord
from properties.one_answer import DAY_MS, Cluster, Program, outcome

TEXT, LONG = serdes.string(), serdes.long()
PARTITIONS = 3
KEYS = 4
BEGIN_MS = 1_000_000_000_000
SPAN_MS = 7_200_000
LATE_BY_MS = 480_000
SEEDS = range(4)


def _rekeyed(stream: Any) -> Any:
    return stream.select_key(lambda key, value: str(value % KEYS), returns="string")


def _to_out(stream: Any) -> None:
    texts = stream.map(lambda key, value: (str(key), str(value)), returns=("string", "string"))
    texts.to("out", key=TEXT, value=TEXT)


def _windows(builder: StreamsBuilder) -> None:
    sales = _rekeyed(builder.stream("one", key=TEXT, value=LONG)).group_by_key(name="by")
    counted = sales.windowed_by(TimeWindows.of_size("5 minutes").grace("10 minutes"))
    _to_out(counted.count(store="counts").to_stream())


def _chain(builder: StreamsBuilder) -> None:
    sales = _rekeyed(builder.stream("one", key=TEXT, value=LONG)).group_by_key(name="by")
    visits = sales.windowed_by(SessionWindows.of_inactivity_gap("1 minute").grace("10 minutes"))
    final = visits.count(store="visits").suppress(Suppressed.until_window_closes(), store="held")
    again = final.to_stream().select_key(lambda key, value: str(value % 2), returns="string")
    near = SlidingWindows.of_time_difference("5 minutes").grace("1 minute")
    counted = again.group_by_key(name="again").windowed_by(near).count(store="near")
    final = counted.suppress(Suppressed.until_window_closes(), store="held-again")
    third = final.to_stream().select_key(lambda key, value: "all", returns="string")
    wide = TimeWindows.of_size("10 minutes").grace("6 minutes")
    _to_out(third.group_by_key(name="all").windowed_by(wide).count(store="wide").to_stream())


def _latest_row(builder: StreamsBuilder) -> None:
    stream = _rekeyed(builder.stream("one", key=TEXT, value=LONG))
    rows = _rekeyed(builder.stream("two", key=TEXT, value=LONG)).repartition(
        name="rows", value=LONG
    )
    table = rows.to_table(store="table")
    stream = stream.repartition(name="records", value=LONG)
    _to_out(stream.left_join(table, lambda one, two: f"{one} {two}", returns="string"))


def _version(builder: StreamsBuilder) -> None:
    stream = _rekeyed(builder.stream("one", key=TEXT, value=LONG))
    rows = _rekeyed(builder.stream("two", key=TEXT, value=LONG)).repartition(
        name="rows", value=LONG
    )
    table = rows.to_table(store=Materialized("table", history="1 day"))
    stream = stream.repartition(name="records", value=LONG)
    joined = stream.left_join(
        table, lambda one, two: f"{one} {two}", grace="10 minutes", returns="string", store="waits"
    )
    _to_out(joined)


def _two_streams(builder: StreamsBuilder) -> None:
    stream = _rekeyed(builder.stream("one", key=TEXT, value=LONG)).repartition(name="a", value=LONG)
    other = _rekeyed(builder.stream("two", key=TEXT, value=LONG)).repartition(name="b", value=LONG)
    near = JoinWindows.of_time_difference("20 seconds").grace("10 minutes")
    joined = stream.outer_join(
        other, lambda one, two: f"{one} {two}", windows=near, returns="string", store="joined"
    )
    _to_out(joined)


def _foreign_key(builder: StreamsBuilder) -> None:
    left = builder.stream("one", key=TEXT, value=LONG)
    left = left.select_key(lambda key, value: str(value % 16), returns="string")
    orders = left.repartition(name="orders", value=LONG).to_table(store="orders")
    rows = _rekeyed(builder.stream("two", key=TEXT, value=LONG)).repartition(
        name="rows", value=LONG
    )
    names = rows.to_table(store="names")
    joined = orders.left_join(
        names,
        lambda one, two: f"{one} {two}",
        on=(F.col("value") % KEYS).cast("string"),
        returns="string",
        name="foreign",
    )
    _to_out(joined.to_stream())


PROGRAMS = {
    "windows": Program(_windows, {"one": 300}, LATE_BY_MS, last_of_key=True),
    "chain of three": Program(_chain, {"one": 300}, LATE_BY_MS, last_of_key=True),
    "latest row": Program(_latest_row, {"one": 150, "two": 100}),
    "version": Program(_version, {"one": 150, "two": 100}, LATE_BY_MS),
    "two streams": Program(_two_streams, {"one": 150, "two": 150}, LATE_BY_MS),
    "foreign key": Program(_foreign_key, {"one": 150, "two": 60}, last_of_key=True, closes=False),
}


class Engines:
    """Of a program: one driver that is a group of instances, and one that is one thread."""

    def __init__(self, program: Program) -> None:
        self.program, self.builder = program, StreamsBuilder()
        program.build(self.builder)
        topology = self.builder.build()
        self.many = TopologyTestDriver(topology, partitions=PARTITIONS)
        self.one = TopologyTestDriver(topology)

    def close(self) -> None:
        self.many.close()
        self.one.close()

    def in_order(self, records: Sequence[RawRecord]) -> Any:
        self.one.reset()
        listed = sorted(records, key=lambda one: one.timestamp)
        self.one._pipe([replace(record, partition=0) for record in listed])
        written = [
            RawRecord("out", one.key, one.value, one.timestamp)
            for one in self.one.create_output_topic(
                "out", serdes.bytes_(), serdes.bytes_()
            ).read_records()
        ]
        return outcome(written, self.program, BEGIN_MS + DAY_MS // 2)


@pytest.fixture(scope="module", params=PROGRAMS)
def engines(request: pytest.FixtureRequest) -> Iterator[Engines]:
    found = Engines(PROGRAMS[request.param])
    yield found
    found.close()


def drawn(program: Program, chance: random.Random) -> list[RawRecord]:
    """Records in the order of their logs, each with a time of its own; the last two of a partition
    are a day later and close all."""
    count = sum(program.topics.values())
    times = chance.sample(range(BEGIN_MS, BEGIN_MS + SPAN_MS), count)
    topics = [topic for topic, many in program.topics.items() for _ in range(many)]
    chance.shuffle(topics)
    shares = [chance.choice([1, 1, 5]) for _ in range(PARTITIONS)]
    records = []
    for number, (topic, time) in enumerate(zip(topics, sorted(times), strict=True)):
        partition = chance.choices(range(PARTITIONS), shares)[0]
        value = LONG.encode(number * 64 + chance.randrange(64))
        records.append(RawRecord(topic, b"any", value, time, partition=partition))
    late = {id(one): chance.random() < 0.1 for one in records}
    records.sort(
        key=lambda one: one.timestamp + late[id(one)] * chance.randrange(program.disorder_ms + 1)
    )
    for day in (1, 2) if program.closes else ():
        for topic in program.topics:
            for partition in range(PARTITIONS):
                count += 1
                for key in range(16):
                    value = LONG.encode((count * 64 + key) * 16 + key)
                    at = BEGIN_MS + day * DAY_MS + count * 100 + key
                    records.append(RawRecord(topic, b"any", value, at, partition=partition))
    return records


@pytest.mark.parametrize("seed", SEEDS)
def test_the_results_are_those_of_one_thread_in_order_of_time(engines: Engines, seed: int) -> None:
    chance = random.Random(seed)
    program = engines.program
    records = drawn(program, chance)
    logs: dict[TopicPartition, list[RawRecord]] = {}
    for record in records:
        logs.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    lead_ms = chance.choice([None, 60_000, 600_000])
    cluster = Cluster(
        engine=engines.many, builder=engines.builder, logs=logs, chance=chance, lead_ms=lead_ms
    )
    cluster.run()
    assert cluster.dropped[LATE] == 0
    found = outcome(cluster.written, program, BEGIN_MS + DAY_MS // 2)
    expected = engines.in_order(records)
    if isinstance(found, Counter):
        assert not found - expected
        assert not expected - found
    else:
        assert found == expected
