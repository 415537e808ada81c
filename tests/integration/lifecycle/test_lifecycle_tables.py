"""Grouped tables, suppressed results and cogroups on a broker: over restarts, restored stores and
they come to what the driver comes to record after record."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    EmitStrategy,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    agg,
    serdes,
)
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

KEY, PERSON = serdes.string(), serdes.json("city string, age bigint")
RESULTS = ("cities", "names", "final", "closed", "calm", "both", "living")
BEHIND = ("by-city", "by-name", "lives-asks", "lives-answers")


def topology(name: Callable[[str], str]) -> Topology:
    """All of them over one input; ``name``: a topic's full name."""
    builder = StreamsBuilder()
    stream = builder.stream(name("in"), key=KEY, value=PERSON)
    people = stream.to_table(store="people")
    cities = people.group_by(F.col("value.city"), name="by-city")
    counted = cities.aggregate(store="cities", n=agg.count(), years=agg.sum("value.age"))
    counted.to_stream().to(name("cities"))
    named = people.group_by(
        lambda key, person: (person["city"], key), returns=("string", "string"), name="by-name"
    )
    named.aggregate(
        store="names",
        initializer=list,
        adder=lambda one, names: sorted([*names, one]),
        subtractor=lambda one, names: [other for other in names if other != one],
        returns="array<string>",
    ).to_stream().to(name("names"))
    grouped = stream.group_by_key()
    windows = grouped.windowed_by(TimeWindows.of_size(50).grace(20)).count(store="windows")
    closed = windows.suppress(Suppressed.until_window_closes(), store="held-back")
    closed.to_stream().to(name("final"))
    sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap(15).grace(10))
    strategy = EmitStrategy.on_window_close()
    sessions.emit_strategy(strategy).count(store="sessions").to_stream().to(name("closed"))
    calm = people.suppress(Suppressed.until_time_limit(60), store="calm")
    calm.to_stream().to(name("calm"))
    adults = stream.filter(F.col("value.age") > 2).group_by_key()
    both = grouped.cogroup(lambda person, n: n + 1).cogroup(adults, lambda person, n: n + 100)
    both.aggregate(int, store="both", returns="bigint").to_stream().to(name("both"))
    towns = stream.select_key(F.coalesce("value.city", F.lit("none"))).to_table(store="towns")
    living = people.left_join(
        towns,
        on=F.col("value.city"),
        name="lives",
        age=F.col("left.age"),
        latest=F.col("right.age"),
    )
    living.to_stream().to(name("living"))
    return builder.build()


def history(seed: int, records: int) -> list[Record]:
    """Records with times of their own, some of them late."""
    drawn = random.Random(seed)
    found = []
    for number in range(records):
        key, time = f"k{drawn.randrange(4)}", 1_000 + number * 7 - drawn.choice([0, 0, 9, 40])
        if drawn.random() < 0.1:
            found.append(text(key, None, time))
        else:
            person = {"city": drawn.choice(["Rome", "Oslo", None]), "age": drawn.randrange(6)}
            found.append(in_json(key, person, time))
    return found


def by_the_driver(records: list[Record]) -> dict[str, list[Any]]:
    raw = serdes.bytes_()
    with TopologyTestDriver(topology(str), emit_every_update=True) as driver:
        topic = driver.create_input_topic("in", raw, raw)
        for one in records:
            topic.pipe_input(one.key, one.value, one.timestamp)
        return {
            result: [
                (found.key, found.value, found.timestamp)
                for found in driver.create_output_topic(result, raw, raw).read_records()
            ]
            for result in RESULTS
        }


@pytest.mark.parametrize(
    "guarantee",
    [pytest.param(one, marks=() if "exactly" in one else pytest.mark.slow) for one in GUARANTEES],
)
def test_tables_over_restarts_are_those_of_one_run(
    app: Application, cluster: Cluster, guarantee: str
) -> None:
    names = {topic: cluster.topic(topic, 1) for topic in ("in", *RESULTS)}
    records = history(seed=3, records=200)
    for turn in range(4):
        cluster.write(names["in"], records[turn * 50 : turn * 50 + 50])
        if turn == 2:  # from the changelogs alone
            shutil.rmtree(app.folder)
        with app.running(
            topology(names.__getitem__),
            processing_guarantee=guarantee,
            emit_every_update=True,
        ) as streams:
            app.until_processed(streams, names["in"])
            for topic in BEHIND:
                app.until_processed(streams, f"{app.id}-{topic}-repartition")
    wanted = by_the_driver(records)
    # Questions and answers of a foreign key travel beside the updates: results on the way differ.
    living = {one.key: one.value for one in cluster.read(names["living"])}
    assert living == {key: value for key, value, _ in wanted.pop("living")}
    for result in wanted:
        told = [(one.key, one.value, one.timestamp) for one in cluster.read(names[result])]
        assert told == wanted[result], result


def test_foreign_keys_meet_over_tasks_of_their_own(app: Application, cluster: Cluster) -> None:
    orders, people, out = (
        cluster.topic(name, count) for name, count in (("orders", 2), ("people", 3), ("out", 2))
    )
    builder = StreamsBuilder()
    left = builder.table(orders, key=KEY, value=PERSON, store="orders")
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
