"""What a join refuses while the topology is built, with the line and the cure; how it is told."""

import copy
import re
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from everflow import (
    JoinWindows,
    SessionWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    TopologyError,
    serdes,
)
from everflow.dsl.streams import KStream
from everflow.errors import UnknownNameError
from everflow.foreign_names import foreign_names
from everflow.serdes import Serde
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import StatefulNode, write_alike
from everflow.windows import Windowed
from unit.builders import PUBLIC

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()
FIVE = JoinWindows.of_time_difference(5)
SEEN = Stores.key_value("seen", key=TEXT, value=TEXT)


class World:
    """Streams and tables of one builder, and a stream of another."""

    def __init__(self) -> None:
        self.builder = StreamsBuilder()
        self.stream = self.builder.stream("s", key=TEXT, value=LONG)
        self.other = self.builder.stream("o", key=TEXT, value=LONG)
        self.table = self.builder.table("t", key=TEXT, value=TEXT, store="t")
        self.noted = self.table.transform_values(lambda k, v: v, stores=[SEEN])
        self.numbers = self.builder.table("n", key=LONG, value=TEXT, store="n")
        self.quoted = self.builder.table("q", key=serdes.json("string"), value=TEXT, store="q")
        self.world = self.builder.global_table("g", key=TEXT, value=TEXT, store="g")
        self.foreign = StreamsBuilder().stream("f", key=TEXT, value=LONG)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("stream.join('t')", r"stream.*'t'"),
        ("stream.join(other, store='x')", r"streams.*windows=.*None"),
        ("stream.join(other, windows=FIVE)", r"store.*write"),
        ("stream.join(table, windows=FIVE)", "takes neither windows= nor store="),
        ("stream.join(table, store='x')", "takes neither windows= nor store="),
        ("stream.outer_join(table)", r"outer_join.*streams"),
        ("stream.join(numbers)", r"string.*bigint"),
        ("stream.join(quoted)", "different partitions"),
        ("stream.join(foreign, windows=FIVE, store='x')", "of the same StreamsBuilder"),
        ("stream.select_key(F.col('key')).join(table)", r"name.*write"),
        ("stream.join(table, F.col('left'), n=F.col('left'))", "joiner or field=Column"),
        ("stream.join(table, lambda a: a, returns='string')", r"calls.*function"),
        ("stream.join(table, lambda a, b: a)", "add returns="),
        ("stream.join(table, F.col('left.x'))", "cannot be used"),
        ("table.join(stream)", r"enriched.*stream\.join\(table"),
        ("noted.left_join(table)", "TRANSFORMVALUES-.*store='a-name'"),
        ("stream.lookup_join(noted, grace=1, store='x')", "store='a-name' in the"),
        ("table.join(table, on=F.col('value'))", r"on=.*repartition"),
        ("table.join(numbers, on=F.col('value'), name='j')", r"write on=\(\.\.\.\)\.cast\('b"),
        ("table.join(numbers, on='value', name='j')", r"join.*Column.*Python"),
        ("table.join(numbers, on=lambda: 1, name='j')", "takes 0 arguments"),
        ("table.join(numbers, on=F.col('value.x'), name='j')", "cannot be used"),
        ("noted.join(table, on=F.col('value'), name='j')", r"none.*store="),
        (
            "table.map_values(F.col('topic')).join(table, on=F.col('value'), name='j')",
            "Column reads topic",
        ),
        (
            "stream.join(table.join(stream.to_table(store='u')), grace=1, store='x')",
            r"history.*\.to_s",
        ),
        ("stream.join(table.filter(F.col('value') > 'a'), grace=1, store='x')", "history.*store=M"),
        ("table.filter(F.col('value') > 'a', store='t')", "store name 't'"),
        ("stream.join(world)", r"needs on=.*on=F\.col\('value\.a_field'"),
        ("stream.join(world, on=F.col('value'))", r"write on=\(\.\.\.\)\.cast\('string'\)"),
        ("stream.join(world, on='key')", r"join.*Column.*Python"),
        ("stream.join(world, on=lambda: 1)", "takes 0 arguments"),
        ("stream.join(world, on=F.col('value.x'))", "cannot be used"),
        ("stream.join(world, on=F.col('key'), store='x')", "windows=.*store="),
        ("stream.join(world, on=F.col('key'), windows=FIVE)", r"windows=.*grace="),
        ("stream.outer_join(world)", r"changes.*results"),
        ("foreign.join(world, on=F.col('key'))", "same StreamsBuilder"),
        (
            "stream.join(world, lambda k, m, l, r, x: 1, on=F.col('key'), returns='int')",
            "calls.*fun",
        ),
        ("stream.join(table, on=F.col('key'))", r"on=.*global"),
        ("stream.lookup_join(world, grace=1, store='x')", "lookup_join needs on="),
        ("foreign.lookup_join(world, grace=1, on=F.col('key'), store='x')", "same StreamsBuilder"),
        ("stream.lookup_join(other, grace=1, store='x')", r"lookup_join.*global"),
        ("stream.lookup_join(table, grace=1, on=F.col('key'), store='x')", r"on=.*global"),
        ("stream.lookup_join(table, timeout=0, store='x')", r"timeout.*0.*0"),
        ("stream.lookup_join(table, store='x')", "lookup_join needs grace="),
        ("stream.lookup_join(table, grace=-1, store='x')", r"grace.*negative"),
        ("stream.lookup_join(table, grace='soon', store='x')", "soon"),
        ("stream.lookup_join(table, grace=1)", r"store.*lookup_join"),
        ("stream.lookup_join(table, grace=1, store='t')", "store name 't'"),
        ("stream.lookup_join(numbers, grace=1, store='x')", r"string.*bigint"),
        ("stream.lookup_join(table, grace=1, store='x', on_timeout='keep')", "or 'drop'"),
        ("stream.lookup_join(table, grace=1, store='x', most_per_key=0)", "1.*0"),
        ("table.join(world)", r"join\(table.*global.*on="),
        ("builder.global_table('h', key=TEXT, value=TEXT)", r"store.*write"),
        ("builder.global_table('s', store='h')", "topic 's'"),
        ("builder.global_table('h', store='g')", "store name 'g'"),
        ("builder.global_table(['h'], store='h')", r"global_table reads one topic, found \['h"),
        ("builder.global_table('h', store='h', value='string')", "global_table: value='string'"),
        ("JoinWindows.of_time_difference(-1)", r"difference.*negative"),
        ("JoinWindows.of_time_difference(5).before(-6)", r"its.*beginning"),
        ("JoinWindows.of_time_difference(5).grace(-1)", r"grace.*negative"),
        ("JoinWindows('5 minutes', 0)", r"JoinWindows.*milliseconds"),
    ],
)
def test_what_cannot_be_joined_is_refused_with_the_cure(call: str, says: str) -> None:
    with pytest.raises(TopologyError, match=says) as error:
        eval(call, {**PUBLIC, **globals(), **vars(World())})
    assert "\n  at <string>:1" in str(error.value)


