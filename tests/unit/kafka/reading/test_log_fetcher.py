"""Our own fetches without a broker: slices, passing errors, leaders that move, no long waits."""

import base64
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

import kafka.errors as client_errors
import numpy as np
import pyarrow as pa
import pytest
from crc32c import crc32c
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from everflow import serdes
from everflow.errors import (
    EverflowError,
    FatalError,
    LogStartMovedError,
    LogTruncatedError,
    OtherTopicError,
    RetriableError,
)
from everflow.handlers import Handlers
from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.errors import LinkLostError
from everflow.kafka.reading import record_batches
from everflow.kafka.reading.fetch_connection import (
    Answer,
    DivergedError,
    FetchConnection,
    FetchPlace,
    TailWatch,
)
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.reading.range_reader import RangeReader
from everflow.kafka.reading.record_columns import Columns, CorruptBatchError, LogChunk, LogColumns
from everflow.kafka.writing.record_encoding import (
    Producer,
    RecordColumns,
    encode,
    encoded_headers,
    framed,
)
from everflow.records import OffsetRange, TopicPartition, listed_headers
from everflow.worker.decode import Judge, LogDecoder
from unit.worker.test_decode import reading

TP = TopicPartition("log", 0)
TWO = TopicPartition("log", 1)


def batch(
    base: int,
    values: Sequence[bytes],
    keys: Sequence[bytes] = (),
    times: Sequence[int] = (),
    magic: int = 2,
) -> bytes:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for i, value in enumerate(values):
        builder.append(i, times[i] if times else 5, keys[i] if keys else b"k", value, [])
    built = bytearray(builder.build())
    built[:8] = base.to_bytes(8, "big")
    built[16] = magic
    return bytes(built)


def markers(base: int) -> bytes:
    built = bytearray(batch(base, [b"\0\0\0\1"]))
    built[21:23] = (0x20 | 0x10).to_bytes(2, "big")
    built[17:21] = crc32c(built[21:]).to_bytes(4, "big")
    return bytes(built)


Said = bytes | Exception | None


class Broker:
    """A `FetchConnection`: a fetch at an offset is answered with the next of what is there, bytes
    or an error, the last for ever; None: not yet."""

    def __init__(self, said: Mapping[int, Said | list[Said]], tp: TopicPartition = TP) -> None:
        self.logs = {tp: {at: list(x) if isinstance(x, list) else [x] for at, x in said.items()}}
        self.coming: dict[TopicPartition, FetchPlace] = {}
        self.fetched: list[int] = []
        self.epochs: list[int] = []
        self.waited: list[float] = []
        self.forgotten = 0
        self.replica = False
        self.stable: int | EverflowError = 0
        self.end = -1
        self.now = 0.0
        self.log_bytes = 0
        self.ids: dict[str, str] = {}

    def stable_end(self, tp: TopicPartition) -> int:
        assert tp in self.logs
        if isinstance(self.stable, EverflowError):
            raise self.stable
        return self.stable

    def fetch(self, wanted: Mapping[TopicPartition, FetchPlace]) -> dict[TopicPartition, Exception]:
        for tp, place in wanted.items():
            if self.coming.get(tp) != place:
                self.coming[tp] = place
                self.fetched.append(place.offset)
                self.epochs.append(place.epoch)
        return {}

    def answers(self, timeout_s: float) -> dict[TopicPartition, Answer]:
        found = {}
        for tp, place in list(self.coming.items()):
            said = self.logs[tp][place.offset]
            if said[0] is None:
                continue
            del self.coming[tp]
            one = said.pop(0) if len(said) > 1 else said[0]
            if isinstance(one, Exception):
                found[tp] = Answer(place.offset, failure=one)
            else:
                assert one is not None
                found[tp] = Answer(place.offset, self.end, one)
        if found:
            self.now += 0.1
        else:
            self.waited.append(timeout_s)
            self.now += max(0.0, timeout_s)
        return found

    def forget(self, tp: TopicPartition) -> bool:
        self.forgotten += 1
        was, self.replica = self.replica, False
        return was

    def use_ids(self, ids: Mapping[str, str]) -> None:
        self.ids |= ids

    def push(self) -> None:
        pass

    def close(self) -> None:
        pass


def fetcher_of(broker: Broker, **values: Any) -> LogFetcher:
    fetcher = LogFetcher({}, clock=lambda: broker.now, **values)
    fetcher._connection = broker  # type: ignore[assignment]
    return fetcher


