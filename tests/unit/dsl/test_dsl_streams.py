"""Lowering of stateless operators and sources: which node, with which types, serdes and names."""

import re
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.programs import topologies
from bench.programs.catalogue import PROGRAMS
from everflow import (
    CogroupedKStream,
    JoinWindows,
    KStream,
    KTable,
    StreamsBuilder,
    TopologyError,
    serdes,
)
from everflow.dsl.expressions import TableFilter, key_value_function
from everflow.dsl.streams import (
    KGroupedStream,
    KGroupedTable,
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
)
from everflow.errors import UnknownBranchError
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import MergeNode, SinkNode, SourceNode
from everflow.topology.subtopologies import cut

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


SUB_TOPOLOGIES = {"chain": 3, "trades": 2, "flights": 2, "words": 2, "cities": 2}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_write_the_compared_topics(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INPUT_TOPIC_VARIABLE, "in")
    monkeypatch.setenv(OUTPUT_TOPIC_VARIABLE, "out")
    text = getattr(topologies, name)().build().describe()
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