def test_a_join_that_fails_leaves_nothing_behind() -> None:
    world = World()
    with pytest.raises(TopologyError):
        world.stream.join(world.other, F.col("left.x"), windows=FIVE, store="x")
    world.stream.join(world.other, windows=FIVE, store="x")


@pytest.mark.parametrize(
    ("kind", "nodes", "stores"),
    [
        (
            "join",
            ["KSTREAM-JOINTHIS-0000000004", "KSTREAM-JOINOTHER-0000000005"],
            ["p-this-join-store", "p-other-join-store"],
        ),
        (
            "left_join",
            ["KSTREAM-JOINTHIS-0000000004", "KSTREAM-OUTEROTHER-0000000005"],
            ["p-this-join-store", "p-outer-other-join-store", "p-left-shared-join-store"],
        ),
        (
            "outer_join",
            ["KSTREAM-OUTERTHIS-0000000004", "KSTREAM-OUTEROTHER-0000000005"],
            ["p-outer-this-join-store", "p-outer-other-join-store", "p-outer-shared-join-store"],
        ),
    ],
)
def test_nodes_and_stores_have_javas_names(kind: str, nodes: list[str], stores: list[str]) -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(name, key=TEXT, value=LONG) for name in "lr")
    joined: Any = getattr(left, kind)(right, windows=FIVE, store="p")
    joined.to("out")
    topology = builder.build()
    assert [
        store.name
        for node in topology.nodes
        if isinstance(node, StatefulNode)
        for store in node.stores
    ] == stores
    told = topology.describe()
    assert all(f"Processor: {node} " in told for node in nodes)
    assert "Processor: KSTREAM-MERGE-0000000006 (stores: [])" in told


