"""Processors in the test driver: stores, clocks, children, batches, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from everflow import (
    BatchProcessor,
    Processor,
    PunctuationType,
    Record,
    Stores,
    StreamsBuilder,
    TopologyError,
    Windowed,
    punctuate,
    serdes,
)
from everflow.errors import EverflowError
from everflow.testing import TopologyTestDriver

SEEN = Stores.key_value("seen", key=serdes.string(), value=serdes.long())
Results = list[tuple[Any, Any, int]]


class Counts(Processor):
    """How often each key came; by stream time how many keys there are, by the clock a mark."""

    def process(self, record: Record) -> None:
        seen = self.context.store("seen")
        count = seen.get(record.key, 0) + 1
        seen.put(record.key, count)
        self.context.forward(record.with_value(count))

    @punctuate("10 s")
    def keys(self, time: int) -> None:
        found = self.context.store("seen").approximate_num_entries()
        self.context.forward(Record("keys", found, time))

    @punctuate("1 s", PunctuationType.WALL_CLOCK_TIME)
    def tick(self, time: int) -> None:
        self.context.forward(Record("tick", 0, time))


def given(
    processor: Any, feed: Callable[[Any, TopologyTestDriver], None], **options: Any
) -> Results:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    stream.process(processor, **options).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", serdes.string(), serdes.long())
        out = driver.create_output_topic("out", serdes.string(), serdes.long())
        feed(source, driver)
        return [(one.key, one.value, one.timestamp) for one in out.read_records()]


RECORDS = [("a", 1, 5_000), ("b", 1, 12_000), ("a", 1, 9_000), ("a", 1, 35_000)]


@pytest.mark.parametrize("cut", range(1, 5))
def test_stores_and_stream_time_do_not_depend_on_the_batches(cut: int) -> None:
    def feed(source: Any, driver: TopologyTestDriver) -> None:
        for at in range(0, len(RECORDS), cut):
            source.pipe_batch(RECORDS[at : at + cut])

    assert given(Counts, feed, stores=[SEEN]) == [
        ("a", 1, 5_000),
        ("keys", 1, 5_000),
        ("b", 1, 12_000),
        ("keys", 2, 12_000),
        ("a", 2, 9_000),
        ("a", 3, 35_000),
        ("keys", 2, 35_000),
    ]


def test_the_wall_clock_calls_once_however_many_times_were_due() -> None:
    def feed(source: Any, driver: TopologyTestDriver) -> None:
        source.pipe_batch(RECORDS[:1])
        for by in (999, 1, 2_500, 400, 100):
            driver.advance_wall_clock_time(by)

    made = given(Counts, feed, stores=[SEEN])
    assert [one for one in made if one[0] == "tick"] == [
        ("tick", 0, 1_000),
        ("tick", 0, 3_500),
        ("tick", 0, 4_000),
    ]


@pytest.mark.parametrize("ahead_ms", [1_001, 86_400_000, 50 * 365 * 86_400_000])
def test_a_clock_that_was_ahead_once_does_not_silence_a_method(ahead_ms: int) -> None:
    def feed(source: Any, driver: TopologyTestDriver) -> None:
        driver.advance_wall_clock_time(ahead_ms)
        source.pipe_batch(RECORDS[:1])
        driver.advance_wall_clock_time(-ahead_ms)  # the clock is right again: 0
        for _ in range(3):
            driver.advance_wall_clock_time(1_000)

    made = given(Counts, feed, stores=[SEEN])
    assert [one[2] for one in made if one[0] == "tick"][-3:] == [1_000, 2_000, 3_000]


def test_a_clock_that_goes_back_by_less_than_an_interval_calls_no_more_often() -> None:
    def feed(source: Any, driver: TopologyTestDriver) -> None:
        driver.advance_wall_clock_time(5_000)
        for by in (1_000, -900, 900, 1_000):
            driver.advance_wall_clock_time(by)

    made = given(Counts, feed, stores=[SEEN])
    assert [one[2] for one in made if one[0] == "tick"] == [6_000, 7_000]


class Doubled(BatchProcessor):
    def process_batch(self, batch: pa.RecordBatch) -> pa.Table:
        rows = pa.array([row for row in range(len(batch)) for _ in range(2)], pa.int64())
        return pa.table(
            {"key": batch["key"].take(rows), "value": batch["value"].take(rows), "row": rows}
        )


def test_a_batch_processor_gives_results_of_rows() -> None:
    made = given(Doubled, lambda source, _: source.pipe_batch(RECORDS[:2]))
    assert made == [("a", 1, 5_000)] * 2 + [("b", 1, 12_000)] * 2


def test_windows_and_sessions_forget_by_stream_time() -> None:
    def kept(record: Record, context: Any) -> None:
        windows, sessions = context.store("windows"), context.store("sessions")
        windows.put(record.key, record.value, record.timestamp)
        sessions.put(Windowed(record.key, record.timestamp, record.timestamp + 1), record.value)
        found = [one.start for one, _ in windows.fetch(record.key, 0, 1 << 40)]
        ends = [one.end for one, _ in sessions.fetch(record.key)]
        context.forward(record.with_value(len(found) * 10 + len(ends)))

    stores = [
        Stores.window(
            "windows", key=serdes.string(), value=serdes.long(), size="1 s", retention="10 s"
        ),
        Stores.session("sessions", key=serdes.string(), value=serdes.long(), retention="10 s"),
    ]
    records = [("a", 1, 1_000), ("a", 1, 5_000), ("a", 1, 14_000), ("a", 1, 2_000)]
    made = given(kept, lambda source, _: source.pipe_batch(records), stores=stores)
    assert [value for _, value, _ in made] == [11, 22, 22, 22]


def test_children_take_what_is_sent_to_them_and_to_all() -> None:
    def routed(record: Record, context: Any) -> None:
        context.forward(record, {1: "one", 2: "two"}.get(record.value))

    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.long())
    for name, child in stream.process(routed, children=["one", "two"]).items():
        child.to(name)
    with TopologyTestDriver(builder.build()) as driver:
        source = driver.create_input_topic("in", serdes.string(), serdes.long())
        source.pipe_batch([("a", 1, 1), ("b", 2, 2), ("c", 3, 3)])
        found = {
            name: [
                one.key
                for one in driver.create_output_topic(
                    name, serdes.string(), serdes.long()
                ).read_records()
            ]
            for name in ("one", "two")
        }
    assert found == {"one": ["a", "c"], "two": ["b", "c"]}


def failing(record: Record, context: Any) -> None:
    raise ValueError("no")


def to_nobody(record: Record, context: Any) -> None:
    context.forward(record, "nobody")


def a_text(record: Record, context: Any) -> None:
    context.forward(record.with_value("text"))


def no_store(record: Record, context: Any) -> None:
    context.store("other")


class BadClock(Processor):
    def process(self, record: Record) -> None: ...

    @punctuate("1 s")
    def clock(self, time: int) -> None:
        raise ValueError("clock")


@pytest.mark.parametrize(
    ("processor", "said"),
    [
        (failing, "ValueError: no.*in-0@0"),
        (to_nobody, "no child 'nobody'"),
        (a_text, "the value 'text'"),
        (no_store, "no store 'other'"),
        (BadClock, "ValueError: clock"),
    ],
)
def test_a_failure_names_the_record(processor: Any, said: str) -> None:
    with pytest.raises(EverflowError, match=f"(?s){said}"):
        given(processor, lambda source, _: source.pipe_batch(RECORDS[:1]))


@pytest.mark.parametrize(
    ("processor", "options", "said"),
    [
        (Doubled(), {}, r"needs.*processor"),
        (Processor, {}, "lacks process"),
        (lambda: 3, {}, "gave 3"),
        (lambda a, b, c: None, {}, "takes 3 arguments"),
        (failing, {"stores": [3]}, r"stores.*Stores"),
        (failing, {"stores": [SEEN, SEEN]}, "names 'seen' twice"),
        (failing, {"children": ["a", "a"]}, r"children.*name"),
        (failing, {"returns": "string"}, "name both types"),
    ],
)
def test_what_cannot_be_is_refused_while_building(
    processor: Any, options: dict[str, Any], said: str
) -> None:
    stream = StreamsBuilder().stream("in", key=serdes.string(), value=serdes.long())
    with pytest.raises(TopologyError, match=said):
        stream.process(processor, **options)


def test_process_values_keeps_the_key() -> None:
    stream = StreamsBuilder().stream("in", key=serdes.string(), value=serdes.long())
    assert not stream.process_values(failing).key_changed
    assert stream.process(failing).key_changed
