"""Processors' shared stores, tables and stores with a ttl, under any cut, against a model."""

import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import (
    BatchProcessor,
    Materialized,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    ValueTransformer,
    punctuate,
    serdes,
)
from everflow.errors import EverflowError
from everflow.testing import TopologyTestDriver
from everflow.topology.subtopologies import cut, internal_topics

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()
BALANCE = Stores.key_value("balance", key=TEXT, value=LONG)
Given = list[tuple[str, str, int, int]]
"""Topic, key, value and time of records, in the order in which they come."""
Told = list[tuple[str, Any, Any, int]]


def add(record: Record, context: ProcessorContext) -> None:
    """Adds the value to the key's balance, and tells it."""
    balance = context.store("balance")
    balance.put(record.key, balance.get(record.key, 0) + record.value)
    context.forward(record.with_value(balance.get(record.key)))


def twice(record: Record, context: ProcessorContext) -> None:
    """Doubles the key's balance, and tells it."""
    balance = context.store("balance")
    balance.put(record.key, 2 * balance.get(record.key, 0))
    context.forward(record.with_value(balance.get(record.key)))


class Sums(BatchProcessor):
    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        balance, told = self.context.store("balance"), []
        for key, value in zip(*(batch.column(i).to_pylist() for i in (0, 1)), strict=True):
            balance.put(key, balance.get(key, 0) + value)
            told.append(balance.get(key))
        return pa.RecordBatch.from_pydict({"key": batch.column(0), "value": told})


def run(topology: Topology, records: Given, cut_at: Callable[[int], bool]) -> Told:
    """What the program writes to ``out-*``, in order, where batches end behind the records that
    ``cut_at`` names."""
    told: Told = []
    with TopologyTestDriver(topology) as driver:
        topics = sorted({topic for topic, *_ in records})
        sources = {topic: driver.create_input_topic(topic, TEXT, LONG) for topic in topics}
        written = [name for name in ("out-a", "out-b") if f"topic: {name}" in topology.describe()]
        outs = {name: driver.create_output_topic(name, TEXT, LONG) for name in written}
        pending: dict[str, list[tuple[str, int, int]]] = {}
        for at, (topic, key, value, time) in enumerate(records):
            pending.setdefault(topic, []).append((key, value, time))
            if cut_at(at) or at == len(records) - 1:
                driver.pipe_batch({sources[name]: batch for name, batch in pending.items()})
                pending = {}
        for name, out in outs.items():
            told += [(name, one.key, one.value, one.timestamp) for one in out.read_records()]
    return told


def equal_for_all_cuts(topology: Callable[[], Topology], records: Given) -> Told:
    """What the records give one by one, which they give however they are cut."""
    alone = run(topology(), records, lambda at: True)
    assert run(topology(), records, lambda at: False) == alone
    drawn = random.Random(5)
    for _ in range(3):
        ends = {at for at in range(len(records)) if drawn.random() < 0.4}
        assert run(topology(), records, ends.__contains__) == alone
    return alone


def drawn(topics: str, count: int = 40) -> Given:
    found, random_ = [], random.Random(3)
    for time in range(count):
        found.append((random_.choice(topics), random_.choice("xyz"), random_.randint(1, 9), time))
    return found


@pytest.mark.parametrize("adding", [add, Sums], ids=["record", "batch"])
def test_processors_of_two_topics_see_each_others_changes_record_by_record(adding: Any) -> None:
    def topology() -> Topology:
        builder = StreamsBuilder()
        builder.add_state_store(BALANCE)
        paid = builder.stream("a", key=TEXT, value=LONG)
        bonus = builder.stream("b", key=TEXT, value=LONG)
        paid.process(adding, stores=["balance"]).to("out-a")
        bonus.process(twice, stores=["balance"]).to("out-b")
        return builder.build()

    assert len(cut(topology()).subtopologies) == 1
    records = drawn("ab")
    model: dict[str, int] = {}
    wanted: dict[str, Told] = {"a": [], "b": []}
    for topic, key, value, time in records:
        model[key] = model.get(key, 0) + value if topic == "a" else 2 * model.get(key, 0)
        wanted[topic].append((f"out-{topic}", key, model[key], time))
    assert equal_for_all_cuts(topology, records) == wanted["a"] + wanted["b"]


