"""Where a time comes from: of a record, and of a source that is silent."""

import datetime as dt
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import functions as pyspark_functions

from everflow import (
    EmitStrategy,
    FailOnInvalidTimestamp,
    JoinWindows,
    KStream,
    LogAndSkipOnInvalidTimestamp,
    Materialized,
    Processor,
    Record,
    RecordContext,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    TopologyError,
    UsePartitionTimeOnInvalidTimestamp,
    WallclockTimestampExtractor,
    agg,
    punctuate,
    serdes,
)
from everflow.clock import in_utc
from everflow.errors import RecordError, RecordTimeError
from everflow.spark.session import get_session, letters_of, note_letters
from everflow.testing import InputTopic, TopologyTestDriver
from everflow.testing.topics import TestRecord

pytestmark = pytest.mark.spark

TEXT = serdes.string()
F: Any = pyspark_functions
VALUE = serdes.json("at bigint, day timestamp, n int")
SEEN = serdes.json("time bigint, n int")


def rule(key: str, value: dict[str, Any], record: RecordContext, partition_time: int) -> int:
    """The value's time, else one more than the partition's, else the one that is a header."""
    if value["at"] is not None:
        return int(value["at"])
    return int(dict(record.headers).get("at") or partition_time + 1)


def seen(
    timestamp: Any, rows: list[tuple[int | None, int]], default: Any = None
) -> list[tuple[int, int, int]]:
    """(n, the time that a Column sees, the time of the result) for records (at, time)."""
    builder = StreamsBuilder()
    stream = builder.stream("in", key=TEXT, value=VALUE, timestamp=timestamp)
    fields = F.struct(F.col("timestamp").alias("time"), F.col("value.n").alias("n"))
    stream.map_values(fields).to("out", value=SEEN)
    with TopologyTestDriver(
        builder.build(), default_timestamp_extractor=default, initial_wall_clock_ms=77
    ) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_batch([("k", {"at": at, "n": n}, time) for n, (at, time) in enumerate(rows)])
        out = driver.create_output_topic("out", TEXT, SEEN)
        return [(one.value["n"], one.value["time"], one.timestamp) for one in out.read_records()]


ROWS = [(50, 5), (-1, 6), (None, -7), (40, 8)]


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        pytest.param(
            lambda: F.coalesce("value.at", F.lit(3)),
            [(0, 50, 50), (2, 3, 3), (3, 40, 40)],
            id="column",
        ),
        pytest.param(
            lambda: F.timestamp_millis(F.coalesce("value.at", F.lit(3))),
            [(0, 50, 50), (2, 3, 3), (3, 40, 40)],
            id="timestamp",
        ),
        pytest.param(
            lambda: F.coalesce("value.n", F.lit(3)), [(n, n, n) for n in range(4)], id="int"
        ),
        pytest.param(lambda: rule, [(0, 50, 50), (2, 51, 51), (3, 40, 40)], id="function"),
        pytest.param(
            lambda: lambda value: value["at"] or 9,
            [(0, 50, 50), (2, 9, 9), (3, 40, 40)],
            id="of the value",
        ),
        pytest.param(
            lambda: LogAndSkipOnInvalidTimestamp, [(0, 5, 5), (1, 6, 6), (3, 8, 8)], id="skip"
        ),
        pytest.param(
            lambda: UsePartitionTimeOnInvalidTimestamp(),
            [(0, 5, 5), (1, 6, 6), (2, 6, 6), (3, 8, 8)],
            id="partition time",
        ),
        pytest.param(
            lambda: WallclockTimestampExtractor(), [(n, 77, 77) for n in range(4)], id="wall clock"
        ),
    ],
)
def test_columns_and_results_have_the_time_that_is_said(timestamp: Any, expected: Any) -> None:
    StreamsBuilder()
    assert seen(timestamp(), ROWS) == expected


