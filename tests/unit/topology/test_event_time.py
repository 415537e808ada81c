"""The times that tasks tell, and what is certain by them (note 076)."""

from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.topology.event_time import (
    UNKNOWN,
    Reach,
    Timeline,
    Told,
    fed_back,
    least,
    of_reached,
    sources_of_sinks,
    told,
    writers,
)


def test_the_least_of_those_that_are_waited_for_is_certain() -> None:
    assert least([Told(5), Told(3), Told(1, silent=True)]) == 3
    assert least([Told(5), Told()]) == UNKNOWN
    assert least([]) == UNKNOWN


def test_if_all_are_silent_the_highest_is_certain() -> None:
    assert least([Told(5, silent=True), Told(3, silent=True), Told(silent=True)]) == 5


def test_a_task_that_has_said_nothing_is_waited_for() -> None:
    assert told({}, "sink") == Told(UNKNOWN, silent=False)
    assert told({"sink/out": 7, "sink/silent": 1}, "sink") == Told(7, silent=True)


def test_a_node_is_behind_its_sources_by_what_lies_between() -> None:
    inputs = {0: Told(100), 1: Told(90)}
    assert of_reached(inputs, [Reach(0, 30), Reach(1, 0)]) == Told(70)
    assert of_reached(inputs, [Reach(0, 0), Reach(1, 0)]) == Told(90)
    assert of_reached({0: Told()}, [Reach(0, 30)]) == Told(UNKNOWN)


def test_a_timeline_knows_what_is_certain_at_an_offset() -> None:
    line = Timeline()
    for end, ms in ((10, 100), (20, 100), (20, 150), (20, 160), (30, 170)):
        line.add(end, ms)
    assert line.before(9) == (-1, UNKNOWN)
    assert line.before(10) == line.before(19) == (10, 100)
    assert line.before(20) == (20, 160)
    line.passed(25)
    assert line.before(19) == (-1, UNKNOWN)
    assert line.before(99) == (30, 170)


def test_a_long_timeline_is_thinned_out_and_says_nothing_too_early() -> None:
    line = Timeline(most=8)
    for end in range(100):
        line.add(end, end * 10)
    assert line.before(99) == (99, 990)
    for offset in range(100):
        end, ms = line.before(offset)
        assert end <= offset
        assert ms == end * 10


def test_what_a_circle_brings_back_is_waited_for_by_nobody() -> None:
    builder, text = StreamsBuilder(), serdes.string()
    orders = builder.table("orders", key=text, value=serdes.json("item string"), store="orders")
    items = builder.table("items", key=text, value=serdes.json("price long"), store="items")
    orders.join(
        items, on=F.col("value.item"), name="priced", price=F.col("right.price")
    ).to_stream().to("out")
    graph = builder.build()
    goes_by, closing = sources_of_sinks(graph), fed_back(graph)
    asks = [one for one in goes_by if "asks" in one]
    assert len(asks) == 2
    assert len(closing) == 1
    assert all(closing.isdisjoint(goes_by[one]) for one in asks)
    assert all(goes_by[one.name] for listed in writers(graph, "a").values() for one in listed)
