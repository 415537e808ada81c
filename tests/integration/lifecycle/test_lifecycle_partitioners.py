"""Partitions on a broker: of a producer in Python, and of a partitioner of the program."""

import logging
import zlib
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.errors import RecordError
from everflow.instance.query.queries import default_partitioner
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, in_json, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEY, ORDER = serdes.string(), serdes.json("who string")
PEOPLE = [f"w{number}" for number in range(40)]
PARTITIONS = 3


def test_a_topic_of_a_producer_in_python(
    app: Application, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """`test_driver_operators` has the cure."""
    orders, cities, out = (cluster.topic(name, PARTITIONS) for name in ("orders", "cities", "out"))
    builder = StreamsBuilder()
    table = builder.table(cities, key=KEY, value=KEY, store="cities")
    by_who = builder.stream(orders, key=KEY, value=ORDER).select_key(F.col("value.who"))
    by_who.left_join(table, F.col("right"), name="by-who").to(out)
    places = [zlib.crc32(who.encode()) % PARTITIONS for who in PEOPLE]
    cluster.write(
        cities, [text(who, who, 1, place) for who, place in zip(PEOPLE, places, strict=True)]
    )
    with caplog.at_level(logging.WARNING, "everflow"), app.running(builder.build()) as streams:
        app.until_processed(streams, cities)
        cluster.write(orders, [in_json(None, {"who": who}, 2, 0) for who in PEOPLE])
        app.until_processed(streams, orders, f"{app.id}-by-who-repartition")
    assert [one.value for one in cluster.read(out)].count(None) > 10
    assert len([line for line in caplog.messages if cities in line and "crc32" in line]) == 1


def spread(topic: str, key: str, value: str, partitions: int) -> Any:
    """One of 3 partitions by the key, the last one, all of them, none."""
    return [None, partitions - 1, list(range(partitions)), []][int(value)]


def test_records_go_where_partitioner_and_topic_say(app: Application, cluster: Cluster) -> None:
    source, called, chosen = (cluster.topic(name, 3) for name in ("in", "called", "chosen"))
    only = [cluster.topic(f"only-{n}", 1) for n in range(4)]
    builder = StreamsBuilder()
    stream = builder.stream(source, key=KEY, value=KEY)
    stream.to(called, partitioner=spread)
    stream.to(F.concat(F.lit(f"{cluster.prefix}-only-"), "value"))
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
    assert [[one.value for one in cluster.read(topic)] for topic in only] == [
        [str(n).encode()] for n in range(4)
    ]
    behind = {(one.key, one.value, one.partition) for one in cluster.read(chosen)}
    assert behind == {(f"k{n}".encode(), str(n).encode(), n % 3) for n in range(4)}


def test_keys_in_place_need_no_topic_and_one_elsewhere_ends_it(
    app: Application, cluster: Cluster
) -> None:
    source, out = cluster.topic("in", PARTITIONS), cluster.topic("out", PARTITIONS)
    builder = StreamsBuilder()
    both = F.struct(F.col("key").alias("who"), F.col("value").alias("what"))
    keyed = builder.stream(source, key=KEY, value=KEY).select_key(both)
    keyed = keyed.assume_partitioned(by="who")
    counts = keyed.group_by_key().count(store="counts").to_stream()
    counts.map_values(F.col("value").cast("string")).to(out)
    home = {who: default_partitioner(who.encode(), PARTITIONS) for who in PEOPLE}
    written = [text(who, what, 1, home[who]) for what in ("a", "b", "a") for who in PEOPLE]
    cluster.write(source, written)
    with app.running(builder.build(), num_stream_threads=2) as streams:
        app.until_processed(streams, source)
        store = streams.store("counts")
        assert {store.get({"who": who, "what": "a"}) for who in PEOPLE} == {2}
        assert not [topic for topic in cluster.topics() if "repartition" in topic]
        elsewhere = (home["w0"] + 1) % PARTITIONS
        cluster.write(source, [text("w0", "a", 2, elsewhere)])
        wait_until(lambda: streams.error is not None, 60, "the instance to end")
        error = streams.error
    assert isinstance(error, RecordError)
    assert (error.topic, error.partition, error.node) == (source, elsewhere, keyed.node)
    assert "w0" in str(error)
    assert sum(int(one.value or b"0") == 2 for one in cluster.read(out)) == len(PEOPLE)
