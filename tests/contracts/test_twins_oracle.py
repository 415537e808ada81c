"""The Arrow twins of Columns are what Spark is; and what holds them to it sees where they are not.

A slice of `./run oracle columns`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from everflow.columns import kernels
from oracle.columns import Report, compare

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


def test_twins_are_what_spark_is(spark: SparkSession) -> None:
    report = last(compare(spark, 240, 17))
    assert report.differing == []
    assert report.equal > 140, report


@pytest.mark.parametrize("kernel", MUTATIONS)
def test_a_wrong_twin_is_seen(
    spark: SparkSession, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "KERNELS", {**kernels.KERNELS, kernel: MUTATIONS[kernel]})
    monkeypatch.setattr("everflow.columns.computation.KERNELS", kernels.KERNELS)
    assert any(report.differing for report in compare(spark, WITHIN, 3)), "nothing was seen"


def test_where_arrow_is_not_sure_spark_is_asked() -> None:
    with pytest.raises(kernels.InexactError):
        kernels.KERNELS["upper"](pa.array(["straße"]))
    with pytest.raises(pa.ArrowInvalid):
        kernels.KERNELS["add"](pa.array([2**63 - 1]), pa.array([1]))