def test_one_record_reaches_processors_in_the_order_in_which_they_were_added() -> None:
    def topology() -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("a", key=TEXT, value=LONG)
        stream.process(add, stores=[BALANCE]).to("out-a")
        stream.filter(F.col("value") > 4).process(twice, stores=[BALANCE]).to("out-b")
        return builder.build()

    told = equal_for_all_cuts(topology, [("a", "x", 5, 1), ("a", "x", 2, 2), ("a", "x", 6, 3)])
    assert [value for _, _, value, _ in told] == [5, 12, 18, 10, 36]


class Chosen(Processor):
    """Adds to the balance, tells even ones to one child and odd ones to the other, and at each
    tenth ms the number of keys to both."""

    def process(self, record: Record) -> None:
        balance = self.context.store("balance")
        balance.put(record.key, balance.get(record.key, 0) + record.value)
        found = balance.get(record.key)
        self.context.forward(record.with_value(found), "odd" if found % 2 else "even")

    @punctuate(10)
    def tell(self, time: int) -> None:
        count = self.context.store("balance").approximate_num_entries()
        self.context.forward(Record("keys", count, time))


@pytest.mark.parametrize("adding", [add, Sums], ids=["record", "batch"])
def test_a_processor_behind_another_runs_while_that_one_forwards(adding: Any) -> None:
    """So what it has written is there for the next record of the first one."""

    def topology() -> Topology:
        builder = StreamsBuilder()
        builder.add_state_store(BALANCE)
        children = builder.stream("a", key=TEXT, value=LONG).process(
            Chosen, stores=["balance"], children=["odd", "even"]
        )
        children["odd"].process(adding, stores=["balance"]).to("out-a")
        children["even"].merge(children["odd"]).to("out-b")
        return builder.build()

    records = drawn("a")
    model: dict[str, int] = {}
    odd: Told = []
    both: Told = []

    def forwarded(child: bool, key: str, value: int, time: int) -> None:
        both.append(("out-b", key, value, time))
        if child:
            model[key] = model.get(key, 0) + value
            odd.append(("out-a", key, model[key], time))

    latest = -1
    for _, key, value, time in records:
        model[key] = model.get(key, 0) + value
        forwarded(model[key] % 2 == 1, key, model[key], time)
        if time // 10 != latest // 10 or latest < 0:
            forwarded(True, "keys", len(model), time)
            both.append(both[-1])  # of both children
        latest = time
    found = equal_for_all_cuts(topology, records)
    assert [one for one in found if one[0] == "out-a"] == odd
    assert sorted(one for one in found if one[0] == "out-b") == sorted(both)


def test_clocks_and_windows_of_shared_stores() -> None:
    windows = Stores.window("w", key=TEXT, value=LONG, size=10, retention=20)

    class Opens(Processor):
        def process(self, record: Record) -> None:
            self.context.store("w").put(record.key, record.value, record.timestamp // 10 * 10)

    class Looks(Processor):
        def process(self, record: Record) -> None:
            found = sum(1 for _ in self.context.store("w").all())
            self.context.forward(record.with_value(found))

        @punctuate(100, PunctuationType.WALL_CLOCK_TIME)
        def tick(self, time: int) -> None:
            self.context.forward(Record("tick", sum(1 for _ in self.context.store("w").all()), 1))

    builder = StreamsBuilder()
    builder.stream("a", key=TEXT, value=LONG).process(Opens, stores=[windows])
    builder.stream("b", key=TEXT, value=LONG).process(Looks, stores=[windows]).to("out-b")
    with TopologyTestDriver(builder.build()) as driver:
        one, two = (driver.create_input_topic(name, TEXT, LONG) for name in "ab")
        out = driver.create_output_topic("out-b", TEXT, LONG)
        driver.pipe_batch({one: [("x", 1, 3), ("x", 1, 25), ("x", 1, 35)], two: [("y", 0, 30)]})
        # The store's time is that of all who write: at 30 the window of 3 is more than 20 behind.
        assert [(found.key, found.value) for found in out.read_records()] == [("y", 1)]
        driver.advance_wall_clock_time(200)
        assert [(found.key, found.value) for found in out.read_records()] == [("tick", 2)]


def test_what_lies_between_is_refused() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("a", key=TEXT, value=LONG).process(add, stores=[BALANCE])
    stream.filter(F.col("value") > 4).process(twice, stores=[BALANCE], name="second").to("out-b")
    with pytest.raises(TopologyError, match=r"(?s)second shares .* KSTREAM-FI"):
        builder.build()


def test_a_failure_behind_a_forward_is_that_of_the_one_that_failed() -> None:
    def hides(record: Record, context: ProcessorContext) -> None:
        with suppress(BaseException):
            context.forward(record)

    def fails(record: Record, context: ProcessorContext) -> None:
        raise ValueError("behind")

    builder = StreamsBuilder()
    stream = builder.stream("a", key=TEXT, value=LONG)
    first = stream.process(hides, stores=[BALANCE], name="first")
    first.process(fails, stores=[BALANCE], name="second")
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(EverflowError, match=r"(?s)behind.*a-0@0.*second|second.*behind"),
    ):
        driver.create_input_topic("a", TEXT, LONG).pipe_input("x", 1, 1)


