"""Every mistake fails at once, names the user's line and says what to write instead."""

import copy
import re
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType

from everflow import (
    CountWindows,
    KStream,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TopologyError,
    serdes,
)
from unit.builders import PUBLIC

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
    ("twice(b, s)", r"'n'.*twice.*bad_input.py:\d+"),
    ("repartitioned_twice(b, s)", "repartition name 'r' is used twice"),
    ("named_twice(b, s)", "node name 'f' is used twice"),
    ("b.table('orders', store='t')", "read twice .*keep the first"),
    ("b.global_table_from(print, key='k', store=Materialized('g', in_memory=True))", "store='g'"),
    ("b.stream('a topic')", "cannot name a topic"),
    ("b.stream([])", "at least one topic"),
    ("g.count(store='a/b')", "cannot name a store"),
    ("b.stream('x', offset_reset='first')", "earliest, latest, none"),
    ("b.stream('x', value='a int')", r"serdes\.json\('a int'\)"),
    ("s.to('out', value=serdes.long())", "struct<.*cannot write"),
    ("s.filter(F.col('value.amont') > 1)", r"columns: .*value\.amount"),
    ("s.map_values(F.col('amount'))", "columns: key string"),
    ("b.stream('raw').filter(F.col('value.a') > 1)", "undecoded bytes; give the stream a serde"),
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
    ("s.map_values(lambda v: 1, returns='numbr')", "is not a type: .*numbr"),
    ("s.map(lambda v: (1, 2), returns='int')", r"returns=\('string', 'double'\)"),
    ("s.map()", "needs key="),
    ("s.map(F.col('value'))", "takes struct<key, value>"),
    ("s.map_values(a=1)", r"constants are F\.lit"),
    ("s.map_values()", "needs a Column"),
    ("s.filter(lambda a, b, c: True)", r"\(value\) or \(key, value\).* takes 3"),
    ("s.peek(lambda: None)", "takes 0"),
    ("s.peek(F.col('value'))", "for its effect"),
    ("s.flat_map_values(F.col('value.item'))", "takes an array Column, found string"),
    ("s.merge(b.stream('raw'))", "keys are string and binary"),
    ("s.merge()", "at least one other"),
    ("s.merge(StreamsBuilder().stream('x'))", "one StreamsBuilder"),
    ("s.split().no_default_branch()", "without a branch"),
    ("s.split().branch(F.lit(True), name='a').branch(F.lit(True), name='a')", "called 'a'"),
    ("s.repartition(name='r', partitions=0)", "above 0"),
    ("g.windowed_by('1 hour')", r"TimeWindows\.of_size"),
    ("gs.aggregate(**INTS)", "merger takes a function of .* found None"),
    ("gs.aggregate(**INTS, merger=lambda a: a)", "merger calls .* takes 1"),
    ("gs.aggregate(store='x', n=agg.count(), merger=max)", "built-ins merge by themselves"),
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
    ("aggregated(g, agg.approx_count_distinct(MAP))", "compared, the column is map"),
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
    ("g.count(materialized='n')", "takes no materialized=; did you mean store="),
    ("s.to('out', vale=serdes.string())", "vale=.*value="),
    ("s.filter(F.lit(True), zzz=1)", "zzz=; it takes predicate, name="),
    ("g.count('n')", "store=, ttl=, name=; 'n' is one"),
    ("g.aggregate(int, max, store='x')", r"initializer=\.\.\., aggregator="),
    ("s.filter(F.col('amount') > 1)", r"F\.col\('value\.amount'\)"),
    ("s.filter()", "filter takes predicate, name=; predicate"),
    ("s.map_values(F.upper)", r"upper.*map_values\(F\.upper"),
    ("s.map_values(TWICE)", r"map_values\(twice_of, returns='double'\)"),
    ("s.peek(TWICE)", r"Python function.*peek\(twice_of\)"),
    ("g.reduce(TWICE, store='x')", r"itself: reduce\(twice_of\)"),
    ("s.filter(TWICE(F.col('value.amount')))", r"^Column 'twice_of\(value\.amount\)'"),
    ("s.to(NAMED(F.col('value.amount')))", "topic cannot be a Column that calls"),
    ("g.aggregate(store='x', a=agg.sum(3))", r"a=agg\.sum\(3\) takes a Column"),
    ("s.map(key='value.item')", r"write key=F\.col\('value\.item'\)"),
    ("s.map(key=lambda v: v)", "one function gives both: map"),
    ("s.map_values(lambda v: '', returns=str)", "write returns='string'"),
    ("b.stream('x', key=serdes.string)", r"serdes\.string\(\)"),
    ("b.stream('in.*')", r"stream\(re\.compile\('in\.\*'\)\)"),
    ("b.stream(re.compile(b'a.*'))", r"re\.compile\('orders-\.\*'\)"),
    ("b.table(re.compile('a.*'), store='t')", "table reads one topic"),
    ("b.stream(7)", "name of a topic or a list of names, found 7"),
    ("TimeWindows()", r"'size_ms'; write TimeWindows\.of_size\('1 hour'\)"),
    ("TimeWindows.of_size()", r"'size'; write TimeWindows\.of_size\('1 hour'\)"),
    ("SessionWindows(gap=5)", r"write SessionWindows\.of_inactivity_gap\('5 minutes'\)"),
    ("SlidingWindows()", r"write SlidingWindows\.of_time_difference_and_grace"),
    ("TimeWindows.of_size('1 minute').grace(-1)", "a grace may not be negative, found -1 ms"),
    ("SessionWindows.of_inactivity_gap('1 minute').grace(-1)", "negative, found -1 ms"),
    ("CountWindows.of_size(0)", "at least one record, found 0"),
    ("CountWindows.of_size('1 hour')", r"'1 hour'; write CountWindows\.of_size\(100\)"),
    ("CountWindows.of_size(3).advance_by(4)", "advance by 1 to 3 of them, found 4"),
    ("gs.emit_strategy(EmitStrategy.every(3))", r"EmitStrategy\.on_window_close"),
    ("g.windowed_by(THREE).emit_strategy(EmitStrategy.every('1 s'))", r"EmitStrategy\.every\(10\)"),
    ("EmitStrategy.every(0)", "above zero, found 0"),
    ("EmitStrategy.every('0 s')", r"above 0.*every\(100\)"),
    ("g.windowed_by(THREE).count(store=Materialized('n', retention='1 day'))", "none of its own"),
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
