"""Brokers do not do their part for one task: the others of its thread go on, and what ends the
instance names the task and the cause (KIP-572, note 051)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError

from everflow import StreamsBuilder, TaskId, Topology, serdes
from everflow.errors import TaskTimeoutError
from everflow.testing import wait_until
from everflow.testing.kafka_proxy import KafkaProxy
from integration.lifecycle.lifecycle_cluster import (
    Application,
    Cluster,
    closed,
    text,
    until_failed,
    until_running,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]
WAIT_S = 120.0


def two_flows(prefix: str) -> Topology:
    """Two sub-topologies that have nothing in common but their thread."""
    builder = StreamsBuilder()
    for name in ("a", "b"):
        stream = builder.stream(f"{prefix}-in-{name}", key=serdes.string(), value=serdes.string())
        stream.group_by_key().count(store=f"counts-{name}").to_stream().to(f"{prefix}-out-{name}")
    return builder.build()


@pytest.fixture
def proxy(bootstrap: str) -> Iterator[KafkaProxy]:
    with KafkaProxy(bootstrap) as standing:
        yield standing


@pytest.mark.slow
def test_an_output_that_takes_nothing_holds_up_its_own_task_and_is_named(
    proxy: KafkaProxy, cluster: Cluster, tmp_path: Path
) -> None:
    for name in ("in-a", "in-b", "out-a", "out-b"):
        cluster.topic(name, 1)
    good, bad = TaskId(0, 0), TaskId(1, 0)
    behind = Cluster(proxy.bootstrap_servers, cluster.prefix)
    app = Application(
        behind,
        tmp_path,
        {
            "task_timeout_ms": 15_000,
            "producer.topic.metadata.propagation.max.ms": 500,
        },
    )
    streams = app.instance(two_flows(cluster.prefix))
    sent = 0

    def write(name: str) -> None:
        nonlocal sent
        cluster.write(f"{cluster.prefix}-in-{name}", [text("k", "v", sent)])
        sent += 1

    def written(name: str) -> int:
        return len(cluster.read(f"{cluster.prefix}-out-{name}"))

    try:
        streams.start()
        until_running(streams)
        away = proxy.refuse(
            "Produce",
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            times=None,
            topic=f"{cluster.prefix}-out-b",
        )
        write("b")
        away.wait(timeout_s=WAIT_S)
        for count in range(1, 4):
            write("a")

            def there(least: int = count) -> bool:
                return written("a") >= least

            wait_until(there, WAIT_S, "the other task's record")
        assert written("b") == 0
        wait_until(lambda: streams.all_tasks()[bad].trouble, WAIT_S, "its trouble to be shown")
        assert streams.all_tasks()[good].trouble is None
        late = until_failed(streams, WAIT_S)
        assert isinstance(late, TaskTimeoutError)
        assert late.task == bad
        assert f"Task {bad} made no progress for" in str(late)
        assert f"{cluster.prefix}-out-b" in str(late)
    finally:
        closed(streams)
        behind.close()
    assert written("a") == 3
