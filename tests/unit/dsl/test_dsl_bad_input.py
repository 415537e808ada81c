"""Every mistake fails at once, names the user's line and says what to write instead."""

from __future__ import annotations

import copy
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType

from everflow import (
    ConfigError,
    CountWindows,
    KGroupedStream,
    KStream,
    KTable,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    agg,
    serdes,
)
from everflow.topology.graph import WallclockTimestampExtractor
from unit.builders import PUBLIC, streams_config

pytestmark = pytest.mark.spark


def twice_of(amount: float) -> float:
    return amount * 2


TWICE = F.udf(twice_of, DoubleType())
NAMED = F.udf(str, StringType())


def twice(builder: StreamsBuilder, orders: KStream) -> object:
    orders.group_by_key().count(store="n")
    return orders.group_by_key().count(store="n")


def repartitioned_twice(builder: StreamsBuilder, orders: KStream) -> object:
    orders.repartition(name="r")
    return orders.repartition(name="r")


def named_twice(builder: StreamsBuilder, orders: KStream) -> object:
    orders.filter(F.lit(True), name="f")
    return orders.filter(F.lit(True), name="f")


def rekeyed(orders: KStream) -> KStream:
    number = F.col("offset").alias("number")
    return orders.select_key(F.struct(F.col("value.item").alias("item"), number))


async def asked(value: object) -> bool:
    return True


class Asking(Processor):
    async def process(self, record: Record) -> None:  # type: ignore[override]
        raise AssertionError(record)


SESSIONS = SessionWindows.of_inactivity_gap("5 minutes")
SLIDING = SlidingWindows.of_time_difference("1 minute")
THREE = CountWindows.of_size(3)
INTS: dict[str, Any] = {"store": "x", "initializer": int, "aggregator": max, "returns": "int"}


def aggregated(groups: Any, aggregator: Any) -> object:
    return groups.aggregate(store="x", a=aggregator)


