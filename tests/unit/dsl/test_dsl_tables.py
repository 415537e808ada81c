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
    JoinWindows,
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
from everflow.operators.joins import StreamStreamJoin
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import StatefulNode
from everflow.topology.subtopologies import cut, internal_topics
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
        ("w.table.group_by(F.col('value.x'), name='g')", "cannot be used"),
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


# Options of one store.

SLIDING = SlidingWindows.of_time_difference(5)
WINDOWS: dict[str, Any] = {"tumbling": TEN, "sliding": SLIDING, "sessions": SessionWindows(10)}


def counted(windows: Any, store: str | Materialized) -> TopologyTestDriver:
    builder = StreamsBuilder()
    groups = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
    groups.windowed_by(windows).count(store=store).to_stream().for_each(lambda key, value: None)
    return TopologyTestDriver(builder.build())


def kept(driver: TopologyTestDriver, windows: Any, *times: int) -> set[int]:
    """Ends of the windows that the store shows after records of these times."""
    topic = driver.create_input_topic("in", TEXT, TEXT)
    for time in times:
        topic.pipe_input("a", "x", time)
    sessions = isinstance(windows, SessionWindows)
    view = driver.get_session_store("n") if sessions else driver.get_window_store("n")
    return {window.end for window, _ in view.all()}


@pytest.mark.parametrize("kind", WINDOWS)
def test_closed_windows_stay_for_their_retention(kind: str) -> None:
    windows, times = WINDOWS[kind], (20, 60, 100)
    with counted(windows, "n") as driver:
        last = kept(driver, windows, *times)
    with counted(windows, Materialized("n", retention=60)) as driver:
        more = kept(driver, windows, *times)
    with counted(windows, Materialized("n", retention="1 hour")) as driver:
        all_ = kept(driver, windows, *times)
    assert [len(last), len(more), len(all_)] == [1, 2, 3]
    assert last < more < all_


def test_a_session_meets_what_its_store_shows() -> None:
    """At exactly gap + grace behind its end the default shows it no more, and it is not closed."""
    windows = SessionWindows.of_inactivity_gap(10)
    counts = []
    for store in ("n", Materialized("n", retention=11)):
        with counted(windows, store) as driver:
            topic = driver.create_input_topic("in", TEXT, TEXT)
            topic.pipe_each([("a", "x", 20), ("b", "x", 30), ("a", "x", 20), ("a", "x", 25)])
            counts.append(driver.get_session_store("n").fetch_session("a", 20, 25))
    assert counts == [None, 3]


def test_without_caching_every_update_of_a_store_is_a_result() -> None:
    def results(store: str | Materialized) -> list[Any]:
        builder = StreamsBuilder()
        groups = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
        groups.count(store=store).to_stream().to("out")
        with TopologyTestDriver(builder.build()) as driver:
            driver.create_input_topic("in", TEXT, TEXT).pipe_batch([("a", "x"), ("a", "y")])
            return driver.create_output_topic("out", TEXT, LONG).read_key_values()

    assert results("n") == [("a", 2)]
    assert results(Materialized("n", caching=False)) == [("a", 1), ("a", 2)]


def test_without_logging_there_is_no_changelog() -> None:
    with counted(TEN, Materialized("n", logging=False)) as driver:
        assert kept(driver, TEN, 20) == {30}
        assert driver.produced_topics() == set()


def test_settings_of_a_changelog_are_its_own() -> None:
    builder = StreamsBuilder()
    settings = {"segment.bytes": "1000000"}
    groups = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
    groups.windowed_by(TEN).count(store=Materialized("n", retention=500, topic_config=settings))
    subs = cut(builder.build())
    made = internal_topics(subs, {"in": 3}, "app", topic_config={"segment.bytes": "5"})
    partitions, config = made.changelog["app-n-changelog"]
    assert (partitions, config["segment.bytes"]) == (3, "1000000")
    assert config["retention.ms"] == str(500 + 86_400_000)