def looks(record: Record, context: ProcessorContext) -> None:
    """The table's entry and time of the key, and how many keys there are."""
    table = context.store("table")
    found = table.get_with_timestamp(record.key) or (0, 0)
    told = found[0] * 1_000_000 + found[1] * 1_000 + table.approximate_num_entries()
    context.forward(record.with_value(told))


class LooksInColumns(BatchProcessor):
    def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        table = self.context.store("table")
        told = [found or 0 for found in table.get_all(batch.column(0).to_pylist())]
        return pa.RecordBatch.from_pydict({"key": batch.column(0), "value": told})


@pytest.mark.parametrize("processor", [looks, LooksInColumns], ids=["record", "batch"])
@pytest.mark.parametrize("counted", [False, True], ids=["topic", "aggregate"])
def test_a_table_is_seen_as_of_each_record(processor: Any, counted: bool) -> None:
    def topology() -> Topology:
        builder = StreamsBuilder()
        if counted:
            builder.stream("a", key=TEXT, value=LONG).group_by_key().count(store="table")
        else:
            builder.table("a", key=TEXT, value=LONG, store="table")
        builder.stream("b", key=TEXT, value=LONG).process(processor, stores=["table"]).to("out-b")
        return builder.build()

    assert len(cut(topology()).subtopologies) == 1
    records = drawn("ab")
    table: dict[str, tuple[int, int]] = {}
    wanted: Told = []
    for topic, key, value, time in records:
        if topic == "a":
            table[key] = (table.get(key, (0, 0))[0] + 1 if counted else value, time)
            continue
        at, when = table.get(key, (0, 0))
        told = at * 1_000_000 + when * 1_000 + len(table) if processor is looks else at
        wanted.append(("out-b", key, told, time))
    assert equal_for_all_cuts(topology, records) == wanted


def test_an_update_finds_itself_in_its_own_table() -> None:
    def topology() -> Topology:
        builder = StreamsBuilder()
        table = builder.table("a", key=TEXT, value=LONG, store="table")
        table.to_stream().process(looks, stores=["table"]).to("out-a")
        return builder.build()

    told = equal_for_all_cuts(topology, [("a", "x", 1, 1), ("a", "y", 2, 2), ("a", "x", 3, 3)])
    assert [value for _, _, value, _ in told] == [1_001_001, 2_002_002, 3_003_002]


