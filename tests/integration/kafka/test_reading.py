"""Logs of a broker: copies far behind and near the end, logs of another leader or another topic."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from everflow.errors import LogTruncatedError, OtherTopicError, RetriableError
from everflow.kafka.admin import ClusterAdmin, Isolation
from everflow.kafka.reading import fetch_connection
from everflow.kafka.reading.copy_follower import CopyFollower
from everflow.kafka.reading.fetch_connection import TailWatch
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import OffsetRange, TopicPartition
from everflow.testing.broker import EmbeddedBroker
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
    assert follower._fetcher._connection is not None
    assert isinstance(follower._clock, Later)
    follower._clock.by_s = 31.0
    follower.rest()
    assert follower._fetcher._connection is None, "a connection that nobody uses"


def of_one_key(writer: RecordWriter, tp: TopicPartition, count: int) -> None:
    """A transaction of records of one key, whose values are numbers."""
    writer.begin()
    values = [b"%d" % n for n in range(count)]
    writer.write(tp.topic, [b"k"] * count, values, np.arange(count, dtype=np.int64), tp.partition)
    writer.flush(10)
    writer.commit(10)
    writer.close()


@pytest.mark.parametrize("every", [True, False])
def test_each_record_counts_in_bulk(bootstrap: str, topic: Topic, name: str, every: bool) -> None:
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


def test_nothing_is_read_beyond_ends_that_bind(bootstrap: str, topic: Topic, name: str) -> None:
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


TP = TopicPartition("damaged", 0)


def write_numbers(settings: dict[str, str], tp: TopicPartition, base: int, count: int) -> None:
    writer = RecordWriter(settings, None)
    writer.begin()
    keys = [b"%08d" % (base + i) for i in range(count)]
    values: list[bytes | None] = [b"v%08d" % (base + i) for i in range(count)]
    writer.write(tp.topic, keys, values, np.arange(count, dtype=np.int64), tp.partition)
    writer.flush(30)
    writer.close()


def test_a_log_with_other_records_than_were_read_is_told_by_the_broker() -> None:
    """Two records of a first leader and two of a second one; a reader that has had three of the
    first has read what is no longer there."""
    with EmbeddedBroker() as one:
        settings = {"bootstrap.servers": one.bootstrap_servers}
        admin = ClusterAdmin(settings)
        admin.wait_until_reachable(30, print)
        admin.create_topics({TP.topic: (1, {})})
        write_numbers(settings, TP, 0, 2)
        first = epoch_behind(settings, 2)
        one.restart()
        admin.wait_until_reachable(30, print)
        write_numbers(settings, TP, 2, 2)
        assert epoch_behind(settings, 4) > first, "the broker that came back is another leader"
        fetcher = LogFetcher.over(settings)
        fetcher.go_to({TP: 3})
        fetcher._streams[TP]._epoch = first
        with pytest.raises(LogTruncatedError, match=r"damaged-0.*offset 2"):
            fetcher.take({TP: 4}, 5.0)
        fetcher.close()


def epoch_behind(settings: dict[str, str], end: int) -> int:
    """The epoch of the leader that wrote the record before ``end``."""
    fetcher = LogFetcher.over(settings)
    fetcher.go_to({TP: 0})
    while fetcher.positions[TP] < end:
        assert fetcher.take({TP: end}, 10.0)
    epoch = fetcher._streams[TP]._epoch
    fetcher.close()
    return epoch


SOON_S = 20.0
AT = np.array([1_700_000_000_000], dtype=np.int64)


def by_ids(bootstrap: str) -> RangeReader:
    return RangeReader({"bootstrap.servers": bootstrap}, True)


def read_by_ids(reader: RangeReader, topic: str, start: int, end: int, ids: dict[str, str]) -> int:
    tp = TopicPartition(topic, 0)
    found = reader.read({tp: OffsetRange(start, end)}, SOON_S, ids=ids)
    return len(found.columns[tp])


def id_of(admin: ClusterAdmin, topic: str) -> str:
    return admin.describe_topics([topic])[topic].topic_id


def write_values(bootstrap: str, topic: str, records: int) -> None:
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    try:
        writer.begin()
        writer.write(topic, [None] * records, [b"v"] * records, AT.repeat(records), 0)
        writer.flush(SOON_S)
    finally:
        writer.close()


@pytest.mark.parametrize("records", [0, 3])
def test_a_log_of_another_topic_of_that_name_is_not_read(
    bootstrap: str, topic: Callable[[int], str], admin: ClusterAdmin, records: int
) -> None:
    """By what the broker answers, not by what is in the log: an empty one too."""
    name = topic(2)
    known = {name: id_of(admin, name)}
    write_values(bootstrap, name, 3)
    with closing(by_ids(bootstrap)) as old, closing(by_ids(bootstrap)) as new:
        assert read_by_ids(old, name, 0, 3, known) == 3
        admin.delete_topics([name])
        wait_until(lambda: not admin.describe_topics([name]), SOON_S, "the end of the topic")
        with pytest.raises(RetriableError) as gone:
            read_by_ids(old, name, 3, 4, known)
        assert gone.value.partitions == {TopicPartition(name, 0)}
        admin.create_topics({name: (2, {})})
        write_values(bootstrap, name, records)
        for reader in (old, new):
            with pytest.raises(OtherTopicError) as other:
                read_by_ids(reader, name, 0, 1, known)
            assert other.value.partitions == {TopicPartition(name, 0)}
    with closing(by_ids(bootstrap)) as now:
        assert read_by_ids(now, name, 0, records, {name: id_of(admin, name)}) == records


# Logs that grow on a real broker are told of at once.


Ends = Mapping[TopicPartition, int]


@pytest.fixture
def opened(bootstrap: str) -> Iterator[Callable[[bool], TailWatch]]:
    watches: list[TailWatch] = []

    def open_one(read_committed: bool) -> TailWatch:
        opens = TailWatch.opens({"bootstrap.servers": bootstrap}, read_committed=read_committed)
        assert opens is not None
        watches.append(opens())
        return watches[-1]

    yield open_one
    for watch in watches:
        watch.close()


def until_told(watch: TailWatch, ends: Ends) -> dict[TopicPartition, int]:
    deadline = time.monotonic() + SOON_S
    while time.monotonic() < deadline:
        if told := watch.wait(ends, 1.0):
            return told
    raise AssertionError(f"nothing was told of {ends}")


def test_growth_is_told_while_it_waits_and_nothing_while_there_is_none(
    bootstrap: str,
    topic: Callable[[int], str],
    opened: Callable[[bool], TailWatch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later requests of a session name the partitions that have changed, and no others."""
    asked: list[int] = []
    topics_of = fetch_connection._asked

    def counted(wanted: Mapping[TopicPartition, Any], ids: Any) -> object:
        asked.append(len(wanted))
        return topics_of(wanted, ids)

    monkeypatch.setattr(fetch_connection, "_asked", counted)
    target = topic(30)
    ends = {TopicPartition(target, partition): 0 for partition in range(30)}
    watch = opened(True)
    assert watch.wait(ends, 1.2) == {}
    assert watch.wait(ends, 1.2) == {}
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    for number in range(3):

        def write() -> None:
            writer.begin()
            writer.write(target, [b"k"], [b"v"], AT, 7)
            writer.flush(10)

        later = threading.Timer(0.3, write)
        later.start()
        told = until_told(watch, ends)
        later.join()
        assert told == {TopicPartition(target, 7): number + 1}
        ends |= told
    writer.close()
    assert asked[0] == 30
    assert max(asked[1:]) <= 1, "named again though nothing had changed"


