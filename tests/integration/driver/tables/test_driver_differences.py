"""Rows of docs/differences.md that no other test holds, of tables and processors."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    EmitStrategy,
    KTable,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TopologyError,
    punctuate,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT, LONG = serdes.string(), serdes.long()


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
    """As in Kafka Streams: a record that is exactly gap and grace later may still be in the session
    that `suppress` lets out with it."""

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
