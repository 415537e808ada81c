"""What the writer makes of every fault between it and the brokers, each of which is shown to have
happened: late and repeated requests (KIP-890), lost answers, refusals, silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

import numpy as np
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from everflow.config import StreamsConfig
from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    RecordTooLargeError,
    RetriableError,
    TaskMigratedError,
    UnknownOutcomeError,
)
from everflow.kafka import dead_letters
from everflow.kafka.admin import ClusterAdmin, Isolation
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import GroupMetadata
from everflow.records import TopicPartition
from everflow.testing.kafka_proxy import KafkaProxy, WireFault
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]
SECOND_PART, FIRST = 2, 1
LEVELS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")


@pytest.fixture(scope="module")
def proxy(bootstrap: str) -> Iterator[KafkaProxy]:
    with KafkaProxy(bootstrap) as standing:
        yield standing


@pytest.fixture
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Transaction protocol: the newest (KIP-890), or the one before."""
    chosen: int = request.param

    async def said(_: BrokerLink) -> int:
        return chosen

    monkeypatch.setattr(BrokerLink, "transaction_version", said)
    return chosen


both = pytest.mark.parametrize(
    "version", [SECOND_PART, FIRST], ids=["second part", "first"], indirect=True
)


def values(bootstrap: str, tp: TopicPartition, end: int) -> list[bytes | None]:
    with LogReader({"bootstrap.servers": bootstrap}) as reader:
        return [value for chunk in reader.read(tp, 0, end) for value in chunk.values]


def stable_end(admin: ClusterAdmin, tp: TopicPartition) -> int:
    """The values of the log, once no transaction is open; markers come a moment after a commit."""

    def ends() -> list[int]:
        return [admin.end_offsets([tp], one)[tp] for one in LEVELS]

    wait_until(lambda: len(set(ends())) == 1, 10, "the last stable offset to be the end", ends)
    return ends()[0]


def write(writer: RecordWriter, tp: TopicPartition, value: bytes) -> None:
    writer.write(tp.topic, [b"k"], [value], np.array([1_700_000_000_000]), tp.partition)
    writer.flush(10)


def client(proxy: KafkaProxy) -> dict[str, str]:
    return {"bootstrap.servers": proxy.bootstrap_servers}


# --- a late EndTxn --------------------------------------------------------------------------------


def test_librdkafka_commits_half_of_the_next_transaction(
    proxy: KafkaProxy, admin: ClusterAdmin, topic: Topic, name: str
) -> None:
    """Why the writer is our own (note 019), and proof that the proxy brings the fault about: the
    first EndTxn is asked for twice, and the first request arrives in the next transaction."""
    tp = TopicPartition(topic(1), 0)
    producer = Producer({**client(proxy), "transactional.id": name})
    producer.init_transactions(10)
    late = proxy.hold("EndTxn", breaks=True)
    for value in (b"first", b"second"):
        producer.begin_transaction()
        producer.produce(tp.topic, value, b"k", partition=0)
        producer.flush(10)
        if value == b"first":
            producer.commit_transaction(20)
            late.wait()
    late.release()
    wait_until(
        lambda: admin.end_offsets([tp], "read_committed")[tp] == 4,
        10,
        "the second record to be committed, though nobody has asked for that",
    )
    producer.produce(tp.topic, b"third", b"k", partition=0)
    with pytest.raises(KafkaException, match="transaction"):
        producer.commit_transaction(10)


@both
def test_a_late_commit_ends_nothing_of_ours(
    proxy: KafkaProxy, bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str, version: int
) -> None:
    tp = TopicPartition(topic(1), 0)
    writer = RecordWriter(client(proxy), name)
    late = proxy.hold("EndTxn", breaks=True)
    before = proxy.seen["EndTxn"]
    writer.begin()
    write(writer, tp, b"first")
    writer.commit(20)
    late.wait()
    assert proxy.seen["EndTxn"] - before == 2, "asked for again, over another connection"
    writer.begin()
    write(writer, tp, b"second")
    late.release()
    write(writer, tp, b"third")
    assert admin.end_offsets([tp], "read_committed")[tp] == 2, "the second is still open"
    writer.commit(10)
    writer.close()
    assert values(bootstrap, tp, stable_end(admin, tp)) == [b"first", b"second", b"third"]


