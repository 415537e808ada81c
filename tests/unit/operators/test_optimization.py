"""Which tables have their topic as their changelog, and what is asked of such a topic."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from everflow import (
    LogAndSkipOnInvalidTimestamp,
    Materialized,
    StreamsBuilder,
    StreamsConfig,
    Topology,
    TopologyError,
    UsePartitionTimeOnInvalidTimestamp,
    serdes,
)
from everflow.instance.topics.internal_topics import require_compacted
from everflow.operators.optimization import REUSE_SOURCE_TOPICS, optimized
from everflow.topology.graph import StatefulNode
from everflow.topology.store_layouts import fingerprint
from everflow.topology.subtopologies import cut, internal_topics

TEXT, LONG = serdes.string(), serdes.long()


def program() -> Topology:
    builder = StreamsBuilder()
    builder.table("plain", key=TEXT, value=serdes.json("a int"), store="plain")
    builder.table("past", key=TEXT, value=TEXT, store=Materialized("past", history=5))
    builder.table("quoted", key=serdes.json("string"), value=TEXT, store="quoted")
    builder.stream("in", key=TEXT, value=LONG).to_table(store="made")
    return builder.build()


def sources(topology: Topology) -> dict[str, str | None]:
    return {
        spec.name: spec.source_topic
        for node in topology.nodes
        if isinstance(node, StatefulNode)
        for spec in node.stores
    }


def test_the_topic_of_a_table_whose_keys_are_written_as_they_were_read() -> None:
    assert sources(optimized(program(), REUSE_SOURCE_TOPICS)) == {
        "plain": "plain",
        "past": None,
        "quoted": None,
        "made": None,
    }
    assert set(sources(optimized(program(), "none")).values()) == {None}


@pytest.mark.parametrize(
    ("options", "reused"),
    [
        ({}, True),
        ({"offset_reset": "earliest"}, True),
        ({"offset_reset": "latest"}, False),
        ({"timestamp": LogAndSkipOnInvalidTimestamp()}, True),
        ({"timestamp": UsePartitionTimeOnInvalidTimestamp()}, False),
        ({"timestamp": lambda value: value["at"]}, False),
    ],
)
def test_a_topic_that_is_not_taken_as_it_is_is_none(options: dict[str, Any], reused: bool) -> None:
    builder = StreamsBuilder()
    builder.table("t", key=TEXT, value=serdes.json("at bigint"), store="t", **options)
    found = sources(optimized(builder.build(), REUSE_SOURCE_TOPICS))
    assert found == {"t": "t" if reused else None}


@pytest.mark.parametrize(
    ("settings", "reused"),
    [
        ({}, True),
        ({"default.timestamp.extractor": "LogAndSkipOnInvalidTimestamp"}, True),
        ({"default.timestamp.extractor": "WallclockTimestampExtractor"}, False),
        ({"auto.offset.reset": "latest"}, False),
    ],
)
def test_so_say_the_settings(settings: dict[str, Any], reused: bool) -> None:
    given = {"application.id": "a", "bootstrap.servers": "b:1", **settings}
    config = StreamsConfig(given | {"topology.optimization": REUSE_SOURCE_TOPICS})
    assert (config.optimization == REUSE_SOURCE_TOPICS) is reused


def test_no_changelog_is_made_and_instances_agree_on_it() -> None:
    counts = dict.fromkeys(("plain", "past", "quoted", "in"), 2)
    subs = cut(optimized(program(), REUSE_SOURCE_TOPICS))
    topics = internal_topics(subs, counts, "app")
    assert "app-plain-changelog" not in topics.changelog
    assert topics.left_out == {"app-plain-left-out-changelog"} & topics.changelog.keys()
    assert "app-past-changelog" in internal_topics(subs, counts, "app").changelog
    assert fingerprint(subs) != fingerprint(cut(program()))


@pytest.mark.parametrize("policy", ["delete", "compact,delete"])
def test_a_topic_that_deletes_records_is_refused_with_the_cure(policy: str) -> None:
    subs = cut(optimized(program(), REUSE_SOURCE_TOPICS))
    stores = [store for sub in subs.subtopologies for store in sub.stores]
    asked: list[str] = []

    def configs(names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
        asked.extend(names)
        return {name: {"cleanup.policy": policy} for name in names}

    with pytest.raises(TopologyError, match=r"the topic plain.*Set cleanup\.policy=compact") as e:
        require_compacted(stores, configs)
    assert "test_optimization.py" in str(e.value)
    assert "plain" in asked
    require_compacted(stores, lambda names: {name: {"cleanup.policy": "compact"} for name in names})
    require_compacted(stores, lambda _: {})
