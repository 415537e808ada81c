"""Numbering, internal topics, partition counts and tasks, also of topics that come later."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import Materialized, StreamsBuilder, Topology, TopologyError, serdes
from everflow.operators.table import TableSpec
from everflow.records import TaskId
from everflow.state.store import StoreSpec
from everflow.topology.graph import (
    EdgeType,
    MergeNode,
    Node,
    RepartitionTopic,
    SinkNode,
    SourceNode,
    StatefulNode,
)
from everflow.topology.patterns import TopicGrowth, growth, may_grow, with_topics
from everflow.topology.subtopologies import cut, internal_topics, tasks
from unit.builders import store_spec

EDGE = EdgeType(pa.binary(), pa.binary())
BYTES = serdes.bytes_()
DAY_MS = 86_400_000


def source(name: str, *topics: str, kind: str = "stream") -> SourceNode:
    return SourceNode(name, (), EDGE, topics, BYTES, BYTES, kind, where=f"app.py:{len(name)}")


def through(topic: str, *inputs: str) -> tuple[Node, Node]:
    """Sink and source of a repartition topic."""
    sink = SinkNode(f"{topic}-sink", inputs, EDGE, topic, BYTES, BYTES, "repartition")
    return sink, source(f"{topic}-source", topic, kind="repartition")


def stateful(name: str, *inputs: str, store: StoreSpec | None = None) -> StatefulNode:
    spec = store or store_spec(f"{name}-store", key=BYTES, value=BYTES)
    return StatefulNode(
        name, inputs, EDGE, "AGGREGATE", TableSpec(name, BYTES, BYTES), (spec,), where="app.py:9"
    )


def test_numbers_follow_the_names_of_the_sources() -> None:
    topology = Topology(
        (
            source("S2", "late"),
            source("S1", "early"),
            *through("r-repartition", "S2"),
            stateful("A", "r-repartition-source"),
        ),
        (RepartitionTopic("r-repartition"),),
    )
    subs = cut(topology)
    assert [sub.nodes[0].name for sub in subs.subtopologies] == ["S1", "S2", "r-repartition-source"]
    assert [sub.source_topics for sub in subs.subtopologies] == [("early",), ("late",), ()]
    assert subs.subtopologies[2].repartition_sources == ("r-repartition",)
    assert subs.index_of["A"] == 2
    assert subs.subtopologies[1].repartition_sinks == ("r-repartition",)
    assert subs.subtopologies[2].inputs("app") == ("app-r-repartition",)


def test_nodes_that_share_a_store_are_one_sub_topology() -> None:
    shared = StoreSpec(name="shared", kind="key_value", key_serde=BYTES, value_serde=BYTES)
    nodes = (
        source("S1", "a"),
        source("S2", "b"),
        stateful("A", "S1", store=shared),
        stateful("B", "S2", store=shared),
    )
    assert len(cut(Topology(nodes)).subtopologies) == 1


def test_repartition_topics_inherit_the_largest_count_through_others() -> None:
    nodes = (
        source("S1", "a"),
        source("S2", "b"),
        *through("r1-repartition", "S1", "S2"),
        *through("r2-repartition", "r1-repartition-source"),
        stateful("A", "r2-repartition-source"),
    )
    topology = Topology(
        nodes, (RepartitionTopic("r1-repartition"), RepartitionTopic("r2-repartition"))
    )
    found = internal_topics(cut(topology), {"a": 2, "b": 5}, "app")
    assert {name: count for name, (count, _) in found.repartition.items()} == {
        "app-r1-repartition": 5,
        "app-r2-repartition": 5,
    }
    assert found.changelog["app-A-store-changelog"][0] == 5


def test_an_enforced_count_wins_and_is_inherited() -> None:
    nodes = (
        source("S1", "a"),
        *through("r1-repartition", "S1"),
        *through("r2-repartition", "r1-repartition-source"),
    )
    topology = Topology(
        nodes, (RepartitionTopic("r1-repartition", 7), RepartitionTopic("r2-repartition"))
    )
    found = internal_topics(cut(topology), {"a": 2}, "app")
    assert [count for count, _ in found.repartition.values()] == [7, 7]


def test_a_repartition_topic_that_its_own_sub_topology_reads() -> None:
    nodes = (
        source("S1", "a"),
        *through("r-repartition", "S1"),
        MergeNode("M", ("S1", "r-repartition-source"), EDGE),
    )
    topology = Topology(nodes, (RepartitionTopic("r-repartition"),))
    found = internal_topics(cut(topology), {"a": 3}, "app")
    assert found.repartition["app-r-repartition"][0] == 3


def test_configurations() -> None:
    windowed = store_spec(
        "w", "window", key=BYTES, value=BYTES, retention_ms=1000, window_size_ms=500
    )
    visits = store_spec("visits", "session", key=BYTES, value=BYTES, retention_ms=2000)
    own = store_spec("own", key=BYTES, value=BYTES, topic_config={"segment.ms": "1"})
    silent = store_spec("silent", key=BYTES, value=BYTES, logging=False)
    nodes = (
        source("S1", "a"),
        *through("r-repartition", "S1"),
        stateful("A", "r-repartition-source", store=windowed),
        stateful("B", "r-repartition-source", store=own),
        stateful("C", "r-repartition-source", store=silent),
        stateful("D", "r-repartition-source", store=visits),
    )
    subs = cut(Topology(nodes, (RepartitionTopic("r-repartition"),)))
    found = internal_topics(
        subs, {"a": 1}, "app", topic_config={"segment.ms": "5", "min.insync.replicas": "2"}
    )
    assert found.repartition["app-r-repartition"][1] == {
        "message.timestamp.type": "CreateTime",
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "segment.bytes": "52428800",
        "segment.ms": "5",
        "min.insync.replicas": "2",
    }
    window = found.changelog["app-w-changelog"][1]
    assert (window["cleanup.policy"], window["retention.ms"]) == (
        "compact,delete",
        str(1000 + DAY_MS),
    )
    sessions = found.changelog["app-visits-changelog"][1]
    assert (sessions["cleanup.policy"], sessions["retention.ms"]) == (
        "compact,delete",
        str(2000 + DAY_MS),
    )
    assert found.changelog["app-own-changelog"][1]["cleanup.policy"] == "compact"
    assert found.changelog["app-own-changelog"][1]["segment.ms"] == "1"
    assert "app-silent-changelog" not in found.changelog


def test_a_missing_source_topic_names_the_users_line() -> None:
    with pytest.raises(TopologyError, match="source topic b") as caught:
        internal_topics(cut(Topology((source("S1", "a", "b"),))), {"a": 1}, "app")
    assert caught.value.where == "app.py:2"


def test_topics_that_meet_in_a_stateful_operator_need_equal_counts() -> None:
    nodes = (
        source("S1", "a"),
        source("S2", "b"),
        MergeNode("M", ("S1", "S2"), EDGE),
        stateful("A", "M"),
    )
    subs = cut(Topology(nodes))
    with pytest.raises(TopologyError, match=r"\(a: 2, b: 3\).*repartition") as caught:
        internal_topics(subs, {"a": 2, "b": 3}, "app")
    assert caught.value.where == "app.py:9"
    assert internal_topics(subs, {"a": 3, "b": 3}, "app").changelog["app-A-store-changelog"][0] == 3


def test_a_merge_without_state_may_differ() -> None:
    nodes = (source("S1", "a"), source("S2", "b"), MergeNode("M", ("S1", "S2"), EDGE))
    subs = cut(Topology(nodes))
    counts = {"a": 1, "b": 3}
    internal_topics(subs, counts, "app")
    assert tasks(subs, counts, "app") == [TaskId(0, 0), TaskId(0, 1), TaskId(0, 2)]


def test_a_repartition_topic_takes_the_count_of_the_topic_it_meets() -> None:
    nodes = (
        source("S1", "a"),
        source("S2", "b"),
        *through("r-repartition", "S1"),
        MergeNode("M", ("r-repartition-source", "S2"), EDGE),
        stateful("A", "M"),
    )
    free = Topology(nodes, (RepartitionTopic("r-repartition"),))
    assert (
        internal_topics(cut(free), {"a": 9, "b": 4}, "app").repartition["app-r-repartition"][0] == 4
    )
    enforced = Topology(nodes, (RepartitionTopic("r-repartition", 6),))
    with pytest.raises(TopologyError, match="b: 4, r-repartition: 6"):
        internal_topics(cut(enforced), {"a": 9, "b": 4}, "app")


def test_tasks_of_every_sub_topology() -> None:
    nodes = (
        source("S1", "a"),
        *through("r-repartition", "S1"),
        stateful("A", "r-repartition-source"),
    )
    subs = cut(Topology(nodes, (RepartitionTopic("r-repartition"),)))
    found = tasks(subs, {"a": 1, "app-r-repartition": 2}, "app")
    assert [str(task) for task in found] == ["0_0", "1_0", "1_1"]


TEXT = serdes.string()
START = {"in.a": 2, "other": 2}


def program(*, stateful: bool = False, joined: bool = False) -> Topology:
    return with_topics(unread(stateful=stateful, joined=joined), START, "app")


def unread(*, stateful: bool = False, joined: bool = False) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(re.compile(r"in\..*"), key=TEXT, value=TEXT)
    if stateful:
        stream.group_by_key().count(store="n")
    if joined:
        table = builder.table("other", key=TEXT, value=TEXT, store="t")
        stream.join(table, lambda left, right: left, returns="string").to("out")
    stream.to("out")
    return builder.build()


def found(topology: Topology, **existing: int) -> TopicGrowth:
    read = {t: START[t] for t in cut(topology).topics}
    names = {name.replace("_", "."): number for name, number in existing.items()}
    return growth(topology, read, {**START, **names}, "app")


def topics_of(growing: TopicGrowth) -> list[str]:
    return [t for one in growing.topology.nodes if isinstance(one, SourceNode) for t in one.topics]


def test_a_topic_that_matches_comes_behind_those_that_there_are() -> None:
    growing = found(program(), in_0=5, in_b=1, out=3, __in_x=1)
    assert (growing.taken, growing.left_out) == ({"in.0": 5, "in.b": 1}, {})
    assert topics_of(growing) == ["in.a", "in.0", "in.b"]
    assert growing.where["in.0"].partition(":")[0] == __file__


def test_without_a_pattern_nothing_is_taken() -> None:
    builder = StreamsBuilder()
    builder.stream("in.a", key=TEXT, value=TEXT).to("out")
    assert found(builder.build(), in_b=1).taken == {}


@pytest.mark.parametrize(
    ("partitions", "why"),
    [(3, "different partition counts|cannot become 3"), (1, "different partition counts")],
)
def test_a_topic_whose_keys_would_leave_their_state_is_left_out(partitions: int, why: str) -> None:
    for topology in (program(stateful=True), program(joined=True)):
        growing = found(topology, in_b=partitions, in_c=2)
        assert growing.taken == {"in.c": 2}
        assert re.search(why, growing.left_out["in.b"])
        assert "\n" not in growing.left_out["in.b"]


def test_a_repartition_topic_keeps_its_number() -> None:
    builder = StreamsBuilder()
    stream = builder.stream(re.compile(r"in\..*"), key=TEXT, value=TEXT)
    other = stream.select_key(lambda key, value: value, returns="string")
    other.group_by_key(name="by-value").count(store="n")
    topology = with_topics(builder.build(), START, "app")
    growing = found(topology, in_b=3, in_c=1)
    assert growing.taken == {"in.c": 1}
    assert "has 2, which cannot become 3" in growing.left_out["in.b"]


def test_a_topic_of_two_sources_is_left_out() -> None:
    builder = StreamsBuilder()
    for pattern in (r"in\..*", r".*\.b"):
        builder.stream(re.compile(pattern), key=TEXT, value=TEXT).to("out")
    topology = with_topics(builder.build(), {"in.a": 2, "x.b": 2}, "app")
    growing = growth(topology, {"in.a": 2, "x.b": 2}, {"in.b": 2, "in.c": 1}, "app")
    assert growing.taken == {"in.c": 1}
    assert "a topic belongs to one source" in growing.left_out["in.b"]


@given(
    counts=st.dictionaries(st.sampled_from("bcdef"), st.integers(0, 4)),
    stateful=st.booleans(),
    joined=st.booleans(),
)
def test_what_runs_stays_for_all(counts: dict[str, int], stateful: bool, joined: bool) -> None:
    """Sub-topologies, stores, internal topics and tasks; and the next start takes the same."""
    topology = program(stateful=stateful, joined=joined)
    growing = found(topology, **{f"in_{name}": number for name, number in counts.items()})
    before, after = cut(topology), cut(growing.topology)
    assert before.index_of == after.index_of
    assert [sub.stores for sub in before.subtopologies] == [
        sub.stores for sub in after.subtopologies
    ]
    known = {topic: START[topic] for topic in before.topics}
    now = {**known, **growing.taken}
    assert internal_topics(before, known, "app") == internal_topics(after, now, "app")
    assert set(tasks(before, known, "app")) <= set(tasks(after, now, "app"))
    assert growing.taken.keys().isdisjoint(growing.left_out)
    assert {*growing.taken, *growing.left_out} == {f"in.{c}" for c, n in counts.items() if n}
    for topic in growing.left_out:
        wider = {**now, topic: counts[topic[-1]]}
        started = cut(with_topics(unread(stateful=stateful, joined=joined), wider, "app"))
        with pytest.raises((TopologyError, AssertionError)):
            assert internal_topics(started, wider, "app") == internal_topics(before, known, "app")


def resized(make: str, **existing: int) -> dict[str, int]:
    """What is read of more partitions than the two that each topic had."""
    builder = StreamsBuilder()
    stream = builder.stream("a", key=TEXT, value=TEXT)
    if make == "stateless":
        stream.merge(builder.stream("b", key=TEXT, value=TEXT)).to("out")
    elif make == "beside a state":
        stream.to("out")
        builder.stream("b", key=TEXT, value=TEXT).group_by_key().count(store="n")
    elif make == "into a repartition topic of so many partitions":
        stream.repartition(name="re", partitions=2).group_by_key().count(store="n")
        builder.stream("b", key=TEXT, value=TEXT).to("out")
    elif make == "into a repartition topic":
        stream.select_key(lambda key, value: value, returns="string").repartition(name="re").to("o")
        builder.stream("b", key=TEXT, value=TEXT).to("out")
    else:
        table = builder.table("b", key=TEXT, value=TEXT, store=Materialized("t", logging=False))
        stream.join(table, lambda left, right: left, returns="string").to("out")
    program = builder.build()
    read = dict.fromkeys(("a", "b"), 2)
    found = growth(program, read, {**read, **existing}, "app")
    may = {t: n for t, n in existing.items() if may_grow(program, read, t, n, "app")}
    assert may == found.taken
    return dict(found.taken)


@pytest.mark.parametrize(
    ("make", "taken"),
    [
        ("stateless", {"a": 4, "b": 3}),
        ("beside a state", {"a": 4}),
        ("into a repartition topic of so many partitions", {"a": 4, "b": 3}),
        ("into a repartition topic", {"b": 3}),
        ("a join with a table that has no changelog", {}),
    ],
)
def test_more_partitions_where_nothing_is_stored(make: str, taken: dict[str, int]) -> None:
    assert resized(make, a=4, b=3) == taken
    assert resized(make, a=2, b=1) == {}