def begun(broker: Broker, **values: Any) -> LogFetcher:
    """One that reads `TP` from its start."""
    fetcher = fetcher_of(broker, **values)
    fetcher.go_to({TP: 0})
    return fetcher


def reader_of(broker: Broker, latest: bool = False) -> LogReader:
    return LogReader({}, latest=latest, fetcher=fetcher_of(broker), stable_end=broker.stable_end)


def read(broker: Broker, start: int, end: int) -> list[LogChunk]:
    return list(reader_of(broker).read(TP, start, end, stall_timeout_s=1.0))


def values(chunks: list[LogChunk]) -> list[bytes | None]:
    return [value for chunk in chunks for value in chunk.values]


def test_the_next_fetch_is_sent_before_this_one_is_handed_out() -> None:
    broker = Broker({0: batch(0, [b"a", b"b"]), 2: batch(2, [b"c", b"d"])})
    chunks = reader_of(broker).read(TP, 0, 3, chunk_bytes=1)
    assert next(chunks).values == [b"a"]
    assert broker.fetched == [0, 2]
    assert values(list(chunks)) == [b"b", b"c"]
    assert broker.fetched == [0, 2]


def test_what_goes_on_fetches_beyond_the_asked_end_as_far_as_records_are_there() -> None:
    broker = Broker({0: batch(0, [b"a", b"b"]), 2: batch(2, [b"c", b"d"])})
    broker.end = 4
    fetcher = begun(broker, ahead=True)
    assert fetcher.take({TP: 2}, 1.0)[TP].values == [b"a", b"b"]
    assert broker.fetched == [0, 2]
    assert fetcher.take({TP: 3}, 1.0)[TP].values == [b"c"]
    fetcher.go_to({TP: 3})
    assert fetcher.take({TP: 4}, 1.0)[TP].values == [b"d"]
    assert broker.fetched == [0, 2]


def slices(
    fetcher: LogFetcher, end: int, most_bytes: int
) -> Iterator[tuple[list[bytes | None], int]]:
    while fetcher.positions[TP] < end:
        chunk = fetcher.take({TP: end}, 1.0, most_bytes)[TP]
        assert chunk.next_position == fetcher.positions[TP]
        yield chunk.values, chunk.next_position


def test_slices_are_bounded_and_end_at_the_asked_end() -> None:
    broker = Broker({0: batch(0, [b"a", b"b", b"c"]), 3: batch(3, [b"d", b"e"])})
    fetcher = begun(broker)
    assert list(slices(fetcher, 4, 4)) == [([b"a", b"b"], 2), ([b"c"], 3), ([b"d"], 4)]
    assert list(slices(fetcher, 5, 4)) == [([b"e"], 5)], "what was received already is still there"
    assert broker.fetched == [0, 3]


def test_a_tail_without_records_moves_the_position_too() -> None:
    fetcher = begun(Broker({0: batch(0, [b"a"]), 1: markers(1)}))
    assert list(slices(fetcher, 2, 1 << 20)) == [([b"a"], 1), ([], 2)]


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
def test_after_a_passing_error_the_new_leader_is_asked(passing: Exception) -> None:
    broker = Broker({0: batch(0, [b"a"]), 1: [passing, batch(1, [b"b"])]})
    assert values(read(broker, 0, 2)) == [b"a", b"b"]
    assert broker.fetched == [0, 1, 1]
    assert broker.forgotten == 1


def test_empty_answers_end_in_the_stall_and_not_before() -> None:
    with pytest.raises(RetriableError, match=r"behind 0.*1"):
        read(Broker({0: b""}), 0, 1)
    assert values(read(Broker({0: [*[b""] * 8, batch(0, [b"a"])]}), 0, 1)) == [b"a"]


@pytest.mark.parametrize(
    ("stable", "said", "unsaid"),
    [
        (0, "transaction is open from offset 0 ", "answer"),
        (1, "log up to 1", "ransaction"),
        (RetriableError("nobody there"), "does not answer: nobody there", "ransaction"),
    ],
)
def test_the_leader_says_why_none_come(stable: int | EverflowError, said: str, unsaid: str) -> None:
    broker = Broker({0: b""})
    broker.stable = stable
    with pytest.raises(RetriableError) as error:
        read(broker, 0, 1)
    assert said in str(error.value)
    assert unsaid not in str(error.value)


