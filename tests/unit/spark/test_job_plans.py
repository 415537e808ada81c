"""What Spark makes of the segments of a job per batch (note 038): what a user wrote once is
computed once a record, and no row is dropped by a filter that the optimiser could push below."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bench.apps.topic_names import INPUT_TOPIC_VARIABLE, OUTPUT_TOPIC_VARIABLE
from bench.programs import topologies
from bench.programs.catalogue import PROGRAMS
from everflow import StreamsBuilder, Topology, agg, serdes
from everflow.runtime.thread.road import job_stages, whole_job
from everflow.runtime.thread.thread_job import WholeJobs
from everflow.spark.column_service import empty_frame
from everflow.spark.segments import hop_out_of_step, segment, spark_schema
from everflow.topology.physical_plan import PhysicalPlan
from everflow.topology.plan import plan
from everflow.topology.subtopologies import cut

ALONE_IN_ITS_WORKER = set(PROGRAMS) - {"invoices"}


@pytest.fixture(autouse=True)
def topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INPUT_TOPIC_VARIABLE, "in")
    monkeypatch.setenv(OUTPUT_TOPIC_VARIABLE, "out")


def planned(topology: Topology) -> PhysicalPlan:
    return plan(topology, cut(topology).index_of, "app")


def program(name: str) -> PhysicalPlan:
    return planned(getattr(topologies, name)().build())


def parsed() -> PhysicalPlan:
    """Its parser's fields are read by a filter, a key, a value and an aggregate."""
    value = F.col("value")
    builder = StreamsBuilder()
    (
        builder.stream("in", key=serdes.string(), value=serdes.string())
        .map_values(F.from_json("value", "a bigint, b string, c double"))
        .filter((value["a"] > 0) & value["b"].isNotNull())
        .select_key(value["b"])
        .map_values(x=F.upper(value["b"]), y=value["c"] * value["a"])
        .group_by_key(name="by-b")
        .aggregate(n=agg.count(), y=agg.sum("value.y"), store="sums")
        .to_stream()
        .filter(value["y"] > 1)
        .to("out")
    )
    return planned(builder.build())


def executed(session: SparkSession, found: PhysicalPlan) -> Iterator[str]:
    """What Spark runs between the workers of a job."""
    for level in range(found.levels):
        rows = empty_frame(session, spark_schema(hop_out_of_step(found, level - 1)))
        yield segment(rows, found, level)._jdf.queryExecution().executedPlan().toString()


@pytest.mark.spark
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_source_is_parsed_and_no_row_is_dropped_in_a_segment(
    spark: SparkSession, name: str
) -> None:
    for text in executed(spark, program(name)):
        assert "from_json(" not in text
        assert "Filter" not in text


@pytest.mark.spark
def test_a_parser_of_the_user_stands_once_in_the_plan(spark: SparkSession) -> None:
    found = list(executed(spark, parsed()))
    assert [text.count("from_json(") for text in found] == [1, *[0] * (len(found) - 1)]
    assert all("Filter" not in text for text in found)


@pytest.mark.parametrize("name", sorted(ALONE_IN_ITS_WORKER))
def test_a_job_whose_columns_arrow_computes_is_one_task_of_one_worker(name: str) -> None:
    found = program(name)
    assert job_stages(found).ends == (found.levels - 1,)
    assert list(job_stages(found).levels()) == [(-1, found.levels - 1)]


def test_a_job_is_cut_only_where_spark_computes() -> None:
    found = parsed()
    assert job_stages(found).ends == (-1, found.levels - 1)
    assert list(job_stages(found).levels()) == [(-1, -1), (0, found.levels - 1)]
    assert whole_job(found).ends == tuple(range(-1, found.levels))


def test_what_arrow_leaves_again_and_again_goes_to_spark_at_once() -> None:
    """After one batch the next one, then two, four, ..., 64 at most."""
    whole, straight = WholeJobs(), []
    for _ in range(12):
        straight.append(whole.next())
        if not straight[-1]:
            whole.one()
    assert straight == [False, True, False, True, True, False, *[True] * 4, False, True]
    while whole.next():
        pass
    whole.none()
    whole.one()
    assert [whole.next() for _ in range(2)] == [True, False]
