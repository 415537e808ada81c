"""Logs far behind in slices, without a broker: what is handed out, in which order, and that nothing waits long or goes too far."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kafka.errors as client_errors
import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from everflow.errors import LogStartMovedError, RetriableError
from everflow.kafka.reading.bulk_follower import BulkFollower
from everflow.kafka.reading.fetch_connection import Answer
from everflow.kafka.reading.log_chunk import LogChunk
from everflow.kafka.reading.record_batches import UnsupportedBatchError
from everflow.records import TopicPartition

ONE, TWO, THREE = (TopicPartition("log", partition) for partition in range(3))


def batch(base: int, values: list[bytes], magic: int = 2) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for i, value in enumerate(values):
        builder.append(i, 5, value, value, [])
    built = bytearray(builder.build())
    built[:8] = base.to_bytes(8, "big")
    built[16] = magic
    return bytes(built)


class Broker:
    """A `FetchConnection`: a fetch at an offset is answered with the bytes or the error there; None: not yet."""

    def __init__(self, logs: Mapping[TopicPartition, Mapping[int, bytes | Exception | None]]) -> None:
        self.logs = {tp: dict(log) for tp, log in logs.items()}
        self.fetched: list[tuple[TopicPartition, int]] = []
        self.now = 0.0
        self.waited: list[float] = []
        self.refreshed = 0

    def fetch(self, tp: TopicPartition, offset: int) -> tuple[TopicPartition, int]:
        self.fetched.append((tp, offset))
        return tp, offset

    def arrived(self, coming: Any, timeout_s: float) -> bool:
        self.waited.append(timeout_s)
        self.now += timeout_s
        return self.logs[coming[0]][coming[1]] is not None

    def answer(self, coming: Any, timeout_s: float) -> Answer:
        self.now += 0.1
        found = self.logs[coming[0]][coming[1]]
        assert found is not None, "nobody may wait for an answer that is not there"
        if isinstance(found, Exception):
            raise found
        return Answer(found, [])

    def back_to_leader(self, tp: TopicPartition) -> bool:
        return False

    def refresh(self, tp: TopicPartition, timeout_s: float) -> None:
        self.refreshed += 1

    def close(self) -> None:
        pass


def follower_of(broker: Broker) -> BulkFollower:
    found = BulkFollower({}, clock=lambda: broker.now)
    found._connection = broker  # type: ignore[assignment]
    return found


Slices = list[tuple[TopicPartition, LogChunk]]


def taken(follower: BulkFollower, ends: Mapping[TopicPartition, int], bytes_max: int = 1 << 20) -> Slices:
    found: Slices = []
    while len(follower):
        slice_ = follower.poll(ends, bytes_max, 0.05)
        assert slice_ is not None, found
        found.append(slice_)
    return found


def said(chunks: Slices) -> list[tuple[int, list[bytes | None], int]]:
    return [(tp.partition, chunk.values, chunk.next_position) for tp, chunk in chunks]


def test_slices_are_bounded_and_end_at_the_asked_end_with_the_next_fetch_under_way() -> None:
    broker = Broker({ONE: {0: batch(0, [b"a", b"b", b"c"]), 3: batch(3, [b"d", b"e"])}})
    follower = follower_of(broker)
    follower.add({ONE: 0})
    chunks = [follower.poll({ONE: 4}, 4, 0.05)]
    assert broker.fetched == [(ONE, 0), (ONE, 3)]
    assert follower.positions == {ONE: 2}
    chunks += taken(follower, {ONE: 5}, 4)
    # Up to the end that it began with.
    assert said([chunk for chunk in chunks if chunk]) == [(0, [b"a", b"b"], 2), (0, [b"c"], 3), (0, [b"d"], 4)]
    assert broker.fetched == [(ONE, 0), (ONE, 3)]
    assert follower.positions == {}


def test_one_log_after_the_other_in_the_order_in_which_they_fell_behind() -> None:
    broker = Broker({tp: {0: batch(0, [b"%d" % tp.partition])} for tp in (ONE, TWO, THREE)})
    follower = follower_of(broker)
    follower.add({TWO: 0, ONE: 0})
    follower.add({THREE: 0})
    follower.remove([ONE])
    ends = dict.fromkeys((ONE, TWO, THREE), 1)
    assert [tp for tp, _ in taken(follower, ends)] == [TWO, THREE]


def test_a_tail_without_records_moves_the_position_too() -> None:
    control = bytearray(batch(1, [b"\0\0\0\1"]))
    control[21:23] = (0x20 | 0x10).to_bytes(2, "big")
    broker = Broker({ONE: {0: batch(0, [b"a"]), 1: bytes(control)}})
    follower = follower_of(broker)
    follower.add({ONE: 0})
    assert said(taken(follower, {ONE: 2})) == [(0, [b"a"], 1), (0, [], 2)]


def test_records_that_a_slice_replaces_are_left_out_and_still_counted() -> None:
    values = [b"%03d" % (i % 100) for i in range(2_000)]
    broker = Broker({ONE: {0: batch(0, values)}})
    follower = follower_of(broker)
    follower.add({ONE: 0})
    ((_, chunk),) = taken(follower, {ONE: 2_000})
    assert chunk.records == 2_000
    assert len(chunk) < 200
    assert chunk.next_position == 2_000


def test_a_broker_that_does_not_answer_is_not_waited_for_and_given_up_after_a_while() -> None:
    broker = Broker({ONE: {0: None}})
    follower = follower_of(broker)
    follower.add({ONE: 0})
    while broker.now < 9:
        assert follower.poll({ONE: 1}, 1 << 20, 0.05) is None
    assert max(broker.waited) <= 0.05
    broker.now += 2
    with pytest.raises(RetriableError, match="has not answered for 10 s"):
        follower.poll({ONE: 1}, 1 << 20, 0.05)
    assert broker.fetched == [(ONE, 0)], "the one request stays under way"
    assert follower.positions == {ONE: 0}


def test_a_late_answer_counts() -> None:
    broker = Broker({ONE: {0: None}})
    follower = follower_of(broker)
    follower.add({ONE: 0})
    assert follower.poll({ONE: 1}, 1 << 20, 0.05) is None
    broker.logs[ONE][0] = batch(0, [b"a"])
    assert said(taken(follower, {ONE: 1})) == [(0, [b"a"], 1)]
    assert broker.fetched == [(ONE, 0)]


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (client_errors.OffsetOutOfRangeError(), LogStartMovedError),
        (client_errors.NodeNotReadyError(1), RetriableError),
        (batch(1, [b"x"], magic=1), UnsupportedBatchError),
    ],
)
def test_a_fault_leaves_the_position_behind_what_was_handed_out(fault: Any, raised: type[Exception]) -> None:
    broker = Broker({ONE: {0: batch(0, [b"a"]), 1: fault}})
    follower = follower_of(broker)
    follower.add({ONE: 0})
    assert follower.poll({ONE: 9}, 1 << 20, 0.05) is not None
    with pytest.raises(raised):
        follower.poll({ONE: 9}, 1 << 20, 0.05)
    assert follower.reading == ONE
    assert follower.positions == {ONE: 1}
    assert broker.now < 2, "attended to for a second at most"


def test_what_is_taken_away_in_the_middle_is_not_read_on() -> None:
    broker = Broker({ONE: {0: batch(0, [b"a", b"b"])}, TWO: {0: batch(0, [b"x"])}})
    follower = follower_of(broker)
    follower.add({ONE: 0, TWO: 0})
    assert follower.poll({ONE: 2, TWO: 1}, 1, 0.05) is not None
    follower.remove([ONE])
    assert said(taken(follower, {ONE: 2, TWO: 1})) == [(1, [b"x"], 1)]