def test_a_late_commit_ends_no_half_of_a_replay(
    proxy: KafkaProxy,
    bootstrap: str,
    admin: ClusterAdmin,
    topic: Topic,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Dead letters are replayed in many transactions of one producer."""
    monkeypatch.setattr(dead_letters, "AT_ONCE", 2)
    dead, one, two = (TopicPartition(topic(1), 0) for _ in range(3))
    config = {"application.id": "dlq", "bootstrap.servers": proxy.bootstrap_servers}

    def letter(offset: int, source: TopicPartition) -> dead_letters.DeadLetter:
        return dead_letters.DeadLetter(
            place=dead_letters.LetterPlace(0, offset),
            timestamp=1_700_000_000_000,
            key=b"k",
            value=b"%d" % offset,
            own=(),
            about={"topic": source.topic, "partition": "0"},
        )

    committed: list[int] = []

    def partitions(asked: str) -> int:
        if asked == two.topic and proxy.seen["EndTxn"] - before == 2:
            # The second transaction has written to the first topic.
            replayer._writer.flush(10)
            late.release()
            replayer._writer.flush(10)
            committed.append(admin.end_offsets([one], "read_committed")[one])
        return 1

    with closing(dead_letters.Replayer(StreamsConfig(config), dead.topic, partitions)) as replayer:
        before, late = proxy.seen["EndTxn"], proxy.hold("EndTxn", breaks=True)
        chosen = [letter(n, (one, two)[n % 2]) for n in range(4)]
        assert replayer.replay(chosen, None) == 4
    assert committed == [2], "a record and its marker: the second is still open"
    assert values(bootstrap, one, stable_end(admin, one)) == [b"0", b"2"]
    assert values(bootstrap, two, stable_end(admin, two)) == [b"1", b"3"]
    with LogReader({"bootstrap.servers": bootstrap}) as reader:
        notes = [
            key for chunk in reader.read(dead, 0, stable_end(admin, dead)) for key in chunk.keys
        ]
    assert notes == [f"{dead_letters.REPLAYED}/0@{n}".encode() for n in range(4)]


@both
def test_a_late_record_of_an_aborted_transaction_holds_no_reader_back(
    proxy: KafkaProxy, bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str, version: int
) -> None:
    """KIP-890's first part: a Produce request that comes after the abort would open a transaction
    that nobody ends."""
    tp = TopicPartition(topic(1), 0)
    writer = RecordWriter({**client(proxy), "request.timeout.ms": 1_000}, name)
    writer.begin()
    write(writer, tp, b"first")
    writer.commit(10)
    late = proxy.hold("Produce", times=None, topic=tp.topic, breaks=True)
    writer.begin()
    writer.write(tp.topic, [b"k"], [b"lost"], np.array([1_700_000_000_000]), 0)
    with pytest.raises(RetriableError):
        writer.flush(0.5)
    writer.abort(5)
    late.release()
    writer.begin()
    write(writer, tp, b"second")
    writer.commit(10)
    writer.close()

    end = stable_end(admin, tp)
    assert values(bootstrap, tp, end) == [b"first", b"second"]


# --- one fault each -------------------------------------------------------------------------------


class Case(NamedTuple):
    """A fault, and what the writer says of the batch; None: it commits in spite of it. ``only``: of
    a request that one protocol alone has."""

    id: str
    fault: Callable[[KafkaProxy, str], WireFault]
    error: type[EverflowError] | None
    says: str = ""
    only: int | None = None


def refused(
    api: str, code: int, times: int | None = None
) -> Callable[[KafkaProxy, str], WireFault]:
    def set_it(proxy: KafkaProxy, topic: str) -> WireFault:
        return proxy.refuse(api, code, times, topic=topic if api == "Produce" else None)

    return set_it


K = KafkaError
CASES = [
    Case("too large", refused("Produce", K.MSG_SIZE_TOO_LARGE), RecordTooLargeError, "too large"),
    Case("no topic, then there", refused("Produce", K.UNKNOWN_TOPIC_OR_PART, 2), None),
    Case(
        "no topic",
        refused("Produce", K.UNKNOWN_TOPIC_OR_PART),
        RetriableError,
        "create the topic",
    ),
    Case("forbidden topic", refused("Produce", K.TOPIC_AUTHORIZATION_FAILED), FatalError, "mend"),
    Case("fenced", refused("Produce", K.INVALID_PRODUCER_EPOCH), TaskMigratedError, "owner"),
    Case("leader gone", refused("Produce", K.NOT_LEADER_FOR_PARTITION, 2), None),
    Case("too few replicas", refused("Produce", K.NOT_ENOUGH_REPLICAS, 2), None),
    Case("disk", refused("Produce", K.KAFKA_STORAGE_ERROR, 1), None),
    Case("lost acknowledgement", lambda p, t: p.lose_answer("Produce", topic=t), None),
    Case("lost records", lambda p, t: p.drop("Produce", topic=t), None),
    Case("slow broker", lambda p, t: p.delay("Produce", 0.3, topic=t), None),
    Case(
        "silent broker",
        lambda p, t: p.hold("Produce", None, topic=t),
        RetriableError,
        "not delivered within 2 s",
    ),
    Case(
        "forbidden id",
        refused("AddPartitionsToTxn", K.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        FatalError,
        "mend",
        FIRST,
    ),
    Case("markers", refused("AddPartitionsToTxn", K.CONCURRENT_TRANSACTIONS, 2), None, "", FIRST),
    Case("moved", refused("AddPartitionsToTxn", K.NOT_COORDINATOR, 1), None, "", FIRST),
    Case(
        "forbidden group",
        refused("AddOffsetsToTxn", K.GROUP_AUTHORIZATION_FAILED),
        FatalError,
        "mend",
        FIRST,
    ),
    Case("lost AddOffsets", lambda p, _: p.lose_answer("AddOffsetsToTxn"), None, "", FIRST),
    Case(
        "old generation",
        refused("TxnOffsetCommit", K.ILLEGAL_GENERATION),
        GenerationChanged,
        "rebalanced",
    ),
    Case("not a member", refused("TxnOffsetCommit", K.UNKNOWN_MEMBER_ID), TaskMigratedError),
    Case(
        "forbidden group, offsets",
        refused("TxnOffsetCommit", K.GROUP_AUTHORIZATION_FAILED),
        FatalError,
        "mend",
    ),
    Case("group loads", refused("TxnOffsetCommit", K.COORDINATOR_LOAD_IN_PROGRESS, 2), None),
    Case("lost offsets", lambda p, _: p.lose_answer("TxnOffsetCommit"), None),
    Case("commit asked for twice", lambda p, _: p.drop("EndTxn"), None),
    Case("commit done, answer lost", lambda p, _: p.lose_answer("EndTxn"), None),
    Case(
        "no commit at all",
        lambda p, _: p.drop("EndTxn", None),
        UnknownOutcomeError,
        "no answer to the commit within 2 s",
    ),
    Case(
        "committed, never told",
        lambda p, _: p.lose_answer("EndTxn", None),
        UnknownOutcomeError,
        "no answer to the commit within 2 s",
    ),
    Case(
        "fenced commit",
        refused("EndTxn", K.PRODUCER_FENCED),
        TaskMigratedError,
        "Another owner",
    ),
    Case(
        "forbidden commit",
        refused("EndTxn", K.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        FatalError,
        "mend",
    ),
]


EACH = [
    pytest.param(
        case,
        version,
        id=f"{case.id}-{version}",
        marks=pytest.mark.slow if version == FIRST and case.only is None else (),
    )
    for case in CASES
    for version in (SECOND_PART, FIRST)
    if case.only in (None, version)
]


@pytest.mark.parametrize(("case", "version"), EACH, indirect=["version"])
def test_each_fault_has_its_reaction(
    proxy: KafkaProxy,
    bootstrap: str,
    admin: ClusterAdmin,
    topic: Topic,
    name: str,
    version: int,
    case: Case,
) -> None:
    """And none leaves half a batch: readers see it as a whole, with its offsets, or not at all."""
    tp, source = TopicPartition(topic(1), 0), TopicPartition(topic(1), 0)
    config = {**client(proxy), "topic.metadata.propagation.max.ms": 500}

    def run(writer: RecordWriter, offset: int) -> None:
        writer.begin()
        writer.write(tp.topic, [b"k"], [b"%d" % offset], np.array([1_700_000_000_000]), 0)
        writer.flush(2)
        member = GroupMetadata(-1, name, "", None).encode()
        writer.send_offsets([(source.topic, 0, offset, "text")], member, 2)
        writer.commit(2)

    def attempt(offset: int) -> EverflowError | None:
        writer = RecordWriter.get(config, name)
        try:
            run(writer, offset)
        except EverflowError as error:
            try:
                writer.abort(2)
            except EverflowError:
                writer.close()
            return error
        return None

    assert attempt(1) is None
    fault = case.fault(proxy, tp.topic)
    error = attempt(2)
    assert fault.happened >= 1
    fault.end()
    if fault.act == "hold":
        fault.release()
    if case.error is None:
        assert error is None, error
    else:
        assert type(error) is case.error, error
        assert case.says in str(error)
    assert attempt(3) is None, "the next batch, after the fault"
    RecordWriter.get(config, name).close()
    seen = values(bootstrap, tp, stable_end(admin, tp))
    took_place = error is None or case.id == "committed, never told"
    assert seen == ([b"1", b"2", b"3"] if took_place else [b"1", b"3"])
    assert admin.committed(name, [source])[source].offset == 3
