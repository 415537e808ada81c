"""Batch after batch of exact ranges: markers, gaps, records fetched ahead, going back after a failure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.producer import RecordWriter
from everflow.kafka.range_reader import RangeReader
from everflow.records import OffsetRange, TopicPartition
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


@pytest.fixture
def log(bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str) -> list[TopicPartition]:
    """Two partitions, each: 0-2 committed, 3 marker, 4-5 aborted, 6 marker, 7-9 committed, 10 marker."""
    both = [TopicPartition(topic(2), 0)]
    both.append(TopicPartition(both[0].topic, 1))
    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    for keep, values in ((True, [b"a", b"b", b"c"]), (False, [b"x", b"x"]), (True, [b"d", b"e", None])):
        writer.begin()
        for tp in both:
            writer.write(tp.topic, [b"k"] * len(values), values, np.arange(len(values), dtype=np.int64) + 1000, tp.partition)
        writer.flush(10)
        if keep:
            writer.commit(10)
        else:
            writer.abort()
    writer.close()
    for tp in both:
        wait_until(lambda tp=tp: admin.end_offsets([tp], "read_committed")[tp] == 11, 10, "the last marker")  # type: ignore[misc]
    return both


def values_of(read: dict, tp: TopicPartition) -> list[bytes | None]:  # type: ignore[type-arg]
    return [message.value() for message in read[tp]]


def test_ranges_follow_one_another_over_markers_and_aborted_records(bootstrap: str, log: list[TopicPartition]) -> None:
    one, two = log
    reader = RangeReader({"bootstrap.servers": bootstrap}, "readers", read_committed=True)
    try:
        first = reader.read({one: OffsetRange(0, 2), two: OffsetRange(0, 0)}, 10)
        assert (values_of(first, one), values_of(first, two)) == ([b"a", b"b"], [])
        second = reader.read({one: OffsetRange(2, 8), two: OffsetRange(0, 11)}, 10)
        assert (values_of(second, one), values_of(second, two)) == ([b"c", b"d"], [b"a", b"b", b"c", b"d", b"e", None])
        third = reader.read({one: OffsetRange(8, 11), two: OffsetRange(11, 11)}, 10)
        assert (values_of(third, one), values_of(third, two)) == ([b"e", None], [])
    finally:
        reader.close()


def test_a_range_of_markers_alone_ends(bootstrap: str, log: list[TopicPartition]) -> None:
    reader = RangeReader({"bootstrap.servers": bootstrap}, "readers", read_committed=True)
    try:
        assert values_of(reader.read({log[0]: OffsetRange(3, 7)}, 10), log[0]) == []
        assert values_of(reader.read({log[0]: OffsetRange(7, 11)}, 10), log[0]) == [b"d", b"e", None]
        assert values_of(reader.read({log[0]: OffsetRange(10, 11)}, 10), log[0]) == []
    finally:
        reader.close()


def test_a_range_that_failed_is_read_again(bootstrap: str, log: list[TopicPartition]) -> None:
    reader = RangeReader({"bootstrap.servers": bootstrap}, "readers", read_committed=True)
    try:
        wanted = {log[0]: OffsetRange(1, 8)}
        assert values_of(reader.read(wanted, 10), log[0]) == [b"b", b"c", b"d"]
        assert values_of(reader.read(wanted, 10), log[0]) == [b"b", b"c", b"d"]
    finally:
        reader.close()


def test_an_end_that_does_not_exist_fails_in_time_instead_of_hanging(bootstrap: str, log: list[TopicPartition]) -> None:
    reader = RangeReader({"bootstrap.servers": bootstrap}, "readers", read_committed=True)
    try:
        with pytest.raises(RetriableError, match="to 50"):
            reader.read({log[0]: OffsetRange(7, 50)}, 1.0)
    finally:
        reader.close()
