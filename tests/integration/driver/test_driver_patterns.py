"""Sources whose topics a pattern names, in the test driver: which topics those are, and what is
refused."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import functions as F

from everflow import StreamsBuilder, Topology, TopologyError, serdes
from everflow.testing import TopologyTestDriver

pytestmark = pytest.mark.spark

TEXT = serdes.string()


def topology(pattern: str) -> Topology:
    builder = StreamsBuilder()
    stream = builder.stream(re.compile(pattern), key=TEXT, value=TEXT)
    stream.map_values(F.concat("topic", F.lit(" "), "value")).to("out")
    stream.group_by_key().count(store="n").to_stream().to("counts", value=serdes.long())
    return builder.build()


def test_all_topics_that_match_as_a_whole_are_one_stream() -> None:
    existing = [
        *("orders-eu", "orders-us", "orders", "my-orders-eu", "__orders-x"),
        "a-n-changelog",
    ]
    with TopologyTestDriver(
        topology(r".*orders-.*|.*changelog"), topics=existing, application_id="a"
    ) as driver:
        europe, america, mine = (
            driver.create_input_topic(name, TEXT, TEXT)
            for name in ("orders-eu", "orders-us", "my-orders-eu")
        )
        europe.pipe_input("k", "1", 5)
        driver.pipe_batch({america: [("k", "3", 9)], mine: [("k", "2", 7)]})
        out = driver.create_output_topic("out", TEXT, TEXT)
        assert [value for _, value in out.read_key_values()] == [
            *("orders-eu 1", "my-orders-eu 2", "orders-us 3")
        ]
        assert driver.get_key_value_store("n").get("k") == 3
        for topic in ("orders", "__orders-x", "a-n-changelog"):
            with pytest.raises(TopologyError, match="topic"):
                driver.create_input_topic(topic, TEXT, TEXT)


def test_the_pattern_is_shown_before_there_are_topics() -> None:
    """As in Kafka Streams, without brackets."""
    assert "Source: KSTREAM-SOURCE-0000000000 (topics: in\\..*)" in topology(r"in\..*").describe()


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        (["other"], r"no topic matches the pattern 'in\.\*'; create one before"),
        ([], r"TopologyTestDriver\(topology.*topics="),
    ],
)
def test_a_pattern_without_a_topic(topics: list[str], says: str) -> None:
    with pytest.raises(TopologyError, match=says) as caught:
        TopologyTestDriver(topology("in.*"), topics=topics)
    assert caught.value.where is not None
    assert caught.value.where.startswith(__file__)


def test_a_topic_belongs_to_one_source() -> None:
    builder = StreamsBuilder()
    builder.stream("in-a", key=TEXT, value=TEXT).for_each(print)
    builder.stream(re.compile("in-.*"), key=TEXT, value=TEXT).for_each(print)
    with pytest.raises(
        TopologyError, match=r"'in-a' matches the pattern 'in-\.\*', and the source"
    ):
        TopologyTestDriver(builder.build(), topics=["in-a", "in-b"])
