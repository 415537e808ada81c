"""What records that fail cost in each operator that calls functions of the user: in calls of them,
k of n records cost a few times n, whatever k is, and nothing of theirs is in what others give."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from everflow import (
    BatchProcessor,
    CountWindows,
    Processor,
    Record,
    SessionWindows,
    SlidingWindows,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    ValueTransformer,
    punctuate,
    serdes,
)
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark
N = 2_000
BAD = frozenset({0, 1, 400, 401, 999, 1_500, N - 1})
TEXT, NUMBERS = serdes.string(), serdes.json("n bigint")
ONE_EACH = 4
"""Calls for a record, of a function that is called once for each: in the run that fails, in the one
on checked stores, twice in the search (the last record of all is bad), less what comes behind."""
Made = Callable[[Any, Path], Any]
"""What is built behind the stream."""


def called(path: Path, n: int) -> int:
    """Functions travel, so what they are called with is written down beside them."""
    with path.open("a") as file:
        file.write(f"{n}\n")
    if n in BAD:
        raise ValueError(n)
    return n


def summed(path: Path) -> Callable[[Any, Any, Any], Any]:
    def function(key: str, value: dict[str, int], total: list[int]) -> list[int]:
        total[0] += value["n"]  # in place, also of one that fails
        called(path, value["n"])
        return total

    return function


def aggregate(grouped: Any, path: Path, **more: Any) -> Any:
    table = grouped.aggregate(
        initializer=lambda: [0],
        aggregator=summed(path),
        returns="array<bigint>",
        store="totals",
        **more,
    )
    return table.to_stream().map(
        lambda key, value: (str(key), None if value is None else value[0]),
        returns=("string", "bigint"),
    )


def windowed(windows: Any, **more: Any) -> Made:
    return lambda stream, path: aggregate(stream.group_by_key().windowed_by(windows), path, **more)


def processor(path: Path) -> type[Processor]:
    class Kept(Processor):
        def process(self, record: Record) -> None:
            store = self.context.store("kept")
            count = (store.get(record.key) or 0) + 1
            store.put(record.key, count)
            self.context.forward(record.with_value(count))
            called(path, record.value["n"])

        @punctuate("10 seconds")
        def tick(self, time: int) -> None:
            store = self.context.store("kept")
            for key, count in list(store.all()):
                self.context.forward(Record(key, -count, time))

    return Kept


def storeless(path: Path) -> type[Processor]:
    class Passed(Processor):
        def process(self, record: Record) -> None:
            self.context.forward(record.with_value(called(path, record.value["n"])))

    return Passed


def in_columns(path: Path) -> type[Processor]:
    class Columns(BatchProcessor):
        def process_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            numbers = [row["n"] for row in batch.column("value").to_pylist()]
            with path.open("a") as file:
                file.write(f"{len(numbers)}\n")
            if BAD & set(numbers):
                raise ValueError
            return pa.RecordBatch.from_pydict(
                {"key": batch.column("key"), "value": pa.array(numbers)}
            )

    return Columns


def transformer(path: Path) -> type[ValueTransformer]:
    class Kept(ValueTransformer):
        def transform(self, key: str, value: dict[str, int]) -> int:
            store = self.context.store("kept")
            store.put(key, (store.get(key) or 0) + 1)
            called(path, value["n"])
            return int(store.get(key))

    return Kept


KEPT = [Stores.key_value("kept", key=TEXT, value=serdes.long())]
OPERATORS: dict[str, tuple[Made, float]] = {
    "aggregate": (lambda s, path: aggregate(s.group_by_key(), path), ONE_EACH),
    "time windows, with late records": (
        windowed(TimeWindows.of_size_and_grace("5 seconds", "1 second")),
        ONE_EACH,
    ),
    "session windows": (
        windowed(
            SessionWindows.of_inactivity_gap_and_grace("800 ms", "2 seconds"),
            merger=lambda key, one, two: [one[0] + two[0]],
        ),
        ONE_EACH,
    ),
    "sliding windows": (
        windowed(SlidingWindows.of_time_difference_and_grace("900 ms", "2 seconds")),
        4 * ONE_EACH,
    ),
    "count windows": (windowed(CountWindows.of_size(10)), ONE_EACH),
    "ttl": (
        lambda s, path: aggregate(s.group_by_key(), path, ttl="3 seconds"),
        ONE_EACH,
    ),
    "a processor with a store and a clock": (
        lambda s, path: s.process(processor(path), stores=KEPT, returns=("string", "bigint")),
        ONE_EACH,
    ),
    "a processor without a store": (
        lambda s, path: s.process(storeless(path), returns=("string", "bigint")),
        ONE_EACH,
    ),
    "a processor of columns": (
        lambda s, path: s.process(in_columns(path), returns=("string", "bigint")),
        len(BAD) * 22 / N + 1,
    ),
}


def sent(without: frozenset[int] = frozenset()) -> list[tuple[str, dict[str, int], int]]:
    """Keys that come back, and some records that are behind the others."""
    return [
        (f"k{n % 7}", {"n": n}, n * 100 - (7_000 if n % 50 == 9 else 0))
        for n in range(N)
        if n not in without
    ]


def run(program: Topology, records: list[Any]) -> tuple[list[Any], list[int]]:
    """Output keys, values and times, and the n of the dead letters: of one micro-batch, and then of
    a few records that show what it has left in the stores."""
    behind = [(f"k{n % 7}", {"n": n}, n * 100) for n in range(N, N + 20)]
    with TopologyTestDriver(program, dead_letter_topic="dead", emit_every_update=True) as driver:
        topic = driver.create_input_topic("in", TEXT, NUMBERS)
        for batch in (records, behind):
            topic.pipe_batch([(key, value, time + 10_000) for key, value, time in batch])
        out = driver.create_output_topic("out", TEXT, serdes.long()).read_records()
        dead = driver.create_output_topic("dead", TEXT, NUMBERS).read_records()
        listed = [(one.key, one.value, one.timestamp) for one in out]
        return listed, sorted(one.value["n"] for one in dead)


@pytest.mark.parametrize("name", OPERATORS)
def test_records_that_fail_cost_no_run_each(tmp_path: Path, name: str) -> None:
    make, most = OPERATORS[name]
    path = tmp_path / "calls"

    def built() -> Topology:
        builder = StreamsBuilder()
        make(builder.stream("in", key=TEXT, value=NUMBERS), path).to("out")
        return builder.build()

    out, dead = run(built(), sent())
    assert dead == sorted(BAD)
    calls = path.read_text().splitlines()
    if name == "a processor of columns":
        assert len(calls) <= most * N, "halves"
    else:
        assert len(calls) <= most * N + len(BAD)
    assert (out, []) == run(built(), sent(BAD))


def test_a_transformer_behind_its_table(tmp_path: Path) -> None:
    """Each key has one record: none changes what comes of another one."""
    path = tmp_path / "calls"
    builder = StreamsBuilder()
    table = builder.table("in", key=TEXT, value=NUMBERS, store="t")
    table.transform_values(transformer(path), returns="bigint", stores=KEPT).to_stream().to("out")
    records = [(f"k{n}", value, time) for n, (_, value, time) in enumerate(sent())]
    out, dead = run(builder.build(), records)
    assert dead == sorted(BAD)
    assert [value for _, value, _ in out][: N - len(BAD)] == [1] * (N - len(BAD))
    assert len(path.read_text().splitlines()) <= ONE_EACH * N + len(BAD)
