"""Columns that call functions: a resident step gives what a DataFrame's select gives, the truth."""

import datetime as dt
import decimal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as st

from contracts.test_resident_contract import Record, by_worker, decoded, planned
from everflow import KStream, StreamsBuilder, agg, serdes
from everflow.instance.thread.columns import ColumnsOfPlan, prepared_columns
from everflow.records import EdgeBatch
from everflow.spark.session import get_session
from everflow.topology.plan import PhysicalPlan
from everflow.travel.pickled_objects import PickledObjects
from everflow.worker.columns import seen
from everflow.worker.failures import RecordFailure, SparkSays

pytestmark = pytest.mark.spark

Rows = Sequence[tuple[bytes | None, bytes | None]]
Decorator = Callable[[st.DataType], Callable[[Callable[..., Any]], Callable[..., Column]]]
pandas_udf: Decorator = vars(F)["pandas_udf"]
arrow_udf: Decorator = vars(F)["arrow_udf"]

VALUE = serdes.json(
    "a bigint, b struct<c: double>, s string, at timestamp, d date, l array<int>, n decimal(9,2), "
    "m map<string,double>, o boolean"
)
ROWS: Rows = [
    (
        b"k",
        b'{"a": 1, "b": {"c": 2.5}, "s": "stra\xc3\x9fe", "at": "2026-01-02T03:04:05.5Z", "n": 1.25'
        b', "m": {"x": 1.5}, "o": true}',
    ),
    (None, b'{"a": null, "b": null, "s": null}'),
    (b"", b'{"a": -3, "b": {"c": null}, "s": "", "d": "1970-01-01", "l": [1, null], "m": {}}'),
    (b"bad", b"{broken"),
    (b"l", b'{"a": 9007199254740993, "s": "x", "l": [], "o": false, "n": -99.5}'),
]


@pandas_udf(st.DoubleType())
def product(one: pd.Series, other: pd.Series) -> pd.Series:
    return one * other


@pandas_udf(st.StringType())
def dtype(series: pd.Series) -> pd.Series:
    return pd.Series([f"{series.dtype} {value!r}" for value in series])


@pandas_udf(st.StructType().add("a", "long").add("t", "string"))
def struct_of(frame: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"t": frame["c"].astype(str), "a": range(len(frame))})


@pandas_udf(st.LongType())
def plus_one(series: pd.Series) -> pd.Series:
    return series + 1


