"""`KStream.assume_partitioned`: results as behind a repartition topic, and keys that lie elsewhere
are seen (note 077)."""

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import KStream, StreamsBuilder, TimeWindows, Topology, TopologyError, serdes
from everflow.errors import RecordError
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT = serdes.string()
ORDER = serdes.json("customer string, item string")
PARTITIONS = 4
CUSTOMERS = [f"c{number}" for number in range(20)]
CUSTOMER = F.col("value.customer")
CUSTOMER_AND_ITEM = F.struct(CUSTOMER.alias("customer"), F.col("value.item").alias("item"))

Keyed = Callable[[KStream], KStream]


def own(topic: str, key: str, value: None, partitions: int) -> int:
    """Of the topic's producer."""
    return int(key[1:]) % partitions


def own_of_text(topic: str, key: int, value: None, partitions: int) -> int:
    """The same, of the number in the topic's key."""
    return key % partitions


def orders_of(builder: StreamsBuilder, **reading: Any) -> KStream:
    return builder.stream("orders", key=TEXT, value=ORDER, **reading)


def counted(keyed: Keyed, **reading: Any) -> Topology:
    builder = StreamsBuilder()
    grouped = keyed(orders_of(builder, **reading)).group_by_key(name="by-key")
    grouped.count(store="counts").to_stream().to("out")
    return builder.build()


def number_of_customer(stream: KStream) -> KStream:
    return stream.select_key(lambda key, value: int(value["customer"][1:]), returns="bigint")


CASES: dict[str, tuple[Keyed, dict[str, Any], dict[str, Any]]] = {
    "the whole key": (lambda s: s.select_key(CUSTOMER), {}, {}),
    "of a producer in Python": (
        lambda s: s.select_key(CUSTOMER),
        {"partitioner": "crc32"},
        {},
    ),
    "said at the source": (lambda s: s.select_key(CUSTOMER), {"partitioner": own}, {}),
    "a field of the key": (lambda s: s.select_key(CUSTOMER_AND_ITEM), {}, {"by": "customer"}),
    "a field, of a producer in Python": (
        lambda s: s.select_key(CUSTOMER_AND_ITEM),
        {"partitioner": "crc32"},
        {"by": "customer"},
    ),
    "a field, by a function": (
        lambda s: s.select_key(CUSTOMER_AND_ITEM),
        {"partitioner": own},
        {"by": "customer"},
    ),
    "another key, by a function": (
        number_of_customer,
        {"partitioner": own},
        {"partitioner": own_of_text},
    ),
}


def finals(driver: TopologyTestDriver) -> list[tuple[Any, int]]:
    orders = driver.create_input_topic("orders", TEXT, ORDER)
    for turn in range(3):
        for at, customer in enumerate(CUSTOMERS):
            orders.pipe_input(customer, {"customer": customer, "item": f"i{(at + turn) % 2}"})
    store = driver.get_key_value_store("counts")
    listed = sorted(store.all(), key=str)
    assert all(store.get(key) == count for key, count in listed), "queries look where a key is"
    return listed


@pytest.mark.parametrize(("rekeyed", "reading", "said"), CASES.values(), ids=CASES)
def test_the_results_are_those_behind_a_repartition_topic(
    rekeyed: Keyed, reading: dict[str, Any], said: dict[str, Any]
) -> None:
    through = counted(rekeyed, **reading)
    in_place = counted(lambda stream: rekeyed(stream).assume_partitioned(**said), **reading)
    assert len(through.repartition_topics) == 1
    assert not in_place.repartition_topics
    assert in_place.describe().count("Sub-topology:") == 1
    with TopologyTestDriver(through, partitions=PARTITIONS) as driver:
        wanted = finals(driver)
    with TopologyTestDriver(in_place, partitions=PARTITIONS) as driver:
        assert finals(driver) == wanted
        assert not any("repartition" in topic for topic in driver.produced_topics())


MISPLACED = {
    "the whole key": (CASES["the whole key"], "'c2'"),
    "a field of the key": (CASES["a field of the key"], "'customer': 'c2'"),
    "a function": (CASES["another key, by a function"], "2"),
}


