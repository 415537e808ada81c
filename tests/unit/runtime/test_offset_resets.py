"""Where an input begins that has no committed offset: its own word, else the setting; internal
topics always at their start."""

from __future__ import annotations

import pyarrow as pa

from everflow import StreamsConfig, serdes
from everflow.runtime.start_up import offset_resets
from everflow.topology.graph import EdgeType, Reading, SourceNode
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut

BYTES = EdgeType(pa.binary(), pa.binary())


def source(topic: str, offset_reset: str | None = None, kind: str = "stream") -> SourceNode:
    return SourceNode(
        f"source-{topic}",
        (),
        BYTES,
        None,
        (topic,),
        serdes.bytes_(),
        serdes.bytes_(),
        kind,
        Reading(offset_reset=offset_reset),
    )


def test_a_source_without_a_policy_begins_as_the_setting_says() -> None:
    topology = Topology((source("orders"), source("prices", "earliest")), ())
    config = StreamsConfig(
        application_id="app", bootstrap_servers="b:1", auto_offset_reset="latest"
    )
    assert offset_resets(cut(topology), config) == {"orders": "latest", "prices": "earliest"}


def test_a_repartition_topic_is_read_from_its_start_whatever_is_set() -> None:
    topology = Topology((source("orders"), source("by-key-repartition", kind="repartition")), ())
    config = StreamsConfig(
        application_id="app", bootstrap_servers="b:1", auto_offset_reset="latest"
    )
    assert offset_resets(cut(topology), config)["app-by-key-repartition"] == "earliest"
