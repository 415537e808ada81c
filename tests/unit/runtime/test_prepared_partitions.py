"""Which partitions a stream thread's job is opened for (design note 006)."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.records import TopicPartition
from everflow.runtime.wiring import PREPARED_PARTITIONS, prepared_partitions
from everflow.topology.physical_plan import PhysicalPlan
from everflow.topology.plan import plan
from everflow.topology.subtopologies import cut

pytestmark = pytest.mark.spark


def planned(*, with_column: bool) -> PhysicalPlan:
    builder = StreamsBuilder()
    stream = builder.stream("in", key=serdes.string(), value=serdes.string())
    (stream.filter(F.col("value") != "x") if with_column else stream).to("out")
    topology = builder.build()
    return plan(topology, cut(topology).index_of, "app")


def partitions(count: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("in", number) for number in range(count))


@pytest.mark.parametrize(
    ("with_column", "resident_records", "count", "all_of_them"),
    [
        (
            False,
            10_000_000,
            PREPARED_PARTITIONS + 1,
            True,
        ),  # a resident step is told batch by batch what to read
        (False, 0, PREPARED_PARTITIONS + 1, False),
        (True, 10_000_000, PREPARED_PARTITIONS + 1, False),
        (True, 10_000_000, PREPARED_PARTITIONS, True),
    ],
)
def test_all_partitions_unless_a_spark_job_would_have_to_be_prepared_for_too_many(
    with_column: bool, resident_records: int, count: int, all_of_them: bool
) -> None:
    found = prepared_partitions(
        planned(with_column=with_column), partitions(count), resident_records
    )
    assert found == (partitions(count) if all_of_them else frozenset())
