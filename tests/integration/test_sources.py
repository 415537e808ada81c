"""Sources on a broker: with a pattern, whose topics may come later (note 037), with partitions that
come while instances run, and runs that end by themselves."""

import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pyspark.sql import functions as F

from everflow import (
    KafkaStreams,
    Materialized,
    SlidingWindows,
    StreamsBuilder,
    Topology,
    TopologyError,
    serdes,
)
from everflow.errors import InternalTopicError
from everflow.instance.client_state import ClientState
from everflow.instance.instance import Extension
from everflow.instance.topics import internal_topics
from everflow.records import TaskId
from everflow.testing import TopologyTestDriver, wait_until
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
    monkeypatch.setattr(internal_topics, "PERIOD_MS", 200.0)


def of_a_pattern(cluster: Cluster, out: str, counts: str) -> Topology:
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
        app.instance(of_a_pattern(cluster, out, counts)).start()
    first, second = cluster.topic("in.a", 2), cluster.topic("in.b", 2)
    cluster.write(first, [text("k", "1", 1), text("l", "1", 1, 1)])
    cluster.write(second, [text("k", "2", 2)])
    with (
        caplog.at_level(logging.WARNING, "everflow"),
        app.running(of_a_pattern(cluster, out, counts)) as streams,
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
        assert "no multiple" in caplog.text
        cluster.write(third, [text("k", "6", 6)])
        app.until_processed(streams, third)
    with pytest.raises(InternalTopicError, match="no multiple"):
        app.instance(of_a_pattern(cluster, out, counts)).start()
    cluster.delete(wide)
    with app.running(of_a_pattern(cluster, out, counts)) as streams:
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
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarantee", ["exactly_once_v2", "at_least_once"])
def test_two_instances_take_a_topic_up_one_after_the_other(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, guarantee: str
) -> None:
    """One is late: the topic's own tasks wait for it; nothing is read twice or left out."""
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
            assert time.monotonic() < deadline, [incarnations(one) for one in running]
            cluster.write(first, of_round(turn, 2))
            cluster.write(second, of_round(turn, 5))
            cluster.write(other, of_round(turn, 4))
            app.until_processed(None, other)  # no more rounds than are read: they are checked below
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


def two_sources(free: str, kept: str, out: str) -> Topology:
    builder = StreamsBuilder()
    builder.stream(free, key=TEXT, value=TEXT, offset_reset="earliest").to(out)
    builder.stream(kept, key=TEXT, value=TEXT).group_by_key().count(store="n")
    return builder.build()


def test_new_partitions_of_a_stateless_part_are_read_beside_a_stateful_one(
    app: Application, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(internal_topics, "PERIOD_MS", 200.0)
    free, kept, out = cluster.topic("free", 2), cluster.topic("kept", 1), cluster.topic("out", 1)
    cluster.write(free, [text("k", "1"), text("k", "2", 1, 1)])
    cluster.write(kept, [text("k", "v")])

    def written() -> list[str]:
        return sorted((one.value or b"").decode() for one in cluster.read(out))

    with app.running(two_sources(free, kept, out)) as streams:
        app.until_processed(streams, free)
        cluster.grow(free, 4)
        cluster.write(free, [text("k", str(n), 1, n - 1) for n in (3, 4)])
        cluster.write(free, [text("k", "5", 1, 0)])
        wait_until(lambda: written() == list("12345"), 90, "the records of the new partitions")
        assert streams.state is ClientState.RUNNING
        assert dict(streams.store("n").all()) == {"k": 1}


SLIDING = SlidingWindows.of_time_difference_and_grace("10 ms", "5 ms")
TIMES = (1, 4, 12, 13, 30, 28, 45, 29, 46, 58)
"""29 is late for the windows that have closed."""
RESULTS = ("near", "counts")


def topology(name: Callable[[str], str]) -> Topology:
    """Every update of both tables is a result; one has options for its changelog, one has no
    changelog. ``name``: a topic's full name."""
    builder = StreamsBuilder()
    groups = builder.stream(name("in"), key=serdes.string(), value=serdes.string()).group_by_key()
    near = Materialized(
        "near", retention="1 hour", caching=False, topic_config={"segment.ms": "600000"}
    )
    groups.windowed_by(SLIDING).count(store=near).to_stream().map_values(str, returns="string").to(
        name("near")
    )
    lost = Materialized("counts", caching=False, logging=False)
    groups.count(store=lost).to_stream().to(name("counts"))
    return builder.build()


def by_the_driver(records: list[Record]) -> dict[str, list[tuple[bytes | None, bytes | None, int]]]:
    raw = serdes.bytes_()
    with TopologyTestDriver(topology(str)) as driver:
        source = driver.create_input_topic("in", raw, raw)
        for one in records:
            source.pipe_input(one.key, one.value, one.timestamp)
        return {
            result: [
                (found.key, found.value, found.timestamp)
                for found in driver.create_output_topic(result, raw, raw).read_records()
            ]
            for result in RESULTS
        }


def test_runs_that_end_give_what_the_driver_gives(app: Application, cluster: Cluster) -> None:
    records = [text(f"k{n % 2}", "v", at) for n, at in enumerate(TIMES)]
    wanted = by_the_driver(records)
    names = {topic: cluster.topic(topic, 1) for topic in ("in", *RESULTS)}
    outputs = [names[result] for result in RESULTS]
    program = topology(names.__getitem__)

    def ended(streams: KafkaStreams) -> None:
        assert streams.state is ClientState.NOT_RUNNING
        assert streams.error is None

    streams = app.instance(program)
    begun = time.monotonic()
    nothing = streams.run(timeout=1, collect=outputs)
    assert time.monotonic() - begun >= 1
    assert nothing == {topic: [] for topic in outputs}
    ended(streams)

    cluster.write(names["in"], records)
    streams = app.instance(program)
    total = sum(map(len, wanted.values()))
    given = streams.run(count=total, timeout="1 minute", collect=outputs)
    ended(streams)
    assert isinstance(given, dict)
    assert [(one.key, one.value) for one in given[names["counts"]]] == [
        (f"k{n % 2}", 1 + n // 2) for n in range(len(records))
    ]
    assert {one.key.end - one.key.start for one in given[names["near"]]} == {10}
    for result in RESULTS:
        found = [(one.key, one.value, one.timestamp) for one in cluster.read(names[result])]
        assert found == wanted[result], result

    changelogs = [topic for topic in cluster.topics() if topic.endswith("-changelog")]
    assert changelogs == [f"{app.id}-near-changelog"], "counts has none"
    assert cluster.config(changelogs[0])["segment.ms"] == "600000"
    long_kept = 100 * 365 * 86_400_000 + 3_600_000
    assert cluster.config(changelogs[0])["retention.ms"] == str(long_kept)
