"""What operators do (reference 1.2, reference 1.3 and 1.4) in real segments, without a model."""

import re
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from everflow import (
    BufferConfig,
    EmitStrategy,
    JoinWindows,
    KStream,
    KTable,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    TopologyError,
    Windowed,
    serdes,
)
from everflow.errors import RecordError
from everflow.testing import OutputTopic, TopologyTestDriver
from everflow.topology.describe import as_json, as_mermaid

pytestmark = pytest.mark.spark

TEXT = serdes.string()
LONG = serdes.long()
SPLIT = serdes.json("a string, n int")


class Asked:
    """Gives another answer at each call, as a random split does; copies of it tell a file."""

    def __init__(self, log: Path, below: float) -> None:
        self.log, self.below = str(log), below

    def __call__(self, value: dict[str, int]) -> bool:
        with open(self.log, "a+") as file:
            file.write(f"{value['n']}\n")
            file.seek(0)
            times = file.read().split().count(str(value["n"]))
        return (value["n"] + times) % 4 / 4 < self.below


def read_branches(branches: dict[str, KStream], builder: StreamsBuilder, n: int) -> dict[str, Any]:
    for name, stream in branches.items():
        stream.to(name, value=SPLIT)
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, SPLIT).pipe_batch(
            [("k", {"n": i, "a": "x"}, i) for i in range(n)]
        )
        read = {name: driver.create_output_topic(name, TEXT, SPLIT) for name in branches}
        return {name: [r.value["n"] for r in topic.read_records()] for name, topic in read.items()}


def test_a_predicate_is_asked_once_about_each_record_no_branch_before_took(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    builder = StreamsBuilder()
    branches = (
        builder.stream("in", key=TEXT, value=SPLIT)
        .split()
        .branch(F.col("value.n") >= 90, name="column")
        .branch(Asked(log, 0.25), name="first")
        .branch(F.col("value.n") >= 80, name="between")
        .branch(Asked(log, 0.25), name="second")
        .branch(F.col("value.n") < 40, name="few")
        .branch(Asked(log, 0.25), name="third")
        .default_branch(name="rest")
    )
    found = read_branches(branches, builder, 100)
    assert sorted(n for listed in found.values() for n in listed) == list(range(100))
    assert found["column"] == list(range(90, 100))
    times = Counter(map(int, log.read_text().split()))
    assert not times.keys() & set(found["column"])
    for name, asked in {"first": 1, "between": 1, "second": 2, "few": 2, "third": 3}.items():
        assert found[name]
        assert {times[n] for n in found[name]} == {asked}, name
    assert {times[n] for n in found["rest"]} == {3}


def test_a_python_function_in_a_column_divides_a_stream_too(tmp_path: Path) -> None:
    log = tmp_path / "asked"
    asked = Asked(log, 0.5)
    builder = StreamsBuilder()
    branches = (
        builder.stream("in", key=TEXT, value=SPLIT)
        .split()
        .branch(F.udf(lambda n: asked({"n": n}), "boolean")(F.col("value.n")), name="first")
        .branch(F.col("value.n") > 5, name="large")
        .default_branch(name="rest")
    )
    found = read_branches(branches, builder, 9)
    assert found == {"first": [0, 3, 4, 7, 8], "large": [6], "rest": [1, 2, 5]}
    assert Counter(log.read_text().split()) == {str(n): 1 for n in range(9)}


NUMBERED = serdes.json("a string, n int")


def numbered(value: int | None, a: str = "x") -> dict[str, Any]:
    return {"a": a, "n": value}


def test_a_windowed_key_has_one_form_in_functions_and_their_results_outputs_and_views() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=NUMBERED)
    table = stream.group_by_key().windowed_by(TimeWindows.of_size(10)).count(store="w")
    counts = table.to_stream().filter(lambda window, count: window.start < 30)
    key_type = "key string, start bigint, end bigint"
    value_type = f"window struct<{key_type}>, n bigint"
    counts.map(
        lambda window, count: (
            window._replace(key=window.key.upper()),
            {"window": window, "n": count},
        ),
        returns=(serdes.time_windowed(TEXT, 10), value_type),
    ).to("mapped")
    twice = counts.flat_map(
        lambda window, count: [(window, count)] * 2, returns=(key_type, "bigint")
    )
    twice.to("twice", key=serdes.json(key_type))
    counts.to(lambda window, count: f"from-{window.start}")
    again = counts.group_by_key().aggregate(
        store="longest",
        initializer=lambda: None,
        aggregator=lambda window, n, _: window.end - window.start,
        returns="bigint",
    )
    again.to_stream().to("lengths")
    nested = (
        counts.group_by_key().windowed_by(SessionWindows.of_inactivity_gap(5)).count(store="nested")
    )
    nested.filter(lambda outer, count: outer.key.key == "a").to_stream().to("nested")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, NUMBERED).pipe_batch(
            [("a", numbered(1), 1), ("a", numbered(1), 2), ("a", numbered(1), 31)]
        )
        key, window = serdes.time_windowed(TEXT, 10), Windowed("a", 0, 10)
        mapped = driver.create_output_topic(
            "mapped", key, serdes.json(value_type)
        ).read_key_values()
        assert mapped == [(Windowed("A", 0, 10), {"window": window._asdict(), "n": 2})]
        read_twice = driver.create_output_topic(
            "twice", serdes.json(key_type), LONG
        ).read_key_values()
        assert read_twice == [(window._asdict(), 2)] * 2, "a topic in JSON has what JSON has"
        assert driver.create_output_topic("from-0", key, LONG).read_table() == {window: 2}
        assert driver.create_output_topic("lengths", key, LONG).read_table() == {window: 10}
        assert dict(driver.get_key_value_store("longest").all()) == {window: 10}
        sessions = driver.create_output_topic(
            "nested", serdes.session_windowed(key), LONG
        ).read_table()
        assert sessions == {Windowed(window, 2, 2): 1}
        assert dict(driver.get_window_store("w").all()) == {Windowed("a", 30, 40): 1}


