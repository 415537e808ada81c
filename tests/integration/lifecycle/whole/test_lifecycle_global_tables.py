"""Global tables on a broker: whole before the first record, followed over restarts, read anew where
the topic is another one."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, Topology, serdes
from everflow.errors import RecordError
from everflow.instance.tasks.task import TaskRole
from everflow.records import TaskId
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    CAUGHT_UP_S,
    Application,
    Cluster,
    in_json,
    text,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEY, ORDER, CITY = serdes.string(), serdes.json("who string, n bigint"), serdes.json("city string")
ORDER_CITY = serdes.json("n bigint, city string")
PEOPLE = [f"w{number}" for number in range(9)]


def topology(orders: str, cities: str, out: str) -> Topology:
    builder = StreamsBuilder()
    table = builder.global_table(cities, key=KEY, value=CITY, store="cities")
    stream = builder.stream(orders, key=KEY, value=ORDER)
    stream.left_join(table, on=F.col("value.who"), n=F.col("left.n"), city=F.col("right.city")).to(
        out
    )
    return builder.build()


def test_a_global_table_is_whole_before_the_first_record_and_over_restarts(
    app: Application, cluster: Cluster
) -> None:
    orders, out, dead = (cluster.topic(name, 2) for name in ("orders", "out", "dead"))
    cities = cluster.topic("cities", 3)
    program = topology(orders, cities, out)
    # By nobody's partitioner; and what is no JSON leaves the entry before it.
    cluster.write(
        cities,
        [in_json(who, {"city": f"old {who}"}, 1, at % 3) for at, who in enumerate(PEOPLE)]
        + [text("w1", "{", 2, 1), text(None, "{}", 2, 1)],
    )
    cluster.write(orders, [in_json("k", {"who": who, "n": 1}, 1, 0) for who in (*PEOPLE, "gone")])
    settings: dict[str, Any] = {"errors_dead_letter_queue_topic_name": dead}
    with app.running(program, **settings) as streams:
        app.until_processed(streams, orders)
        found = dict(streams.store("cities").all())
        assert found == {who: {"city": f"old {who}"} for who in PEOPLE}
        assert streams.store("cities").get("w4") == {"city": "old w4"}
        tables = {
            task: one for task, one in streams.all_tasks().items() if one.role is TaskRole.GLOBAL
        }
        assert {task: one.copied for task, one in tables.items()} == {
            TaskId(0, 0): 3,
            TaskId(0, 1): 5,
            TaskId(0, 2): 3,
        }
        assert streams.query_metadata_for_key("cities", "w4").lag == 0
    # While it is down one changes, one goes, one comes.
    cluster.write(
        cities,
        [
            in_json("w0", {"city": "new w0"}, 3, 0),
            text("w1", None, 3, 1),
            in_json("gone", {"city": "found"}, 3, 2),
        ],
    )
    cluster.write(orders, [in_json("k", {"who": who, "n": 2}, 1, 0) for who in (*PEOPLE, "gone")])
    with app.running(program, **settings) as streams:
        app.until_processed(streams, orders)
        # A late update, of an older time.
        cluster.write(cities, [in_json("w2", {"city": "late w2"}, 0, 2)])
        wait_until(
            lambda: streams.store("cities").get("w2") == {"city": "late w2"},
            CAUGHT_UP_S,
            "the late update",
        )
        cluster.write(orders, [in_json("k", {"who": "w2", "n": 3}, 1, 0)])
        app.until_processed(streams, orders)
    now = {who: f"old {who}" for who in PEOPLE}
    wanted = [(1, now.get(who)) for who in (*PEOPLE, "gone")]
    now |= {"w0": "new w0", "gone": "found"}
    del now["w1"]
    wanted += [(2, now.get(who)) for who in (*PEOPLE, "gone")] + [(3, "late w2")]
    assert [ORDER_CITY.decode(one.value) for one in cluster.read(out)] == [
        {"n": n, "city": city} for n, city in wanted
    ]
    letters = cluster.read(dead)
    assert [(one.key, one.value) for one in letters] == [(b"w1", b"{")]
    assert dict(letters[0].headers)["__streams.errors.offset"] == b"3"


def test_another_topic_of_the_name_is_read_anew_and_bad_records_stop_the_start(
    app: Application, cluster: Cluster
) -> None:
    orders, out = (cluster.topic(name, 1) for name in ("orders", "out"))
    cities = cluster.topic("cities", 1)
    cluster.write(cities, [in_json("w0", {"city": "first"}), in_json("w1", {"city": "first"})])
    cluster.write(orders, [in_json("k", {"who": "w0", "n": 1})])
    app.run_through(topology(orders, cities, out), orders)
    cluster.delete(cities)
    assert cluster.topic("cities", 1) == cities
    cluster.write(cities, [in_json("w1", {"city": "second"})])
    cluster.write(orders, [in_json("k", {"who": who, "n": 2}) for who in ("w0", "w1")])
    with app.running(topology(orders, cities, out)) as streams:
        app.until_processed(streams, orders)
        assert dict(streams.store("cities").all()) == {"w1": {"city": "second"}}
    assert [ORDER_CITY.decode(one.value)["city"] for one in cluster.read(out)] == [
        "first",
        None,
        "second",
    ]
    cluster.write(cities, [text("w2", "{", 1)])
    began = time.monotonic()
    with pytest.raises(RecordError, match="valid") as error:
        app.instance(topology(orders, cities, out)).start()
    assert (error.value.topic, error.value.offset) == (cities, 1)
    assert time.monotonic() - began < CAUGHT_UP_S
