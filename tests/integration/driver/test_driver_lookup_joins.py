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


def test_a_record_waits_for_an_entry_of_a_global_table() -> None:
    builder = StreamsBuilder()
    table = builder.global_table("g", key=TEXT, value=TEXT, store="g")
    stream = builder.stream("s", key=TEXT, value=serdes.json("n bigint, who string"))
    both = F.concat_ws("&", F.col("left.n").cast("string"), F.coalesce(F.col("right"), F.lit("_")))
    joined = stream.lookup_join(
        table, both, on=F.col("value.who"), grace=10, timeout="5 seconds", store="waiting"
    )
    joined.to("out")
    # The entry that was waited for counts for what stands behind, too.
    joined.group_by_key().count(store="counts").to_stream().to("counted", value=serdes.long())
    topology = builder.build()
    assert "waiting" in topology.describe()
    with TopologyTestDriver(topology, initial_wall_clock_ms=1_000) as driver:
        entry = driver.create_input_topic("g", TEXT, TEXT)
        record = driver.create_input_topic("s", TEXT, serdes.json("n bigint, who string"))
        out = driver.create_output_topic("out", TEXT, TEXT)
        record.pipe_input("1", {"n": 1, "who": "ann"}, 100, headers=(("h", b"1"),))
        record.pipe_input("2", {"n": 2, "who": "bob"}, 101)
        record.pipe_input("3", {"n": 3, "who": "ann"}, 102)
        driver.advance_wall_clock_time(1_000)
        assert told(out) == []
        entry.pipe_input("ann", "Rome", 0)  # no record of the stream comes
        driver.advance_wall_clock_time(1_000)
        found = out.read_records()
        assert [(one.key, one.value, one.timestamp) for one in found] == [
            ("1", "1&Rome", 100),
            ("3", "3&Rome", 102),
        ]
        assert tuple(found[0].headers) == (("h", b"1"),)
        driver.advance_wall_clock_time(2_999)
        assert told(out) == []
        driver.advance_wall_clock_time(1)
        assert told(out) == [("2", "2&_", 101)]
        record.pipe_input("4", {"n": 4, "who": "cid"}, 103)
        record.pipe_input("5", {"n": 5, "who": "ann"}, 114)
        assert told(out) == [("4", "4&_", 103), ("5", "5&Rome", 114)]
        record.pipe_input("6", {"n": 6, "who": None}, 115)
        assert told(out) == [("6", "6&_", 115)]
        assert len(list(driver.get_key_value_store("waiting").all())) == 1
        counted = driver.create_output_topic("counted", TEXT, serdes.long())
        assert sorted(counted.read_key_values()) == [(str(n), 1) for n in range(1, 7)]


def test_the_clock_ends_a_wait_where_no_records_come() -> None:
    builder = StreamsBuilder()
    table = builder.table("t", key=TEXT, value=TEXT, store="t")
    stream = builder.stream("s", key=TEXT, value=TEXT)
    for how in ("emit", "drop"):
        stream.lookup_join(table, timeout="1 minute", on_timeout=how, store=how).map_values(
            F.concat_ws("&", F.col("value.left"), F.col("value.right"))
        ).to(how)
    with TopologyTestDriver(builder.build(), initial_wall_clock_ms=1_000) as driver:
        entry = driver.create_input_topic("t", TEXT, TEXT)
        record = driver.create_input_topic("s", TEXT, TEXT)
        outs = [driver.create_output_topic(how, TEXT, TEXT) for how in ("emit", "drop")]
        record.pipe_input("a", "A", 0)
        record.pipe_input("b", "B", 99_999_999)  # stream time ends nothing
        driver.advance_wall_clock_time(59_999)
        assert list(map(told, outs)) == [[], []]
        entry.pipe_input("a", "x", 0)
        assert list(map(told, outs)) == [[("a", "A&x", 0)]] * 2
        driver.advance_wall_clock_time(1)
        assert list(map(told, outs)) == [[("b", "B", 99_999_999)], []]
        entry.pipe_input("b", "late", 0)
        assert list(map(told, outs)) == [[], []]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ahead_ms", [5_002, 50 * 365 * 86_400_000])
def test_a_record_that_came_by_a_clock_ahead_of_time_waits_no_longer_than_its_timeout(
    ahead_ms: int, whole: bool
) -> None:
    builder = StreamsBuilder()
    one = builder.global_table if whole else builder.table
    table = one("t", key=TEXT, value=TEXT, store="t")
    stream = builder.stream("s", key=TEXT, value=TEXT)
    value, on = F.coalesce(F.col("right"), F.lit("none")), F.col("key") if whole else None
    stream.lookup_join(table, value, on=on, timeout="5 seconds", store="waiting").to("out")
    with TopologyTestDriver(builder.build()) as driver:
        entry = driver.create_input_topic("t", TEXT, TEXT)
        record = driver.create_input_topic("s", TEXT, TEXT)
        out = driver.create_output_topic("out", TEXT, TEXT)
        driver.advance_wall_clock_time(ahead_ms)
        record.pipe_input("a", "A", 100, headers=(("h", b"1"),))
        record.pipe_input("b", "B", 101)
        driver.advance_wall_clock_time(-ahead_ms)  # the clock is right again: 0
        entry.pipe_input("b", "y", 0)  # a wait that is looked at anew ends as any other
        driver.advance_wall_clock_time(1_000)
        assert told(out) == [("b", "y", 101)]
        driver.advance_wall_clock_time(3_999)
        assert told(out) == []
        driver.advance_wall_clock_time(1_001)
        (found,) = out.read_records()
        assert (found.key, found.value, found.timestamp) == ("a", "none", 100)
        assert list(found.headers) == [("h", b"1")]
        driver.advance_wall_clock_time(ahead_ms)
        assert told(out) == []
        state = driver._stores["waiting"]
        assert len(state) == 1, "of who has waited nothing is left but the next number"
