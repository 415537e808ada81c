"""Partitions on a broker: of a producer in Python, of a partitioner of the program, and of tables
that meet by a foreign key."""

from __future__ import annotations

import logging
import zlib
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.instance.query.queries import default_partitioner
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, in_json, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEY, ORDER, CITY = serdes.string(), serdes.json("n bigint, who string"), serdes.string()
PEOPLE = [f"w{number}" for number in range(40)]
PARTITIONS = 3


@pytest.mark.parametrize("said", [None, "crc32"])
def test_a_topic_of_a_producer_in_python(
    app: Application, cluster: Cluster, caplog: pytest.LogCaptureFixture, said: str | None
) -> None:
    orders, cities, out = (cluster.topic(name, PARTITIONS) for name in ("orders", "cities", "out"))
    given: dict[str, Any] = {} if said is None else {"partitioner": said}
    builder = StreamsBuilder()
    table = builder.table(cities, key=KEY, value=CITY, store="cities", **given)
    by_who = builder.stream(orders, key=KEY, value=ORDER).select_key(F.col("value.who"))
    by_who.left_join(table, F.col("right"), name="by-who").to(out)
    cluster.write(
        cities,
        [text(who, f"city of {who}", 1, zlib.crc32(who.encode()) % PARTITIONS) for who in PEOPLE],
    )
    with caplog.at_level(logging.WARNING, "everflow"), app.running(builder.build()) as streams:
        app.until_processed(streams, cities)
        cluster.write(orders, [in_json(None, {"n": 1, "who": who}, 2, 0) for who in PEOPLE])
        app.until_processed(streams, orders)
        app.until_processed(streams, f"{app.id}-by-who-repartition")
        store = streams.store("cities")
        found = [store.get(who) for who in PEOPLE]
        partition = streams.query_metadata_for_key("cities", PEOPLE[0]).partition
    values = {one.key: one.value for one in cluster.read(out)}
    told = [line for line in caplog.messages if cities in line and "crc32" in line]
    if said is None:
        assert list(values.values()).count(None) > 10
        assert len(told) == 1
    else:
        assert values == {who.encode(): f"city of {who}".encode() for who in PEOPLE}
        assert found == [f"city of {who}" for who in PEOPLE]
        assert partition == zlib.crc32(PEOPLE[0].encode()) % PARTITIONS
        assert told == []


def spread(topic: str, key: str, value: str, partitions: int) -> Any:
    """One of 3 partitions by the key, the last one, all of them, none."""
    return [None, partitions - 1, list(range(partitions)), []][int(value)]


def test_records_go_where_the_partitioner_and_the_topic_by_record_say(
    app: Application, cluster: Cluster
) -> None:
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


def test_foreign_keys_meet_over_tasks_of_their_own(app: Application, cluster: Cluster) -> None:
    orders, people, out = (
        cluster.topic(name, count) for name, count in (("orders", 2), ("people", 3), ("out", 2))
    )
    builder = StreamsBuilder()
    left = builder.table(
        orders, key=KEY, value=serdes.json("city string, age bigint"), store="orders"
    )
    right = builder.table(people, key=KEY, value=serdes.string(), store="people")
    # Neither has a store of its own.
    left.filter(lambda one: one["age"] >= 0).join(
        right.map_values(F.upper("value")).map_values(F.lower("value")),
        lambda one, other: f"{one['age']} {other}",
        on=lambda one: one["city"],
        name="of",
        returns="string",
    ).to_stream().to(out)

    def placed(record: Record, count: int) -> Record:
        assert record.key is not None
        return record._replace(partition=default_partitioner(record.key, count))

    cities = [f"c{number}" for number in range(7)]
    asked = [in_json(f"o{n}", {"city": cities[n % 7], "age": n}, n) for n in range(40)]
    with app.running(builder.build()) as streams:
        cluster.write(people, [placed(text(city, f"in {city}", 1), 3) for city in cities[:5]])
        cluster.write(orders, [placed(one, 2) for one in asked])
        app.until_processed(streams, orders, people)
        cluster.write(people, [placed(text(city, f"near {city}", 50), 3) for city in cities[3:]])
        app.until_processed(streams, people)
        for topic in ("of-asks", "of-answers"):
            app.until_processed(streams, f"{app.id}-{topic}-repartition")
    found = {one.key: one.value for one in cluster.read(out)}
    assert found == {
        f"o{n}".encode(): f"{n} {'in' if n % 7 < 3 else 'near'} {cities[n % 7]}".encode()
        for n in range(40)
    }
