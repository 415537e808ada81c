"""A lookup join on a broker, where nothing but the clock ends a wait."""

from __future__ import annotations

import shutil

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import CAUGHT_UP_S, Application, Cluster, text

pytestmark = [pytest.mark.broker, pytest.mark.spark, pytest.mark.slow]

TEXT = serdes.string()


def test_records_wait_for_a_global_table_and_the_clock_where_nothing_else_comes(
    app: Application, cluster: Cluster
) -> None:
    orders, cities, out = (cluster.topic(name, 2) for name in ("orders", "cities", "out"))
    builder = StreamsBuilder()
    table = builder.global_table(cities, key=TEXT, value=TEXT, store="cities")
    stream = builder.stream(orders, key=TEXT, value=TEXT)
    both = F.concat_ws("&", F.col("left"), F.coalesce(F.col("right"), F.lit("_")))
    stream.lookup_join(table, both, on=F.col("value"), timeout="5 seconds", store="waiting").to(out)
    topology = builder.build()
    cluster.write(orders, [text("1", "ann", 100), text("2", "bob", 1, 1), text("3", "ann", 5, 1)])
    app.run_through(topology, orders)
    assert cluster.read(out) == []
    shutil.rmtree(app.folder)  # from the changelog alone
    with app.running(topology):
        cluster.write(cities, [text("ann", "Rome", 1)])  # no order comes any more
        wait_until(lambda: len(cluster.read(out)) == 2, CAUGHT_UP_S, "the orders of ann")
        wait_until(lambda: len(cluster.read(out)) == 3, CAUGHT_UP_S, "the end of bob's wait")
        committed = cluster.committed(app.id, orders)
        cluster.write(cities, [text("zoe", "Oslo", 1)])
    assert sorted((one.key, one.value, one.timestamp) for one in cluster.read(out)) == [
        (b"1", b"ann&Rome", 100),
        (b"2", b"bob&_", 1),
        (b"3", b"ann&Rome", 5),
    ]
    # Where nobody waits, the clock's looks commit nothing.
    assert cluster.committed(app.id, orders) == committed
