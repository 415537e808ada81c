"""Sliding windows, stores with options and runs that end by themselves, in one program on a
broker."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from everflow import KafkaStreams, Materialized, SlidingWindows, StreamsBuilder, Topology, serdes
from everflow.instance.client_state import ClientState
from everflow.testing import TopologyTestDriver
from integration.lifecycle.lifecycle_cluster import Application, Cluster, Record, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

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