@pytest.mark.parametrize("kind", ["join", "left_join"])
def test_null_keys_reach_a_join_that_takes_them_through_a_repartition_topic(kind: str) -> None:
    """KIP-962."""
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t")
    keyed = builder.stream("s", key=TEXT, value=TEXT).select_key(F.expr("nullif(value, 'none')"))
    keyed.to(F.concat(F.lit("all-"), F.col("value")))
    getattr(keyed, kind)(table, F.col("left"), name="by-value").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("t", TEXT, TEXT).pipe_input("a", "there")
        source = driver.create_input_topic("s", TEXT, TEXT)
        source.pipe_input("k", "a")
        source.pipe_input("k", "none")
        found = driver.create_output_topic("out", TEXT, TEXT).read_key_values()
    assert found == [("a", "a"), *([(None, "none")] if kind == "left_join" else [])]


@pytest.mark.parametrize("left", [False, True])
def test_an_entry_without_a_foreign_key_has_no_match(left: bool) -> None:
    builder = StreamsBuilder()
    orders = builder.table("orders", key=TEXT, value=TEXT, store="orders")
    people = builder.table("people", key=TEXT, value=TEXT, store="people")
    join = orders.left_join if left else orders.join
    join(
        people,
        lambda order, person: f"{order} {person}",
        on=lambda order: None if order == "nobody" else order,
        name="of",
        returns="string",
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("people", TEXT, TEXT).pipe_input("ann", "Ann")
        driver.create_input_topic("orders", TEXT, TEXT).pipe_batch(
            [("1", "ann"), ("2", "nobody"), ("3", "bob")]
        )
        found = dict(driver.create_output_topic("out", TEXT, TEXT).read_key_values())
    lonely = {"2": "nobody None", "3": "bob None"} if left else {}
    assert found == {"1": "ann Ann", **lonely}


@pytest.mark.parametrize("every", [False, True])
def test_no_result_stays_behind_an_answer_for_what_the_entry_was(every: bool) -> None:
    builder = StreamsBuilder()
    orders = builder.table("orders", key=TEXT, value=TEXT, store="orders")
    people = builder.table("people", key=TEXT, value=TEXT, store="people")
    orders.join(
        people,
        lambda order, person: f"{order} {person}",
        on=lambda order: None if order == "nobody" else order.split()[0],
        name="of",
        returns="string",
    ).to_stream().to("out")
    with TopologyTestDriver(builder.build(), emit_every_update=every) as driver:
        one, other = (driver.create_input_topic(name, TEXT, TEXT) for name in ("orders", "people"))
        other.pipe_batch([("ann", "Ann"), ("cat", "Cat"), ("dan", "Dan")])
        one.pipe_batch([("1", "ann"), *((key, "cat") for key in ("2", "3", "4")), ("5", "dan")])
        changes = [
            ("1", "ann 2"),  # while ann goes
            *(("2", None), ("2", "bob")),  # bob is not there
            *(("3", None), ("3", "nobody")),
            *(("4", "bob"), ("4", "bob 2")),
            *(("5", "dan 2"), ("5", "dan 3")),  # while dan changes
        ]
        driver.pipe_batch({one: changes, other: [("ann", None), ("dan", "Daniel")]})
        found = dict(driver.create_output_topic("out", TEXT, TEXT).read_key_values())
    assert found == {**dict.fromkeys(("1", "2", "3", "4")), "5": "dan 3 Daniel"}


def test_only_an_inner_join_by_a_foreign_key_asks_again() -> None:
    def asking(left: bool) -> list[str]:
        builder = StreamsBuilder()
        one, two = (builder.table(n, key=TEXT, value=TEXT, store=n) for n in ("one", "two"))
        (one.left_join if left else one.join)(two, on=F.col("value"), name="fk").to_stream().to("o")
        told = builder.build().describe()
        return [line.strip() for line in told.splitlines() if "(topic: fk-asks" in line]

    topic = "(topic: fk-asks-repartition)"
    assert asking(left=True) == [f"Sink: fk-asks-repartition-sink {topic}"]
    both = [f"Sink: {name}-sink {topic}" for name in ("fk-asks-again", "fk-asks-repartition")]
    assert sorted(asking(left=False)) == both


# Streams and tables meet where equal keys are equal bytes, and are refused elsewhere.

LONG_WINDOW, SHORT_WINDOW = (serdes.time_windowed(TEXT, 5_000), serdes.time_windowed(TEXT, 2_000))


def json_of(field: pa.Field) -> Serde:
    return serdes.json(pa.struct([field]))


class Upper:
    """A serde of a user's, of a class that does not say when two of them are equal."""

    type = "string"

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def encode(self, value: str) -> bytes:
        return (self.prefix + value).upper().encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


class Lower(Upper):
    def encode(self, value: str) -> bytes:
        return value.lower().encode()


ALIKE: dict[str, tuple[Any, Any]] = {
    "sizes of windows": (LONG_WINDOW, SHORT_WINDOW),
    "nullability": (
        json_of(pa.field("a", pa.string(), nullable=False)),
        json_of(pa.field("a", pa.string(), metadata={"who": "me"})),
    ),
    "wide texts": (
        json_of(pa.field("a", pa.list_(pa.large_string()))),
        json_of(pa.field("a", pa.list_(pa.string()))),
    ),
    "in windows": (
        serdes.time_windowed(json_of(pa.field("a", pa.int64(), nullable=False)), 1),
        serdes.time_windowed(json_of(pa.field("a", pa.int64())), 2),
    ),
    "sessions of windows": (
        serdes.session_windowed(LONG_WINDOW),
        serdes.session_windowed(SHORT_WINDOW),
    ),
    "lists": (serdes.list_(LONG_WINDOW), serdes.list_(SHORT_WINDOW)),
    "users'": (Upper(), Upper()),
}
UNLIKE: dict[str, tuple[Any, Any]] = {
    "sessions and windows": (serdes.session_windowed(TEXT), LONG_WINDOW),
    "text and its JSON": (TEXT, serdes.json(pa.string())),
    "a number and its JSON": (serdes.long(), serdes.json("bigint")),
    "inner ones": (
        serdes.time_windowed(TEXT, 5),
        serdes.time_windowed(serdes.json(pa.string()), 5),
    ),
    "users' of another class": (Upper(), Lower()),
    "users' with something else in them": (Upper(), Upper("x")),
}


def sides(one: Any, other: Any) -> tuple[KStream, KStream]:
    builder = StreamsBuilder()
    return (builder.stream("a", key=one, value=TEXT), builder.stream("b", key=other, value=TEXT))


def joins(one: Any, other: Any) -> list[Any]:
    """Calls that bring streams of these keys together."""
    left, right = sides(one, other)
    table = right.to_table(store="t")
    return [
        lambda: left.join(right, windows=JoinWindows.of_time_difference(1), store="w"),
        lambda: left.join_asof(right, tolerance=1, store="v"),
        lambda: left.join(table),
        lambda: left.lookup_join(table, grace=1, store="l"),
        lambda: left.to_table(store="s").outer_join(table),
        lambda: (
            left.group_by_key()
            .cogroup(lambda value, found: found)
            .cogroup(right.group_by_key(), lambda value, found: found)
            .aggregate(lambda: 0, returns="int", store="c")
        ),
    ]


@pytest.mark.parametrize("name", ALIKE)
def test_keys_that_are_written_alike_meet(name: str) -> None:
    for join in joins(*ALIKE[name]):
        join()


@pytest.mark.parametrize("name", UNLIKE)
def test_keys_that_are_written_in_another_way_are_refused(name: str) -> None:
    for join in joins(*UNLIKE[name]):
        with pytest.raises(TopologyError) as raised:
            join()
        assert raised.value.code == "EF-COPARTITION" or "the keys are" in str(raised.value)


@pytest.mark.parametrize("name", [name for name in ALIKE if name != "users'"])
def test_what_is_taken_for_alike_writes_the_same_bytes(name: str) -> None:
    one, other = ALIKE[name]
    assert write_alike(one, other)
    values = {
        "sizes of windows": Windowed("k", 2_000, 7_000),
        "nullability": {"a": "x"},
        "wide texts": {"a": ["x", None]},
        "in windows": Windowed({"a": 5}, 2_000, 2_001),
        "sessions of windows": Windowed(Windowed("k", 0, 5), 7, 8),
        "lists": [Windowed("k", 0, 5)],
    }
    assert one.encode(values[name]) == other.encode(values[name])


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_join_has_the_left_ones_windows(first: str) -> None:
    builder = StreamsBuilder()
    left = builder.stream("a", key=LONG_WINDOW, value=TEXT)
    right = builder.stream("b", key=SHORT_WINDOW, value=TEXT)
    windows = JoinWindows.of_time_difference(60_000)
    left.join(right, windows=windows, store="p").map_values(
        lambda key, value: f"{key.key}@{key.start}-{key.end}", returns="string"
    ).to("out")
    left.join(right, windows=windows, store="q").map_values(F.col("key.end")).to("ends")
    with TopologyTestDriver(builder.build()) as driver:
        topics = {
            "a": driver.create_input_topic("a", LONG_WINDOW, TEXT),
            "b": driver.create_input_topic("b", SHORT_WINDOW, TEXT),
        }
        for topic in (first, "b" if first == "a" else "a"):
            topics[topic].pipe_input(Windowed("k", 2_000, 9), topic)
            topics[topic].pipe_input(Windowed("k", 4_000, 9), topic)
            topics[topic].pipe_input(None, topic)
        out = driver.create_output_topic("out", LONG_WINDOW, TEXT).read_records()
        ends = driver.create_output_topic("ends", LONG_WINDOW, serdes.long()).read_records()
    assert [record.value for record in out] == ["k@2000-7000", "k@4000-9000"]
    assert [record.value for record in ends] == [7_000, 9_000]
    assert [record.key for record in out] == [
        Windowed("k", 2_000, 7_000),
        Windowed("k", 4_000, 9_000),
    ]


# Names of other APIs.

VALUE = "item string, amount double"
OWNERS = (
    *("StreamsBuilder", "KStream", "KTable", "KGroupedStream", "TimeWindowedKStream"),
    *("SessionWindowedKStream", "BranchedKStream", "TimeWindows", "SlidingWindows"),
    *("SessionWindows", "Topology", "agg", "serdes"),
)
EXAMPLES = [
    (owner, entry.advice)
    for owner in OWNERS
    for entry in dict.fromkeys(foreign_names()[owner].values())
    if entry.here is not None and "KafkaStreams" not in entry.advice
]


class ForeignWorld:
    """Things as the examples name them, each of a new builder."""

    def __init__(self, owner: str) -> None:
        self.builder = StreamsBuilder()
        # The builder's examples read the topics themselves.
        reader = StreamsBuilder() if owner == "StreamsBuilder" else self.builder
        self.stream = reader.stream("orders", key=serdes.string(), value=serdes.json(VALUE))
        self.other = self.builder.stream("more", key=serdes.string(), value=serdes.json(VALUE))
        self.grouped = self.stream.group_by_key()
        sessions = SessionWindows.of_inactivity_gap("5 minutes")
        self.windowed: Any = self.grouped.windowed_by(TimeWindows.of_size("1 hour"))
        if owner == "SessionWindowedKStream":
            self.windowed = self.grouped.windowed_by(sessions)
        self.split = self.stream.split()
        self.table = self.grouped.count(store="a-store")
        self.customers = reader.table(
            "customers", key=serdes.string(), value=serdes.json("city string"), store="customers"
        )

    def run(self, example: str) -> object:
        def doubled(amount: pd.Series) -> pd.Series:
            return amount * 2

        names = {**PUBLIC, "F": F, "add_order": lambda order, account: account, "doubled": doubled}
        return eval(example, {**names, **vars(self)})


@pytest.mark.parametrize(
    ("owner", "example"), EXAMPLES, ids=[f"{owner}: {example}" for owner, example in EXAMPLES]
)
def test_an_example_works_as_it_is_written(owner: str, example: str) -> None:
    ForeignWorld(owner).run(example)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("stream.mapValues(str)", "mapValues.*map_values.*stream"),
        ("stream.leftJoin(other)", r"leftJoin.*left_join"),
        ("stream.groupByKey()", "group_by_key"),
        ("stream.select('value.amount')", "map_values.*stream"),
        ("stream.where('a > 1')", r"filter.*stream\.filter"),
        ("stream.writeStream.start()", r"stream\.write_stream\('delta'"),
        ("stream.suppress(None)", r"buffered: table\.suppress\("),
        ("table.writeStream.start()", r"to_stream.*table\.to_stream\(\)\.write_stream"),
        ("grouped.agg(n=1)", "aggregate.*grouped"),
        ("windowed.emitStrategy(None)", r"emit_strategy.*windowed\.emit_s"),
        ("builder.readStream.format('kafka')", "stream.*builder"),
        ("builder.globalTable('t')", r"global_table.*builder"),
        ("builder.build().addSource('s')", r"topologies.*StreamsBuilder"),
        ("stream.fliter(None)", r"KStream.*filter\?"),
        ("stream.split().to('out')", "BranchedKStream has no to; it has branch, default_branch"),
        ("stream.qqqqq", r"KStream.*branch"),
    ],
)
def test_a_foreign_or_misspelt_name_is_told_with_the_users_line(given: str, told: str) -> None:
    world = ForeignWorld("KStream")
    with pytest.raises(UnknownNameError, match=told) as caught:
        world.run(given)
    assert isinstance(caught.value, AttributeError)
    assert caught.value.where == "<string>:1"
    assert caught.value.code == "EF-UNKNOWN-NAME"


