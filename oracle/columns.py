"""Compares Arrow expressions of Columns with Spark's code in the JVM and with Spark jobs.

A case is a drawn Column over a drawn batch. Where a Column has an Arrow expression, and this does
not leave the batch to Spark, all three have to give the same, to the bit: NaN is NaN, -0.0 is not
0.0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from everflow.columns.computation import ArrowExpression, LeftToSpark
from everflow.spark.columns import computed, empty_frame, struct_type
from everflow.spark.expressions import analyse, spark_type
from everflow.topology.graph import ColumnExpr, EdgeType
from everflow.worker.columns import ColumnClient, ColumnsFailed
from oracle.expressions import VALUE, Drawing

TOGETHER = 40
"""Columns of one frame: each frame is a plan, a compilation and a job."""
ROWS = 24
_EDGE = EdgeType(pa.string(), VALUE)


@dataclass
class Report:
    """What became of the cases."""

    seed: int
    cases: int = 0
    equal: int = 0
    left_to_spark: int = 0
    without_arrow: Counter[str] = field(default_factory=Counter)
    differing: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether no case differs."""
        return not self.differing

    @property
    def operators(self) -> list[str]:
        """What was compared."""
        return ["columns"]

    def said(self) -> str:
        """What became of the cases, in lines."""
        without = sum(self.without_arrow.values())
        lines = [
            f"{self.equal} equal, {self.left_to_spark} left to Spark by Arrow, {without} "
            f"without an Arrow expression, {len(self.differing)} differ"
        ]
        lines += [
            f"  no Arrow expression: {why} ({count})"
            for why, count in self.without_arrow.most_common(8)
        ]
        return "\n".join(lines)

    def more(self) -> dict[str, object]:
        """What the figures of this comparison alone are."""
        return {"left_to_spark": self.left_to_spark, "without_arrow": dict(self.without_arrow)}


@dataclass(frozen=True)
class _Case:
    text: str
    expression: ColumnExpr
    arrow: ArrowExpression
    made: pa.Array


def compare(session: SparkSession, cases: int, seed: int) -> Iterator[Report]:
    """The report so far, after each frame of Columns."""
    drawing, report = Drawing(seed), Report(seed)
    while report.cases < cases:
        rows = _rows(drawing)
        count = min(TOGETHER, cases - report.cases)
        drawn = [_case(drawing.column(), rows, report) for _ in range(count)]
        report.cases += count
        found = [case for case in drawn if case is not None]
        if found:
            _judge(session, found, rows, report)
        yield report


def _rows(drawing: Drawing) -> pa.RecordBatch:
    value = drawing.rows(ROWS)
    key = pa.array([None if row % 5 == 0 else f"k{row}" for row in range(ROWS)], pa.string())
    return pa.RecordBatch.from_arrays([key, value], ["key", "value"])


def _case(text: str, rows: pa.RecordBatch, report: Report) -> _Case | None:
    expression = analyse(F.expr(text), _EDGE, None)
    arrow = expression.arrow
    if arrow is None:
        report.without_arrow[expression.why] += 1
        return None
    try:
        made = arrow.run([rows.column(name) for name in arrow.reads.names], ROWS)
    except LeftToSpark:
        report.left_to_spark += 1
        return None
    return _Case(text, expression, arrow, made)


def _judge(
    session: SparkSession, cases: Sequence[_Case], rows: pa.RecordBatch, report: Report
) -> None:
    """By both of Spark's roads; where they cannot compute all Columns together, one by one."""
    try:
        services, jobs = _by_service(session, cases, rows), _by_job(session, cases, rows)
    except (ColumnsFailed, PySparkException) as error:
        if len(cases) > 1:
            for case in cases:
                _judge(session, [case], rows, report)
            return
        said = str(error).splitlines()[0]
        report.differing.append(
            f"{cases[0].text}: Spark fails where the Arrow expression does not: {said}"
        )
        return
    for case, service, job in zip(cases, services, jobs, strict=True):
        texts = [list(map(repr, made.to_pylist())) for made in (case.made, service, job)]
        different = [row for row in range(ROWS) if len({said[row] for said in texts}) > 1]
        if not different:
            report.equal += 1
            continue
        row = different[0]
        arrow, in_jvm, in_job = (said[row] for said in texts)
        report.differing.append(
            f"{case.text}: arrow {arrow}, Spark {in_jvm}, job {in_job} "
            f"for {rows.slice(row, 1).to_pylist()}"
        )


def _selected(frame: DataFrame, cases: Sequence[_Case]) -> DataFrame:
    return frame.select(
        *[
            F.expr(case.text).cast(spark_type(case.expression.type)).alias(f"c{at}")
            for at, case in enumerate(cases)
        ]
    )


def _by_service(
    session: SparkSession, cases: Sequence[_Case], rows: pa.RecordBatch
) -> list[pa.Array]:
    made = pa.schema([(f"c{at}", case.expression.type) for at, case in enumerate(cases)])
    path, number = computed(_selected(empty_frame(session, struct_type(rows.schema)), cases))
    with closing(ColumnClient(path)) as client:
        return _arrays(client.run(number, rows, made))


def _by_job(session: SparkSession, cases: Sequence[_Case], rows: pa.RecordBatch) -> list[pa.Array]:
    frame = session.createDataFrame(pa.Table.from_batches([rows]), struct_type(rows.schema))
    return _arrays(_selected(frame.coalesce(1), cases).toArrow())


def _arrays(table: pa.Table) -> list[pa.Array]:
    return [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        for column in table.columns
    ]
