"""Arrow expressions give what Spark gives, and the oracle sees where they do not.

A slice of `./run oracle columns`.
"""

import math
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from everflow.columns import computation as kernels
from everflow.columns.computation import LeftToSpark
from everflow.spark.columns import struct_type
from everflow.spark.expressions import analyse, spark_type
from everflow.topology.graph import EdgeType
from oracle.columns import Report, compare
from oracle.expressions import VALUE, Drawing

pytestmark = pytest.mark.spark

WITHIN = 500
MUTATIONS: dict[str, Callable[..., object]] = {
    "less": pc.less,  # NaN is no longer the largest
    "and": pc.and_,  # false and null is null
    "only_where": lambda live, given: given,  # a value where its condition is false
}


def last(reports: Iterator[Report]) -> Report:
    *_, report = reports
    return report


def test_arrow_expressions_are_what_spark_is(spark: SparkSession) -> None:
    report = last(compare(spark, 240, 17))
    assert report.differing == []
    assert report.equal > 140, report


@pytest.mark.parametrize(
    ("text", "computed_as_written"),
    [
        ("value.tinyint_1 + value.tinyint_2 + 1", True),
        ("1 + value.tinyint_1", True),
        ("value.double_1 * 2 * value.double_2", True),
        ("value.tinyint_1 * (value.tinyint_2 * value.tinyint_1)", True),
        # Spark: tinyint_2 * tinyint_1 * 0, which may overflow where 0 * tinyint_1 cannot.
        ("value.tinyint_2 * tinyint(0) * value.tinyint_1", False),
        ("value.tinyint_2 + (value.tinyint_1 + tinyint(1))", False),
        ("if(true, value.tinyint_2 * tinyint(0), tinyint(3)) * value.tinyint_1", False),
    ],
)
def test_a_sum_that_spark_computes_in_another_order_has_no_arrow_expression(
    spark: SparkSession, text: str, computed_as_written: bool
) -> None:
    edge = EdgeType(pa.string(), VALUE)
    assert (analyse(F.expr(text), edge, None).arrow is not None) == computed_as_written


def test_what_fails_in_spark_is_computed_also_where_nothing_uses_it(spark: SparkSession) -> None:
    text = "CAST(coalesce(value.float_1, CAST(0 AS float)) AS tinyint) IS NOT NULL"
    arrow = analyse(F.expr(text), EdgeType(pa.string(), VALUE), None).arrow
    assert arrow is not None
    values = [{**dict.fromkeys(VALUE.names), "float_1": value} for value in (3.0, math.inf)]
    arrays = {"value": pa.array(values, VALUE), "key": pa.array(["a", "b"])}
    given = [arrays[name] for name in arrow.reads.names]
    assert arrow.run([each.slice(0, 1) for each in given], 1).to_pylist() == [True]
    with pytest.raises(LeftToSpark):
        arrow.run(given, 2)


CHANGES: dict[str, Callable[[Column], Column]] = {
    "a new field": lambda value: value.withField("Z", F.lit(1)),
    "another value": lambda value: value.withField("INT_1", value["int_2"] + 1),
    "another type": lambda value: value.withField("inner", value["Inner"]["n"].cast("double")),
    "inside": lambda value: value.withField("inner.n", value["inner"]["n"] / 2),
    "several": lambda value: value.withField("a", F.lit("x")).withField("A", F.upper("key")),
    "dropped": lambda value: value.dropFields("int_1", "inner.s", "String_2"),
    "of what is made": lambda value: F.struct(value["int_1"].alias("n"), "key").withField(
        "n", F.lit(2)
    ),
    "of what may be null": lambda value: F.when(
        value["boolean_1"], F.struct(value["int_1"].alias("n"))
    ).withField("m", F.length("key")),
    "field by field": lambda value: value.withField("Z", F.lit(1))["z"],
    "whether it is null": lambda value: value.withField("Z", F.lit(1)).isNull(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_fields_are_what_spark_makes_of_them(spark: SparkSession, name: str) -> None:
    drawing, edge = Drawing(5), EdgeType(pa.string(), VALUE)
    column = CHANGES[name](F.col("value"))
    found = analyse(column, edge, None)
    arrow = found.arrow
    assert arrow is not None
    rows = pa.record_batch({"key": [None, *"abcdefghijk"] * 2, "value": drawing.rows(24)})
    made = arrow.run([rows.column(each) for each in arrow.reads.names], 24)
    frame = spark.createDataFrame(pa.Table.from_batches([rows]), struct_type(rows.schema))
    column = column.cast(spark_type(found.type))  # as whoever computes it does
    job = frame.coalesce(1).select(column.alias("made")).toArrow().column("made")
    assert list(map(repr, made.to_pylist())) == list(map(repr, job.to_pylist()))


def test_the_untranslated_is_sparks(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbles(*_: object) -> object:
        raise KeyError("in the translation")

    monkeypatch.setattr("everflow.spark.expressions._Translation", stumbles)
    found = analyse(F.expr("value.int_1 + 1"), EdgeType(pa.string(), VALUE), None)
    assert found.arrow is None
    assert "in the translation" in found.why


@pytest.mark.parametrize("kernel", MUTATIONS)
def test_a_wrong_arrow_expression_is_seen(
    spark: SparkSession, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "KERNELS", {**kernels.KERNELS, kernel: MUTATIONS[kernel]})
    assert any(report.differing for report in compare(spark, WITHIN, 3)), "nothing was seen"


def test_where_arrow_is_not_sure_spark_is_asked() -> None:
    with pytest.raises(kernels.InexactError):
        kernels.KERNELS["upper"](pa.array(["straße"]))
    with pytest.raises(pa.ArrowInvalid):
        kernels.KERNELS["add"](pa.array([2**63 - 1]), pa.array([1]))
