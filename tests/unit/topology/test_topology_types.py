"""Types of edges, values in columns, what is kept beside offsets, and what is no topology."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow import (
    CountWindows,
    JoinWindows,
    KafkaStreams,
    KStream,
    Materialized,
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
from everflow.records import HEADERS, EdgeBatch
from everflow.serdes import arrow_type
from everflow.serdes.arrow_types import normal_type, type_text
from everflow.state.changelog import TIMESTAMP_BYTES
from everflow.testing import TopologyTestDriver
from everflow.topology.batches import concat, in_order, readable
from everflow.topology.graph import StatefulNode, column_names, same_type
from everflow.topology.idle_sources import MOST_BYTES, IdleSource, bytes_for_layouts
from everflow.topology.plan import PhysicalPlan, plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut, internal_topics
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
    room = bytes_for_layouts(program)
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
    room = bytes_for_layouts(builder.build())
    assert len(format_metadata("0123456789ab-999-999", clock, "x" * room)) <= MOST_BYTES


# Which sources move time while silent (note 025), and topics whose equal keys cannot meet.


TEXT = serdes.string()


def planned(builder: StreamsBuilder) -> PhysicalPlan:
    topology = builder.build()
    return plan(topology, cut(topology).index_of, "app")


def moved_by(found: PhysicalPlan) -> dict[str, tuple[str, ...]]:
    return {op.stores[0].name: op.idle for op in found.stateful if op.stores}


def test_an_operator_is_moved_by_the_sources_whose_records_reach_it() -> None:
    builder = StreamsBuilder()
    one = builder.stream("one", key=TEXT, value=TEXT, name="one", idle_advance="30 seconds")
    two = builder.stream(["two", "too"], key=TEXT, value=TEXT, name="two", idle_advance=2_000)
    three = builder.stream("three", key=TEXT, value=TEXT)
    one.filter(lambda value: True).group_by_key().count(store="first")
    one.merge(two).merge(three).group_by_key().count(store="all")
    three.group_by_key().count(store="third")
    found = planned(builder)
    seconds = {"two": "two/two/idle", "too": "two/too/idle"}
    assert found.idle == {
        0: {
            "one": IdleSource("one/idle", 30_000),
            **{topic: IdleSource(kept, 2_000) for topic, kept in seconds.items()},
        }
    }
    every = {"one/idle", *seconds.values()}
    moved = moved_by(found)
    assert (moved["first"], moved["third"]) == (("one/idle",), ())
    assert set(moved["all"]) == every


@pytest.mark.parametrize(("other", "after_ms"), [("1 minute", 60_000), (None, None)])
def test_it_waits_for_the_longest_of_its_feeders(other: str | None, after_ms: int | None) -> None:
    builder = StreamsBuilder()
    one = builder.stream("one", key=TEXT, value=TEXT, idle_advance="30 seconds")
    two = builder.stream("two", key=TEXT, value=TEXT, idle_advance=other)
    keyed = one.merge(two).select_key(lambda key, value: value, returns="string")
    windowed = keyed.group_by_key(name="by").windowed_by(TimeWindows.of_size("1 minute"))
    windowed.count(store="n")
    topic, fed_by = "app-by-repartition", frozenset({"one", "two"})
    behind = [topics[topic] for topics in planned(builder).idle.values() if topic in topics]
    assert [(one.after_ms, one.fed_by) for one in behind] == (
        [] if after_ms is None else [(after_ms, fed_by)]
    )


def test_nothing_is_kept_where_no_source_says_so() -> None:
    rooms = []
    for idle in (None, "30 seconds"):
        builder = StreamsBuilder()
        stream = builder.stream("one", key=TEXT, value=TEXT, name="one", idle_advance=idle)
        stream.group_by_key().count(store="n")
        rooms.append(bytes_for_layouts(builder.build()))
        assert bool(planned(builder).idle) is (idle is not None)
    assert rooms[0] - rooms[1] == len(',"one/idle":1700000000000')


@pytest.mark.parametrize("wrong", [0, "999 ms", "-1 s", "soon"])
def test_less_than_a_second_is_refused(wrong: object) -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match="test_topology_types"):
        builder.stream("one", key=TEXT, value=TEXT, idle_advance=wrong)  # type: ignore[arg-type]


SIDES = r"\(left l: 2; right r: 3\)"

Join = Callable[[StreamsBuilder, KStream, str | None], object]


def _stream(builder: StreamsBuilder) -> KStream:
    return builder.stream("r", key=TEXT, value=TEXT)


def _streams(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    windows = JoinWindows.of_time_difference(5)
    return left.join(_stream(builder), windows=windows, store="p", name=name)


def _stream_table(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    return left.left_join(builder.table("r", key=TEXT, value=TEXT, store="t"), name=name)


def _tables(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    right = builder.table("r", key=TEXT, value=TEXT, store="t")
    return left.to_table(store="l").outer_join(right, name=name)


def _as_of(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    return left.join_asof(_stream(builder), tolerance=10, store="q", name=name)


def _looked_up(builder: StreamsBuilder, left: KStream, name: str | None) -> object:
    right = builder.table("r", key=TEXT, value=TEXT, store="t")
    return left.lookup_join(right, grace=5, store=Materialized("w"), name=name)


@pytest.mark.parametrize(
    ("join", "generated"),
    [
        (_streams, "KSTREAM-MERGE-"),
        (_stream_table, "KSTREAM-LEFTJOIN-"),
        (_tables, "KTABLE-MERGE-"),
        (_as_of, "KSTREAM-ASOFJOIN-"),
        (_looked_up, ""),
    ],
)
@pytest.mark.parametrize("name", [None, "with-rates"])
def test_a_join_tells_sides_and_cure(join: Join, generated: str, name: str | None) -> None:
    builder = StreamsBuilder()
    join(builder, builder.stream("l", key=TEXT, value=TEXT), name)
    called = "the join " + (generated if name is None else name)
    with pytest.raises(TopologyError, match=SIDES) as caught:
        internal_topics(cut(builder.build()), {"l": 2, "r": 3}, "app")
    assert str(caught.value).startswith(called)
    assert ".repartition(name='a-name', partitions=3) before it, on the side" in str(caught.value)
    assert caught.value.code == "EF-COPARTITION"
    assert caught.value.where is not None
    assert caught.value.where.partition(":")[0] == __file__


def test_a_side_of_several_topics_lists_them() -> None:
    builder = StreamsBuilder()
    _streams(builder, builder.stream(["l", "m"], key=TEXT, value=TEXT), None)
    with pytest.raises(TopologyError, match="l: 2, m: 4; right r: 4"):
        internal_topics(cut(builder.build()), {"l": 2, "m": 4, "r": 4}, "app")


def test_what_is_no_join_is_called_by_its_name() -> None:
    builder = StreamsBuilder()
    both = builder.stream("l", key=TEXT, value=TEXT).merge(_stream(builder))
    both.group_by_key().count(store="n")
    with pytest.raises(TopologyError, match=r"^KSTREAM-AGGREGATE-.*\(l: 2, r: 3\)"):
        internal_topics(cut(builder.build()), {"l": 2, "r": 3}, "app")


# Batches that are joined, and text that comes back from the JVM.


def edge(
    keys: list[Any], values: list[Any], headers: Any = None, seq: list[int] | None = None
) -> EdgeBatch:
    n = len(keys)
    order = np.arange(n, dtype=np.int64) if seq is None else np.array(seq, np.int64)
    small = np.zeros(n, np.int32)
    found = None if headers is None else pa.array(headers, HEADERS)
    return EdgeBatch(
        key=pa.array(keys, pa.string()),
        value=pa.array(values, pa.int64()),
        timestamp=order + 100,
        seq=order,
        source=small,
        partition=small,
        offset=order + 7,
        headers=found,
    )


EMPTY = edge([], [])


def test_text_that_is_not_utf8_is_mended_as_java_does() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"], pa.binary()).buffers())
    assert readable(bad).to_pylist() == ["a\ufffd"]


def test_concat_is_in_merge_order_and_stable() -> None:
    left = edge(["a", "b", "c"], [1, 2, 3], seq=[0, 2, 2])
    right = edge(["x", "y"], [8, 9], [[{"key": "h", "value": None}], None], seq=[1, 2])
    joined = concat([left, EMPTY, right])
    assert joined.key.to_pylist() == ["a", "x", "b", "c", "y"]
    assert joined.headers is not None
    assert joined.headers.to_pylist() == [[], [{"key": "h", "value": None}], [], [], None]
    assert concat([EMPTY, EMPTY]).key.to_pylist() == []
    assert in_order(edge(["b", "a"], [2, 1], seq=[5, 4])).key.to_pylist() == ["a", "b"]