def test_a_negative_time_stops_and_names_the_record_and_the_ways_on() -> None:
    for timestamp, default in (
        (None, None),
        (FailOnInvalidTimestamp(), LogAndSkipOnInvalidTimestamp()),
    ):
        with pytest.raises(RecordTimeError) as raised:
            seen(timestamp, ROWS, default)
        assert "negative, -7 ms (record in-0@2)" in str(raised.value)
        assert "timestamp=LogAndSkipOnInvalidTimestamp()" in str(raised.value)
        assert raised.value.code == "EF-RECORD-TIME"


def test_the_default_is_for_sources_that_say_nothing() -> None:
    skip = LogAndSkipOnInvalidTimestamp()
    assert [n for n, _, _ in seen(None, ROWS, skip)] == [0, 1, 3]
    assert [time for _, time, _ in seen(WallclockTimestampExtractor(), ROWS, skip)] == [77] * 4


@pytest.mark.parametrize(
    ("timestamp", "rows", "says"),
    [
        (lambda: F.col("value.at"), ROWS, r"timestamp=.*NULL.*F\.col\('timestamp'.*in-0@2"),
        (lambda: lambda value: value["at"], ROWS, r"negative.*in-0@2"),
        (lambda: lambda value: 2**70, ROWS, r"divide.*in-0@0"),
        (lambda: lambda value: "now", ROWS, r"'now'.*number"),
        (lambda: lambda value: 1 / 0, ROWS, r"ZeroDivisionError.*in-0@0"),
        (
            lambda: lambda value: __import__("datetime").datetime(2026, 1, 1),
            ROWS,
            r"since 1970: int\(time\.timestamp\(\) \* 1000\)",
        ),
        (lambda: F.col("value.n") * 10**18, ROWS[:1] * 3, "divide them"),
        (lambda: UsePartitionTimeOnInvalidTimestamp(), ROWS[2:], r"partition.*in-0@0"),
    ],
)
def test_an_extractor_without_answer_names_the_record(timestamp: Any, rows: Any, says: str) -> None:
    StreamsBuilder()
    with pytest.raises((RecordError, RecordTimeError), match=says):
        seen(timestamp(), rows)


def test_windows_tables_and_what_is_re_keyed_go_by_the_time_that_is_said() -> None:
    builder = StreamsBuilder()
    at = F.col("value.at")
    stream = builder.stream("in", key=TEXT, value=VALUE, timestamp=at)
    stream.group_by(F.col("value.n").cast("string"), name="by-n").windowed_by(
        TimeWindows.of_size(10)
    ).count(store="counts").to_stream().to("windows")
    times = F.coalesce(at, F.col("timestamp"))
    table = builder.table("table", key=TEXT, value=VALUE, store="t", timestamp=times)
    table.to_stream().to("changes", value=VALUE)
    window = serdes.time_windowed(TEXT, 10)
    with TopologyTestDriver(builder.build()) as driver:
        topic = driver.create_input_topic("in", TEXT, VALUE)
        topic.pipe_batch([("k", {"at": 25, "n": 1}, 1), ("k", {"at": 12, "n": 2}, 90)])
        counts = driver.create_output_topic("windows", window, serdes.long()).read_records()
        assert [(one.key.start, one.timestamp) for one in counts] == [(20, 25)], "12 is late"
        by_n = driver.create_output_topic(
            "topology-test-driver-by-n-repartition", TEXT, serdes.bytes_()
        )
        assert [one.timestamp for one in by_n.read_records()] == [25, 12]
        tables = driver.create_input_topic("table", TEXT, VALUE)
        tables.pipe_input("k", {"at": 30, "n": 1}, 1)
        stored = driver.get_key_value_store("t").get_with_timestamp("k")
        assert stored is not None
        assert stored.timestamp == 30
        tables.pipe_input("k", None, 31)
        changes = driver.create_output_topic("changes", TEXT, VALUE).read_records()
        assert [one.timestamp for one in changes] == [30, 31]


