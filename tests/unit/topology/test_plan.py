"""Where the planner puts each node: Columns together, merges, shared stores (design D2, D5)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from everflow import StreamsBuilder, TimeWindows, Topology, agg, serdes
from everflow.dsl.streams import KStream
from everflow.topology.graph import StatefulNode
from everflow.topology.plan import (
    ARROW,
    CATALYST,
    PYTHON,
    ColumnsOp,
    NodeOp,
    PhysicalPlan,
    SinkOp,
    StatefulOp,
    TimeOp,
    computed_by,
    emitting_every_update,
    plan,
)
from everflow.topology.subtopologies import cut

pytestmark = pytest.mark.spark
TEXT = serdes.string()


def planned(builder: StreamsBuilder | Topology) -> PhysicalPlan:
    topology = builder if isinstance(builder, Topology) else builder.build()
    return plan(topology, cut(topology).index_of, "app")


def columns(*found: ColumnsOp) -> list[tuple[str, int]]:
    """By what each is computed, and of how many projections."""
    return [(computed_by(op.projections[0]), len(op.projections)) for op in found]


def test_operators_stand_behind_those_whose_records_they_read() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    kept = stream.filter(F.col("value") != "").map_values(lambda v: v + "!", returns="string")
    kept.map_values(F.reverse("value")).to("out")
    found = planned(builder)
    assert [type(op) for op in found.ops] == [ColumnsOp, NodeOp, ColumnsOp, SinkOp]
    assert columns(*found.columns) == [(ARROW, 1), (CATALYST, 1)]
    assert [op.inputs for op in found.ops] == [
        (found.sources[0].slot,),
        found.columns[0].outputs,
        (found.ops[1].output,),  # type: ignore[union-attr]
        found.columns[1].outputs,
    ]


def test_columns_that_the_same_means_compute_of_the_same_records_are_one_operator() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    up = stream.filter(F.col("value") != "")
    up.map_values(F.upper("value")).to("up")
    stream.map_values(F.lower("value")).to("low")
    stream.map_values(F.reverse("value")).map_values(F.reverse("value")).to("same")
    up.map_values(F.reverse("value")).to("back")
    found = planned(builder)
    assert columns(*found.columns) == [(ARROW, 3), (CATALYST, 2), (CATALYST, 1)]
    first, _, last = found.columns
    assert len(first.outputs) == 3, "one is read by other Columns, too"
    assert last.input in first.outputs
    assert len(found.columns[1].outputs) == 1, "what stands between the two is nobody's"


def test_columns_that_call_functions_stand_alone() -> None:
    called = F.udf(lambda value: value, StringType(), useArrow=True)
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT).filter(F.col("value") != "")
    stream.map_values(called("value")).map_values(called("value")).to("out")
    assert columns(*planned(builder).columns) == [(ARROW, 1), (PYTHON, 1), (PYTHON, 1)]


def test_a_merge_is_dissolved_and_what_is_behind_exists_once_per_path() -> None:
    builder = StreamsBuilder()
    streams = [builder.stream(name, key=TEXT, value=TEXT) for name in ("a", "b")]
    merged = streams[0].merge(streams[1])
    merged.map_values(F.upper("value")).to("up")
    merged.for_each(lambda k, v: None)
    found = planned(builder)
    assert {op.input for op in found.columns} == {source.slot for source in found.sources}
    (function,) = [op for op in found.ops if isinstance(op, NodeOp)]
    assert len(function.inputs) == 2
    assert all(source.merged for source in found.sources)


def test_operators_on_one_store_may_have_columns_between_them() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    early = stream.to_table(store="early")
    early.to_stream().map_values(F.upper("value")).to_table(store="late")
    topology = builder.build()
    stores = {n.stores[0].name: n.stores for n in topology.nodes if isinstance(n, StatefulNode)}
    shared = tuple(
        replace(n, stores=stores["early"]) if isinstance(n, StatefulNode) else n
        for n in topology.nodes
    )
    found = plan(replace(topology, nodes=shared), cut(topology).index_of, "app")
    assert [type(op) for op in found.ops] == [StatefulOp, ColumnsOp, StatefulOp]
    assert found.stores() == {0: stores["early"]}


def test_columns_that_say_times_come_before_the_merge() -> None:
    builder = StreamsBuilder()
    timed = builder.stream("in", key=TEXT, value=serdes.long(), timestamp=F.col("value"))
    timed.filter(F.col("value") > 0).to("out")
    found = planned(builder)
    assert [type(op) for op in found.times] == [ColumnsOp, TimeOp]
    assert [type(op) for op in found.ops] == [ColumnsOp, SinkOp]
    assert [op.input for op in found.columns] == [found.sources[0].slot, found.times[1].output]  # type: ignore[union-attr]


def test_headers_are_read_only_where_someone_needs_them() -> None:
    def of(describe: Callable[[KStream], None]) -> bool:
        builder = StreamsBuilder()
        describe(builder.stream("in", key=TEXT, value=TEXT))
        return planned(builder).headers

    def counted(s: KStream) -> None:
        s.group_by(F.col("value"), name="g").count(store="c").to_stream().for_each(print)

    assert of(lambda s: s.to("out")) is True
    assert of(lambda s: s.repartition(name="r").to("out")) is True
    assert of(counted) is False, "functions do not get them"
    assert of(lambda s: counted(s.filter(F.size("headers") > 0))) is True
    assert of(lambda s: s.group_by_key().count(store="c").to_stream().to("out")) is True


def test_names_of_internal_topics_carry_the_application() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT).repartition(name="r").to("out")
    found = planned(builder)
    assert [source.topic for source in found.sources] == ["in", "app-r-repartition"]
    sinks = [op for op in found.ops if isinstance(op, SinkOp)]
    assert [(op.topic, op.drop_null_keys) for op in sinks] == [
        ("app-r-repartition", True),
        ("out", False),
    ]


def test_a_topology_without_consumers_has_a_plan() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT)
    found = planned(builder)
    assert (found.times, found.ops, len(found.sources)) == ((), (), 1)


def test_emitting_every_update_changes_every_operator() -> None:
    builder = StreamsBuilder()
    grouped = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
    grouped.count(store="a")
    grouped.windowed_by(TimeWindows.of_size("1 minute")).aggregate(store="b", n=agg.count())
    grouped.reduce(max, store="c")
    topology = builder.build()
    operators = [
        n.operator for n in emitting_every_update(topology).nodes if isinstance(n, StatefulNode)
    ]
    assert [op for op in operators if getattr(op, "emit_every_update", False)] == operators
    assert not any(
        getattr(n.operator, "emit_every_update", False)
        for n in topology.nodes
        if isinstance(n, StatefulNode)
    )
