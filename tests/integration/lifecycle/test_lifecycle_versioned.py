"""Versioned tables and records that wait for them on a broker: over restarts, and with stores that
are restored from the changelogs alone, they give what the driver gives record after record."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from everflow import KafkaStreams, Materialized, StreamsBuilder, Topology, TopologyError, serdes
from everflow.testing import TopologyTestDriver
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

KEY, VALUE, RAW = serdes.string(), serdes.string(), serdes.bytes_()
SIDES = ("orders", "prices")
RESULTS = ("at-once", "waited", "as-of")
HISTORY_MS = 300
Told = tuple[bytes | None, bytes | None, int, Any]


def topology(name: Callable[[str], str]) -> Topology:
    """A stream that sees a versioned table at once, one that waits, and one that meets another as
    of a time; ``name``: a topic's full name."""
    builder = StreamsBuilder()
    orders = builder.stream(name("orders"), key=KEY, value=VALUE)
    quotes = builder.stream(name("prices"), key=KEY, value=VALUE)
    prices = quotes.to_table(store=Materialized("prices", history=HISTORY_MS))
    orders.left_join(prices).to(name("at-once"))
    orders.join(prices, grace=100, store="waiting").to(name("waited"))
    as_of = orders.join_asof(quotes, tolerance=150, grace=60, how="left", store="quotes")
    as_of.to(name("as-of"))
    return builder.build()


def drawn(seed: int, records: int) -> list[tuple[str, Record]]:
    """Records out of order by up to the history; no two of both sides have one time."""
    dice, found = random.Random(seed), list[tuple[str, Record]]()
    for number in range(records):
        side = dice.randrange(2)
        time = 2 * max(500, 500 + number * 5 - dice.choice([0, 0, 10, 40, 90])) + side
        value = None if dice.random() < 0.15 else f"v{number}"
        made = text(f"k{dice.randrange(3)}", value, time)
        headers = (("at", str(number).encode()),)
        found.append((SIDES[side], made._replace(headers=headers)))
    return found


def merged(records: Sequence[tuple[str, Record]]) -> list[tuple[str, Record]]:
    """In the order of a task: the earlier head of both topics first."""
    queues = {side: [one for one in records if one[0] == side] for side in SIDES}
    found = []
    while heads := [queue for queue in queues.values() if queue]:
        found.append(min(heads, key=lambda queue: queue[0][1].timestamp).pop(0))
    return found


def by_the_driver(phases: Sequence[Sequence[tuple[str, Record]]]) -> tuple[dict[str, Any], Any]:
    with TopologyTestDriver(topology(str)) as driver:
        inputs = {side: driver.create_input_topic(side, RAW, RAW) for side in SIDES}
        for phase in phases:
            for side, one in merged(phase):
                inputs[side].pipe_input(one.key, one.value, one.timestamp, headers=one.headers)
        told = {
            result: [
                (found.key, found.value, found.timestamp, tuple(found.headers))
                for found in driver.create_output_topic(result, RAW, RAW).read_records()
            ]
            for result in RESULTS
        }
        store = driver.get_versioned_store("prices")
        return told, {f"k{key}": store.versions(f"k{key}") for key in range(3)}


def versions(streams: KafkaStreams) -> Any:
    store = streams.store("prices")
    found = {f"k{key}": store.versions(f"k{key}") for key in range(3)}
    for key, listed in found.items():
        for one in listed:
            last = one.timestamp if one.valid_to is None else one.valid_to - 1
            assert store.get_as_of(key, last) == one
    return found


def test_versions_survive_restarts_and_come_back_from_the_changelog(
    app: Application, cluster: Cluster
) -> None:
    names = {topic: cluster.topic(topic, 1) for topic in (*SIDES, *RESULTS)}
    records = drawn(seed=11, records=240)
    phases = [records[at : at + 80] for at in range(0, len(records), 80)]
    for turn, phase in enumerate(phases):
        for side in SIDES:
            cluster.write(names[side], [record for one, record in phase if one == side])
        if turn == 2:  # from the changelogs alone
            shutil.rmtree(app.folder)
        with app.running(topology(names.__getitem__)) as streams:
            app.until_processed(streams, *(names[side] for side in SIDES))
            kept = versions(streams)
    wanted, wanted_versions = by_the_driver(phases)
    for result in RESULTS:
        told = [
            (one.key, one.value, one.timestamp, one.headers) for one in cluster.read(names[result])
        ]
        assert told == wanted[result], result
    assert kept == wanted_versions
    assert any(len(listed) > 3 for listed in kept.values())


# --- a table whose topic is its changelog ------------------------------------------------------

REUSED: dict[str, Any] = {
    "topology_optimization": "reuse.ktable.source.topics",
    "emit_every_update": True,
}


def reusing_topology(name: Callable[[str], str]) -> Topology:
    builder = StreamsBuilder()
    table = builder.table(name("people"), key=KEY, value=KEY, store="people")
    visits = builder.stream(name("visits"), key=KEY, value=KEY)
    visits.left_join(table, lambda one, other: f"{one} {other}", returns="string").to(name("out"))
    table.group_by(lambda key, value: value, returns="string", name="by").count(store="by")
    return builder.build()


def phase(number: int) -> tuple[list[Record], list[Record]]:
    """Some people move, some go, some come; each is visited, before and behind it."""
    time = 1_000 * (number + 1)
    people = [text(f"k{n}", f"city{number}", time + 10) for n in range(number, number + 4)]
    people.append(text(f"k{number}", None, time + 11))
    visits = [text(f"k{n}", f"v{number}{at}", time + at) for at in (1, 20) for n in range(7)]
    return people, visits


def expected(phases: int) -> tuple[list[tuple[str, str]], dict[str, str]]:
    held: dict[str, str] = {}
    told = []
    for number in range(phases):
        people, visits = phase(number)
        for one in sorted([*people, *visits], key=lambda record: record.timestamp):
            assert one.key is not None
            key = one.key.decode()
            if one in visits:
                assert one.value is not None
                told.append((key, f"{one.value.decode()} {held.get(key)}"))
            elif one.value is None:
                held.pop(key, None)
            else:
                held[key] = one.value.decode()
    return told, held


def test_it_is_replayed_to_the_committed_offset(app: Application, cluster: Cluster) -> None:
    names = {one: cluster.topic(one, 1) for one in ("visits", "out")}
    names["people"] = cluster.topic("people", 1, cleanup_policy="compact")
    for number in range(4):
        people, visits = phase(number)
        cluster.write(names["people"], people)
        cluster.write(names["visits"], visits)
        if number == 2:  # from the topic alone, which holds more than was processed
            shutil.rmtree(app.folder)
        with app.running(reusing_topology(names.__getitem__), **REUSED) as streams:
            app.until_processed(streams, names["people"], names["visits"])
            kept = dict(streams.store("people").all())
    told, held = expected(4)
    found = [
        (one.key.decode(), one.value.decode())
        for one in cluster.read(names["out"])
        if one.key and one.value
    ]
    assert sorted(found) == sorted(told)
    assert kept == held
    assert f"{app.id}-people-changelog" not in cluster.topics()
    assert f"{app.id}-by-changelog" in cluster.topics()


def test_a_topic_that_deletes_records_is_refused_at_the_start(
    app: Application, cluster: Cluster
) -> None:
    names = {one: cluster.topic(one, 1) for one in ("visits", "out", "people")}
    streams = app.instance(reusing_topology(names.__getitem__), **REUSED)
    with pytest.raises(TopologyError, match=r"cleanup\.policy=delete deletes records"):
        streams.start()
