"""A small read that ends early by its bytes goes on behind its last record, whatever has been fetched of the rest."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from everflow.kafka.reading import tail_reader
from everflow.kafka.reading.tail_reader import TailReader
from everflow.records import OffsetRange, TopicPartition

TP = TopicPartition("t", 0)
SIZE = 100


def end_at(offset: int) -> Message:
    return Message(topic=TP.topic, partition=TP.partition, offset=offset, error=KafkaError(KafkaError._PARTITION_EOF))


def records(*offsets: int) -> list[Message]:
    value = b"v" * SIZE
    return [Message(topic=TP.topic, partition=TP.partition, offset=at, value=value, timestamp=(1, 5)) for at in offsets]


class Consumer:
    """Gives what a fetch has brought, one fetch at a time."""

    def __init__(self, fetches: list[list[Message]]) -> None:
        self._fetches = deque(fetches)
        self._here: deque[Message] = deque()

    def incremental_assign(self, partitions: Any) -> None: ...
    def incremental_unassign(self, partitions: Any) -> None: ...

    def poll(self, timeout: float) -> Message | None:
        if not self._here and self._fetches:
            self._here.extend(self._fetches.popleft())
        return self._here.popleft() if self._here else None

    def consume(self, most: int, timeout: float) -> list[Message]:
        found = list(self._here)
        self._here.clear()
        return found


def reader_of(monkeypatch: pytest.MonkeyPatch, fetches: list[list[Message]]) -> TailReader:
    monkeypatch.setattr(tail_reader, "Consumer", lambda settings, logger: Consumer(fetches))
    return TailReader({}, "g", True, False)


@pytest.mark.parametrize("rest", [records(5, 6, 7), [*records(5), end_at(8)], [end_at(8)]], ids=len)
def test_a_read_cut_by_its_bytes_where_a_fetch_ended_loses_nothing(monkeypatch: pytest.MonkeyPatch, rest: list[Message]) -> None:
    """The first fetch brings just as many bytes as may be taken; what the range has behind them comes later."""
    reader = reader_of(monkeypatch, [records(*range(5)), rest])
    first = reader.read({TP: OffsetRange(0, 8)}, 1.0, 5 * SIZE)
    assert (len(first.columns[TP]), first.ends[TP]) == (5, 5)
    second = reader.read({TP: OffsetRange(first.ends[TP], 8)}, 1.0)
    assert len(second.columns[TP]) == sum(message.error() is None for message in rest)
    assert second.ends[TP] == 8


def test_a_read_cut_within_a_fetch_goes_on_behind_its_last_record(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(monkeypatch, [records(*range(8))])
    first = reader.read({TP: OffsetRange(0, 8)}, 1.0, 3 * SIZE)
    assert (len(first.columns[TP]), first.ends[TP]) == (3, 3)
    assert reader.read({TP: OffsetRange(3, 8)}, 1.0).ends == {TP: 8}


def test_a_range_that_ends_in_markers_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(monkeypatch, [[*records(0, 1), end_at(4)]])
    read = reader.read({TP: OffsetRange(0, 4)}, 1.0)
    assert (len(read.columns[TP]), read.ends[TP]) == (2, 4)


def test_a_range_whose_last_record_is_there_is_read_whole_though_the_end_was_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(monkeypatch, [records(0, 1, 2)])
    read = reader.read({TP: OffsetRange(0, 3)}, 1.0)
    assert (len(read.columns[TP]), read.ends[TP]) == (3, 3)