def test_tables_and_final_results_take_options() -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store=Materialized("t", caching=False))
    table.filter(F.col("value") != "", store=Materialized("f", logging=False))
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.to_table(store=Materialized("copy", topic_config={"segment.ms": "60000"}))
    closing = stream.group_by_key().windowed_by(TEN).emit_strategy(EmitStrategy.on_window_close())
    closing.count(store=Materialized("n", retention="1 day"))
    made = internal_topics(cut(builder.build()), {"t": 1, "in": 1}, "app").changelog
    assert "app-f-changelog" not in made
    assert made["app-copy-changelog"][1]["segment.ms"] == "60000"
    assert made["app-n-changelog"][1]["retention.ms"] == str(2 * 86_400_000)


def joined(builder: StreamsBuilder, left: Any, how: str, store: str | Materialized) -> Any:
    right = builder.stream("more", key=TEXT, value=TEXT)
    windows = JoinWindows.of_time_difference(5)
    return getattr(left, how)(right, F.col("left"), windows=windows, store=store, name="j")


@pytest.mark.parametrize(
    ("how", "stores"),
    [
        ("join", {"p-this-join-store", "p-other-join-store"}),
        (
            "left_join",
            {"p-this-join-store", "p-outer-other-join-store", "p-left-shared-join-store"},
        ),
        (
            "outer_join",
            {"p-outer-this-join-store", "p-outer-other-join-store", "p-outer-shared-join-store"},
        ),
    ],
)
def test_options_of_a_join_are_those_of_all_its_stores(how: str, stores: set[str]) -> None:
    """As `StreamJoined`'s in Kafka Streams."""

    def made(store: Materialized) -> tuple[Any, Any]:
        builder = StreamsBuilder()
        joined(builder, builder.stream("in", key=TEXT, value=TEXT), how, store).to("out")
        topology = builder.build()
        return topology, internal_topics(cut(topology), {"in": 1, "more": 1}, "app").changelog

    topology, changelogs = made(Materialized("p", logging=False, in_memory=True))
    assert (topology.in_memory, changelogs) == (stores, {})
    settings = {"segment.bytes": "1000000"}
    topology, changelogs = made(Materialized("p", topic_config=settings))
    assert topology.in_memory == set()
    assert set(changelogs) == {f"app-{store}-changelog" for store in stores}
    assert {config["segment.bytes"] for _, config in changelogs.values()} == {"1000000"}


def test_a_join_in_memory_without_changelogs_joins() -> None:
    builder = StreamsBuilder()
    kept = Materialized("p", logging=False, in_memory=True)
    joined(builder, builder.stream("in", key=TEXT, value=TEXT), "left_join", kept).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        left = driver.create_input_topic("in", TEXT, TEXT)
        right = driver.create_input_topic("more", TEXT, TEXT)
        left.pipe_input("a", "x", 1)
        left.pipe_input("b", "alone", 1)
        right.pipe_input("a", "y", 3)
        right.pipe_input("c", "later", 100)
        assert driver.create_output_topic("out", TEXT, TEXT).read_key_values() == [
            ("a", "x"),
            ("b", "alone"),
        ]
        assert driver.produced_topics() == {"out"}


MISTAKES = [
    (
        "g.windowed_by(TEN.grace(5)).count(store=Materialized('n', retention=14))",
        r"'n' .*for 14 ms, .*for 15 ms; write Materialized\('n', retention='15 ms'\)",
    ),
    ("g.windowed_by(SLIDING).count(store=Materialized('n', retention=9))", "records for 10 ms"),
    ("g.count(store=Materialized('n', retention='1 day'))", "windows and sessions .*'n' has none"),
    ("Materialized('n', retention=-1)", r"Materialized\('n'\): retention is above 0"),
    ("Materialized('n', retention='long')", "read the duration"),
    ("Materialized('n', caching='no')", "caching .*, found 'no'"),
    ("Materialized('n', topic_config={'segment.bytes': 5})", "topic_config is a dict"),
    ("Materialized('n', logging=False, topic_config={'segment.bytes': '5'})", "logging=False"),
    ("g.count(store=Materialized('a name'))", "name a store"),
    ("[g.count(store=Materialized('n')) for _ in range(2)]", "'n' is used twice"),
    ("joined(b, s, 'join', Materialized('n', retention='1 day'))", "'n-this-join-.* none of its"),
    ("joined(b, s, 'join', Materialized('n', history='1 day'))", "history= is of tables"),
    ("joined(b, s, 'join', Materialized('n', caching=False))", "every one; leave it out"),
]


