"""Joins with tables that have no store of their own give what those with one give (note 035)."""

import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql import functions as F

from everflow import (
    EmitStrategy,
    KStream,
    KTable,
    Materialized,
    Processor,
    ProcessorContext,
    Record,
    SessionWindows,
    Stores,
    StreamsBuilder,
    Suppressed,
    TopologyError,
    ValueTransformer,
    punctuate,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT = serdes.string()
Chain = Callable[[KTable, dict[str, Any]], KTable]


class Given(NamedTuple):
    stream: KStream
    one: KTable
    two: KTable


def table_of(builder: StreamsBuilder, history: str | None) -> KTable:
    kept = Materialized("one", history=history) if history else "one"
    return builder.table("one", key=TEXT, value=TEXT, store=kept)


def large(key: str, value: str) -> bool:
    return value > "3"


def both(left: Any, right: Any) -> str:
    return f"{left}&{right}"


class Quoted(ValueTransformer):
    def init(self, context: ProcessorContext) -> None:
        self.task = context.task_id

    def transform(self, key: str, value: str | None) -> str | None:
        return None if value is None or value < "2" else f"{key}'{value}'{self.task}"


CHAINS: dict[str, Chain] = {
    "filtered": lambda table, kept: table.filter(large, **kept),
    "filtered by a Column": lambda table, kept: table.filter_not(F.col("value") < "4", **kept),
    "mapped": lambda table, kept: table.map_values(
        lambda key, value: f"{key}:{value}", returns="string", **kept
    ),
    "mapped by a Column": lambda table, kept: table.map_values(
        F.concat(F.col("key"), F.lit(":"), F.col("value")), **kept
    ),
    "chained": lambda table, kept: (
        table.map_values(F.upper("value"))
        .filter(large)
        .map_values(lambda value: f"<{value}>", returns="string", **kept)
    ),
    "transformed": lambda table, kept: table.transform_values(Quoted, **kept),
    "transformed and filtered": lambda table, kept: (
        table.map_values(F.upper("value"))
        .transform_values(lambda key, value: value)
        .filter(large, **kept)
    ),
}


def also(kept: dict[str, Any], store: str) -> dict[str, Any]:
    """A store for another table, where tables keep theirs."""
    return {"store": store} if kept else {}


JOINS: dict[str, Callable[[Given, Chain, dict[str, Any]], Any]] = {
    "enriched": lambda at, chain, kept: at.stream.join(chain(at.one, kept), both, returns="string"),
    "enriched or not": lambda at, chain, kept: at.stream.left_join(
        chain(at.one, kept), F.concat_ws("&", F.col("left"), F.col("right"))
    ),
    "of tables": lambda at, chain, kept: at.one.join(
        chain(at.two, kept), both, returns="string"
    ).to_stream(),
    "left of tables": lambda at, chain, kept: (
        chain(at.one, kept).left_join(at.two, both, returns="string").to_stream()
    ),
    "right of tables": lambda at, chain, kept: at.one.left_join(
        chain(at.two, kept), both, returns="string"
    ).to_stream(),
    "outer of tables": lambda at, chain, kept: (
        chain(at.one, kept)
        .outer_join(chain(at.two, also(kept, "other")), both, returns="string")
        .to_stream()
    ),
    "of a join": lambda at, chain, kept: at.stream.left_join(
        chain(at.one, kept).join(at.two, both, returns="string", **also(kept, "joined")),
        both,
        returns="string",
    ),
    "with a join": lambda at, chain, kept: (
        at.one.left_join(chain(at.two, kept), both, returns="string", **also(kept, "joined"))
        .join(at.two, both, returns="string")
        .to_stream()
    ),
    "grouped": lambda at, chain, kept: (
        chain(at.one, kept)
        .group_by(lambda value: str(len(value)), returns="string", name="by")
        .count(store="n")
        .to_stream()
    ),
    "filtered behind a join": lambda at, chain, kept: (
        chain(at.one, kept)
        .outer_join(at.two, both, returns="string", **also(kept, "joined"))
        .filter(lambda value: value > "4", **also(kept, "shown"))
        .to_stream()
    ),
    "by a foreign key": lambda at, chain, kept: (
        chain(at.one, kept)
        .left_join(
            chain(at.two, also(kept, "other")),
            both,
            on=F.when(F.col("value") > "5", "a").otherwise("b"),
            returns="string",
            name="fk",
        )
        .to_stream()
    ),
    "by a foreign key of a join": lambda at, chain, kept: (
        at.one.join(chain(at.two, kept), both, returns="string", **also(kept, "joined"))
        .join(at.two, both, on=F.col("key"), returns="string", name="fk")
        .to_stream()
    ),
    "with a foreign result": lambda at, chain, kept: at.stream.join(
        chain(
            at.one.join(
                at.two, both, on=F.lit("a"), returns="string", name="fk", **also(kept, "result")
            ),
            kept,
        ),
        both,
        returns="string",
    ),
    "looked up": lambda at, chain, kept: at.stream.lookup_join(
        chain(at.one, kept), both, grace=5, most_per_key=2, returns="string", store="waiting"
    ),
}


def written(
    join: Callable[..., Any], chain: Chain, kept: dict[str, Any], script: list[Any]
) -> list[Any]:
    builder = StreamsBuilder()
    stream = builder.stream("s", key=TEXT, value=TEXT)
    one = builder.table("one", key=TEXT, value=TEXT, store="one")
    two = builder.table("two", key=TEXT, value=TEXT, store="two")
    join(Given(stream, one, two), chain, kept).to("out")
    with TopologyTestDriver(builder.build(), emit_every_update=True) as driver:
        topics = {name: driver.create_input_topic(name, TEXT, TEXT) for name in ("s", "one", "two")}
        out = driver.create_output_topic("out", serdes.bytes_(), serdes.bytes_())
        found = []
        for batch in script:
            driver.pipe_batch(
                {
                    topics[name]: [record[1:] for record in batch if record[0] == name]
                    for name in topics
                }
            )
            found += [(one.key, one.value, one.timestamp) for one in out.read_records()]
        return found


def script(seed: int) -> list[list[tuple[str, str, str | None, int]]]:
    drawn, time, found = random.Random(seed), 100, []
    for _ in range(40):
        batch = []
        for _ in range(drawn.choice([1, 1, 4, 9])):
            time += drawn.randrange(4)
            topic = drawn.choice(["s", "one", "one", "two"])
            value = None if topic != "s" and drawn.random() < 0.25 else str(drawn.randrange(8))
            batch.append((topic, drawn.choice("ab"), value, time - drawn.choice([0, 0, 5])))
        found.append(batch)
    return found


def cases() -> Iterator[Any]:
    """In the default suite each join once, and each chain at least once."""
    for at, (name, join) in enumerate(JOINS.items()):
        for number, (shown, chain) in enumerate(CHAINS.items()):
            marks = [] if number == at % len(CHAINS) else [pytest.mark.slow]
            yield pytest.param(join, chain, id=f"{name}, {shown}", marks=marks)


@pytest.mark.parametrize(("join", "chain"), cases())
def test_a_table_without_a_store_is_as_one_with_it(join: Callable[..., Any], chain: Chain) -> None:
    records = script(seed=7)
    found = written(join, chain, {}, records)
    assert found == written(join, chain, {"store": "kept"}, records)
    assert len(found) > 10


def test_a_transformer_is_asked_with_nothing_where_there_is_no_entry() -> None:
    """As in Kafka Streams, at each look-up; a record without a key asks nothing."""
    builder = StreamsBuilder()
    stream = builder.stream("s", key=TEXT, value=TEXT)
    table = builder.table("one", key=TEXT, value=TEXT, store="one")
    shown = table.transform_values(lambda key, value: f"{key.upper()}{value}")
    stream.left_join(shown, both, returns="string").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        entries, records = (driver.create_input_topic(name, TEXT, TEXT) for name in ("one", "s"))
        records.pipe_input("a", "1", 1)
        entries.pipe_input("a", "e", 2)
        records.pipe_input("a", "2", 3)
        records.pipe_input(None, "3", 4)
        out = driver.create_output_topic("out", TEXT, TEXT)
        found = [(one.value, one.timestamp) for one in out.read_records()]
        assert found == [("1&ANone", 1), ("2&Ae", 3), ("3&None", 4)]


@pytest.mark.parametrize("kept", ["stores", "clock"])
def test_a_transformer_with_stores_or_a_clock_has_to_keep_what_it_makes(kept: str) -> None:
    """What it makes of an entry is not a matter of that entry alone."""

    class Ticking(Quoted):
        @punctuate("1 minute")
        def tick(self, time_ms: int) -> None: ...

    builder = StreamsBuilder()
    stream = builder.stream("s", key=TEXT, value=TEXT)
    table = builder.table("one", key=TEXT, value=TEXT, store="one")
    shown = (
        table.transform_values(Ticking)
        if kept == "clock"
        else table.transform_values(Quoted, stores=[Stores.key_value("seen", key=TEXT, value=TEXT)])
    )
    with pytest.raises(TopologyError, match=r"none.*store='a-name'"):
        stream.join(shown)


def test_what_no_entry_has_is_refused_with_the_line() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("s", key=TEXT, value=TEXT)
    table = builder.table("one", key=TEXT, value=TEXT, store="one")
    placed = table.map_values(F.concat(F.col("value"), F.col("offset").cast("string")))
    with pytest.raises(TopologyError, match=r"offset, .* entry"):
        stream.join(placed)


def test_a_versioned_table_is_seen_through_its_mapper_as_of_the_records_time() -> None:
    builder = StreamsBuilder()
    stream = builder.stream("s", key=TEXT, value=TEXT)
    table = builder.table(
        "one", key=TEXT, value=TEXT, store=Materialized("one", history="1 minute")
    )
    shown = table.map_values(lambda value: f"<{value}>", returns="string")
    stream.left_join(shown, both, returns="string").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        prices, records = (driver.create_input_topic(name, TEXT, TEXT) for name in ("one", "s"))
        prices.pipe_input("a", "1", 1_000)
        prices.pipe_input("a", "2", 2_000)
        records.pipe_input("a", "then", 1_500)
        records.pipe_input("a", "now", 2_500)
        records.pipe_input("a", "before", 500)
        out = driver.create_output_topic("out", TEXT, TEXT)
        assert [one.value for one in out.read_records()] == ["then&<1>", "now&<2>", "before&None"]


@pytest.mark.parametrize("history", [None, "1 minute"])
def test_two_tables_that_come_of_one_see_its_entry_before_their_join(history: str | None) -> None:
    builder = StreamsBuilder()
    table = table_of(builder, history)
    left, right = (table.map_values(F.concat("value", F.lit(end))) for end in ("<", ">"))
    left.join(right, both, returns="string").to_stream().to("out")
    with TopologyTestDriver(builder.build(), emit_every_update=True) as driver:
        one = driver.create_input_topic("one", TEXT, TEXT)
        out = driver.create_output_topic("out", TEXT, TEXT)
        for value, shown in (("x", "x<&x>"), ("y", "y<&y>")):
            one.pipe_input("a", value, 100)
            assert [record.value for record in out.read_records()] == [shown] * 2


@pytest.mark.parametrize("history", [None, "1 minute"])
def test_a_table_that_changes_later_is_seen_as_it_was(history: str | None) -> None:
    builder = StreamsBuilder()
    table = table_of(builder, history)
    shown = table.filter(large)
    counts = table.to_stream().group_by_key().count(store="counts")
    shown.outer_join(counts, both, returns="string").to_stream().to("out")
    with TopologyTestDriver(builder.build(), emit_every_update=True) as driver:
        one = driver.create_input_topic("one", TEXT, TEXT)
        out = driver.create_output_topic("out", TEXT, TEXT)
        for value, found in (("x", ["x&None", "x&1"]), ("y", ["y&1", "y&2"])):
            one.pipe_input("a", value, 100)
            assert [record.value for record in out.read_records()] == found


@pytest.mark.parametrize("kind", ["join", "left_join"])
def test_a_record_that_waits_sees_a_versioned_table_through_its_filter(kind: str) -> None:
    builder = StreamsBuilder()
    stream = builder.stream("s", key=TEXT, value=TEXT)
    table = builder.table(
        "one", key=TEXT, value=TEXT, store=Materialized("one", history="1 minute")
    )
    shown = table.filter(large).map_values(lambda value: f"<{value}>", returns="string")
    join = getattr(stream, kind)
    join(shown, both, returns="string", grace="1 second", store="waiting").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        prices, records = (driver.create_input_topic(name, TEXT, TEXT) for name in ("one", "s"))
        records.pipe_input("a", "then", 1_500)
        records.pipe_input("b", "none", 1_600)
        prices.pipe_input("a", "4", 1_000)
        prices.pipe_input("a", "2", 2_000)
        records.pipe_input("a", "low", 2_500)
        records.pipe_input("a", "last", 9_000)
        out = driver.create_output_topic("out", TEXT, TEXT)
        low = [("b", "none&None", 1_600), ("a", "low&None", 2_500)] if kind == "left_join" else []
        found = [(one.key, one.value, one.timestamp) for one in out.read_records()]
        assert found == [("a", "then&<4>", 1_500), *low]


def test_a_foreign_result_has_the_originals_store_once_somebody_asks_what_it_holds() -> None:
    def stores(*, asked: bool) -> list[str]:
        builder = StreamsBuilder()
        stream = builder.stream("s", key=TEXT, value=TEXT)
        one, two = (
            builder.table(name, key=TEXT, value=TEXT, store=name) for name in ("one", "two")
        )
        joined = one.join(two, on=F.col("value"), name="fk")
        joined.to_stream().to("joined")
        if asked:
            stream.join(joined.map_values(F.col("value.left"))).to("out")
        nodes = builder.build().nodes
        return [spec.name for node in nodes for spec in getattr(node, "stores", ())]

    kept = ["one", "two", "fk-asks"]
    assert stores(asked=False) == kept
    assert stores(asked=True) == [*kept, "KTABLE-FK-JOIN-OUTPUT-STATE-STORE-0000000018"]


# Rows of docs/differences.md that no other test holds, of tables and processors.


LONG = serdes.long()


def results(build: Callable[[StreamsBuilder], Any], steps: dict[int, tuple[str, Any, Any]]) -> Any:
    """The results of each step: time -> (topic, key, value), one after the other."""
    builder = StreamsBuilder()
    build(builder).to("out", key=TEXT, value=TEXT)
    with TopologyTestDriver(builder.build()) as driver:
        out = driver.create_output_topic("out", TEXT, TEXT)
        found = []
        for time, (topic, key, value) in steps.items():
            driver.create_input_topic(topic, TEXT, TEXT).pipe_input(key, value, time)
            found.append(out.read_key_values())
        return found


def table(builder: StreamsBuilder, name: str = "in") -> KTable:
    return builder.table(name, key=TEXT, value=TEXT, store=name)


def test_an_empty_text_is_a_value_for_a_join_by_a_foreign_key() -> None:
    def build(builder: StreamsBuilder) -> Any:
        one, two = table(builder, "one"), table(builder, "two")
        joined = one.join(two, F.concat_ws("+", "left", "right"), on=F.lit("m"), name="fk")
        return joined.to_stream()

    steps = {1: ("two", "m", ""), 2: ("one", "a", "x"), 3: ("one", "a", "")}
    assert results(build, steps) == [[], [("a", "x+")], [("a", "+")]]


@pytest.mark.parametrize("stored", [False, True])
def test_a_filter_behind_a_held_back_table_deletes_what_was_never_visible(stored: bool) -> None:
    """Without a store of its own: nobody kept what the entry was when it was let out before."""

    def build(builder: StreamsBuilder) -> Any:
        held = table(builder).suppress(Suppressed.until_time_limit(10), store="held")
        options = {"store": "kept"} if stored else {}
        return held.filter(F.col("value") > "m", **options).to_stream()

    steps = {1: ("in", "a", "b"), 20: ("in", "z", "y"), 40: ("in", "z", "y")}
    assert results(build, steps) == [[], [] if stored else [("a", None)], [("z", "y")]]


@pytest.mark.parametrize("stored", [False, True])
def test_a_filter_behind_a_foreign_result_deletes_what_was_never_visible(stored: bool) -> None:
    def build(builder: StreamsBuilder) -> Any:
        one, two = table(builder, "one"), table(builder, "two")
        options: Any = {"store": "kept"} if stored else {}
        both = F.concat("left", "right")
        joined = one.join(two, both, on=F.lit("m"), name="fk", **options)
        return joined.filter(F.col("value") > "m").to_stream()

    steps = {1: ("two", "m", "1"), 2: ("one", "a", "b"), 3: ("one", "a", "x")}
    assert results(build, steps) == [[], [] if stored else [("a", None)], [("a", "x1")]]


def test_what_an_initializer_gives_was_never_visible_to_a_filter() -> None:
    def build(builder: StreamsBuilder) -> Any:
        groups = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
        made = groups.aggregate(
            initializer=lambda: "visible",
            aggregator=lambda value, so_far: value,
            returns="string",
            store="latest",
        )
        return made.filter(F.col("value") == "visible").to_stream()

    steps = {1: ("in", "a", "hidden"), 2: ("in", "a", "visible"), 3: ("in", "a", "hidden")}
    assert results(build, steps) == [[], [("a", "visible")], [("a", None)]]


def test_what_a_filter_lets_through_has_a_history_behind_to_table() -> None:
    builder = StreamsBuilder()
    history = Materialized("prices", history="1 minute")
    prices = builder.table("in", key=TEXT, value=LONG, store=history)
    large = prices.filter(F.col("value") > 10)
    large.to_stream().to_table(store=Materialized("large", history="1 minute"))
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, LONG)
        for time, value in [(1_000, 20), (3_000, 30), (2_000, 5)]:
            topic.pipe_input("tea", value, time)
        store = driver.get_versioned_store("large")
        found = [store.get_as_of("tea", time) for time in (1_500, 2_500, 3_500)]
        assert [one and one.value for one in found] == [20, None, 30]


