"""Every operator, with keys, groups, foreign keys and ids of every type: the results are those of
texts, with the values of that type in the texts' place."""

from __future__ import annotations

import datetime as dt
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import (
    BufferConfig,
    CountWindows,
    EmitStrategy,
    JoinWindows,
    Materialized,
    Processor,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    agg,
    serdes,
)
from everflow.dsl.streams import KStream, KTable
from everflow.serdes import Serde
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import GlobalTableNode
from everflow.topology.program import Topology
from everflow.windows import Windowed

pytestmark = pytest.mark.spark

UTC = dt.timezone.utc
A_STRUCT = {"x": "a", "y": None}
TEXTS = ("string", ["r", "s", "t"])
KINDS: dict[str, tuple[str, list[Any]]] = {
    "binary": ("binary", [b"", b"\0", b"\xff"]),
    "boolean": ("boolean", [False, True]),
    "tinyint": ("tinyint", [-128, -2, 127]),
    "smallint": ("smallint", [-300, -2, 300]),
    "int": ("int", [-(2**31), -2, 2**31 - 1]),
    "bigint": ("bigint", [-(2**63), -2, 2**63 - 1]),
    "float": ("float", [-0.0, 0.0, 0.5]),
    "double": ("double", [-0.0, 0.0, 1e300]),
    "decimal": ("decimal(10,2)", [Decimal("-1.50"), Decimal("0.00"), Decimal("99999999.99")]),
    "wide decimal": ("decimal(38,6)", [Decimal(-(10**31)), Decimal("0.000001"), Decimal(10**31)]),
    "date": ("date", [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (
        "timestamp",
        [dt.datetime(year, 1, 1, 0, 0, 0, 1, tzinfo=UTC) for year in (1900, 1970, 2200)],
    ),
    "timestamp_ntz": (
        "timestamp_ntz",
        [dt.datetime(year, 1, 1, 0, 0, 0, 1) for year in (1900, 1970, 2200)],
    ),
    "struct": ("struct<x: string, y: int>", [A_STRUCT, {"x": "a", "y": 7}, {"x": "b", "y": 7}]),
    "struct of nulls": (
        "struct<x: string, y: int>",
        [{"x": None, "y": None}, {"x": None, "y": 7}, {"x": "", "y": None}],
    ),
    "nested struct": (
        "struct<s: struct<x: string, y: int>, z: double>",
        [{"s": None, "z": 0.5}, {"s": A_STRUCT, "z": 0.5}, {"s": A_STRUCT, "z": 1.5}],
    ),
    "array": ("array<int>", [[6], [7, None], [7, 8]]),
    "array of structs": (
        "array<struct<x: string, y: int>>",
        [[A_STRUCT], [A_STRUCT, None], [A_STRUCT, A_STRUCT]],
    ),
    "struct of all": (
        "struct<d: decimal(10,2), t: timestamp, l: array<array<date>>, b: binary, f: float>",
        [
            {"d": Decimal("1.50"), "t": None, "l": [[dt.date(2000, 1, 1)]], "b": b"\0", "f": 0.5},
            {"d": None, "t": None, "l": [[], None], "b": b"", "f": 0.5},
            {"d": None, "t": dt.datetime(2000, 1, 1, tzinfo=UTC), "l": None, "b": None, "f": None},
        ],
    ),
    "map": ("map<string, int>", [{"x": None}, {"x": 7}, {"x": None, "y": 7}]),
    "struct with a map": (
        "struct<m: map<string, int>>",
        [{"m": {}}, {"m": {"x": 7}}, {"m": None}],
    ),
}


@dataclass(frozen=True)
class Program:
    """The inputs of one program whose keys, and ``value.id``, have a type."""

    builder: StreamsBuilder
    kind: str
    key: Serde
    value: Serde

    def stream(self, topic: str = "a") -> KStream:
        return self.builder.stream(topic, key=self.key, value=self.value)

    def table(self, topic: str = "a", **options: Any) -> KTable:
        options = {"store": topic, **options}
        return self.builder.table(topic, key=self.key, value=self.value, **options)

    def again(self) -> KStream:
        """A stream whose key has changed."""
        return self.stream().select_key(F.col("value.id"))


Made = KStream | KTable | None
PROGRAMS: dict[str, Callable[[Program], Made]] = {}


def program(function: Callable[[Program], Made]) -> Callable[[Program], Made]:
    PROGRAMS[function.__name__] = function
    return function


def simple(**programs: Callable[[Program], Made]) -> None:
    PROGRAMS.update(programs)


simple(
    filtered=lambda p: p.stream().filter(
        (F.col("key") == F.col("value.id")) | F.col("value.id").isNull()
    ),
    filtered_by_function=lambda p: p.stream().filter(lambda key, value: value and value["n"] > 1),
    mapped=lambda p: p.stream().map(key=F.col("value.id"), value=F.col("key")),
    mapped_by_function=lambda p: p.stream().map(
        lambda key, value: (value and value["id"], key), returns=(p.kind, p.kind)
    ),
    values=lambda p: p.stream().map_values(
        F.struct("key", "value.id", F.col("value.n").alias("m"))
    ),
    values_by_function=lambda p: p.stream().map_values(
        lambda key, value: {"k": key, "v": value and value["id"]}, returns=f"k {p.kind}, v {p.kind}"
    ),
    selected=lambda p: p.again(),
    selected_by_function=lambda p: p.stream().select_key(
        lambda key, value: value and value["id"], returns=p.kind
    ),
    flat=lambda p: p.stream().flat_map_values(F.array("value.id", "key")),
    flat_by_function=lambda p: p.stream().flat_map(
        lambda key, value: [(key, 1), (value and value["id"], 2)], returns=(p.kind, "int")
    ),
    peeked=lambda p: p.stream().peek(lambda key, value: None),
    merged=lambda p: p.stream().merge(p.again(), p.stream("b")),
    split=lambda p: (
        p.stream()
        .split()
        .branch(F.col("key") == F.col("value.id"), name="same")
        .default_branch(name="rest")["rest"]
    ),
    repartitioned=lambda p: p.again().repartition(name="again"),
    to_table=lambda p: p.again().to_table(store="s", name="s"),
    table=lambda p: p.table(),
    ttl=lambda p: p.table(ttl=20),
    versioned=lambda p: p.stream().join(
        p.table("b", store=Materialized("b", history=100)), n=F.col("right.n"), i=F.col("left.id")
    ),
    table_filter=lambda p: p.table().filter(F.col("value.id").isNotNull()),
    table_filter_in_a_store=lambda p: p.table().filter(F.col("value.id").isNotNull(), store="s"),
    table_values=lambda p: p.table().map_values(F.struct("value.id"), store="s"),
    transformed=lambda p: p.table().transform_values(
        lambda key, value: value and {"k": key, "v": value["id"]}, returns=f"k {p.kind}, v {p.kind}"
    ),
    suppressed=lambda p: p.table().suppress(Suppressed.until_time_limit(10), store="s"),
    suppressed_when_full=lambda p: p.table().suppress(
        Suppressed.until_time_limit(1000, BufferConfig.max_records(2).emit_early_when_full()),
        store="s",
    ),
    count=lambda p: p.stream().group_by_key().count(store="s"),
    count_of_groups=lambda p: p.stream().group_by(F.col("value.id"), name="by").count(store="s"),
    count_with_ttl=lambda p: p.stream().group_by_key().count(store="s", ttl=20),
    reduced=lambda p: (
        p.stream().group_by(F.col("value.id"), name="by").reduce(lambda old, new: new, store="s")
    ),
    built_in=lambda p: (
        p.stream()
        .group_by_key()
        .aggregate(
            n=agg.count("value.id"),
            first=agg.first("value.id"),
            last=agg.last("value.id"),
            all=agg.collect_list("value.id"),
            best=agg.max_by("value.id", "value.n"),
            store="s",
        )
    ),
    called=lambda p: (
        p.stream()
        .group_by(F.col("value.id"), name="by")
        .aggregate(
            initializer=list,
            aggregator=lambda key, value, found: [*found, key],
            returns=f"array<{p.kind}>",
            store="s",
        )
    ),
    cogrouped=lambda p: (
        p.stream()
        .group_by_key()
        .cogroup(lambda key, value, found: found + 1)
        .cogroup(
            p.stream("b").group_by(F.col("value.id"), name="by"),
            lambda key, value, found: found + 10,
        )
        .aggregate(lambda: 0, returns="bigint", store="s")
    ),
    tumbling=lambda p: (
        p.again()
        .group_by_key(name="by")
        .windowed_by(TimeWindows.of_size(10).grace(5))
        .count(store="s")
    ),
    hopping=lambda p: (
        p.stream()
        .group_by_key()
        .windowed_by(TimeWindows.of_size(10).advance_by(5).grace(5))
        .reduce(lambda old, new: new, store="s")
    ),
    sliding=lambda p: (
        p.stream()
        .group_by_key()
        .windowed_by(SlidingWindows.of_time_difference(10).grace(5))
        .count(store="s")
    ),
    sessions=lambda p: (
        p.stream()
        .group_by_key()
        .windowed_by(SessionWindows.of_inactivity_gap(4).grace(5))
        .aggregate(n=agg.count(), ids=agg.collect_list("value.id"), store="s")
    ),
    sessions_by_function=lambda p: (
        p.stream()
        .group_by_key()
        .windowed_by(SessionWindows.of_inactivity_gap(4).grace(5))
        .aggregate(
            initializer=list,
            aggregator=lambda key, value, found: [*found, key],
            merger=lambda key, one, other: one + other,
            returns=f"array<{p.kind}>",
            store="s",
        )
    ),
    of_records=lambda p: (
        p.stream().group_by_key().windowed_by(CountWindows.of_size(2)).count(store="s")
    ),
    final=lambda p: (
        p.stream()
        .group_by_key()
        .windowed_by(TimeWindows.of_size(10).grace(5))
        .count(store="s")
        .suppress(Suppressed.until_window_closes(), store="buffer")
    ),
    when_they_close=lambda p: (
        p.stream()
        .group_by_key()
        .windowed_by(TimeWindows.of_size(10).grace(5))
        .emit_strategy(EmitStrategy.on_window_close())
        .count(store="s")
    ),
    table_groups=lambda p: p.table().group_by(F.col("value.id"), name="by").count(store="s"),
    table_groups_of_a_struct=lambda p: (
        p.table()
        .group_by(F.struct("value.id", "value.n"), name="by")
        .aggregate(n=agg.count(), total=agg.sum("value.n"), store="s")
    ),
    table_groups_of_an_array=lambda p: (
        p.table().group_by(F.array("value.id"), name="by").count(store="s")
    ),
    table_groups_by_function=lambda p: (
        p.table()
        .group_by(lambda key, value: value["id"], returns=p.kind, name="by")
        .aggregate(
            initializer=list,
            adder=lambda key, value, found: [*found, value["id"]],
            subtractor=lambda key, value, found: found[1:],
            returns=f"array<{p.kind}>",
            store="s",
        )
    ),
    table_groups_reduced=lambda p: (
        p.table()
        .group_by(F.col("value.id"), F.col("value.n"), name="by")
        .reduce(lambda old, new: old + new, lambda old, new: old - new, store="s")
    ),
    groups_of_a_windowed_table=lambda p: (
        p.stream()
        .group_by_key()
        .windowed_by(TimeWindows.of_size(10))
        .count(store="s")
        .group_by(F.col("key"), name="by")
        .aggregate(total=agg.sum("value"), store="again")
    ),
    groups_of_sessions=lambda p: (
        p.stream()
        .group_by_key()
        .windowed_by(SessionWindows.of_inactivity_gap(4))
        .count(store="s")
        .group_by(F.col("key.key"), name="by")
        .count(store="again")
    ),
    table_join=lambda p: p.table().left_join(p.table("b"), i=F.col("right.id")),
    outer_table_join=lambda p: p.table().outer_join(p.table("b"), store="joined"),
    foreign_key=lambda p: p.table().join(
        p.table("b"), on=F.col("value.id"), name="by", n=F.col("right.n")
    ),
    left_foreign_key=lambda p: p.table().left_join(
        p.table("b"),
        lambda left, right: right and right["id"],
        on=F.col("value.id"),
        name="by",
        returns=p.kind,
    ),
    foreign_key_by_function=lambda p: p.table().join(
        p.table("b"), on=lambda key, value: value["id"], name="by", n=F.col("right.n")
    ),
    foreign_key_of_itself=lambda p: (
        lambda table: table.join(table, on=F.col("value.id"), name="by")
    )(p.table()),
    stream_table=lambda p: p.again().left_join(p.table("b"), name="by", n=F.col("right.n")),
    stream_table_with_grace=lambda p: p.stream().left_join(
        p.table("b", store=Materialized("b", history=100)), grace=5, store="s", n=F.col("right.n")
    ),
    lookup=lambda p: p.stream().lookup_join(p.table("b"), grace=5, store="s", n=F.col("right.n")),
    streams=lambda p: p.stream().outer_join(
        p.stream("b"), windows=JoinWindows.of_time_difference(10).grace(5), store="s"
    ),
    streams_behind_keys=lambda p: p.again().join(
        p.stream("b"), windows=JoinWindows.of_time_difference(10).grace(5), store="s", name="by"
    ),
    as_of=lambda p: p.stream().join_asof(
        p.stream("b"), tolerance=10, grace=5, how="left", store="s"
    ),
    interval=lambda p: p.stream().join_interval(
        p.stream("b"), before=10, after=5, grace=5, how="left", store="s"
    ),
    deduplicated=lambda p: p.stream().deduplicate(10, store="s"),
    deduplicated_by_id=lambda p: p.stream().deduplicate(10, by=F.col("value.id"), store="s"),
    deduplicated_by_function=lambda p: p.stream().deduplicate(
        10, by=lambda value: value and value["id"], returns=p.kind, store="s"
    ),
)


@program
def global_join(p: Program) -> Made:
    shared = p.builder.global_table("b", key=p.key, value=p.value, store="b")
    return p.stream().left_join(shared, on=F.col("value.id"), n=F.col("right.n"))


@program
def global_join_by_function(p: Program) -> Made:
    shared = p.builder.global_table("b", key=p.key, value=p.value, store="b")
    return p.stream().join(shared, on=lambda value: value and value["id"], i=F.col("right.id"))


@program
def global_lookup(p: Program) -> Made:
    shared = p.builder.global_table("b", key=p.key, value=p.value, store="b")
    return p.stream().lookup_join(
        shared, on=F.col("value.id"), grace=5, store="s", n=F.col("right.n")
    )


@program
def printed(p: Program) -> Made:
    p.stream().print_table("records")
    p.table("b").print_table("entries")
    return None


@program
def routed(p: Program) -> Made:
    p.stream().to(
        lambda key, value: "out",
        partitioner=lambda topic, key, value, partitions: [0] if key is not None else None,
    )
    return None


class Remembers(Processor):
    """Reads and writes stores of every kind by the records' keys."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.last, self.past = context.store("s"), context.store("past")
        self.windows, self.sessions = context.store("windows"), context.store("sessions")

    def process(self, record: Any) -> None:
        key, time = record.key, record.timestamp
        if key is None:
            return
        before = self.last.get(key, 0)
        self.last.put(key, before + 1)
        self.windows.put(key, before, time)
        self.sessions.put(Windowed(key, time, time + 1), before)
        self.past.put(key, before, time)
        found = [self.last.put_if_absent(key, 5), self.windows.fetch_window(key, time)]
        found += [len(list(self.windows.fetch(key, 0, 1000))), len(list(self.sessions.fetch(key)))]
        found += [len(list(self.last.all())), len(list(self.last.range(key, key)))]
        found += [self.sessions.fetch_session(key, time, time + 1)]
        assert key in [one for one, _ in self.last.all()]
        self.context.forward(record.with_value(found))


@program
def processed(p: Program) -> Made:
    written: dict[str, Any] = {"key": p.key, "value": serdes.long()}
    stores = [
        Stores.key_value("s", **written),
        Stores.window("windows", size=10, retention=1000, **written),
        Stores.session("sessions", retention=1000, **written),
        Stores.versioned("past", history=1000, **written),
    ]
    made: KStream = p.stream().process(Remembers, returns=(p.kind, "array<bigint>"), stores=stores)
    return made


@program
def processed_values(p: Program) -> Made:
    def seen(record: Any, context: Any) -> None:
        context.forward(record.with_value(record.value and record.value["id"]))

    return p.stream().process_values(seen, returns=p.kind)


class AsksTable(Processor):
    """Asks a table for the record's own key."""

    def init(self, context: Any) -> None:
        super().init(context)
        self.table = context.store("b")

    def process(self, record: Any) -> None:
        found = None if record.key is None else self.table.get(record.key)
        self.context.forward(record.with_value(found))


@program
def asking_a_table(p: Program) -> Made:
    p.table("b")
    made: KStream = p.stream().process(AsksTable, stores=["b"])
    return made


STEPS: list[tuple[str, int | None, int | None, int | None, int]] = [
    # topic, key, id, n (None: no value), time
    ("b", 0, 1, 11, 10),
    ("b", 1, 0, 12, 11),
    ("a", 0, 0, 21, 12),
    ("a", 1, 2, 22, 13),
    ("a", 0, 1, 23, 14),
    ("a", None, 0, 24, 15),
    ("a", 2, None, 25, 16),
    ("b", 2, 2, 13, 17),
    ("a", 0, 0, 26, 11),
    ("a", 2, 2, 27, 30),
    ("b", 1, 1, 14, 31),
    ("a", 2, 2, 28, 31),
    ("a", 1, 0, None, 32),
    ("b", 0, 0, None, 33),
    ("b", None, 0, 15, 33),
    ("a", 0, 2, 29, 34),
    ("a", 0, 0, None, 35),
    ("a", 1, 1, 30, 60),
    ("b", 2, 2, None, 61),
]
BATCH: list[tuple[str, int | None, int, int, int]] = [
    ("a", 0, 1, 41, 61),
    ("a", 1, 2, 42, 62),
    ("a", 0, 2, 43, 62),
    ("b", 2, 0, 44, 63),
]
BATCH += [("a", 0, 2, 45, 64), ("b", 0, 0, 46, 65), ("a", None, 0, 47, 66), ("a", 2, 1, 48, 90)]


def run(made: Callable[[Program], Made], kind: str, keys: list[Any]) -> Any:
    """What comes out, and what the table ``s`` has, with the place of each key in its stead."""
    key, value = serdes.from_type(serdes.arrow_type(kind)), serdes.json(f"id {kind}, n bigint")
    of = Program(StreamsBuilder(), kind, key, value)
    out = made(of)
    if isinstance(out, KTable):
        out = out.to_stream()
    if out is not None:
        out.to("out")
    topology = of.builder.build()
    written = serdes.bytes_(), serdes.bytes_()
    if out is not None:
        edge = out.edge
        written = edge.written_key("to", None), edge.written_value("to", None)
    with TopologyTestDriver(topology) as driver:
        topics = {
            topic: driver.create_input_topic(topic, key, value)
            for topic in topics_of(topology) & {"a", "b"}
        }

        def records(steps: Iterable[Any], topic: str) -> list[tuple[Any, Any, int]]:
            return [
                (
                    None if key is None else keys[key % len(keys)],
                    None if n is None else {"id": at(id_), "n": n},
                    time,
                )
                for one, key, id_, n, time in steps
                if one == topic
            ]

        def at(place: int | None) -> Any:
            return None if place is None else keys[place % len(keys)]

        for step in STEPS:
            if step[0] in topics:
                topics[step[0]].pipe_each(records([step], step[0]))
        driver.pipe_batch({one: records(BATCH, topic) for topic, one in topics.items()})
        entries = {}
        named = functools.partial(name_of, pa.array(keys, key.type).to_pylist())
        if isinstance(out, KStream):
            read = driver.create_output_topic("out", *written).read_records()
        else:
            read = []
        results: dict[str, list[Any]] = {}
        for record in read:
            results.setdefault(repr(named(record.key)), []).append(
                (named(record.value), record.timestamp)
            )
        for store in ("a", "b", "s"):
            view = view_of(driver, store)
            if view is not None:
                entries[store] = sorted(repr(named(list(pair))) for pair in view.all())
                assert [repr(view.get(one)) for one, _ in view.all()] == [
                    repr(found) for _, found in view.all()
                ]
        return results, entries


def topics_of(topology: Topology) -> set[str]:
    """Those that it reads, global tables' included."""
    read = {topic for node in topology.nodes for topic in getattr(node, "topics", ())}
    return read | {node.topic for node in topology.nodes if isinstance(node, GlobalTableNode)}


def view_of(driver: TopologyTestDriver, store: str) -> Any:
    spec = driver._kept.get(store)
    if spec is None or spec.kind != "key_value" or spec.private:
        return None
    own_format = spec.key_serde == spec.value_serde == serdes.bytes_()
    return None if own_format else driver.get_key_value_store(store)


def name_of(keys: list[Any], value: Any) -> Any:
    """``value`` with ``key 0``, ``key 1`` ... in the place of keys, however deep."""
    for place, key in enumerate(keys):
        if type(value) is type(key) and shown(value) == shown(key):
            return f"key {place}"
    if isinstance(value, Windowed):
        return tuple(name_of(keys, part) for part in (value.key, value.start, value.end))
    if isinstance(value, dict):
        return {name: name_of(keys, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [name_of(keys, one) for one in value]
    return value


def shown(value: Any) -> str:
    """UTC has several classes."""
    return re.sub(r"zoneinfo\.ZoneInfo\(key='UTC'\)|datetime\.timezone\.utc", "UTC", repr(value))


@functools.cache
def with_texts(name: str, count: int) -> Any:
    kind, keys = TEXTS
    return run(PROGRAMS[name], kind, keys[:count])


def check(name: str, kind: str) -> None:
    ddl, keys = KINDS[kind]
    assert run(PROGRAMS[name], ddl, keys) == with_texts(name, len(keys))


COMPARED_BY_SPARK = {"filtered", "split"}
GUARD = [
    *(("table_groups", "struct of all"), ("table_groups_of_a_struct", "array of structs")),
    *(("table_groups_by_function", "array of structs"), ("table_groups_reduced", "map")),
    *(("groups_of_a_windowed_table", "array"), ("groups_of_sessions", "struct of nulls")),
    *(("foreign_key", "nested struct"), ("left_foreign_key", "struct of all")),
    *(("foreign_key_by_function", "array"), ("foreign_key_of_itself", "array of structs")),
    *(("processed", "nested struct"), ("asking_a_table", "array of structs")),
    *(("global_join", "struct"), ("lookup", "struct of all"), ("outer_table_join", "array")),
    *(("streams", "nested struct"), ("as_of", "array"), ("deduplicated_by_id", "struct of all")),
    *(("built_in", "struct of all"), ("cogrouped", "array"), ("sessions", "struct of nulls")),
    *(("suppressed_when_full", "array of structs"), ("ttl", "struct"), ("printed", "map")),
]
"""What the default suite has: types without Arrow kernels, where operators compare keys."""


@pytest.mark.parametrize(("name", "kind"), GUARD)
def test_operators_that_compare_keys_take_nested_ones(name: str, kind: str) -> None:
    check(name, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_operator_takes_keys_of_every_type(name: str, kind: str) -> None:
    if name in COMPARED_BY_SPARK and ("map" in kind or kind in ("float", "double")):
        pytest.skip("Spark compares no maps, and takes -0.0 for 0.0")
    check(name, kind)