MISTAKES = [
    ("g.count()", r"write count\(\.\.\., store='a-name'\)"),
    ("b.table('t')", r"write table\(\.\.\., store="),
    ("s.to_table()", r"write to_table\(\.\.\., store="),
    ("s.group_by(F.col('value.item'))", r"write group_by\(\.\.\., name='a-name'\)"),
    ("s.select_key(F.col('offset')).group_by_key()", r"write group_by_key\(\.\.\., name="),
    ("s.repartition()", r"write repartition\(\.\.\., name="),
    ("s.assume_partitioned(by='item')", r"builder\.stream\('topic', partitioner="),
    ("rekeyed(s).assume_partitioned(by='itm')", r"struct<item.*'itm'; did you mean 'item'"),
    ("rekeyed(s).assume_partitioned(by=F.col('key.item'))", r"by= is the name of a field"),
    ("s.select_key(F.col('offset')).assume_partitioned(by='key')", r"key, which is bigint"),
    ("rekeyed(s).assume_partitioned(by='number')", r"number is bigint, .* of orders are string"),
    ("rekeyed(s).assume_partitioned(partitioner='md5')", "one of murmur2, crc32, fnv1a"),
    ("twice(b, s)", r"'n'.*twice.*bad_input.py:\d+"),
    ("repartitioned_twice(b, s)", "repartition name 'r' is used twice"),
    ("named_twice(b, s)", "node name 'f' is used twice"),
    ("b.table('orders', store='t')", "read twice"),
    ("b.global_table_from(print, key='k', store=Materialized('g', in_memory=True))", "store='g'"),
    ("b.stream('a topic')", "name a topic"),
    ("b.stream([])", "at least one"),
    ("g.count(store='a/b')", "name a store"),
    ("b.stream('x', offset_reset='first')", "earliest, latest, none"),
    ("b.stream('x', value='a int')", r"serdes\.json\('a int'\)"),
    ("s.to('out', value=serdes.long())", "struct<.*cannot write"),
    ("s.filter(F.col('value.amont') > 1)", r"columns: .*value\.amount"),
    ("s.map_values(F.col('amount'))", "columns: key string"),
    ("b.stream('raw').filter(F.col('value.a') > 1)", "undecoded bytes; .*serde"),
    ("s.filter(F.col('value.amount'))", "double.*boolean.*cast"),
    ("s.filter('value.amount > 1')", r"; write F\.expr\('value.amount > 1'\)"),
    ("s.map_values('value.amount')", r"'value.amount'.*F\.col\('v"),
    ("s.group_by(F.window(F.timestamp_millis('timestamp'), '1 s'), name='w')", "windowed_by"),
    ("s.group_by(F.window('timestamp', '1 minute'), name='w')", r"windowed_by\(TimeWindows"),
    ("s.group_by(F.session_window('offset', '1 minute'), name='w')", r"windowed_by\("),
    ("s['value']", r"^KStream.*\[...\].* map_values\(F\.col\('value"),
    ("s['amount']", r"filter\(F\.col\('value\.amount'\)\.isNotNull"),
    ("s[F.col('value.amount') > 1]", r"filter\(condition\)"),
    ("s.value", r"^KStream.*value.*F\.col\('value'\)"),
    ("s.amount", r"^KStream.*amount.*F\.col\('value\.amount"),
    ("s.timestamp", r"^KStream.*timestamp.*F\.col\('timestamp'\)"),
    ("b.table('t', store='t')['value']", r"^KTable.*F\.col\('value'\)"),
    ("b.table('t', store='t').value", r"^KTable.*F\.col\('value'\)"),
    ("s.branch(big=F.col('value.amount') > 1, default='rest')['bgi']", r"'big', 'rest'.*'big'\?"),
    ("s.split().branch(F.lit(True), name='a').no_default_branch()['other']", r"there are 'a'\n"),
    ("s.map_values(lambda v: 1)", r"add returns=\.\.\."),
    ("s.map_values(lambda v: 1, returns='numbr')", "not a type: .*numbr"),
    ("s.map(lambda v: (1, 2), returns='int')", r"returns=\('string', 'double'\)"),
    ("s.map()", "needs key="),
    ("s.map(F.col('value'))", "takes struct<key, value>"),
    ("s.map_values(asked, returns='int')", r"map_values\(asked, \.\.\., concurrency=64\)"),
    ("s.filter(asked)", "async function asked"),
    ("s.select_key(asked, returns='int')", "select_key .* no async .* map_values before"),
    ("b.table('t', store='t').map_values(asked, returns='int')", "no async .* of a stream"),
    ("s.process(asked)", "process .* no async"),
    ("s.process(Asking)", "process .* no async"),
    ("s.map_values(lambda v: 1, returns='int', retries=2)", "retries=.*concurrency=64"),
    ("s.map_values(F.col('value'), concurrency=2)", "concurrency= is for a Python function"),
    ("s.filter(asked, concurrency=0)", "from 1 to 10,000, found 0"),
    ("s.for_each(asked, concurrency=True)", "found True"),
    ("s.peek(asked, concurrency=2, retries=-1)", "retries .* from 0 on, found -1"),
    ("s.flat_map_values(asked, returns='int', concurrency=2, timeout='soon')", "soon"),
    ("s.filter(asked, concurrency=2, timeout=0)", "timeout .* above 0"),
    ("s.filter(asked, concurrency=2, ordered=False)", "no ordered="),
    ("s.map_values(a=1)", r"constants are F\.lit"),
    ("s.map_values()", "needs a Column"),
    ("s.filter(lambda a, b, c: True)", r"\(value\) or \(key, value\).* takes 3"),
    ("s.peek(lambda: None)", "takes 0"),
    ("s.peek(F.col('value'))", "for its effect"),
    ("s.flat_map_values(F.col('value.item'))", "array Column, found string"),
    ("s.merge(b.stream('raw'))", "string and binary"),
    ("s.merge()", "one other"),
    ("s.merge(StreamsBuilder().stream('x'))", "one StreamsBuilder"),
    ("s.split().no_default_branch()", "without a branch"),
    ("s.split().branch(F.lit(True), name='a').branch(F.lit(True), name='a')", "called 'a'"),
    ("s.repartition(name='r', partitions=0)", "above 0"),
    ("g.windowed_by('1 hour')", r"TimeWindows\.of_size"),
    ("gs.aggregate(**INTS)", "merger takes .* found None"),
    ("gs.aggregate(**INTS, merger=lambda a: a)", "merger calls .* takes 1"),
    ("gs.aggregate(store='x', n=agg.count(), merger=max)", "built-ins merge"),
    ("g.aggregate(**INTS, merger=max)", "merger= is for sessions"),
    ("g.windowed_by(SessionWindows.of_inactivity_gap(0))", "gap of zero"),
    ("g.windowed_by(SlidingWindows.of_time_difference(0))", "difference of zero"),
    ("g.windowed_by(SLIDING).aggregate(**INTS, merger=max)", "merger= is for sessions"),
    ("g.aggregate(store='x', a=agg.sum('value.item'))", "takes numbers"),
    ("g.count(store='x', ttl=0)", "ttl .* above 0.*ttl='30"),
    ("s.to_table(store='x', ttl='soon')", "soon"),
    ("gs.aggregate(store='x', n=agg.count(), ttl='1 day')", "take no ttl="),
    ("b.table('t', store=Materialized('x', history='1 day'), ttl='1 day')", "history=.*ttl="),
    ("agg.collect_list('value.item', limit=0)", "above zero, found 0"),
    ("agg.collect_set('value.item', when_full='keep_last')", "'keep_first', found 'keep_last'"),
    ("agg.max_by('value.item', None)", r"two columns, .*agg.max_by\('value"),
    ("aggregated(g, agg.top_n('value.item', 3, by=F.struct('value.item')))", "order.*struct"),
    ("g.aggregate(store='x', a=agg.min_by('value.item', 3))", r"a=agg\.min_by\(3\)"),
    ("agg.top_n('value.item', 0)", "above zero, found 0"),
    ("agg.approx_count_distinct('value.item', rsd=0)", r"from 0\.0022 .* to 0\.39 .* found 0"),
    ("aggregated(g, agg.approx_count_distinct(MAP))", "compared, .* is map"),
    ("aggregated(g, agg.collect_set(MAP))", r"map<string,string>.*F\.map_entries"),
    ("aggregated(gs, agg.collect_set(F.array(MAP)))", "array<map<string,string>>"),
    ("aggregated(g, agg.sum(F.struct('value.amount')))", "numbers.*struct<amount:double>"),
    ("s.map_values(F.struct(F.array().alias('a')))", r"\.cast\('struct<a:array<string>>'\)"),
    ("s.map_values(F.array())", r"\.cast\('array<string>'\)"),
    ("g.aggregate(store='x', a=agg.sum('value.x'))", r"columns: .*value\.item"),
    ("g.aggregate(store='x', a=F.lit(1))", r"a=agg\.sum"),
    ("g.aggregate(store='x')", "either built-ins"),
    ("g.reduce(lambda a: a, store='x')", r"\(aggregate, value\).* takes 1"),
    ("g.aggregate(store='x', aggregator=lambda v, a: a)", "initializer"),
    ("g.count(materialized='n')", "no materialized=; .* store="),
    ("s.to('out', vale=serdes.string())", "vale=.*value="),
    ("s.filter(F.lit(True), zzz=1)", "zzz=; it takes predicate, concurrency="),
    ("g.count('n')", "store=, ttl=, name=; 'n' is one"),
    ("g.aggregate(int, max, store='x')", r"initializer=\.\.\., aggregator="),
    ("s.filter(F.col('amount') > 1)", r"F\.col\('value\.amount'\)"),
    ("s.filter()", "filter takes predicate, .*, name=; predicate"),
    ("s.map_values(F.upper)", r"upper.*map_values\(F\.upper"),
    ("s.map_values(TWICE)", r"map_values\(twice_of, returns='double'\)"),
    ("s.peek(TWICE)", r"Python function.*peek\(twice_of\)"),
    ("g.reduce(TWICE, store='x')", r"itself: reduce\(twice_of\)"),
    ("s.filter(TWICE(F.col('value.amount')))", r"^Column 'twice_of\(value\.amount\)'"),
    ("s.to(NAMED(F.col('value.amount')))", "topic .* Column that calls"),
    ("g.aggregate(store='x', a=agg.sum(3))", r"a=agg\.sum\(3\) takes a Column"),
    ("s.map(key='value.item')", r"write key=F\.col\('value\.item'\)"),
    ("s.map(key=lambda v: v)", "gives both: map"),
    ("s.map_values(lambda v: '', returns=str)", "write returns='string'"),
    ("b.stream('x', key=serdes.string)", r"serdes\.string\(\)"),
    ("b.stream('in.*')", r"stream\(re\.compile\('in\.\*'\)\)"),
    ("b.stream(re.compile(b'a.*'))", r"re\.compile\('orders-\.\*'\)"),
    ("b.table(re.compile('a.*'), store='t')", "reads one topic"),
    ("b.stream(7)", "list of names, found 7"),
    ("TimeWindows()", r"'size_ms'; write TimeWindows\.of_size\('1 hour'\)"),
    ("TimeWindows.of_size()", r"'size'; write TimeWindows\.of_size\('1 hour'\)"),
    ("SessionWindows(gap=5)", r"write SessionWindows\.of_inactivity_gap\('5 minutes'\)"),
    ("SlidingWindows()", r"write SlidingWindows\.of_time_difference_and_grace"),
    ("TimeWindows.of_size('1 minute').grace(-1)", "grace .* negative, found -1 ms"),
    ("SessionWindows.of_inactivity_gap('1 minute').grace(-1)", "negative, found -1 ms"),
    ("CountWindows.of_size(0)", "one record, found 0"),
    ("CountWindows.of_size('1 hour')", r"'1 hour'; write CountWindows\.of_size\(100\)"),
    ("CountWindows.of_size(3).advance_by(4)", "advance by 1 to 3 of them, found 4"),
    ("gs.emit_strategy(EmitStrategy.every(3))", r"EmitStrategy\.on_window_close"),
    ("g.windowed_by(THREE).emit_strategy(EmitStrategy.every('1 s'))", r"EmitStrategy\.every\(10\)"),
    ("EmitStrategy.every(0)", "above zero, found 0"),
    ("EmitStrategy.every('0 s')", r"above 0.*every\(100\)"),
    ("g.windowed_by(THREE).count(store=Materialized('n', retention='1 day'))", "of its own"),
    ("TimeWindows.of_size('1 fortnight')", "duration '1 fortnight'"),
    ("s.map_values(F.lit(None))", "a NULL needs a type"),
    ("s.to(F.col('value.amount'))", "string is needed"),
]