def test_a_filters_own_store_takes_no_history() -> None:
    builder = StreamsBuilder()
    with pytest.raises(TopologyError, match="history"):
        table(builder).filter(F.col("value") > "m", store=Materialized("large", history="1 minute"))


@pytest.mark.parametrize("final", ["suppress", "emit_strategy"])
def test_a_session_goes_at_its_gap_and_grace_or_a_millisecond_later(final: str) -> None:
    """As in Kafka Streams: such a record may still be in the session that `suppress` lets out."""

    def build(builder: StreamsBuilder) -> Any:
        groups = builder.stream("in", key=TEXT, value=TEXT).group_by_key()
        sessions = groups.windowed_by(SessionWindows.of_inactivity_gap(5).grace(2))
        if final == "emit_strategy":
            closed = sessions.emit_strategy(EmitStrategy.on_window_close()).count(store="counts")
        else:
            counts = sessions.count(store="counts")
            closed = counts.suppress(Suppressed.until_window_closes(), store="held")
        shown = F.concat_ws("-", "key.start", "key.end", "value")
        return closed.to_stream().map(key=F.col("key.key"), value=shown)

    steps = {at: ("in", key, "v") for at, key in [(1, "a"), (7, "b"), (8, "b"), (9, "b")]}
    at_once, later = [[], [], [("a", "1-1-1")], []], [[], [], [], [("a", "1-1-1")]]
    assert results(build, steps) == (at_once if final == "suppress" else later)


class _Ticks(Processor):
    def process(self, record: Record) -> None:
        self.context.forward(record.with_value(str(self.context.stream_time)))

    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        self.context.forward(Record("tick", str(time), time))


def test_a_processors_stream_time_is_that_of_the_records_that_reach_it() -> None:
    def build(builder: StreamsBuilder) -> Any:
        stream = builder.stream("in", key=TEXT, value=TEXT)
        kept = stream.filter(F.col("value") == "kept")
        return kept.process(_Ticks)

    steps = {
        1: ("in", "a", "kept"),
        50: ("in", "a", "left out"),
        5: ("in", "a", "kept"),
        12: ("in", "a", "kept"),
    }
    first, out, second, third = results(build, steps)
    assert (out, second) == ([], [("a", "5")])
    assert [one for one in third if one[0] == "a"] == [("a", "12")]
    assert [value for key, value in first + third if key == "tick"][-1] == "12"
