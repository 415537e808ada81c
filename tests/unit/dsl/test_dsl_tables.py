"""Tables, windows and joins in time: what is refused with the cure, and what needs no model."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    BufferConfig,
    CountWindows,
    EmitStrategy,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    agg,
    serdes,
)
from everflow.dsl.streams import SessionWindowedKStream
from everflow.operators import PythonAggregateSpec, SessionAggregateSpec
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import StatefulNode
from unit.builders import PUBLIC

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()
TEN = TimeWindows.of_size(10)
CLOSED = Suppressed.until_window_closes()
FEW = Suppressed.until_window_closes(BufferConfig.max_records(5))
X = {"store": "x", "returns": "string"}


class World:
    """Streams and tables of one builder, and a stream of another."""

    def __init__(self) -> None:
        self.builder = StreamsBuilder()
        self.stream = self.builder.stream("s", key=TEXT, value=LONG)
        self.numbers = self.builder.stream("n", key=LONG, value=LONG)
        self.table = self.builder.table("t", key=TEXT, value=TEXT, store="t")
        self.groups = self.stream.group_by_key()
        self.windowed = self.groups.windowed_by(TEN)
        self.of_three = self.groups.windowed_by(CountWindows.of_size(3)).count(store="of-three")
        self.foreign = StreamsBuilder().stream("f", key=TEXT, value=LONG).group_by_key()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("w.table.group_by(F.col('value'))", "write group_by"),
        ("w.table.group_by('value', name='g')", r"Column.*Python function.*'value'"),
        ("w.table.group_by(F.col('value.x'), name='g')", "cannot be used here"),
        ("w.table.group_by(lambda v: v, name='g')", "add returns="),
        ("w.table.group_by(lambda a, b, c: a, name='g', returns='string')", "takes 3 arguments"),
        ("w.table.group_by(lambda v: v, F.col('value'), name='g', returns='string')", "returns bo"),
        ("w.table.group_by(lambda v: v, name='g', returns=('string',) * 3)", "names 3 types"),
        ("w.table.group_by(F.col('value'), name='g', key_serde=LONG)", "cannot write"),
        ("w.table.group_by(F.col('value'), name='g').count()", r"store.*name"),
        ("w.by_value.aggregate(store='x', m=agg.max('value'))", "agg.max cannot take back"),
        ("w.by_value.aggregate(store='x', m=agg.collect_list('value'))", "cannot take back"),
        ("w.by_value.aggregate(store='x')", "either built-ins, e.g."),
        ("w.by_value.aggregate(store='x', initializer=list, n=agg.count())", "either built-ins"),
        ("w.by_value.aggregate(store='x', initializer=list, returns='string')", "found None"),
        ("w.by_value.reduce(max, store='x')", "subtractor"),
        ("w.by_value.reduce(lambda a: a, lambda a, v: a, store='x')", r"reduce.*adder"),
        ("w.table.suppress('1 minute', store='x')", "suppress takes Suppressed.until"),
        ("w.table.suppress(Suppressed.until_window_closes(), store='x')", r"tables.*wind"),
        ("w.of_three.filter(print).suppress(CLOSED, store='x')", r"windows.*on_window_close"),
        ("w.table.suppress(Suppressed.until_time_limit(1))", r"store.*name"),
        ("Suppressed.until_time_limit(-1)", r"limit.*negative"),
        ("BufferConfig.max_records(0)", r"max_records.*number"),
        ("BufferConfig.max_bytes('1 MB')", r"max_bytes.*number"),
        ("w.windowed.count(store='c').suppress(FEW, store='x')", r"results.*final"),
        ("w.stream.join(w.held, name='j')", "suppress keeps"),
        ("w.windowed.emit_strategy('close')", "emit_strategy takes EmitStrategy"),
        ("w.groups.cogroup(max).cogroup(w.stream, max)", "write other.group_by_key"),
        ("w.groups.cogroup(max).cogroup(w.foreign, max)", "of the same StreamsBuilder"),
        ("w.groups.cogroup(max).cogroup(w.numbers.group_by_key(), max)", r"group.*group_by"),
        ("w.groups.cogroup(add).aggregate(list, returns='string')", r"store.*name"),
        ("w.groups.cogroup(add).aggregate(list, store='x')", "add returns="),
        ("w.groups.cogroup(len).aggregate(list, store='x', returns='string')", "takes 1 argum"),
        ("w.groups.cogroup(add).windowed_by('1 hour')", "windowed_by takes TimeWindows"),
        (
            "w.groups.cogroup(add).windowed_by(SessionWindows(5)).aggregate(list, len, **X)",
            "merger",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(call: str, says: str) -> None:
    world = World()
    names = {**PUBLIC, **globals(), "w": world, "add": lambda value, kept: kept}
    if "by_value" in call:
        setattr(world, "by_value", world.table.group_by(F.col("value"), name="g"))  # noqa: B010
    if "held" in call:
        limit = Suppressed.until_time_limit(5)
        setattr(world, "held", world.table.suppress(limit, store="h"))  # noqa: B010
    with pytest.raises(TopologyError, match=says) as error:
        eval(compile(call, "program.py", "eval"), names)
    assert "program.py:1" in str(error.value)


def test_a_grouped_stream_that_comes_twice_is_aggregated_twice() -> None:
    """In the original the second aggregator takes the first one's place."""
    builder = StreamsBuilder()
    groups = builder.stream("s", key=TEXT, value=TEXT).group_by_key()
    first = groups.cogroup(lambda value, total: total + "1" + value)
    both = first.cogroup(groups, lambda value, total: total + "2" + value)
    both.aggregate(str, store="c", returns="string").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("s", TEXT, TEXT).pipe_input("a", "x")
        records = driver.create_output_topic("out", TEXT, TEXT).read_records()
    assert [record.value for record in records][-1] == "1x2x"


