"""Numbering, internal topics, partition counts and tasks, also of topics that come later."""

import re
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import Materialized, StreamsBuilder, Topology, TopologyError, serdes
from everflow.operators.table import TableSpec
from everflow.records import TaskId
from everflow.state.store import StoreSpec
from everflow.topology.arrival import hands_on_first, reaches_first
from everflow.topology.graph import (
    EdgeType,
    MergeNode,
    Node,
    ProjectNode,
    RepartitionTopic,
    SinkNode,
    SourceNode,
    StatefulNode,
)
from everflow.topology.patterns import TopicGrowth, growth, why_not_grown, with_topics
from everflow.topology.store_layouts import differing_lines, fingerprint
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
    assert "one source" in growing.left_out["in.b"]


@given(
    counts=st.dictionaries(st.sampled_from("bcdef"), st.integers(0, 4)),
    stateful=st.booleans(),
    joined=st.booleans(),
)
def test_what_runs_stays_for_all(counts: dict[str, int], stateful: bool, joined: bool) -> None:
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
    may = {t: n for t, n in existing.items() if why_not_grown(program, read, t, n, "app") is None}
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


# What makes two programs one application, and the difference in words.

LONGS = serdes.long()
STORE = store_spec(
    "counts", "window", key=BYTES, value=LONGS, retention_ms=7_200_000, window_size_ms=3_600_000
)


def fingerprint_program(
    store: StoreSpec = STORE, topic: str = "flights", stateless: bool = False
) -> tuple[str, ...]:
    source = SourceNode("SRC", (), EDGE, (topic,), BYTES, BYTES, where="app.py:1")
    middle = (
        (ProjectNode(name="MAP", inputs=("SRC",), out=EDGE, where="app.py:2", label="MAPVALUES"),)
        if stateless
        else ()
    )
    sink = SinkNode(
        "OUT",
        ("MAP" if stateless else "SRC",),
        EDGE,
        "by-carrier-repartition",
        BYTES,
        BYTES,
        "repartition",
    )
    again = SourceNode("SRC2", (), EDGE, ("by-carrier-repartition",), BYTES, BYTES, "repartition")
    count = StatefulNode(
        "COUNT",
        ("SRC2",),
        EDGE,
        "AGGREGATE",
        TableSpec(store.name, BYTES, BYTES),
        (store,),
        where="app.py:3",
    )
    return fingerprint(
        cut(
            Topology(
                (source, *middle, sink, again, count), (RepartitionTopic("by-carrier-repartition"),)
            )
        )
    )


def test_the_lines_name_topics_stores_and_types() -> None:
    assert fingerprint_program() == (
        "sub-topology 0 reads topic flights",
        "sub-topology 0 writes repartition topic by-carrier-repartition",
        "sub-topology 1 has window store counts, retention 7200000 ms, window 3600000 ms, "
        "changelog counts-changelog "
        "(key binary, value bigint)",
        "sub-topology 1 reads repartition topic by-carrier-repartition (key binary, value binary)",
    )


def test_stateless_operators_may_change_in_a_rolling_upgrade() -> None:
    assert fingerprint_program(stateless=True) == fingerprint_program()


def test_the_difference_names_both_sides() -> None:
    other = fingerprint_program(replace(STORE, value_serde=BYTES, retention_ms=9), topic="trains")
    told = differing_lines(fingerprint_program(), other).splitlines()
    assert [line[:4] for line in told] == ["  + ", "  - ", "  + ", "  - "]
    assert "reads topic flights   (only here)" in told[0]
    assert "reads topic trains   (only there)" in told[1]
    assert "value bigint" in told[2]
    assert "retention 9 ms" in told[3]
    assert differing_lines(other, other) == ""


def test_what_counts_as_another_program() -> None:
    for store in (
        replace(STORE, name="sums"),
        replace(STORE, kind="key_value"),
        replace(STORE, retention_ms=1),
        replace(STORE, key_serde=LONGS),
        replace(STORE, value_serde=BYTES),
        replace(STORE, folds=("count",)),
        replace(STORE, logging=False),
    ):
        assert fingerprint_program(store) != fingerprint_program(), store


def test_a_long_difference_is_cut() -> None:
    told = differing_lines([f"line {n}" for n in range(40)], [])
    assert told.splitlines()[-1] == "  ... and 28 lines more"


# The order in which a record reaches nodes.

ARRIVAL_EDGE = EdgeType(pa.string(), pa.string())


def graph(**inputs: str) -> list[Node]:
    """Nodes in the order in which they were added; each with its inputs."""
    return [MergeNode(name, tuple(given.split()), ARRIVAL_EDGE) for name, given in inputs.items()]


@pytest.mark.parametrize(
    ("nodes", "first", "second", "reaches", "hands_on"),
    [
        # s -> a, s -> b
        (graph(s="", a="s", b="s"), "a", "b", True, True),
        (graph(s="", a="s", b="s"), "b", "a", False, False),
        # b is behind a: what is added to a now comes after it
        (graph(s="", a="s", b="a"), "a", "b", True, False),
        (graph(s="", a="s", b="a"), "b", "a", True, True),
        # all that is behind a comes before b, added earlier or not
        (graph(s="", a="s", b="s", c="a"), "c", "b", True, True),
        (graph(s="", a="s", b="s", c="a"), "b", "c", False, False),
        (graph(s="", a="s"), "a", "a", True, True),
        # nothing reaches both
        (graph(s="", t="", a="s", b="t"), "b", "a", True, True),
    ],
)
def test_a_record_goes_depth_first(
    nodes: list[Node], first: str, second: str, reaches: bool, hands_on: bool
) -> None:
    assert reaches_first(nodes, first, second) is reaches
    assert hands_on_first(nodes, first, second) is hands_on
