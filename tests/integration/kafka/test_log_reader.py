"""Exact ranges: aborted records are left out, tails of markers are read to their end, nothing waits for ever."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.log_reader import LogChunk, LogReader, LogStartMovedError
from everflow.kafka.producer import RecordWriter, fence
from everflow.records import TopicPartition
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


@pytest.fixture
def log(bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str) -> TopicPartition:
    """Offsets: 0-2 committed, 3 marker, 4-5 aborted, 6 marker, 7-9 committed, 10 marker, 11-12 aborted, 13 marker."""
    tp = TopicPartition(topic(1), 0)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    for keep, values in ((True, [b"a", b"b", None]), (False, [b"x", b"x"]), (True, [b"c", b"d", b"e"]), (False, [b"x", b"x"])):
        writer.begin()
        keys = [b"k%d" % i for i in range(len(values))]
        writer.write(tp.topic, keys, values, np.arange(len(values), dtype=np.int64) + 1000, 0)
        writer.flush(10)
        if keep:
            writer.commit(10)
        else:
            writer.abort()
    writer.close()
    # A transaction has ended for its producer before its markers are in every log (KAFKA-10167).
    wait_until(lambda: admin.end_offsets([tp], "read_committed")[tp] == 14, 10, "the last marker")
    return tp


def values(chunks: list[LogChunk]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.values]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 14, [b"a", b"b", None, b"c", b"d", b"e"]),
        (1, 9, [b"b", None, b"c", b"d"]),
        (0, 5, [b"a", b"b", None]),
        (3, 7, []),
        (11, 14, []),
        (13, 14, []),
        (9, 11, [b"e"]),
        (5, 5, None),
    ],
)
def test_exact_ranges(bootstrap: str, log: TopicPartition, start: int, end: int, expected: list[bytes | None] | None) -> None:
    with LogReader({"bootstrap.servers": bootstrap}) as reader:
        chunks = list(reader.read(log, start, end, stall_timeout_s=10))
        assert values(chunks) == (expected or [])
        if expected is None:
            assert chunks == []
        else:
            assert chunks[-1].next_position == end
        # The reader goes on with another range of the same partition.
        assert values(list(reader.read(log, 0, 3))) == [b"a", b"b", None]


def test_chunks_are_bounded_and_lose_nothing(bootstrap: str, topic: Topic) -> None:
    tp = TopicPartition(topic(1), 0)
    count = 20_000
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    writer.begin()
    keys = [b"%08d" % i for i in range(count)]
    writer.write(tp.topic, keys, [b"v" * 92] * count, np.arange(count, dtype=np.int64), 0, track=True)
    writer.flush(30)
    assert writer.positions() == {tp: count}
    with LogReader({"bootstrap.servers": bootstrap}) as reader:
        chunks = list(reader.read(tp, 0, count, chunk_bytes=200_000))
    assert [key for chunk in chunks for key in chunk.keys] == keys
    # 0 is "now" to librdkafka, so the writer makes it 1.
    at = np.concatenate([chunk.timestamps for chunk in chunks])
    assert np.array_equal(at, np.maximum(np.arange(count), 1))
    assert len(chunks) > 5
    assert max(100 * len(chunk) for chunk in chunks) < 400_000
    assert [chunk.next_position for chunk in chunks] == np.cumsum([len(chunk) for chunk in chunks]).tolist()


def test_a_range_behind_an_open_transaction_gives_up_with_a_reason(bootstrap: str, topic: Topic, name: str) -> None:
    tp = TopicPartition(topic(1), 0)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    writer.begin()
    writer.write(tp.topic, [b"k"], [b"v"], np.zeros(1, np.int64), 0)
    writer.flush(10)
    with LogReader({"bootstrap.servers": bootstrap}) as reader, pytest.raises(RetriableError, match="still open"):
        list(reader.read(tp, 0, 1, stall_timeout_s=0.5))
    fence({"bootstrap.servers": bootstrap}, name, 10)


def test_a_log_that_starts_later_is_told_not_skipped(bootstrap: str, admin: ClusterAdmin, log: TopicPartition) -> None:
    admin.delete_records({log: 4})
    assert admin.list_offsets([log], "earliest", "read_committed")[log] == 4
    with LogReader({"bootstrap.servers": bootstrap}) as reader, pytest.raises(LogStartMovedError, match="outside the log"):
        list(reader.read(log, 0, 14, stall_timeout_s=10))
