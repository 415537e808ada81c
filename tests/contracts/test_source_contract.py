"""Both readers of micro-batches against one log: the prepared one, over private classes of the
connector, and the public one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from everflow.kafka.admin import ClusterAdmin
from everflow.kafka.producer import RecordWriter, fence
from everflow.records import OffsetRange, TopicPartition
from everflow.spark.connector import add_connector
from everflow.spark.source import PreparedSource, PublicSource, SourceSettings, open_source
from everflow.testing.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.spark]
Topic = Callable[..., str]
HEADERS = [("h", b"1"), ("h", None)]
SOURCES = pytest.mark.parametrize("source_class", [PreparedSource, PublicSource])


@pytest.fixture(autouse=True)
def connector(spark: SparkSession) -> None:
    """A session is started without it, whatever ran before in this process."""
    add_connector(spark.sparkContext)


@pytest.fixture(scope="module")
def log(bootstrap: str, admin: ClusterAdmin) -> TopicPartition:
    """Offsets: 0-2 committed, 3 marker, 4-5 aborted, 6 marker, 7-9 committed, 10 marker, 11-12
    aborted, 13 marker."""
    tp = TopicPartition(f"source-contract-{time.time_ns()}", 0)
    admin.create_topics({tp.topic: (1, {})})
    writer = RecordWriter({"bootstrap.servers": bootstrap}, tp.topic)
    for keep, values in (
        (True, [b"a", b"b", None]),
        (False, [b"x", b"x"]),
        (True, [b"c", b"", b"e"]),
        (False, [b"x", b"x"]),
    ):
        writer.begin()
        keys = [None, *(b"k%d" % i for i in range(1, len(values)))]
        writer.write(
            tp.topic,
            keys,
            values,
            np.arange(len(values), dtype=np.int64) + 1000,
            0,
            [HEADERS, *[[]] * (len(values) - 1)],
        )
        writer.flush(30)
        if keep:
            writer.commit(30)
        else:
            writer.abort()
    writer.close()
    wait_until(lambda: admin.end_offsets([tp], "read_committed")[tp] == 14, 30, "the last marker")
    return tp


def settings(bootstrap: str, name: str, committed: bool = True) -> SourceSettings:
    return SourceSettings(
        bootstrap_servers=bootstrap, group=name, read_committed=committed, headers=True
    )


def rows_of(source: Any, ranges: dict[TopicPartition, OffsetRange]) -> list[tuple[Any, ...]]:
    source.set_ranges(ranges)
    rows = (
        source.frame()
        .select("key", "value", "partition", "offset", "timestamp", "headers")
        .coalesce(1)
        .collect()
    )
    return [
        (
            r.key and bytes(r.key),
            None if r.value is None else bytes(r.value),
            r.offset,
            r.timestamp.timestamp(),
            r.headers,
        )
        for r in rows
    ]


def values_of(source: Any, tp: TopicPartition, start: int, end: int) -> list[bytes | None]:
    return [row[1] for row in rows_of(source, {tp: OffsetRange(start, end)})]


@SOURCES
def test_rows_headers_and_exact_ranges(
    spark: SparkSession, bootstrap: str, log: TopicPartition, name: str, source_class: Any
) -> None:
    source = source_class(spark, settings(bootstrap, name), [log])
    first, second = rows_of(source, {log: OffsetRange(0, 2)})
    assert (first[0], first[1], first[2], first[3]) == (None, b"a", 0, 1.0)
    assert [(h.key, h.value and bytes(h.value)) for h in first[4]] == HEADERS, (
        "in order, with duplicates"
    )
    assert (second[0], second[1], second[2], second[3]) == (b"k1", b"b", 1, 1.001)
    assert not second[4]
    everything = [b"a", b"b", None, b"c", b"", b"e"]
    for start, end, expected in (
        (0, 14, everything),
        (1, 9, everything[1:5]),
        (0, 4, everything[:3]),
        (9, 11, [b"e"]),
    ):
        assert values_of(source, log, start, end) == expected, (start, end)


@SOURCES
def test_nothing_in_it(
    spark: SparkSession, bootstrap: str, log: TopicPartition, name: str, source_class: Any
) -> None:
    """Empty ranges, partitions left out, ranges of markers and aborted records only."""
    source = source_class(spark, settings(bootstrap, name), [log])
    assert rows_of(source, {}) == []
    for start, end in ((5, 5), (3, 4), (3, 7), (10, 14), (13, 14)):
        assert values_of(source, log, start, end) == [], (start, end)
    assert values_of(source, log, 0, 1) == [b"a"], "and the source goes on"


@SOURCES
def test_an_end_that_does_not_exist_fails_within_seconds(
    spark: SparkSession, bootstrap: str, log: TopicPartition, name: str, source_class: Any
) -> None:
    """Scenarios 5 and 41: never fewer rows in silence, never a hang of two minutes."""
    source = source_class(spark, settings(bootstrap, name), [log])
    began = time.monotonic()
    with pytest.raises((Py4JError, PySparkException)):
        values_of(source, log, 12, 20)
    assert time.monotonic() - began < 60
    assert values_of(source, log, 7, 9) == [b"c", b""], "and the source goes on"


def test_the_end_of_an_open_transaction_fails_too(
    spark: SparkSession, bootstrap: str, topic: Topic, name: str
) -> None:
    tp = TopicPartition(topic(1), 0)
    writer = RecordWriter({"bootstrap.servers": bootstrap}, name)
    writer.begin()
    writer.write(tp.topic, [b"k"], [b"v"], np.ones(1, np.int64), 0)
    writer.flush(30)
    with pytest.raises((Py4JError, PySparkException)):
        values_of(PreparedSource(spark, settings(bootstrap, name), [tp]), tp, 0, 1)
    fence({"bootstrap.servers": bootstrap}, name, 30)
    writer.close()


def test_both_isolation_levels_of_one_application(
    spark: SparkSession, bootstrap: str, log: TopicPartition, name: str
) -> None:
    """Scenario 29: Spark's consumer cache knows group and partition only."""
    committed, everything = (
        PreparedSource(spark, settings(bootstrap, name, level), [log]) for level in (True, False)
    )
    for _ in range(3):
        assert len(values_of(committed, log, 0, 14)) == 6
        assert len(values_of(everything, log, 0, 14)) == 10
        assert values_of(everything, log, 4, 7) == [b"x", b"x"]


