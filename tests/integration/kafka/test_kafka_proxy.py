"""The proxy that other tests trust: clients stay on it, and its faults happen when it says so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientTopicPartition

from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.broker_link import BrokerLink
from everflow.kafka.writing.record_writer import RecordWriter
from everflow.records import TopicPartition
from everflow.testing.kafka_proxy import KafkaProxy
from everflow.testing.waiting import wait_until

pytestmark = pytest.mark.broker
Topic = Callable[..., str]


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[KafkaProxy]:
    with KafkaProxy(bootstrap) as standing:
        yield standing


def test_clients_of_both_kinds_stay_on_it(proxy: KafkaProxy, topic: Topic, name: str) -> None:
    target = topic(2)
    producer = Producer({"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(target, b"v", b"k", partition=0)
    producer.commit_transaction(10)
    writer = RecordWriter({"bootstrap.servers": proxy.bootstrap_servers}, f"{name}-own")
    writer.begin()
    writer.write(target, [b"a"] * 3, [b"b"] * 3, np.arange(3), 1)
    writer.flush(10)
    writer.commit(10)
    writer.close()
    consumer = Consumer({"bootstrap.servers": proxy.bootstrap_servers, "group.id": name})
    consumer.assign([ClientTopicPartition(target, number, 0) for number in (0, 1)])
    seen: list[object] = []

    def all_four() -> bool:
        seen.extend(consumer.consume(9, 0.1))
        return len(seen) == 4

    wait_until(all_four, 20, "four records", seen)
    consumer.close()
    wanted = {"Produce", "EndTxn", "InitProducerId", "FindCoordinator", "Fetch", "Metadata"}
    assert wanted <= set(proxy.seen)
    assert proxy.seen["EndTxn"] == 2


def test_each_refusal_is_read_by_the_client(proxy: KafkaProxy, topic: Topic, name: str) -> None:
    """librdkafka checks an answer's form, and gives the code that was set."""
    target = topic(1)

    def attempt() -> list[int]:
        client = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": name}
        producer = Producer({**client, "transaction.timeout.ms": 5_000})
        met: list[int] = []
        try:
            producer.init_transactions(10)
            producer.begin_transaction()
            producer.produce(target, b"v")
            producer.flush(10)
            consumer = Consumer({"bootstrap.servers": proxy.bootstrap_servers, "group.id": name})
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
        fault = proxy.refuse(api, code, times=None, topic=target if api == "Produce" else None)
        found = attempt()
        fault.end()
        assert code in found, api
        assert fault.happened >= 1
    assert attempt() == []


def test_a_refused_fetch_is_read_by_the_client(proxy: KafkaProxy, topic: Topic, name: str) -> None:
    target = topic(1)
    consumer = Consumer({"bootstrap.servers": proxy.bootstrap_servers, "group.id": name})
    fault = proxy.refuse("Fetch", KafkaError.TOPIC_AUTHORIZATION_FAILED, times=None)
    consumer.assign([ClientTopicPartition(target, 0, 0)])
    seen: list[object] = []

    def refused() -> bool:
        message = consumer.poll(0.1)
        error = None if message is None else message.error()
        seen.append(error)
        return error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

    wait_until(refused, 20, "the refusal", seen)
    fault.wait()
    consumer.close()


def test_a_lost_answer_is_of_something_done(
    proxy: KafkaProxy, admin: ClusterAdmin, topic: Topic
) -> None:
    target = topic(1)
    fault = proxy.lose_answer("Produce", topic=target)
    config = {"bootstrap.servers": proxy.bootstrap_servers, "enable.idempotence": True}
    producer = Producer(config)
    producer.produce(target, b"v")
    assert producer.flush(20) == 0
    fault.wait()
    tp = TopicPartition(target, 0)
    assert proxy.seen["Produce"] >= 2
    assert admin.end_offsets([tp], "read_uncommitted") == {tp: 1}, "sent twice, taken once"


def test_what_is_held_comes_late_even_if_the_client_is_gone(
    proxy: KafkaProxy, admin: ClusterAdmin, topic: Topic
) -> None:
    target = topic(1)
    tp = TopicPartition(target, 0)
    fault = proxy.hold("Produce", topic=target)
    config = {"bootstrap.servers": proxy.bootstrap_servers, "message.timeout.ms": 1_000}
    producer = Producer({**config, "retries": 0})
    producer.produce(target, b"v")
    fault.wait()
    producer.flush(10)
    del producer
    assert admin.end_offsets([tp], "read_uncommitted") == {tp: 0}
    fault.release()
    wait_until(lambda: admin.end_offsets([tp], "read_uncommitted") == {tp: 1}, 10, "the record")


def test_a_cut_ends_and_a_silent_one_freezes(proxy: KafkaProxy) -> None:
    link = BrokerLink({"bootstrap_servers": proxy.bootstrap_servers}, 1_000, 10)
    assert link.run(link.transaction_version) >= 0
    proxy.cut()
    with pytest.raises(Exception, match=r"."):
        link.run(link.transaction_version)
    proxy.mend()
    wait_until(lambda: answers(link), 20, "an answer after the cut")
    proxy.cut(silent=True)
    began = time.monotonic()
    assert not answers(link)
    assert time.monotonic() - began > 0.9, "its time-out, not an error"
    proxy.mend()
    wait_until(lambda: answers(link), 20, "an answer after the silence")
    link.close()


def answers(link: BrokerLink) -> bool:
    try:
        link.run(link.transaction_version)
    except Exception:
        return False
    return True


def test_wrong_names_are_refused(proxy: KafkaProxy) -> None:
    with pytest.raises(ValueError, match="'Prodcue' is none of Produce"):
        proxy.hold("Prodcue")
    with pytest.raises(ValueError, match=r"refusal.*'Metadata'"):
        proxy.refuse("Metadata", 3)
    with pytest.raises(AssertionError, match=r"waited 0\.1.*<WireFault.*EndTxn"):
        proxy.drop("EndTxn").wait(timeout_s=0.1)
