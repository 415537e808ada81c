"""What the reader and the writer make of every fault between them and the brokers, each of which is
shown to have happened: late and repeated requests (KIP-890), lost answers, refusals, silence."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from everflow.errors import (
    EverflowError,
    FatalError,
    GenerationChanged,
    LogStartMovedError,
    RecordTooLargeError,
    RetriableError,
    TaskMigratedError,
    UnknownOutcomeError,
)
from everflow.kafka.admin import ClusterAdmin, Isolation
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.reading.log_fetcher import LogFetcher
from everflow.kafka.reading.log_reader import LogReader
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.kafka.writing.transaction import GroupMetadata
from everflow.records import TopicPartition
from everflow.testing.kafka_proxy import KafkaProxy, WireFault
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker

Topic = Callable[..., str]


def test_each_refusal_is_read_by_the_client(own_proxy: KafkaProxy, topic: Topic, name: str) -> None:
    target = topic(1)

    def attempt() -> list[int]:
        client = {"bootstrap.servers": own_proxy.bootstrap_servers, "transactional.id": name}
        producer = Producer({**client, "transaction.timeout.ms": 5_000})
        met: list[int] = []
        try:
            producer.init_transactions(10)
            producer.begin_transaction()
            producer.produce(target, b"v")
            producer.flush(10)
            consumer = Consumer(
                {"bootstrap.servers": own_proxy.bootstrap_servers, "group.id": name}
            )
            offsets = [ClientTopicPartition(target, 0, 1)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 10)
            producer.commit_transaction(10)
        except KafkaException as failure:
            met.append(failure.args[0].code())
        return met

    fatal = KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    for api, code in {
        "Produce": KafkaError.TOPIC_AUTHORIZATION_FAILED,
        "InitProducerId": fatal,
        "AddPartitionsToTxn": fatal,
        "AddOffsetsToTxn": fatal,
        "TxnOffsetCommit": KafkaError.GROUP_AUTHORIZATION_FAILED,
        "EndTxn": fatal,
        "FindCoordinator": fatal,
    }.items():
        fault = own_proxy.refuse(api, code, times=None, topic=target if api == "Produce" else None)
        found = attempt()
        fault.end()
        assert code in found, api
        assert fault.happened >= 1
    assert attempt() == []


def test_a_cut_ends_and_a_silent_one_freezes(own_proxy: KafkaProxy) -> None:
    link = BrokerLink({"bootstrap_servers": own_proxy.bootstrap_servers}, 1_000, 10)
    assert link.run(link.transaction_version) >= 0
    own_proxy.cut()
    with pytest.raises(Exception, match=r"."):
        link.run(link.transaction_version)
    own_proxy.mend()
    wait_until(lambda: answers(link), 20, "an answer after the cut")
    own_proxy.cut(silent=True)
    began = time.monotonic()
    assert not answers(link)
    assert time.monotonic() - began > 0.9, "its time-out, not an error"
    own_proxy.mend()
    wait_until(lambda: answers(link), 20, "an answer after the silence")
    link.close()


def answers(link: BrokerLink) -> bool:
    try:
        link.run(link.transaction_version)
    except Exception:
        return False
    return True


def test_wrong_names_are_refused(own_proxy: KafkaProxy) -> None:
    with pytest.raises(ValueError, match="'Prodcue' is none"):
        own_proxy.hold("Prodcue")
    with pytest.raises(ValueError, match=r"refusal.*'Metadata'"):
        own_proxy.refuse("Metadata", 3)
    with pytest.raises(AssertionError, match=r"waited 0\.1.*<WireFault.*EndTxn"):
        own_proxy.drop("EndTxn").wait(timeout_s=0.1)


K = KafkaError
READ_S = 60.0


@pytest.fixture(scope="module")
def proxy(bootstrap: str) -> Iterator[KafkaProxy]:
    with KafkaProxy(bootstrap) as standing:
        yield standing


@pytest.fixture
def written(bootstrap: str, topic: Topic) -> TopicPartition:
    tp = TopicPartition(topic(1), 0)
    write_one(RecordWriter({"bootstrap.servers": bootstrap}, None), tp)
    return tp


def write_one(writer: RecordWriter, tp: TopicPartition) -> None:
    try:
        writer.begin()
        writer.write(tp.topic, [b"k"], [b"v"], np.array([1_700_000_000_000]), tp.partition)
        writer.flush(30)
        writer.commit(30)
    finally:
        writer.close()


def read(proxy: KafkaProxy, tp: TopicPartition, timeout_s: float = READ_S) -> list[bytes | None]:
    fetcher = LogFetcher.over({"bootstrap.servers": proxy.bootstrap_servers})
    try:
        fetcher.go_to({tp: 0})
        found = fetcher.take({tp: 1}, timeout_s)
        return list(found[tp].values) if tp in found else []
    finally:
        fetcher.close()


@pytest.mark.parametrize(
    "code",
    [
        K.NOT_LEADER_FOR_PARTITION,
        K.LEADER_NOT_AVAILABLE,
        K.KAFKA_STORAGE_ERROR,
        K.UNKNOWN_LEADER_EPOCH,
        K.FENCED_LEADER_EPOCH,
        K.UNKNOWN_TOPIC_OR_PART,
        K.REPLICA_NOT_AVAILABLE,
    ],
)
def test_a_refused_fetch_is_repeated(proxy: KafkaProxy, written: TopicPartition, code: int) -> None:
    fault = proxy.refuse("Fetch", code, 2)
    assert read(proxy, written) == [b"v"]
    assert fault.happened == 2


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (K.TOPIC_AUTHORIZATION_FAILED, FatalError, "reading {tp}, at 0"),
        (K.OFFSET_OUT_OF_RANGE, LogStartMovedError, "{tp}: offset 0 is outside"),
    ],
)
def test_a_fetch_that_stays_refused_is_told_with_the_log_and_the_offset(
    proxy: KafkaProxy, written: TopicPartition, code: int, error: type[EverflowError], says: str
) -> None:
    fault = proxy.refuse("Fetch", code, None)
    try:
        with pytest.raises(error) as refused:
            read(proxy, written, timeout_s=1.0)
    finally:
        fault.end()
    assert fault.happened >= 1
    assert type(refused.value) is error
    assert says.format(tp=written) in str(refused.value)
    assert read(proxy, written) == [b"v"], "the next read, after the fault"


@pytest.mark.parametrize(
    "code", [K.COORDINATOR_NOT_AVAILABLE, K.COORDINATOR_LOAD_IN_PROGRESS, K.NOT_COORDINATOR]
)
def test_coordinators_are_retried(proxy: KafkaProxy, topic: Topic, name: str, code: int) -> None:
    tp = TopicPartition(topic(1), 0)
    fault = proxy.refuse("FindCoordinator", code, 2)
    write_one(RecordWriter({"bootstrap.servers": proxy.bootstrap_servers}, name), tp)
    assert fault.happened == 2
    assert read(proxy, tp) == [b"v"]


def test_a_forbidden_coordinator_names_the_id(proxy: KafkaProxy, topic: Topic, name: str) -> None:
    tp = TopicPartition(topic(1), 0)
    fault = proxy.refuse("FindCoordinator", K.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None)
    try:
        with pytest.raises(FatalError, match=name):
            write_one(RecordWriter({"bootstrap.servers": proxy.bootstrap_servers}, name), tp)
    finally:
        fault.end()
    assert fault.happened >= 1


SECOND_PART = 2
FIRST = 1
LEVELS: tuple[Isolation, ...] = ("read_committed", "read_uncommitted")


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


@both
def test_a_late_record_of_an_aborted_transaction_holds_no_reader_back(
    proxy: KafkaProxy, bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str, version: int
) -> None:
    """KIP-890, part 1: a Produce behind the abort would open a transaction that nobody ends."""
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


CASES = [
    Case("too large", refused("Produce", K.MSG_SIZE_TOO_LARGE), RecordTooLargeError, "too large"),
    Case("no topic, then there", refused("Produce", K.UNKNOWN_TOPIC_OR_PART, 2), None),
    Case(
        "no topic", refused("Produce", K.UNKNOWN_TOPIC_OR_PART), RetriableError, "create the topic"
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
    Case("fenced commit", refused("EndTxn", K.PRODUCER_FENCED), TaskMigratedError, "Another owner"),
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
