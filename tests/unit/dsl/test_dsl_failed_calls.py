"""A call that fails leaves nothing behind: corrected and repeated it gives the topology that it
would have given at first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from everflow import (
    KGroupedStream,
    KStream,
    KTable,
    SessionWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    agg,
    serdes,
)

pytestmark = pytest.mark.spark
HOUR = TimeWindows.of_size("1 hour")
VALUE = serdes.json("item string, amount double")


@dataclass
class World:
    builder: StreamsBuilder
    stream: KStream
    grouped: KGroupedStream
    table: KTable
    made: int = 0

    @staticmethod
    def new() -> World:
        builder = StreamsBuilder()
        stream = builder.stream("orders", key=serdes.string(), value=VALUE)
        grouped = stream.group_by(F.col("value.item"), name="by-item")
        return World(
            builder,
            stream,
            grouped,
            stream.map_values(F.col("value.amount")).to_table(store="table", name="taken"),
        )

    def name(self) -> str:
        self.made += 1
        return f"n{self.made}"


Step = Callable[[World], object]
# Each fails as late as it can: after it has claimed names, topics or stores, burnt numbers or added
# nodes.
FAILING: list[Step] = [
    lambda w: w.grouped.count(store="s", name="taken"),
    lambda w: w.grouped.aggregate(store="s", a=agg.sum("value.nothing")),
    lambda w: w.grouped.aggregate(store="s", a=agg.sum("value.item")),
    lambda w: w.grouped.aggregate(store="s", initializer=int, aggregator=lambda: 0, returns="int"),
    lambda w: w.grouped.aggregate(store="s", initializer=int, aggregator=max, returns="nothing"),
    lambda w: w.grouped.reduce(cast(Any, lambda a: a), store="s"),
    lambda w: w.grouped.windowed_by(HOUR).count(store="s", name="taken"),
    lambda w: w.grouped.windowed_by(SessionWindows(5)).aggregate(
        store="s", initializer=int, aggregator=max, returns="int"
    ),
    lambda w: w.builder.table("t", store="s", name="taken"),
    lambda w: w.builder.table("t", store="s", key=serdes.string),  # type: ignore[arg-type]
    lambda w: w.builder.stream(["u", "orders"]),
    lambda w: w.builder.stream("u", name="taken"),
    lambda w: w.stream.to_table(store="s", name="taken"),
    lambda w: w.stream.to_table(store="s", value=serdes.long()),
    lambda w: w.stream.group_by(F.col("value.nothing"), name="g"),
    lambda w: w.stream.group_by(lambda value: value, name="g"),
    lambda w: w.stream.group_by(F.col("value.item"), name="g", key_serde=serdes.long()),
    lambda w: w.stream.repartition(name="r", key=serdes.long()),
    lambda w: w.stream.flat_map_values(F.split("value.item", " "), name="taken"),
    lambda w: w.stream.branch(big=F.col("value.amount") > 1, small=F.col("value.nothing") > 1),
    lambda w: w.stream.branch("big", big=F.col("value.amount") > 1),
    lambda w: w.stream.to("out", name="taken"),
    lambda w: w.stream.merge(w.stream, name="taken"),
    lambda w: w.table.map_values(lambda a, b, c: a, returns="int"),
    lambda w: w.table.filter(F.col("value") > 1, name="taken"),
    lambda w: w.stream.count(),  # type: ignore[attr-defined]
    lambda w: w.stream.filter(zzz=1),  # type: ignore[call-arg]
]
WORKING: list[Step] = [
    lambda w: w.grouped.count(store=w.name()),
    lambda w: (
        w.grouped.windowed_by(HOUR)
        .aggregate(store=w.name(), a=agg.sum("value.amount"))
        .to_stream()
        .to("out")
    ),
    lambda w: w.builder.table(w.name(), store=f"{w.made}-store", name=f"{w.made}-table"),
    lambda w: w.builder.stream([w.name()]).filter(F.col("offset") > 1),
    lambda w: w.stream.group_by(lambda value: value["item"], returns="string", name=w.name()).count(
        store=f"{w.made}-count"
    ),
    lambda w: w.stream.branch(
        big=F.col("value.amount") > 1, small=lambda value: True, default="rest"
    ),
    lambda w: w.stream.flat_map_values(F.split("value.item", " ")),
    lambda w: w.table.filter(lambda value: value > 1).to_stream().repartition(name=w.name()),
]


def fails(step: Step, world: World) -> None:
    with pytest.raises(TopologyError) as caught:
        step(world)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


def shape(world: World) -> Any:
    topology = world.builder.build()
    nodes = [(node.name, node.inputs, node.out) for node in topology.nodes]
    return nodes, topology.repartition_topics, topology.describe()


@settings(max_examples=12)
@given(steps=st.lists(st.sampled_from(range(len(WORKING))), max_size=5), data=st.data())
def test_a_build_with_failing_calls_in_between_is_the_build_without_them(
    steps: list[int], data: st.DataObject
) -> None:
    plain, disturbed = World.new(), World.new()
    for step in steps:
        for failing in data.draw(st.lists(st.sampled_from(range(len(FAILING))), max_size=6)):
            fails(FAILING[failing], disturbed)
        WORKING[step](plain)
        WORKING[step](disturbed)
    assert shape(plain) == shape(disturbed)


def test_every_failing_call_leaves_names_topics_stores_and_numbers_free() -> None:
    plain, disturbed = World.new(), World.new()
    for step in FAILING:
        fails(step, disturbed)
    for world in (plain, disturbed):
        world.grouped.count(store="s")
        world.builder.table("t", store="s2").to_stream().to("out")
        world.builder.stream("u")
        world.stream.group_by(F.col("value.item"), name="g").count(store="c")
        world.stream.repartition(name="r")
    assert shape(plain) == shape(disturbed)


def test_a_failed_branch_may_be_repeated() -> None:
    def build(mistake: bool) -> Any:
        world = World.new()
        split = world.stream.split(name="split-")
        split.branch(F.col("value.amount") > 10, name="big")
        if mistake:
            fails(lambda _: split.branch(F.col("value.nothing") > 1, name="small"), world)
            fails(lambda _: split.branch(lambda: True, name="small"), world)
            fails(lambda _: split.branch(F.lit(True), name="big"), world)
        split.branch(lambda value: value["amount"] > 1, name="small").default_branch(name="rest")
        return shape(world)

    assert build(True) == build(False)
