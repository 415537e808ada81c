"""Lowering of stateless operators and sources: which node, with which types, serdes and names."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.programs.catalogue import PROGRAMS
from bench.systems import target_of
from everflow import (
    CogroupedKStream,
    JoinWindows,
    KStream,
    KTable,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    Windowed,
    serdes,
)
from everflow.columns.key_partitions import key_partitions
from everflow.dsl.expressions import TableFilter, key_value_function
from everflow.dsl.streams import (
    KGroupedStream,
    KGroupedTable,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
)
from everflow.errors import StoreLayoutError, UnknownBranchError
from everflow.records import EdgeBatch
from everflow.testing import TopologyTestDriver
from everflow.topology.compatibility import layouts_to_keep
from everflow.topology.graph import MergeNode, SinkNode, SourceNode
from everflow.topology.partitioners import (
    OF_WINDOWS,
    KeyFunction,
    key_partitioners,
    keyed_sources,
    partitioner_name,
    partitioners_of_stores,
    partitions_of,
)
from everflow.topology.plan import SinkOp, plan
from everflow.topology.store_layouts import fingerprint
from everflow.topology.subtopologies import cut
from everflow.worker.failures import Failures
from everflow.worker.task_step import BY_KEY, Partitions

pytestmark = pytest.mark.spark

ORDER = serdes.json("item string, amount double, tags array<string>")


@pytest.fixture
def builder() -> StreamsBuilder:
    return StreamsBuilder()


@pytest.fixture
def orders(builder: StreamsBuilder) -> KStream:
    return builder.stream("orders", key=serdes.string(), value=ORDER)


def last(builder: StreamsBuilder) -> Any:
    return builder.build().nodes[-1]


def test_stream_defaults_to_bytes_and_reads_several_topics(builder: StreamsBuilder) -> None:
    builder.stream(["a", "b"], name="both", offset_reset="latest")
    node = last(builder)
    assert isinstance(node, SourceNode)
    assert (node.name, node.topics, node.reading.offset_reset) == ("both", ("a", "b"), "latest")
    assert (node.out.key, node.out.value) == (pa.binary(), pa.binary())


def test_nodes_remember_the_users_line(orders: KStream, builder: StreamsBuilder) -> None:
    orders.filter(F.col("value.amount") > 1)
    where = last(builder).where
    assert where is not None
    assert where.split(":")[0] == __file__


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("s.filter(F.col('value.amount') > 1)", "KSTREAM-FILTER-0000000001"),
        ("s.filter_not(lambda v: v['amount'] > 1)", "KSTREAM-FILTER-0000000001"),
        ("s.map(key=F.col('value.item'), value=F.lit(1))", "KSTREAM-MAP-0000000001"),
        ("s.map_values(F.lit(1))", "KSTREAM-MAPVALUES-0000000001"),
        ("s.map_values(F.lit(1), name='ones')", "ones"),
        ("s.select_key(F.col('value.item'))", "KSTREAM-KEY-SELECT-0000000001"),
        ("s.peek(print)", "KSTREAM-PEEK-0000000001"),
        ("s.for_each(print)", "KSTREAM-FOREACH-0000000001"),
        ("s.flat_map_values(F.col('value.tags'))", "KSTREAM-FLATMAPVALUES-0000000001"),
        ("s.flat_map(lambda v: [], returns=('int', 'int'))", "KSTREAM-FLATMAP-0000000001"),
        ("s.merge(s)", "KSTREAM-MERGE-0000000001"),
        (
            "s.filter(F.lit(True), name='own').map_values(F.lit(1)).to('out')",
            "KSTREAM-SINK-0000000002",
        ),
    ],
)
def test_nodes_are_called_as_in_kafka_streams(
    call: str, name: str, orders: KStream, builder: StreamsBuilder
) -> None:
    eval(call, {"s": orders, "F": F})
    assert last(builder).name == name


def test_map_values_fields_make_a_struct(orders: KStream, builder: StreamsBuilder) -> None:
    orders.map_values(name=F.col("value.item"), n=F.lit(1), returns=F.lit(2))
    out = last(builder).out.value
    assert [field.name for field in out] == ["name", "n", "returns"]
    assert not last(builder).changes_key


def test_map_values_inherits_the_serde_while_the_type_stays(orders: KStream) -> None:
    assert orders.map_values(F.col("value")).edge.value_serde is orders.edge.value_serde
    assert orders.map_values(F.lit(1)).edge.value_serde == serdes.int_()


def test_merge_joins_inputs_and_key_changes(orders: KStream, builder: StreamsBuilder) -> None:
    other = orders.select_key(F.col("value.item"))
    merged = orders.merge(other)
    node = last(builder)
    assert isinstance(node, MergeNode)
    assert node.inputs == (orders.node, other.node)
    assert merged.key_changed


def test_keys_of_branches_have_no_prefix_and_whoever_writes_it_is_told(orders: KStream) -> None:
    """In Kafka Streams a branch's key is that of its node: the split's name and its own."""
    branches = (
        orders.split(name="by-amount-")
        .branch(F.col("value.amount") > 9, name="b")
        .branch(F.col("value.amount") > 5)
        .default_branch()
    )
    assert list(branches) == ["b", "2", "0"]
    assert [one.node for one in branches.values()] == ["by-amount-b", "by-amount-2", "by-amount-0"]
    for key, meant in (("by-amount-b", "b"), ("by-amount-2", "2"), ("by-amount-0", "0")):
        with pytest.raises(UnknownBranchError, match=rf"did you mean '{meant}'\?"):
            branches[key]


def test_repartition(orders: KStream, builder: StreamsBuilder) -> None:
    stream = orders.select_key(F.col("value.item")).repartition(name="by-item", partitions=7)
    sink, source = builder.build().nodes[-2:]
    assert isinstance(sink, SinkNode)
    assert isinstance(source, SourceNode)
    assert (sink.kind, source.kind, sink.topic) == (
        "repartition",
        "repartition",
        "by-item-repartition",
    )
    assert source.topics == ("by-item-repartition",)
    assert not stream.key_changed
    assert builder.build().repartition_topics[0].partitions == 7


SUB_TOPOLOGIES = {
    **dict.fromkeys(("trades", "flights", "words", "cities"), 2),
    **dict.fromkeys(("trades-rekeyed", "flights-rekeyed"), 2),
    **dict.fromkeys(("q7", "q8", "q9", "q11", "q12", "q16", "q17", "q18", "q19", "q20"), 2),
    **dict.fromkeys(("chain", "q3", "q4", "q5"), 3),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_write_the_compared_topics(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INPUT_TOPIC_VARIABLE, "in")
    monkeypatch.setenv(OUTPUT_TOPIC_VARIABLE, "out")
    module, _, function = target_of(name).partition(":")
    text = getattr(import_module(module), function)().build().describe()
    assert text.count("Sub-topology:") == SUB_TOPOLOGIES.get(name, 1)
    assert all(f"(topic: out{branch})" in text for branch in PROGRAMS[name].branches)


TEXT = serdes.string()


def _sources(builder: StreamsBuilder) -> list[tuple[str, tuple[str, ...]]]:
    nodes = builder.build().nodes
    return [(node.name, node.topics) for node in nodes if isinstance(node, SourceNode)]


def _read(builder: StreamsBuilder, topics: str | list[str] | re.Pattern[str]) -> KStream:
    return builder.stream(topics, key=TEXT, value=TEXT)


def test_streams_of_one_topic_are_one_source_with_the_name_of_the_first() -> None:
    builder = StreamsBuilder()
    _read(builder, "a").to("out")
    _read(builder, ["a"]).to("other")
    builder.stream("a", key=TEXT, value=TEXT, name="mine").to("third")
    assert _sources(builder) == [("KSTREAM-SOURCE-0000000000", ("a",))]
    # The second one's number is used up, as in Kafka Streams.
    assert "KSTREAM-SINK-0000000003" in str(builder.build().describe())
    assert len(cut(builder.build()).subtopologies) == 1


def test_streams_of_the_same_list_or_pattern_are_one_source() -> None:
    builder = StreamsBuilder()
    for topics in (["a", "b"], ["b", "a"], re.compile("c.*"), re.compile("c.*")):
        _read(builder, topics).for_each(print)
    assert [topics for _, topics in _sources(builder)] == [("a", "b"), ("c.*",)]
    _read(builder, re.compile("c.*", re.IGNORECASE)).for_each(print)
    assert len(_sources(builder)) == 3


def test_each_stream_gets_all_records_and_may_be_joined_with_the_other() -> None:
    builder = StreamsBuilder()
    first, second = _read(builder, "in"), _read(builder, "in")
    first.map_values(lambda value: f"1 {value}", returns="string").to("one")
    second.map_values(lambda value: f"2 {value}", returns="string").to("two")
    windows = JoinWindows.of_time_difference(5)
    pairs = first.join(second, lambda a, b: a + b, windows=windows, store="s", returns="string")
    pairs.to("pairs")
    with TopologyTestDriver(builder.build(), emit_every_update=True) as driver:
        given = driver.create_input_topic("in", TEXT, TEXT)
        driver.pipe_batch({given: [("k", "a", 1), ("k", "b", 2)]})
        told = {
            name: [
                value for _, value in driver.create_output_topic(name, TEXT, TEXT).read_key_values()
            ]
            for name in ("one", "two", "pairs")
        }
    assert told == {"one": ["1 a", "1 b"], "two": ["2 a", "2 b"], "pairs": ["aa", "ba", "ab", "bb"]}


def test_a_column_of_the_same_text_is_the_same_time() -> None:
    builder = StreamsBuilder()
    for _ in range(2):
        time = F.col("value").cast("bigint")
        builder.stream("in", key=TEXT, value=TEXT, timestamp=time).for_each(print)
    assert len(_sources(builder)) == 1


Call = Callable[[StreamsBuilder], object]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (lambda b: b.stream("in", key=TEXT), r"source.*serde"),
        (lambda b: b.stream("in", value=TEXT), r"source.*serde"),
        (lambda b: b.stream("in", key=TEXT, value=TEXT, offset_reset="earliest"), r"offset_re"),
        (
            lambda b: b.stream("in", key=TEXT, value=TEXT, timestamp=F.col("value").cast("bigint")),
            r"source.*timestamp",
        ),
        (
            lambda b: b.stream("in", key=TEXT, value=TEXT, idle_advance=timedelta(minutes=1)),
            r"source.*idle_advance",
        ),
        (lambda b: _read(b, ["in", "more"]), r"streams.*exactly"),
        (lambda b: b.table("in", store="t"), r"streams.*exactly"),
        (lambda b: b.global_table("in", store="t"), r"streams.*exactly"),
        (lambda b: _read(b, "kept"), r"stream.*variable"),
        (lambda b: b.table("kept", store="k2"), r"stream.*variable"),
    ],
)
def test_what_is_read_in_two_ways_is_refused(second: Call, why: str) -> None:
    builder = StreamsBuilder()
    _read(builder, "in").to("out")
    builder.table("kept", key=TEXT, value=TEXT, store="k")
    before = builder.build()
    with pytest.raises(TopologyError, match=why) as caught:
        second(builder)
    assert re.search(r"first at .*test_dsl_streams\.py:\d+", str(caught.value))
    assert builder.build() == before, "a refused call leaves nothing behind"


OPERATORS = {
    KStream: "filter filter_not map map_values flat_map flat_map_values select_key peek merge "
    "split branch repartition group_by group_by_key to_table to join left_join outer_join "
    "join_asof join_interval lookup_join deduplicate process process_values",
    KTable: "filter filter_not map_values transform_values suppress to_stream group_by join "
    "left_join outer_join",
    KGroupedStream: "count reduce aggregate",
    TimeWindowedKStream: "count reduce aggregate emit_strategy",
    SessionWindowedKStream: "count reduce aggregate",
    KGroupedTable: "count reduce aggregate",
    CogroupedKStream: "aggregate",
    TimeWindowedCogroupedKStream: "aggregate",
    SessionWindowedCogroupedKStream: "aggregate",
}


@pytest.mark.parametrize(
    ("owner", "name"),
    [(owner, name) for owner, names in OPERATORS.items() for name in names.split()],
)
def test_the_rule_of_headers_is_told(owner: type, name: str) -> None:
    assert "eaders" in (getattr(owner, name).__doc__ or ""), "what becomes of headers?"


class Method:
    def of_value(self, value: Any) -> Any:
        return value


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda v: v, "value"),
        (lambda k, v: (k, v), ("key", "value")),
        (lambda v, sep="-": v + sep, "value-"),
        (lambda *args: args, ("key", "value")),
        (Method().of_value, "value"),
        (partial(lambda a, v: (a, v), 1), (1, "value")),
        (str.upper, "VALUE"),
        (len, 5),
    ],
)
def test_arguments_follow_the_signature(fn: Any, expected: object) -> None:
    assert key_value_function(fn, "map_values")("key", "value") == expected


def test_other_counts_are_refused() -> None:
    with pytest.raises(TopologyError, match="takes 3 arguments"):
        key_value_function(lambda a, b, c: None, "filter")


def test_a_tables_filter_is_not_asked_about_deletions() -> None:
    positive = TableFilter(lambda k, v: v > 0, negate=False)
    assert [positive("k", v) for v in (1, -1, None)] == [1, None, None]


# By which partitioner topics are spread.


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
    assert "test_dsl_streams.py" in text
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
    assert rows is None, "of all"
    return [int(one) for one in found]


@pytest.mark.parametrize("wrong", ["murmur3", "CRC32", 7, lambda key: 0])
def test_what_is_no_partitioner_is_refused_with_the_line(wrong: Any) -> None:
    builder = StreamsBuilder()
    calls: tuple[Callable[..., Any], ...] = (builder.stream, partial(builder.table, store="t"))
    for call in calls:
        with pytest.raises(TopologyError, match="partitioner") as raised:
            call("t", partitioner=wrong)
        assert "test_dsl_streams.py" in str(raised.value)


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


# Keys that are in their partitions already.


def in_place(builder: StreamsBuilder, by: Any = None, **said: Any) -> KStream:
    return stream(builder, "s", by).select_key(F.col("value")).assume_partitioned(**said)


def test_no_topic_is_between_until_the_key_changes_again() -> None:
    builder = StreamsBuilder()
    first = stream(builder, "s").select_key(F.col("value"))
    first.assume_partitioned().group_by_key().count(store="here")
    first.group_by_key(name="branch").count(store="there")
    again = in_place(builder).select_key(F.col("key"))
    assert again.key_changed
    again.group_by_key(name="again").count(store="again")
    topics = {topic.name for topic in builder.build().repartition_topics}
    assert topics == {"branch-repartition", "again-repartition"}


def test_of_a_key_that_is_the_topics_own_nothing_is_assumed() -> None:
    builder = StreamsBuilder()
    orders = stream(builder, "s", "crc32")
    assert orders.assume_partitioned().node == orders.node
    assert list(orders.graph.nodes) == [orders.node]
    with pytest.raises(TopologyError, match=r"builder\.stream"):
        orders.assume_partitioned(partitioner="crc32")


@pytest.mark.parametrize("meet", [_joined, _with_table, _merged])
def test_what_is_assumed_has_to_be_that_of_the_topic_that_it_meets(meet: Any) -> None:
    for said, by in (({}, "crc32"), ({"partitioner": own}, None), ({"partitioner": own}, other)):
        builder = StreamsBuilder()
        meet(builder, in_place(builder, **said), stream(builder, "r", by))
        with pytest.raises(TopologyError) as raised:
            builder.build()
        assert raised.value.code == "EF-COPARTITION"
    for said, left, right in (({}, "crc32", "crc32"), ({"partitioner": own}, None, own)):
        builder = StreamsBuilder()
        meet(builder, in_place(builder, left, **said), stream(builder, "r", right))
        builder.build()


def test_a_field_of_the_key_does_not_meet_whole_keys_but_moves_those_that_are_written() -> None:
    def program(right: Callable[[KStream], KStream]) -> Topology:
        builder = StreamsBuilder()
        both = F.struct(F.col("key").alias("a"), F.col("value").alias("b"))
        left = stream(builder, "l").select_key(both).assume_partitioned(by="a")
        windows = JoinWindows.of_time_difference(5)
        other_side = right(stream(builder, "r").select_key(both))
        left.join(other_side, windows=windows, store="pairs", name="by").to("out")
        return builder.build()

    with pytest.raises(TopologyError, match="the key's field a") as raised:
        program(lambda side: side.repartition(name="mine", partitioner="murmur2"))
    assert raised.value.code == "EF-COPARTITION"
    moved = program(lambda side: side)
    assert "the key's field a" in spread(moved)["by-right-repartition"]
    assert not program(lambda side: side.assume_partitioned(by="a")).repartition_topics


def test_behind_a_function_of_the_record_nobody_knows_where_a_key_is() -> None:
    builder = StreamsBuilder()
    moved = stream(builder, "s").repartition(name="mine", partitioner=lambda t, k, v, n: 0)
    moved.select_key(F.col("value")).assume_partitioned().group_by_key().count(store="n")
    with pytest.raises(TopologyError, match="mine-repartition") as raised:
        builder.build()
    assert raised.value.code == "EF-COPARTITION"


def test_a_field_of_a_field_is_not_known() -> None:
    """The repartition topic is spread by a field of its key, as what it meets."""
    builder = StreamsBuilder()
    both = F.struct(F.col("key").alias("a"), F.col("value").alias("b"))
    left = stream(builder, "l").select_key(both).assume_partitioned(by="a")
    moved = stream(builder, "r").select_key(both).repartition(name="mine")
    left.join(moved, windows=JoinWindows.of_time_difference(5), store="pairs").to("out")
    inner = moved.select_key(F.struct(F.col("key").alias("whole")))
    inner.assume_partitioned(by="whole").group_by_key().count(store="n")
    with pytest.raises(TopologyError, match="mine-repartition") as raised:
        builder.build()
    assert raised.value.code == "EF-COPARTITION"


def test_queries_know_where_a_key_is() -> None:
    builder = StreamsBuilder()
    both = F.struct(F.col("key").alias("a"), F.col("value").alias("b"))
    keyed = stream(builder, "s", "crc32").select_key(both).assume_partitioned(by="a")
    keyed.group_by_key().count(store="n")
    in_place(builder, "crc32").group_by_key().count(store="m")
    found = partitioners_of_stores(builder.build())
    assert {store: partitioner_name(by) for store, by in found.items()} == {
        "n": "the key's field a by crc32",
        "m": "crc32",
    }
    serde = keyed.edge.key_serde
    assert serde is not None
    keys = serde.encode_array(pa.array([{"a": "x", "b": "1"}, {"a": "x", "b": "2"}]))
    places = partitions_of(found["n"], "s", keys, serde, 4)
    assert places.tolist() == key_partitions(pa.array([b"x"] * 2), 4, "crc32").tolist()