def test_what_python_and_notebooks_ask_of_an_object_works_as_of_any_other() -> None:
    stream = ForeignWorld("KStream").stream
    assert not hasattr(stream, "suppress")
    assert getattr(stream, "_repr_mimebundle_", None) is None
    assert not hasattr(stream, "_ipython_canary_method_should_not_exist_")
    assert repr(copy.copy(stream)) == repr(stream)
    assert "map_values" in dir(stream)


ROW_KEY = serdes.json("id bigint")  # as Debezium writes it
TWO = serdes.json("id bigint, part string")
DAY = serdes.json("day date")
COGROUP = (
    "{left}.cogroup(lambda value, found: found).cogroup({right}, lambda value, found: found)"
    ".aggregate(lambda: 0, returns='int', store='c')"
)
KEYED = "stream.select_key({made})"
CURED = {
    "stream.join(other, windows=FIVE, store='x', name='j')": f"{KEYED}.join",
    "stream.join_asof(other, tolerance=1, store='x', name='j')": f"{KEYED}.join_asof",
    "stream.left_join(table, name='j')": f"{KEYED}.left_join",
    "stream.lookup_join(table, grace=1, store='x', name='j')": f"{KEYED}.lookup_join",
    "rows.join(table, name='j')": "rows.join(table, on={made}, name='j')",
    "rows.outer_join(table)": "rows.to_stream().select_key({made}).to_table(store='k').outer_join",
    "rows.join(table, on=F.col('key'), name='j')": "rows.join(table, on={made}, name='j')",
    "stream.join(world, on=F.col('key'))": "stream.join(world, on={made})",
    COGROUP.format(left="other.group_by_key()", right="stream.group_by_key()"): COGROUP.format(
        left="other.group_by_key()", right="stream.group_by({made}, name='g')"
    ),
}
"""The beginning of what the cure makes of a call; the rest is the call's."""


