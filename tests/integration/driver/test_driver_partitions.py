"""The driver's partitions: what is lost where equal keys do not meet, partitioners, patterns."""

import re
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType

from everflow import (
    JoinWindows,
    KStream,
    Materialized,
    StreamsBuilder,
    TimeWindows,
    Topology,
    TopologyError,
    serdes,
)
from everflow.errors import RecordError
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
    partitions = {"orders": 2, "customers": 3}
    with TopologyTestDriver(builder.build(), partitions=partitions) as driver:
        asked = driver.create_input_topic("orders", TEXT, ORDER)
        told = driver.create_input_topic("customers", TEXT, TEXT)
        for n in range(30):
            asked.pipe_input(f"o{n}", {"customer": f"c{n}"}, 1)
            told.pipe_input(f"c{n}", f"city {n}", 2)
        out = driver.create_output_topic("out", TEXT, TEXT).read_table()
        assert out == {f"o{n}": f"city {n}" for n in range(30)}


LONG = serdes.long()


def nowhere() -> Any:
    return F.array().cast("array<int>")


def written(partitioner: Any, topic: Any = "out", rows: tuple[int, ...] = (0, 1, 2)) -> list[int]:
    """The values that are written; every topic of a driver has one partition."""
    builder = StreamsBuilder()
    builder.stream("in", key=TEXT, value=LONG).to(topic, partitioner=partitioner)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", TEXT, LONG)
        source.pipe_batch([("k", row) for row in rows])
        out = driver.create_output_topic("out", TEXT, LONG)
        return [value for _, value in out.read_key_values()]


def asked(topic: str, key: str, value: int, partitions: int) -> Any:
    assert (topic, key, partitions) == ("out", "k", 1)
    return [None, [0], []][value]


@pytest.mark.parametrize(
    ("partitioner", "topic"),
    [
        (lambda: F.when(F.col("value") < 2, F.array(F.lit(0))).otherwise(nowhere()), "out"),
        (lambda: asked, "out"),
        (lambda: asked, lambda value: "out"),
        (lambda: asked, lambda: F.lit("out")),
    ],
)
def test_no_partition_drops_it_and_none_leaves_it_to_the_key(partitioner: Any, topic: Any) -> None:
    StreamsBuilder()
    given = topic() if callable(topic) and topic.__code__.co_argcount == 0 else topic
    assert written(partitioner(), given) == [0, 1]


def test_a_column_of_numbers_says_the_partition() -> None:
    StreamsBuilder()
    null = F.when(F.col("value") > 0, F.lit(0))
    assert written(null) == [0, 1, 2]


@pytest.mark.parametrize(
    ("partitioner", "says"),
    [
        (lambda: F.col("value"), r"1.*partitions 0.*0.*in-0@1"),
        (lambda: F.array("value"), r"1.*partitions 0.*0.*in-0@1"),
        (lambda: lambda topic, key, value, count: -value, r"gave -1; out has .*in-0@1"),
        (lambda: lambda topic, key, value, count: str(value), r"gave '0'; out has .*in-0@0"),
        (lambda: lambda topic, key, value, count: 1 / 0, r"ZeroDivisionError.*in-0@0"),
    ],
)
def test_a_partition_that_is_not_there_names_the_record(partitioner: Any, says: str) -> None:
    StreamsBuilder()
    with pytest.raises(RecordError, match=says):
        written(partitioner())


MISTAKES: dict[str, tuple[Any, str]] = {
    "a number": (
        lambda s: s.to("out", partitioner=3),
        "to: partitioner takes a Column or a Python",
    ),
    "a name": (lambda s: s.to("out", partitioner="value"), r"F\.col\('value'\)"),
    "a text": (lambda s: s.to("out", partitioner=F.col("key")), "is string; it is the number of"),
    "too few": (
        lambda s: s.to("out", partitioner=lambda value: 1),
        r"calls its function with \(topic, key, value, partitions\)",
    ),
    "a udf's Column": (
        lambda s: s.to("out", partitioner=F.udf(lambda value: 1, LongType())("value")),
        "cannot be a Column that calls Python functions",
    ),
    "both Columns": (
        lambda s: s.to(F.col("key"), partitioner=F.col("value")),
        "partitioner and topic are both Columns; give one of them as a function",
    ),
    "of a repartition topic": (
        lambda s: s.repartition(name="r", partitioner=F.col("key")),
        "repartition: partitioner: .* is string",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_partitioner_that_is_none_is_refused_at_its_line(mistake: str) -> None:
    call, says = MISTAKES[mistake]
    stream: KStream = StreamsBuilder().stream("in", key=TEXT, value=LONG)
    with pytest.raises(TopologyError, match=says) as raised:
        call(stream)
    assert f"{__file__}:" in str(raised.value)


def test_numbers_of_numpy_are_numbers() -> None:
    assert written(lambda topic, key, value, count: np.int32(0)) == [0, 1, 2]


def of_pattern(pattern: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(re.compile(pattern), key=TEXT, value=TEXT)
    stream.map_values(F.concat("topic", F.lit(" "), "value")).to("out")
    stream.group_by_key().count(store="n").to_stream().to("counts", value=serdes.long())
    return builder.build()


def test_all_topics_that_match_as_a_whole_are_one_stream() -> None:
    existing = [
        *("orders-eu", "orders-us", "orders", "my-orders-eu", "__orders-x"),
        "a-n-changelog",
    ]
    with TopologyTestDriver(
        of_pattern(r".*orders-.*|.*changelog"), topics=existing, application_id="a"
    ) as driver:
        europe, america, mine = (
            driver.create_input_topic(name, TEXT, TEXT)
            for name in ("orders-eu", "orders-us", "my-orders-eu")
        )
        europe.pipe_input("k", "1", 5)
        driver.pipe_batch({america: [("k", "3", 9)], mine: [("k", "2", 7)]})
        out = driver.create_output_topic("out", TEXT, TEXT)
        assert [value for _, value in out.read_key_values()] == [
            *("orders-eu 1", "my-orders-eu 2", "orders-us 3")
        ]
        assert driver.get_key_value_store("n").get("k") == 3
        for topic in ("orders", "__orders-x", "a-n-changelog"):
            with pytest.raises(TopologyError, match="topic"):
                driver.create_input_topic(topic, TEXT, TEXT)


def test_the_pattern_is_shown_before_there_are_topics() -> None:
    """As in Kafka Streams, without brackets."""
    assert "Source: KSTREAM-SOURCE-0000000000 (topics: in\\..*)" in of_pattern(r"in\..*").describe()


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        (["other"], r"no topic matches the pattern 'in\.\*'; create one before"),
        ([], r"TopologyTestDriver\(topology.*topics="),
    ],
)
def test_a_pattern_without_a_topic(topics: list[str], says: str) -> None:
    with pytest.raises(TopologyError, match=says) as caught:
        TopologyTestDriver(of_pattern("in.*"), topics=topics)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


def test_a_topic_belongs_to_one_source() -> None:
    builder = StreamsBuilder()
    builder.stream("in-a", key=TEXT, value=TEXT).for_each(print)
    builder.stream(re.compile("in-.*"), key=TEXT, value=TEXT).for_each(print)
    with pytest.raises(
        TopologyError, match=r"'in-a' matches the pattern 'in-\.\*', and the source"
    ):
        TopologyTestDriver(builder.build(), topics=["in-a", "in-b"])