@pandas_udf(st.DoubleType())
def halves(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for series in batches:
        yield series / 2


@arrow_udf(st.LongType())
def arrow_plus(one: pa.Array) -> pa.Array:
    return pc.add(one, 1)


@arrow_udf(st.IntegerType())
def lengths(items: pa.Array) -> pa.Array:
    return pc.list_value_length(items)


@F.udf(st.StringType(), useArrow=True)
def shown(*values: object) -> str:
    return " ".join(f"{type(value).__name__} {value!r}" for value in values)


@F.udf(st.LongType(), useArrow=True)
def wrong_type(value: object) -> object:
    return value


NESTED = (
    st.StructType()
    .add("at", st.TimestampType())
    .add("d", st.DateType())
    .add("n", st.DecimalType(9, 2))
    .add("l", st.ArrayType(st.IntegerType()))
    .add("m", st.MapType(st.StringType(), st.IntegerType()))
)


@F.udf(NESTED, useArrow=True)
def nested(at: dt.datetime | None) -> Any:
    return at, dt.date(2026, 1, 2), decimal.Decimal("1.5"), [1, None], {"a": 1}


@F.udf(st.LongType(), useArrow=True)
def no_argument() -> int:
    return 7


def pickled(function: Any) -> Callable[..., Column]:
    """As ``F.udf`` makes it before there is a session."""
    made: Callable[..., Column] = F.udf(function.func, function.returnType, useArrow=False)
    return made


COLUMNS: dict[str, Callable[[], Column]] = {
    "pickled": lambda: pickled(shown)(
        "value.a", "value.s", "value.at", "value.d", "value.n", "value.o"
    ),
    "pickled nested in": lambda: pickled(shown)("value.b", "value.l", "value.m", "value", "key"),
    "pickled nested out": lambda: pickled(nested)("value.at"),
    "pickled and chained": lambda: F.concat(
        pickled(shown)(pickled(shown)("value.s")), shown(pickled(shown)("offset"))
    ),
    "two pickled": lambda: F.struct(
        pickled(shown)("key").alias("x"), pickled(wrong_type)("value.a").alias("y")
    ),
    "pickled without argument": lambda: pickled(no_argument)() + F.col("offset"),
    "pickled of another type is null": lambda: pickled(wrong_type)("value.s"),
    "series": lambda: product("value.b.c", F.col("value.a").cast("double")),
    "of series": lambda: dtype("value.a"),
    "of text": lambda: dtype("value.s"),
    "of time": lambda: dtype("value.at"),
    "of dates": lambda: dtype("value.d"),
    "of arrays": lambda: dtype("value.l"),
    "of truth": lambda: dtype("value.o"),
    "of decimals": lambda: dtype("value.n"),
    "frame": lambda: struct_of("value.b"),
    "by name": lambda: product(other="value.b.c", one=F.col("offset").cast("double")),
    "chained": lambda: plus_one(plus_one(plus_one("offset"))),
    "two kinds": lambda: arrow_plus(plus_one("offset")) + plus_one(arrow_plus("timestamp")),
    "in an expression": lambda: F.upper(
        F.concat_ws("-", shown("value.s"), "topic", arrow_plus(F.col("value.a") % 10))
    ),
    "iterator": lambda: halves(F.col("offset").cast("double")),
    "arrow": lambda: arrow_plus("value.a"),
    "arrow arrays": lambda: lengths("value.l"),
    "record": lambda: shown("value.a", "value.s", "value.at", "value.d", "value.n", "value.o"),
    "nested in": lambda: shown("value.b", "value.l", "value.m", "value", "key"),
    "nested out": lambda: nested("value.at"),
    "no argument": lambda: no_argument() + F.col("offset"),
    "guarded": lambda: F.when(F.col("value.a") > 0, shown("value.s")),
    "twice the same": lambda: F.struct(
        shown("value.s").alias("x"), F.length(shown("value.s")).alias("y")
    ),
    "coerced": lambda: wrong_type(F.col("value.b.c")),
}


@pytest.fixture(autouse=True)
def _started(spark: SparkSession) -> None:
    """Columns are made in it."""


class Run:
    """A program's Columns over records; what the last of them makes."""

    def __init__(self, program: Callable[[KStream], object]) -> None:
        def build(builder: StreamsBuilder) -> None:
            program(builder.stream("in", key=serdes.string(), value=VALUE))

        self.plan = planned(build)
        columns: ColumnsOfPlan = PickledObjects.of(
            prepared_columns(self.plan)
        ).copy()  # as a worker has it
        self._columns, self._path = columns.prepared, columns.path

    def __call__(self, rows: Rows) -> dict[int, EdgeBatch]:
        return by_worker(self.plan, self._columns, self._path, given(self.plan, rows))

    def made(self, rows: Rows) -> EdgeBatch:
        return self(rows)[self.plan.columns[-1].outputs[-1]]


def given(plan: PhysicalPlan, rows: Rows) -> dict[int, EdgeBatch]:
    records = [
        Record(("in", 0, 10 + row), data, 1_000 * row, [("h", b"%d" % row)] if row % 2 else [])
        for row, data in enumerate(rows)
    ]
    return decoded(plan, records).batches


def frame_of(plan: PhysicalPlan) -> Any:
    """The same records as a DataFrame."""
    batch = given(plan, ROWS)[plan.sources[0].slot]
    names = ("key", "value", "timestamp", "topic", "partition", "offset")
    kinds = (batch.key.type, batch.value.type, pa.int64(), pa.string(), pa.int32(), pa.int64())
    reads = pa.schema(list(zip(names, kinds, strict=True)))
    arrays = seen(batch, reads, plan.sources)
    frame = get_session().createDataFrame(pa.Table.from_arrays(arrays, schema=reads))
    return frame.coalesce(1)


def ignored(key: object, value: object) -> None:
    """Takes a stream's end."""


def mapped(column: Callable[[], Column]) -> Run:
    return Run(lambda stream: stream.map_values(column()).for_each(ignored))


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_with_functions_is_what_a_data_frame_makes_of_it(name: str) -> None:
    run = mapped(COLUMNS[name])
    expected = frame_of(run.plan).select(COLUMNS[name]().alias("made")).toArrow()["made"]
    found = run.made(ROWS).value
    assert repr(found.to_pylist()) == repr(expected.to_pylist())
    assert found.type == run.plan.slots[run.plan.columns[-1].outputs[-1]].type.value


def test_a_predicate_and_a_key() -> None:
    run = Run(
        lambda stream: (
            stream.filter(plus_one("value.a") > 0)
            .map(key=shown("key"), value=F.struct(arrow_plus("value.a").alias("a")))
            .map_values(F.col("value.a") * 10)
            .for_each(ignored)
        )
    )
    made = run.made(ROWS)
    assert made.key.to_pylist() == ["str 'k'", "str 'l'"]
    assert made.value.to_pylist() == [20, 90071992547409940]
    assert made.offset.tolist() == [10, 14]


@F.udf(st.LongType(), useArrow=True)
def only_positive(value: int | None) -> int:
    assert value, value
    return 100 // (value - 7) if value > 0 else int("negative")


def test_functions_see_the_records_that_reach_them_and_no_others() -> None:
    run = Run(
        lambda stream: (
            stream.filter(F.col("value.a") > 0)
            .map_values(only_positive("value.a"))
            .for_each(ignored)
        )
    )
    assert run.made(ROWS).value.to_pylist() == [-17, 0]
    assert len(run.made(ROWS[1:3])) == 0
    assert run.made(ROWS[1:3]).value.type == pa.int64()


def test_a_table_s_deleted_keys_are_no_arguments() -> None:
    plan = planned(
        lambda builder: (
            builder.stream("in", key=serdes.string(), value=VALUE)
            .to_table(store="t")
            .map_values(only_positive("value.a"))
            .to_stream()
            .for_each(ignored)
        )
    )
    found = prepared_columns(plan)
    op = plan.columns[0]
    records = given(plan, [(b"k", b'{"a": 9}'), (b"k", None), (b"l", b'{"a": 8}')])
    records[op.input] = records[plan.sources[0].slot]
    made = by_worker(plan, found.prepared, found.path, records)[op.outputs[0]]
    assert made.value.to_pylist() == [50, None, 100]
    assert made.key.to_pylist() == ["k", "k", "l"]


@pandas_udf(st.LongType())
def refuses_seven(series: pd.Series) -> pd.Series:
    if (series == 7).any():
        raise ValueError("seven came")
    return series


@pandas_udf(st.LongType())
def too_short(series: pd.Series) -> pd.Series:
    return series[:1]


SEVENTH = [(b"k", b'{"a": %d}' % a) for a in (1, 2, 3, 8, 7, 9, 7, 1)]


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (lambda: refuses_seven("value.a"), "ValueError: seven came"),
        (lambda: plus_one(only_positive("value.a")), "ZeroDivisionError"),
        (lambda: pickled(only_positive)("value.a"), "ZeroDivisionError"),
    ],
)
def test_a_failing_function_names_record_and_line(column: Callable[[], Column], says: str) -> None:
    with pytest.raises(RecordFailure) as failed:
        mapped(column)(SEVENTH)
    failure = failed.value.failure
    assert failure.kind == "record"
    assert says in failure.error
    assert failure.record is not None
    assert failure.record.place == ("in", 0, 14)
    assert failure.line is not None
    assert failure.line.file == __file__
    assert failure.where[0].startswith(__file__)