RECORDS = [
    ("a", "x", 0),
    ("b", "x", 4),
    ("a", "y", 6),
    ("c", "x", 15),
    ("b", "y", 16),
    ("d", "", 26),
]


def test_a_grouped_table_takes_back_what_has_ended() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key=TEXT, value=TEXT, store="s", ttl=10)
    table.group_by(F.col("value"), name="g").count(store="n")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, TEXT).pipe_each(RECORDS[:5])

        assert dict(driver.get_key_value_store("n").all()) == {"x": 1, "y": 1}


def words_of(builder: StreamsBuilder) -> KStream:
    return builder.stream("in", key=TEXT, value=TEXT).flat_map_values(
        lambda value: value.split(), returns="string"
    )


def results_of(topology: Topology, *records: tuple[Any, Any, int]) -> list[tuple[Any, Any]]:
    with TopologyTestDriver(topology, emit_every_update=True) as driver:
        driver.pipe_batch({driver.create_input_topic("in", TEXT, TEXT): list(records)})
        return driver.create_output_topic("out", TEXT, TEXT).read_key_values()


WAYS: dict[str, Callable[[KStream], KStream]] = {
    "functions": lambda stream: stream.map_values(lambda v: v + "!", returns="string"),
    "Columns": lambda stream: stream.map_values(F.concat("value", F.lit("!"))),
    "a step behind a Column behind a step": lambda stream: stream.map_values(
        F.concat("value", F.lit("!"))
    ).peek(lambda key, value: None),
    "several steps": lambda stream: (
        stream.map_values(F.concat("value", F.lit("?")))
        .map_values(lambda v: v[:-1], returns="string")
        .map_values(F.concat("value", F.lit("!")))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_result_goes_all_its_ways_before_the_next_one(way: str) -> None:
    builder = StreamsBuilder()
    stream = words_of(builder)
    WAYS[way](stream).merge(stream).map_values(lambda v: v + ".", returns="string").to("out")
    found = results_of(builder.build(), ("a", "x y", 1), ("b", "z", 2))
    assert found == [
        ("a", "x!."),
        ("a", "x."),
        ("a", "y!."),
        ("a", "y."),
        ("b", "z!."),
        ("b", "z."),
    ]


@pytest.mark.parametrize("history", [None, "1 hour"])
def test_each_result_meets_the_table_as_it_has_made_it(history: str | None) -> None:
    builder = StreamsBuilder()
    stream = words_of(builder)
    table = stream.to_table(store=Materialized("s", history=history) if history else "s")
    both = F.concat("left", F.lit("&"), "right")
    stream.join(table, both).to("out")
    assert results_of(builder.build(), ("a", "x y", 1)) == [("a", "x&x"), ("a", "y&y")]


@pytest.mark.parametrize("history", [None, "1 hour"])
def test_a_table_has_an_entry_before_those_behind_it_ask(history: str | None) -> None:
    builder = StreamsBuilder()
    table = words_of(builder).to_table(store=Materialized("s", history=history) if history else "s")
    view = table.map_values(F.concat("value", F.lit("'")), store="view")
    both = F.concat("left", F.lit("&"), "right")
    table.join(view, both).to_stream().to("out")
    found = results_of(builder.build(), ("a", "x y", 1))
    assert found == [("a", "x&x'"), ("a", "x&x'"), ("a", "y&y'"), ("a", "y&y'")]


def test_nothing_is_late_because_of_its_neighbours() -> None:
    """Both go out with the last record; the second one's time closes the first one's window."""
    builder = StreamsBuilder()
    entries = (
        builder.table("in", key=TEXT, value=TEXT, store="s")
        .suppress(Suppressed.until_time_limit(50, BufferConfig.max_records(9)), store="b")
        .to_stream()
    )
    counts = (
        entries.group_by_key()
        .windowed_by(SlidingWindows(5, 100))
        .count(store="counts")
        .to_stream()
        .map(lambda key, count: (key.key, str(count)), returns=("string", "string"))
    )
    windows = counts.merge(entries).group_by_key(name="again").windowed_by(TimeWindows(10, 10, 0))
    last = windows.reduce(lambda one, other: f"{one}+{other}", store="last")
    last.to_stream().map(lambda key, value: (key.key, value), returns=("string", "string")).to(
        "out"
    )
    found = results_of(builder.build(), ("a", "x", 100), ("b", "y", 140), ("c", "z", 400))
    assert found == [("a", "1"), ("a", "1+x"), ("b", "1"), ("b", "1+y")]


RAW = serdes.bytes_()
COUNTED = serdes.json("a bigint")
TIMES = (1_000, 1_100, 9_000, 30_000)
EACH = [(1_000, "0"), (1_100, "1"), (9_000, "2"), (30_000, "3")]


def stream_of(builder: StreamsBuilder) -> KStream:
    return builder.stream("in", key=TEXT, value=COUNTED)


CASES: dict[str, tuple[Callable[[StreamsBuilder], KStream | KTable], list[tuple[int, str]]]] = {
    "windows that close": (
        lambda b: (
            stream_of(b)
            .group_by_key()
            .windowed_by(TimeWindows.of_size("1 s"))
            .emit_strategy(EmitStrategy.on_window_close())
            .count(store="s")
        ),
        [(1_100, "2"), (9_000, "3")],  # of the record that closed the window
    ),
    "sessions": (
        lambda b: (
            stream_of(b)
            .group_by_key()
            .windowed_by(SessionWindows.of_inactivity_gap("1 s"))
            .count(store="s")
        ),
        [(1_000, "0"), (1_000, "1"), *EACH[1:]],  # the second is the tombstone of the first
    ),
    "deduplicate": (
        lambda b: stream_of(b).deduplicate("1 s", store="s"),
        [(1_000, "0"), (9_000, "2"), (30_000, "3")],
    ),
}
"""What the oracle does not compare: Kafka Streams has others here, or no such operator."""


@pytest.mark.parametrize("case", CASES)
def test_a_result_has_the_headers_of_the_record_that_made_it(case: str) -> None:
    build, expected = CASES[case]
    builder = StreamsBuilder()
    made = build(builder)
    (made if isinstance(made, KStream) else made.to_stream()).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, COUNTED)
        for n, time in enumerate(TIMES):
            topic.pipe_input("k", {"a": n}, time, (("n", str(n).encode()),))
        records = driver.create_output_topic("out", RAW, RAW).read_records()
    found = [(record.timestamp, dict(record.headers).get("n")) for record in records]
    assert found == [(time, n.encode()) for time, n in expected]


def _held(builder: StreamsBuilder, close: Callable[[Any], KTable]) -> None:
    windows = stream_of(builder).group_by_key().windowed_by(TimeWindows(1_000, 1_000))
    closed = close(windows).to_stream()
    closed.map(key=F.col("key.key"), value=F.col("value").cast("string")).to("out")


@pytest.mark.parametrize("batches", [1, 3], ids=["one batch", "one by one"])
@pytest.mark.parametrize(
    ("close", "expected"),
    [
        (
            lambda windows: windows.count(store="s").suppress(
                Suppressed.until_window_closes(), store="held"
            ),
            b"1",
        ),
        (
            lambda windows: windows.emit_strategy(EmitStrategy.on_window_close()).count(store="s"),
            b"2",
        ),
    ],
    ids=["suppress", "emit_strategy"],
)
def test_what_was_held_back_has_the_headers_of_its_update_and_a_final_result_of_the_last_record(
    close: Callable[[Any], KTable], expected: bytes, batches: int
) -> None:
    builder = StreamsBuilder()
    _held(builder, close)
    records = [
        ("k", {"a": n}, time, [("n", str(n).encode()), ("n", None)])
        for n, time in enumerate([1_000, 1_100, 9_000])
    ]
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, COUNTED)
        for at in range(batches):
            topic.pipe_batch(records if batches == 1 else [records[at]])
        (found,) = driver.create_output_topic("out", RAW, RAW).read_records()
    assert (found.value, found.headers) == (b"2", (("n", expected), ("n", None)))


