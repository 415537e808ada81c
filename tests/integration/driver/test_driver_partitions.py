"""A test driver with several partitions shows what is lost where equal keys do not meet."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    JoinWindows,
    Materialized,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT = serdes.string()
ORDER = serdes.json("customer string")
CUSTOMERS = [f"c{number}" for number in range(40)]


def orders_with_customers(**of_table: Any) -> Topology:
    builder = StreamsBuilder()
    customers = builder.table("customers", key=TEXT, value=TEXT, store="customers", **of_table)
    orders = builder.stream("orders", key=TEXT, value=ORDER)
    joined = orders.select_key(F.col("value.customer")).left_join(customers, name="by-customer")
    joined.map_values(F.coalesce(F.col("value.right"), F.lit("?"))).to("out", value=TEXT)
    return builder.build()


def unmatched(driver: TopologyTestDriver, producer: str | Callable[..., int] | None) -> int:
    customers = driver.create_input_topic("customers", TEXT, TEXT, partitioner=producer)
    orders = driver.create_input_topic("orders", TEXT, ORDER)
    for customer in CUSTOMERS:
        customers.pipe_input(customer, f"city of {customer}", 1)
        orders.pipe_input(f"order of {customer}", {"customer": customer}, 2)
    values = [value for _, value in driver.create_output_topic("out", TEXT, TEXT).read_key_values()]
    assert len(values) == len(CUSTOMERS)
    return values.count("?")


def test_matches_that_a_producer_in_python_loses_are_lost_in_the_driver() -> None:
    with TopologyTestDriver(orders_with_customers(), partitions=4) as driver:
        assert unmatched(driver, "crc32") > 20
        driver.reset()
        assert unmatched(driver, "murmur2") == 0
        driver.reset()
        assert unmatched(driver, None) == 0
    with TopologyTestDriver(orders_with_customers()) as driver:
        assert unmatched(driver, "crc32") == 0


def own(topic: str, key: str, value: None, partitions: int) -> int:
    assert (topic, value) == ("customers", None)
    return int(key[1:]) % partitions


@pytest.mark.parametrize("by", ["crc32", "fnv1a", "murmur2", own])
def test_a_source_that_says_its_partitioner_loses_nothing(by: str | Callable[..., int]) -> None:
    with TopologyTestDriver(orders_with_customers(partitioner=by), partitions=4) as driver:
        assert unmatched(driver, None) == 0
        store = driver.get_key_value_store("customers")
        assert dict(store.all()) == {one: f"city of {one}" for one in CUSTOMERS}
        assert [store.get(one) for one in CUSTOMERS] == [f"city of {one}" for one in CUSTOMERS]
        assert store.get("c99") is None
        driver.reset()
        assert unmatched(driver, "murmur2" if by == "crc32" else "crc32") > 20


def test_a_key_that_lies_in_two_partitions_is_counted_twice() -> None:
    builder = StreamsBuilder()
    clicks = builder.stream("clicks", key=TEXT, value=TEXT)
    clicks.group_by_key().count(store="counts").to_stream().to("out")
    with TopologyTestDriver(builder.build(), partitions={"clicks": 3}) as driver:
        topic = driver.create_input_topic("clicks", TEXT, TEXT)
        home = zlib.crc32(b"a") % 3
        for partition in (0, 1, 1, 2):
            topic.pipe_input("a", "", 1, partition=partition)
        store = driver.get_key_value_store("counts")
        assert sorted(store.all()) == [("a", 1), ("a", 1), ("a", 2)]
        assert store.get("a") in (1, 2)
        topic.pipe_raw(b"a", b"", 2, partition=home)
        with pytest.raises(ValueError, match="partitions 0 to 2"):
            topic.pipe_input("a", "", 1, partition=3)


def test_streams_that_are_joined_and_a_fleet_of_windows_keep_their_partitions() -> None:
    builder = StreamsBuilder()
    left, right = (builder.stream(name, key=TEXT, value=TEXT) for name in ("l", "r"))
    windows = JoinWindows.of_time_difference(10)
    pairs = left.select_key(F.col("value")).join(
        right.select_key(F.col("value")), windows=windows, store="pairs", name="by-value"
    )
    pairs.map_values(F.col("value.left")).group_by_key().count(store="counts")
    with TopologyTestDriver(builder.build(), partitions=5) as driver:
        lefts, rights = (driver.create_input_topic(name, TEXT, TEXT) for name in ("l", "r"))
        driver.pipe_batch({lefts: [(f"k{n}", f"v{n}", 1) for n in range(30)]})
        driver.pipe_batch({rights: [(f"x{n}", f"v{n}", 2) for n in range(30)]})
        counts = driver.get_key_value_store("counts")
        assert dict(counts.all()) == {f"v{n}": 1 for n in range(30)}
        assert list(counts.all()) == sorted(counts.all())


def test_versions_and_windows_of_several_partitions_are_found() -> None:
    builder = StreamsBuilder()
    builder.table("t", key=TEXT, value=TEXT, store=Materialized("t", history=100))
    stream = builder.stream("in", key=TEXT, value=TEXT)
    stream.group_by_key().windowed_by(TimeWindows.of_size(10)).count(store="windows")
    with TopologyTestDriver(builder.build(), partitions=3) as driver:
        table = driver.create_input_topic("t", TEXT, TEXT)
        records = driver.create_input_topic("in", TEXT, TEXT)
        for n in range(12):
            table.pipe_input(f"k{n}", f"v{n}", 10)
            table.pipe_input(f"k{n}", f"w{n}", 20)
            records.pipe_input(f"k{n}", "", 15)
        versions, windows = driver.get_versioned_store("t"), driver.get_window_store("windows")
        for n in range(12):
            before = versions.get_as_of(f"k{n}", 15)
            assert before is not None
            assert before.value == f"v{n}"
            assert versions.get(f"k{n}") == f"w{n}"
            assert windows.fetch(f"k{n}", 10) == 1
        assert len(list(windows.all())) == 12


def test_topics_that_would_not_meet_are_refused_as_on_a_broker() -> None:
    topology = orders_with_customers()
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t")
    builder.stream("s", key=TEXT, value=TEXT).join(table).to("out")
    with pytest.raises(TopologyError) as raised:
        TopologyTestDriver(builder.build(), partitions={"t": 2, "s": 3})
    assert raised.value.code == "EF-COPARTITION"
    for wrong in (0, {"orders": -1}, True):
        with pytest.raises(TopologyError, match=r"partitions.*0"):
            TopologyTestDriver(topology, partitions=wrong)


def test_a_join_by_a_foreign_key_finds_tables_of_other_producers() -> None:
    """The answer goes where the entry's key lies, the question where the other table's does."""
    builder = StreamsBuilder()
    orders = builder.table("orders", key=TEXT, value=ORDER, store="orders", partitioner="crc32")
    customers = builder.table(
        "customers", key=TEXT, value=TEXT, store="customers", partitioner="fnv1a"
    )
    joined = orders.join(customers, on=F.col("value.customer"), name="of-customer")
    joined.map_values(F.col("value.right")).to_stream().to("out", value=TEXT)
    with TopologyTestDriver(builder.build(), partitions=4) as driver:
        asked = driver.create_input_topic("orders", TEXT, ORDER)
        told = driver.create_input_topic("customers", TEXT, TEXT)
        for n in range(30):
            asked.pipe_input(f"o{n}", {"customer": f"c{n}"}, 1)
            told.pipe_input(f"c{n}", f"city {n}", 2)
        out = driver.create_output_topic("out", TEXT, TEXT).read_table()
        assert out == {f"o{n}": f"city {n}" for n in range(30)}
