"""The door before a real broker: a transaction shows in one log, and later in another."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from chaos.rounds import markers
from chaos.rounds.markers import MarkerDoor, broker_with_door
from chaos.rounds.schedule import LOGS, OFFSETS
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition as Place
from everflow.testing.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]  # a broker of its own
LONG_S = 10.0
"""Below the time in which a coordinator gives a request up."""


@pytest.mark.parametrize("late", [LOGS, OFFSETS])
def test_one_log_shows_a_transaction_before_another(
    late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(markers, "LATE_S", LONG_S)
    door = MarkerDoor()
    with broker_with_door(tmp_path / "broker", "127.0.0.1", "512m", door) as broker:
        servers = broker.bootstrap_servers
        broker.create_topic("log")
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "group"})
        producer = Producer({"bootstrap.servers": servers, "transactional.id": "id"})
        producer.init_transactions(60)
        admin = ClusterAdmin({"bootstrap.servers": servers})

        def write(offset: int) -> None:
            producer.begin_transaction()
            producer.produce("log", b"v")
            offsets = [TopicPartition("log", 0, offset)]
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), 60)
            producer.commit_transaction(60)

        place = Place("log", 0)
        write(1)
        wait_until(
            lambda: admin.end_offsets([place], "read_committed")[place] == 2, 60, "it to show"
        )
        door.hold(late)
        writing = threading.Thread(target=write, args=(2,))
        writing.start()

        def shown() -> tuple[bool, bool]:
            """In the log, and in the committed offsets."""
            ends = admin.end_offsets([place], "read_committed")
            found = admin.committed("group", [place], 10.0, stable=False)
            return ends[place] == 4, found[place].offset == 2

        wait_until(lambda: any(shown()), 60, "half of it to show")
        assert shown() == ((False, True) if late == LOGS else (True, False))
        wait_until(lambda: all(shown()), 60, "all of it to show")
        assert door.held == 1
        writing.join()
        consumer.close()
        admin.close()
    door.close()