ENTRY = serdes.json("id string, n int")


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda s: s.deduplicate("1 second"), "deduplicate keeps"),
        (lambda s: s.deduplicate("0 s", store="s"), r"within is above 0, found 0 ms"),
        (lambda s: s.deduplicate("1 s", grace=-1, store="s"), r"grace.*negative.*-1"),
        (lambda s: s.deduplicate("1 s", by="value.id", store="s"), r"write F\.col\('value\.id'\)"),
        (lambda s: s.deduplicate("1 s", by=lambda v: v["id"], store="s"), r"deduplicate.*returns="),
        (
            lambda s: s.deduplicate("1 s", by=lambda a, b, c: a, returns="string", store="s"),
            r"deduplicate.*function",
        ),
        (lambda s: s.deduplicate("1 s", by=F.col("value.nothing"), store="s"), r"nothing"),
    ],
)
def test_what_cannot_work_is_refused(build: Callable[[KStream], KStream], message: str) -> None:
    stream = StreamsBuilder().stream("in", key=TEXT, value=ENTRY)
    with pytest.raises(TopologyError, match=message):
        build(stream)


def test_javas_short_boolean_float_and_lists_go_through_columns_functions_and_stores() -> None:
    """In the bytes that Java writes, in a changelog too."""
    short, floats, truth = serdes.short(), serdes.list_(serdes.float_()), serdes.boolean()
    builder = StreamsBuilder()
    lists = builder.table("in", key=short, value=floats, store="lists")
    lists.to_stream().map_values(F.size("value") > 1).to("long", value=truth)
    first = lists.to_stream().map_values(lambda value: value[0], returns=serdes.float_())
    first.filter(F.col("key") < 0).to("first")
    with TopologyTestDriver(builder.build(), application_id="app") as driver:
        given = driver.create_input_topic("in", short, floats)
        given.pipe_batch([(-2, [1.5, None]), (258, [0.25]), (-2, [0.5])])
        raw = serdes.bytes_()
        told = {
            topic: dict(driver.create_output_topic(topic, raw, raw).read_key_values())
            for topic in ("app-lists-changelog", "long", "first")
        }
        assert dict(driver.get_key_value_store("lists").all()) == {-2: [0.5], 258: [0.25]}
    minus_two, other = b"\xff\xfe", b"\x01\x02"
    one = b"\x00" + b"\x00" * 4 + b"\x00\x00\x00\x01"
    assert told["app-lists-changelog"] == {
        minus_two: one + b"\x3f\x00\x00\x00",
        other: one + b"\x3e\x80\x00\x00",
    }
    assert told["long"] == {minus_two: b"\x00", other: b"\x00"}
    assert told["first"] == {minus_two: b"\x3f\x00\x00\x00"}