def test_a_replica_that_is_behind_is_left_for_the_leader() -> None:
    broker = Broker({3: [client_errors.OffsetOutOfRangeError(), batch(3, [b"a"])]})
    broker.replica = True
    assert values(read(broker, 3, 4)) == [b"a"]
    assert broker.fetched == [3, 3]


def test_errors_that_stay() -> None:
    with pytest.raises(LogStartMovedError, match=r"log-0.*3.*outside") as moved:
        read(Broker({3: client_errors.OffsetOutOfRangeError()}), 3, 9)
    assert moved.value.partition == TP
    with pytest.raises(FatalError):
        read(Broker({3: client_errors.TopicAuthorizationFailedError("log")}), 3, 9)


def test_an_answer_that_is_not_there_is_waited_for_as_asked_and_counts_when_it_comes() -> None:
    broker = Broker({0: None})
    fetcher = begun(broker)
    while broker.now < 9:
        assert fetcher.take({TP: 1}, 0.05) == {}
    assert max(broker.waited) < 0.051
    assert broker.fetched == [0], "the one request stays under way"
    assert fetcher.positions == {TP: 0}
    broker.logs[TP][0][:] = [batch(0, [b"a"])]
    assert fetcher.take({TP: 1}, 0.05)[TP].values == [b"a"]
    assert broker.fetched == [0]


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (client_errors.OffsetOutOfRangeError(), LogStartMovedError),
        (client_errors.TopicAuthorizationFailedError("log"), FatalError),
        (batch(1, [b"x"], magic=1), CorruptBatchError),
    ],
)
def test_a_fault_leaves_the_position(fault: Any, raised: type[Exception]) -> None:
    broker = Broker({0: batch(0, [b"a"]), 1: fault})
    fetcher = begun(broker)
    assert fetcher.take({TP: 9}, 0.05)[TP].values == [b"a"]
    with pytest.raises(raised):
        fetcher.take({TP: 9}, 0.05)
    assert fetcher.positions == {TP: 1}
    assert broker.now < 2


def test_a_fault_that_passes_is_none_and_is_named_meanwhile() -> None:
    broker = Broker({0: [client_errors.NodeNotReadyError(1)] * 5 + [batch(0, [b"a"])]})
    fetcher = begun(broker)
    assert fetcher.take({TP: 1}, 0.0) == {}
    assert "log-0" in fetcher.trouble
    assert fetcher.take({TP: 1}, 2.0)[TP].values == [b"a"]
    assert fetcher.trouble == ""


def test_a_fault_of_one_log_loses_nothing_of_another() -> None:
    broker = Broker({0: batch(0, [b"a"])})
    broker.logs[TWO] = {0: [client_errors.OffsetOutOfRangeError()]}
    fetcher = fetcher_of(broker)
    fetcher.go_to({TP: 0, TWO: 0})
    assert fetcher.take({TP: 1, TWO: 1}, 1.0)[TP].values == [b"a"]
    with pytest.raises(LogStartMovedError):
        fetcher.take({TP: 1, TWO: 1}, 1.0)


@pytest.mark.parametrize(
    "answer", [client_errors.UnknownTopicIdError(), client_errors.InconsistentTopicIdError()]
)
def test_a_log_of_another_topic_is_named_and_what_came_before_is_given(answer: Exception) -> None:
    broker = Broker({0: batch(0, [b"a"]), 1: answer})
    fetcher = fetcher_of(broker)
    fetcher.go_to({TP: 0}, ids={"log": "AAAAAAAAAAAAAAAAAAAABQ"})
    assert broker.ids == {"log": "AAAAAAAAAAAAAAAAAAAABQ"}
    assert fetcher.take({TP: 2}, 1.0)[TP].values == [b"a"]
    with pytest.raises(OtherTopicError) as other:
        fetcher.take({TP: 2}, 1.0)
    assert other.value.partitions == {TP}


def test_a_log_that_was_cut_and_written_anew_is_not_read_on() -> None:
    first = bytearray(batch(0, [b"a"]))
    first[12:16] = (7).to_bytes(4, "big")
    broker = Broker({0: bytes(first), 1: DivergedError(0)})
    fetcher = begun(broker)
    assert fetcher.take({TP: 2}, 1.0)[TP].values == [b"a"]
    with pytest.raises(LogTruncatedError, match=r"log-0.*offset 0") as told:
        fetcher.take({TP: 2}, 1.0)
    assert told.value.partition == TP
    assert broker.epochs == [-1, 7]
    broker = Broker({0: bytes(first), 1: DivergedError(0)})
    reader = RangeReader({"bootstrap.servers": "b:1"}, True, fetcher=fetcher_of(broker))
    with pytest.raises(FatalError, match="start again"):
        reader.read({TP: OffsetRange(0, 2)}, 1.0)