def test_late_is_what_is_late_for_all_cogrouped_streams() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(name, key=TEXT, value=LONG) for name in ("left", "right"))
    both = left.group_by_key().cogroup(lambda value, total: total + value)
    both = both.cogroup(right.group_by_key(), lambda value, total: total - value)
    both.windowed_by(TEN).aggregate(int, store="n", returns="bigint").to_stream().map_values(
        F.col("value")
    ).map(lambda key, value: (key.key, value), returns=("string", "bigint")).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topics = [driver.create_input_topic(name, TEXT, LONG) for name in ("left", "right")]
        topics[0].pipe_input("a", 5, 1)
        topics[1].pipe_input("a", 2, 4)
        topics[0].pipe_input("a", 1, 10)
        topics[1].pipe_input("a", 1, 5)
        out = driver.create_output_topic("out", TEXT, LONG)
        assert [one.value for one in out.read_records()] == [5, 3, 1]


def test_a_table_says_by_which_name_its_entries_are_queried() -> None:
    world, closing = World(), EmitStrategy.on_window_close()
    table, counts = world.table, world.windowed.count(store="n")
    final = world.groups.windowed_by(TEN).emit_strategy(closing).count(store="final")
    other = world.builder.table("o", key=TEXT, value=TEXT, store=Materialized("o", history=5))
    tables = {
        "t": table,
        "n": counts,
        "final": final,
        "o": other,
        "kept": table.map_values(F.col("value"), store="kept"),
        "both": table.join(other, F.col("left"), store="both"),
        "by-user-code": table.transform_values(lambda key, value: value, store="by-user-code"),
        "cities": table.group_by(F.col("value"), name="by-value").count(store="cities"),
    }
    assert [one.queryable_store_name for one in tables.values()] == [*tables]
    in_no_store = [
        table.filter(F.col("value") != ""),
        table.map_values(F.col("value")),
        table.join(other, F.col("left")),
        table.transform_values(lambda key, value: value),
        counts.suppress(Suppressed.until_window_closes(), store="held"),
    ]
    assert [one.queryable_store_name for one in in_no_store] == [None] * 5


SLIDING_TEN = SlidingWindows.of_time_difference(10)


def driver_of(made: Callable[[Any], Any]) -> TopologyTestDriver:
    """Of a table made of groups of the topic ``in``; its results go to ``out``."""
    builder = StreamsBuilder()
    table = made(builder.stream("in", key=TEXT, value=LONG).group_by_key())
    table.to_stream().to("out")
    return TopologyTestDriver(builder.build())


def told(driver: TopologyTestDriver, *records: tuple[str, int | None, int]) -> list[Any]:
    """(start, end, value, time) of what each record gives."""
    topic = driver.create_input_topic("in", TEXT, LONG)
    out = driver.create_output_topic("out", serdes.time_windowed(TEXT, 10), LONG)
    found = []
    for record in records:
        topic.pipe_input(*record)
        found.append([(*one.key[1:], one.value, one.timestamp) for one in out.read_records()])
    return found