def told(out: OutputTopic) -> list[tuple[str | None, str | None, int]]:
    return [(one.key, one.value, one.timestamp) for one in out.read_records()]


def test_headers_and_times_survive_the_wait() -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t")
    stream = builder.stream("s", key=TEXT, value=serdes.json("n bigint, who string"))
    keyed = stream.select_key(F.col("value.who"))
    keyed.lookup_join(
        table,
        lambda key, left, right: f"{key} {left['n']} {right}",
        returns="string",
        grace="1 hour",
        store="waiting",
        name="by-who",
    ).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        record = driver.create_input_topic("s", TEXT, serdes.json("n bigint, who string"))
        record.pipe_input("k", {"n": 1, "who": "ann"}, 5, headers=(("h", b"1"), ("g", None)))
        record.pipe_input("k", {"n": 2, "who": "ann"}, 4)
        driver.create_input_topic("t", TEXT, TEXT).pipe_input("ann", "Rome", 99)
        found = driver.create_output_topic("out", TEXT, TEXT).read_records()
    assert [(one.key, one.value, one.timestamp, tuple(one.headers)) for one in found] == [
        ("ann", "ann 1 Rome", 5, (("h", b"1"), ("g", None))),
        ("ann", "ann 2 Rome", 4, ()),
    ]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ahead_ms", [5_002, 50 * 365 * 86_400_000])