@pytest.mark.parametrize(("case", "key"), MISPLACED.values(), ids=MISPLACED)
def test_a_key_of_another_partition_stops_the_program_before_it_is_counted(
    case: tuple[Keyed, dict[str, Any], dict[str, Any]], key: str
) -> None:
    rekeyed, reading, said = case
    program = counted(lambda stream: rekeyed(stream).assume_partitioned(**said), **reading)
    with TopologyTestDriver(program, partitions=PARTITIONS) as driver:
        orders = driver.create_input_topic("orders", TEXT, ORDER)
        orders.pipe_input("c1", {"customer": "c1", "item": "i"})
        with pytest.raises(RecordError) as raised:
            orders.pipe_input("c1", {"customer": "c2", "item": "i"})
        assert sum(count for _, count in driver.get_key_value_store("counts").all()) == 1
    assert raised.value.code == "EF-RECORD"
    assert key in str(raised.value)
    assert "@1" in str(raised.value), "the record's offset"
    assert "PARTITION-PRESERVE" in str(raised.value)
    assert __file__ in str(raised.value), "the line that says so"


def test_a_handler_may_leave_such_records_out() -> None:
    program = counted(lambda stream: stream.select_key(CUSTOMER).assume_partitioned())
    handlers = {"processing": "continue"}
    with TopologyTestDriver(program, partitions=PARTITIONS, exception_handlers=handlers) as driver:
        orders = driver.create_input_topic("orders", TEXT, ORDER)
        orders.pipe_batch([("c1", {"customer": one, "item": "i"}) for one in ("c1", "c2", "c1")])
        assert list(driver.get_key_value_store("counts").all()) == [("c1", 2)]


def test_a_function_that_fails_on_a_key_is_the_records_failure() -> None:
    program = counted(
        lambda s: s.select_key(CUSTOMER).assume_partitioned(partitioner=own), partitioner=own
    )
    with TopologyTestDriver(program, partitions=PARTITIONS) as driver:
        orders = driver.create_input_topic("orders", TEXT, ORDER)
        with pytest.raises(RecordError, match="ValueError") as raised:
            orders.pipe_input("c1", {"customer": "no number", "item": "i"})
    assert "@0" in str(raised.value)


def test_a_record_without_a_key_has_no_place_and_is_dropped_by_the_group() -> None:
    program = counted(lambda stream: stream.select_key(CUSTOMER).assume_partitioned())
    with TopologyTestDriver(program, partitions=PARTITIONS) as driver:
        orders = driver.create_input_topic("orders", TEXT, ORDER)
        orders.pipe_input("c1", {"customer": None, "item": "i"})
        assert list(driver.get_key_value_store("counts").all()) == []


def test_a_key_without_its_windows_is_where_the_window_was_counted() -> None:
    builder = StreamsBuilder()
    minutes = TimeWindows.of_size("1 minute")
    by_minute = orders_of(builder).group_by_key().windowed_by(minutes).count(store="by-minute")
    again = by_minute.to_stream().select_key(F.col("key.key")).assume_partitioned()
    again.group_by_key().count(store="counts").to_stream().to("out")
    with TopologyTestDriver(builder.build(), partitions=PARTITIONS) as driver:
        orders = driver.create_input_topic("orders", TEXT, ORDER)
        for at_ms in (0, 1, 60_000):
            orders.pipe_batch([(one, {"customer": one}, at_ms) for one in CUSTOMERS])
        found = dict(driver.get_key_value_store("counts").all())
    assert found == dict.fromkeys(CUSTOMERS, 3)


def test_a_joined_table_has_the_keys_in_the_same_tasks() -> None:
    builder = StreamsBuilder()
    customers = builder.table("customers", key=TEXT, value=TEXT, store="customers")
    keyed = orders_of(builder).select_key(CUSTOMER).assume_partitioned()
    keyed.join(customers, F.col("right")).to("out", value=TEXT)
    with TopologyTestDriver(builder.build(), partitions=PARTITIONS) as driver:
        driver.create_input_topic("customers", TEXT, TEXT).pipe_batch(
            [(one, f"city of {one}", 1) for one in CUSTOMERS]
        )
        orders = driver.create_input_topic("orders", TEXT, ORDER)
        orders.pipe_batch([(one, {"customer": one}, 2) for one in CUSTOMERS])
        out = driver.create_output_topic("out", TEXT, TEXT).read_table()
    assert out == {one: f"city of {one}" for one in CUSTOMERS}


def test_topics_with_other_numbers_of_partitions_do_not_meet() -> None:
    builder = StreamsBuilder()
    customers = builder.table("customers", key=TEXT, value=TEXT, store="customers")
    keyed = orders_of(builder).select_key(CUSTOMER).assume_partitioned()
    keyed.join(customers, F.col("right")).to("out", value=TEXT)
    program = builder.build()
    with pytest.raises(TopologyError, match="orders: 2") as raised:
        TopologyTestDriver(program, partitions={"orders": 2, "customers": 3})
    assert raised.value.code == "EF-COPARTITION"
