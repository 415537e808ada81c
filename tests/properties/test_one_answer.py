"""With ``stream.time=lowest`` the final results are those of one thread that takes all records in
order of time, whoever reads what first; with ``highest`` they are not (note 076).

Each program stands for rows of the table in docs/guide/time.md, "What depends on". More draws:
``EVERFLOW_SIMULATIONS=200 ./run test tests/properties/test_one_answer.py``."""

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    CountWindows,
    EmitStrategy,
    JoinWindows,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    agg,
    punctuate,
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
SEEDS = range(int(os.environ.get("EVERFLOW_SIMULATIONS", "3")))
HIGHEST_SEEDS = range(6)


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


def _alone(builder: StreamsBuilder) -> None:
    """Of one topic, without a new key; some records are late in their own partition."""
    stream = builder.stream("one", key=TEXT, value=LONG)
    groups = stream.group_by_key()
    windows = TimeWindows.of_size("5 minutes").grace("1 minute")
    counted = groups.windowed_by(windows).count(store="counts")
    _to_out(counted.suppress(Suppressed.until_window_closes(), store="held").to_stream())
    visits = SessionWindows.of_inactivity_gap("1 minute").grace("1 minute")
    counted = groups.windowed_by(visits).count(store="visits")
    _to_out(counted.suppress(Suppressed.until_window_closes(), store="held-visits").to_stream())
    _one_after_the_other(stream)


def _one_after_the_other(stream: Any) -> None:
    """What goes by the order of the records of a key, each result of which is emitted."""
    some = stream.map_values(lambda value: value % 8, returns="bigint")
    _to_out(some.deduplicate("2 minutes", by=F.col("value"), store="ids"))
    threes = stream.group_by_key(name="threes").windowed_by(CountWindows.of_size(3))
    final = threes.emit_strategy(EmitStrategy.on_window_close())
    _to_out(final.reduce(_mixed, store="three").to_stream())
    memory = [Stores.key_value("memory", key=TEXT, value=LONG)]
    _to_out(stream.process(_mix, stores=memory, returns=("string", "bigint")))


def _mixed(one: int, two: int) -> int:
    """Another number in another order."""
    return (one * 31 + two) % 1_000_003


def _mix(record: Any, context: Any) -> None:
    store = context.store("memory")
    store.put(record.key, _mixed(store.get(record.key) or 0, record.value))
    context.forward(record.with_value(store.get(record.key)))


def _orders(builder: StreamsBuilder) -> None:
    stream = _rekeyed(builder.stream("one", key=TEXT, value=LONG))
    _one_after_the_other(stream.repartition(name="by", value=LONG))


def _folds(builder: StreamsBuilder) -> None:
    groups = _rekeyed(builder.stream("one", key=TEXT, value=LONG)).group_by_key(name="by")
    _to_out(groups.reduce(_mixed, store="mixed").to_stream())
    ends = groups.aggregate(first=agg.first("value"), last=agg.last("value"), store="ends")
    ends = ends.to_stream()
    _to_out(ends.map(lambda key, value: (f"ends {key}", str(value)), returns=("string", "string")))


def _merged(builder: StreamsBuilder) -> None:
    """Two topics in one window: as they are, and behind a new key."""
    one, two = (builder.stream(topic, key=TEXT, value=LONG) for topic in ("one", "two"))
    windows = TimeWindows.of_size("5 minutes").grace("10 minutes")
    both = one.merge(two).group_by_key().windowed_by(windows)
    _to_out(both.count(store="both").to_stream())
    plus, minus = _rekeyed(one).group_by_key(name="plus"), _rekeyed(two).group_by_key(name="minus")
    found = plus.cogroup(lambda value, total: total + value).cogroup(
        minus, lambda value, total: total - value
    )
    sums = found.windowed_by(windows).aggregate(int, store="sums", returns="bigint")
    _to_out(sums.to_stream())


def _as_of(builder: StreamsBuilder) -> None:
    stream = _rekeyed(builder.stream("one", key=TEXT, value=LONG)).repartition(name="a", value=LONG)
    other = _rekeyed(builder.stream("two", key=TEXT, value=LONG)).repartition(name="b", value=LONG)
    joined = stream.join_asof(
        other,
        lambda one, two: f"{one} {two}",
        tolerance="5 minutes",
        grace="10 minutes",
        how="left",
        returns="string",
        store="latest",
    )
    _to_out(joined)


def _ends(builder: StreamsBuilder) -> None:
    """Entries that end by stream time. A record of another stream may meet one that has ended, in
    the batch in which it ends: it counts as none."""
    stream = _rekeyed(builder.stream("one", key=TEXT, value=LONG))
    stream = stream.repartition(name="records", value=LONG)
    counts = stream.group_by_key().count(store="recent", ttl="1 minute")
    _to_out(stream.left_join(counts, lambda one, two: f"{one} {two}", returns="string"))
    rows = _rekeyed(builder.stream("two", key=TEXT, value=LONG)).map_values(F.col("timestamp"))
    table = rows.repartition(name="rows", value=LONG).to_table(store="rows", ttl="1 minute")
    times = stream.map_values(F.col("timestamp"))
    living = lambda one, two: f"{one} {two if two and one < two + 60_000 else None}"  # noqa: E731
    _to_out(times.left_join(table, living, returns="string"))
    kept = [
        Stores.window("kept", key=TEXT, value=LONG, size=1, retention="2 minutes"),
        Stores.key_value("living", key=TEXT, value=LONG, ttl="1 minute"),
    ]
    _to_out(stream.process(_looks_back, stores=kept, returns=("string", "string")))