def test_a_record_of_a_fast_clock_waits_its_timeout_at_most(ahead_ms: int, whole: bool) -> None:
    builder = StreamsBuilder()
    one = builder.global_table if whole else builder.table
    table = one("t", key=TEXT, value=TEXT, store="t")
    stream = builder.stream("s", key=TEXT, value=TEXT)
    value, on = F.coalesce(F.col("right"), F.lit("none")), F.col("key") if whole else None
    stream.lookup_join(table, value, on=on, timeout="5 seconds", store="waiting").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        entry = driver.create_input_topic("t", TEXT, TEXT)
        record = driver.create_input_topic("s", TEXT, TEXT)
        out = driver.create_output_topic("out", TEXT, TEXT)
        driver.advance_wall_clock_time(ahead_ms)
        record.pipe_input("a", "A", 100, headers=(("h", b"1"),))
        record.pipe_input("b", "B", 101)
        driver.advance_wall_clock_time(-ahead_ms)  # the clock is right again: 0
        entry.pipe_input("b", "y", 0)  # a wait that is looked at anew ends as any other
        driver.advance_wall_clock_time(1_000)
        assert told(out) == [("b", "y", 101)]
        driver.advance_wall_clock_time(3_999)
        assert told(out) == []
        driver.advance_wall_clock_time(1_001)
        (found,) = out.read_records()
        assert (found.key, found.value, found.timestamp) == ("a", "none", 100)
        assert list(found.headers) == [("h", b"1")]
        driver.advance_wall_clock_time(ahead_ms)
        assert told(out) == []
        state = driver._stores["waiting"]
        assert len(state) == 1, "of who has waited nothing is left but the next number"


def test_a_global_table_has_a_number_and_no_task() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("g", key=TEXT, value=TEXT, store="g")
    stream = builder.stream("s", key=TEXT, value=TEXT)
    stream.join(table, on=F.col("value"), name="enriched").to("out")
    topology = builder.build()
    assert topology.describe() == (
        "Topologies:\n"
        "   Sub-topology: 0 for global store (will not generate tasks)\n"
        "    Source: KSTREAM-SOURCE-0000000000 (topics: [g])\n"
        "      --> KTABLE-SOURCE-0000000001\n"
        "    Processor: KTABLE-SOURCE-0000000001 (stores: [g])\n"
        "      --> none\n"
        "      <-- KSTREAM-SOURCE-0000000000\n"
        "  Sub-topology: 1\n"
        "    Source: KSTREAM-SOURCE-0000000002 (topics: [s])\n"
        "      --> enriched\n"
        "    Processor: enriched (stores: [])\n"
        "      --> KSTREAM-SINK-0000000003\n"
        "      <-- KSTREAM-SOURCE-0000000002\n"
        "    Sink: KSTREAM-SINK-0000000003 (topic: out)\n"
        "      <-- enriched\n"
        "\n"
    )
    assert '"global": true' in as_json(topology)
    assert 'subgraph sub0["Sub-topology 0"]' in as_mermaid(topology)
    assert "reads s, g; keeps g; writes out" in repr(topology)
    assert table.queryable_store_name == "g"
    assert repr(table) == "GlobalKTable(KTABLE-SOURCE-0000000001: string -> string)"


def test_a_program_of_global_tables_alone_is_refused() -> None:
    builder = StreamsBuilder()
    builder.global_table("g", key=TEXT, value=TEXT, store="g")
    with pytest.raises(TopologyError, match=r"begin with builder\.stream\('topic'\)"):
        builder.build()


# The driver's partitions.


ORDER = serdes.json("customer string")
CUSTOMERS = [f"c{number}" for number in range(40)]


def orders_with_customers(**of_table: Any) -> Topology:
    builder = StreamsBuilder()
    customers = builder.table("customers", key=TEXT, value=TEXT, store="customers", **of_table)
    orders = builder.stream("orders", key=TEXT, value=ORDER)
    joined = orders.select_key(F.col("value.customer")).left_join(customers, name="by-customer")
    joined.map_values(F.coalesce(F.col("value.right"), F.lit("?"))).to("out", value=TEXT)
    return builder.build()