def test_windows_sessions_and_versions_of_tables_are_read() -> None:
    def reads(record: Record, context: ProcessorContext) -> None:
        hours, sessions = context.store("hours"), context.store("sessions")
        past, key = context.store("past"), record.key
        found = (
            hours.fetch(key, 0) or 0,
            sum(value for _, value in sessions.fetch(key)),
            sum(1 for _ in sessions.fetch(key)),
            getattr(past.get(key, record.timestamp - 10), "value", 0),
        )
        context.forward(record.with_value(int("".join(map(str, found)))))

    def topology() -> Topology:
        builder = StreamsBuilder()
        groups = builder.stream("a", key=TEXT, value=LONG).group_by_key()
        groups.windowed_by(TimeWindows.of_size(100)).count(store="hours")
        groups.windowed_by(SessionWindows.of_inactivity_gap(5)).count(
            store=Materialized("sessions", retention=500)
        )
        store = Materialized("past", history=1_000)
        builder.table("c", key=TEXT, value=LONG, store=store)
        names = ["hours", "sessions", "past"]
        builder.stream("b", key=TEXT, value=LONG).process(reads, stores=names).to("out-b")
        return builder.build()

    records = [("c", "x", 7, 1), ("a", "x", 0, 2), ("b", "x", 0, 3), ("a", "x", 0, 12)]
    records += [("a", "x", 0, 7), ("b", "x", 0, 13), ("c", "x", 8, 14), ("a", "x", 0, 40)]
    records += [("b", "x", 0, 41), ("b", "x", 0, 120)]
    told = equal_for_all_cuts(topology, records)
    assert [value for _, _, value, _ in told] == [1110, 3317, 4428, 4428]


def test_a_global_table_is_read_whole() -> None:
    def names(record: Record, context: ProcessorContext) -> None:
        context.forward(record.with_value(context.store("cities").get(record.key, -1)))

    builder = StreamsBuilder()
    builder.global_table("cities", key=TEXT, value=LONG, store="cities")
    builder.stream("a", key=TEXT, value=LONG).process(names, stores=["cities"]).to("out-a")
    with TopologyTestDriver(builder.build()) as driver:
        cities = driver.create_input_topic("cities", TEXT, LONG)
        cities.pipe_input("x", 9)
        driver.create_input_topic("a", TEXT, LONG).pipe_batch([("x", 0, 1), ("y", 0, 2)])
        out = driver.create_output_topic("out-a", TEXT, LONG)
        assert out.read_key_values() == [("x", 9), ("y", -1)]


@pytest.mark.parametrize("write", ["put", "delete"])
def test_only_the_table_writes_its_store(write: str) -> None:
    def writes(record: Record, context: ProcessorContext) -> None:
        store = context.store("table")
        store.put("x", 1) if write == "put" else store.delete("x")

    builder = StreamsBuilder()
    builder.table("t", key=TEXT, value=LONG, store="table")
    builder.stream("a", key=TEXT, value=LONG).process(writes, stores=["table"])
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("t", TEXT, LONG).pipe_input("x", 1)
        with pytest.raises(EverflowError, match="writes"):
            driver.create_input_topic("a", TEXT, LONG).pipe_input("x", 1)


def test_the_topology_shows_stores_and_no_table_before_a_processor() -> None:
    builder = StreamsBuilder()
    builder.table("t", key=TEXT, value=LONG, store="table")
    stream = builder.stream("a", key=TEXT, value=LONG, name="from-a")
    stream.process(looks, stores=["table", BALANCE], name="reads").to("out-a", name="sink")
    assert """Processor: reads (stores: [balance, table])
      --> sink
      <-- from-a""" in builder.build().describe()


class Changes(ValueTransformer):
    """The value, and how many updates its key had so far; deletions stay deletions."""

    def init(self, context: ProcessorContext) -> None:
        self.seen = context.store("balance")

    def transform(self, key: str, value: int | None) -> int | None:
        self.seen.put(key, self.seen.get(key, 0) + 1)
        return None if value is None else value * 100 + self.seen.get(key)


def test_values_of_a_table_are_transformed_with_stores() -> None:
    def topology() -> Topology:
        builder = StreamsBuilder()
        table = builder.table("a", key=TEXT, value=LONG, store=Materialized("t", caching=False))
        made = table.transform_values(
            Changes, stores=[BALANCE], store=Materialized("made", caching=False)
        )
        made.to_stream().to("out-a")
        named = table.transform_values(
            lambda key, value, context: f"{key}{value}{context.task_id}", returns="string"
        )
        named.map_values(F.length("value").cast("bigint")).to_stream().to("out-b")
        return builder.build()

    records = [("a", "x", 1, 1), ("a", "y", 2, 2), ("a", "x", None, 3), ("a", "x", 5, 4)]
    told = equal_for_all_cuts(topology, records)  # type: ignore[arg-type]
    assert told == [
        ("out-a", "x", 101, 1),
        ("out-a", "y", 201, 2),
        ("out-a", "x", None, 3),
        ("out-a", "x", 503, 4),
        *[("out-b", key, len(f"{key}{value}0_0"), time) for _, key, value, time in records],
    ]


