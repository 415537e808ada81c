"""Many logs followed at once: aborted records are left out, nothing beyond the stable end, a log
that begins later is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading.copy_follower import CopyFollower
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


@pytest.fixture
def follower(bootstrap: str) -> Iterator[CopyFollower]:
    found = CopyFollower({"bootstrap.servers": bootstrap})
    yield found
    found.close()


def put(writer: RecordWriter, tp: TopicPartition, *values: bytes) -> None:
    writer.write(
        tp.topic,
        [b"k"] * len(values),
        list(values),
        np.arange(len(values), dtype=np.int64),
        tp.partition,
    )
    writer.flush(10)


def test_rounds_follow_the_stable_ends(
    bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str, follower: CopyFollower
) -> None:
    made = topic(3)
    one, two, other = (TopicPartition(made, p) for p in range(3))
    seen: dict[TopicPartition, list[bytes | None]] = {one: [], two: [], other: []}

    def moved(**ends: int) -> bool:
        for tp, chunk in follower.poll(1_000, 0, {}, 0.05).chunks.items():
            seen[tp] += chunk.values
        wanted = {one: ends.get("one"), two: ends.get("two"), other: ends.get("other")}
        return all(end is None or follower.positions.get(tp) == end for tp, end in wanted.items())

    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    writer.begin()
    put(writer, one, b"a", b"b")
    put(writer, two, b"x")
    writer.commit(10)
    follower.follow({one: 1, two: 0})
    wait_until(
        lambda: moved(one=3, two=2),
        10,
        "both ends, the markers included",
        lambda: [seen, follower.positions],
    )
    assert seen == {one: [b"b"], two: [b"x"], other: []}

    writer.begin()
    put(writer, one, b"open")
    follower.follow({other: 0})
    follower.unfollow([two])
    follower.poll(1_000, 0, {}, 0.3)
    assert follower.positions == {one: 3, other: 0}, (
        "records of an open transaction are not there yet"
    )
    writer.abort()
    writer.begin()
    put(writer, one, b"c")
    put(writer, other, b"d")
    put(writer, two, b"unheard")
    writer.commit(10)
    writer.close()
    wait_until(
        lambda: moved(one=7, other=2),
        10,
        "the end behind an aborted record",
        lambda: [seen, follower.positions],
    )
    assert seen == {one: [b"b", b"c"], two: [b"x"], other: [b"d"]}

    admin.delete_records({two: 3})
    follower.follow({two: 0})
    gone = wait_until(
        lambda: follower.poll(1_000, 0, {}, 0.05).gone, 10, "the end of a log that was cut"
    )
    assert list(gone) == [two]
