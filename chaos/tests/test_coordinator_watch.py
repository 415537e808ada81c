"""Which transactions of a broker are taken for stuck: those that stay decided, and no others."""

import time
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from chaos.rounds import coordinator
from chaos.rounds.coordinator import (
    LOOK_EVERY_S,
    STUCK_S,
    CoordinatorStuckError,
    CoordinatorWatch,
    Decided,
    Forgotten,
    Stuck,
    Told,
    committed_at,
    decided_at,
    left_open,
)
from everflow.kafka.admin import ClusterAdmin

ONE = Decided("chaos-a-0", 1, 4, 1_000)
OTHER = Decided("chaos-b-0", 2, 0, 1_500)
NEXT = ONE._replace(epoch=5, began_ms=2_000)
"""The same id's next transaction."""


def test_a_transaction_that_is_decided_in_every_look_is_stuck() -> None:
    stuck: Stuck[Decided] = Stuck()
    assert stuck.seen([ONE], 0.0) == []
    assert stuck.seen([ONE, OTHER], STUCK_S - 1) == []
    assert stuck.seen([ONE, OTHER], STUCK_S) == [ONE]
    assert stuck.seen([OTHER], STUCK_S + 1) == [], "it was completed"
    assert stuck.seen([ONE], STUCK_S + 2) == [], "and begins anew"


def test_transactions_one_after_the_other_are_not() -> None:
    stuck: Stuck[Decided] = Stuck()
    stuck.seen([ONE], 0.0)
    assert stuck.seen([NEXT], STUCK_S) == []


def test_a_restart_that_does_not_help_is_another_fault() -> None:
    stuck: Stuck[Decided] = Stuck()
    stuck.seen([ONE, OTHER], 0.0)
    stuck.restarted([ONE])
    assert not stuck.helped([ONE])
    assert stuck.helped([OTHER])
    assert stuck.seen([ONE, OTHER], 100.0) == [], "its markers are on their way"
    with pytest.raises(CoordinatorStuckError, match="chaos-a-0"):
        stuck.seen([ONE], 100.0 + STUCK_S)


class Broker:
    """One whose coordinator is stuck until it is restarted."""

    running = True
    bootstrap_servers = "b:1"
    restarts = 0

    def restart(self) -> None:
        self.restarts += 1


def test_the_broker_is_restarted_once_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    broker: Any = Broker()
    looks: list[str] = []
    told: list[str] = []
    now_s = 0.0

    def decided(servers: str) -> list[Decided] | None:
        looks.append(servers)
        if 4.0 < now_s < 8.0:
            return None  # it does not answer
        return [ONE] if broker.restarts == 0 else []

    monkeypatch.setattr(coordinator, "decided_at", decided)
    monkeypatch.setattr(coordinator, "committed_at", lambda *_: None)
    watch = CoordinatorWatch(broker, "chaos", told.append, lambda: now_s)
    while now_s < 2 * STUCK_S:
        watch.look()
        now_s += 0.2
    assert broker.restarts == 1
    assert told == [f"decided for {STUCK_S:.0f} s without markers: chaos-a-0"]
    assert len(looks) <= 2 * STUCK_S / LOOK_EVERY_S + 1
    assert watch.helped()
    broker.running, before = False, len(looks)
    now_s += 100.0
    watch.look()
    assert len(looks) == before, "a broker that is away is not asked"


def test_what_is_told_less_of_than_before_is_forgotten() -> None:
    told = Told()
    assert told.forgotten({("in", 0): 5, ("in", 1): 7}) == []
    assert told.forgotten({("in", 0): 4}) == [Forgotten("in", 0, 5), Forgotten("in", 1, 7)]
    assert told.forgotten({("in", 0): 5, ("in", 1): 8}) == []
    assert told.forgotten({("in", 0): 9, ("in", 1): 7}) == [Forgotten("in", 1, 8)]


def test_a_broker_that_forgot_offsets_is_restarted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    broker: Any = Broker()
    said: list[str] = []
    now_s = 0.0

    def committed(servers: str, group: str) -> dict[tuple[str, int], int]:
        forgets = now_s > 10.0 and broker.restarts == 0
        return {("in", 0): 40 if forgets else 100}

    monkeypatch.setattr(coordinator, "decided_at", lambda *_: [])
    monkeypatch.setattr(coordinator, "committed_at", committed)
    watch = CoordinatorWatch(broker, "chaos", said.append, lambda: now_s)
    watch.note()
    now_s = 11.0
    while now_s < 10.0 + 3 * STUCK_S:
        watch.look()
        now_s += 0.2
    assert broker.restarts == 1
    assert said == ["forgotten committed offsets: in-0 (100)"]


@pytest.mark.broker
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


@pytest.mark.broker
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
