"""The headers of a result are those of the record that made it, behind every operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    EmitStrategy,
    KStream,
    KTable,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
TEXT, RAW, VALUE = serdes.string(), serdes.bytes_(), serdes.json("a bigint")
TIMES = (1_000, 1_100, 9_000, 30_000)
EACH = [(1_000, "0"), (1_100, "1"), (9_000, "2"), (30_000, "3")]


def stream(builder: StreamsBuilder) -> KStream:
    return builder.stream("in", key=TEXT, value=VALUE)


CASES: dict[str, tuple[Callable[[StreamsBuilder], KStream | KTable], list[tuple[int, str]]]] = {
    "windows that close": (
        lambda b: (
            stream(b)
            .group_by_key()
            .windowed_by(TimeWindows.of_size("1 s"))
            .emit_strategy(EmitStrategy.on_window_close())
            .count(store="s")
        ),
        [(1_100, "2"), (9_000, "3")],  # of the record that closed the window
    ),
    "sessions": (
        lambda b: (
            stream(b)
            .group_by_key()
            .windowed_by(SessionWindows.of_inactivity_gap("1 s"))
            .count(store="s")
        ),
        [(1_000, "0"), (1_000, "1"), *EACH[1:]],  # the second is the tombstone of the first
    ),
    "deduplicate": (
        lambda b: stream(b).deduplicate("1 s", store="s"),
        [(1_000, "0"), (9_000, "2"), (30_000, "3")],
    ),
}
"""What the oracle does not compare: Kafka Streams has others here, or no such operator."""


@pytest.mark.parametrize("case", CASES)
def test_a_result_has_the_headers_of_the_record_that_made_it(case: str) -> None:
    build, expected = CASES[case]
    builder = StreamsBuilder()
    made = build(builder)
    (made if isinstance(made, KStream) else made.to_stream()).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        for n, time in enumerate(TIMES):
            topic.pipe_input("k", {"a": n}, time, (("n", str(n).encode()),))
        records = driver.create_output_topic("out", RAW, RAW).read_records()
    found = [(record.timestamp, dict(record.headers).get("n")) for record in records]
    assert found == [(time, n.encode()) for time, n in expected]


def _held(builder: StreamsBuilder, close: Callable[[Any], KTable]) -> None:
    windows = stream(builder).group_by_key().windowed_by(TimeWindows(1_000, 1_000))
    closed = close(windows).to_stream()
    closed.map(key=F.col("key.key"), value=F.col("value").cast("string")).to("out")


@pytest.mark.parametrize("batches", [1, 3], ids=["one batch", "one by one"])
@pytest.mark.parametrize(
    ("close", "expected"),
    [
        (
            lambda windows: windows.count(store="s").suppress(
                Suppressed.until_window_closes(), store="held"
            ),
            b"1",
        ),
        (
            lambda windows: windows.emit_strategy(EmitStrategy.on_window_close()).count(store="s"),
            b"2",
        ),
    ],
    ids=["suppress", "emit_strategy"],
)
def test_what_was_held_back_has_the_headers_of_its_update_and_a_final_result_of_the_last_record(
    close: Callable[[Any], KTable], expected: bytes, batches: int
) -> None:
    builder = StreamsBuilder()
    _held(builder, close)
    records = [
        ("k", {"a": n}, time, [("n", str(n).encode()), ("n", None)])
        for n, time in enumerate([1_000, 1_100, 9_000])
    ]
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        for at in range(batches):
            topic.pipe_batch(records if batches == 1 else [records[at]])
        (found,) = driver.create_output_topic("out", RAW, RAW).read_records()
    assert (found.value, found.headers) == (b"2", (("n", expected), ("n", None)))
