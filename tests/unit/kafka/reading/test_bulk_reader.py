"""The bulk reader without a broker: passing errors, leaders that move, and librdkafka taking over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import kafka.errors as client_errors
import numpy as np
import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder

from everflow.errors import FatalError, LogStartMovedError, RetriableError
from everflow.kafka.reading import log_reader
from everflow.kafka.reading.bulk_reader import BulkReader
from everflow.kafka.reading.fetch_connection import Answer, bulk_settings
from everflow.kafka.reading.log_reader import LogChunk, LogReader
from everflow.kafka.reading.record_batches import UnsupportedBatchError
from everflow.records import TopicPartition

TP = TopicPartition("log", 0)


def batch(base: int, values: list[bytes]) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for i, value in enumerate(values):
        builder.append(i, 5, b"k", value, [])
    built = bytearray(builder.build())
    built[:8] = base.to_bytes(8, "big")
    return bytes(built)


class Broker:
    """A `FetchConnection`: each fetch is answered by the next of ``script``, bytes or an error."""

    def __init__(self, script: list[bytes | Exception]) -> None:
        self.script = script
        self.fetched: list[int] = []
        self.refreshed = 0
        self.replica = False
        self.now = 0.0

    def fetch(self, tp: TopicPartition, offset: int) -> bytes | Exception:
        assert tp == TP
        self.fetched.append(offset)
        return self.script.pop(0)

    def answer(self, coming: Any, timeout_s: float) -> Answer:
        self.now += 0.1
        if isinstance(coming, Exception):
            raise coming
        return Answer(coming, [])

    def back_to_leader(self, tp: TopicPartition) -> bool:
        was, self.replica = self.replica, False
        return was

    def refresh(self, tp: TopicPartition, timeout_s: float) -> None:
        self.refreshed += 1

    def close(self) -> None:
        pass


def read(broker: Broker, start: int, end: int) -> list[LogChunk]:
    reader = BulkReader({}, clock=lambda: broker.now)
    reader._connection = broker  # type: ignore[assignment]
    return list(reader.read(TP, start, end, stall_timeout_s=1.0))


def values(chunks: list[LogChunk]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.values]


def test_the_next_fetch_is_sent_before_the_present_one_is_handed_out_and_none_behind_the_end() -> None:
    broker = Broker([batch(0, [b"a", b"b"]), batch(2, [b"c", b"d"])])
    reader = BulkReader({}, clock=lambda: broker.now)
    reader._connection = broker  # type: ignore[assignment]
    chunks = reader.read(TP, 0, 3, chunk_bytes=1)
    assert next(chunks).values == [b"a"]
    assert broker.fetched == [0, 2]
    assert values(list(chunks)) == [b"b", b"c"]
    assert broker.fetched == [0, 2]


@pytest.mark.parametrize(
    "passing",
    [
        client_errors.NotLeaderForPartitionError(),
        client_errors.FencedLeaderEpochError(),
        client_errors.UnknownLeaderEpochError(),
        client_errors.UnknownTopicOrPartitionError(),
        client_errors.LeaderNotAvailableError(),
        client_errors.NodeNotReadyError(1),
        client_errors.KafkaConnectionError("gone"),
        client_errors.KafkaTimeoutError("late"),
    ],
)
def test_after_a_passing_error_it_asks_the_new_leader_for_the_same_offset(passing: Exception) -> None:
    broker = Broker([batch(0, [b"a"]), passing, batch(1, [b"b"])])
    assert values(read(broker, 0, 2)) == [b"a", b"b"]
    assert broker.fetched == [0, 1, 1]
    assert broker.refreshed == 1


def test_empty_answers_end_in_the_stall_and_not_before() -> None:
    nothing: list[bytes | Exception] = [b""] * 20
    with pytest.raises(RetriableError, match=r"nothing came behind 0 for 1 s\..*still open"):
        read(Broker(nothing), 0, 1)
    assert values(read(Broker([*nothing[:8], batch(0, [b"a"])]), 0, 1)) == [b"a"]


def test_a_replica_that_is_behind_is_left_for_the_leader() -> None:
    broker = Broker([client_errors.OffsetOutOfRangeError(), batch(3, [b"a"])])
    broker.replica = True
    assert values(read(broker, 3, 4)) == [b"a"]
    assert broker.fetched == [3, 3]


def test_errors_that_stay() -> None:
    with pytest.raises(LogStartMovedError, match="log-0: offset 3 is outside the log"):
        read(Broker([client_errors.OffsetOutOfRangeError()]), 3, 9)
    with pytest.raises(FatalError):
        read(Broker([client_errors.TopicAuthorizationFailedError("log")]), 3, 9)


def test_librdkafka_reads_on_behind_the_last_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []

    class Bulk:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def close(self) -> None: ...
        def read(self, tp: TopicPartition, start: int, end: int, **_: Any) -> Iterator[LogChunk]:
            yield LogChunk([b"k"], [b"v"], np.array([1], np.int64), 4, 1)
            raise UnsupportedBatchError("message format v1")

    class Client(Bulk):
        def read(self, tp: TopicPartition, start: int, end: int, **_: Any) -> Iterator[LogChunk]:
            asked.append((start, end))
            yield LogChunk([b"k"], [b"w"], np.array([1], np.int64), end, 1)

    monkeypatch.setattr(log_reader, "BulkReader", Bulk)
    monkeypatch.setattr(log_reader, "ClientReader", Client)
    with LogReader({"bootstrap.servers": "b:1"}) as reader:
        assert values(list(reader.read(TP, 2, 9))) == [b"v", b"w"]
    with LogReader({"bootstrap.servers": "b:1", "sasl.mechanism": "GSSAPI", "security.protocol": "SASL_SSL"}) as reader:
        assert values(list(reader.read(TP, 2, 9))) == [b"w"]
        assert list(reader.read(TP, 9, 9)) == []
    assert asked == [(4, 9), (2, 9)]


@pytest.mark.parametrize(("chunk_bytes", "most"), [(1, 2990), (2000, 2990), (1 << 20, 60)])
def test_leaving_out_replaced_records_keeps_the_fold_the_counts_and_the_positions(chunk_bytes: int, most: int) -> None:
    built = []
    for base in range(0, 3000, 1000):
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
        for i in range(1000):
            builder.append(i, 10_000 - base - i, b"k%d" % (i % 10), b"v%d" % (base + i), [])
        one = bytearray(builder.build())
        one[:8] = base.to_bytes(8, "big")
        built.append(bytes(one))
    broker = Broker(list(built))
    reader = BulkReader({}, clock=lambda: broker.now, latest=True)
    reader._connection = broker  # type: ignore[assignment]
    chunks = list(reader.read(TP, 5, 2995, chunk_bytes=chunk_bytes))
    folded: dict[bytes | None, bytes | None] = {}
    for chunk in chunks:  # each leaves the store as the log has it up to its position
        folded.update(zip(chunk.keys, chunk.values, strict=True))
        assert folded == {b"k%d" % (i % 10): b"v%d" % i for i in range(5, chunk.next_position)}
    assert max(int(chunk.timestamps.max()) for chunk in chunks if len(chunk)) == 10_000 - 5
    assert sum(len(chunk) for chunk in chunks) <= most
    assert sum(chunk.records for chunk in chunks) == 2990
    assert np.cumsum([chunk.records for chunk in chunks]).tolist() == [chunk.next_position - 5 for chunk in chunks]


def test_settings() -> None:
    given = {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": __file__,
        "ssl.endpoint.identification.algorithm": "none",
        "fetch.message.max.bytes": 3,
    }
    assert bulk_settings(given) == {
        "bootstrap_servers": "a:1,b:2",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
        "ssl_cafile": __file__,
        "ssl_check_hostname": False,
    }
    for foreign in ({"sasl.mechanism": "OAUTHBEARER"}, {"ssl.keystore.location": "x"}, {"ssl.ca.location": "probe"}):
        assert bulk_settings({**given, **foreign}) is None