def read_or_reason(answer: bytes, **values: Any) -> list[bytes | None] | str:
    broker = Broker({})
    broker.logs[TP] = defaultdict(lambda: [None], {0: [answer]})
    fetcher = begun(broker, **values)
    try:
        chunk = fetcher.take({TP: 9}, 0.0).get(TP)
    except RetriableError as reason:
        return str(reason)
    assert chunk is not None
    return chunk.values


@pytest.mark.parametrize("of", [0, 1], ids=["first batch", "second batch"])
def test_no_flipped_bit_gives_other_records(of: int) -> None:
    """Each bit of a batch, one after the other: header and records. The base offset and the
    leader's epoch are the broker's and in no checksum."""
    written: list[bytes | None] = [b"some value", b"another", b"of the second"]
    parts = [batch(0, [b"some value", b"another"]), batch(2, [b"of the second"])]
    assert read_or_reason(b"".join(parts)) == written
    silent = 0
    for bit in range(len(parts[of]) * 8):
        broken = bytearray(parts[of])
        broken[bit // 8] ^= 1 << bit % 8
        found = read_or_reason(b"".join([*parts[:of], bytes(broken), *parts[of + 1 :]]))
        if isinstance(found, str):
            assert "log-0" in found, (bit, found)
        elif 64 <= bit < 96:
            # A length beyond the answer: taken for cut off, and it is first in the next one.
            assert of == 1
            assert found == written[:2]
        else:
            assert bit < 64 or 96 <= bit < 128, bit
            silent += found == written
    assert 32 <= silent <= 96


def test_a_batch_longer_than_the_answer_that_begins_with_it_is_damaged() -> None:
    broken = bytearray(batch(0, [b"a"]))
    broken[8] ^= 0x40
    assert "longer than" in str(read_or_reason(bytes(broken)))


def test_check_crcs_may_be_off() -> None:
    broken = bytearray(batch(0, [b"some value"]))
    broken[-3] ^= 1
    assert "checksum" in str(read_or_reason(bytes(broken)))
    assert read_or_reason(bytes(broken), check_crcs=False) == [b"some valte"]
    given = {"bootstrap.servers": "a:1"}
    assert LogFetcher.over(given).check_crcs
    assert not LogFetcher.over({**given, "check.crcs": "false"}).check_crcs


def test_a_damaged_batch_is_named_and_fetched_again_after_a_while() -> None:
    broken = bytearray(batch(1, [b"b"]))
    broken[-3] ^= 1
    broker = Broker({0: batch(0, [b"a"]), 1: [bytes(broken), batch(1, [b"b"])]})
    fetcher = begun(broker)
    assert fetcher.take({TP: 2}, 1.0)[TP].values == [b"a"]
    for _ in range(3):
        with pytest.raises(CorruptBatchError, match="log-0, offset 1") as damaged:
            fetcher.take({TP: 2}, 1.0)
        assert damaged.value.partitions == {TP}
    assert broker.fetched == [0, 1]
    broker.now += 10
    with pytest.raises(CorruptBatchError):
        fetcher.take({TP: 2}, 1.0)
    assert fetcher.take({TP: 2}, 1.0)[TP].values == [b"b"]


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1], ids=["plain", "gzip"])
def test_batches_of_old_formats_are_read_too(magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for at in range(3):
        builder.append(at, 1000 + at, b"k", b"old %d" % at)
    broker = Broker({0: bytes(builder.build()) + batch(3, [b"new"])})
    fetcher = begun(broker)
    chunk = fetcher.take({TP: 4}, 1.0)[TP]
    assert chunk.values == [b"old 0", b"old 1", b"old 2", b"new"]
    assert chunk.offsets.tolist() == [0, 1, 2, 3]
    assert chunk.timestamps.tolist() == [*((1000, 1001, 1002) if magic else (-1, -1, -1)), 5]


def test_several_batches_of_one_answer_are_taken_up_to_any_end() -> None:
    answer = batch(0, [b"a", b"b"]) + markers(2) + batch(3, [b"c"]) + batch(4, [b"d", b"e"])
    for cuts in ([1, 3, 4, 6], [2, 5, 6], [3, 6], [6]):
        fetcher = begun(Broker({0: answer}))
        found = [chunk for cut in cuts for chunk in slices(fetcher, cut, 1 << 20)]
        assert [value for chunk, _ in found for value in chunk] == [b"a", b"b", b"c", b"d", b"e"]
        assert [at for _, at in found][-1] == 6


def test_what_one_log_waits_for_does_not_hold_up_what_is_there_of_another() -> None:
    broker = Broker({0: batch(0, [b"a"])})
    broker.logs[TWO] = {0: [None]}
    fetcher = fetcher_of(broker)
    fetcher.go_to({TP: 0, TWO: 0})
    assert list(fetcher.take({TP: 1, TWO: 1}, 9.0)) == [TP]
    assert broker.now < 1.0
    broker.logs[TWO][0][:] = [batch(0, [b"x"])]
    assert fetcher.take({TP: 1, TWO: 1}, 9.0)[TWO].values == [b"x"]


@pytest.mark.parametrize(("chunk_bytes", "most"), [(1, 2990), (2000, 2990), (1 << 20, 60)])
def test_leaving_out_replaced_records_keeps_the_fold(chunk_bytes: int, most: int) -> None:
    built: dict[int, Said | list[Said]] = {}
    for base in range(0, 3000, 1000):
        keys, written = (
            [b"k%d" % (i % 10) for i in range(1000)],
            [b"v%d" % (base + i) for i in range(1000)],
        )
        built[0 if base == 0 else base] = batch(
            base, written, keys, [10_000 - base - i for i in range(1000)]
        )
    built[5] = built[0]
    chunks = list(reader_of(Broker(built), latest=True).read(TP, 5, 2995, chunk_bytes=chunk_bytes))
    folded: dict[bytes | None, bytes | None] = {}
    for chunk in chunks:  # each leaves the store as the log has it up to its position
        folded.update(zip(chunk.keys, chunk.values, strict=True))
        assert folded == {b"k%d" % (i % 10): b"v%d" % i for i in range(5, chunk.next_position)}
    assert max(int(chunk.timestamps.max()) for chunk in chunks if len(chunk)) == 10_000 - 5
    assert sum(len(chunk) for chunk in chunks) <= most
    assert sum(chunk.records for chunk in chunks) == 2990
    assert np.cumsum([chunk.records for chunk in chunks]).tolist() == [
        chunk.next_position - 5 for chunk in chunks
    ]


def test_settings() -> None:
    given = {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": "probe",
        "ssl.endpoint.identification.algorithm": "none",
        "fetch.message.max.bytes": 3,
    }
    made = connection_settings(given)
    assert made.pop("ssl_context").check_hostname is False
    assert made == {
        "bootstrap_servers": "a:1,b:2",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "u",
        "sasl_plain_password": "p",
    }


def test_a_batch_that_is_too_large_is_told_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(data: bytes, wanted: list[record_batches.Batch]) -> None:
        raise FatalError("record batch at offset 0: too much")

    monkeypatch.setattr(record_batches, "columns", refuse)
    fetcher = begun(Broker({0: batch(0, [b"a"])}))
    with pytest.raises(FatalError, match=r"log-0.*offset 0"):
        fetcher.take({TP: 1}, 1.0)


def two_logs(second: bytes) -> LogFetcher:
    broker = Broker({0: batch(0, [b"a"]) + markers(1) + batch(2, [b"b", b"c"])})
    broker.logs[TWO] = {0: [second]}
    fetcher = fetcher_of(broker, check_crcs=False)
    fetcher.go_to({TP: 0, TWO: 0})
    return fetcher


def test_few_records_of_several_logs_are_taken_apart_together() -> None:
    found = two_logs(batch(0, [b"x", b"y"])).take({TP: 4, TWO: 2}, 1.0)
    assert {tp: chunk.values for tp, chunk in found.items()} == {
        TP: [b"a", b"b", b"c"],
        TWO: [b"x", b"y"],
    }


def test_a_damaged_log_beside_others_is_named_and_they_are_read() -> None:
    broken = bytearray(batch(0, [b"x", b"y"]))
    broken[61] = 0x41  # a record of negative length
    fetcher = two_logs(bytes(broken))
    assert fetcher.take({TP: 4, TWO: 2}, 1.0)[TP].values == [b"a", b"b", b"c"]
    with pytest.raises(CorruptBatchError) as damaged:
        fetcher.take({TWO: 2}, 1.0)
    assert damaged.value.partitions == {TWO}


# Fetches with a rack go to the near replica and back (KIP-392).

LEADER, NEAR = 1, 2
UUID = uuid.UUID(int=5)
ID = base64.urlsafe_b64encode(UUID.bytes).decode().rstrip("=")
FETCH_SESSION_TOPIC_ID_ERROR = 106
NEAR_TP, NEAR_TWO = TopicPartition("t", 0), TopicPartition("t", 1)


class Link:
    """The brokers as a client's metadata shows them, which answer at once; ``asked``: (node, rack)
    of each request."""

    def __init__(self) -> None:
        self.nodes = {LEADER, NEAR}
        self.asked: list[tuple[int, str]] = []
        self.logs: list[list[int]] = []
        self.seconds = 100.0
        self.silent = False
        self.newest = 12
        self.topics: list[list[Any]] = []
        self.codes: list[int] = []

    def leader(self, tp: TopicPartition) -> int | None:
        return LEADER

    def leader_epoch(self, tp: TopicPartition) -> int:
        return 5

    def knows(self, node: int) -> bool:
        return node in self.nodes

    def version(self, request: type) -> int:
        return self.newest

    def started(self, coroutine: Callable[[], Any]) -> Any:
        node, request = coroutine.args  # type: ignore[attr-defined]
        self.asked.append((node, request.rack_id))
        self.logs.append([one.partition for t in request.topics for one in t.partitions])
        by_id = request._min_version >= 13
        self.topics.append([t.topic_id if by_id else t.topic for t in request.topics])
        # Only a leader names a replica, and only to a client that says its rack.
        named = NEAR if node == LEADER and request.rack_id else -1
        partitions = [
            SimpleNamespace(
                partition_index=one,
                error_code=0,
                preferred_read_replica=named,
                last_stable_offset=9,
                aborted_transactions=[],
                records=b"",
            )
            for one in self.logs[-1]
        ]
        topics = [
            SimpleNamespace(topic=t.topic, topic_id=t.topic_id, partitions=partitions)
            for t in request.topics
        ]
        code = self.codes.pop(0) if self.codes else 0
        answer = SimpleNamespace(error_code=code, session_id=0, responses=topics)
        return SimpleNamespace(is_done=not self.silent, exception=None, value=answer)

    def turn(self, wait_s: float) -> None:
        self.seconds += wait_s

    def push(self) -> None: ...

    def now(self) -> float:
        return self.seconds

    def close(self) -> None: ...


def fetched(reader: FetchConnection, *logs: TopicPartition) -> set[TopicPartition]:
    reader.fetch({tp: FetchPlace(0) for tp in logs or (NEAR_TP,)})
    return set(reader.answers(0.1))


def opened(link: Link, rack: str = "") -> FetchConnection:
    carrier: Any = link
    return FetchConnection(carrier, rack=rack)


def test_with_a_rack_the_named_replica_is_read() -> None:
    link = Link()
    reader = opened(link, "a")
    for _ in range(3):
        fetched(reader)
    assert link.asked == [(LEADER, "a"), (NEAR, "a"), (NEAR, "a")]


def test_without_a_rack_the_leader_is_read() -> None:
    link = Link()
    reader = opened(link)
    for _ in range(2):
        fetched(reader)
    assert link.asked == [(LEADER, ""), (LEADER, "")]


def test_after_an_error_the_leader_is_asked_again() -> None:
    link = Link()
    reader = opened(link, "a")
    fetched(reader)
    assert reader.forget(NEAR_TP)
    fetched(reader)
    assert [node for node, _ in link.asked] == [LEADER, LEADER]


def test_a_replica_that_left_the_cluster_is_not_asked() -> None:
    link = Link()
    reader = opened(link, "a")
    fetched(reader)
    link.nodes.remove(NEAR)
    fetched(reader)
    assert [node for node, _ in link.asked] == [LEADER, LEADER]


def test_a_replica_is_only_near_for_a_while() -> None:
    link = Link()
    reader = opened(link, "a")
    fetched(reader)
    link.seconds += 299
    fetched(reader)
    link.seconds += 2
    fetched(reader)
    assert [node for node, _ in link.asked] == [LEADER, NEAR, LEADER]


def test_all_logs_of_a_broker_are_in_one_request_and_the_next_waits_for_its_answer() -> None:
    link = Link()
    reader = opened(link)
    assert fetched(reader, NEAR_TP, NEAR_TWO) == {NEAR_TP, NEAR_TWO}
    assert link.logs == [[0, 1]]
    link.silent = True
    assert fetched(reader, NEAR_TP) == set()
    assert fetched(reader, NEAR_TWO) == set()
    assert link.logs == [[0, 1], [0]]


def test_topics_go_by_id_where_the_broker_can_and_all_are_known() -> None:
    link = Link()
    link.newest = 18
    reader = opened(link)
    assert fetched(reader) == {NEAR_TP}
    reader.use_ids({"t": ID})
    assert fetched(reader, NEAR_TP, NEAR_TWO) == {NEAR_TP, NEAR_TWO}
    assert fetched(reader, NEAR_TP, TopicPartition("other", 0)) == {
        NEAR_TP,
        TopicPartition("other", 0),
    }
    assert fetched(reader) == {NEAR_TP}
    assert link.topics == [["t"], [UUID], ["other", "t"], [UUID]]


def test_a_broker_from_before_topic_ids_is_asked_by_name() -> None:
    link = Link()
    reader = opened(link)
    reader.use_ids({"t": ID})
    assert fetched(reader) == {NEAR_TP}
    assert link.topics == [["t"]]


def test_a_session_that_mixes_names_and_ids_begins_anew() -> None:
    link = Link()
    link.newest, link.codes = 18, [FETCH_SESSION_TOPIC_ID_ERROR]
    reader = opened(link)
    reader.use_ids({"t": ID})
    assert fetched(reader) == set()
    assert fetched(reader) == {NEAR_TP}


# Whom a watch of logs asks, what leaders say, and records that cannot be read.

LOGS = [TopicPartition("in", partition) for partition in range(6)]


class WatchLink:
    """Brokers that answer at once; logs lie on them in turn."""

    def __init__(self) -> None:
        self.brokers, self.looked, self.refreshed = 2, 0, 0
        self.sent: list[tuple[int, list[int]]] = []
        self.failure: Exception | None = None

    def leader(self, tp: TopicPartition) -> int | None:
        self.looked += 1
        return tp.partition % self.brokers

    def leader_epoch(self, tp: TopicPartition) -> int:
        return 1

    def version(self, request: type) -> int:
        return 12

    def started(self, coroutine: Callable[[], Any]) -> Any:
        if len(coroutine.args) == 1:  # type: ignore[attr-defined]
            self.refreshed += 1
            return SimpleNamespace(is_done=True, exception=None)
        node, request = coroutine.args  # type: ignore[attr-defined]
        self.sent.append((node, [one.partition for t in request.topics for one in t.partitions]))
        answer = SimpleNamespace(error_code=0, session_id=4, responses=[])
        return SimpleNamespace(is_done=True, exception=self.failure, value=answer)

    def turn(self, wait_s: float) -> None: ...

    def now(self) -> float:
        return 0.0

    def close(self) -> None: ...


def watch_of(link: Any) -> TailWatch:
    """Its clock goes on by a second with each look."""
    seconds = count()
    return TailWatch(FetchConnection(link), lambda: float(next(seconds)))


def test_leaders_are_looked_up_once_for_the_same_logs() -> None:
    link: Any = WatchLink()
    watch, ends = watch_of(link), dict.fromkeys(LOGS, 0)
    for _ in range(3):
        watch.wait(ends, 1.0)
    assert link.looked == len(LOGS)
    link.sent.clear()
    ends = {**ends, LOGS[3]: 5}
    watch.wait(ends, 1.0)
    assert link.sent == [(0, []), (1, [3])], "of a session only what has changed is named"
    assert link.looked == len(LOGS)


def test_other_logs_are_looked_up_and_those_that_are_gone_are_forgotten() -> None:
    link: Any = WatchLink()
    watch = watch_of(link)
    watch.wait(dict.fromkeys(LOGS[:4], 0), 1.0)
    link.looked = 0
    link.sent.clear()
    watch.wait(dict.fromkeys(LOGS[2:], 0), 1.0)
    assert link.looked == 2, "the others' leaders are known"
    assert link.sent == [(0, [4]), (1, [5])]
    assert {tp for one in watch.connection._sessions.values() for tp in one.known} == set(LOGS[2:])


def test_behind_a_failure_they_are_looked_up_anew() -> None:
    """A log has moved: its old leader says so."""
    link: Any = WatchLink()
    watch, ends = watch_of(link), dict.fromkeys(LOGS, 0)
    watch.wait(ends, 1.0)
    link.failure = LinkLostError("gone", sent=True)
    with pytest.raises(RetriableError):
        watch.wait(ends, 1.0)
    link.failure, link.brokers = None, 3
    link.sent.clear()
    watch.wait(ends, 1.0)
    assert link.refreshed == 1
    assert link.sent == [(0, [0, 3]), (1, [1, 4]), (2, [2, 5])], "and named again"


WATCH_TP = TopicPartition("in", 3)
GOOD = [[("h", b"v"), ("", None)], []]
NO_NAME, NEGATIVE = b"\x02\x01\x00", b"\x01"
"""One header whose name has the length -1; a count of -1."""


def chunk(headers: list[bytes | None]) -> LogChunk:
    """Records whose headers are these bytes, or good ones."""
    count = len(headers)
    good = encoded_headers([GOOD[row % 2] for row in range(count)])
    assert good is not None
    bytes_of = [a if b is None else b for a, b in zip(good.to_pylist(), headers, strict=True)]
    texts = pa.array([str(row).encode() for row in range(count)])
    times = np.arange(count, dtype=np.int64)
    columns = RecordColumns(texts, texts, times, pa.array(bytes_of, pa.binary()))
    (records,) = encode(columns, [count], columns.sizes)
    data = framed(records, Producer(-1, -1, False), -1, "none", None)
    found = record_batches.columns(data, record_batches.batches(data))
    return LogChunk(found, count, count)


@pytest.mark.parametrize("bad", [NO_NAME, NEGATIVE], ids=["no name", "negative"])
def test_only_the_records_whose_headers_are_broken_are_left_out(bad: bytes) -> None:
    broken = set(random.Random(len(bad)).sample(range(299), 5)) | {299}  # behind it is no other
    found = chunk([bad if row in broken else None for row in range(300)]).columns(headers=True)
    assert set(found.unread) == broken
    assert found.keys.to_pylist() == found.values.to_pylist()
    assert found.offsets.tolist() == list(range(300))
    listed = listed_headers(found.headers, 300)
    assert [listed[row] for row in range(300) if row not in broken] == [
        GOOD[row % 2] for row in range(300) if row not in broken
    ]


@pytest.mark.parametrize("turned", [False, True], ids=["in place", "turned"])
def test_parts_of_the_same_bytes_are_gathered_together_as_each_alone(turned: bool) -> None:
    found = chunk([NO_NAME if row == 8 else None for row in range(10)]).raw
    parts = [found.of(slice(0, 3)), found.of(slice(3, 3)), found.of(slice(3, 10))]
    parts = [*(reversed(parts) if turned else parts), chunk([None]).raw]
    together = Columns.arrow_together(parts, headers=True)
    for one, part in zip(together, parts, strict=True):
        alone = part.arrow(headers=True)
        assert one.keys.equals(alone.keys)
        assert one.values.equals(alone.values)
        assert one.offsets.tolist() == alone.offsets.tolist()
        assert one.timestamps.tolist() == alone.timestamps.tolist()
        assert listed_headers(one.headers, len(one)) == listed_headers(alone.headers, len(alone))
        assert one.unread.keys() == alone.unread.keys()


def test_they_are_dead_letters_with_their_places() -> None:
    found = chunk([NO_NAME if row in (4, 9) else None for row in range(10)]).columns(headers=True)
    decoder = LogDecoder((reading(serdes.string()),), True, Handlers("dead"))
    hop = decoder.run({WATCH_TP: found}, Judge())
    decoded = hop.batches[1]
    (dead,) = [batch for slot, batch in hop.batches.items() if slot != 1]
    assert decoded.value.to_pylist() == [str(row) for row in range(10) if row not in (4, 9)]
    assert (dead.partition.tolist(), dead.offset.tolist()) == ([3, 3], [4, 9])
    assert [one["value"] for one in dead.value.to_pylist()] == [b"4", b"9"]
    assert all("cannot be read" in one["error"] for one in dead.value.to_pylist())


def test_what_cannot_be_read_stays_with_its_record() -> None:
    one = chunk([None, NO_NAME, None]).columns(headers=True)
    both = LogColumns.concat([one, one])
    assert set(both.unread) == {1, 4}
    assert (set(one.before(2).unread), set(one.before(1).unread)) == ({1}, set())