def test_inputs_of_a_task_are_merged_by_the_times_that_are_said() -> None:
    builder = StreamsBuilder()
    at = F.col("value.at")
    one = builder.stream("one", key=TEXT, value=VALUE, timestamp=at)
    two = builder.stream("two", key=TEXT, value=VALUE, timestamp=at)
    one.merge(two).to("out", value=VALUE)
    with TopologyTestDriver(builder.build()) as driver:
        topics = [driver.create_input_topic(name, TEXT, VALUE) for name in ("one", "two")]
        rows = [[(1, 9), (4, 8)], [(2, 1), (3, 0), (5, 2)]]
        driver.pipe_batch(
            {
                topic: [("k", {"at": at, "n": 0}, time) for at, time in listed]
                for topic, listed in zip(topics, rows, strict=True)
            }
        )
        out = driver.create_output_topic("out", TEXT, VALUE).read_records()
    assert [record.timestamp for record in out] == [1, 2, 3, 4, 5]


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
        for topic, key, at in records:
            if topic in self.topics:
                self.topics[topic].pipe_input(key, f"{key}{at}", at)
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


# What comes out does not depend on the machine.


UTC = dt.timezone.utc
DDL = (
    "t timestamp, n timestamp_ntz, d date, s struct<t: timestamp, l: array<timestamp>>, "
    "l array<timestamp>, m map<string, timestamp>, k map<timestamp, int>, x array<struct<t: "
    "timestamp>>"
)
LOCAL_VALUE = serdes.json(DDL)
AT = dt.datetime(2024, 3, 10, 7, 30, 0, 1, tzinfo=UTC)
"""New York has no 2:30 on that day."""
NAIVE = AT.replace(tzinfo=None)
ROW: dict[str, Any] = {
    "t": AT,
    "n": NAIVE,
    "d": AT.date(),
    "s": {"t": AT, "l": [AT]},
    "l": [AT, None],
    "m": [("a", AT)],
    "k": [(AT, 1)],
    "x": [{"t": AT}],
}


def local_seen(*values: Any) -> str:
    """What a function was given, and what it makes of local time."""
    local = dt.datetime.fromtimestamp(0), time.localtime(0).tm_hour, AT.astimezone().isoformat()
    return repr((values, local, time.mktime((2024, 3, 10, 2, 30, 0, 0, 0, -1))))


def of_series(*columns: Any) -> pd.Series:
    def row(column: Any, at: int) -> Any:
        one = column.iloc[at]
        return one.to_dict() if isinstance(column, pd.DataFrame) else one

    count = range(len(columns[0]))
    return pd.Series([local_seen(*(row(column, at) for column in columns)) for at in count])


def series_udf() -> Any:
    return F.pandas_udf(of_series, "string", F.PandasUDFType.SCALAR)


