"""Numbering, internal topics, partition counts and tasks, on graphs written by hand."""

import pyarrow as pa
import pytest

from everflow import serdes
from everflow.errors import TopologyError
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
from everflow.topology.program import Topology
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