@pytest.mark.parametrize(("call", "cure"), MISTAKES)
def test_mistake(call: str, cure: str) -> None:
    """``s`` is a stream of ``b``, ``g`` its groups, ``gs`` those in sessions."""
    builder = StreamsBuilder()
    orders = builder.stream(
        "orders", key=serdes.string(), value=serdes.json("item string, amount double")
    )
    groups = orders.group_by_key()
    names = {**PUBLIC, **globals(), "re": re, "MAP": F.create_map("value.item", "value.item")}
    sessions = groups.windowed_by(SESSIONS)
    with pytest.raises(TopologyError, match=cure) as caught:
        eval(call, {**names, "b": builder, "s": orders, "g": groups, "gs": sessions})
    assert caught.value.where is not None
    assert caught.value.where.partition(":")[0] in ("<string>", __file__)


def test_an_empty_topology() -> None:
    with pytest.raises(TopologyError, match=r"begin with builder\.stream"):
        StreamsBuilder().build()


def test_a_branch_that_is_not_there_is_a_key_error_too_and_a_stream_is_no_sequence() -> None:
    stream = StreamsBuilder().stream("orders")
    branches = stream.branch(all=F.lit(True))
    with pytest.raises(KeyError):
        branches["other"]
    assert branches.get("other") is None
    assert not hasattr(stream, "value")
    with pytest.raises(TypeError, match="not iterable"):
        list(stream)  # type: ignore[call-overload]
    assert copy.copy(stream).node == stream.node