def of_series_in_turn(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
    for columns in batches:
        yield of_series(*columns)


def of_arrays(*columns: pa.Array) -> pa.Array:
    return pa.array(
        [local_seen(*(one[at].as_py() for one in columns)) for at in range(len(columns[0]))]
    )


class Sees(Processor):
    def process(self, record: Any) -> None:
        self.context.forward(record.with_value(local_seen(record.value)))


def fields() -> list[Any]:
    return [F.col(f"value.{name}") for name in ROW]


RETURNED = "t timestamp, l array<timestamp>, m map<string, timestamp>, s struct<t: timestamp>"


def times(at: dt.datetime) -> dict[str, Any]:
    return {"t": NAIVE, "l": [NAIVE, at], "m": {"a": NAIVE}, "s": {"t": NAIVE}}


LOCAL_PROGRAMS: dict[str, Callable[[KStream], Any]] = {
    "map_values": lambda s: s.map_values(local_seen, returns="string"),
    "aggregator": lambda s: s.group_by_key().aggregate(
        initializer=lambda: [local_seen()],
        aggregator=lambda k, v, found: [*found, local_seen(v)],
        returns="array<string>",
        store="s",
    ),
    "built-in": lambda s: s.group_by_key().aggregate(
        last=agg.max("value.t"), all=agg.collect_list("value.s"), store="s"
    ),
    "joiner": lambda s: s.join(
        s.to_table(store="t"), lambda left, right: local_seen(left, right), returns="string"
    ),
    "table": lambda s: s.to_table(store="t").transform_values(
        lambda k, v: local_seen(v), returns="string"
    ),
    "foreign key": lambda s: (
        lambda table: table.join(
            s.map(key=F.lit(0), value=F.lit("x")).to_table(store="other", name="other"),
            on=lambda v: dt.datetime.fromtimestamp(0).hour,
            name="by",
            text=F.col("right"),
        )
    )(s.to_table(store="t")),
    "processor": lambda s: s.process(Sees, returns=("string", "string")),
    "deduplicate": lambda s: s.deduplicate(10, by=local_seen, returns="string", store="s"),
    "udf": lambda s: s.map_values(F.udf(local_seen, "string")(*fields())),
    "pickled udf": lambda s: s.map_values(F.udf(local_seen, "string", useArrow=False)(*fields())),
    "udf of the whole": lambda s: s.map_values(F.udf(local_seen, "string")("value")),
    "pandas_udf": lambda s: s.map_values(series_udf()(*fields())),
    "pandas_udf in turn": lambda s: s.map_values(
        F.pandas_udf(of_series_in_turn, "string", F.PandasUDFType.SCALAR_ITER)(*fields())
    ),
    "arrow_udf": lambda s: s.map_values(F.arrow_udf(of_arrays, "string")(*fields())),
    "returned": lambda s: s.map_values(lambda v: times(v["t"]), returns=RETURNED),
    "returned by a udf": lambda s: s.map_values(F.udf(times, RETURNED)("value.t")),
    "returned by a pandas_udf": lambda s: s.map_values(
        F.pandas_udf(lambda t: pd.Series([NAIVE] * len(t)), "timestamp")("value.t")
    ),
    "columns": lambda s: s.map_values(
        F.struct(
            F.date_format("value.t", "yyyy-MM-dd HH:mm z"),
            F.hour("value.t"),
            F.col("value.t").cast("string"),
            F.col("value.n").cast("timestamp"),
            F.col("value.d").cast("timestamp"),
            F.col("value.t").cast("date"),
            F.to_json("value.s"),
            F.to_timestamp(F.lit("2024-03-10 02:30:00")),
            F.expr("TIMESTAMP'2024-03-10 02:30:00'"),
            F.from_unixtime(F.lit(0)),
            F.lit(AT),
            F.array(F.lit(AT)),
        )
    ),
}


@contextmanager
def local_time(zone: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = zone
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ") if before is None else os.environ.update(TZ=before)
        time.tzset()


def results(program: Callable[[KStream], Any], zone: str) -> list[TestRecord]:
    """What is written, while the local time of the building process is that of ``zone``."""
    with local_time(zone):
        builder = StreamsBuilder()
        made = program(builder.stream("in", key=TEXT, value=LOCAL_VALUE))
        (made if isinstance(made, KStream) else made.to_stream()).to("out")
        with TopologyTestDriver(builder.build()) as driver:
            driver.create_input_topic("in", TEXT, LOCAL_VALUE).pipe_input("k", ROW)
            driver.create_input_topic("in", TEXT, LOCAL_VALUE).pipe_batch([("k", ROW), ("l", ROW)])
            assert os.environ["TZ"] == zone
            out = driver.create_output_topic("out", serdes.bytes_(), serdes.bytes_())
            return out.read_records()


@pytest.mark.parametrize("name", LOCAL_PROGRAMS)
def test_nothing_depends_on_the_machines_zone(name: str) -> None:
    zone = ("America/New_York", "Asia/Kolkata")[sorted(LOCAL_PROGRAMS).index(name) % 2]
    found = results(LOCAL_PROGRAMS[name], zone)
    assert found
    assert found == results(LOCAL_PROGRAMS[name], "UTC")
    assert not any(offset in str(found) for offset in ("-04:00", "+05:30"))


@pytest.mark.parametrize("name", ["udf", "pickled udf", "udf of the whole", "pandas_udf"])
def test_times_of_a_udf_are_utc_however_deep(name: str) -> None:
    (first, *_) = results(LOCAL_PROGRAMS[name], "America/New_York")
    assert first.value is not None
    given = first.value.decode().partition("), (datetime.datetime(1970")[0]
    assert given.count("10, 7, 30, 0, 1)") + given.count("10 07:30:00.000001") == 8


def test_a_time_by_record_and_a_topic_by_record_see_utc() -> None:
    def hour_of(value: Any) -> str:
        return f"hour-{dt.datetime.fromtimestamp(0).hour}-{value['t'].hour}"

    with local_time("Asia/Kolkata"):
        builder = StreamsBuilder()
        stream = builder.stream(
            "in",
            key=TEXT,
            value=LOCAL_VALUE,
            timestamp=lambda value: dt.datetime.fromtimestamp(3_600).hour * 1_000,
        )
        stream.to(lambda key, value: hour_of(value), value=LOCAL_VALUE)
        with TopologyTestDriver(builder.build()) as driver:
            driver.create_input_topic("in", TEXT, LOCAL_VALUE).pipe_input("k", ROW)
            (record,) = driver.create_output_topic("hour-0-7", TEXT, LOCAL_VALUE).read_records()
    assert record.timestamp == 1_000


def test_the_process_keeps_its_own_zone() -> None:
    with local_time("Asia/Kolkata"):
        with in_utc():
            assert time.localtime(0).tm_hour == 0
            with in_utc():
                pass
            assert time.localtime(0).tm_hour == 0
        assert (time.localtime(0).tm_hour, os.environ["TZ"]) == (5, "Asia/Kolkata")


@pytest.mark.parametrize(
    "condition",
    [
        lambda: F.col("value.t") == NAIVE,
        lambda: F.col("value.t").isin(NAIVE, AT),
        lambda: F.array_contains("value.l", F.lit(NAIVE)),
        lambda: F.element_at(F.lit([NAIVE]), 1) > F.col("value.t"),
    ],
)
def test_a_constant_without_a_zone_is_refused_where_it_shifts(condition: Callable[[], Any]) -> None:
    def built() -> None:
        StreamsBuilder().stream("in", key=TEXT, value=LOCAL_VALUE).filter(condition())

    with local_time("America/New_York"), pytest.raises(TopologyError, match=r"tzinfo=") as raised:
        built()
    assert "datetime(2024, 3, 10, 7, 30, 0, 1)" in str(raised.value)
    with local_time("UTC"):
        built()


@pytest.fixture(params=["tr", "az", "lt"])
def language(request: pytest.FixtureRequest) -> Iterator[str]:
    session = get_session()
    jvm: Any = session._jvm
    locale = jvm.java.util.Locale
    before = locale.getDefault()
    try:
        locale.setDefault(locale.forLanguageTag(request.param))
        note_letters(session)
        yield request.param
        assert locale.getDefault().getLanguage() == request.param
    finally:
        locale.setDefault(before)
        note_letters(session)


BY_LANGUAGE: dict[str, Callable[[KStream], Any]] = {
    "upper": lambda s: s.map_values(F.upper("value")),
    "lower": lambda s: s.filter(F.length(F.lower("value")) > 1),
    "initcap": lambda s: s.select_key(F.initcap("value")),
    "ilike": lambda s: s.filter(F.col("value").ilike("éi")),
    "SQL": lambda s: s.map_values(F.expr("struct(concat('a', ucase(value)) as a)")),
    "an aggregate": lambda s: s.group_by_key().aggregate(store="s", n=agg.max(F.lcase("value"))),
}


def test_what_goes_by_the_language_is_refused_and_the_rest_is_not(language: str) -> None:
    for place in BY_LANGUAGE.values():
        with pytest.raises(TopologyError, match=r"user\.language=en") as raised:
            place(StreamsBuilder().stream("in", key=TEXT, value=TEXT))
        assert repr(language) in str(raised.value)
        assert raised.value.where is not None
    StreamsBuilder().stream("in", key=TEXT, value=TEXT).map_values(F.reverse("value"))


def test_elsewhere_nothing_is_refused() -> None:
    assert letters_of() == ""
    for place in BY_LANGUAGE.values():
        place(StreamsBuilder().stream("in", key=TEXT, value=TEXT))
