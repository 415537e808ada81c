"""What our own reader makes of the codes with which a broker refuses its fetches, and our own
writer of those with which one refuses to name a coordinator; each is shown to have been met."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from confluent_kafka import KafkaError

from everflow.errors import EverflowError, FatalError, LogStartMovedError
from everflow.kafka.reading.fetch_tap import FetchTap
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition
from everflow.testing.kafka_proxy import KafkaProxy

pytestmark = pytest.mark.broker
Topic = Callable[..., str]
K = KafkaError
READ_S = 60.0


@pytest.fixture(scope="module")
def proxy(bootstrap: str) -> Iterator[KafkaProxy]:
    with KafkaProxy(bootstrap) as standing:
        yield standing


@pytest.fixture
def written(bootstrap: str, topic: Topic) -> TopicPartition:
    tp = TopicPartition(topic(1), 0)
    write(RecordWriter({"bootstrap.servers": bootstrap}, None), tp)
    return tp


def write(writer: RecordWriter, tp: TopicPartition) -> None:
    try:
        writer.begin()
        writer.write(tp.topic, [b"k"], [b"v"], np.array([1_700_000_000_000]), tp.partition)
        writer.flush(30)
        writer.commit(30)
    finally:
        writer.close()


def read(proxy: KafkaProxy, tp: TopicPartition, timeout_s: float = READ_S) -> list[bytes | None]:
    tap = FetchTap.over({"bootstrap.servers": proxy.bootstrap_servers})
    try:
        tap.go_to({tp: 0})
        found = tap.take({tp: 1}, timeout_s)
        return list(found[tp].values) if tp in found else []
    finally:
        tap.close()


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
def test_a_fetch_that_is_refused_for_now_is_sent_again(
    proxy: KafkaProxy, written: TopicPartition, code: int
) -> None:
    fault = proxy.refuse("Fetch", code, 2)
    assert read(proxy, written) == [b"v"]
    assert fault.happened == 2


@pytest.mark.parametrize(
    ("code", "error", "says"),
    [
        (K.TOPIC_AUTHORIZATION_FAILED, FatalError, "reading {tp}, at 0"),
        (K.OFFSET_OUT_OF_RANGE, LogStartMovedError, "{tp}: offset 0 is outside the log"),
    ],
)
def test_a_fetch_that_stays_refused_is_told_with_the_log_and_the_offset(
    proxy: KafkaProxy,
    written: TopicPartition,
    code: int,
    error: type[EverflowError],
    says: str,
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
def test_a_coordinator_that_nobody_names_yet_is_looked_for_again(
    proxy: KafkaProxy, topic: Topic, name: str, code: int
) -> None:
    tp = TopicPartition(topic(1), 0)
    fault = proxy.refuse("FindCoordinator", code, 2)
    write(RecordWriter({"bootstrap.servers": proxy.bootstrap_servers}, name), tp)
    assert fault.happened == 2
    assert read(proxy, tp) == [b"v"]


def test_a_coordinator_that_is_forbidden_is_told_with_the_transactional_id(
    proxy: KafkaProxy, topic: Topic, name: str
) -> None:
    tp = TopicPartition(topic(1), 0)
    fault = proxy.refuse("FindCoordinator", K.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, None)
    try:
        with pytest.raises(FatalError, match=name):
            write(RecordWriter({"bootstrap.servers": proxy.bootstrap_servers}, name), tp)
    finally:
        fault.end()
    assert fault.happened >= 1
