"""Tables that are read whole, of topics and DataFrames, and lookup joins that wait for entries."""

import random
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    EmitStrategy,
    LogAndSkipOnInvalidTimestamp,
    RecordContext,
    StreamsBuilder,
    TimeWindows,
    Topology,
    UsePartitionTimeOnInvalidTimestamp,
    serdes,
)
from everflow.errors import TableLoadError
from everflow.instance.tasks.task import TaskRole
from everflow.metrics import DROPPED_RECORDS, ENFORCED_PROCESSING, LAG
from everflow.records import TaskId
from everflow.spark.session import get_session
from everflow.testing import TopologyTestDriver, wait_until
from integration.lifecycle.lifecycle_cluster import (
    CAUGHT_UP_S,
    Application,
    Cluster,
    Record,
    in_json,
    text,
)

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


# Times over restarts: partition times and stream times are kept with the committed offsets, so an
# instance that starts again takes, drops and closes what one that went on would.


TURNS, PER_TURN = 3, 20


def said(key: str, value: str, record: RecordContext, partition_time: int) -> int:
    """One more than the partition's where the value says none."""
    return partition_time + 1 if value == "next" else int(value)


def topology(name: Callable[[str], str]) -> Topology:
    """The extractors of times; ``name``: a topic's full name."""
    builder = StreamsBuilder()
    stream = builder.stream(name("in"), key=TEXT, value=TEXT, timestamp=said)
    stream.group_by_key().windowed_by(TimeWindows.of_size(20).grace(5)).count(
        store="windows"
    ).to_stream().to(name("windows"))
    other = builder.stream(
        name("odd"), key=TEXT, value=TEXT, timestamp=UsePartitionTimeOnInvalidTimestamp
    )
    other.to(name("guessed"))
    builder.stream(
        name("skipped"), key=TEXT, value=TEXT, timestamp=LogAndSkipOnInvalidTimestamp
    ).for_each(print)
    return builder.build()


def turns(seed: int) -> list[dict[str, list[Record]]]:
    """What is written before each start. The first records of each are far behind the last ones of
    the turn before."""
    drawn = random.Random(seed)
    time, found = 100, []
    for turn in range(TURNS):
        written: dict[str, list[Record]] = {"in": [], "odd": [], "skipped": []}
        for number in range(PER_TURN):
            late = drawn.choice([60, 30]) if turn and number < 6 else drawn.choice([0, 0, 3, 12])
            time += drawn.randrange(6)
            key = f"k{drawn.randrange(3)}"
            value = "next" if drawn.random() < 0.1 else str(time - late)
            written["in"].append(text(key, value, 1))
            own = time - late if (turn, number) == (0, 0) or drawn.random() < 0.8 else -1
            written["odd"].append(text(key, str(number), own))
            written["skipped"].append(text(key, "v", own))
        found.append(written)
    return found


def by_the_driver(given: list[dict[str, list[Record]]]) -> dict[str, list[Any]]:
    raw = serdes.bytes_()
    with TopologyTestDriver(topology(str), emit_every_update=True) as driver:
        for written in given:
            for name, records in written.items():
                driver.create_input_topic(name, raw, raw).pipe_batch(
                    [(one.key, one.value, one.timestamp) for one in records]
                )
        return {
            result: [
                (found.key, found.value, found.timestamp)
                for found in driver.create_output_topic(result, raw, raw).read_records()
            ]
            for result in ("windows", "guessed")
        }


def test_a_partitions_time_is_kept_over_a_restart(app: Application, cluster: Cluster) -> None:
    """A record that was late stays late, and a guessed time continues from the last one."""
    given = turns(seed=7)
    names = {topic: cluster.topic(topic, 1) for topic in (*given[0], "windows", "guessed")}
    dropped = 0.0
    for turn, written in enumerate(given):
        for name, records in written.items():
            cluster.write(names[name], records)
        if turn == 2:  # from the changelogs and what is beside the offsets alone
            shutil.rmtree(app.folder)
        with app.running(topology(names.__getitem__), emit_every_update=True) as streams:
            app.until_processed(streams, *(names[name] for name in written))
            dropped += float(streams.metrics()[DROPPED_RECORDS])
    for result, wanted in by_the_driver(given).items():
        found = [(one.key, one.value, one.timestamp) for one in cluster.read(names[result])]
        assert found == wanted, result
    skipped = [one for written in given for one in written["skipped"] if one.timestamp < 0]
    assert dropped > len(skipped) > 0


def test_a_task_waits_for_late_input_then_goes_on(app: Application, cluster: Cluster) -> None:
    early, late, out = (cluster.topic(name, 1) for name in ("early", "late", "out"))
    builder = StreamsBuilder()
    first = builder.stream(early, key=TEXT, value=TEXT)
    first.merge(builder.stream(late, key=TEXT, value=TEXT)).to(out)
    with app.running(builder.build(), max_task_idle_ms=5_000) as streams:
        cluster.write(early, [text("k", "e", time) for time in (10, 20, 30)])
        wait_until(lambda: streams.metrics()[LAG] == 3, 20.0, "the instance to know of them")
        assert cluster.read(out) == []
        cluster.write(late, [text("k", "l", time) for time in (15, 25)])
        app.until_processed(streams, early, late)
        assert float(streams.metrics()[ENFORCED_PROCESSING]) >= 1, "nothing came behind 25"
    assert [record.timestamp for record in cluster.read(out)] == [10, 15, 20, 25, 30]


def closing_in_silence(source: str, direct: str, rekeyed: str) -> Topology:
    """Counts of windows of a second, as they close; behind a repartition topic, too."""
    builder = StreamsBuilder()
    stream = builder.stream(source, key=TEXT, value=TEXT, idle_advance="1 second")
    again = stream.map(lambda key, value: (value, key), returns=("string", "string"))
    for one, store in ((stream, direct), (again, rekeyed)):
        windowed = one.group_by_key(name=store).windowed_by(TimeWindows.of_size("1 second"))
        final = windowed.emit_strategy(EmitStrategy.on_window_close()).count(store=store)
        final.to_stream().to(store)
    return builder.build()


def test_windows_close_in_silence_and_over_a_restart(app: Application, cluster: Cluster) -> None:
    source, direct, rekeyed = (cluster.topic(name, 2) for name in ("in", "direct", "rekeyed"))
    program = closing_in_silence(source, direct, rekeyed)
    cluster.write(source, [text("a", "x", 1_000), text("b", "y", 1_100), text("a", "x", 1_200)])

    def closed(topic: str) -> list[tuple[bytes | None, bytes | None, int]]:
        found = [(one.key, one.value, one.timestamp) for one in cluster.read(topic)]
        return sorted((key and key[:1], value and value[-1:], time) for key, value, time in found)

    wanted = {
        direct: [(b"a", b"\x02", 1_200), (b"b", b"\x01", 1_100)],
        rekeyed: [(b"x", b"\x02", 1_200), (b"y", b"\x01", 1_100)],
    }
    with app.running(program):
        for topic, results in wanted.items():
            wait_until(lambda: closed(topic) == results, 90.0, f"{topic}'s windows")  # noqa: B023
    shutil.rmtree(app.folder)  # what they were moved to is beside the offsets alone
    cluster.write(source, [text("a", "x", 1_300), text("b", "y", 1_400)])
    with app.running(program) as streams:
        app.until_processed(streams, source, f"{app.id}-{rekeyed}-repartition")
        assert float(streams.metrics()[DROPPED_RECORDS]) == 4
    assert {topic: closed(topic) for topic in wanted} == wanted
