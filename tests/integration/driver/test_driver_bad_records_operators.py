"""Records that fail in functions of the user, operator by operator: in calls of the functions, k of
n records cost a few times n, whatever k is; nothing of theirs is in what others give, and no record
is left out for what another one did."""

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf

from everflow import (
    BatchProcessor,
    CountWindows,
    KStream,
    Materialized,
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
N = 500
BAD = frozenset({0, 1, 100, 101, 249, 375, N - 1})
TEXT, NUMBERS = serdes.string(), serdes.json("n bigint")
ONE_EACH = 4
"""Calls for a record, of a function that is called once for each: in the run that fails, in the one
on checked stores, twice in the search (the last record of all is bad), less what comes behind."""
Made = Callable[[Any, Path], Any]
"""Builds an operator behind the stream."""


def noted(path: Path, what: object) -> None:
    """Functions travel, so what they are called with is written down beside them."""
    with path.open("a") as file:
        file.write(f"{what}\n")


def calls(path: Path) -> list[str]:
    return path.read_text().splitlines()


def called(path: Path, n: int) -> int:
    noted(path, n)
    if n in BAD:
        raise ValueError(n)
    return n


def summed(path: Path) -> Callable[[Any, Any, Any], Any]:
    def function(key: str, value: dict[str, int], total: list[int]) -> list[int]:
        total[0] += value["n"]  # in place, also of one that fails
        called(path, value["n"])
        return total

    return function


def of_value(path: Path) -> Callable[[Any], int]:
    return lambda value: called(path, value["n"])


def summed_up(path: Path) -> Callable[[Any, Any], Any]:
    def function(one: dict[str, int], two: dict[str, int]) -> dict[str, int]:
        one["n"] += two["n"]  # in place, also of one that fails
        called(path, two["n"])
        return one

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
            noted(path, len(numbers))
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


def versions(path: Path) -> type[Processor]:
    class Kept(Processor):
        def process(self, record: Record) -> None:
            store = self.context.store("past")
            before = store.get(record.key, record.timestamp)
            found = store.versions(record.key)
            store.put(record.key, record.value["n"], record.timestamp)
            latest = store.get(record.key).value
            seen = sum(one.value for one in found) + (0 if before is None else before.value)
            self.context.forward(record.with_value(seen + latest))
            called(path, record.value["n"])

    return Kept


def reader(stream: Any, path: Path) -> Any:
    class Read(Processor):
        def process(self, record: Record) -> None:
            store = self.context.store("t")
            found = store.get(record.key)
            if hasattr(found, "value"):
                found = found.value
            shown = sum(1 + n for _, n in store.all())
            self.context.forward(record.with_value(shown + (found or 0)))
            called(path, record.value["n"])

    return stream.process(Read, stores=["t"], returns=("string", "bigint"))


class Picky:
    """A serde of the user that cannot write what begins with "bad", and notes what it is asked."""

    kind, type = "own", pa.string()

    def __init__(self, path: Path) -> None:
        self.path = path

    def decode(self, data: bytes | None) -> str | None:
        return None if data is None else data.decode()

    def decode_array(self, data: pa.Array) -> pa.Array:
        return pa.array([self.decode(item) for item in data.to_pylist()], self.type)

    def encode(self, value: str | None) -> bytes | None:
        noted(self.path, value)
        if value is not None and value.startswith("bad"):
            raise ValueError(value)
        return None if value is None else value.encode()

    def encode_array(self, values: pa.Array) -> pa.Array:
        return pa.array([self.encode(item) for item in values.to_pylist()], pa.binary())

    def __repr__(self) -> str:
        return "picky()"


KEPT = [Stores.key_value("kept", key=TEXT, value=serdes.long())]
PAST = Stores.versioned("past", key=TEXT, value=serdes.long(), history="20 seconds")
OPERATORS: dict[str, tuple[Made, float]] = {
    "map_values": (lambda s, path: s.map_values(of_value(path), returns="bigint"), 1),
    "filter": (
        lambda s, path: s.filter(lambda value: of_value(path)(value) >= 0).map_values(
            F.col("value.n")
        ),
        1,
    ),
    "flat_map_values": (
        lambda s, path: s.flat_map_values(lambda value: [of_value(path)(value)], returns="bigint"),
        1,
    ),
    "behind other functions and a Column": (
        lambda s, path: (
            s.map_values(lambda value: value, returns="n bigint")
            .map_values(F.struct((F.col("value.n") + 0).alias("n")))
            .map_values(of_value(path), returns="bigint")
        ),
        1,
    ),
    "behind a join with a table": (
        lambda s, path: s.left_join(
            s.to_table(store="t"), lambda left, _: left, returns="n bigint"
        ).map_values(of_value(path), returns="bigint"),
        ONE_EACH,
    ),
    "reduce": (
        lambda s, path: (
            s.group_by_key()
            .reduce(summed_up(path), store="sums")
            .to_stream()
            .map_values(F.col("value.n"))
        ),
        ONE_EACH,
    ),
    "cogroup in windows that overlap": (
        lambda s, path: (
            s.group_by_key()
            .cogroup(summed(path))
            .windowed_by(TimeWindows.of_size_and_grace("10 s", "8 s").advance_by("5 s"))
            .aggregate(initializer=lambda: [0], returns="array<bigint>", store="totals")
            .to_stream()
            .map(lambda key, value: (str(key), value[0]), returns=("string", "bigint"))
        ),
        2 * ONE_EACH,
    ),
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
    "ttl": (lambda s, path: aggregate(s.group_by_key(), path, ttl="3 seconds"), ONE_EACH),
    "a processor with a store and a clock": (
        lambda s, path: s.process(processor(path), stores=KEPT, returns=("string", "bigint")),
        ONE_EACH,
    ),
    "a processor without a store": (
        lambda s, path: s.process(storeless(path), returns=("string", "bigint")),
        ONE_EACH,
    ),
    "a processor with a versioned store": (
        lambda s, path: s.process(versions(path), stores=[PAST], returns=("string", "bigint")),
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


def run(
    program: Topology, records: list[Any], updates: list[Any] | None = None, behind: int = 20
) -> tuple[list[Any], list[int]]:
    """Output keys, values and times, and the n of the dead letters: of one micro-batch, and then of
    a few records that show what it has left in the stores. ``updates``: of topic ``table``."""
    others = [(f"k{n % 7}", {"n": n}, n * 100) for n in range(N, N + behind)]
    with TopologyTestDriver(program, dead_letter_topic="dead", emit_every_update=True) as driver:
        topics = {driver.create_input_topic("in", TEXT, NUMBERS): records}
        if updates is not None:
            topics[driver.create_input_topic("table", TEXT, serdes.long())] = updates
        for batch in (topics, {next(iter(topics)): others}):
            driver.pipe_batch(
                {
                    topic: [(key, value, time + 10_000) for key, value, time in sent]
                    for topic, sent in batch.items()
                }
            )
        out = driver.create_output_topic("out", TEXT, serdes.long()).read_records()
        dead = driver.create_output_topic("dead", TEXT, serdes.bytes_()).read_records()
        listed = [(one.key, one.value, one.timestamp) for one in out]
        return listed, sorted(int(re.findall(rb"\d+", one.value)[0]) for one in dead)


UPDATES = [(f"k{n % 9}", None if n % 11 == 3 else n, n * 100) for n in range(0, N, 3)]
"""Of the table that a processor reads, among its records."""
READERS = {"a reader of a table": None, "a reader of a versioned table": "5 seconds"}
"""By its history."""


def of_table(builder: StreamsBuilder, path: Path) -> KStream:
    table = builder.table("in", key=TEXT, value=NUMBERS, store="t")
    return table.transform_values(transformer(path), returns="bigint", stores=KEPT).to_stream()


def of_groups(builder: StreamsBuilder, path: Path) -> KStream:
    """The table has the records that its aggregate leaves out."""
    table = builder.table("in", key=TEXT, value=NUMBERS, store="t")
    grouped = table.group_by(F.concat(F.lit("g"), F.col("value.n") % 7), name="by")
    totals = grouped.aggregate(
        initializer=lambda: [0],
        adder=summed(path),
        subtractor=lambda key, value, total: [total[0] - value["n"]],
        returns="array<bigint>",
        store="totals",
    )
    return totals.to_stream().map_values(lambda total: total[0], returns="bigint")


@pytest.mark.parametrize("made", [of_table, of_groups])
def test_records_of_a_table_that_fail_cost_no_run_each(
    tmp_path: Path, made: Callable[[StreamsBuilder, Path], KStream]
) -> None:
    """Each key has one record: none changes what comes of another one."""
    path = tmp_path / "calls"

    def ran(without: frozenset[int] = frozenset()) -> tuple[list[Any], list[int]]:
        builder = StreamsBuilder()
        made(builder, path).to("out")
        records = [(f"k{value['n']}", value, time) for _, value, time in sent(without)]
        return run(builder.build(), records, behind=0)

    out, dead = ran()
    assert dead == sorted(BAD)
    assert len(calls(path)) <= ONE_EACH * N + len(BAD)
    assert (out, []) == ran(BAD)


@pytest.mark.parametrize("name", [*OPERATORS, *READERS])
def test_records_that_fail_cost_no_run_each(tmp_path: Path, name: str) -> None:
    path = tmp_path / "calls"
    make, most = OPERATORS.get(name, (reader, ONE_EACH))
    updates = UPDATES if name in READERS else None

    def built() -> Topology:
        builder = StreamsBuilder()
        stream = builder.stream("in", key=TEXT, value=NUMBERS)
        if name in READERS:
            store = Materialized("t", history=READERS[name])
            builder.table("table", key=TEXT, value=serdes.long(), store=store)
        make(stream, path).to("out")
        return builder.build()

    # A reducer is not called for the first value of a key.
    failing = BAD - {0, 1} if name == "reduce" else BAD
    out, dead = run(built(), sent(), updates)
    assert dead == sorted(failing)
    if name == "a processor of columns":
        assert len(calls(path)) <= most * N, "halves"
    else:
        assert len(calls(path)) <= most * (N + 20) + len(BAD)
    assert (out, []) == run(built(), sent(failing), updates)


def joined(kind: str, path: Path) -> Topology:
    """A program of which an operator cannot write some of the stream's keys, or its values."""
    builder = StreamsBuilder()
    picky: Any = Picky(path)
    of_table = kind in ("table", "grace", "lookup")
    stream = builder.stream("in", key=picky if of_table else TEXT, value=NUMBERS)
    number = F.col("left.n")
    kept: Any = {"store": "kept"}
    if kind == "global":
        table: Any = builder.global_table("table", key=picky, value=serdes.long(), store="t")
        stream = stream.left_join(table, number, on=F.col("key"))
    elif kind == "lookup of a global table":
        table = builder.global_table("table", key=picky, value=serdes.long(), store="t")
        stream = stream.lookup_join(table, number, on=F.col("key"), grace="1 day", **kept)
    elif kind == "versioned table":
        past = Materialized("kept", history="1 hour")
        stream = stream.map_values(F.col("value.n")).to_table(key=picky, store=past).to_stream()
    else:
        store = Materialized("t", history="1 hour" if kind == "grace" else None)
        table = builder.table("table", key=picky, value=serdes.long(), store=store)
        if kind == "lookup":
            stream = stream.lookup_join(table, number, grace="1 day", **kept)
        elif kind == "grace":
            stream = stream.left_join(table, number, grace="1 second", **kept)
        else:
            stream = stream.left_join(table, number)
    stream.to("out")
    return builder.build()


KINDS = ("table", "grace", "global", "lookup", "lookup of a global table", "versioned table")


@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_an_operator_cannot_write(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "calls"

    def keyed(without: frozenset[int] = frozenset()) -> list[Any]:
        return [
            (f"bad{value['n']}" if value["n"] in BAD else key, value, time)
            for key, value, time in sent(without)
        ]

    updates = None if kind == "versioned table" else UPDATES
    out, dead = run(joined(kind, path), keyed(), updates)
    assert dead == sorted(BAD)
    asked = calls(path)
    assert len(asked) <= 8 * N
    assert max(asked.count(f"bad{n}") for n in BAD) <= 6
    assert (out, []) == run(joined(kind, path), keyed(BAD), updates)


def test_values_that_a_lookup_join_cannot_keep(tmp_path: Path) -> None:
    """Those whose entry is there need not be written: they come out."""
    path = tmp_path / "calls"
    builder = StreamsBuilder()
    picky: Any = Picky(path)
    table = builder.table("table", key=TEXT, value=serdes.long(), store="t")
    stream = builder.stream("text", key=TEXT, value=picky)
    stream.lookup_join(
        table, F.coalesce(F.col("right"), F.lit(-1)), grace="1 day", store="kept"
    ).to("out")
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        entries = driver.create_input_topic("table", TEXT, serdes.long())
        texts = driver.create_input_topic("text", TEXT, TEXT)
        records = [(f"k{n}", f"bad{n}" if n in BAD else f"{n}", n) for n in range(N)]
        driver.pipe_batch({entries: [("k100", 5, 0), ("k101", 6, N)], texts: records})
        out = driver.create_output_topic("out", TEXT, serdes.long()).read_key_values()
        dead = driver.create_output_topic("dead", TEXT, TEXT).read_key_values()
    assert out == [("k100", 5), ("k101", 6)]
    assert [value for _, value in dead] == [f"bad{n}" for n in sorted(BAD - {100, 101})]
    assert len(calls(path)) <= 4 * N


def at_once(program: Topology, sent: list[tuple[str, int]]) -> tuple[list[Any], list[int]]:
    """Output keys and values, and the n of the dead letters; all in one micro-batch."""
    out, dead = run(program, [(key, {"n": n}, 0) for key, n in sent], behind=0)
    return [(key, value) for key, value, _ in out], dead


def numbered() -> list[tuple[str, int]]:
    return [(f"k{n % 7}", n) for n in range(N)]


def built(make: Callable[[Any], Any]) -> Topology:
    builder = StreamsBuilder()
    made = make(builder.stream("in", key=TEXT, value=NUMBERS))
    (made if isinstance(made, KStream) else made.to_stream()).to("out")
    return builder.build()


def aggregated(aggregator: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda stream: stream.group_by_key().aggregate(
        initializer=lambda: 0, aggregator=aggregator, returns="bigint", store="totals"
    )


@pytest.mark.parametrize("all_fail", [False, True])
def test_a_function_is_called_once_for_each_of_them(tmp_path: Path, all_fail: bool) -> None:
    path = tmp_path / "calls"

    def function(value: dict[str, int]) -> Any:
        noted(path, value["n"])
        if all_fail:
            raise ZeroDivisionError
        return "no number" if value["n"] in BAD else value["n"]

    out, dead = at_once(
        built(lambda stream: stream.map_values(function, returns="bigint")), numbered()
    )
    failing = list(range(N)) if all_fail else sorted(BAD)
    assert (len(out), dead) == (N - len(failing), failing)
    assert len(calls(path)) == N


@pytest.mark.parametrize("what", ["topic", "partitioner", "timestamp"])
def test_other_functions_of_records_tell_all_faults_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "calls"

    def gives(result: Any) -> Callable[..., Any]:
        def function(*given: Any) -> Any:
            value = next(one for one in reversed(given) if isinstance(one, dict))
            noted(path, value["n"])
            return result if value["n"] not in BAD else 1 // 0

        return function

    builder = StreamsBuilder()
    time = gives(5) if what == "timestamp" else None
    stream = builder.stream("in", key=TEXT, value=NUMBERS, timestamp=time)
    if what == "topic":
        topic = gives("out")
        stream.to(lambda key, value: topic(value))
    elif what == "partitioner":
        stream.to("out", partitioner=gives(0))
    else:
        stream.to("out")
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        topic_in = driver.create_input_topic("in", TEXT, NUMBERS)
        topic_in.pipe_batch([(key, {"n": n}) for key, n in numbered()])
        assert len(driver.create_output_topic("out", TEXT, NUMBERS).read_records()) == N - len(BAD)
        dead = driver.create_output_topic("dead", TEXT, NUMBERS).read_records()
        assert sorted(one.value["n"] for one in dead) == sorted(BAD)
    assert len(calls(path)) <= 2 * N


def test_a_vectorised_function_is_halved_to_all_records_that_it_fails_on(tmp_path: Path) -> None:
    path = tmp_path / "calls"

    def inverted(numbers: pd.Series) -> pd.Series:
        noted(path, len(numbers))
        if numbers.isin(BAD).any():
            raise ZeroDivisionError
        return numbers

    make: Any = pandas_udf  # its types know no pd.Series
    vectorised = make(inverted, "bigint")
    out, dead = at_once(
        built(lambda stream: stream.map_values(vectorised(F.col("value.n")))), numbered()
    )
    assert ([n for _, n in out], dead) == ([n for n in range(N) if n not in BAD], sorted(BAD))
    most = 2 + 2 * len(BAD) * math.ceil(math.log2(N))
    sizes = [int(line) for line in calls(path)]
    assert len(sizes) <= most
    assert sum(size >= N - len(BAD) for size in sizes) == 2, "the batch, and once without them"


@pytest.mark.parametrize("behind", ["a function", "an aggregate"])
def test_no_record_is_left_out_for_what_another_one_left_in_a_store(behind: str) -> None:
    def small(total: int) -> int:
        if total >= 100:
            raise ValueError(total)
        return total

    def make(stream: Any) -> Any:
        totals = aggregated(lambda key, value, total: total + value["n"])(stream)
        if behind == "a function":
            return totals.map_values(small, returns="bigint")
        again = totals.to_stream().group_by_key()
        return again.aggregate(
            initializer=lambda: 0,
            aggregator=lambda key, total, found: found + (small(total) > 0),
            returns="bigint",
            store="counts",
        )

    sent = [("a", 1), ("a", 100), ("a", 2), ("b", 200), ("a", 3), ("b", 4), ("c", 300)]
    out, dead = at_once(built(make), sent)
    assert dead == [100, 200, 300]
    shown = [1, 3, 6, 4] if behind == "a function" else [1, 2, 3, 1]
    assert out == list(zip("aaab", shown, strict=True))


def test_nor_in_the_filter_of_a_table() -> None:
    builder = StreamsBuilder()
    table = builder.table("in", key=TEXT, value=NUMBERS, store="t")
    table.filter(lambda value: value["n"] // (value["n"] % 100) >= 0).map_values(
        F.col("value.n")
    ).to_stream().to("out")
    sent = [("a", 1), ("a", 100), ("a", 2), ("b", 200), ("b", 5), ("c", 300), ("c", 300), ("a", 7)]
    out, dead = at_once(builder.build(), sent)
    assert dead == [100, 200, 300, 300]
    assert out == [("a", 1), ("a", 2), ("b", 5), ("a", 7)]


def test_a_record_that_became_several_takes_all_of_them_with_it() -> None:
    def function(key: str, value: int, total: int) -> int:
        if value < 0 or (total >= 100 and value == 50):
            raise ValueError(value)
        return total + value

    builder = StreamsBuilder()
    split = builder.stream("in", key=TEXT, value=NUMBERS).flat_map_values(
        lambda value: [100, -1] if value["n"] == 100 else [value["n"]], returns="bigint"
    )
    aggregated(function)(split).to_stream().to("out")
    out, dead = at_once(builder.build(), [("x", 1), ("x", 100), ("x", 50), ("y", 3)])
    assert dead == [100]
    assert out == [("x", 1), ("x", 51), ("y", 3)]


@pytest.mark.parametrize("type_", ["date", "timestamp"])
def test_a_time_that_python_cannot_hold_is_refused_by_the_sink_alone(type_: str) -> None:
    last = F.lit("9999-12-31").cast(type_)
    beyond = last + F.expr("INTERVAL 5 DAYS") if type_ == "timestamp" else F.date_add(last, 5)
    builder = StreamsBuilder()
    found = F.when(F.col("value.n") == 3, beyond).otherwise(last)
    builder.stream("in", key=TEXT, value=NUMBERS).map_values(F.struct(found.alias("t"))).to("out")
    with TopologyTestDriver(builder.build(), dead_letter_topic="dead") as driver:
        driver.create_input_topic("in", TEXT, NUMBERS).pipe_batch(
            [(f"k{n}", {"n": n}, n) for n in range(6)]
        )
        out = driver.create_output_topic("out", TEXT, TEXT).read_key_values()
        (letter,) = driver.create_output_topic("dead", TEXT, NUMBERS).read_records()
    assert [key for key, _ in out] == ["k0", "k1", "k2", "k4", "k5"]
    assert letter.value == {"n": 3}
    assert dict(letter.headers)["__everflow.errors.stage"] == b"production"
