"""Lowering of the stateless operators: which node, with which types, serdes and names."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import KStream, StreamsBuilder, serdes
from everflow.errors import UnknownBranchError
from everflow.topology.graph import (
    MergeNode,
    SinkNode,
    SourceNode,
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
    assert [branch.node for branch in branches.values()] == [
        "by-amount-b",
        "by-amount-2",
        "by-amount-0",
    ]
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
