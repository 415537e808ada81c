"""What a join refuses while the topology is built, with the line and the cure; how it is told."""

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import JoinWindows, Stores, StreamsBuilder, TopologyError, serdes
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import StatefulNode
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
        ("stream.join(table, F.col('left'), n=F.col('left'))", "one joiner or field=Column"),
        ("stream.join(table, lambda a: a, returns='string')", r"calls.*function"),
        ("stream.join(table, lambda a, b: a)", "add returns="),
        ("stream.join(table, F.col('left.x'))", "cannot be used here"),
        ("table.join(stream)", r"enriched.*stream\.join\(table"),
        ("noted.left_join(table)", "TRANSFORMVALUES-.*store='a-name'"),
        ("stream.lookup_join(noted, grace=1, store='x')", "store='a-name' in the"),
        ("table.join(table, on=F.col('value'))", r"on=.*repartition"),
        ("table.join(numbers, on=F.col('value'), name='j')", r"write on=\(\.\.\.\)\.cast\('b"),
        ("table.join(numbers, on='value', name='j')", r"join.*Column.*Python"),
        ("table.join(numbers, on=lambda: 1, name='j')", "takes 0 arguments"),
        ("table.join(numbers, on=F.col('value.x'), name='j')", "cannot be used here"),
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
        ("stream.join(world, on=F.col('value.x'))", "cannot be used here"),
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
    """The function gives None: no result, or one without a right; nothing is asked."""
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
    """All in one batch: the answers come when their entries have changed again."""
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