def _looks_back(record: Any, context: Any) -> None:
    windows, living = context.store("kept"), context.store("living")
    seen = [value for _, value in windows.fetch(record.key, 0, record.timestamp)]
    context.forward(record.with_value(f"{record.value}: {seen}, {living.get(record.key)}"))
    windows.put(record.key, record.value, record.timestamp)
    living.put(record.key, record.value)


class Calls(Processor):
    """Forwards the records that come behind a call of their time or a later one."""

    called_ms = -1

    def process(self, record: Record) -> None:
        self.context.forward(record.with_value("in time"))
        last = self.context.store("called").get("last")
        if last is not None and record.timestamp <= last:
            self.context.forward(record.with_value(f"behind {last}"))

    @punctuate("10 seconds")
    def call(self, time_ms: int) -> None:
        self.context.store("called").put("last", time_ms)


def _punctuated(builder: StreamsBuilder) -> None:
    stream = _rekeyed(builder.stream("one", key=TEXT, value=LONG)).repartition(name="a", value=LONG)
    called = [Stores.key_value("called", key=TEXT, value=LONG)]
    _to_out(stream.process(Calls, stores=called, returns=("string", "string")))


PROGRAMS = {
    "windows": Program(_windows, {"one": 300}, LATE_BY_MS, last_of_key=True),
    "chain of three": Program(_chain, {"one": 300}, LATE_BY_MS, last_of_key=True),
    "merged topics": Program(_merged, {"one": 100, "two": 100}, LATE_BY_MS, last_of_key=True),
    "latest row": Program(_latest_row, {"one": 150, "two": 100}),
    "version": Program(_version, {"one": 150, "two": 100}, LATE_BY_MS),
    "as of": Program(_as_of, {"one": 150, "two": 100}, LATE_BY_MS),
    "two streams": Program(_two_streams, {"one": 150, "two": 150}, LATE_BY_MS),
    "foreign key": Program(_foreign_key, {"one": 150, "two": 60}, last_of_key=True, closes=False),
    "folds": Program(_folds, {"one": 300}, last_of_key=True, closes=False),
    "orders": Program(_orders, {"one": 300}, closes=False),
    "ends": Program(_ends, {"one": 150, "two": 150}),
    "punctuated": Program(_punctuated, {"one": 300}),
    "alone": Program(_alone, {"one": 200}, LATE_BY_MS, alone=True, varies=False),
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
        """One thread's results: by time, or by the logs where each is read alone."""
        driver, listed = self.many, list(records)
        if not self.program.alone:
            listed = [replace(one, partition=0) for one in sorted(records, key=_time)]
            driver = self.one
        driver.reset()
        driver._pipe(listed)
        out = driver.create_output_topic("out", serdes.bytes_(), serdes.bytes_()).read_records()
        written = [RawRecord("out", one.key, one.value, one.timestamp) for one in out]
        return self.outcome(written)

    def outcome(self, written: Sequence[RawRecord]) -> Any:
        return outcome(written, self.program, BEGIN_MS + DAY_MS // 2)


def _time(record: RawRecord) -> int:
    return record.timestamp


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
        records.append(RawRecord(topic, b"p%d" % partition, value, time, partition=partition))
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
                    name = b"p%d" % partition
                    records.append(RawRecord(topic, name, value, at, partition=partition))
    return records


def ran(engines: Engines, seed: int, lowest: bool = True) -> tuple[Cluster, list[RawRecord]]:
    chance = random.Random(seed)
    records = drawn(engines.program, chance)
    logs: dict[TopicPartition, list[RawRecord]] = {}
    for record in records:
        logs.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
    cluster = Cluster(
        engine=engines.many,
        builder=engines.builder,
        logs=logs,
        chance=chance,
        lead_ms=chance.choice([None, 60_000, 600_000]),
        lowest=lowest,
    )
    cluster.run()
    return cluster, records


@pytest.mark.parametrize("seed", SEEDS)
def test_the_results_are_those_of_one_thread_in_order_of_time(engines: Engines, seed: int) -> None:
    cluster, records = ran(engines, seed)
    assert engines.program.alone or cluster.dropped[LATE] == 0
    found, expected = engines.outcome(cluster.written), engines.in_order(records)
    if isinstance(found, Counter):
        assert not found - expected
        assert not expected - found
    else:
        assert found == expected


def test_with_the_highest_time_it_depends_on_who_reads_what_first(engines: Engines) -> None:
    def differs(seed: int) -> bool:
        cluster, records = ran(engines, seed, lowest=False)
        found: bool = engines.outcome(cluster.written) != engines.in_order(records)
        return found

    assert any(map(differs, HIGHEST_SEEDS)) == engines.program.varies
