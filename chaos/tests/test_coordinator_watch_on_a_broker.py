"""What the coordinators of a real broker say of transactions and offsets."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from chaos.rounds import coordinator
from chaos.rounds.coordinator import committed_at, decided_at, left_open
from everflow.kafka.admin import ClusterAdmin

pytestmark = pytest.mark.broker


def test_an_open_transaction_is_not_decided(
    bootstrap: str, admin: ClusterAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, topic = f"watched-{uuid4().hex[:8]}", f"watched-{uuid4().hex[:8]}"
    admin.create_topics({topic: (1, {})})
    began_ms = time.time() * 1000
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"v")
    producer.flush(60)
    assert [one for one in decided_at(bootstrap) or () if one.transactional_id == name] == []
    assert [told for told in left_open(bootstrap, time.time() * 1000) if name in told] == []
    later_ms = time.time() * 1000 + 600_000
    (told,) = [told for told in left_open(bootstrap, later_ms) if name in told]
    assert "nobody has fenced" in told
    monkeypatch.setattr(coordinator, "DECIDED", ("Ongoing",))
    (found,) = [one for one in decided_at(bootstrap) or () if one.transactional_id == name]
    assert abs(found.began_ms - began_ms) < 600_000
    producer.abort_transaction(60)
    assert [one for one in decided_at(bootstrap) or () if one.transactional_id == name] == []
    assert decided_at("127.0.0.1:1") is None


def test_what_a_group_has_committed(bootstrap: str, admin: ClusterAdmin) -> None:
    topic = group = f"watched-{uuid4().hex[:8]}"
    admin.create_topics({topic: (2, {})})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[TopicPartition(topic, 1, 7)], asynchronous=False)
    finally:
        consumer.close()
    assert committed_at(bootstrap, group) == {(topic, 1): 7}
    assert committed_at("127.0.0.1:1", group) is None