# Calls that fail leave nothing behind and say what does not fit.

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
# Each fails as late as it can.
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
def test_failing_calls_do_not_change_the_build(steps: list[int], data: st.DataObject) -> None:
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


TEXT = serdes.string()
TIMED = serdes.json("at bigint, day string, on date")


def four_and_more(key: str, value: str, record: str, time: int, more: int) -> int:
    return 1


CALL_MISTAKES: dict[str, tuple[Any, str]] = {
    "the name of a field": ("value.at", r"found 'value.at'; write F\.col\('value.at'\)"),
    "a number": (7, "stream: timestamp takes a Column or a Python function, found 7"),
    "no such field": (lambda: F.col("value.att"), r"columns: .*value\.at bigint"),
    "a text": (lambda: F.col("value.day"), r"is string; a time is a number of ms since 1970"),
    "a day": (lambda: F.col("value.on"), r"is date; .*F\.to_timestamp"),
    "a fraction": (lambda: F.col("value.at") / 1000, r"is double; .*cast\('bigint'\)"),
    "the clock": (lambda: F.current_timestamp(), "the current time cannot be used in a Column"),
    "nothing": (lambda: lambda: 1, r"\(key, value, record, partition_time\); .*takes 0 arguments"),
    "too much": (lambda: four_and_more, "four_and_more takes 5 arguments"),
    "a function for columns": (
        lambda: F.udf(lambda value: 1, LongType())("value.at"),
        "cannot be a Column that calls Python functions; pass a function of",
    ),
    "a function of PySpark": (lambda: F.unix_millis, "stream: timestamp"),
}