@pytest.mark.parametrize(("call", "cure"), MISTAKES)
def test_a_mistake_is_refused_with_its_line(call: str, cure: str) -> None:
    """``s`` is a stream of ``b``, ``g`` its groups."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    with pytest.raises(TopologyError, match=cure) as caught:
        eval(call, {**globals(), "b": builder, "s": stream, "g": stream.group_by_key()})
    assert caught.value.where is not None
    assert caught.value.where.partition(":")[0] in ("<string>", __file__)


def test_stores_lie_in_memory_where_it_is_asked_for() -> None:
    builder = StreamsBuilder()
    builder.global_table("g", key=TEXT, value=TEXT, store=Materialized("g", in_memory=True))
    builder.table("t", key=TEXT, value=TEXT, store=Materialized("t", in_memory=True, history=5))
    groups = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
    for kind, windows in WINDOWS.items():
        groups.windowed_by(windows).count(store=Materialized(kind, in_memory=True))
    groups.count(store="disk")
    assert builder.build().in_memory == {"g", "t", *WINDOWS}
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, TEXT).pipe_input("a", "x", 3)
        assert len(list(driver.get_session_store("sessions").all())) == 1


def test_when_entries_end_is_kept_where_the_entries_are() -> None:
    builder = StreamsBuilder()
    groups = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
    groups.count(ttl="1 day", store=Materialized("n", logging=False, in_memory=True))
    topology = builder.build()
    assert len(topology.in_memory) == 2
    assert internal_topics(cut(topology), {"in": 1}, "app").changelog == {}


def test_what_waits_is_kept_where_the_records_it_waits_for_are() -> None:
    """After a move the one does not come back without the other: a record without its match."""
    builder = StreamsBuilder()
    trades, quotes = (builder.stream(name, key=TEXT, value=TEXT) for name in ("t", "q"))
    kept = Materialized("quotes", logging=False, in_memory=True)
    trades.join_asof(quotes, tolerance=10, grace=5, store=kept).to("out")
    topology = builder.build()
    assert topology.in_memory == {"quotes", "quotes-waiting"}
    assert internal_topics(cut(topology), {"t": 1, "q": 1}, "app").changelog == {}


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (Materialized("g", logging=False), r"takes in_memory= only, Materialized\('g', in_mem"),
        (Materialized("g", history=5), "takes in_memory= only"),
    ],
)
def test_a_global_table_has_few_options(store: Materialized, says: str) -> None:
    with pytest.raises(TopologyError, match=says):
        StreamsBuilder().global_table("g", key=TEXT, value=TEXT, store=store)


# Versioned tables and joins in time.


class VersionedWorld:
    """Streams and tables of one builder; ``past`` has a history of 100 ms."""

    def __init__(self) -> None:
        self.builder = StreamsBuilder()
        self.stream = self.builder.stream("s", key=TEXT, value=LONG)
        self.other = self.builder.stream("o", key=TEXT, value=LONG)
        self.table = self.builder.table("t", key=TEXT, value=TEXT, store="t")
        self.past = self.builder.table(
            "p", key=TEXT, value=TEXT, store=Materialized("p", history=100)
        )


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("w.builder.table('x', store=Materialized('x', history=-1))", r"history.*-1"),
        ("w.builder.table('x', store=Materialized('x', history='long'))", "duration 'long'"),
        (
            "w.builder.table('x', store=Materialized('x', history=0))",
            "history is above 0, found 0 ms",
        ),
        ("w.builder.table('x', store='x', history=5)", "takes no history="),
        ("w.stream.to_table(store=Materialized('x', history=-5))", r"history.*-5"),
        ("w.stream.join(w.table, grace=5, store='x')", "versioned table.*history='1 hour'"),
        ("w.stream.join(w.past, grace=101, store='x')", "history of 100"),
        ("w.stream.join(w.past, grace=-1, store='x')", r"grace.*negative"),
        ("w.stream.left_join(w.past, grace=5)", r"store.*left_join"),
        ("w.stream.join(w.past, store='x')", "store= goes with grace="),
        ("w.stream.join(w.other, grace=5, store='x')", r"grace.*windows"),
        ("w.past.suppress(Suppressed.until_time_limit(5), store='x')", "without history="),
        (
            "w.past.map_values(F.col('value')).suppress(Suppressed.until_time_limit(5), store='x')",
            r"suppress.*history=",
        ),
        ("w.stream.join_asof(w.other, store='x')", r"earlier.*match"),
        ("w.stream.join_asof(w.other, tolerance=-1, store='x')", r"tolerance.*negative"),
        ("w.stream.join_asof(w.other, tolerance=5)", r"store.*join_asof"),
        ("w.stream.join_asof(w.other, tolerance=5, grace=-2, store='x')", "grace may"),
        ("w.stream.join_asof(w.other, tolerance=5, how='outer', store='x')", "'inner' or 'left'"),
        ("w.stream.join_asof(w.past, tolerance=5, store='x')", "a stream.*history="),
        ("w.stream.join_asof('o', tolerance=5, store='x')", r"stream.*'o'"),
        ("w.stream.join_asof(w.other, tolerance=5, store='p')", "store name 'p'"),
        ("w.stream.join_interval(w.past, before=5, store='x')", "join_interval takes a stream"),
        ("w.stream.join_interval(w.other, before=5)", r"store.*join_interval"),
        ("w.stream.join_interval(w.other, before=5, after=-6, store='x')", "end is before"),
        ("w.stream.join_interval(w.other, how='right', store='x')", "found 'right'"),
        ("w.stream.join_interval(w.other, grace=-1, store='x')", r"grace.*negative"),
        ("w.stream.join_asof(w.other, F.col('nope'), tolerance=5, store='x')", "cannot be used"),
        ("Stores.versioned('x', key=TEXT, value=TEXT, history=-1)", r"'x'.*negative"),
    ],
)
def test_what_no_versioned_table_can_be_is_refused_with_the_cure(call: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says) as error:
        eval(call, {**PUBLIC, **globals(), "w": VersionedWorld()})
    assert "\n  at <string>:1" in str(error.value)


def test_its_changelog_is_compacted_only_behind_the_history() -> None:
    topics = internal_topics(
        cut(VersionedWorld().builder.build()), {"s": 2, "o": 2, "t": 2, "p": 2}, "app"
    )
    partitions, config = topics.changelog["app-p-changelog"]
    assert (partitions, config["cleanup.policy"]) == (2, "compact")
    assert config["min.compaction.lag.ms"] == str(100 + 24 * 3_600_000)
    assert "min.compaction.lag.ms" not in topics.changelog["app-t-changelog"][1]


def test_a_join_with_grace_is_described_with_its_buffer() -> None:
    world = VersionedWorld()
    world.stream.join(world.past, grace=5, store="waiting", name="priced").to("out")
    topology = world.builder.build()
    assert "(stores: [p, waiting])" in str(topology.describe())
    node = topology.node("priced-waiting")
    assert isinstance(node, StatefulNode)
    assert [store.name for store in node.stores] == ["waiting"]


def test_an_as_of_join_keeps_the_other_side_for_tolerance_and_grace() -> None:
    world = VersionedWorld()
    joined = world.stream.select_key(F.col("key")).join_asof(
        world.other, tolerance="1 second", grace=500, store="quotes", name="priced"
    )
    joined.to("out")
    topology = world.builder.build()
    node = topology.node("priced")
    assert isinstance(node, StatefulNode)
    assert [(one.name, one.kind, one.retention_ms) for one in node.stores] == [
        ("quotes", "window", 1_501),
        ("quotes-waiting", "key_value", None),
    ]
    assert [topic.name for topic in topology.repartition_topics] == ["priced-left-repartition"]


def test_an_interval_join_is_a_join_in_windows() -> None:
    one, other = VersionedWorld(), VersionedWorld()
    one.stream.join_interval(
        one.other, before="1 second", after=5, grace=7, how="left", store="pairs"
    ).to("out")
    windows = JoinWindows(1_000, 5).grace(7)
    other.stream.left_join(other.other, windows=windows, store="pairs").to("out")
    built = [str(world.builder.build().describe()) for world in (one, other)]
    assert built[0] == built[1]
    joins = [
        node.operator
        for world in (one, other)
        for node in world.builder.build().nodes
        if isinstance(node, StatefulNode) and isinstance(node.operator, StreamStreamJoin)
    ]
    sides = [join.sides for join in joins]
    windows_of = [(one[True].back_ms, one[True].ahead_ms, one[False].stays_ms) for one in sides]
    assert windows_of == [(1_000, 5, 1_012)] * 2