def test_a_transformed_table_is_joined_and_grouped_by_its_store() -> None:
    builder = StreamsBuilder()
    table = builder.table("a", key=TEXT, value=LONG, store="t")
    bare = table.transform_values(Changes, stores=[BALANCE])
    with pytest.raises(TopologyError, match=r"none.*store="):
        builder.stream("b", key=TEXT, value=LONG).join(bare)
    builder = StreamsBuilder()
    table = builder.table("a", key=TEXT, value=LONG, store="t")
    made = table.transform_values(Changes, stores=[BALANCE], store="made")
    builder.stream("b", key=TEXT, value=LONG).join(made, F.col("right")).to("out-b")
    made.group_by(F.lit("all"), name="all").aggregate(
        initializer=lambda: 0,
        adder=lambda value, total: total + value,
        subtractor=lambda value, total: total - value,
        returns="bigint",
        store="total",
    ).to_stream().to("out-a")
    with TopologyTestDriver(builder.build()) as driver:
        changes = driver.create_input_topic("a", TEXT, LONG)
        changes.pipe_batch([("x", 1, 1), ("y", 2, 2)])
        changes.pipe_input("x", 3, 3)
        driver.create_input_topic("b", TEXT, LONG).pipe_input("x", 0, 4)
        told = driver.create_output_topic("out-b", TEXT, LONG).read_key_values()
        totals = driver.create_output_topic("out-a", TEXT, LONG).read_key_values()
    assert told == [("x", 302)]
    assert totals[-1] == ("all", 302 + 201)


def forwards(key: str, value: int, context: ProcessorContext) -> int:
    context.forward(Record(key, value, 1))
    return value


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda b, s, t: s.process(looks, stores=["nope"]), "called 'nope'"),
        (lambda b, s, t: s.process(looks, stores="table"), r"stores.*list"),
        (lambda b, s, t: s.process(looks, stores=["held"]), r"store.*alone"),
        (lambda b, s, t: s.process(looks, stores=["table", "table"]), "names 'table' twice"),
        (lambda b, s, t: b.add_state_store("balance"), "add_state_store takes .*Stores"),
        (lambda b, s, t: t.transform_values(add, stores=["nope"]), r"store.*called"),
        (lambda b, s, t: t.transform_values(Chosen), "takes a ValueTransformer class"),
        (lambda b, s, t: t.transform_values(lambda one: one), "takes 1 argument"),
        (lambda b, s, t: t.transform_values(ValueTransformer), "lacks transform"),
        (lambda b, s, t: s.process(Changes), "a Processor class"),
    ],
)
def test_what_cannot_be_is_told_with_its_cure(call: Callable[..., Any], says: str) -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=LONG, store="table")
    stream = builder.stream("s", key=TEXT, value=LONG)
    stream.deduplicate("1 hour", store="held")
    with pytest.raises(TopologyError, match=says):
        call(builder, stream, table)


def test_a_transformer_forwards_nothing() -> None:
    builder = StreamsBuilder()
    builder.table("t", key=TEXT, value=LONG, store="table").transform_values(forwards)
    with (
        TopologyTestDriver(builder.build()) as driver,
        pytest.raises(EverflowError, match="forwards"),
    ):
        driver.create_input_topic("t", TEXT, LONG).pipe_input("x", 1)


TTL = 10
GivenTimes = list[tuple[str, int, int]]
"""Key, value and time of records, in the order in which they come."""


def add_timed(record: Record, context: ProcessorContext) -> None:
    """Adds to the key's sum (a 9 deletes it), and tells it and how many keys there are."""
    sums = context.store("sums")
    if record.value == 9:
        sums.delete(record.key)
    else:
        sums.put(record.key, sums.get(record.key, 0) + record.value)
    entries = list(sums.all())
    assert sums.approximate_num_entries() == len(entries)
    assert sums.get_all([key for key, _ in entries]) == [value for _, value in entries]
    context.forward(record.with_value(1000 * len(entries) + sums.get(record.key, 0)))


