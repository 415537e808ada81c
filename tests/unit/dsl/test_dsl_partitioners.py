"""By which partitioner topics are spread: what a source says, and what follows for the others."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import (
    JoinWindows,
    KStream,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    Windowed,
    serdes,
)
from everflow.columns.key_partitions import key_partitions
from everflow.errors import StoreLayoutError
from everflow.records import EdgeBatch
from everflow.topology.graph import SinkNode
from everflow.topology.partitioners import (
    OF_WINDOWS,
    KeyFunction,
    key_partitioners,
    keyed_sources,
    partitioner_name,
)
from everflow.topology.plan import SinkOp, plan
from everflow.topology.store_layouts import fingerprint, layouts_to_keep
from everflow.topology.subtopologies import cut
from everflow.worker.failures import Failures
from everflow.worker.task_step import BY_KEY, Partitions

pytestmark = pytest.mark.spark

TEXT = serdes.string()


def own(topic: str, key: str, value: None, partitions: int) -> int:
    return len(key) % partitions


def other(topic: str, key: str, value: None, partitions: int) -> int:
    return 0


def stream(builder: StreamsBuilder, topic: str, by: Any = None) -> KStream:
    return builder.stream(topic, key=TEXT, value=TEXT, partitioner=by)


def spread(topology: Topology) -> dict[str, str]:
    return {topic: partitioner_name(by) for topic, by in key_partitioners(topology).items()}


@pytest.mark.parametrize("by", ["crc32", "fnv1a", "murmur2", own, None])
def test_it_is_spread_as_the_topic_that_it_meets(by: str | Callable[..., int] | None) -> None:
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
    sinks = {op.name: op.partitioner for op in planned.ops if isinstance(op, SinkOp)}
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


@pytest.mark.parametrize("by", ["murmur2", "crc32", "fnv1a"])
def test_sinks_and_repartition_topics_take_the_names_that_sources_take(by: str) -> None:
    keys: list[Any] = ["a", "bb", None, "c" * 20]
    builder = StreamsBuilder()
    moved = stream(builder, "s").repartition(name="mine", partitioner=by)
    moved.group_by_key().count(store="n").to_stream().to("out", partitioner=by)
    topology = builder.build()
    assert spread(topology) == {"s": "murmur2", "mine-repartition": by}
    for sink in sinks_of(topology).values():
        assert sink.partitioner == (None if by == "murmur2" else by)
        if sink.partitioner is not None:
            wanted = key_partitions(pa.array([b"a", b"bb", b"", b"c" * 20]), 7, by)
            wanted[2] = BY_KEY
            assert partitions_said(sink, keys, 7) == wanted.tolist()


def test_a_repartition_topic_by_name_meets_only_its_like() -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t", partitioner="crc32")
    stream(builder, "s").repartition(name="mine", partitioner="crc32").join(table).to("out")
    assert spread(builder.build())["mine-repartition"] == "crc32"
    stream(builder, "r").repartition(name="other", partitioner="fnv1a").join(table).to("out")
    with pytest.raises(TopologyError, match="fnv1a") as raised:
        builder.build()
    assert raised.value.code == "EF-COPARTITION"


JAVA_S = {"21": -973932308, "foobar": -790332482, "abc": 479470107}
"""``Utils.murmur2`` of these texts, from the tests of kafka-clients."""


@pytest.mark.parametrize("windows", ["time", "session", "hopping"])
@pytest.mark.parametrize("partitions", [1, 3, 7, 12])
def test_windowed_keys_go_to_the_partitions_of_their_keys(windows: str, partitions: int) -> None:
    """Kafka Streams' WindowedStreamPartitioner."""
    kinds: dict[str, Any] = {
        "time": TimeWindows.of_size(1_000),
        "hopping": TimeWindows.of_size(1_000).advance_by(500),
        "session": SessionWindows.of_inactivity_gap(10),
    }
    builder = StreamsBuilder()
    grouped = stream(builder, "s").group_by_key().windowed_by(kinds[windows])
    grouped.count(store="n").to_stream().to("out")
    (sink,) = sinks_of(builder.build()).values()
    keys = [Windowed(key, start, start + 1_000) for key in JAVA_S for start in range(0, 9_000, 500)]
    wanted = [(JAVA_S[one.key] & 0x7FFFFFFF) % partitions for one in keys]
    assert partitions_said(sink, keys, partitions) == wanted


@pytest.mark.parametrize("by", ["crc32", "murmur2", own])
def test_a_partitioner_that_is_said_holds_for_windowed_keys(by: Any) -> None:
    builder = StreamsBuilder()
    grouped = stream(builder, "s").group_by_key().windowed_by(TimeWindows.of_size(1_000))
    grouped.count(store="n").to_stream().to("out", partitioner=by)
    (sink,) = sinks_of(builder.build()).values()
    assert sink.partitioner == (None if by == "murmur2" else by), "None: all bytes, as Java does"


def test_a_topic_of_windowed_keys_is_read_as_it_is_written() -> None:
    serde = serdes.time_windowed(TEXT, 1_000)
    builder = StreamsBuilder()
    table = builder.table("w", key=serde, value=TEXT, store="w")
    moved = builder.stream("s", key=serde, value=TEXT).repartition(name="mine")
    moved.join(table).to("out")
    assert key_partitioners(builder.build()) == {
        "w": OF_WINDOWS,
        "s": OF_WINDOWS,
        "mine-repartition": OF_WINDOWS,
    }


def sinks_of(topology: Topology) -> dict[str, SinkOp]:
    planned = plan(topology, cut(topology).index_of, "app")
    return {op.name: op for op in planned.ops if isinstance(op, SinkOp)}


def partitions_said(sink: SinkOp, keys: list[Any], count: int) -> list[int]:
    """The partition of each key, as the sink finds it."""
    bare = EdgeBatch(
        key=pa.nulls(len(keys), sink.key_serde.type),
        value=pa.nulls(len(keys)),
        timestamp=np.zeros(len(keys), np.int64),
        seq=np.arange(len(keys)),
        source=np.zeros(len(keys), np.int32),
        partition=np.zeros(len(keys), np.int32),
        offset=np.arange(len(keys)),
    )
    written = pa.array([sink.key_serde.encode(key) for key in keys], pa.binary())
    said = Partitions(op=sink, failures=Failures(sink, (), bare), said=None, keys=written)
    rows, found = said.of("out", None, count)
    assert rows.tolist() == list(range(len(keys)))
    return [int(one) for one in found]


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
