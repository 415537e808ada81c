"""Options of one store: what each does, and what is refused with the user's line and the cure."""

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    EmitStrategy,
    JoinWindows,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    serdes,
)
from everflow.testing import TopologyTestDriver
from everflow.topology.subtopologies import cut, internal_topics

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()
TEN, SLIDING = TimeWindows.of_size(10), SlidingWindows.of_time_difference(5)
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
    ("Materialized('n', retention='long')", "cannot read the duration"),
    ("Materialized('n', caching='no')", "caching is True or False, found 'no'"),
    ("Materialized('n', topic_config={'segment.bytes': 5})", "topic_config is a dict of texts"),
    ("Materialized('n', logging=False, topic_config={'segment.bytes': '5'})", "logging=False"),
    ("g.count(store=Materialized('a name'))", "cannot name a store"),
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
