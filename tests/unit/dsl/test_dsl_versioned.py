"""Versioned tables and joins in time: what is refused while the topology is built, and how it is
told."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from everflow import JoinWindows, Stores, StreamsBuilder, Suppressed, TopologyError, serdes
from everflow.topology.graph import StatefulNode
from everflow.topology.subtopologies import cut, internal_topics

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()


class World:
    """Streams and tables of one builder; ``past`` has a history of 100 ms."""

    def __init__(self) -> None:
        self.builder = StreamsBuilder()
        self.stream = self.builder.stream("s", key=TEXT, value=LONG)
        self.other = self.builder.stream("o", key=TEXT, value=LONG)
        self.table = self.builder.table("t", key=TEXT, value=TEXT, store="t")
        self.past = self.builder.table("p", key=TEXT, value=TEXT, store="p", history=100)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("w.builder.table('x', store='x', history=-1)", "table: a history may not be negative"),
        ("w.builder.table('x', store='x', history='long')", "cannot read the duration 'long'"),
        ("w.builder.table('x', history=5)", "its store has no name; write table"),
        ("w.stream.to_table(store='x', history=-5)", "to_table: a history may not be negative"),
        ("w.stream.join(w.table, grace=5, store='x')", "takes a versioned table.*history='1 hour'"),
        ("w.stream.join(w.past, grace=101, store='x')", "longer than the table's history of 100"),
        ("w.stream.join(w.past, grace=-1, store='x')", "join: a grace may not be negative"),
        ("w.stream.left_join(w.past, grace=5)", "its store has no name; write left_join"),
        ("w.stream.join(w.past, store='x')", "store= goes with grace="),
        ("w.stream.join(w.other, grace=5, store='x')", "has its grace in the windows"),
        ("w.past.suppress(Suppressed.until_time_limit(5), store='x')", "without history="),
        (
            "w.past.map_values(F.col('value')).suppress(Suppressed.until_time_limit(5), store='x')",
            "suppress a table without history=",
        ),
        ("Stores.versioned('x', key=TEXT, value=TEXT, history=-1)", "'x'.*may not be negative"),
    ],
)
def test_what_cannot_be_is_refused_with_the_cure(call: str, says: str) -> None:
    names = {"w": World(), "F": F, "JoinWindows": JoinWindows, "Suppressed": Suppressed}
    with pytest.raises(TopologyError, match=says) as error:
        eval(call, names | {"Stores": Stores, "TEXT": TEXT})
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
    node = topology.node("priced")
    assert isinstance(node, StatefulNode)
    assert [store.name for store in node.stores] == ["waiting"]
