"""Every mistake fails while the topology is built, names the user's line and says what to write
instead."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, StringType

from everflow import (
    CountWindows,
    EmitStrategy,
    KStream,
    Materialized,
    SessionWindows,
    SlidingWindows,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    agg,
    serdes,
)

pytestmark = pytest.mark.spark
Mistake = Callable[[Any, Any], object]


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
MISTAKES: dict[str, tuple[Mistake, str]] = {
    "unnamed store": (
        lambda b, s: s.group_by_key().count(),
        r"write count\(\.\.\., store='a-name'\)",
    ),
    "unnamed table": (lambda b, s: b.table("t"), r"write table\(\.\.\., store="),
    "unnamed to_table": (lambda b, s: s.to_table(), r"write to_table\(\.\.\., store="),
    "unnamed group": (
        lambda b, s: s.group_by(F.col("value.item")),
        r"write group_by\(\.\.\., name='a-name'\)",
    ),
    "unnamed regrouping": (
        lambda b, s: s.select_key(F.col("offset")).group_by_key(),
        r"write group_by_key\(\.\.\., name=",
    ),
    "unnamed repartition": (lambda b, s: s.repartition(), r"write repartition\(\.\.\., name="),
    "store twice": (
        twice,
        r"store name 'n' is used twice \(first at .*test_dsl_bad_input.py:\d+\)",
    ),
    "repartition twice": (repartitioned_twice, "repartition name 'r' is used twice"),
    "node name twice": (named_twice, "node name 'f' is used twice"),
    "topic of a table twice": (
        lambda b, s: b.table("orders", store="t"),
        "read twice .*keep the first stream or table in a variable",
    ),
    "options of a loaded table": (
        lambda b, s: b.global_table_from(print, key="k", store=Materialized("g", in_memory=True)),
        r"name of its store alone, store='g': Spark loads it",
    ),
    "topic name": (lambda b, s: b.stream("a topic"), "cannot name a topic"),
    "no topic": (lambda b, s: b.stream([]), "at least one topic"),
    "store name": (lambda b, s: s.group_by_key().count(store="a/b"), "cannot name a store"),
    "offset reset": (lambda b, s: b.stream("x", offset_reset="first"), "earliest, latest, none"),
    "text for a serde": (lambda b, s: b.stream("x", value="a int"), r"serdes\.json\('a int'\)"),
    "unusable serde": (
        lambda b, s: s.to("out", value=serdes.long()),
        "the value is struct<.*cannot write",
    ),
    "unknown field": (
        lambda b, s: s.filter(F.col("value.amont") > 1),
        r"columns: .*value\.amount double",
    ),
    "unknown column": (lambda b, s: s.map_values(F.col("amount")), r"columns: key string"),
    "field of bytes": (
        lambda b, s: b.stream("raw").filter(F.col("value.a") > 1),
        "undecoded bytes; give the stream a serde",
    ),
    "not a condition": (
        lambda b, s: s.filter(F.col("value.amount")),
        r"double, but boolean is needed.*cast",
    ),
    "text for a column": (
        lambda b, s: s.filter("value.amount > 1"),
        r"; write F\.expr\('value.amount > 1'\)",
    ),
    "a name for a column": (
        lambda b, s: s.map_values("value.amount"),
        r"found 'value.amount'; write F\.col\('value.amount'\)",
    ),
    "a window to group by": (
        lambda b, s: s.group_by(F.window(F.timestamp_millis("timestamp"), "1 minute"), name="w"),
        (
            r"F\.window\(\) or F\.session_window\(\) cannot be used in a Column; "
            r".*windowed_by\(TimeWindows\.of_size"
        ),
    ),
    "a window of no time": (
        lambda b, s: s.group_by(F.window("timestamp", "1 minute"), name="w"),
        r"windowed_by\(TimeWindows",
    ),
    "a session to group by": (
        lambda b, s: s.group_by(F.session_window("offset", "1 minute"), name="w"),
        r"windowed_by\(",
    ),
    "a column of a stream": (
        lambda b, s: s["value"],
        r"^KStream has no \[...\]: its columns .* map_values\(F\.col\('value'\)\)",
    ),
    "a field of a stream": (
        lambda b, s: s["amount"],
        r"filter\(F\.col\('value\.amount'\)\.isNotNull",
    ),
    "rows of a stream": (
        lambda b, s: s[F.col("value.amount") > 1],
        r"records are chosen by filter\(condition\)",
    ),
    "a stream's column by name": (
        lambda b, s: s.value,
        r"^KStream has no value: its columns .* map_values\(F\.col\('value'\)\)",
    ),
    "a stream's field by name": (
        lambda b, s: s.amount,
        r"^KStream has no amount: .*F\.col\('value\.amount'\)",
    ),
    "a stream's time": (
        lambda b, s: s.timestamp,
        r"^KStream has no timestamp: .*F\.col\('timestamp'\)",
    ),
    "a table's column": (
        lambda b, s: b.table("t", store="t")["value"],
        r"^KTable has no \[...\]: .*F\.col\('value'\)",
    ),
    "a table's column by name": (
        lambda b, s: b.table("t", store="t").value,
        r"^KTable has no value: .*F\.col\('value'\)",
    ),
    "a misspelt branch": (
        lambda b, s: s.branch(big=F.col("value.amount") > 1, default="rest")["bgi"],
        r"^no branch is called 'bgi'; there are 'big', 'rest'; did you mean 'big'\?",
    ),
    "a branch that is not there": (
        lambda b, s: s.split().branch(F.lit(True), name="a").no_default_branch()["other"],
        r"^no branch is called 'other'; there are 'a'\n",
    ),
    "no return type": (lambda b, s: s.map_values(lambda v: 1), r"add returns=\.\.\."),
    "unreadable return type": (
        lambda b, s: s.map_values(lambda v: 1, returns="numbr"),
        "is not a type: .*numbr",
    ),
    "map without two types": (
        lambda b, s: s.map(lambda v: (1, 2), returns="int"),
        r"returns=\('string', 'double'\)",
    ),
    "map without anything": (lambda b, s: s.map(), "needs key="),
    "map of no pair": (lambda b, s: s.map(F.col("value")), "takes struct<key, value>"),
    "constant field": (lambda b, s: s.map_values(a=1), r"constants are F\.lit"),
    "map_values without anything": (lambda b, s: s.map_values(), "needs a Column"),
    "three parameters": (
        lambda b, s: s.filter(lambda a, b, c: True),
        r"\(value\) or \(key, value\).* takes 3",
    ),
    "no parameters": (lambda b, s: s.peek(lambda: None), "takes 0"),
    "peek of a column": (lambda b, s: s.peek(F.col("value")), "for its effect"),
    "flat_map of no array": (
        lambda b, s: s.flat_map_values(F.col("value.item")),
        "takes an array Column, found string",
    ),
    "merge of other types": (
        lambda b, s: s.merge(b.stream("raw")),
        "streams of equal types; the keys are string and binary",
    ),
    "merge of nothing": (lambda b, s: s.merge(), "at least one other"),
    "merge across builders": (
        lambda b, s: s.merge(StreamsBuilder().stream("x")),
        "one StreamsBuilder",
    ),
    "split without branches": (lambda b, s: s.split().no_default_branch(), "without a branch"),
    "branch twice": (
        lambda b, s: s.split().branch(F.lit(True), name="a").branch(F.lit(True), name="a"),
        "called 'a'",
    ),
    "partitions": (lambda b, s: s.repartition(name="r", partitions=0), "above 0"),
    "windows": (lambda b, s: s.group_by_key().windowed_by("1 hour"), r"TimeWindows\.of_size"),
    "sessions without a merger": (
        lambda b, s: (
            s.group_by_key()
            .windowed_by(SESSIONS)
            .aggregate(store="x", initializer=int, aggregator=max, returns="int")
        ),
        (
            r"aggregate: merger takes a function of \(key, earlier aggregate, later aggregate\), "
            r"found "
            r"None"
        ),
    ),
    "a merger of one": (
        lambda b, s: (
            s.group_by_key()
            .windowed_by(SESSIONS)
            .aggregate(
                store="x",
                initializer=int,
                aggregator=lambda v, a: a,
                merger=lambda a: a,
                returns="int",
            )
        ),
        r"aggregate: merger calls its function with .* takes 1",
    ),
    "a merger of built-ins": (
        lambda b, s: (
            s.group_by_key()
            .windowed_by(SESSIONS)
            .aggregate(store="x", n=agg.count(), merger=lambda a, b: a)
        ),
        "built-ins merge by themselves",
    ),
    "a merger without sessions": (
        lambda b, s: s.group_by_key().aggregate(
            initializer=int, aggregator=max, merger=max, store="x", returns="int"
        ),
        "merger= is for sessions",
    ),
    "sessions that nothing can join": (
        lambda b, s: s.group_by_key().windowed_by(SessionWindows.of_inactivity_gap(0)),
        "a gap of zero need a grace above zero",
    ),
    "sliding windows that nothing is in": (
        lambda b, s: s.group_by_key().windowed_by(SlidingWindows.of_time_difference(0)),
        "a difference of zero need a grace above zero",
    ),
    "a merger of sliding windows": (
        lambda b, s: (
            s.group_by_key()
            .windowed_by(SlidingWindows.of_time_difference("1 minute"))
            .aggregate(initializer=int, aggregator=max, merger=max, store="x", returns="int")
        ),
        "merger= is for sessions",
    ),
    "sum of text": (
        lambda b, s: s.group_by_key().aggregate(store="x", a=agg.sum("value.item")),
        "takes numbers",
    ),
    "no time to live": (
        lambda b, s: s.group_by_key().count(store="x", ttl=0),
        r"count: ttl .* is above 0; found 0 ms; write for example ttl='30 days'",
    ),
    "a time to live that is none": (
        lambda b, s: s.to_table(store="x", ttl="soon"),
        "soon",
    ),
    "a time to live of windows": (
        lambda b, s: (
            s.group_by_key().windowed_by(SESSIONS).aggregate(store="x", n=agg.count(), ttl="1 day")
        ),
        "aggregate: windows and sessions end by themselves, so they take no ttl=",
    ),
    "a history that ends": (
        lambda b, s: b.table("t", store=Materialized("x", history="1 day"), ttl="1 day"),
        r"table takes Materialized\(history=\) or ttl=",
    ),
    "a list without an end": (
        lambda b, s: agg.collect_list("value.item", limit=0),
        "agg.collect_list keeps a whole number of values above zero, found 0",
    ),
    "a set that keeps the last": (
        lambda b, s: agg.collect_set("value.item", when_full="keep_last"),
        "agg.collect_set: when_full is one of 'fail', 'keep_first', found 'keep_last'",
    ),
    "no order": (
        lambda b, s: agg.max_by("value.item", None),
        r"takes two columns, .*agg.max_by\('value.item', 'value.amount'\)",
    ),
    "an order of structs": (
        lambda b, s: s.group_by_key().aggregate(
            store="x", a=agg.top_n("value.item", 3, by=F.struct("value.item"))
        ),
        "agg.top_n goes by values with an order, the column is struct",
    ),
    "an order that is a number": (
        lambda b, s: s.group_by_key().aggregate(store="x", a=agg.min_by("value.item", 3)),
        r"a=agg\.min_by\(3\) takes a Column",
    ),
    "no top": (lambda b, s: agg.top_n("value.item", 0), "above zero, found 0"),
    "an estimate without errors": (
        lambda b, s: agg.approx_count_distinct("value.item", rsd=0),
        r"from 0\.0022 .* to 0\.39 .* found 0",
    ),
    "distinct maps": (
        lambda b, s: s.group_by_key().aggregate(
            store="x", a=agg.approx_count_distinct(F.create_map("value.item", "value.item"))
        ),
        "takes values that can be compared, the column is map",
    ),
    "a set of maps": (
        lambda b, s: s.group_by_key().aggregate(
            store="x", a=agg.collect_set(F.create_map("value.item", "value.item"))
        ),
        r"agg\.collect_set takes .*, the column is map<string,string>; .*F\.map_entries",
    ),
    "a set of what holds maps, in sessions": (
        lambda b, s: (
            s.group_by_key()
            .windowed_by(SessionWindows.of_inactivity_gap(5))
            .aggregate(
                store="x",
                a=agg.collect_set(F.array(F.create_map("value.item", F.lit(1).cast("bigint")))),
            )
        ),
        r"the column is array<map<string,bigint>>; ",
    ),
    "a sum of texts": (
        lambda b, s: s.group_by_key().aggregate(store="x", a=agg.sum(F.struct("value.amount"))),
        r"takes numbers, the column is struct<amount:double>",
    ),
    "an array of nothing": (
        lambda b, s: s.map_values(F.struct(F.array().alias("a"))),
        r"an empty array .*needs a type.*\.cast\('struct<a:array<string>>'\)",
    ),
    "an array of nothing alone": (
        lambda b, s: s.map_values(F.array()),
        r"needs a type.*\.cast\('array<string>'\)",
    ),
    "unknown input": (
        lambda b, s: s.group_by_key().aggregate(store="x", a=agg.sum("value.x")),
        r"columns: .*value\.item",
    ),
    "not an aggregate": (
        lambda b, s: s.group_by_key().aggregate(store="x", a=F.lit(1)),
        r"a=agg\.sum",
    ),
    "nothing to aggregate": (
        lambda b, s: s.group_by_key().aggregate(store="x"),
        "either built-ins",
    ),
    "reducer": (
        lambda b, s: s.group_by_key().reduce(lambda a: a, store="x"),
        r"\(aggregate, value\).* takes 1",
    ),
    "no initializer": (
        lambda b, s: s.group_by_key().aggregate(store="x", aggregator=lambda v, a: a),
        "initializer",
    ),
    "unknown keyword": (
        lambda b, s: s.group_by_key().count(materialized="n"),
        "takes no materialized=; did you mean store=",
    ),
    "misspelt keyword": (
        lambda b, s: s.to("out", vale=serdes.string()),
        "to takes no vale=; did you mean value=",
    ),
    "no such keyword": (
        lambda b, s: s.filter(F.lit(True), zzz=1),
        "filter takes no zzz=; it takes predicate, name=",
    ),
    "a store by place": (
        lambda b, s: s.group_by_key().count("n"),
        "takes store=, ttl=, name=; 'n' is one too many: give it by name",
    ),
    "functions in Java's order": (
        lambda b, s: s.group_by_key().aggregate(lambda: 0, lambda value, total: total, store="x"),
        r"functions are given by name: aggregate\(initializer=\.\.\., aggregator=\.\.\.\)",
    ),
    "a field of the value": (
        lambda b, s: s.filter(F.col("amount") > 1),
        r"field of the value: write F\.col\('value\.amount'\)",
    ),
    "nothing to filter by": (
        lambda b, s: s.filter(),
        "filter takes predicate, name=; predicate is missing",
    ),
    "a function of PySpark": (
        lambda b, s: s.map_values(F.upper),
        r"function upper itself; call it: map_values\(F\.upper",
    ),
    "a UDF": (
        lambda b, s: s.map_values(TWICE),
        r"UDF; call it .*twice_of\(F\.col.* itself: map_values\(twice_of, returns='double'\)",
    ),
    "a UDF to peek": (
        lambda b, s: s.peek(TWICE),
        r"pass the Python function itself: peek\(twice_of\)",
    ),
    "a UDF to reduce": (
        lambda b, s: s.group_by_key().reduce(TWICE, store="x"),
        r"itself: reduce\(twice_of\)",
    ),
    "a UDF in a column": (
        lambda b, s: s.filter(TWICE(F.col("value.amount"))),
        r"^Column 'twice_of\(value\.amount\)'",
    ),
    "a UDF for a topic": (
        lambda b, s: s.to(NAMED(F.col("value.amount"))),
        "to: the topic cannot be a Column that calls Python functions",
    ),
    "a number for a column": (
        lambda b, s: s.group_by_key().aggregate(store="x", a=agg.sum(3)),
        r"a=agg\.sum\(3\) takes a Column",
    ),
    "text for a key": (
        lambda b, s: s.map(key="value.item"),
        r"is not a Column; write key=F\.col\('value\.item'\)",
    ),
    "a function for a key": (lambda b, s: s.map(key=lambda v: v), "one function gives both: map"),
    "a Python type": (
        lambda b, s: s.map_values(lambda v: "", returns=str),
        "write returns='string'",
    ),
    "a serde not called": (
        lambda b, s: b.stream("x", key=serdes.string),
        r"is not a serde; write for example serdes\.string\(\)",
    ),
    "a topic pattern as text": (
        lambda b, s: b.stream("in.*"),
        r"cannot name a topic.*; a pattern is given as stream\(re\.compile\('in\.\*'\)\)",
    ),
    "a pattern of bytes": (
        lambda b, s: b.stream(re.compile(b"a.*")),
        r"takes a pattern of text, re\.compile\('orders-\.\*'\)",
    ),
    "a pattern for a table": (
        lambda b, s: b.table(re.compile("a.*"), store="t"),
        "table reads one topic",
    ),
    "a number for a topic": (
        lambda b, s: b.stream(7),
        "takes the name of a topic or a list of names, found 7",
    ),
    "a window without a size": (
        lambda b, s: TimeWindows(),  # type: ignore[call-arg]
        r"TimeWindows\(...\): missing .*'size_ms'; write TimeWindows\.of_size\('1 hour'\)",
    ),
    "a size that is left out": (
        lambda b, s: TimeWindows.of_size(),  # type: ignore[call-arg]
        r"TimeWindows\.of_size\(...\): missing .*'size'; write TimeWindows\.of_size\('1 hour'\)",
    ),
    "a keyword of another window": (
        lambda b, s: SessionWindows(gap=5),  # type: ignore[call-arg]
        r"SessionWindows\(...\): .*write SessionWindows\.of_inactivity_gap\('5 minutes'\)",
    ),
    "a difference that is left out": (
        lambda b, s: SlidingWindows(),  # type: ignore[call-arg]
        r"write SlidingWindows\.of_time_difference_and_grace",
    ),
    "a negative grace": (
        lambda b, s: TimeWindows.of_size("1 minute").grace(-1),
        r"a grace may not be negative, found -1 ms",
    ),
    "a negative grace of sessions": (
        lambda b, s: SessionWindows.of_inactivity_gap("1 minute").grace(-1),
        r"a grace may not be negative, found -1 ms",
    ),
    "a count window of nothing": (
        lambda b, s: CountWindows.of_size(0),
        "has at least one record, found 0",
    ),
    "a count window of a time": (
        lambda b, s: CountWindows.of_size("1 hour"),  # type: ignore[arg-type]
        r"takes numbers of records, found '1 hour'; write CountWindows\.of_size\(100\)",
    ),
    "a step beyond the count window": (
        lambda b, s: CountWindows.of_size(3).advance_by(4),
        "windows of 3 records advance by 1 to 3 of them, found 4",
    ),
    "early results of sessions": (
        lambda b, s: s.group_by_key().windowed_by(SESSIONS).emit_strategy(EmitStrategy.every(3)),
        r"a session becomes another one with each record; write EmitStrategy\.on_window_close",
    ),
    "early results of count windows by time": (
        lambda b, s: (
            s.group_by_key()
            .windowed_by(CountWindows.of_size(3))
            .emit_strategy(EmitStrategy.every("1 s"))
        ),
        r"count windows go by records, not by time; write EmitStrategy\.every\(10\)",
    ),
    "early results every no record": (lambda b, s: EmitStrategy.every(0), "above zero, found 0"),
    "early results at no time": (
        lambda b, s: EmitStrategy.every("0 s"),
        r"every takes a time above zero.*every\(100\) for a number of records",
    ),
    "a retention of count windows": (
        lambda b, s: (
            s.group_by_key()
            .windowed_by(CountWindows.of_size(3))
            .count(store=Materialized("n", retention="1 day"))
        ),
        "none of its own to choose; leave it out",
    ),
    "a duration": (
        lambda b, s: TimeWindows.of_size("1 fortnight"),
        "cannot read the duration '1 fortnight'",
    ),
    "untyped null": (lambda b, s: s.map_values(F.lit(None)), r"a NULL needs a type"),
    "topic column of numbers": (lambda b, s: s.to(F.col("value.amount")), "string is needed"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str) -> None:
    mistake, cure = MISTAKES[name]
    builder = StreamsBuilder()
    orders = builder.stream(
        "orders", key=serdes.string(), value=serdes.json("item string, amount double")
    )
    with pytest.raises(TopologyError, match=cure) as caught:
        mistake(builder, orders)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__ + ":")


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
