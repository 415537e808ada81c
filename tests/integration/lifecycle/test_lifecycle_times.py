"""Times over restarts: partition times and stream times are kept with the committed offsets, so an
instance that starts again takes, drops and closes what one that went on would."""

import random
import shutil
from collections.abc import Callable
from typing import Any

import pytest

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
from everflow.metrics import DROPPED_RECORDS, ENFORCED_PROCESSING, LAG
from everflow.testing import TopologyTestDriver, wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TEXT = serdes.string()
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
