"""Versioned tables and joins in time: what is refused, and how it is told."""

import pytest
from pyspark.sql import functions as F

from everflow import JoinWindows, Materialized, StreamsBuilder, TopologyError, serdes
from everflow.operators.joins import StreamStreamJoin
from everflow.topology.graph import StatefulNode
from everflow.topology.subtopologies import cut, internal_topics
from unit.builders import PUBLIC

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()


class World:
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
        ("w.builder.table('x', store='x', history=5)", "table takes no history="),
        ("w.stream.to_table(store=Materialized('x', history=-5))", r"history.*-5"),
        ("w.stream.join(w.table, grace=5, store='x')", "takes a versioned table.*history='1 hour'"),
        ("w.stream.join(w.past, grace=101, store='x')", "longer than the table's history of 100"),
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
        ("w.stream.join_asof(w.past, tolerance=5, store='x')", "takes a stream.*history="),
        ("w.stream.join_asof('o', tolerance=5, store='x')", r"stream.*'o'"),
        ("w.stream.join_asof(w.other, tolerance=5, store='p')", "store name 'p'"),
        ("w.stream.join_interval(w.past, before=5, store='x')", "join_interval takes a stream"),
        ("w.stream.join_interval(w.other, before=5)", r"store.*join_interval"),
        ("w.stream.join_interval(w.other, before=5, after=-6, store='x')", "its end is before"),
        ("w.stream.join_interval(w.other, how='right', store='x')", "found 'right'"),
        ("w.stream.join_interval(w.other, grace=-1, store='x')", r"grace.*negative"),
        ("w.stream.join_asof(w.other, F.col('nope'), tolerance=5, store='x')", "cannot be used"),
        ("Stores.versioned('x', key=TEXT, value=TEXT, history=-1)", r"'x'.*negative"),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(call: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says) as error:
        eval(call, {**PUBLIC, **globals(), "w": World()})
    assert "\n  at <string>:1" in str(error.value)


def test_its_changelog_is_compacted_only_behind_the_history() -> None:
    topics = internal_topics(cut(World().builder.build()), {"s": 2, "o": 2, "t": 2, "p": 2}, "app")
    partitions, config = topics.changelog["app-p-changelog"]
    assert (partitions, config["cleanup.policy"]) == (2, "compact")
    assert config["min.compaction.lag.ms"] == str(100 + 24 * 3_600_000)
    assert "min.compaction.lag.ms" not in topics.changelog["app-t-changelog"][1]


def test_a_join_with_grace_is_described_with_its_buffer() -> None:
    world = World()
    world.stream.join(world.past, grace=5, store="waiting", name="priced").to("out")
    topology = world.builder.build()
    assert "(stores: [p, waiting])" in str(topology.describe())
    node = topology.node("priced-waiting")
    assert isinstance(node, StatefulNode)
    assert [store.name for store in node.stores] == ["waiting"]


def test_an_as_of_join_keeps_the_other_side_for_tolerance_and_grace() -> None:
    world = World()
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
    one, other = World(), World()
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
