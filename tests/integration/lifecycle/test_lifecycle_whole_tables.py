"""Tables that are read whole, of topics and DataFrames, and lookup joins that wait for entries."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, Topology, serdes
from everflow.errors import TableLoadError
from everflow.instance.tasks.task import TaskRole
from everflow.records import TaskId
from everflow.spark.session import get_session
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import CAUGHT_UP_S, Application, Cluster, in_json, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEY, ORDER, CITY = serdes.string(), serdes.json("who string, n bigint"), serdes.json("city string")
ORDER_CITY = serdes.json("n bigint, city string")
PEOPLE = [f"w{number}" for number in range(9)]


def global_program(orders: str, cities: str, out: str) -> Topology:
    builder = StreamsBuilder()
    table = builder.global_table(cities, key=KEY, value=CITY, store="cities")
    stream = builder.stream(orders, key=KEY, value=ORDER)
    stream.left_join(table, on=F.col("value.who"), n=F.col("left.n"), city=F.col("right.city")).to(
        out
    )
    return builder.build()


def test_a_global_table_is_whole_at_every_start(app: Application, cluster: Cluster) -> None:
    orders, out, dead = (cluster.topic(name, 2) for name in ("orders", "out", "dead"))
    cities = cluster.topic("cities", 3)
    program = global_program(orders, cities, out)
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


def test_another_topic_of_the_name_is_read_anew(app: Application, cluster: Cluster) -> None:
    orders, out = (cluster.topic(name, 1) for name in ("orders", "out"))
    cities = cluster.topic("cities", 1)
    cluster.write(cities, [in_json("w0", {"city": "first"}), in_json("w1", {"city": "first"})])
    cluster.write(orders, [in_json("k", {"who": "w0", "n": 1})])
    app.run_through(global_program(orders, cities, out), orders)
    cluster.delete(cities)
    assert cluster.topic("cities", 1) == cities
    cluster.write(cities, [in_json("w1", {"city": "second"})])
    cluster.write(orders, [in_json("k", {"who": who, "n": 2}) for who in ("w0", "w1")])
    with app.running(global_program(orders, cities, out)) as streams:
        app.until_processed(streams, orders)
        assert dict(streams.store("cities").all()) == {"w1": {"city": "second"}}
    assert [ORDER_CITY.decode(one.value)["city"] for one in cluster.read(out)] == [
        "first",
        None,
        "second",
    ]


TEXT = serdes.string()


def loaded_program(orders: str, out: str, late: str, lake: Path) -> Topology:
    spark, builder = get_session(), StreamsBuilder()
    people = builder.global_table_from(
        lambda: spark.read.schema("who string, city string").json(str(lake)),
        key="who",
        refresh=timedelta(seconds=1),
        store="people",
    )
    stream = builder.stream(orders, key=TEXT, value=TEXT)
    both = F.concat_ws("&", F.col("left"), F.coalesce(F.col("right.city"), F.lit("_")))
    stream.left_join(people, both, on=F.col("value")).to(out)
    stream.lookup_join(people, both, on=F.col("value"), timeout="1 hour", store="waiting").to(late)
    return builder.build()


def write(lake: Path, **cities: str) -> None:
    """The whole content of the lake, in one step."""
    lake.mkdir(exist_ok=True)
    rows = [f'{{"who": "{who}", "city": "{city}"}}' for who, city in cities.items()]
    (lake / ".next").write_text("\n".join(rows))
    (lake / ".next").rename(lake / "people.json")


@pytest.mark.slow
def test_rows_are_there_and_refreshed(app: Application, cluster: Cluster, tmp_path: Path) -> None:
    orders, out, late = (cluster.topic(name, 1) for name in ("orders", "out", "late"))
    lake = tmp_path / "lake"
    write(lake, ann="Rome", bob="Oslo")
    topology = loaded_program(orders, out, late, lake)
    cluster.write(orders, [text("1", "ann", 1), text("2", "cid", 2)])
    with app.running(topology) as streams:
        app.until_processed(streams, orders)
        assert [one.value for one in cluster.read(out)] == [b"ann&Rome", b"cid&_"]
        store = streams.store("people")
        assert store.get("bob") == {"who": "bob", "city": "Oslo"}
        (table,) = [one for one in streams.all_tasks().values() if one.role is TaskRole.GLOBAL]
        assert table.copied == 2
        write(lake, ann="Riga", cid="Bern")
        # Who has waited is let go by the refresh alone.
        wait_until(lambda: len(cluster.read(late)) == 2, CAUGHT_UP_S, "the record that waits")
        assert [one.value for one in cluster.read(late)] == [b"ann&Rome", b"cid&Bern"]
        assert {key for key, _ in store.all()} == {"ann", "cid"}
        cluster.write(orders, [text("3", "ann", 3), text("4", "bob", 4)])
        app.until_processed(streams, orders)
        # What it cannot load leaves the last one.
        (lake / "people.json").unlink()
        lake.rmdir()
        wait_until(
            lambda: [one.lag for one in streams.all_tasks().values()].count(None) == 1,
            CAUGHT_UP_S,
            "a refresh to fail",
        )
        cluster.write(orders, [text("5", "cid", 5)])
        app.until_processed(streams, orders)
    with pytest.raises(TableLoadError, match=r"people, at .*test_lifecycle_whole_tables"):
        app.instance(topology).start()
    write(lake, bob="Kiel")
    with app.running(topology) as streams:
        cluster.write(orders, [text("6", "ann", 6)])
        app.until_processed(streams, orders)
        wait_until(lambda: len(cluster.read(late)) == 5, CAUGHT_UP_S, "bob, who has waited")
    assert [one.value for one in cluster.read(out)] == [
        b"ann&Rome",
        b"cid&_",
        b"ann&Riga",
        b"bob&_",
        b"cid&Bern",
        b"ann&_",
    ]
    assert sorted(one.value or b"" for one in cluster.read(late)) == [
        b"ann&Riga",
        b"ann&Rome",
        b"bob&Kiel",
        b"cid&Bern",
        b"cid&Bern",
    ]


@pytest.mark.slow
def test_records_wait_for_a_global_table_and_the_clock(app: Application, cluster: Cluster) -> None:
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
