"""Lowering of groups, aggregations and tables."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import KStream, StreamsBuilder, TimeWindows, agg, serdes
from everflow.operators.aggregate import AggregateSpec
from everflow.operators.python_aggregate import PythonAggregateSpec
from everflow.operators.table import TableSpec
from everflow.topology.graph import PREPARE, FunctionNode, ProjectNode, StatefulNode

pytestmark = pytest.mark.spark


@pytest.fixture
def builder() -> StreamsBuilder:
    return StreamsBuilder()


@pytest.fixture
def orders(builder: StreamsBuilder) -> KStream:
    return builder.stream(
        "orders", key=serdes.string(), value=serdes.json("item string, amount double")
    )


def last(builder: StreamsBuilder) -> Any:
    return builder.build().nodes[-1]


def test_count_reads_a_boolean_and_stores_javas_long(
    orders: KStream, builder: StreamsBuilder
) -> None:
    table = orders.group_by_key().count(store="counts")
    prepared, node = builder.build().nodes[-2:]
    assert isinstance(prepared, ProjectNode)
    assert isinstance(node, StatefulNode)
    assert (prepared.label, prepared.out.value) == (PREPARE, pa.bool_())
    assert isinstance(node.operator, AggregateSpec)
    assert (node.name, node.out.value) == ("KSTREAM-AGGREGATE-0000000001", pa.int64())
    store = node.stores[0]
    assert (store.name, store.kind, store.value_serde) == ("counts", "key_value", serdes.long())
    assert table.edge.value_serde == serdes.long()


def test_aggregate_reads_a_struct_of_its_inputs(orders: KStream, builder: StreamsBuilder) -> None:
    orders.group_by_key().aggregate(
        store="s", n=agg.count(), mean=agg.avg("value.amount"), top=agg.max(F.col("offset"))
    )
    prepared, node = builder.build().nodes[-2:]
    assert prepared.out.value == pa.struct([("a1", pa.float64()), ("a2", pa.int64())])
    assert node.out.value == pa.struct(
        [("n", pa.int64()), ("mean", pa.float64()), ("top", pa.int64())]
    )
    assert isinstance(node, StatefulNode)
    assert node.stores[0].value_serde.kind == "packed"
    assert "CASE WHEN" in str(prepared.value.column)  # type: ignore[attr-defined]


def test_fields_may_be_called_like_options(orders: KStream, builder: StreamsBuilder) -> None:
    orders.group_by_key().aggregate(store="s", name=agg.count(), value=agg.sum("value.amount"))
    assert [field.name for field in last(builder).out.value] == ["value", "name"]


def test_windowed_aggregate_has_windowed_keys(orders: KStream, builder: StreamsBuilder) -> None:
    windows = TimeWindows.of_size("1 hour").grace("5 minutes")
    table = (
        orders.group_by_key()
        .windowed_by(windows)
        .aggregate(store="s", total=agg.sum("value.amount"))
    )
    prepared, node = builder.build().nodes[-2:]
    assert isinstance(node, StatefulNode)
    assert [field.name for field in node.out.key] == ["key", "start", "end"]
    store = node.stores[0]
    assert (store.kind, store.retention_ms, store.window_size_ms) == (
        "window",
        3_900_000,
        3_600_000,
    )
    assert table.edge.key_serde == serdes.time_windowed(serdes.string(), 3_600_000)
    assert "CASE WHEN" not in str(prepared.value.column)  # type: ignore[attr-defined]


def test_reduce_keeps_the_values_type(orders: KStream, builder: StreamsBuilder) -> None:
    amounts = orders.map_values(F.col("value.amount"))
    amounts.group_by_key().reduce(lambda a, b: a + b, store="sum")
    node = last(builder)
    assert (node.name, node.label) == ("KSTREAM-REDUCE-0000000002", "REDUCE")
    assert isinstance(node.operator, PythonAggregateSpec)
    assert node.operator.aggregator("k", 2.0, 1.0) == 3.0
    assert node.out.value == pa.float64()


@pytest.mark.parametrize(
    "aggregator", [lambda value, total: total + 1, lambda key, value, total: total + 1]
)
def test_aggregate_with_functions(
    aggregator: Any, orders: KStream, builder: StreamsBuilder
) -> None:
    orders.group_by_key().aggregate(
        initializer=int, aggregator=aggregator, store="n", returns="bigint"
    )
    spec = last(builder).operator
    assert isinstance(spec, PythonAggregateSpec)
    assert spec.aggregator("k", {"amount": 1.0}, 4) == 5
    assert spec.value_serde == serdes.long()


def test_group_by_repartitions_and_aggregations_share_the_topic(
    orders: KStream, builder: StreamsBuilder
) -> None:
    group = orders.group_by(F.col("value.item"), name="by-item")
    group.count(store="one")
    group.aggregate(store="two", total=agg.sum("value.amount"))
    topology = builder.build()
    assert [topic.name for topic in topology.repartition_topics] == ["by-item-repartition"]
    readers = [node.name for node in topology.consumers("by-item-repartition-source")]
    assert readers == ["KSTREAM-AGGREGATE-0000000001-inputs", "KSTREAM-AGGREGATE-0000000005-inputs"]


def test_group_by_with_a_function(orders: KStream, builder: StreamsBuilder) -> None:
    orders.group_by(lambda v: v["item"], name="by-item", returns="string").count(store="n")
    node = builder.build().node("by-item")
    assert isinstance(node, FunctionNode)
    assert node.op == "select_key"


def test_group_by_key_repartitions_only_a_changed_key(
    orders: KStream, builder: StreamsBuilder
) -> None:
    orders.group_by_key().count(store="a")
    assert not builder.build().repartition_topics
    orders.select_key(F.col("value.item")).group_by_key(name="again").count(store="b")
    assert [topic.name for topic in builder.build().repartition_topics] == ["again-repartition"]


def test_table_is_a_source_and_a_store(builder: StreamsBuilder) -> None:
    builder.table("users", key=serdes.string(), value=serdes.string(), store="users")
    source, node = builder.build().nodes
    assert (source.name, node.name) == ("KSTREAM-SOURCE-0000000000", "KTABLE-SOURCE-0000000001")
    assert isinstance(node, StatefulNode)
    assert (node.label, type(node.operator)) == ("SOURCE", TableSpec)


def test_to_table_repartitions_a_changed_key(orders: KStream, builder: StreamsBuilder) -> None:
    orders.to_table(store="plain")
    assert last(builder).label == "TOTABLE"
    assert not builder.build().repartition_topics
    orders.select_key(F.col("value.item")).to_table(store="moved")
    assert [topic.name for topic in builder.build().repartition_topics] == ["moved-repartition"]


def test_table_filters_forward_deletions(orders: KStream, builder: StreamsBuilder) -> None:
    table = orders.group_by_key().count(store="n")
    table.filter(F.col("value") > 1)
    node = last(builder)
    assert isinstance(node, ProjectNode)
    assert (node.label, node.predicate) == ("FILTER", None)
    assert "CASE WHEN" in str(node.value.column)  # type: ignore[union-attr]
    table.filter_not(lambda v: v > 1)
    assert last(builder).op == "map_values"
    assert [last(builder).fn("k", value) for value in (1, 2, None)] == [1, None, None]


def test_table_map_values_leaves_deletions_alone(orders: KStream, builder: StreamsBuilder) -> None:
    table = orders.group_by_key().count(store="n")
    mapped = table.map_values(twice=F.col("value") * 2)
    assert "CASE WHEN" in str(last(builder).value.column)
    assert mapped.edge.value_serde is not None
    assert mapped.edge.value_serde.kind == "json"
    table.map_values(lambda v: str(v), returns="string")
    assert [last(builder).fn("k", value) for value in (1, None)] == ["1", None]


def test_to_stream_changes_nothing(orders: KStream, builder: StreamsBuilder) -> None:
    stream = orders.group_by_key().count(store="n").to_stream()
    node = last(builder)
    assert (node.label, node.predicate, node.key, node.value) == ("TOSTREAM", None, None, None)
    stream.to("counts")
    assert last(builder).value_serde == serdes.long()


def test_wrapped_functions_reach_workers_by_name(builder: StreamsBuilder) -> None:
    builder.stream("t", value=serdes.string()).map_values(len, returns="int")
    assert pickle.loads(pickle.dumps(last(builder).fn))("k", "abc") == 3