def test_an_open_transaction_is_no_growth_until_it_ends(
    bootstrap: str, topic: Callable[[int], str], name: str, opened: Callable[[bool], TailWatch]
) -> None:
    target = topic(2)
    ends = {TopicPartition(target, 0): 0, TopicPartition(target, 1): 0}
    committed, uncommitted = opened(True), opened(False)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    writer.begin()
    writer.write(target, [b"k"], [b"v"], AT, 1)
    writer.flush(10)
    assert until_told(uncommitted, ends) == {TopicPartition(target, 1): 1}
    assert committed.wait(ends, 1.2) == {}
    writer.commit(10)
    assert until_told(committed, ends) == {TopicPartition(target, 1): 2}, "with its marker"
    writer.close()


def test_other_partitions_are_watched_when_others_are_asked_for(
    bootstrap: str, topic: Callable[[int], str], opened: Callable[[bool], TailWatch]
) -> None:
    first, second = topic(1), topic(2)
    watch = opened(False)
    assert watch.wait({TopicPartition(first, 0): 0}, 1.2) == {}
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    writer.begin()
    writer.write(first, [b"k"], [b"v"], AT, 0)
    writer.write(second, [b"k"], [b"v"], AT, 1)
    writer.flush(10)
    writer.close()
    both = {TopicPartition(second, 0): 0, TopicPartition(second, 1): 0}
    told = until_told(watch, both)
    while told.keys() == {TopicPartition(first, 0)}:  # the fetch that was held back
        told = until_told(watch, both)
    assert told == {TopicPartition(second, 1): 1}


def test_a_log_that_is_gone_is_an_error_and_the_next_wait_begins_anew(
    bootstrap: str,
    admin: ClusterAdmin,
    topic: Callable[[int], str],
    opened: Callable[[bool], TailWatch],
) -> None:
    kept = topic(1)
    watch = opened(True)
    with pytest.raises(RetriableError, match="not known"):
        watch.wait({TopicPartition(kept, 0): 900}, 5.0)  # beyond its end
    with pytest.raises(RetriableError, match="not known"):
        watch.wait({TopicPartition("no-such-topic", 0): 0, TopicPartition(kept, 0): 0}, 5.0)
    assert watch.wait({TopicPartition(kept, 0): 0}, 1.2) == {}
    assert admin.end_offsets([TopicPartition(kept, 0)], "read_committed")
