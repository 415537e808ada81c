"""Global tables of DataFrames in the test driver: loaded at once, and again by its clock."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from everflow import StreamsBuilder, TopologyError, serdes
from everflow.spark.session import get_session
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT = serdes.string()
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
    assert "rows: loaded at the start" in topology.describe()
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
