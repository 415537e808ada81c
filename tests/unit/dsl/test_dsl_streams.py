"""Lowering of the stateless operators: which node, with which types, serdes and names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import KStream, StreamsBuilder, serdes
from everflow.errors import UnknownBranchError
from everflow.spark.session import get_session
from everflow.topology.graph import (
    ColumnExpr,
    FunctionExpr,
    FunctionNode,
    MergeNode,
    Node,
    ProjectNode,
    SinkNode,
    SourceNode,
    TakeNode,
    UnnestNode,
    beside,
)

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


def test_filter_with_a_column_is_a_projection(orders: KStream, builder: StreamsBuilder) -> None:
    orders.filter(F.col("value.amount") > 1)
    node = last(builder)
    assert isinstance(node, ProjectNode)
    assert (node.name, node.label) == ("KSTREAM-FILTER-0000000001", "FILTER")
    assert node.predicate is not None
    assert node.predicate.type == pa.bool_()
    assert node.predicate.uses == {"value"}
    assert (node.key, node.value, node.changes_key) == (None, None, False)


def test_filter_not_keeps_what_is_null(orders: KStream, builder: StreamsBuilder) -> None:
    orders.filter_not(F.col("value.amount") > 1)
    assert "coalesce" in str(last(builder).predicate.column).lower()


@pytest.mark.parametrize("op", ["filter", "filter_not"])
def test_filter_with_a_function(op: str, orders: KStream, builder: StreamsBuilder) -> None:
    getattr(orders, op)(lambda value: value["amount"] > 1)
    node = last(builder)
    assert isinstance(node, FunctionNode)
    assert (node.op, node.label) == (op, "FILTER")
    assert node.fn("k", {"amount": 2.0}) is True


def test_map_with_columns(orders: KStream, builder: StreamsBuilder) -> None:
    mapped = orders.map(key=F.col("value.item"), value=F.col("value.amount"))
    node = last(builder)
    assert isinstance(node, ProjectNode)
    assert (node.label, node.changes_key) == ("MAP", True)
    assert (node.out.key, node.out.value) == (pa.string(), pa.float64())
    assert mapped.key_changed
    assert (mapped.edge.key_serde, mapped.edge.value_serde) == (serdes.string(), serdes.double())


def test_map_with_a_struct_column_takes_its_parts(orders: KStream, builder: StreamsBuilder) -> None:
    orders.map(F.struct(F.col("value.item").alias("key"), F.lit(1).alias("value")))
    assert (last(builder).out.key, last(builder).out.value) == (pa.string(), pa.int32())


def test_map_with_a_function_names_both_types(orders: KStream, builder: StreamsBuilder) -> None:
    orders.map(lambda k, v: (1, k), returns=("bigint", serdes.string()))
    node = last(builder)
    assert (node.op, node.changes_key) == ("map", True)
    assert (node.out.key, node.out.value) == (pa.int64(), pa.string())


def test_map_values_fields_make_a_struct(orders: KStream, builder: StreamsBuilder) -> None:
    orders.map_values(name=F.col("value.item"), n=F.lit(1), returns=F.lit(2))
    out = last(builder).out.value
    assert [field.name for field in out] == ["name", "n", "returns"]
    assert not last(builder).changes_key


def test_map_values_inherits_the_serde_while_the_type_stays(orders: KStream) -> None:
    assert orders.map_values(F.col("value")).edge.value_serde is orders.edge.value_serde
    assert orders.map_values(F.lit(1)).edge.value_serde == serdes.int_()


def test_map_values_with_a_function(orders: KStream, builder: StreamsBuilder) -> None:
    orders.map_values(lambda v: v["amount"], returns="double", name="amounts")
    node = last(builder)
    assert (node.name, node.op, node.out.value) == ("amounts", "map_values", pa.float64())
    assert node.fn("k", {"amount": 2.0}) == 2.0


def test_select_key(orders: KStream, builder: StreamsBuilder) -> None:
    stream = orders.select_key(F.col("value.item"))
    assert last(builder).name == "KSTREAM-KEY-SELECT-0000000001"
    assert stream.key_changed
    orders.select_key(lambda v: len(v["tags"]), returns="int")
    assert (last(builder).op, last(builder).out.key) == ("select_key", pa.int32())


def test_peek_passes_on_and_for_each_ends(orders: KStream, builder: StreamsBuilder) -> None:
    seen: list[object] = []
    orders.peek(seen.append)
    assert (last(builder).op, last(builder).name) == ("peek", "KSTREAM-PEEK-0000000001")
    assert orders.for_each(print) is None
    assert last(builder).op == "for_each"


def test_flat_map_values_with_an_array_column(orders: KStream, builder: StreamsBuilder) -> None:
    stream = orders.flat_map_values(F.col("value.tags"))
    prepared, unnest = builder.build().nodes[-2:]
    assert isinstance(prepared, ProjectNode)
    assert isinstance(unnest, UnnestNode)
    assert prepared.out.value == pa.list_(pa.string())
    assert (unnest.out.value, unnest.keyed, unnest.name) == (
        pa.string(),
        False,
        "KSTREAM-FLATMAPVALUES-0000000001",
    )
    assert stream.edge.value_serde == serdes.string()


def test_flat_map_with_an_array_of_pairs(orders: KStream, builder: StreamsBuilder) -> None:
    pair = F.transform(
        "value.tags", lambda tag: F.struct(tag.alias("key"), F.lit(1).alias("value"))
    )
    stream = orders.flat_map(pair)
    node = last(builder)
    assert (node.keyed, node.changes_key, stream.key_changed) == (True, True, True)
    assert (node.out.key, node.out.value) == (pa.string(), pa.int32())


def test_flat_map_with_functions(orders: KStream, builder: StreamsBuilder) -> None:
    orders.flat_map(lambda k, v: [(k, 1)], returns=("string", "int"))
    assert (last(builder).op, last(builder).label) == ("flat_map", "FLATMAP")
    orders.flat_map_values(lambda v: v["tags"], returns="string")
    assert (last(builder).op, last(builder).out.value) == ("flat_map_values", pa.string())


def test_merge_joins_inputs_and_key_changes(orders: KStream, builder: StreamsBuilder) -> None:
    other = orders.select_key(F.col("value.item"))
    merged = orders.merge(other)
    node = last(builder)
    assert isinstance(node, MergeNode)
    assert node.inputs == (orders.node, other.node)
    assert merged.key_changed


def test_branches_exclude_one_another(orders: KStream, builder: StreamsBuilder) -> None:
    branches = (
        orders.split()
        .branch(F.col("value.amount") > 9, name="big")
        .branch(lambda v: v["item"] == "x", name="x")
        .branch(F.col("value.amount") > 5)
        .default_branch(name="rest")
    )
    assert list(branches) == ["big", "x", "3", "rest"]
    nodes = {node.name: node for node in builder.build().nodes}
    assert isinstance(nodes["KSTREAM-BRANCH-0000000001big"], ProjectNode)
    answer = nodes["KSTREAM-BRANCH-0000000001x-answer"]
    assert isinstance(answer, FunctionNode)
    assert (answer.op, answer.out.value) == ("branch", beside(pa.bool_(), orders.edge.type.value))
    columns = nodes[answer.inputs[0]]
    assert isinstance(columns, ProjectNode)
    assert columns.predicate is not None
    assert "(value.amount, 9)" in str(columns.predicate.column)
    third = nodes["KSTREAM-BRANCH-00000000013"]
    assert isinstance(third, ProjectNode)
    assert "(value.amount, 9)" not in str(third.predicate), "asked twice"
    assert nodes["KSTREAM-BRANCH-0000000001rest"].inputs == third.inputs
    rest = nodes[third.inputs[0]]
    assert isinstance(rest, TakeNode)
    assert (rest.taken, rest.inputs) == (False, (answer.name,))


def test_keys_of_branches_have_no_prefix_and_whoever_writes_it_is_told(orders: KStream) -> None:
    """In Kafka Streams a branch's key is that of its node: the split's name and its own."""
    branches = (
        orders.split(name="by-amount-")
        .branch(F.col("value.amount") > 9, name="b")
        .branch(F.col("value.amount") > 5)
        .default_branch()
    )
    assert list(branches) == ["b", "2", "0"]
    assert [branch.node for branch in branches.values()] == [
        "by-amount-b",
        "by-amount-2",
        "by-amount-0",
    ]
    for key, meant in (("by-amount-b", "b"), ("by-amount-2", "2"), ("by-amount-0", "0")):
        with pytest.raises(UnknownBranchError, match=rf"did you mean '{meant}'\?"):
            branches[key]


def test_branch_in_one_call(orders: KStream) -> None:
    branches = orders.branch(big=F.col("value.amount") > 9, default="rest")
    assert set(branches) == {"big", "rest"}


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


def sink_topic(node: Node) -> object:
    assert isinstance(node, SinkNode)
    return node.topic


def test_to_takes_a_name_a_column_or_a_function(orders: KStream, builder: StreamsBuilder) -> None:
    orders.to("out", name="result")
    assert (last(builder).name, sink_topic(last(builder))) == ("result", "out")
    orders.to(F.col("value.item"))
    assert isinstance(sink_topic(last(builder)), ColumnExpr)
    orders.to(lambda value: "t-" + value["item"])
    topic = sink_topic(last(builder))
    assert isinstance(topic, FunctionExpr)
    assert topic.fn("k", {"item": "x"}) == "t-x"


def test_builders_names_share_one_counter(orders: KStream, builder: StreamsBuilder) -> None:
    orders.filter(F.col("value.amount") > 1, name="own").map_values(F.lit(1)).to("out")
    names = [node.name for node in builder.build().nodes]
    assert names == [
        "KSTREAM-SOURCE-0000000000",
        "own",
        "KSTREAM-MAPVALUES-0000000001",
        "KSTREAM-SINK-0000000002",
    ]


def kept(node: Node) -> list[float | None]:
    """Amounts that pass the node's predicate, evaluated by Catalyst."""
    assert isinstance(node, ProjectNode)
    frame = get_session().createDataFrame([(1.0,), (7.0,), (12.0,), (None,)], "amount double")
    frame = frame.select(F.struct("amount").alias("value"))
    if node.predicate is not None:
        frame = frame.where(node.predicate.column)
    return [row[0] for row in frame.select("value.amount").collect()]


def test_null_is_false_for_filters_and_branches(orders: KStream, builder: StreamsBuilder) -> None:
    big = F.col("value.amount") > 9
    orders.filter(big)
    assert kept(last(builder)) == [12.0]
    orders.filter_not(big)
    assert kept(last(builder)) == [1.0, 7.0, None]
    branches = (
        orders.split()
        .branch(big, name="big")
        .branch(F.col("value.amount") > 5, name="mid")
        .default_branch(name="rest")
    )
    by_branch = {name: kept(builder.build().node(stream.node)) for name, stream in branches.items()}
    assert by_branch == {"big": [12.0], "mid": [7.0], "rest": [1.0, None]}