@pytest.mark.parametrize("mistake", CALL_MISTAKES)
def test_a_time_that_is_none_is_refused_at_its_line(mistake: str) -> None:
    builder = StreamsBuilder()
    given, says = CALL_MISTAKES[mistake]
    given = given() if callable(given) else given
    with pytest.raises(TopologyError, match=says) as raised:
        builder.stream("in", key=TEXT, value=TIMED, timestamp=given)
    assert f"{__file__}:" in str(raised.value)


def test_a_table_names_itself() -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match="table: timestamp"):
        builder.table("in", key=TEXT, value=TIMED, store="s", timestamp="at")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "given",
    [
        "WallclockTimestampExtractor",
        "org.apache.kafka.streams.processor.WallclockTimestampExtractor",
        WallclockTimestampExtractor,
    ],
)
def test_the_setting_takes_the_name_in_java_too(given: Any) -> None:
    settings = streams_config(default_timestamp_extractor=given)
    assert settings.default_timestamp_extractor.endswith("WallclockTimestampExtractor")


def test_the_setting_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ConfigError, match=r"timestamp.*timestamp="):
        streams_config(default_timestamp_extractor="mine:Extractor")


NAMES = {**PUBLIC, "TEXT": serdes.string()}
CALLS = {
    "Materialized()": r"Materialized\(...\): missing .*'name'; write Materialized\('counts', ",
    "Materialized('n', '1 day')": "too many positional arguments; write Materialized",
    "Materialized('n', store_type='memory')": r"takes no store_type=; it is in_memory here, for "
    r"example Materialized\('counts', in_memory=True\)",
    "Materialized('n', retain='1 day')": "unexpected keyword argument 'retain'; write Mat",
    "Suppressed()": r"'wait_ms'; write Suppressed\.until_window_closes\(\)",
    "Suppressed.until_time_limit()": r"'limit'; write Suppressed\.until_time_limit\('1 minute'\)",
    "Suppressed.until_window_closes(1, 2)": r"write Suppressed\.until_window_closes\(\)",
    "BufferConfig.max_records()": r"BufferConfig\.max_records\(...\): missing .*'count'; write "
    r"BufferConfig\.max_records\(100_000\)\.shut_down_when_full\(\)",
    "BufferConfig.unbounded().with_max_bytes()": r"with_max_bytes\(...\): missing .*'count'; write",
    "EmitStrategy.every()": r"missing .*'amount'; write EmitStrategy.*every\('10 seconds'\)",
    "Stores.window('w', key=TEXT, value=TEXT, size='1 s')": r"missing .*'retention'; write "
    r"Stores\.window\('hourly', .*, retention='1 day'\)",
    "Stores.key_value('s', key=TEXT, value=TEXT, size='1 day')": r"argument 'size'; write "
    r"Stores\.key_value\('seen', key=serdes\.string\(\), value=serdes\.long\(\)\)",
    "Stores.session()": r"'name'; write Stores\.session\('visits', .*, retention='1 day'\)",
    "Stores.versioned('v')": r"write Stores\.versioned\('prices', .*, history='1 hour'\)",
    "Stores(1)": r"too many positional arguments; write Stores\.key_value\(",
    "agg.sum()": r"agg\.sum\(...\): missing .*'column'; write agg\.sum\('value\.amount'\)",
    "agg.top_n('value.a')": r"missing .*'n'; write agg\.top_n\('value\.item', 3, by=",
    "agg.count('value.a', distinct=True)": r"argument 'distinct'; write agg\.count\(\)",
}


