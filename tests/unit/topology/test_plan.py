"""Where the planner puts each node: levels, dissolved merges, shared stores, sinks, changelogs
(design D2, D5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, TimeWindows, Topology, agg, serdes
from everflow.dsl.streams import KStream
from everflow.topology.graph import StatefulNode
from everflow.topology.physical_plan import (
    DEAD_LETTER_SLOT,
    FunctionOp,
    PhysicalPlan,
    Projection,
    SinkOp,
    StatefulOp,
)
from everflow.topology.plan import emitting_every_update, plan
from everflow.topology.subtopologies import cut

pytestmark = pytest.mark.spark
TEXT = serdes.string()


def planned(builder: StreamsBuilder | Topology) -> PhysicalPlan:
    topology = builder if isinstance(builder, Topology) else builder.build()
    return plan(topology, cut(topology).index_of, "app")


def level_of(found: PhysicalPlan, kind: type) -> list[int]:
    return [step.level for step in found.steps for op in step.ops if isinstance(op, kind)]


def test_columns_before_functions_take_one_hop() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.filter(F.col("value") != "").map_values(lambda v: v + "!", returns="string").to("out")
    found = planned(builder)
    assert found.levels == 1
    assert [type(op) for op in found.steps[0].ops] == [FunctionOp, SinkOp]


def test_a_column_behind_a_function_opens_a_level_and_sinks_are_last() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.to("copy")
    stream.map_values(lambda v: v + "!", returns="string").map_values(F.upper("value")).to("out")
    found = planned(builder)
    assert found.levels == 2
    assert level_of(found, FunctionOp) == [0]
    assert level_of(found, SinkOp) == [1, 1], "both sinks belong to the step that commits"
    assert [type(p) for p in found.segments[1].projections] == [Projection]


def test_a_merge_is_dissolved_and_what_is_behind_exists_once_per_path() -> None:
    builder = StreamsBuilder()
    streams = [builder.stream(name, key=TEXT, value=TEXT) for name in ("a", "b")]
    merged = streams[0].merge(streams[1])
    merged.map_values(F.upper("value")).to("up")
    merged.for_each(lambda k, v: None)
    found = planned(builder)
    assert len([p for p in found.segments[0].projections if isinstance(p, Projection)]) == 2
    (function,) = [op for op in found.steps[0].ops if isinstance(op, FunctionOp)]
    assert len(function.inputs) == 2
    assert all(source.merged for source in found.sources)


def test_a_merge_over_two_levels() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    late = stream.map_values(lambda v: v, returns="string").map_values(F.upper("value"))
    late.merge(stream).to_table(store="t")
    found = planned(builder)
    (table,) = [op for op in found.steps[1].ops if isinstance(op, StatefulOp)]
    early_slot = found.sources[0].slot
    assert early_slot in table.inputs
    for schema in (found.into_step(0), found.out_of_step(0), found.into_step(1)):
        assert early_slot in {slot.id for slot in schema}, "carried through the first step"


def test_operators_on_one_store_share_a_step() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.to_table(store="early")
    stream.map_values(lambda v: v, returns="string").map_values(F.upper("value")).to_table(
        store="late"
    )
    topology = builder.build()
    stores = {n.stores[0].name: n.stores for n in topology.nodes if isinstance(n, StatefulNode)}
    shared = tuple(
        replace(n, stores=stores["early"]) if isinstance(n, StatefulNode) else n
        for n in topology.nodes
    )
    apart, together = (
        planned(topology),
        plan(replace(topology, nodes=shared), cut(topology).index_of, "app"),
    )
    assert level_of(apart, StatefulOp) == [0, 1]
    assert level_of(together, StatefulOp) == [1, 1]


def test_changes_of_an_early_step_travel_to_the_last() -> None:
    builder = StreamsBuilder()
    table = builder.stream("in", key=TEXT, value=TEXT).group_by_key().count(store="counts")
    table.to_stream().map_values(F.col("value") + 1).to("out")
    found = planned(builder)
    slot = found.slots[found.changelog_slots["counts"]]
    assert (slot.level, slot.in_step, slot.last_step) == (0, True, 1)
    assert slot in found.out_of_step(0)
    assert slot in found.into_step(1)
    assert found.stores() == {0: found.steps[0].ops[0].stores}  # type: ignore[union-attr]


def test_what_is_decoded_is_there_before_the_first_segment() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=serdes.long()).filter(F.col("value") > 0).to("out")
    found = planned(builder)
    (source,) = found.sources
    assert [slot.id for slot in found.out_of_step(-1)] == [DEAD_LETTER_SLOT, source.slot]
    assert DEAD_LETTER_SLOT in {slot.id for slot in found.into_step(0)}


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
    sinks = [op for op in found.steps[0].ops if isinstance(op, SinkOp)]
    assert [(op.topic, op.drop_null_keys) for op in sinks] == [
        ("app-r-repartition", True),
        ("out", False),
    ]


def test_a_topology_without_consumers_has_a_plan() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT)
    found = planned(builder)
    assert (found.levels, [slot.id for slot in found.into_step(0)]) == (1, [DEAD_LETTER_SLOT])


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