def unmatched(driver: TopologyTestDriver, producer: str | Callable[..., int] | None) -> int:
    customers = driver.create_input_topic("customers", TEXT, TEXT, partitioner=producer)
    orders = driver.create_input_topic("orders", TEXT, ORDER)
    for customer in CUSTOMERS:
        customers.pipe_input(customer, f"city of {customer}", 1)
        orders.pipe_input(f"order of {customer}", {"customer": customer}, 2)
    values = [value for _, value in driver.create_output_topic("out", TEXT, TEXT).read_key_values()]
    assert len(values) == len(CUSTOMERS)
    return values.count("?")


def test_matches_that_a_producer_in_python_loses_are_lost_in_the_driver() -> None:
    with TopologyTestDriver(orders_with_customers(), partitions=4) as driver:
        assert unmatched(driver, "crc32") > 20
        driver.reset()
        assert unmatched(driver, "murmur2") == 0
        driver.reset()
        assert unmatched(driver, None) == 0
    with TopologyTestDriver(orders_with_customers()) as driver:
        assert unmatched(driver, "crc32") == 0


def own(topic: str, key: str, value: None, partitions: int) -> int:
    assert (topic, value) == ("customers", None)
    return int(key[1:]) % partitions


@pytest.mark.parametrize("by", ["crc32", "fnv1a", "murmur2", own])
def test_a_source_that_says_its_partitioner_loses_nothing(by: str | Callable[..., int]) -> None:
    with TopologyTestDriver(orders_with_customers(partitioner=by), partitions=4) as driver:
        assert unmatched(driver, None) == 0
        store = driver.get_key_value_store("customers")
        assert dict(store.all()) == {one: f"city of {one}" for one in CUSTOMERS}
        assert [store.get(one) for one in CUSTOMERS] == [f"city of {one}" for one in CUSTOMERS]
        assert store.get("c99") is None
        driver.reset()
        assert unmatched(driver, "murmur2" if by == "crc32" else "crc32") > 20


def test_a_key_that_lies_in_two_partitions_is_counted_twice() -> None:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=TEXT, value=TEXT)
    clicks.group_by_key().count(store="counts").to_stream().to("out")
    with TopologyTestDriver(builder.build(), partitions={"clicks": 3}) as driver:
        topic = driver.create_input_topic("clicks", TEXT, TEXT)
        home = zlib.crc32(b"a") % 3
        for partition in (0, 1, 1, 2):
            topic.pipe_input("a", "", 1, partition=partition)
        store = driver.get_key_value_store("counts")
        assert sorted(store.all()) == [("a", 1), ("a", 1), ("a", 2)]
        assert store.get("a") in (1, 2)
        topic.pipe_raw(b"a", b"", 2, partition=home)
        with pytest.raises(ValueError, match="partitions 0 to 2"):
            topic.pipe_input("a", "", 1, partition=3)


def test_streams_that_are_joined_and_a_fleet_of_windows_keep_their_partitions() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(name, key=TEXT, value=TEXT) for name in ("l", "r"))
    windows = JoinWindows.of_time_difference(10)
    pairs = left.select_key(F.col("value")).join(
        right.select_key(F.col("value")), windows=windows, store="pairs", name="by-value"
    )
    pairs.map_values(F.col("value.left")).group_by_key().count(store="counts")
    with TopologyTestDriver(builder.build(), partitions=5) as driver:
        lefts, rights = (driver.create_input_topic(name, TEXT, TEXT) for name in ("l", "r"))
        driver.pipe_batch({lefts: [(f"k{n}", f"v{n}", 1) for n in range(30)]})
        driver.pipe_batch({rights: [(f"x{n}", f"v{n}", 2) for n in range(30)]})
        counts = driver.get_key_value_store("counts")
        assert dict(counts.all()) == {f"v{n}": 1 for n in range(30)}
        assert list(counts.all()) == sorted(counts.all())


