"""A lookup join on a broker: records wait over restarts, and in a store that is restored."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from integration.lifecycle.lifecycle_cluster import Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

TEXT = serdes.string()


def test_records_wait_over_restarts(app: Application, cluster: Cluster) -> None:
    orders, cities, out = (cluster.topic(name, 1) for name in ("orders", "cities", "out"))
    builder = StreamsBuilder()
    table = builder.table(cities, key=TEXT, value=TEXT, store="cities")
    stream = builder.stream(orders, key=TEXT, value=TEXT)
    both = F.concat_ws("&", F.col("left"), F.coalesce(F.col("right"), F.lit("_")))
    stream.lookup_join(table, both, grace=50, store="waiting").to(out)
    topology = builder.build()
    cluster.write(orders, [text("a", "A", 100), text("b", "B", 101), text("a", "C", 102)])
    app.run_through(topology, orders)
    assert cluster.read(out) == []
    shutil.rmtree(app.folder)  # from the changelog alone
    cluster.write(cities, [text("a", "Rome", 1)])
    cluster.write(orders, [text("c", "D", 152)])
    app.run_through(topology, orders, cities, spark_job_per_batch=True)
    cluster.write(orders, [text("b", "E", 153)])
    cluster.write(cities, [text("b", "Oslo", 154)])
    app.run_through(topology, orders, cities)
    assert [(one.key, one.value, one.timestamp) for one in cluster.read(out)] == [
        (b"a", b"A&Rome", 100),
        (b"a", b"C&Rome", 102),
        (b"b", b"B&_", 101),
        (b"b", b"E&Oslo", 153),
    ]