def test_a_function_that_fails_with_no_record_alone_says_so() -> None:
    run = mapped(lambda: too_short("value.a"))
    with pytest.raises(PySparkException, match="1"):
        frame_of(run.plan).select(too_short("value.a")).toArrow()
    with pytest.raises(RecordFailure) as failed:
        run(SEVENTH)
    failure = failed.value.failure
    assert (failure.kind, failure.record) == ("other", None)
    assert "_MISMATCH" in failure.error  # of the schema in Spark 4.2, of the rows in 4.3
    assert failure.where[0].startswith(__file__)


def test_a_column_that_fails_before_a_function_names_its_record() -> None:
    run = mapped(lambda: plus_one(F.lit(1) / (F.col("value.a") - 7)))
    with pytest.raises(SparkSays) as failed:
        run(SEVENTH)
    record = failed.value.failure.record
    assert record is not None
    assert record.place == ("in", 0, 14)
    assert "DIVIDE_BY_ZERO" in failed.value.failure.error


WRONG: dict[str, Callable[[], Column]] = {
    "text for a number": lambda: pandas_udf(st.LongType())(lambda series: series.astype(str) + "x")(
        "value.s"
    ),
    "text by record": lambda: wrong_type("value.s"),
    "truth for a number": lambda: wrong_type("value.o"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_result_that_does_not_fit_fails_in_both_places(name: str) -> None:
    run = mapped(WRONG[name])
    with pytest.raises(PySparkException):
        frame_of(run.plan).select(WRONG[name]()).toArrow()
    with pytest.raises(RecordFailure) as failed:
        run(ROWS)
    assert failed.value.failure.record is not None


def test_many_records_are_many_slices() -> None:
    rows = [(b"k", b'{"a": %d}' % a) for a in range(25_000)]
    made = mapped(lambda: plus_one(arrow_plus("value.a"))).made(rows)
    assert made.value.to_pylist() == list(range(2, 25_002))
    made = mapped(lambda: pickled(wrong_type)("value.a")).made(rows)
    assert made.value.to_pylist() == list(range(25_000))
    assert (
        mapped(lambda: halves(F.col("value.a").cast("double"))).made(rows).value[-1].as_py()
        == 12_499.5
    )


def test_an_aggregate_of_what_functions_make() -> None:
    plan = planned(
        lambda builder: (
            builder.stream("in", key=serdes.string(), value=VALUE)
            .group_by_key()
            .aggregate(total=agg.sum(only_positive("value.a")), store="s")
        )
    )
    found = prepared_columns(plan)
    rows = [(b"k", b'{"a": 9}'), (b"k", None), (b"k", b'{"a": 8}')]
    records = by_worker(plan, found.prepared, found.path, given(plan, rows))
    (slot,) = plan.stateful[0].inputs
    assert [row and list(row.values()) for row in records[slot].value.to_pylist()] == [
        [50],
        None,
        [100],
    ]