def test_versions_and_windows_of_several_partitions_are_found() -> None:
    builder = StreamsBuilder()
    builder.table("t", key=TEXT, value=TEXT, store=Materialized("t", history=100))
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.group_by_key().windowed_by(TimeWindows.of_size(10)).count(store="windows")
    with TopologyTestDriver(builder.build(), partitions=3) as driver:
        table = driver.create_input_topic("t", TEXT, TEXT)
        records = driver.create_input_topic("in", TEXT, TEXT)
        for n in range(12):
            table.pipe_input(f"k{n}", f"v{n}", 10)
            table.pipe_input(f"k{n}", f"w{n}", 20)
            records.pipe_input(f"k{n}", "", 15)
        versions, windows = driver.get_versioned_store("t"), driver.get_window_store("windows")
        for n in range(12):
            before = versions.get_as_of(f"k{n}", 15)
            assert before is not None
            assert before.value == f"v{n}"
            assert versions.get(f"k{n}") == f"w{n}"
            assert windows.fetch(f"k{n}", 10) == 1
        assert len(list(windows.all())) == 12


def test_topics_that_would_not_meet_are_refused_as_on_a_broker() -> None:
    topology = orders_with_customers()
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t")
    builder.stream("s", key=TEXT, value=TEXT).join(table).to("out")
    with pytest.raises(TopologyError) as raised:
        TopologyTestDriver(builder.build(), partitions={"t": 2, "s": 3})
    assert raised.value.code == "EF-COPARTITION"
    for wrong in (0, {"orders": -1}, True):
        with pytest.raises(TopologyError, match=r"partitions.*0"):
            TopologyTestDriver(topology, partitions=wrong)


def test_a_join_by_a_foreign_key_finds_tables_of_other_producers() -> None:
    builder = StreamsBuilder()
    orders = builder.table("orders", key=TEXT, value=ORDER, store="orders", partitioner="crc32")
    customers = builder.table(
        "customers", key=TEXT, value=TEXT, store="customers", partitioner="fnv1a"
    )
    joined = orders.join(customers, on=F.col("value.customer"), name="of-customer")
    joined.map_values(F.col("value.right")).to_stream().to("out", value=TEXT)
    partitions = {"orders": 2, "customers": 3}
    with TopologyTestDriver(builder.build(), partitions=partitions) as driver:
        asked = driver.create_input_topic("orders", TEXT, ORDER)
        told = driver.create_input_topic("customers", TEXT, TEXT)
        for n in range(30):
            asked.pipe_input(f"o{n}", {"customer": f"c{n}"}, 1)
            told.pipe_input(f"c{n}", f"city {n}", 2)
        out = driver.create_output_topic("out", TEXT, TEXT).read_table()
        assert out == {f"o{n}": f"city {n}" for n in range(30)}


def nowhere() -> Any:
    return F.array().cast("array<int>")


def written(partitioner: Any, topic: Any = "out", rows: tuple[int, ...] = (0, 1, 2)) -> list[int]:
    """The values that are written; every topic of a driver has one partition."""
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=LONG).to(topic, partitioner=partitioner)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", TEXT, LONG)
        source.pipe_batch([("k", row) for row in rows])
        out = driver.create_output_topic("out", TEXT, LONG)
        return [value for _, value in out.read_key_values()]


def asked(topic: str, key: str, value: int, partitions: int) -> Any:
    assert (topic, key, partitions) == ("out", "k", 1)
    return [None, [0], []][value]


@pytest.mark.parametrize(
    ("partitioner", "topic"),
    [
        (lambda: F.when(F.col("value") < 2, F.array(F.lit(0))).otherwise(nowhere()), "out"),
        (lambda: asked, "out"),
        (lambda: asked, lambda value: "out"),
        (lambda: asked, lambda: F.lit("out")),
    ],
)
def test_no_partition_drops_it_and_none_leaves_it_to_the_key(partitioner: Any, topic: Any) -> None:
    StreamsBuilder()
    given = topic() if callable(topic) and topic.__code__.co_argcount == 0 else topic
    assert written(partitioner(), given) == [0, 1]


def test_a_column_of_numbers_says_the_partition() -> None:
    StreamsBuilder()
    null = F.when(F.col("value") > 0, F.lit(0))
    assert written(null) == [0, 1, 2]


@pytest.mark.parametrize(
    ("partitioner", "says"),
    [
        (lambda: F.col("value"), r"1.*partitions 0.*0.*in-0@1"),
        (lambda: F.array("value"), r"1.*partitions 0.*0.*in-0@1"),
        (lambda: lambda topic, key, value, count: -value, r"gave -1; out has .*in-0@1"),
        (lambda: lambda topic, key, value, count: str(value), r"gave '0'; out has .*in-0@0"),
        (lambda: lambda topic, key, value, count: {0, "a"}, r"gave 'a'; out has .*in-0@0"),
        (lambda: lambda topic, key, value, count: [[0]], r"gave \[0\]; out has .*in-0@0"),
        (lambda: lambda topic, key, value, count: 1 / 0, r"ZeroDivisionError.*in-0@0"),
    ],
)
def test_a_partition_that_is_not_there_names_the_record(partitioner: Any, says: str) -> None:
    StreamsBuilder()
    with pytest.raises(RecordError, match=says):
        written(partitioner())


