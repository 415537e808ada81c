"""The test driver as a kit: misspelt topics, what was written, times in stores, many cases."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
from pyspark.sql import functions as F

from everflow import (
    IllegalStateError,
    StoreNotFoundError,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    Windowed,
    serdes,
)
from everflow.retry import shown_by
from everflow.testing import TestRecord, TopologyTestDriver, ValueAndTimestamp

pytestmark = pytest.mark.spark
TEXT, LONG = serdes.string(), serdes.long()


def topology() -> Topology:
    builder = StreamsBuilder()
    words, more = (builder.stream(topic, key=TEXT, value=TEXT) for topic in ("words", "more-words"))
    counts = words.merge(more).group_by(F.col("value"), name="by-word").count(store="counts")
    counts.to_stream().to("counts-of-words")
    windowed = words.group_by_key().windowed_by(TimeWindows.of_size(10).grace(100))
    daily = windowed.reduce(lambda first, later: first + later, store="joined")
    daily.to_stream().to("joined-words")
    return builder.build()


@pytest.fixture(scope="module")
def shared() -> Iterator[TopologyTestDriver]:
    with TopologyTestDriver(topology(), application_id="app") as driver:
        yield driver


@pytest.fixture
def driver(shared: TopologyTestDriver) -> TopologyTestDriver:
    shared.reset()
    return shared


def test_a_misspelt_topic_is_refused_with_those_it_writes(driver: TopologyTestDriver) -> None:
    with pytest.raises(
        TopologyError, match=r"'count-of-words'; it writes counts-of-words, joined-words"
    ) as caught:
        driver.create_output_topic("count-of-words", TEXT, LONG)
    assert "did you mean 'counts-of-words'?" in str(caught.value)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)
    with pytest.raises(TopologyError, match=r"topic 'word'.*'words'"):
        driver.create_input_topic("word", TEXT, TEXT)
    with pytest.raises(StoreNotFoundError, match=r"'count'.*counts"):
        driver.get_key_value_store("count")


def test_the_first_column_and_the_first_records_are_waits_that_are_shown() -> None:
    shown: list[str] = []

    def show(what: str) -> AbstractContextManager[None]:
        shown.append(what)
        return nullcontext()

    with shown_by(show):
        builder = StreamsBuilder()
        builder.stream("words", key=TEXT, value=TEXT).map_values(F.upper("value")).to("out")
        assert shown.pop() == "analysing a Column", (
            "behind the start of Spark, if this is the first"
        )
        shown.clear()
        with TopologyTestDriver(builder.build()) as driver:
            words = driver.create_input_topic("words", TEXT, TEXT)
            words.pipe_input("k", "a")
            words.pipe_input("k", "b")
    assert shown == ["preparing the Columns of this topology in Spark"], (
        "once: the next ones are quick"
    )


def test_a_serde_that_is_none_is_refused_with_the_users_line(driver: TopologyTestDriver) -> None:
    with pytest.raises(TopologyError, match=r"create_input_topic.*key=.*string") as caught:
        driver.create_input_topic("words", serdes.string, TEXT)  # type: ignore[arg-type]
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


def test_topics_chosen_per_record_may_have_any_name() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT).to(F.concat(F.lit("to-"), F.col("key")))
    with TopologyTestDriver(builder.build()) as driver:
        driver.create_input_topic("in", TEXT, TEXT).pipe_input("a", "x")
        assert driver.create_output_topic("to-a", TEXT, TEXT).read_value() == "x"
        assert driver.create_output_topic("to-b", TEXT, TEXT).is_empty()


def test_produced_topics_are_all_written_ones_internal_too(driver: TopologyTestDriver) -> None:
    assert driver.produced_topics() == set()
    driver.create_input_topic("more-words", TEXT, TEXT).pipe_input("k", "so")
    counts = driver.create_output_topic("counts-of-words", TEXT, LONG)
    wanted = {"counts-of-words", "app-by-word-repartition", "app-counts-changelog"}
    assert driver.produced_topics() == wanted
    assert counts.read_key_values() == [("so", 1)]
    assert driver.produced_topics() == wanted, "reading takes nothing away"
    assert driver.create_output_topic(
        "app-counts-changelog", TEXT, LONG
    ).read_record() == TestRecord("so", 1, 0)
    assert driver.create_output_topic("app-by-word-repartition", TEXT, TEXT).read_key_value() == (
        "so",
        "so",
    )


def test_views_have_the_times_of_values(driver: TopologyTestDriver) -> None:
    words = driver.create_input_topic("words", TEXT, TEXT)
    words.pipe_each([("k", "so", 7), ("k", "so", 3), ("k", "it", 15)])
    counts = driver.get_key_value_store("counts")
    assert counts.get_with_timestamp("so") == ValueAndTimestamp(2, 7), "the latest of its records"
    assert counts.get_with_timestamp("no") is None
    assert dict(counts.all_with_timestamps()) == {"it": (1, 15), "so": (2, 7)}
    joined = driver.get_window_store("joined")
    assert joined.fetch_with_timestamp("k", 0) == ("soso", 7)
    assert list(joined.all_with_timestamps())[-1] == (Windowed("k", 10, 20), ("it", 15))


def test_several_topics_are_one_micro_batch_in_merge_order(driver: TopologyTestDriver) -> None:
    words, more = (
        driver.create_input_topic(topic, TEXT, TEXT) for topic in ("words", "more-words")
    )
    driver.pipe_batch(
        {words: [("k", "so", 1), ("k", "so", 9)], more: [("k", "so", 5), ("k", "it", 2)]}
    )
    counts = driver.create_output_topic("counts-of-words", TEXT, LONG)
    assert counts.read_records() == [TestRecord("it", 1, 2), TestRecord("so", 3, 9)], (
        "one result per key"
    )
    repartitioned = driver.create_output_topic("app-by-word-repartition", TEXT, TEXT)
    assert [record.timestamp for record in repartitioned.read_records()] == [1, 5, 2, 9], (
        "by time between topics"
    )
    with pytest.raises(
        TopologyError, match="with what this driver's create_input_topic gave, found 'words'"
    ):
        driver.pipe_batch({"words": [("k", "v")]})  # type: ignore[dict-item]
    with pytest.raises(
        TypeError,
        match=r"headers.*'kv'",
    ):
        words.pipe_batch(["kv"])  # type: ignore[list-item]


def test_after_a_reset_it_is_as_at_first_and_handles_go_on(driver: TopologyTestDriver) -> None:
    words = driver.create_input_topic("words", TEXT, TEXT, start_ms=4, advance_ms=1)
    joined = driver.create_output_topic("joined-words", serdes.time_windowed(TEXT, 10), TEXT)
    store = driver.get_window_store("joined")

    def case() -> None:
        words.pipe_input("k", "so")
        words.pipe_input("k", "it")
        words.pipe_input("j", "", 1_000_000)
        words.pipe_input("k", "late", 6)
        assert joined.read_records()[:2] == [
            TestRecord(Windowed("k", 0, 10), "so", 4),
            TestRecord(Windowed("k", 0, 10), "soit", 5),
        ]
        assert dict(store.all()) == {Windowed("j", 1_000_000, 1_000_010): ""}
        driver.advance_wall_clock_time(5)

    case()
    driver.reset()
    assert (
        driver.wall_clock_ms,
        driver.produced_topics(),
        list(store.all()),
        joined.is_empty(),
    ) == (0, set(), [], True)
    case()


def test_a_closed_driver_says_so() -> None:
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=TEXT).to("out")
    driver = TopologyTestDriver(builder.build())
    topic = driver.create_input_topic("in", TEXT, TEXT)
    driver.close()
    driver.close()
    for call in (partial(topic.pipe_input, "k", "v"), driver.reset):
        with pytest.raises(IllegalStateError, match="driver"):
            call()
