"""Partitioners on a broker: one partition, several, none, or as the key says."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.runtime.query.key_metadata import default_partitioner
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]
TEXT = serdes.string()


def spread(topic: str, key: str, value: str, partitions: int) -> Any:
    """Of 3 partitions: by the key, the last one, all, none."""
    return [None, partitions - 1, list(range(partitions)), []][int(value)]


def test_records_go_where_the_partitioner_says(app: Application, cluster: Cluster) -> None:
    source, called, chosen = (cluster.topic(name, 3) for name in ("in", "called", "chosen"))
    builder = StreamsBuilder()
    stream = builder.stream(source, key=TEXT, value=TEXT)
    stream.to(called, partitioner=spread)
    again = stream.repartition(name="again", partitions=4, partitioner=F.col("value").cast("int"))
    again.map_values(F.col("partition").cast("string")).to(
        chosen, partitioner=F.pmod(F.col("value").cast("int"), F.lit(3))
    )
    cluster.write(source, [text(f"k{n}", str(n), n) for n in range(4)])
    with app.running(builder.build()) as streams:
        app.until_processed(streams, source, f"{app.id}-again-repartition")
    found = {(one.value, one.partition) for one in cluster.read(called)}
    by_key = default_partitioner(b"k0", 3)
    assert found == {(b"0", by_key), (b"1", 2), (b"2", 0), (b"2", 1), (b"2", 2)}
    behind = {(one.key, one.value, one.partition) for one in cluster.read(chosen)}
    assert behind == {(f"k{n}".encode(), str(n).encode(), n % 3) for n in range(4)}
