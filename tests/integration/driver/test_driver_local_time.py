"""What comes out does not depend on the machine: Python functions of every kind see UTC, and so do
Columns; what goes by the small and capital letters of a language is refused."""

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

from everflow import Processor, StreamsBuilder, TopologyError, agg, serdes
from everflow.clock import in_utc
from everflow.dsl.streams import KStream
from everflow.spark.session import get_session, letters_of, note_letters
from everflow.testing import TopologyTestDriver
from everflow.testing.topics import TestRecord

pytestmark = pytest.mark.spark

F: Any = pyspark_functions
UTC = dt.timezone.utc
TEXT = serdes.string()
DDL = (
    "t timestamp, n timestamp_ntz, d date, s struct<t: timestamp, l: array<timestamp>>, "
    "l array<timestamp>, m map<string, timestamp>, k map<timestamp, int>, x array<struct<t: "
    "timestamp>>"
)
VALUE = serdes.json(DDL)
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


def seen(*values: Any) -> str:
    """What a function was given, and what it makes of local time."""
    local = dt.datetime.fromtimestamp(0), time.localtime(0).tm_hour, AT.astimezone().isoformat()
    return repr((values, local, time.mktime((2024, 3, 10, 2, 30, 0, 0, 0, -1))))


def of_series(*columns: Any) -> pd.Series:
    def row(column: Any, at: int) -> Any:
        one = column.iloc[at]
        return one.to_dict() if isinstance(column, pd.DataFrame) else one

    count = range(len(columns[0]))
    return pd.Series([seen(*(row(column, at) for column in columns)) for at in count])


def series_udf() -> Any:
    return F.pandas_udf(of_series, "string", F.PandasUDFType.SCALAR)


def of_series_in_turn(batches: Iterator[tuple[pd.Series, ...]]) -> Iterator[pd.Series]:
    for columns in batches:
        yield of_series(*columns)


def of_arrays(*columns: pa.Array) -> pa.Array:
    return pa.array([seen(*(one[at].as_py() for one in columns)) for at in range(len(columns[0]))])


class Sees(Processor):
    def process(self, record: Any) -> None:
        self.context.forward(record.with_value(seen(record.value)))


def fields() -> list[Any]:
    return [F.col(f"value.{name}") for name in ROW]


RETURNED = "t timestamp, l array<timestamp>, m map<string, timestamp>, s struct<t: timestamp>"


def times(at: dt.datetime) -> dict[str, Any]:
    return {"t": NAIVE, "l": [NAIVE, at], "m": {"a": NAIVE}, "s": {"t": NAIVE}}


PROGRAMS: dict[str, Callable[[KStream], Any]] = {
    "map_values": lambda s: s.map_values(seen, returns="string"),
    "aggregator": lambda s: s.group_by_key().aggregate(
        initializer=lambda: [seen()],
        aggregator=lambda k, v, found: [*found, seen(v)],
        returns="array<string>",
        store="s",
    ),
    "built-in": lambda s: s.group_by_key().aggregate(
        last=agg.max("value.t"), all=agg.collect_list("value.s"), store="s"
    ),
    "joiner": lambda s: s.join(
        s.to_table(store="t"), lambda left, right: seen(left, right), returns="string"
    ),
    "table": lambda s: s.to_table(store="t").transform_values(
        lambda k, v: seen(v), returns="string"
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
    "deduplicate": lambda s: s.deduplicate(10, by=seen, returns="string", store="s"),
    "udf": lambda s: s.map_values(F.udf(seen, "string")(*fields())),
    "pickled udf": lambda s: s.map_values(F.udf(seen, "string", useArrow=False)(*fields())),
    "udf of the whole": lambda s: s.map_values(F.udf(seen, "string")("value")),
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
        made = program(builder.stream("in", key=TEXT, value=VALUE))
        (made if isinstance(made, KStream) else made.to_stream()).to("out")
        with TopologyTestDriver(builder.build()) as driver:
            driver.create_input_topic("in", TEXT, VALUE).pipe_input("k", ROW)
            driver.create_input_topic("in", TEXT, VALUE).pipe_batch([("k", ROW), ("l", ROW)])
            assert os.environ["TZ"] == zone
            out = driver.create_output_topic("out", serdes.bytes_(), serdes.bytes_())
            return out.read_records()


@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_depends_on_the_machines_zone(name: str) -> None:
    zone = ("America/New_York", "Asia/Kolkata")[sorted(PROGRAMS).index(name) % 2]
    found = results(PROGRAMS[name], zone)
    assert found
    assert found == results(PROGRAMS[name], "UTC")
    assert not any(offset in str(found) for offset in ("-04:00", "+05:30"))


@pytest.mark.parametrize("name", ["udf", "pickled udf", "udf of the whole", "pandas_udf"])
def test_times_of_a_udf_are_utc_however_deep(name: str) -> None:
    (first, *_) = results(PROGRAMS[name], "America/New_York")
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
            value=VALUE,
            timestamp=lambda value: dt.datetime.fromtimestamp(3_600).hour * 1_000,
        )
        stream.to(lambda key, value: hour_of(value), value=VALUE)
        with TopologyTestDriver(builder.build()) as driver:
            driver.create_input_topic("in", TEXT, VALUE).pipe_input("k", ROW)
            (record,) = driver.create_output_topic("hour-0-7", TEXT, VALUE).read_records()
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
        StreamsBuilder().stream("in", key=TEXT, value=VALUE).filter(condition())

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
