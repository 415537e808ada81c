"""By which partitioner topics are spread: what a source says, and what follows for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import JoinWindows, KStream, StreamsBuilder, Topology, TopologyError, serdes
from everflow.errors import StoreLayoutError
from everflow.topology.fingerprint import fingerprint
from everflow.topology.graph import SinkNode
from everflow.topology.partitioners import KeyFunction, key_partitioners, keyed_sources, told
from everflow.topology.physical_plan import SinkOp
from everflow.topology.plan import plan
from everflow.topology.store_layouts import layouts_to_keep
from everflow.topology.subtopologies import cut

pytestmark = pytest.mark.spark

TEXT = serdes.string()


def own(topic: str, key: str, value: None, partitions: int) -> int:
    return len(key) % partitions


def other(topic: str, key: str, value: None, partitions: int) -> int:
    return 0


def stream(builder: StreamsBuilder, topic: str, by: Any = None) -> KStream:
    return builder.stream(topic, key=TEXT, value=TEXT, partitioner=by)


def spread(topology: Topology) -> dict[str, str]:
    return {topic: told(by) for topic, by in key_partitioners(topology).items()}


@pytest.mark.parametrize("by", ["crc32", "fnv1a", "murmur2", own, None])
def test_a_repartition_topic_is_spread_as_the_topic_that_it_meets(
    by: str | Callable[..., int] | None,
) -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t", partitioner=by)
    orders = stream(builder, "orders", "fnv1a")
    orders.select_key(F.col("value")).join(table, name="by-value").to("out")
    stream(builder, "clicks").group_by(F.col("value"), name="clicked").count(store="n")
    topology = builder.build()
    wanted = "the function own" if by is own else by or "murmur2"
    assert spread(topology) == {
        "t": wanted,
        "by-value-repartition": wanted,
        "orders": "fnv1a",
        "clicks": "murmur2",
        "clicked-repartition": "murmur2",
    }
    planned = plan(topology, cut(topology).index_of, "app")
    sinks = {op.name: op.partitioner for op in planned.steps[-1].ops if isinstance(op, SinkOp)}
    said = sinks["by-value-repartition-sink"]
    assert said == (KeyFunction(own, ("t",)) if by is own else None if by == "murmur2" else by)
    assert sinks["clicked-repartition-sink"] is None
    assert {source.topic for source in planned.sources if source.partitioner} == {"t"}


def test_only_where_a_store_relies_on_keys_they_are_looked_at() -> None:
    builder = StreamsBuilder()
    stream(builder, "counted").filter(F.col("value") != "").group_by_key().count(store="n")
    stream(builder, "rekeyed").select_key(F.col("value")).group_by_key(name="g").count(store="m")
    stream(builder, "passed").map_values(F.lit("x")).to("out")
    windows = JoinWindows.of_time_difference(5)
    stream(builder, "left").join(stream(builder, "right"), windows=windows, store="pairs").to("o")
    topology = builder.build()
    names = {node.name: node for node in topology.nodes}
    topics = {names[name].topics[0] for name in keyed_sources(topology)}  # type: ignore[attr-defined]
    assert topics == {"counted", "g-repartition", "left", "right"}


def _joined(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.join(right, windows=JoinWindows.of_time_difference(5), store="pairs").to("out")


def _with_table(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.left_join(right.to_table(store="t")).to("out")


def _tables(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.to_table(store="l").outer_join(right.to_table(store="r")).to_stream().to("out")


def _merged(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    left.merge(right).group_by_key().count(store="n")


def _through_a_topic(builder: StreamsBuilder, left: KStream, right: KStream) -> None:
    """Each meets a stream with a new key, which cannot be spread as both."""
    moved = stream(builder, "moved").select_key(F.col("value")).repartition(name="moved")
    moved.join(left.to_table(store="l")).to("one")
    moved.join(right.to_table(store="r")).to("other")


@pytest.mark.parametrize("meet", [_joined, _with_table, _tables, _merged, _through_a_topic])
@pytest.mark.parametrize(
    ("left", "right"), [("crc32", None), (None, "fnv1a"), (own, "murmur2"), (own, other)]
)
def test_topics_that_meet_have_one_partitioner(meet: Any, left: Any, right: Any) -> None:
    builder = StreamsBuilder()
    meet(builder, stream(builder, "l", left), stream(builder, "r", right))
    with pytest.raises(TopologyError) as raised:
        builder.build()
    assert raised.value.code == "EF-COPARTITION"
    text = str(raised.value)
    assert "test_dsl_partitioners.py" in text
    for by in (left, right):
        assert (by.__name__ if callable(by) else by or "murmur2") in text


@pytest.mark.parametrize("meet", [_joined, _with_table, _tables, _merged, _through_a_topic])
def test_topics_of_one_partitioner_meet(meet: Any) -> None:
    for by in ("crc32", own):
        builder = StreamsBuilder()
        meet(builder, stream(builder, "l", by), stream(builder, "r", by))
        assert set(spread(builder.build()).values()) <= {told_of(by), "murmur2"}


def told_of(by: Any) -> str:
    return f"the function {by.__name__}" if callable(by) else str(by)


def test_a_repartition_in_between_is_the_cure() -> None:
    builder = StreamsBuilder()
    left = stream(builder, "l", "crc32")
    right = stream(builder, "r").repartition(name="again")
    _joined(builder, left, right)
    assert spread(builder.build())["again-repartition"] == "crc32"


def test_both_sides_of_a_join_by_a_foreign_key_have_their_own() -> None:
    builder = StreamsBuilder()
    orders = builder.table("orders", key=TEXT, value=TEXT, store="o", partitioner="crc32")
    customers = builder.table("customers", key=TEXT, value=TEXT, store="c", partitioner="fnv1a")
    orders.join(customers, on=F.col("value"), name="of").to_stream().to("out")
    topology = builder.build()
    assert spread(topology) == {
        "orders": "crc32",
        "customers": "fnv1a",
        "of-asks-repartition": "fnv1a",
        "of-answers-repartition": "crc32",
    }
    assert all(node.partitioner is None for node in topology.nodes if isinstance(node, SinkNode))


def test_a_topic_that_the_program_spreads_itself_is_left_alone() -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t", partitioner="crc32")
    moved = stream(builder, "s").repartition(name="mine", partitioner=lambda t, k, v, n: 0)
    moved.join(table).to("out")
    assert spread(builder.build()) == {"t": "crc32", "s": "murmur2"}


@pytest.mark.parametrize("wrong", ["murmur3", "CRC32", 7, lambda key: 0])
def test_what_is_no_partitioner_is_refused_with_the_line(wrong: Any) -> None:
    builder = StreamsBuilder()
    calls: tuple[Callable[..., Any], ...] = (builder.stream, builder.table)
    for call in calls:
        with pytest.raises(TopologyError, match="partitioner") as raised:
            call("t", partitioner=wrong)
        assert "test_dsl_partitioners.py" in str(raised.value)


def test_one_source_has_one_partitioner() -> None:
    builder = StreamsBuilder()
    stream(builder, "in", "crc32")
    with pytest.raises(TopologyError, match="one partitioner"):
        stream(builder, "in", "murmur2")


def test_stores_behind_another_partitioner_are_laid_out_otherwise() -> None:
    """A program that has run and now says one would look for its keys in other tasks."""

    def program(by: str | None) -> Topology:
        builder = StreamsBuilder()
        windows = JoinWindows.of_time_difference(5)
        left = stream(builder, "l").select_key(F.col("value"))
        left.join(stream(builder, "r", by), windows=windows, store="pairs", name="by").to("out")
        builder.table("t", key=TEXT, value=TEXT, store="t", partitioner=by)
        return builder.build()

    before, now = program(None), program("crc32")
    assert layouts_to_keep("app", program("murmur2"), []) == layouts_to_keep("app", before, [])
    kept, fresh = layouts_to_keep("app", before, []), layouts_to_keep("app", now, [])
    changed = {name for name in kept if kept[name] != fresh[name]}
    assert changed == kept.keys() - {"t"}
    assert all("crc32" in str(fresh[name]) for name in changed)
    assert fingerprint(cut(before)) == fingerprint(cut(program("murmur2")))
    assert fingerprint(cut(before)) != fingerprint(cut(now))
    with pytest.raises(StoreLayoutError, match="spread by crc32"):
        layouts_to_keep("app", now, [kept])
    layouts_to_keep("app", now, [fresh])
