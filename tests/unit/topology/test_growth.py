"""Topics that come while a program runs: what is taken, and what would change what runs."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import Materialized, StreamsBuilder, Topology, TopologyError, serdes
from everflow.topology.graph import SourceNode
from everflow.topology.patterns import TopicGrowth, growth, may_grow, with_topics
from everflow.topology.subtopologies import cut, internal_topics, tasks

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
