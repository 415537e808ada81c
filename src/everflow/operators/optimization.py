"""Applies ``topology.optimization``: the topics of tables serve as their changelogs. Pure."""

from __future__ import annotations

from dataclasses import replace

from everflow.operators.table import TableSpec
from everflow.serdes import (
    BooleanSerde,
    BytesSerde,
    DoubleSerde,
    FloatSerde,
    IntegerSerde,
    StringSerde,
)
from everflow.topology.graph import (
    FailOnInvalidTimestamp,
    LogAndSkipOnInvalidTimestamp,
    Node,
    Reading,
    SourceNode,
    StatefulNode,
)
from everflow.topology.program import Topology

REUSE_SOURCE_TOPICS = "reuse.ktable.source.topics"
_WRITTEN_BACK = (BytesSerde, StringSerde, BooleanSerde, IntegerSerde, FloatSerde, DoubleSerde)
"""Serdes that write a key as the bytes that they have read: it is restored under the same ones."""


def optimized(topology: Topology, optimization: str) -> Topology:
    """The topology as it is run with this setting.

    Left as they are: tables with a history, whose versions compaction would take away; tables
    without a changelog; those whose keys are not written as they were read; those of change data,
    which keep rows and not changes; and those whose source says where it begins, or what time a
    record has. (Of what processing leaves out: note 065.)
    """
    if optimization != REUSE_SOURCE_TOPICS:
        return topology
    sources = {node.name: node for node in topology.nodes if isinstance(node, SourceNode)}
    return replace(topology, nodes=tuple(_reusing(node, sources) for node in topology.nodes))


def _reusing(node: Node, sources: dict[str, SourceNode]) -> Node:
    if not isinstance(node, StatefulNode) or not isinstance(node.operator, TableSpec):
        return node
    source = sources.get(node.inputs[0])
    if source is None or node.label != "SOURCE":  # of a stream: its topic is another's affair
        return node
    (spec,) = node.stores
    written_back = isinstance(spec.key_serde, _WRITTEN_BACK)
    other_bytes = source.value_serde != spec.value_serde  # change data
    if other_bytes or not spec.logging or not written_back or not _as_it_is(source.reading):
        return node
    return replace(node, stores=(replace(spec, source_topic=source.topics[0]),))


def _as_it_is(reading: Reading) -> bool:
    own = None | FailOnInvalidTimestamp | LogAndSkipOnInvalidTimestamp
    return isinstance(reading.timestamp, own) and reading.offset_reset in (None, "earliest")
