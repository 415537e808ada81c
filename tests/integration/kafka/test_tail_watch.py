"""Logs that grow on a real broker are told of at once; that they do not costs next to nothing."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from everflow.errors import RetriableError
from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.reading import fetch_connection
from everflow.kafka.reading.fetch_connection import TailWatch
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition

pytestmark = pytest.mark.broker
Ends = Mapping[TopicPartition, int]
SOON_S = 20.0
AT = np.array([1_700_000_000_000], dtype=np.int64)


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
