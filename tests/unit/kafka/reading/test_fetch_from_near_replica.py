"""KIP-392: fetches of an instance with a rack go to the replica that the leader names, and back to
the leader when it is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.kafka.connection_settings import connection_settings
from everflow.kafka.reading import fetch_connection
from everflow.kafka.reading.fetch_connection import FetchConnection
from everflow.records import TopicPartition

LEADER, NEAR = 1, 2
TP = TopicPartition("t", 0)


class Cluster:
    """The brokers as a client's metadata shows them, and what was asked of whom: (node, rack)."""

    def __init__(self) -> None:
        self.nodes = {LEADER, NEAR}
        self.named = NEAR
        self.asked: list[tuple[int, str]] = []

    def leader_for_partition(self, tp: Any) -> int:
        return LEADER

    def leader_epoch_for_partition(self, tp: Any) -> int:
        return 5

    def broker_metadata(self, node: int) -> object | None:
        return object() if node in self.nodes else None


class Manager:
    """kafka-python's connections, answered at once."""

    broker_version_data = SimpleNamespace(api_version=lambda request: 12)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> Any:
        return asyncio.run(call(*arguments))

    def get_connection(self, node: int) -> Any:
        class Connection:
            transport = None

            def __await__(self) -> Any:
                return iter(())

        return Connection()

    async def send(self, request: Any, node_id: int) -> Any:
        self.cluster.asked.append((node_id, request.rack_id))
        # Only a leader names a replica, and only to a client that says its rack.
        named = self.cluster.named if node_id == LEADER and request.rack_id else -1
        partition = SimpleNamespace(preferred_read_replica=named)
        return SimpleNamespace(responses=[SimpleNamespace(partitions=[partition])])


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setattr(
        fetch_connection, "KafkaConsumer", lambda **_: SimpleNamespace(_manager=Manager(cluster))
    )
    return cluster


def connection(**config: str) -> FetchConnection:
    settings = connection_settings({"bootstrap.servers": "b:9092", **config})
    assert settings is not None
    return FetchConnection(settings, 1 << 20, 1.0, "reading")


def test_with_a_rack_the_named_replica_is_read(cluster: Cluster) -> None:
    reader = connection(**{"client.rack": "a"})
    for offset in range(3):
        reader.fetch(TP, offset)
    assert cluster.asked == [(LEADER, "a"), (NEAR, "a"), (NEAR, "a")]


def test_without_a_rack_the_leader_is_read(cluster: Cluster) -> None:
    reader = connection()
    for offset in range(2):
        reader.fetch(TP, offset)
    assert cluster.asked == [(LEADER, ""), (LEADER, "")]


def test_after_an_error_the_leader_is_asked_again(cluster: Cluster) -> None:
    reader = connection(**{"client.rack": "a"})
    reader.fetch(TP, 0)
    assert reader.back_to_leader(TP)
    assert not reader.back_to_leader(TP)
    reader.fetch(TP, 1)
    assert [node for node, _ in cluster.asked] == [LEADER, LEADER]


def test_a_replica_that_left_the_cluster_is_not_asked(cluster: Cluster) -> None:
    reader = connection(**{"client.rack": "a"})
    reader.fetch(TP, 0)
    cluster.nodes.remove(NEAR)
    reader.fetch(TP, 1)
    assert [node for node, _ in cluster.asked] == [LEADER, LEADER]


def test_a_replica_is_only_near_for_a_while(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(fetch_connection, "time", SimpleNamespace(monotonic=lambda: now[0]))
    reader = connection(**{"client.rack": "a"})
    reader.fetch(TP, 0)
    now[0] += 299
    reader.fetch(TP, 1)
    now[0] += 2
    reader.fetch(TP, 2)
    assert [node for node, _ in cluster.asked] == [LEADER, NEAR, LEADER]
