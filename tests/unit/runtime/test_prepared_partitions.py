"""Which partitions a stream thread's job is opened for (design note 006)."""

from __future__ import annotations

import pytest

from everflow.records import TopicPartition
from everflow.runtime.wiring import PREPARED_PARTITIONS, prepared_partitions


def partitions(count: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition("in", number) for number in range(count))


@pytest.mark.parametrize(
    ("resident", "count", "all_of_them"),
    [
        # a resident step is told batch by batch what to read
        (True, PREPARED_PARTITIONS + 1, True),
        (False, PREPARED_PARTITIONS + 1, False),
        (False, PREPARED_PARTITIONS, True),
    ],
)
def test_all_partitions_unless_a_spark_job_would_have_to_be_prepared_for_too_many(
    resident: bool, count: int, all_of_them: bool
) -> None:
    found = prepared_partitions(partitions(count), resident=resident)
    assert found == (partitions(count) if all_of_them else frozenset())
