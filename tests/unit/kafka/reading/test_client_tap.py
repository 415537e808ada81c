"""librdkafka without a broker: a read that ends early by its bytes goes on behind its last record,
whatever has been fetched of the rest; what faults and records of a log that was given up do to the
others."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from everflow.errors import FatalError, LogStartMovedError, RetriableError
from everflow.kafka.reading import client_tap
from everflow.kafka.reading.client_tap import ClientTap
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.record_columns import CorruptBatchError
from everflow.records import OffsetRange, TopicPartition

TP = TopicPartition("t", 0)
TWO = TopicPartition("t", 1)
SIZE = 100


def end_at(offset: int) -> Message:
    return Message(
        topic=TP.topic,
        partition=TP.partition,
        offset=offset,
        error=KafkaError(KafkaError._PARTITION_EOF),
    )


def records(*offsets: int) -> list[Message]:
    value = b"v" * SIZE
    return [
        Message(topic=TP.topic, partition=TP.partition, offset=at, value=value, timestamp=(1, 5))
        for at in offsets
    ]


class Consumer:
    """Gives what a fetch has brought, one fetch at a time."""

    def __init__(self, fetches: deque[list[Message]]) -> None:
        self._fetches = fetches
        self._here: deque[Message] = deque()

    def incremental_assign(self, partitions: Any) -> None: ...
    def incremental_unassign(self, partitions: Any) -> None: ...
    def close(self) -> None: ...

    def poll(self, timeout: float) -> Message | None:
        if not self._here and self._fetches:
            self._here.extend(self._fetches.popleft())
        return self._here.popleft() if self._here else None

    def consume(self, most: int, timeout: float) -> list[Message]:
        found = list(self._here)
        self._here.clear()
        return found


def reader_of(monkeypatch: pytest.MonkeyPatch, fetches: list[list[Message]]) -> RangeReader:
    monkeypatch.setattr(client_tap, "Consumer", lambda settings, logger: Consumer(deque(fetches)))
    return RangeReader({}, "g", True, False)


@pytest.mark.parametrize("rest", [records(5, 6, 7), [*records(5), end_at(8)], [end_at(8)]], ids=len)
def test_a_read_cut_by_its_bytes_where_a_fetch_ended_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, rest: list[Message]
) -> None:
    """The first fetch brings just as many bytes as may be taken; what the range has behind them
    comes later."""
    reader = reader_of(monkeypatch, [records(*range(5)), rest])
    first = reader.read({TP: OffsetRange(0, 8)}, 1.0, 5 * SIZE)
    assert (len(first.columns[TP]), first.ends[TP]) == (5, 5)
    second = reader.read({TP: OffsetRange(first.ends[TP], 8)}, 1.0)
    assert len(second.columns[TP]) == sum(message.error() is None for message in rest)
    assert second.ends[TP] == 8


def test_a_read_cut_within_a_fetch_goes_on_behind_its_last_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = reader_of(monkeypatch, [records(*range(8))])
    first = reader.read({TP: OffsetRange(0, 8)}, 1.0, 3 * SIZE)
    assert (len(first.columns[TP]), first.ends[TP]) == (3, 3)
    assert reader.read({TP: OffsetRange(3, 8)}, 1.0).ends == {TP: 8}


def test_a_range_that_ends_in_markers_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(monkeypatch, [[*records(0, 1), end_at(4)]])
    read = reader.read({TP: OffsetRange(0, 4)}, 1.0)
    assert (len(read.columns[TP]), read.ends[TP]) == (2, 4)


def test_a_range_whose_last_record_is_there_is_read_whole_though_the_end_was_not_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = reader_of(monkeypatch, [records(0, 1, 2)])
    read = reader.read({TP: OffsetRange(0, 3)}, 1.0)
    assert (len(read.columns[TP]), read.ends[TP]) == (3, 3)


def tap_of(
    monkeypatch: pytest.MonkeyPatch,
    fetches: list[list[Message]],
    patient: bool = True,
    clock: Callable[[], float] = lambda: 0.0,
) -> ClientTap:
    coming = deque(fetches)  # also of a second consumer
    monkeypatch.setattr(client_tap, "Consumer", lambda settings, logger: Consumer(coming))
    return ClientTap({}, "g", {}, patient=patient, clock=clock)


def fault(code: int, tp: TopicPartition | None = TP) -> Message:
    place: dict[str, Any] = (
        {} if tp is None else {"topic": tp.topic, "partition": tp.partition, "offset": -1}
    )
    return Message(**place, error=KafkaError(code))


def of(tp: TopicPartition, *offsets: int) -> list[Message]:
    return [
        Message(topic=tp.topic, partition=tp.partition, offset=at, value=b"v", timestamp=(1, 5))
        for at in offsets
    ]


@pytest.mark.parametrize(
    "code", [KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError._UNDERFLOW]
)
def test_nothing_behind_a_batch_that_cannot_be_read_is_handed_out(
    monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """librdkafka skips the batch, and may find anything behind it: records, another fault, an end
    of the log."""
    bad = Message(topic=TP.topic, partition=TP.partition, offset=2, error=KafkaError(code))
    rest = [*of(TP, 7), fault(KafkaError._NOT_IMPLEMENTED), fault(KafkaError._AUTO_OFFSET_RESET)]
    now = [0.0]
    first = [*of(TP, 0, 1), bad, *of(TWO, 4), *rest]
    fetches = [first, [*of(TP, 8), end_at(9)], [], [], of(TP, 0, 1, 2)]
    tap = tap_of(monkeypatch, fetches, clock=lambda: now[0])
    tap.go_to({TP: 0, TWO: 4})
    assert list(tap.take({TP: 9, TWO: 9}, 0.0)) == [TWO]
    for _ in range(2):
        with pytest.raises(CorruptBatchError, match=r"t-0, offset 2: .*another replica"):
            tap.take({TP: 9, TWO: 9}, 0.0)
    assert tap.positions == {TP: 0, TWO: 5}
    now[0] = 11.0
    with pytest.raises(CorruptBatchError, match="t-0"):
        tap.take({TP: 9}, 0.0)
    # Fetched anew, and now it can be read.
    assert tap.take({TP: 9}, 0.0)[TP].records == 3


def test_records_of_several_logs_in_one_fetch_and_of_one_that_was_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = TopicPartition("t", 2)
    late = [*of(gone, 7), fault(KafkaError._PARTITION_EOF, gone)]
    tap = tap_of(monkeypatch, [[*of(TP, 0, 1), *late, *of(TWO, 4), *of(TP, 2)], of(gone, 8)])
    tap.go_to({TP: 1, TWO: 4})
    found = tap.take({TP: 9, TWO: 9}, 0.0)
    assert {tp: (chunk.records, chunk.next_position) for tp, chunk in found.items()} == {
        TP: (2, 3),
        TWO: (1, 5),
    }
    assert tap.take({TP: 9, TWO: 9}, 0.0) == {}
    assert tap.positions == {TP: 3, TWO: 5}


def test_every_log_that_was_cut_is_told_though_the_client_says_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    moved = [fault(KafkaError._AUTO_OFFSET_RESET, tp) for tp in (TP, TWO)]
    tap = tap_of(monkeypatch, [moved])
    tap.go_to({TP: 1, TWO: 4})
    told = set()
    for _ in range(2):
        with pytest.raises(LogStartMovedError) as error:
            tap.take(dict.fromkeys(tap.positions, 9), 0.0)
        assert error.value.partition is not None
        told.add(error.value.partition)
        tap.go_to({tp: at for tp, at in tap.positions.items() if tp != error.value.partition})
    assert told == {TP, TWO}


@pytest.mark.parametrize("tp", [TP, None], ids=["of a log", "of a broker"])
def test_a_broker_that_is_away_is_waited_out_by_the_patient(
    monkeypatch: pytest.MonkeyPatch, tp: TopicPartition | None
) -> None:
    for patient in (True, False):
        tap = tap_of(monkeypatch, [[fault(KafkaError._TRANSPORT, tp), *of(TP, 0)]], patient)
        tap.go_to({TP: 0})
        if patient:
            assert tap.take({TP: 1}, 0.0)[TP].records == 1
        else:
            with pytest.raises(RetriableError):
                tap.take({TP: 1}, 0.0)
        refused = tap_of(monkeypatch, [[fault(KafkaError.TOPIC_AUTHORIZATION_FAILED, tp)]], patient)
        refused.go_to({TP: 0})
        with pytest.raises(FatalError):
            refused.take({TP: 1}, 0.0)
