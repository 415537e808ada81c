"""Types of edges, values in columns, what is kept beside offsets, and what is no topology."""

from typing import Any

import pyarrow as pa
import pytest

from everflow import (
    CountWindows,
    JoinWindows,
    KafkaStreams,
    Processor,
    Record,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    punctuate,
    serdes,
)
from everflow.operators.processors.processor import PunctuationType
from everflow.protocol.messages import format_metadata
from everflow.serdes import arrow_type
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import StatefulNode, column_names, same_type
from everflow.topology.idle_sources import MOST_BYTES, room_for_layouts
from everflow.topology.program import Topology
from everflow.worker.stateful import clock_name


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.large_string(), pa.string()),
        (pa.list_(pa.field("element", pa.int32(), nullable=False)), pa.list_(pa.int32())),
        (pa.struct([pa.field("a", pa.int32(), nullable=False)]), pa.struct([("a", pa.int32())])),
        (pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
    ],
)
def test_layouts_of_one_type_are_the_same(left: pa.DataType, right: pa.DataType) -> None:
    assert same_type(left, right)
    assert normal_type(left) == normal_type(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (pa.int32(), pa.int64()),
        (pa.struct([("a", pa.int32())]), pa.struct([("b", pa.int32())])),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
    ],
)
def test_different_types_differ(left: pa.DataType, right: pa.DataType) -> None:
    assert not same_type(left, right)


@pytest.mark.parametrize(
    "ddl",
    [
        "int",
        "struct<a:string,b:array<double>>",
        "map<string,bigint>",
        "decimal(9,2)",
        "timestamp",
        "timestamp_ntz",
        "boolean",
    ],
)
def test_text_is_ddl_that_reads_back(ddl: str) -> None:
    assert type_text(arrow_type(ddl)) == ddl


def test_column_names_list_the_fields_of_structs() -> None:
    names = column_names(pa.string(), pa.struct([("a", pa.int32())]))
    assert names[:4] == ["key string", "value struct", "value.a int", "timestamp bigint (ms)"]


def topology() -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.json("n int"))
    grouped = stream.group_by_key()
    grouped.count(store="counts")
    grouped.reduce(lambda a, b: {"n": a["n"] + b["n"]}, store="sums")
    grouped.windowed_by(SessionWindows.of_inactivity_gap_with_no_grace("1 minute")).count(
        store="sessions"
    )
    grouped.windowed_by(CountWindows.of_size(2)).count(store="numbers")
    windowed = grouped.windowed_by(TimeWindows.of_size("1 minute")).count(store="windows")
    windowed.suppress(Suppressed.until_window_closes(), store="closing")
    other = builder.stream("other", key=serdes.string(), value=serdes.json("n int"))
    stream.join(
        other,
        lambda a, b: {"n": a["n"] + b["n"]},
        windows=JoinWindows.of_time_difference("1 minute"),
        returns="n int",
        store="met",
    )
    builder.table("users", key=serdes.string(), value=serdes.json("n int"), store="users")
    return builder


def test_columns_show_what_values_show() -> None:
    with TopologyTestDriver(topology().build()) as driver:
        for name in ("in", "other", "users"):
            topic = driver.create_input_topic(name, key=serdes.string(), value=serdes.json("n int"))
            for at in range(5):
                topic.pipe_input("ab"[at % 2], {"n": at}, 1_000 * at)
        planned, stores = driver._plan, driver._stores
        assert {"counts", "sums", "sessions", "numbers", "windows", "users"} < stores.keys()
        seen = 0
        for name, store in stores.items():
            raw = [stored[TIMESTAMP_BYTES:] for _, stored in store.range(None, None)]
            decode, results = planned.value_decoder(name), planned.value_results(name)
            shown = results.decode_array(pa.array(raw, pa.binary())).to_pylist()
            assert shown == [decode(one) for one in raw], name
            seen += len(raw)
        assert seen > 10


def test_an_unknown_store_is_none() -> None:
    with TopologyTestDriver(topology().build()) as driver, pytest.raises(KeyError):
        driver._plan.value_results("nothing")


SETTINGS: dict[str, Any] = {"application_id": "app", "bootstrap_servers": "b:1"}


def test_a_builder_is_to_be_built() -> None:
    builder: Any = StreamsBuilder()
    builder.stream("orders")
    told = (
        r"takes the topology that builder\.build\(\) gives, found the StreamsBuilder itself: "
        r"call \.build\(\) on it\n  at .*:\d+"
    )
    with pytest.raises(TopologyError, match="KafkaStreams " + told):
        KafkaStreams(builder, **SETTINGS)
    with pytest.raises(TopologyError, match="TopologyTestDriver " + told):
        TopologyTestDriver(builder)


@pytest.mark.parametrize(
    ("given", "told"), [(None, "None"), ("orders", "'orders'"), (StreamsBuilder, "<class ")]
)
def test_anything_else_is_named(given: Any, told: str) -> None:
    with pytest.raises(TopologyError, match=rf"topology.*builder\.build.*{told}"):
        KafkaStreams(given, **SETTINGS)


MS = 1_764_000_000_000


def counted(operators: int, *, cut_at: int | None = None, name: str | None = None) -> Topology:
    """Operators with a state in one sub-topology, or in two."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    for number in range(operators):
        if number == cut_at:
            stream = stream.repartition(name="half")
        given = None if name is None else f"{name}{number}"
        stream.group_by_key().count(store=f"a-store-with-a-long-name-{number}", name=given)
    return builder.build()


class Ticking(Processor):
    def process(self, record: Record) -> None:
        """Nothing."""

    @punctuate("1 minute", PunctuationType.WALL_CLOCK_TIME)
    def each_minute(self, time: int) -> None:
        """Nothing."""


def written(program: Topology, layouts: str) -> str:
    """What stands beside an offset of a program that is one sub-topology."""
    nodes = [node.name for node in program.nodes if isinstance(node, StatefulNode)]
    return format_metadata("0123456789ab-999-999", dict.fromkeys(nodes, MS), layouts)


@pytest.mark.parametrize("operators", [1, 30, 80])
def test_times_and_layouts_fit_together(operators: int) -> None:
    program = counted(operators)
    room = room_for_layouts(program)
    assert MOST_BYTES - 200 < len(written(program, "x" * room)) <= MOST_BYTES


def test_too_many_operators_in_one_sub_topology_are_refused_with_the_cure() -> None:
    with pytest.raises(
        TopologyError, match=r"sub-topology 0.*100 operators.*4,096.*repartition\(name="
    ) as caught:
        counted(100)
    assert "test_topology_types.py" in str(caught.value)
    counted(100, cut_at=50)
    counted(100, name="n")


def test_the_clocks_of_processors_are_counted() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    stream.process(Ticking, name="ticking").to("out")
    clock = {clock_name("ticking", "each_minute"): MS, "ticking": MS}
    room = room_for_layouts(builder.build())
    assert len(format_metadata("0123456789ab-999-999", clock, "x" * room)) <= MOST_BYTES