@pytest.mark.parametrize(("call", "said"), list(CALLS.items()))
def test_a_call_that_does_not_fit_says_what_to_write(call: str, said: str) -> None:
    with pytest.raises(TopologyError, match=said) as caught:
        eval(call, dict(NAMES))
    assert caught.value.where == "<string>:1"


@pytest.mark.parametrize(
    "name",
    [
        *(f"agg.{kind}" for kind in agg.KINDS),
        *(f"Stores.{kind}" for kind in ("key_value", "window", "session", "versioned")),
        *("Materialized", "Suppressed.until_time_limit", "BufferConfig.max_records"),
    ],
)
def test_every_example_is_of_the_call_itself_and_can_be_run(name: str) -> None:
    with pytest.raises(TopologyError) as caught:
        eval(f"{name}(no_such=1)", dict(NAMES))
    example = str(caught.value).partition("; write ")[2].partition("\n")[0]
    assert example.startswith(f"{name}(")
    eval(example, dict(NAMES))


def test_calls_that_fit_stay_what_they_were() -> None:
    assert Materialized("n", retention="1 day").retention_ms == 86_400_000
    assert "retention" in inspect.signature(Materialized).parameters, "tooltips show it"
    assert list(inspect.signature(agg.sum).parameters) == ["column"]
    assert agg.sum.__name__ == "sum"
    assert agg.sum("value.a").column == "value.a"


PROGRAM = """
import sys
import threading

from everflow import StreamsBuilder, TopologyError

THREADS, CALLS = 4, 25
sys.setswitchinterval(1e-6)
builder = StreamsBuilder()
shared = builder.stream("shared")
together = threading.Barrier(THREADS)
unexpected = []


def named(number, call):
    table = {index: str(index) for index in range(50)}
    return lambda value: table.get(number + call, value)


def build(number):
    together.wait()
    for call in range(CALLS):
        try:
            shared.map_values(named(number, call), returns="binary").to(f"out-{number}-{call}")
            stream = builder.stream(f"in-{number}-{call}")
            stream.filter(lambda value, n=number: n > 0).to(f"kept-{number}-{call}")
            try:  # what fails leaves nothing of its own behind, and all of the others'
                stream.group_by_key().count()
            except TopologyError:
                pass
            builder.build()
        except BaseException as error:
            unexpected.append(repr(error))
            return


threads = [threading.Thread(target=build, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
names = [node.name for node in builder.build().nodes]
assert not unexpected, unexpected[0]
assert len(names) == len(set(names)) == 1 + THREADS * CALLS * 5, len(names)
"""


def test_threads_that_share_a_builder_build_every_node_and_no_thread_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
