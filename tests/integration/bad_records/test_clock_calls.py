"""A clock's call that fails goes to the processing handler, without a record, and is left out
whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from everflow import (
    ErrorHandlerContext,
    Processor,
    PunctuationType,
    Record,
    Response,
    Stores,
    StreamsBuilder,
    Topology,
    punctuate,
    serdes,
)
from everflow.errors import DamagedEntryError, FatalError, RetriableError
from everflow.records import StoreChanges
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
STORE = Stores.key_value("seen", key=serdes.string(), value=serdes.long())


class Fails(Processor):
    """Its call by stream time at 20 ms changes its store, forwards, and raises then."""

    def process(self, record: Record) -> None:
        self.context.store("seen").put(record.key, record.value)
        self.context.forward(record)

    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        self.context.store("seen").put("tick", time)
        self.context.forward(Record("tick", time, time))
        if time == 20:
            raise LookupError("no tick at 20")


class FailsByClock(Processor):
    """Its call by the wall clock raises."""

    def process(self, record: Record) -> None:
        self.context.forward(record)

    @punctuate("1 s", PunctuationType.WALL_CLOCK_TIME)
    def tick(self, time: int) -> None:
        self.context.forward(Record("tick", time, time))
        raise LookupError("no clock")


class ForwardsText(Processor):
    """Forwards what is not of the declared type."""

    def process(self, record: Record) -> None:
        self.context.forward(record)

    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        if time == 20:
            self.context.forward(Record("tick", "text", time))


def topology(made: Callable[[], Processor]) -> Topology:
    builder = StreamsBuilder()
    builder.stream("in", key=serdes.string(), value=serdes.long()).process(
        made, stores=[STORE], returns=("string", "bigint"), name="ticks"
    ).to("out", key=serdes.string(), value=serdes.long())
    return builder.build()


def results(driver: TopologyTestDriver) -> list[tuple[Any, Any]]:
    topic = driver.create_output_topic("out", serdes.string(), serdes.long())
    return [(one.key, one.value) for one in topic.read_records()]


RECORDS = [("a", 1, 10), ("b", 2, 20), ("c", 3, 30)]


def put(driver: TopologyTestDriver, records: list[tuple[str, int, int]], cut: bool = False) -> None:
    topic = driver.create_input_topic("in", serdes.string(), serdes.long())
    for batch in [[one] for one in records] if cut else [records]:
        topic.pipe_batch(batch)


def run(driver: TopologyTestDriver) -> None:
    put(driver, RECORDS)
    driver.advance_wall_clock_time(1000)


class Handler:
    def __init__(self, response: Response) -> None:
        self.response = response
        self.asked: list[tuple[ErrorHandlerContext, BaseException]] = []

    def __call__(self, context: ErrorHandlerContext, error: BaseException) -> Response:
        self.asked.append((context, error))
        return self.response


@pytest.mark.parametrize("cut", [False, True], ids=["one batch", "a batch each"])
def test_a_call_that_is_left_out_has_no_half_effect(cut: bool) -> None:
    handler = Handler(Response.CONTINUE)
    with TopologyTestDriver(topology(Fails), exception_handlers={"processing": handler}) as driver:
        put(driver, RECORDS, cut)
        assert results(driver) == [("a", 1), ("tick", 10), ("b", 2), ("c", 3), ("tick", 30)]
        store = driver.get_key_value_store("seen")
        assert dict(store.all()) == {"a": 1, "b": 2, "c": 3, "tick": 30}
    ((context, error),) = handler.asked
    assert context == ErrorHandlerContext(
        stage="processing",
        topic=None,
        partition=-1,
        offset=-1,
        timestamp=20,
        headers=(),
        source_raw_key=None,
        source_raw_value=None,
        processor_node_id="ticks",
        task_id="0_0",
        attempt=0,
    )
    assert isinstance(error, LookupError)


@pytest.mark.parametrize("handlers", [{"ticks": "continue", "*": "fail"}, "continue"])
def test_a_call_by_the_wall_clock_is_left_out_by_its_operators_handler(handlers: Any) -> None:
    with TopologyTestDriver(
        topology(FailsByClock), exception_handlers={"processing": handlers}
    ) as driver:
        put(driver, RECORDS)
        driver.advance_wall_clock_time(1000)
        driver.advance_wall_clock_time(1000)
        assert results(driver) == [("a", 1), ("b", 2), ("c", 3)]


def test_a_call_is_no_dead_letter() -> None:
    """It has no record that could be played again."""
    with TopologyTestDriver(topology(Fails), dead_letter_topic="dead") as driver:
        put(driver, RECORDS)
        assert [key for key, _ in results(driver)] == ["a", "tick", "b", "c", "tick"]
        dead = driver.create_output_topic("dead", serdes.bytes_(), serdes.bytes_())
        assert dead.read_records() == []


def test_what_a_call_forwards_of_a_wrong_type_is_the_calls_fault() -> None:
    handler = Handler(Response.CONTINUE)
    with TopologyTestDriver(
        topology(ForwardsText), exception_handlers={"processing": handler}
    ) as driver:
        put(driver, RECORDS)
        assert results(driver) == [("a", 1), ("b", 2), ("c", 3)]
    assert [context.topic for context, _ in handler.asked] == [None]


@pytest.mark.parametrize("handlers", [{}, {"processing": "fail"}])
@pytest.mark.parametrize(("made", "time"), [(Fails, 20), (FailsByClock, 1000)])
def test_a_call_that_stops_the_instance_is_named(
    made: type[Processor], time: int, handlers: dict[str, object]
) -> None:
    with TopologyTestDriver(topology(made), exception_handlers=handlers) as driver:
        with pytest.raises(FatalError) as found:
            run(driver)
        line = made.__dict__["tick"].__code__.co_firstlineno
        text = str(found.value)
        assert f"LookupError: no {'tick at 20' if time == 20 else 'clock'}" in text
        assert f"call of {made.__name__}.tick ({__file__}:{line}) at {time} ms" in text
        assert "node ticks, task 0_0" in text
        assert "in-0@" not in text


def test_retry_runs_the_batch_again() -> None:
    handler = Handler(Response.RETRY)
    with TopologyTestDriver(topology(Fails), exception_handlers={"processing": handler}) as driver:
        with pytest.raises(RetriableError, match="its handler says RETRY") as found:
            put(driver, RECORDS)
        assert [str(one) for one in found.value.partitions] == ["in-0"]


class ReadsByClock(Processor):
    """Its call hides what its store raises, as user code does."""

    def process(self, record: Record) -> None:
        self.context.forward(record)

    @punctuate("10 ms")
    def tick(self, time: int) -> None:
        try:
            self.context.store("seen").get("hurt")
        except Exception as error:
            raise RuntimeError("cannot tell") from error


def test_a_damaged_entry_is_no_calls_fault() -> None:
    with TopologyTestDriver(
        topology(ReadsByClock), exception_handlers={"processing": "continue"}
    ) as driver:
        hurt = StoreChanges("seen", [b"hurt"], [b"abc"], np.array([1], np.int64))
        store: Any = driver._stores["seen"]
        store.apply(hurt)
        with pytest.raises(DamagedEntryError, match="hurt"):
            put(driver, RECORDS)
