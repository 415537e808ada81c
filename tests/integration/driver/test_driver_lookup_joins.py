"""Lookup joins in the test driver: records wait for their entry, and their time may be over."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, serdes
from everflow.testing import OutputTopic, TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT = serdes.string()


def told(out: OutputTopic) -> list[tuple[str | None, str | None, int]]:
    return [(one.key, one.value, one.timestamp) for one in out.read_records()]


@pytest.mark.parametrize("on_timeout", ["emit", "drop"])
def test_a_record_waits_for_its_entry_and_keeps_its_key_time_and_headers(on_timeout: str) -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t")
    stream = builder.stream("s", key=TEXT, value=TEXT)
    stream.lookup_join(
        table,
        F.concat(F.col("left"), F.lit("&"), F.coalesce(F.col("right"), F.lit("_"))),
        grace=10,
        on_timeout=on_timeout,
        most_per_key=2,
        store="waiting",
    ).to("out")
    topology = builder.build()
    assert "(stores: [t, waiting])" in topology.describe()
    with TopologyTestDriver(topology) as driver:
        entry = driver.create_input_topic("t", TEXT, TEXT)
        record = driver.create_input_topic("s", TEXT, TEXT)
        out = driver.create_output_topic("out", TEXT, TEXT)
        emits = on_timeout == "emit"
        record.pipe_input("a", "A", 100, headers=(("h", b"1"),))
        record.pipe_input("a", "B", 101)
        assert told(out) == []
        record.pipe_input("a", "C", 102)  # one too many
        assert told(out) == ([("a", "A&_", 100)] if emits else [])
        record.pipe_input("b", "D", 103, headers=(("h", b"2"),))
        entry.pipe_input("a", "x", 0)
        assert told(out) == [("a", "B&x", 101), ("a", "C&x", 102)]
        record.pipe_input("a", "E", 104)
        assert told(out) == [("a", "E&x", 104)]
        record.pipe_input(None, "F", 105)
        assert told(out) == ([(None, "F&_", 105)] if emits else [])
        record.pipe_input("c", "G", 113)
        assert told(out) == []
        record.pipe_input("c", "H", 114)  # D is more than 10 ms behind
        assert [(*one[:2], one[2]) for one in told(out)] == ([("b", "D&_", 103)] if emits else [])
        entry.pipe_input("c", "y", 0)
        found = out.read_records()
        assert [(one.value, one.timestamp) for one in found] == [("G&y", 113), ("H&y", 114)]
        record.pipe_input("d", "late", 90)
        assert told(out) == ([("d", "late&_", 90)] if emits else [])
        assert len(list(driver.get_key_value_store("waiting").all())) == 1  # the next number


def test_headers_and_times_survive_the_wait() -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t")
    stream = builder.stream("s", key=TEXT, value=serdes.json("n bigint, who string"))
    keyed = stream.select_key(F.col("value.who"))
    keyed.lookup_join(
        table,
        lambda key, left, right: f"{key} {left['n']} {right}",
        returns="string",
        grace="1 hour",
        store="waiting",
        name="by-who",
    ).to("out")
    with TopologyTestDriver(builder.build()) as driver:
        record = driver.create_input_topic("s", TEXT, serdes.json("n bigint, who string"))
        record.pipe_input("k", {"n": 1, "who": "ann"}, 5, headers=(("h", b"1"), ("g", None)))
        record.pipe_input("k", {"n": 2, "who": "ann"}, 4)
        driver.create_input_topic("t", TEXT, TEXT).pipe_input("ann", "Rome", 99)
        found = driver.create_output_topic("out", TEXT, TEXT).read_records()
    assert [(one.key, one.value, one.timestamp, tuple(one.headers)) for one in found] == [
        ("ann", "ann 1 Rome", 5, (("h", b"1"), ("g", None))),
        ("ann", "ann 2 Rome", 4, ()),
    ]
