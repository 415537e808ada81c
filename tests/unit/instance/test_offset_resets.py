"""Where an input without offsets begins: its own word, else the setting; internal ones at 0."""

from datetime import timedelta

import pyarrow as pa
import pytest

from everflow import StreamsBuilder, serdes
from everflow.instance.start_up import offset_resets
from everflow.setting_checks import offset_reset, reset_duration_ms
from everflow.topology.graph import EdgeType, Reading, SourceNode
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut
from unit.builders import streams_config

BYTES = EdgeType(pa.binary(), pa.binary())


def source(topic: str, offset_reset: str | None = None, kind: str = "stream") -> SourceNode:
    return SourceNode(
        f"source-{topic}",
        (),
        BYTES,
        (topic,),
        serdes.bytes_(),
        serdes.bytes_(),
        kind,
        Reading(offset_reset=offset_reset),
    )


def test_a_source_without_a_policy_begins_as_the_setting_says() -> None:
    topology = Topology((source("orders"), source("prices", "earliest")), ())
    config = streams_config(auto_offset_reset="latest")
    assert offset_resets(cut(topology), config) == {"orders": "latest", "prices": "earliest"}


@pytest.mark.parametrize(
    ("policy", "ms"),
    [
        ("by_duration:PT12H", 43_200_000),
        ("by_duration:P1DT6H30M", 109_800_000),
        ("by_duration:PT0.5S", 500),
        ("by_duration:pt1m", 60_000),
        *[(text, None) for text in ("by_duration:", "by_duration:P", "by_duration:PT", "PT1H")],
        ("by_duration:1 hour", None),
        ("latest", None),
    ],
)
def test_a_duration_is_written_as_in_java(policy: str, ms: int | None) -> None:
    assert reset_duration_ms(policy) == ms
    assert (offset_reset(policy) is None) is (ms is not None or policy == "latest")


def test_a_timedelta_is_a_duration() -> None:
    builder = StreamsBuilder()
    builder.stream("orders", offset_reset=timedelta(hours=1, milliseconds=5))
    policies = offset_resets(cut(builder.build()), streams_config())
    assert reset_duration_ms(policies["orders"]) == 3_600_005


def test_a_repartition_topic_is_read_from_its_start_whatever_is_set() -> None:
    topology = Topology((source("orders"), source("by-key-repartition", kind="repartition")), ())
    config = streams_config(auto_offset_reset="latest")
    assert offset_resets(cut(topology), config)["app-by-key-repartition"] == "earliest"