MISTAKES: dict[str, tuple[Any, str]] = {
    "a number": (
        lambda s: s.to("out", partitioner=3),
        "to: partitioner takes a Column or a Python",
    ),
    "a name": (lambda s: s.to("out", partitioner="value"), r"F\.col\('value'\)"),
    "a text": (lambda s: s.to("out", partitioner=F.col("key")), "is string; it is the number of"),
    "too few": (
        lambda s: s.to("out", partitioner=lambda value: 1),
        r"calls its function with \(topic, key, value, partitions\)",
    ),
    "a udf's Column": (
        lambda s: s.to("out", partitioner=F.udf(lambda value: 1, LongType())("value")),
        "cannot be a Column that calls Python functions",
    ),
    "both Columns": (
        lambda s: s.to(F.col("key"), partitioner=F.col("value")),
        "partitioner and topic are both Columns; give one of them as a function",
    ),
    "of a repartition topic": (
        lambda s: s.repartition(name="r", partitioner=F.col("key")),
        "repartition: partitioner: .* is string",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_partitioner_that_is_none_is_refused_at_its_line(mistake: str) -> None:
    call, says = MISTAKES[mistake]
    stream: KStream = StreamsBuilder().stream("in", key=TEXT, value=LONG)
    with pytest.raises(TopologyError, match=says) as raised:
        call(stream)
    assert f"{__file__}:" in str(raised.value)


def test_numbers_of_numpy_are_numbers() -> None:
    assert written(lambda topic, key, value, count: np.int32(0)) == [0, 1, 2]


def of_pattern(pattern: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(re.compile(pattern), key=TEXT, value=TEXT)
    stream.map_values(F.concat("topic", F.lit(" "), "value")).to("out")
    stream.group_by_key().count(store="n").to_stream().to("counts", value=serdes.long())
    return builder.build()


def test_all_topics_that_match_as_a_whole_are_one_stream() -> None:
    existing = [
        *("orders-eu", "orders-us", "orders", "my-orders-eu", "__orders-x"),
        "a-n-changelog",
    ]
    with TopologyTestDriver(
        of_pattern(r".*orders-.*|.*changelog"), topics=existing, application_id="a"
    ) as driver:
        europe, america, mine = (
            driver.create_input_topic(name, TEXT, TEXT)
            for name in ("orders-eu", "orders-us", "my-orders-eu")
        )
        europe.pipe_input("k", "1", 5)
        driver.pipe_batch({america: [("k", "3", 9)], mine: [("k", "2", 7)]})
        out = driver.create_output_topic("out", TEXT, TEXT)
        assert [value for _, value in out.read_key_values()] == [
            *("orders-eu 1", "my-orders-eu 2", "orders-us 3")
        ]
        assert driver.get_key_value_store("n").get("k") == 3
        for topic in ("orders", "__orders-x", "a-n-changelog"):
            with pytest.raises(TopologyError, match="topic"):
                driver.create_input_topic(topic, TEXT, TEXT)


def test_the_pattern_is_shown_before_there_are_topics() -> None:
    """As in Kafka Streams, without brackets."""
    assert "Source: KSTREAM-SOURCE-0000000000 (topics: in\\..*)" in of_pattern(r"in\..*").describe()


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        (["other"], r"no topic .*'in\.\*'; create"),
        ([], r"TopologyTestDriver\(topology.*topics="),
    ],
)
def test_a_pattern_without_a_topic(topics: list[str], says: str) -> None:
    with pytest.raises(TopologyError, match=says) as caught:
        TopologyTestDriver(of_pattern("in.*"), topics=topics)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


def test_a_topic_belongs_to_one_source() -> None:
    builder = StreamsBuilder()
    builder.stream("in-a", key=TEXT, value=TEXT).for_each(print)
    builder.stream(re.compile("in-.*"), key=TEXT, value=TEXT).for_each(print)
    with pytest.raises(
        TopologyError, match=r"'in-a' matches the pattern 'in-\.\*', and the source"
    ):
        TopologyTestDriver(builder.build(), topics=["in-a", "in-b"])
