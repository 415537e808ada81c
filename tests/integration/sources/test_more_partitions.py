"""Partitions that an input without a state gets while instances run: they are read, nothing stops
(as Kafka Streams makes tasks for them at the next rebalance)."""

from __future__ import annotations

import pytest

from everflow import StreamsBuilder, Topology, serdes
from everflow.instance.client_state import ClientState
from everflow.instance.topics import topic_watch
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]
TEXT = serdes.string()


def program(free: str, kept: str, out: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream(free, key=TEXT, value=TEXT, offset_reset="earliest").to(out)
    builder.stream(kept, key=TEXT, value=TEXT).group_by_key().count(store="n")
    return builder.build()


def test_new_partitions_of_a_stateless_part_are_read_beside_a_stateful_one(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_watch, "PERIOD_MS", 200.0)
    free, kept, out = cluster.topic("free", 2), cluster.topic("kept", 1), cluster.topic("out", 1)
    cluster.write(free, [text("k", "1"), text("k", "2", 1, 1)])
    cluster.write(kept, [text("k", "v")])

    def written() -> list[str]:
        return sorted((one.value or b"").decode() for one in cluster.read(out))

    with app.running(program(free, kept, out)) as streams:
        app.until_processed(streams, free)
        cluster.grow(free, 4)
        cluster.write(free, [text("k", str(n), 1, n - 1) for n in (3, 4)])
        cluster.write(free, [text("k", "5", 1, 0)])
        wait_until(lambda: written() == list("12345"), 90, "the records of the new partitions")
        assert streams.state is ClientState.RUNNING
        assert dict(streams.store("n").all()) == {"k": 1}