def test_cogrouped_streams_share_their_windows() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(name, key=TEXT, value=LONG) for name in ("in", "right"))
    both = left.group_by_key().cogroup(lambda value, total: total + value)
    both = both.cogroup(right.group_by_key(), lambda value, total: total - value)
    both.windowed_by(SLIDING_TEN).aggregate(int, store="n", returns="bigint").to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        assert told(driver, ("a", 5, 20)) == [[(10, 20, 5, 20)]]
        topic = driver.create_input_topic("right", TEXT, LONG)
        topic.pipe_input("a", None, 24)
        topic.pipe_input("a", 2, 25)
        out = driver.create_output_topic("out", serdes.time_windowed(TEXT, 10), LONG)
        assert [(one.key.start, one.value) for one in out.read_records()] == [(21, -2), (15, 3)]


def test_a_window_gives_its_result_when_stream_time_has_passed_its_end_and_grace() -> None:
    def closed(groups: Any) -> Any:
        windows = groups.windowed_by(SLIDING_TEN.grace(5))
        return windows.emit_strategy(EmitStrategy.on_window_close()).count(store="n")

    with driver_of(closed) as driver:
        assert told(driver, ("a", 1, 20), ("b", 1, 25), ("a", 1, 15), ("b", 1, 26)) == [
            [],
            [],
            [],
            [(10, 20, 2, 20)],
        ]


def test_suppress_lets_a_window_out_when_stream_time_has_reached_its_end_and_grace() -> None:
    def closed(groups: Any) -> Any:
        counts = groups.windowed_by(SLIDING_TEN.grace(5)).count(store="n")
        return counts.suppress(Suppressed.until_window_closes(), store="held")

    with driver_of(closed) as driver:
        assert told(driver, ("a", 1, 20), ("b", 1, 24), ("b", 1, 25)) == [[], [], [(10, 20, 1, 20)]]


SESSIONS = SessionWindows.of_inactivity_gap("5 minutes").grace("1 minute")


@pytest.fixture
def builder() -> StreamsBuilder:
    return StreamsBuilder()


@pytest.fixture
def sessions(builder: StreamsBuilder) -> SessionWindowedKStream:
    orders = builder.stream(
        "orders", key=serdes.string(), value=serdes.json("item string, amount double")
    )
    return orders.group_by_key().windowed_by(SESSIONS)


def last(builder: StreamsBuilder) -> StatefulNode:
    node = builder.build().nodes[-1]
    assert isinstance(node, StatefulNode)
    return node


def test_a_count_keeps_sessions(sessions: SessionWindowedKStream, builder: StreamsBuilder) -> None:
    table = sessions.count(store="visits")
    node = last(builder)
    assert node.label == "AGGREGATE"
    assert [field.name for field in node.out.key] == ["key", "start", "end"]
    store = node.stores[0]
    assert (store.kind, store.retention_ms, store.window_size_ms, store.expires) == (
        "session",
        360_000,
        None,
        True,
    )
    assert table.edge.key_serde == serdes.session_windowed(serdes.string())
    assert isinstance(node.operator, SessionAggregateSpec)
    assert node.operator.windows == SESSIONS


@pytest.mark.parametrize(
    "merger", [lambda one, two: one + two, lambda key, one, two: one + two, operator.add]
)
def test_functions_may_do_without_the_key(
    merger: Any, sessions: SessionWindowedKStream, builder: StreamsBuilder
) -> None:
    sessions.aggregate(
        initializer=int,
        aggregator=lambda value, n: n + 1,
        merger=merger,
        store="n",
        returns="bigint",
    )
    spec = last(builder).operator
    assert isinstance(spec, SessionAggregateSpec)
    assert isinstance(spec.layout, PythonAggregateSpec)
    assert spec.merger is not None
    assert spec.merger("k", 3, 4) == 7
    assert spec.layout.aggregator("k", {}, None) == 1


def test_a_field_may_be_merger(sessions: SessionWindowedKStream, builder: StreamsBuilder) -> None:
    sessions.aggregate(store="n", merger=agg.count())
    assert [field.name for field in last(builder).out.value] == ["merger"]


def test_a_built_in_merges_no_key(
    sessions: SessionWindowedKStream, builder: StreamsBuilder
) -> None:
    sessions.aggregate(
        initializer=int, aggregator=lambda value, n: n + 1, merger=max, store="n", returns="bigint"
    )
    spec = last(builder).operator
    assert isinstance(spec, SessionAggregateSpec)
    assert spec.merger is not None
    assert spec.merger("k", 3, 4) == 4