def test_a_hundred_runs_of_one_plan(
    spark: SparkSession, bootstrap: str, admin: ClusterAdmin, topic: Topic, name: str
) -> None:
    """Also scenario 40: at the tail of four partitions a run does not wait half a second for
    each."""
    topic_name = topic(4)
    partitions = [TopicPartition(topic_name, p) for p in range(4)]
    writer = RecordWriter({"bootstrap.servers": bootstrap}, None)
    writer.begin()
    for tp in partitions:
        writer.write(
            tp.topic,
            [b"k"] * 500,
            [b"%d" % i for i in range(500)],
            np.ones(500, np.int64),
            tp.partition,
        )
    writer.flush(30)
    source = open_source(spark, settings(bootstrap, name), partitions)
    assert isinstance(source, PreparedSource), "the connector's internals differ"
    took = []
    for run in range(100):
        bounds = {tp: OffsetRange(run * 5, run * 5 + (tp.partition + run) % 6) for tp in partitions}
        if run % 10 == 9:
            bounds = {tp: OffsetRange(499, 500) for tp in partitions}
        source.set_ranges(bounds)
        began = time.monotonic()
        rows = source.frame().select("partition", "offset", "value").coalesce(1).collect()
        took.append(time.monotonic() - began)
        expected = [(tp.partition, o, b"%d" % o) for tp in partitions for o in range(*bounds[tp])]
        assert [(r.partition, r.offset, bytes(r.value)) for r in rows] == expected
    assert min(took[9::10]) < 1.5, "500 ms for each partition at the tail"
