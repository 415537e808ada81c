"""Processors on a running instance: the wall clock calls tasks without records, too, and a restart
goes on with stores and clocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import functions as F

from everflow import (
    Materialized,
    Processor,
    ProcessorContext,
    PunctuationType,
    Record,
    Stores,
    StreamsBuilder,
    TimeWindows,
    Topology,
    punctuate,
    serdes,
)
from everflow.state.disk import MEMORY_DIR, MemoryFolder
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, last_by_key, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]
TEXT = serdes.string()


class Ticking(Processor):
    """Counts records and calls of the wall clock, and tells the second."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        self._count("records")

    @punctuate("300 ms", PunctuationType.WALL_CLOCK_TIME)
    def tick(self, time: int) -> None:
        told = f"{self._count('ticks')} {self.counts.get('records', 0)}"
        self.context.forward(Record(str(self.context.task_id), told, time))

    def _count(self, name: str) -> int:
        count = int(self.counts.get(name, 0)) + 1
        self.counts.put(name, count)
        return count


def program(source: str, output: str) -> Topology:
    builder = StreamsBuilder()
    counts = Stores.key_value("counts", key=serdes.string(), value=serdes.long())
    (
        builder.stream(source, key=serdes.string(), value=serdes.string())
        .process(Ticking, stores=[counts], returns=("string", "string"))
        .to(output, key=serdes.string(), value=serdes.string())
    )
    return builder.build()


def ticks(cluster: Cluster, output: str) -> dict[str, tuple[int, int]]:
    """Task -> calls so far, and records."""
    found = last_by_key(cluster.read(output))
    told = {key: value.split() for key, value in found.items() if key and value}
    return {key.decode(): (int(calls), int(records)) for key, (calls, records) in told.items()}


def test_tasks_without_records_are_called_and_a_restart_goes_on(
    app: Application, cluster: Cluster
) -> None:
    source, output = cluster.topic("in"), cluster.topic("out")
    cluster.write(source, [text("k", "v", partition=0)])
    topology = program(source, output)

    def called(at_least: int) -> bool:
        found = ticks(cluster, output)
        return set(found) == {"0_0", "0_1"} and min(n for n, _ in found.values()) >= at_least

    def seen() -> list[object]:
        return [ticks(cluster, output)]

    with app.running(topology) as streams:
        app.until_processed(streams, source)
        wait_until(lambda: called(4), 60, "four calls of each task", seen)
    before = ticks(cluster, output)
    assert {task: records for task, (_, records) in before.items()} == {"0_0": 1, "0_1": 0}
    with app.running(topology):
        wait_until(lambda: called(max(n for n, _ in before.values()) + 2), 60, "more calls", seen)
    every = [
        (record.key, int(record.value.split()[0]))
        for record in cluster.read(output)
        if record.value is not None
    ]
    for task in (b"0_0", b"0_1"):
        calls = [n for key, n in every if key == task]
        assert calls == list(range(1, len(calls) + 1)), "a call twice, or lost"


# --- stores in memory ---------------------------------------------------------------------------


def in_memory_program(source: str, cities: str, output: str) -> Topology:
    """A table, a processor's store without a changelog and a global table, all in memory; and a
    window store on disk beside them."""
    builder = StreamsBuilder()
    visits = builder.stream(source, key=TEXT, value=TEXT)
    known = builder.global_table(
        cities, key=TEXT, value=TEXT, store=Materialized("cities", in_memory=True)
    )
    visits.group_by_key().count(store=Materialized("counts", in_memory=True))
    seen = Stores.key_value("seen", key=TEXT, value=TEXT, logging=False, in_memory=True)

    def first(record: Record, context: ProcessorContext) -> None:
        if context.store("seen").put_if_absent(record.key, record.value) is None:
            context.forward(record)

    firsts = visits.process(first, stores=[seen])
    firsts.join(known, on=F.col("value")).to(output, value=serdes.json("left string, right string"))
    hours = visits.group_by_key().windowed_by(TimeWindows.of_size("1 hour"))
    hours.count(store="hourly")
    return builder.build()


def test_stores_in_memory_end_with_the_instance_and_come_back_from_the_changelog(
    app: Application, cluster: Cluster, tmp_path: Path
) -> None:
    source, cities, output = cluster.topic("in"), cluster.topic("cities", 1), cluster.topic("out")
    cluster.write(cities, [text("b", "Berne")])
    topology = in_memory_program(source, cities, output)
    memory = MemoryFolder(Path(MEMORY_DIR)).place(app.state / app.id)
    wanted = {"k": 0, "m": 0}
    for _ in range(2):
        cluster.write(source, [text(key, "b", at) for at, key in enumerate("kkm")])
        with app.running(topology) as streams:
            app.until_processed(streams, source)
            wanted["k"] += 2
            wanted["m"] += 1
            assert {key: streams.store("counts").get(key) for key in wanted} == wanted
            lie = {path.name for path in memory.glob("*/*")}
            assert lie == {"cities-0", "counts-0", "seen-0"}
            lie = {path.name for path in (app.state / app.id).glob("*_*/*")}
            assert lie == {"hourly-0"}
        assert not memory.exists()
    # What had no changelog was forgotten: each key was a first one twice.
    assert sorted(one.key or b"" for one in cluster.read(output)) == [b"k", b"k", b"m", b"m"]
