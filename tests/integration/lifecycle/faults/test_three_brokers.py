"""An instance on three brokers, of which one or the other is away: each record counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from everflow import StreamsBuilder, serdes
from everflow.testing import EmbeddedCluster
from integration.lifecycle.lifecycle_cluster import Application, Cluster, last_by_key, long, text

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]
PARTITIONS = 2


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


def test_leaders_change_and_every_broker_restarts(
    three: EmbeddedCluster, spark: SparkSession, tmp_path: Path
) -> None:
    cluster = Cluster(three.bootstrap_servers, "three")
    for name in ("three-in", "three-out"):
        three.create_topic(name, PARTITIONS)
    builder = StreamsBuilder()
    stream = builder.stream("three-in", key=serdes.string(), value=serdes.string())
    stream.group_by_key().count(store="counts").to_stream().to("three-out")
    app = Application(cluster, tmp_path, {"task_timeout_ms": 180_000})
    sent = 0

    def write(count: int) -> None:
        nonlocal sent
        cluster.write(
            "three-in",
            [text(f"k{n % 7}", "v", n, n % 7 % PARTITIONS) for n in range(sent, sent + count)],
        )
        sent += count

    with app.running(builder.build()) as streams:
        write(100)
        app.until_processed(streams, "three-in")
        lost = three.leader("three-in", 0)
        lost.kill()
        write(100)
        app.until_processed(streams, "three-in")
        assert three.leader("three-in", 0) is not lost, "another one leads"
        lost.restart()
        three.wait_until_in_sync()
        for broker in three.brokers:
            broker.stop()
            write(50)
            broker.restart()
            three.wait_until_in_sync()
        app.until_processed(streams, "three-in")
        assert streams.error is None
    counts = {key: long(value) for key, value in last_by_key(cluster.read("three-out")).items()}
    assert counts == Counter(b"k%d" % (n % 7) for n in range(sent))
    cluster.close()
