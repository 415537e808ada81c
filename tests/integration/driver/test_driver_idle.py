"""A silent source moves stream time on by the wall clock, as a record would that nobody sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everflow import (
    EmitStrategy,
    JoinWindows,
    KStream,
    Materialized,
    Processor,
    Record,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    punctuate,
    serdes,
)
from everflow.testing import InputTopic, TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT = serdes.string()
TICK = "~tick"
Made = tuple[bytes | None, bytes | None, int]


class Clocked(Processor):
    """Passes records on, and what stream time calls for."""

    def process(self, record: Record) -> None:
        self.context.forward(record)

    @punctuate("10 s")
    def due(self, time: int) -> None:
        self.context.forward(Record("due", str(time), time))


def both(left: Any, right: Any) -> str:
    return f"{left}&{right}"


def windowed(stream: KStream, size: str = "10 seconds") -> Any:
    return stream.group_by_key().windowed_by(TimeWindows.of_size(size))


def closed(stream: KStream, other: KStream) -> None:
    counted = windowed(stream).emit_strategy(EmitStrategy.on_window_close()).count(store="n")
    counted.to_stream().to("out")


def early(stream: KStream, other: KStream) -> None:
    counted = windowed(stream).emit_strategy(EmitStrategy.every("3 seconds")).count(store="n")
    counted.to_stream().to("out")


def suppressed(stream: KStream, other: KStream) -> None:
    held = Suppressed.until_time_limit("7 seconds")
    stream.group_by_key().count(store="n").suppress(held, store="held").to_stream().to("out")


def sessions(stream: KStream, other: KStream) -> None:
    found = stream.group_by_key().windowed_by(SessionWindows.of_inactivity_gap("4 seconds"))
    found.emit_strategy(EmitStrategy.on_window_close()).count(store="n").to_stream().to("out")


def rekeyed(stream: KStream, other: KStream) -> None:
    counted = windowed(stream).emit_strategy(EmitStrategy.on_window_close()).count(store="n")
    named = counted.to_stream().map(
        lambda window, count: (window.key, str(count)), returns=("string", "string")
    )
    again = named.group_by_key(name="again").windowed_by(TimeWindows.of_size("40 seconds"))
    again.emit_strategy(EmitStrategy.on_window_close()).count(store="m").to_stream().to("out")


def outer(stream: KStream, other: KStream) -> None:
    windows = JoinWindows.of_time_difference_with_no_grace("5 seconds")
    stream.outer_join(other, both, windows=windows, returns="string", store="pairs").to("out")


def as_of(stream: KStream, other: KStream) -> None:
    stream.join_asof(
        other,
        both,
        tolerance="20 seconds",
        grace="6 seconds",
        how="left",
        returns="string",
        store="quotes",
    ).to("out")


def with_grace(stream: KStream, other: KStream) -> None:
    table = other.to_table(store=Materialized("prices", history="1 minute"))
    stream.left_join(table, both, grace="6 seconds", returns="string", store="held").to("out")


def looked_up(stream: KStream, other: KStream) -> None:
    table = other.to_table(store="entries")
    stream.lookup_join(
        table, both, grace="6 seconds", on_timeout="emit", returns="string", store="waiting"
    ).to("out")


def ending(stream: KStream, other: KStream) -> None:
    stream.group_by_key().count(store="n", ttl="8 seconds").to_stream().to("out")


def processed(stream: KStream, other: KStream) -> None:
    stream.process(Clocked).to("out")


def repeated(stream: KStream, other: KStream) -> None:
    stream.deduplicate("5 seconds", store="seen").to("out")


def updated(stream: KStream, other: KStream) -> None:
    windowed(stream).count(store="n").to_stream().to("out")


PROGRAMS = [
    *(closed, early, suppressed, sessions, outer, as_of, with_grace, looked_up),
    *(ending, processed, repeated, updated),
]
BEFORE = [
    ("in", "a", 1_000),
    ("right", "b", 1_500),
    ("in", "b", 2_000),
    ("in", "d", 12_000),
    ("in", "a", 12_500),
]
AFTER = [("in", "a", 12_600), ("right", "a", 13_000), ("in", "c", 61_000), ("in", "a", 40_000)]


class Run:
    """A program in a driver, and what it has written."""

    def __init__(self, program: Callable[[KStream, KStream], None], idle: str | None) -> None:
        builder = StreamsBuilder()
        streams = [
            builder.stream(topic, key=TEXT, value=TEXT, idle_advance=idle)
            for topic in ("in", "right")
        ]
        program(*streams)
        self.driver = TopologyTestDriver(builder.build())
        self.topics: dict[str, InputTopic] = {
            topic: self.driver.create_input_topic(topic, TEXT, TEXT)
            for topic in ("in", "right")
            if idle is None or program not in ONE_INPUT or topic == "in"
        }
        self.out = self.driver.create_output_topic("out", serdes.bytes_(), serdes.bytes_())

    def pipe(self, records: list[tuple[str, str, int]]) -> list[Made]:
        for topic, key, time in records:
            if topic in self.topics:
                self.topics[topic].pipe_input(key, f"{key}{time}", time)
        return self.read()

    def read(self) -> list[Made]:
        made = [(one.key, one.value, one.timestamp) for one in self.out.read_records()]
        return [one for one in made if TICK.encode() not in (one[0] or b"") + (one[1] or b"")]


ONE_INPUT = (closed, early, suppressed, sessions, ending, processed, repeated, updated, rekeyed)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_silence_is_a_record_that_nobody_sees(program: Callable[..., None]) -> None:
    silent, told = Run(program, "5 seconds"), Run(program, None)
    with silent.driver, told.driver:
        assert silent.pipe(BEFORE) == told.pipe(BEFORE)
        silent.driver.advance_wall_clock_time(4_999)
        assert silent.read() == []
        for gone, time in ((1, 17_500), (30_001, 47_501)):
            silent.driver.advance_wall_clock_time(gone)
            assert silent.read() == told.pipe([("in", TICK, time)]), time
        after = AFTER[2:] if program is outer else AFTER  # see the next test
        assert silent.pipe(after) == told.pipe(after)


def test_silence_takes_nothing_out_of_the_stores_of_a_join() -> None:
    """They go by the records of their own side: a late record meets what they have."""
    silent = Run(outer, "5 seconds")
    with silent.driver:
        silent.pipe(BEFORE)
        silent.driver.advance_wall_clock_time(5_000)
        silent.driver.advance_wall_clock_time(30_001)
        assert (b"a", b"a12500&None", 12_500) in silent.read()
        assert silent.pipe([("right", "a", 13_000)]) == [(b"a", b"a12500&a13000", 13_000)]
