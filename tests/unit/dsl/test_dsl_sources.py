"""Streams of the same topics: one source, as Kafka Streams merges equal subscriptions."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from pyspark.sql import functions as F

from everflow import JoinWindows, KStream, StreamsBuilder, TopologyError, serdes
from everflow.testing import TopologyTestDriver
from everflow.topology.graph import SourceNode
from everflow.topology.subtopologies import cut

TEXT = serdes.string()


def _sources(builder: StreamsBuilder) -> list[tuple[str, tuple[str, ...]]]:
    nodes = builder.build().nodes
    return [(node.name, node.topics) for node in nodes if isinstance(node, SourceNode)]


def _read(builder: StreamsBuilder, topics: str | list[str] | re.Pattern[str]) -> KStream:
    return builder.stream(topics, key=TEXT, value=TEXT)


def test_streams_of_one_topic_are_one_source_with_the_name_of_the_first() -> None:
    builder = StreamsBuilder()
    _read(builder, "a").to("out")
    _read(builder, ["a"]).to("other")
    builder.stream("a", key=TEXT, value=TEXT, name="mine").to("third")
    assert _sources(builder) == [("KSTREAM-SOURCE-0000000000", ("a",))]
    # The second one's number is used up, as in Kafka Streams.
    assert "KSTREAM-SINK-0000000003" in str(builder.build().describe())
    assert len(cut(builder.build()).subtopologies) == 1


def test_streams_of_the_same_list_or_pattern_are_one_source() -> None:
    builder = StreamsBuilder()
    for topics in (["a", "b"], ["b", "a"], re.compile("c.*"), re.compile("c.*")):
        _read(builder, topics).for_each(print)
    assert [topics for _, topics in _sources(builder)] == [("a", "b"), ("c.*",)]
    _read(builder, re.compile("c.*", re.IGNORECASE)).for_each(print)
    assert len(_sources(builder)) == 3


def test_each_stream_gets_all_records_and_may_be_joined_with_the_other() -> None:
    builder = StreamsBuilder()
    first, second = _read(builder, "in"), _read(builder, "in")
    first.map_values(lambda value: f"1 {value}", returns="string").to("one")
    second.map_values(lambda value: f"2 {value}", returns="string").to("two")
    windows = JoinWindows.of_time_difference(5)
    pairs = first.join(
        second, lambda left, right: left + right, windows=windows, store="s", returns="string"
    )
    pairs.to("pairs")
    with TopologyTestDriver(builder.build(), emit_every_update=True) as driver:
        given = driver.create_input_topic("in", TEXT, TEXT)
        driver.pipe_batch({given: [("k", "a", 1), ("k", "b", 2)]})
        told = {
            name: [
                value for _, value in driver.create_output_topic(name, TEXT, TEXT).read_key_values()
            ]
            for name in ("one", "two", "pairs")
        }
    assert told == {"one": ["1 a", "1 b"], "two": ["2 a", "2 b"], "pairs": ["aa", "ba", "ab", "bb"]}


def test_a_column_of_the_same_text_is_the_same_time() -> None:
    builder = StreamsBuilder()
    for _ in range(2):
        time = F.col("value").cast("bigint")
        builder.stream("in", key=TEXT, value=TEXT, timestamp=time).for_each(print)
    assert len(_sources(builder)) == 1


Call = Callable[[StreamsBuilder], object]


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (lambda b: b.stream("in", key=TEXT), r"source.*serde"),
        (lambda b: b.stream("in", value=TEXT), r"source.*serde"),
        (
            lambda b: b.stream("in", key=TEXT, value=TEXT, offset_reset="earliest"),
            r"source.*offset_reset",
        ),
        (
            lambda b: b.stream("in", key=TEXT, value=TEXT, timestamp=F.col("value").cast("bigint")),
            r"source.*timestamp",
        ),
        (
            lambda b: b.stream("in", key=TEXT, value=TEXT, idle_advance=timedelta(minutes=1)),
            r"source.*idle_advance",
        ),
        (lambda b: _read(b, ["in", "more"]), r"streams.*exactly"),
        (lambda b: b.table("in", store="t"), r"streams.*exactly"),
        (lambda b: b.global_table("in", store="t"), r"streams.*exactly"),
        (lambda b: _read(b, "kept"), r"stream.*variable"),
        (lambda b: b.table("kept", store="k2"), r"stream.*variable"),
    ],
)
def test_what_is_read_in_two_ways_is_refused(second: Call, why: str) -> None:
    builder = StreamsBuilder()
    _read(builder, "in").to("out")
    builder.table("kept", key=TEXT, value=TEXT, store="k")
    before = builder.build()
    with pytest.raises(TopologyError, match=why) as caught:
        second(builder)
    assert re.search(r"first at .*test_dsl_sources\.py:\d+", str(caught.value))
    assert builder.build() == before, "a refused call leaves nothing behind"
