"""Copies far behind are read in bulk and then followed: the same records either way, none that is
aborted or not committed yet."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.kafka.admin import ClusterAdmin, Isolation
from everflow.kafka.reading.copy_follower import CopyFollower
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]
LAG = 100


class Later:
    """The time, which a test may put forward."""

    by_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.by_s


@pytest.fixture
def follower(bootstrap: str) -> Iterator[CopyFollower]:
    found = CopyFollower({"bootstrap.servers": bootstrap}, clock=Later(), bulk_lag=LAG)
    yield found
    found.close()


@pytest.fixture
def writer(bootstrap: str, name: str) -> Iterator[RecordWriter]:
    found = RecordWriter({"bootstrap.servers": bootstrap}, name)
    yield found
    found.close()


def put(
    writer: RecordWriter,
    admin: ClusterAdmin,
    tp: TopicPartition,
    numbers: range,
    *,
    commit: bool = True,
) -> None:
    """One transaction; keys and values are the numbers.

    Waits for its marker, which may land after the answer to the commit: the consumer reads what is
    stable by then, whatever end it was told, and a log that it has read is not far behind.
    """
    writer.begin()
    values: list[bytes | None] = [b"%d" % number for number in numbers]
    writer.write(tp.topic, values, values, np.arange(len(values), dtype=np.int64), tp.partition)
    writer.flush(10)
    if commit:
        writer.commit(10)
    else:
        writer.abort()
    wait_until(
        lambda: len({end(admin, tp, read) for read in ISOLATIONS}) == 1,
        20,
        "the marker of the transaction",
    )


ISOLATIONS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")


def end(admin: ClusterAdmin, tp: TopicPartition, isolation: Isolation) -> int:
    return admin.end_offsets([tp], isolation)[tp]


class Seen:
    """What came of each log; checks that nothing lies beyond the ends that were given."""

    def __init__(
        self, follower: CopyFollower, admin: ClusterAdmin, logs: list[TopicPartition]
    ) -> None:
        self.follower = follower
        self.admin = admin
        self.values: dict[TopicPartition, list[bytes | None]] = {tp: [] for tp in logs}
        self.bulk: set[TopicPartition] = set()

    def ends(self) -> Mapping[TopicPartition, int]:
        return self.admin.end_offsets(list(self.values), "read_committed")

    def poll(self) -> None:
        ends = self.ends()
        found = self.follower.poll(1_000, 500, ends, 0.05)
        self.bulk |= self.follower.far_behind.keys()
        for tp, chunk in found.chunks.items():
            self.values[tp] += chunk.values
            assert chunk.next_position <= self.ends()[tp]
            assert chunk.next_position == self.follower.positions[tp]

    def follow_up(self) -> None:
        def there() -> bool:
            self.poll()
            ends = self.ends()
            return all(self.follower.positions[tp] == ends[tp] for tp in self.values)

        wait_until(
            there,
            20,
            "the stable ends",
            lambda: [self.follower.positions, self.ends(), self.follower.far_behind],
        )


def numbers(*ranges: range) -> list[bytes | None]:
    return [b"%d" % number for part in ranges for number in part]


def test_in_bulk_up_to_the_stable_end_and_then_with_the_others(
    admin: ClusterAdmin, topic: Topic, follower: CopyFollower, writer: RecordWriter
) -> None:
    made = topic(2)
    far, near = (TopicPartition(made, p) for p in range(2))
    for part in (range(300), range(300, 600)):
        put(writer, admin, far, part)
    put(writer, admin, far, range(1_000, 1_200), commit=False)
    put(writer, admin, far, range(600, 700))
    put(writer, admin, near, range(20))
    seen = Seen(follower, admin, [far, near])
    follower.follow({far: 5, near: 1})
    seen.follow_up()
    assert seen.bulk == {far}
    assert follower.far_behind == {}
    writer.begin()
    writer.write(
        far.topic, [b"open"] * 200, [b"open"] * 200, np.zeros(200, np.int64), far.partition
    )
    writer.flush(10)
    seen.poll()
    assert seen.values == {far: numbers(range(5, 700)), near: numbers(range(1, 20))}, (
        "an open transaction is not there yet"
    )
    writer.abort()
    put(writer, admin, far, range(700, 710))
    seen.follow_up()
    assert seen.values[far] == numbers(range(5, 710))
    follower.unfollow([far, near])
    follower.rest()
    assert follower._tap._connection is not None
    assert isinstance(follower._clock, Later)
    follower._clock.by_s = 31.0
    follower.rest()
    assert follower._tap._connection is None, "a connection that nobody uses"


def test_one_that_falls_behind_is_read_in_bulk_again_and_a_log_may_be_dropped_in_the_middle(
    admin: ClusterAdmin, topic: Topic, follower: CopyFollower, writer: RecordWriter
) -> None:
    made = topic(2)
    one, two = (TopicPartition(made, p) for p in range(2))
    put(writer, admin, one, range(10))
    put(writer, admin, two, range(2_000))
    seen = Seen(follower, admin, [one, two])
    follower.follow({one: 0, two: 0})

    def first_slice() -> bool:
        seen.poll()
        return len(seen.values[two]) > 0

    wait_until(first_slice, 20, "its first slice")
    at = follower.positions[two]
    assert 0 < at < 2_000
    assert follower.far_behind == {two: at}
    follower.unfollow([two])
    follower.follow({two: at})
    put(writer, admin, one, range(10, 1_000))
    seen.follow_up()
    assert seen.bulk == {one, two}
    assert seen.values == {one: numbers(range(1_000)), two: numbers(range(2_000))}


def test_a_log_that_was_cut_is_named(
    admin: ClusterAdmin, topic: Topic, follower: CopyFollower, writer: RecordWriter
) -> None:
    cut = TopicPartition(topic(1), 0)
    put(writer, admin, cut, range(1_000))
    admin.delete_records({cut: 500})
    follower.follow({cut: 3})
    ends = admin.end_offsets([cut], "read_committed")
    gone = wait_until(
        lambda: follower.poll(1_000, 500, ends, 0.05).gone, 10, "the end of a log that was cut"
    )
    assert list(gone) == [cut]
    assert "offset 3 is no longer in the changelog" in gone[cut]


def test_a_broker_that_cannot_be_reached_is_an_error_that_loses_no_log(admin: ClusterAdmin) -> None:
    """And quickly: promotions wait for the thread that reads."""
    nowhere = CopyFollower({"bootstrap.servers": "localhost:1"}, bulk_lag=LAG)
    done = threading.Event()

    def poll() -> None:
        log = TopicPartition("log", 0)
        nowhere.follow({log: 7})
        with pytest.raises(RetriableError):
            nowhere.poll(10, 500, {log: 1_000}, 0.01)
        assert nowhere.positions == {log: 7}
        assert nowhere.far_behind == {}
        done.set()

    thread = threading.Thread(target=poll)
    thread.start()
    thread.join(10)
    assert done.is_set()
    nowhere.close()


def of_one_key(writer: RecordWriter, tp: TopicPartition, count: int) -> None:
    """A transaction of records of one key, whose values are numbers."""
    writer.begin()
    values = [b"%d" % n for n in range(count)]
    writer.write(tp.topic, [b"k"] * count, values, np.arange(count, dtype=np.int64), tp.partition)
    writer.flush(10)
    writer.commit(10)
    writer.close()


@pytest.mark.parametrize("every", [True, False])
def test_in_bulk_every_record_is_handed_out_where_each_counts(
    bootstrap: str, topic: Topic, name: str, every: bool
) -> None:
    """A versioned store's history is its records, those of one key included."""
    tp = TopicPartition(topic(1), 0)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    of_one_key(writer, tp, 5_000)
    chosen = frozenset({tp.topic} if every else ())
    follower = CopyFollower({"bootstrap.servers": bootstrap}, bulk_lag=10, every=chosen)
    seen: list[bytes | None] = []

    def read() -> bool:
        for chunk in follower.poll(1_000, 1 << 20, {tp: 5_001}, 0.05).chunks.values():
            seen.extend(chunk.values)
        return follower.positions.get(tp) == 5_001

    follower.follow({tp: 0})
    wait_until(read, 10, "the end", lambda: [len(seen), follower.positions])
    follower.close()
    assert len(seen) == 5_000 if every else len(seen) < 5_000


def test_nothing_is_read_beyond_the_ends_where_they_bind(
    bootstrap: str, topic: Topic, name: str
) -> None:
    """A table's topic holds what the group has not processed yet."""
    tp = TopicPartition(topic(1), 0)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    of_one_key(writer, tp, 9)
    follower = CopyFollower({"bootstrap.servers": bootstrap}, to_ends=frozenset({tp.topic}))
    follower.follow({tp: 1})
    seen: list[bytes | None] = []

    def read(end: int) -> bool:
        for chunk in follower.poll(1_000, 0, {tp: end}, 0.05).chunks.values():
            seen.extend(chunk.values)
        return follower.positions[tp] >= end

    for end in (0, 3, 3, 7):
        wait_until(lambda end=end: read(end), 10, f"offset {end}", lambda: [seen])  # type: ignore[misc]
        read(end)
        assert follower.positions == {tp: max(1, end)}
    assert seen == [b"%d" % n for n in range(1, 7)]
    follower.close()
