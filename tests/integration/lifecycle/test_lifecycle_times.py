"""Times over restarts: partition times and stream times are kept with the committed offsets, so an
instance that starts again takes, drops and closes what one that went on would; and partitioners."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import functions as F

from everflow import (
    CountWindows,
    EmitStrategy,
    JoinWindows,
    LogAndSkipOnInvalidTimestamp,
    RecordContext,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Topology,
    UsePartitionTimeOnInvalidTimestamp,
    serdes,
)
from everflow.metrics import DROPPED_RECORDS, ENFORCED_PROCESSING, LAG
from everflow.runtime.query.key_metadata import default_partitioner
from everflow.testing import TopologyTestDriver, wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TEXT = serdes.string()
RESULTS = (
    *("windows", "sessions", "final", "closed", "every", "timely", "numbered"),
    *("joined", "once", "guessed"),
)
TURNS, PER_TURN = 4, 30


def said(key: str, value: str, record: RecordContext, partition_time: int) -> int:
    """One more than the partition's where the value says none."""
    return partition_time + 1 if value == "next" else int(value)


def topology(name: Callable[[str], str]) -> Topology:
    """Every operator that judges records by stream time; ``name``: a topic's full name."""
    builder = StreamsBuilder()
    stream = builder.stream(name("in"), key=TEXT, value=TEXT, timestamp=said)
    other = builder.stream(
        name("odd"), key=TEXT, value=TEXT, timestamp=UsePartitionTimeOnInvalidTimestamp
    )
    builder.stream(
        name("skipped"), key=TEXT, value=TEXT, timestamp=LogAndSkipOnInvalidTimestamp
    ).for_each(print)
    other.to(name("guessed"))
    grouped = stream.group_by_key()
    windowed = grouped.windowed_by(TimeWindows.of_size(20).grace(5))
    counts = windowed.count(store="windows")
    counts.to_stream().to(name("windows"))
    counts.suppress(Suppressed.until_window_closes(), store="held").to_stream().to(name("final"))
    closing = windowed.emit_strategy(EmitStrategy.on_window_close())
    closing.count(store="closed").to_stream().to(name("closed"))
    windowed.emit_strategy(EmitStrategy.every(3)).count(store="every").to_stream().to(name("every"))
    timely = windowed.emit_strategy(EmitStrategy.every("7 ms"))
    timely.count(store="timely").to_stream().to(name("timely"))
    numbered = grouped.windowed_by(CountWindows.of_size(4).advance_by(3))
    numbered.count(store="numbered").to_stream().to(name("numbered"))
    sessions = grouped.windowed_by(SessionWindows.of_inactivity_gap(8).grace(3))
    sessions.count(store="sessions").to_stream().to(name("sessions"))
    join = JoinWindows.of_time_difference(6).grace(4)
    stream.left_join(
        other, lambda left, right: f"{left} {right}", windows=join, store="join", returns="string"
    ).to(name("joined"))
    stream.deduplicate("15 ms", grace="5 ms", store="once").to(name("once"))
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
    """Both inputs of the join in one micro-batch, so that they are merged by time."""
    raw = serdes.bytes_()
    with TopologyTestDriver(topology(str), emit_every_update=True) as driver:
        topics = {name: driver.create_input_topic(name, raw, raw) for name in given[0]}
        for written in given:
            driver.pipe_batch(
                {
                    topics[name]: [(one.key, one.value, one.timestamp) for one in records]
                    for name, records in written.items()
                }
            )
        return {
            result: [
                (found.key, found.value, found.timestamp)
                for found in driver.create_output_topic(result, raw, raw).read_records()
            ]
            for result in RESULTS
        }


def test_what_was_late_before_a_restart_is_late_behind_it(
    app: Application, cluster: Cluster
) -> None:
    given = turns(seed=7)
    names = {topic: cluster.topic(topic, 1) for topic in (*given[0], *RESULTS)}
    dropped = 0.0
    for turn, written in enumerate(given):
        for name, records in written.items():
            cluster.write(names[name], records)
        if turn == 2:  # from the changelogs and what is beside the offsets alone
            shutil.rmtree(app.folder)
        with app.running(topology(names.__getitem__), emit_every_update=True) as streams:
            app.until_processed(streams, *(names[name] for name in written))
            dropped += float(streams.metrics()[DROPPED_RECORDS])
    wanted = by_the_driver(given)
    for result in RESULTS:
        found = [(one.key, one.value, one.timestamp) for one in cluster.read(names[result])]
        assert found == wanted[result], result
    skipped = [one for written in given for one in written["skipped"] if one.timestamp < 0]
    assert dropped > len(skipped) > 0


def test_a_task_waits_for_the_late_input_and_then_goes_on_without_it(
    app: Application, cluster: Cluster
) -> None:
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


def test_windows_close_in_silence_and_stay_closed_behind_a_restart(
    app: Application, cluster: Cluster
) -> None:
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


def spread(topic: str, key: str, value: str, partitions: int) -> Any:
    """Of 3 partitions: by the key, the last one, all, none."""
    return [None, partitions - 1, list(range(partitions)), []][int(value)]


def test_records_go_where_the_partitioner_says(app: Application, cluster: Cluster) -> None:
    source, called, chosen = (cluster.topic(name, 3) for name in ("in", "called", "chosen"))
    builder = StreamsBuilder()
    stream = builder.stream(source, key=TEXT, value=TEXT)
    stream.to(called, partitioner=spread)
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
    behind = {(one.key, one.value, one.partition) for one in cluster.read(chosen)}
    assert behind == {(f"k{n}".encode(), str(n).encode(), n % 3) for n in range(4)}
