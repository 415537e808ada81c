"""A topic that confluent-kafka has written, on a broker: told where nothing says so, joined and
queried where the source does."""

from __future__ import annotations

import logging
import zlib
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from integration.lifecycle.lifecycle_cluster import Application, Cluster, in_json, text

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