class OfOtherKeys:
    """Streams and tables whose keys are ``mine``, to be joined with some whose keys are ``its``."""

    def __init__(self, mine: Any, its: Any) -> None:
        struct = pa.types.is_struct(its.type)
        single = its.type.field(0).type if struct else its.type
        fields = [pa.field("a_field", single), *(its.type if struct else ())]
        value = serdes.json(pa.struct(fields))
        builder = StreamsBuilder()
        self.stream = builder.stream("s", key=mine, value=value)
        self.rows = builder.table("r", key=mine, value=value, store="r")
        self.other = builder.stream("o", key=its, value=TEXT)
        self.table = builder.table("t", key=its, value=TEXT, store="t")
        self.world = builder.global_table("g", key=its, value=TEXT, store="g")


def columns_in(text: str) -> list[str]:
    """The Columns that a message names."""
    found, at = [], 0
    while (at := text.find("F.", at)) >= 0:
        end, open_ = at, 0
        while end < len(text) and (open_ or text[end].isalnum() or text[end] in "._(["):
            open_ += {"(": 1, "[": 1, ")": -1, "]": -1}.get(text[end], 0)
            end += 1
        found.append(text[at:end].rstrip("."))
        at = end
    return found


@pytest.mark.parametrize("call", CURED)
@pytest.mark.parametrize(
    ("mine", "its"),
    [
        (TEXT, LONG),
        (LONG, TEXT),
        (TEXT, ROW_KEY),
        (ROW_KEY, TEXT),
        (ROW_KEY, LONG),
        (ROW_KEY, serdes.json("customer int")),
        (TWO, ROW_KEY),
        (ROW_KEY, TWO),
        (LONG, DAY),
        (LONG_WINDOW, TEXT),
    ],
)
def test_the_cure_for_keys_of_other_types_is_a_join(mine: Any, its: Any, call: str) -> None:
    with pytest.raises(TopologyError) as refused:
        eval(call, {**PUBLIC, **globals(), **vars(OfOtherKeys(mine, its))})
    text = str(refused.value).partition("\n")[0]
    columns = columns_in(re.sub(r"(?<!\w)\(\.\.\.\)", "F.col('key')", text))
    assert columns, text
    for made in columns:
        cured = CURED[call].format(made=made)
        if not cured.endswith(")"):
            cured += call[call.index("(") :]
        assert eval(cured, {**PUBLIC, **globals(), **vars(OfOtherKeys(mine, its))}) is not None


