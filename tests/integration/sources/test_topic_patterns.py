"""Sources with a pattern on a broker: topics that are there are read, and a topic that appears
later is told, and read from the next start, from its beginning and once."""

from __future__ import annotations

import logging
import re

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, Topology, TopologyError, serdes
from everflow.runtime.topics import topic_watch
from everflow.testing import wait_until
from integration.lifecycle.lifecycle_cluster import Application, Cluster, last_by_key, long, text

pytestmark = [pytest.mark.broker, pytest.mark.spark]

TEXT = serdes.string()


def program(cluster: Cluster, out: str, counts: str) -> Topology:
    builder = StreamsBuilder()
    pattern = re.compile(re.escape(f"{cluster.prefix}-in.") + ".*")
    stream = builder.stream(pattern, key=TEXT, value=TEXT, offset_reset="earliest")
    stream.map_values(F.concat(F.substring_index("topic", ".", -1), F.lit(" "), "value")).to(out)
    stream.group_by_key().count(store="n").to_stream().to(counts, value=serdes.long())
    return builder.build()


def test_a_topic_that_appears_later_is_read_from_the_next_start(
    app: Application,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(topic_watch, "PERIOD_MS", 200.0)
    out, counts = cluster.topic("out", 1), cluster.topic("counts", 2)
    with pytest.raises(TopologyError, match="no topic matches the pattern"):
        app.instance(program(cluster, out, counts)).start()
    first, second = cluster.topic("in.a", 2), cluster.topic("in.b", 2)
    cluster.write(first, [text("k", "1", 1), text("l", "1", 1, 1)])
    cluster.write(second, [text("k", "2", 2)])
    with (
        caplog.at_level(logging.WARNING, "everflow"),
        app.running(program(cluster, out, counts)) as streams,
    ):
        app.until_processed(streams, first, second)
        third = cluster.topic("in.c", 2)
        cluster.write(third, [text("k", "3", 3), text("l", "4", 4, 1)])
        wait_until(
            lambda: f"Topic {third} matches" in caplog.text, 20.0, "the new topic to be told"
        )
        cluster.write(first, [text("k", "5", 5)])
        app.until_processed(streams, first)
    for _ in range(2):
        with app.running(program(cluster, out, counts)) as streams:
            app.until_processed(streams, first, second, third)
    assert sorted((one.value or b"").decode() for one in cluster.read(out)) == [
        *("a 1", "a 1", "a 5", "b 2", "c 3", "c 4")
    ]
    table = last_by_key(cluster.read(counts))
    assert {key: long(value) for key, value in table.items()} == {b"k": 4, b"l": 2}