def model(records: GivenTimes) -> tuple[list[int], dict[str, int]]:
    """What `add` tells, and the sums in the end."""
    held: dict[str, tuple[int, int]] = {}
    told, now = [], -1
    for key, value, time in records:
        now = max(now, time)
        held = {one: found for one, found in held.items() if found[1] + TTL > now}
        if value == 9:
            held.pop(key, None)
        elif time + TTL > now:
            held[key] = (held.get(key, (0, 0))[0] + value, time)
        told.append(1000 * len(held) + held.get(key, (0, 0))[0])
    return told, {key: value for key, (value, _) in held.items()}


def summing(**options: bool) -> Topology:
    builder = StreamsBuilder()
    sums = Stores.key_value("sums", key=TEXT, value=LONG, ttl=TTL, **options)
    builder.stream("in", key=TEXT, value=LONG).process(add_timed, stores=[sums]).to("out")
    return builder.build()


def drawn_times(seed: int, count: int = 80) -> GivenTimes:
    drawn_ = random.Random(seed)
    time, found = 0, []
    for _ in range(count):
        time += drawn_.choice((0, 0, 1, 2, 5, 15))
        early = drawn_.choice((0, 0, 0, 4, 11, 30))
        found.append((drawn_.choice("uvwxyz"), drawn_.randint(1, 9), max(0, time - early)))
    return found


@pytest.mark.parametrize("cut_at", [lambda at: True, lambda at: False, lambda at: at % 7 == 3])
def test_entries_end_at_the_same_record_under_any_cut(cut_at: Callable[[int], bool]) -> None:
    for seed in range(3):
        records = drawn_times(seed)
        told, left = model(records)
        with TopologyTestDriver(summing()) as driver:
            topic, pending = driver.create_input_topic("in", TEXT, LONG), []
            for at, record in enumerate(records):
                pending.append(record)
                if cut_at(at) or at == len(records) - 1:
                    topic.pipe_batch(pending)
                    pending = []
            out = driver.create_output_topic("out", TEXT, LONG)
            assert [one.value for one in out.read_records()] == told
            assert dict(driver.get_key_value_store("sums").all()) == left
            ends = len(list(driver.get_key_value_store("sums-ttl").all()))
            assert ends >= len(left)
            topic.pipe_input("last", 1, 10_000)
            assert dict(driver.get_key_value_store("sums").all()) == {"last": 1}
            assert len(list(driver.get_key_value_store("sums-ttl").all())) == 1


def test_an_entry_that_is_put_out_of_order_is_taken_out_at_its_earlier_end() -> None:
    with TopologyTestDriver(summing()) as driver:
        topic = driver.create_input_topic("in", TEXT, LONG)
        for key, time in (("a", 10), ("a", 3), ("b", 13)):
            topic.pipe_input(key, 1, time)
        assert dict(driver.get_key_value_store("sums").all()) == {"b": 1}


def test_when_entries_end_is_kept_where_the_entries_are() -> None:
    logged = internal_topics(cut(summing()), {"in": 1}, "app").changelog
    assert set(logged) == {"app-sums-changelog", "app-sums-ttl-changelog"}
    topology = summing(logging=False, in_memory=True)
    assert topology.in_memory == {"sums", "sums-ttl"}
    assert internal_topics(cut(topology), {"in": 1}, "app").changelog == {}


def test_processors_share_a_store_whose_entries_end() -> None:
    builder = StreamsBuilder()
    builder.add_state_store(Stores.key_value("sums", key=TEXT, value=LONG, ttl=TTL))
    for name in ("in", "more"):
        builder.stream(name, key=TEXT, value=LONG).process(add_timed, stores=["sums"]).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        first, second = (driver.create_input_topic(name, TEXT, LONG) for name in ("in", "more"))
        first.pipe_input("a", 1, 1)
        second.pipe_input("b", 2, 10)
        second.pipe_input("a", 3, 11)
        out = driver.create_output_topic("out", TEXT, LONG)
        assert [one.value for one in out.read_records()] == [1001, 2002, 2003]


@pytest.mark.parametrize("ttl", [0, -1])
def test_a_ttl_is_above_zero(ttl: int) -> None:
    with pytest.raises(TopologyError, match=rf"above 0.*{ttl}"):
        Stores.key_value("sums", key=TEXT, value=LONG, ttl=ttl)