@pytest.mark.parametrize(
    ("mine", "its", "column"),
    [
        (ROW_KEY, TEXT, "F.col('key.id').cast('string')"),
        (TEXT, ROW_KEY, "F.struct(F.col('key').cast('bigint').alias('id'))"),
        (LONG_WINDOW, TEXT, "F.col('key.key')"),
        (TWO, ROW_KEY, "F.struct(F.col('key.id').alias('id'))"),
        (
            ROW_KEY,
            TWO,
            "F.struct(F.col('value.id').alias('id'), F.col('value.part').alias('part'))",
        ),
    ],
)
def test_a_refused_join_names_the_column_that_makes_the_key(
    mine: Any, its: Any, column: str
) -> None:
    sides = OfOtherKeys(mine, its)
    for join in (lambda: sides.stream.join(sides.table), lambda: sides.rows.join(sides.table)):
        with pytest.raises(TopologyError) as refused:
            join()
        assert columns_in(str(refused.value).partition("\n")[0])[0] == column


def test_tables_whose_keys_are_written_in_other_ways_are_joined_by_a_foreign_key() -> None:
    world = World()
    with pytest.raises(TopologyError, match=r"on=F\.col\('key'\)") as refused:
        world.table.left_join(world.quoted)
    assert refused.value.code == "EF-COPARTITION"
    assert world.table.left_join(world.quoted, on=F.col("key"), name="j") is not None
