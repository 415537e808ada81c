"""Sources with a pattern on a broker: topics that are there are read, and one that comes later is
read by the instances that run, from its beginning and once (note 037)."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from pyspark.sql import functions as F

from everflow import KafkaStreams, StreamsBuilder, Topology, TopologyError, serdes
from everflow.instance.instance import Extension
from everflow.instance.topics import topic_watch
from everflow.records import TaskId
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import (
    CAUGHT_UP_S,
    Application,
    Cluster,
    Record,
    last_by_key,
    long,
    text,
)

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TEXT = serdes.string()
TAKEN_UP_S = 180.0


@pytest.fixture(autouse=True)
def watched_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_watch, "PERIOD_MS", 200.0)


def program(cluster: Cluster, out: str, counts: str) -> Topology:
    builder = StreamsBuilder()
    pattern = re.compile(re.escape(f"{cluster.prefix}-in.") + ".*")
    stream = builder.stream(pattern, key=TEXT, value=TEXT, offset_reset="earliest")
    stream.map_values(F.concat(F.substring_index("topic", ".", -1), F.lit(" "), "value")).to(out)
    stream.group_by_key().count(store="n").to_stream().to(counts, value=serdes.long())
    return builder.build()


def values(cluster: Cluster, topic: str) -> list[str]:
    return sorted((one.value or b"").decode() for one in cluster.read(topic))


def incarnations(streams: KafkaStreams) -> dict[TaskId, str]:
    """Incarnations of the running tasks; a recovered task gets another one."""
    instance = streams._life.instance
    assert instance is not None
    return {task.id: task.incarnation for task in instance.running_tasks()}


def test_a_topic_that_comes_later_is_read_by_the_instance_that_runs(
    app: Application, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    out, counts = cluster.topic("out", 1), cluster.topic("counts", 2)
    with pytest.raises(TopologyError, match=r"matches.*pattern"):
        app.instance(program(cluster, out, counts)).start()
    first, second = cluster.topic("in.a", 2), cluster.topic("in.b", 2)
    cluster.write(first, [text("k", "1", 1), text("l", "1", 1, 1)])
    cluster.write(second, [text("k", "2", 2)])
    with (
        caplog.at_level(logging.WARNING, "everflow"),
        app.running(program(cluster, out, counts)) as streams,
    ):
        app.until_processed(streams, first, second)
        before = incarnations(streams)
        third = cluster.topic("in.c", 2)
        cluster.write(third, [text("k", "3", 3), text("l", "4", 4, 1)])
        cluster.write(first, [text("k", "5", 5)])
        app.until_processed(streams, first, third)
        assert incarnations(streams) == before, "no task was recovered for it"
        wide = cluster.topic("in.d", 3)
        wait_until(
            lambda: f"Topic {wide} of the source" in caplog.text,
            CAUGHT_UP_S,
            "the refusal to be told",
        )
        assert "different partition counts" in caplog.text
        cluster.write(third, [text("k", "6", 6)])
        app.until_processed(streams, third)
    with pytest.raises(TopologyError, match="different partition counts"):
        app.instance(program(cluster, out, counts)).start()
    cluster.delete(wide)
    with app.running(program(cluster, out, counts)) as streams:
        app.until_processed(streams, first, second, third)
    assert values(cluster, out) == [*("a 1", "a 1", "a 5", "b 2", "c 3", "c 4", "c 6")]
    table = last_by_key(cluster.read(counts))
    assert {key: long(value) for key, value in table.items()} == {b"k": 5, b"l": 2}


def two_parts(cluster: Cluster, out: str, other: str, counts: str) -> Topology:
    """A part without state, where a topic may have more partitions than those before, and one with
    a store, which has nothing to do with the pattern."""
    builder = StreamsBuilder()
    pattern = re.compile(re.escape(f"{cluster.prefix}-in.") + ".*")
    stream = builder.stream(pattern, key=TEXT, value=TEXT, offset_reset="earliest")
    stream.map_values(lambda value: value.upper(), returns="string").to(out)
    counted = builder.stream(other, key=TEXT, value=TEXT).group_by_key().count(store="n")
    counted.to_stream().to(counts, value=serdes.long())
    return builder.build()


def of_round(number: int, partitions: int) -> Iterator[Record]:
    for partition in range(partitions):
        yield text(f"k{partition}", f"r{number}.{partition}", number, partition)


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_two_instances_take_a_topic_up_one_after_the_other(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """One is late: meanwhile the tasks that the topic alone makes wait for it, and nothing is read
    twice or left out."""
    out, counts, other = cluster.topic("out", 1), cluster.topic("counts", 2), cluster.topic("x", 4)
    first = cluster.topic("in.a", 2)
    late: list[object] = []
    check = Extension.check
    monkeypatch.setattr(
        Extension, "check", lambda self: None if self.instance in late else check(self)
    )
    with ExitStack() as held:
        running = [
            held.enter_context(
                app.running(
                    two_parts(cluster, out, other, counts),
                    state_dir=str(app.folder / f"state-{number}"),
                    num_stream_threads=2,
                    processing_guarantee=guarantee,
                )
            )
            for number in range(2)
        ]
        wait_until(
            lambda: all(len(incarnations(one)) == 3 for one in running),
            CAUGHT_UP_S,
            "both to have their share",
        )
        late.append(running[1]._life.instance)
        before = [incarnations(one) for one in running]
        second = cluster.topic("in.b", 5)
        threads = running[0]._life.instance.threads  # type: ignore[union-attr]
        numbers = {thread.number for thread in threads}
        deadline = time.monotonic() + TAKEN_UP_S
        for turn in itertools.count():
            assert time.monotonic() < deadline, "the topic was not taken up"
            cluster.write(first, of_round(turn, 2))
            cluster.write(second, of_round(turn, 5))
            cluster.write(other, of_round(turn, 4))
            if numbers.isdisjoint({thread.number for thread in threads}):
                late.clear()
            if sum(len(incarnations(one)) for one in running) == 4 + 5:
                break
        after = {task: found for one in running for task, found in incarnations(one).items()}
        for share in before:
            assert share.items() <= after.items(), "no task was recovered for it"
        app.until_processed(None, first, second, other)
    expected = [f"R{n}.{p}" for n in range(turn + 1) for p in (*range(2), *range(5))]
    assert values(cluster, out) == sorted(expected)
    table = last_by_key(cluster.read(counts))
    assert {long(value) for value in table.values()} == {turn + 1}
