"""Joins on a broker: over restarts and restored stores they give what the driver gives
record after record."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import JoinWindows, StreamsBuilder, Topology, serdes
from everflow.runtime.query.key_metadata import default_partitioner
from everflow.testing import TopologyTestDriver
from integration.lifecycle.lifecycle_cluster import (
    GUARANTEES,
    Application,
    Cluster,
    Record,
    in_json,
    text,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEY, LEFT, RIGHT = serdes.string(), serdes.json("n bigint, who string"), serdes.string()
SIDES = ("left", "right")
RESULTS = ("enriched", "both", "pairs", "outer")


def topology(name: Callable[[str], str]) -> Topology:
    """A stream with a table, two tables, two streams; ``name``: a topic's full name."""
    builder = StreamsBuilder()
    left = builder.stream(name("left"), key=KEY, value=LEFT)
    right = builder.stream(name("right"), key=KEY, value=RIGHT)
    lefts = left.filter(F.col("value.n") > 0).to_table(store="lefts")
    rights = right.to_table(store="rights")
    left.left_join(rights, n=F.col("left.n"), right=F.col("right")).to(name("enriched"))
    both = lefts.join(rights, lambda one, other: f"{one['n']} {other}", returns="string")
    both.to_stream().to(name("both"))
    windows = JoinWindows.of_time_difference(40).grace(20)
    left.join(right, windows=windows, store="inner").to(name("pairs"))
    left.outer_join(right, windows=windows, store="outer").to(name("outer"))
    return builder.build()


def history(seed: int, records: int) -> list[tuple[str, Record]]:
    """Records with times of their own, by time: (side, record)."""
    drawn = random.Random(seed)
    found: list[tuple[str, Record]] = []
    for number in range(records):
        side, key = drawn.choice(SIDES), f"k{drawn.randrange(4)}"
        time = 1_000 + number * 7
        value: Any = None if drawn.random() < 0.1 else number % 5
        if side == "left":
            made = None if value is None else {"n": value, "who": f"w{number}"}
            record = text(key, None, time) if made is None else in_json(key, made, time)
        else:
            record = text(key, None if value is None else f"r{value}", time)
        found.append((side, record._replace(headers=(("at", str(number).encode()),))))
    return found


def by_the_driver(records: list[tuple[str, Record]]) -> dict[str, list[Any]]:
    raw = serdes.bytes_()
    with TopologyTestDriver(topology(str), emit_every_update=True) as driver:
        inputs = {side: driver.create_input_topic(side, raw, raw) for side in SIDES}
        for side, one in records:
            inputs[side].pipe_input(one.key, one.value, one.timestamp, headers=one.headers)
        return {
            result: [
                (found.key, found.value, found.timestamp, tuple(found.headers))
                for found in driver.create_output_topic(result, raw, raw).read_records()
            ]
            for result in RESULTS
        }


def phases(records: list[tuple[str, Record]], count: int) -> Iterator[list[tuple[str, Record]]]:
    size = -(-len(records) // count)
    for begin in range(0, len(records), size):
        yield records[begin : begin + size]


@pytest.mark.parametrize("guarantee", GUARANTEES)
def test_joins_over_restarts_are_those_of_one_run(
    app: Application, cluster: Cluster, guarantee: str
) -> None:
    names = {topic: cluster.topic(topic, 1) for topic in (*SIDES, *RESULTS)}
    records = history(seed=7, records=240)
    for turn, phase in enumerate(phases(records, 4)):
        for side in SIDES:
            cluster.write(names[side], [record for one, record in phase if one == side])
        if turn == 2:  # from the changelogs alone
            shutil.rmtree(app.folder)
        with app.running(
            topology(names.__getitem__),
            processing_guarantee=guarantee,
            emit_every_update=True,
        ) as streams:
            app.until_processed(streams, *(names[side] for side in SIDES))
    wanted = by_the_driver(records)
    for result in RESULTS:
        told = [
            (one.key, one.value, one.timestamp, one.headers) for one in cluster.read(names[result])
        ]
        assert told == wanted[result], result


def test_a_side_behind_a_new_key_meets_the_other(app: Application, cluster: Cluster) -> None:
    orders, cities, out = (cluster.topic(name, 2) for name in ("orders", "cities", "out"))
    builder = StreamsBuilder()
    by_city = builder.stream(orders, key=KEY, value=LEFT).select_key(F.col("value.who"))
    by_city.join(builder.table(cities, key=KEY, value=RIGHT, store="cities"), name="by-who").to(out)
    people = [f"w{number}" for number in range(12)]
    cluster.write(
        cities,
        [text(who, f"city of {who}", 1, default_partitioner(who.encode(), 2)) for who in people],
    )
    with app.running(builder.build()) as streams:
        app.until_processed(streams, cities)
        cluster.write(
            orders,
            [in_json(None, {"n": 1, "who": who}, 2, place % 2) for place, who in enumerate(people)],
        )
        app.until_processed(streams, orders)
        app.until_processed(streams, f"{app.id}-by-who-repartition")
    assert {one.key: one.value for one in cluster.read(out)} == {
        who.encode(): f'{{"left":{{"n":1,"who":"{who}"}},"right":"city of {who}"}}'.encode()
        for who in people
    }
