"""The test driver as a kit: misspelt topics, what was written, times in stores, many cases."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
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
from everflow.spark.session import get_session
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
    assert ["Columns" in line for line in shown] == [True], "once: the next ones are quick"


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
    with pytest.raises(TopologyError, match=r"create_input_topic .*found 'words'"):
        driver.pipe_batch({"words": [("k", "v")]})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match=r"headers.*'kv'"):
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


# Global tables of DataFrames in the test driver.


ORDER = serdes.json("who string, n bigint")


@pytest.fixture(scope="module")
def spark() -> SparkSession:
    return get_session()


def people(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), "who string, city string, since date")


def test_streams_are_joined_with_the_rows_of_a_dataframe(spark: SparkSession) -> None:
    builder = StreamsBuilder()
    frame = people(spark, ("ann", "Rome", None), ("bob", "Oslo", None), (None, "left out", None))
    table = builder.global_table_from(frame, key="who", store="people")
    assert table.queryable_store_name == "people"
    orders = builder.stream("orders", key=TEXT, value=ORDER)
    orders.join(table, F.col("right.city"), on=F.col("value.who")).to("inner")
    orders.left_join(
        table,
        lambda order, person: f"{order['n']} {person['city'] if person else None}",
        on=lambda order: order["who"],
        returns="string",
    ).to("left")
    topology = builder.build()
    assert "rows: loaded at " in topology.describe()
    assert "keeps people" in repr(topology)
    with TopologyTestDriver(topology) as driver:
        order = driver.create_input_topic("orders", TEXT, ORDER)
        for n, who in enumerate(["ann", "zoe", None, "bob"]):
            order.pipe_input(str(n), {"who": who, "n": n})
        inner = driver.create_output_topic("inner", TEXT, TEXT)
        left = driver.create_output_topic("left", TEXT, TEXT)
        assert inner.read_key_values() == [("0", "Rome"), ("3", "Oslo")]
        assert [value for _, value in left.read_key_values()] == [
            "0 Rome",
            "1 None",
            "2 None",
            "3 Oslo",
        ]
        store = driver.get_key_value_store("people")
        assert dict(store.all()) == {
            "ann": {"who": "ann", "city": "Rome", "since": None},
            "bob": {"who": "bob", "city": "Oslo", "since": None},
        }
        driver.reset()
        assert store.get("ann") is not None


def test_what_is_loaded_again_takes_the_place_of_all_that_was(spark: SparkSession) -> None:
    content: list[tuple[Any, ...]] = [("ann", "Rome", None), ("bob", "Oslo", None)]
    builder = StreamsBuilder()
    table = builder.global_table_from(
        lambda: people(spark, *content),
        key=F.upper("who"),
        refresh=timedelta(minutes=10),
        store="people",
    )
    orders = builder.stream("orders", key=TEXT, value=TEXT)
    orders.lookup_join(
        table, F.col("right.city"), on=F.col("value"), timeout="1 hour", store="waiting"
    ).to("out")
    topology = builder.build()
    assert "rows: loaded every 600 s" in topology.describe()
    with TopologyTestDriver(topology) as driver:
        order = driver.create_input_topic("orders", TEXT, TEXT)
        out = driver.create_output_topic("out", TEXT, TEXT)
        order.pipe_input("1", "BOB")
        order.pipe_input("2", "CID")
        assert out.read_key_values() == [("1", "Oslo")]
        content[:] = [("ann", "Riga", None), ("cid", "Bern", None)]
        driver.advance_wall_clock_time(timedelta(minutes=9))
        assert out.read_key_values() == []
        driver.advance_wall_clock_time(timedelta(minutes=1))
        assert out.read_key_values() == [("2", "Bern")]  # it has waited for this
        order.pipe_input("3", "ANN")
        assert out.read_key_values() == [("3", "Riga")]
        assert set(dict(driver.get_key_value_store("people").all())) == {"ANN", "CID"}


def test_several_columns_are_a_key(spark: SparkSession) -> None:
    builder = StreamsBuilder()
    frame = spark.createDataFrame([(1, "a", 0.5), (1, "b", 1.5)], "n long, t string, x double")
    table = builder.global_table_from(frame, key=["n", "t"], store="s")
    stream = builder.stream("in", key=TEXT, value=serdes.json("n bigint, t string"))
    stream.join(table, F.col("right.x"), on=F.struct("value.n", "value.t")).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, serdes.json("n bigint, t string"))
        topic.pipe_input("k", {"n": 1, "t": "b"})
        topic.pipe_input("k", {"n": 2, "t": "b"})
        out = driver.create_output_topic("out", TEXT, serdes.double())
        assert out.read_key_values() == [("k", 1.5)]


def test_what_cannot_be_a_table_is_refused_with_the_cure(spark: SparkSession) -> None:
    frame, builder = people(spark, ("ann", "Rome", None)), StreamsBuilder()
    text, number = cast(Any, "people"), cast(Any, 3)
    orders = builder.stream("in", key=TEXT, value=TEXT)
    stream = spark.readStream.format("rate").load()
    made = builder.global_table_from
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: made(frame, key="whom", store="x"), "who, city, since"),
        (lambda: made(frame, key=number, store="x"), "key= is a Column, the name"),
        (lambda: made(frame, key=[], store="x"), "key= is a Column, the name"),
        (lambda: made(text, key="who", store="x"), "takes a DataFrame"),
        (lambda: made(lambda: number, key="who", store="x"), "function.*returned 3"),
        (lambda: made(frame, key="who"), "its store has no name"),
        (lambda: made(frame, key="who", refresh=0, store="x"), "refresh is above 0"),
        (lambda: made(stream, key="value", store="x"), "streaming one"),
        (lambda: orders.join(cast(Any, frame)), "make a table of it: builder.global_table_from"),
    ]
    for call, says in wrong:
        with pytest.raises(TopologyError, match=says) as error:
            call()
        assert __file__ in str(error.value)
    builder.global_table_from(frame.union(frame), key="who", store="twice")
    orders.to("out")
    with pytest.raises(ValueError, match=r"rows.*'ann'"):
        TopologyTestDriver(builder.build())
