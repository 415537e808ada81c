"""Streams whose keys are in their partitions already (KIP-759, note 077)."""

from __future__ import annotations

import pyarrow as pa

from everflow.dsl.graph_builder import Stream
from everflow.dsl.lowering.stateless import key_partitioner_of
from everflow.errors import TopologyError
from everflow.serdes import Serde
from everflow.serdes.arrow_types import type_text
from everflow.serdes.registered import Registered
from everflow.topology.graph import AssumedNode, SourceNode, same_type, write_alike
from everflow.user_program import did_you_mean

ASSUME = "assume_partitioned"


def assumed(stream: Stream, by: object, partitioner: object, name: str | None) -> Stream:
    said = key_partitioner_of(partitioner, ASSUME)
    if not stream.key_changed:
        if by is not None or said is not None:
            raise TopologyError(
                f"{ASSUME}: the key is the topic's own; how its producers spread it is said at the "
                f"source, as in builder.stream('topic', partitioner='crc32')"
            )
        return stream
    key_serde = stream.edge.written_key(ASSUME)
    part = None if by is None else (_field(stream, by), _serde_in_front(stream, by))
    if not callable(partitioner):
        _require_without_ids(key_serde if part is None else part[1])
    node = AssumedNode(
        name=stream.graph.node_name(name, "KSTREAM-PARTITION-PRESERVE-"),
        inputs=(stream.node,),
        out=stream.edge.type,
        key_serde=key_serde,
        by=part,
        partitioner=said,
    )
    return Stream(stream.graph, stream.graph.add(node), stream.edge)


def _field(stream: Stream, by: object) -> str:
    key = stream.edge.type.key
    fields = [field.name for field in key] if pa.types.is_struct(key) else []
    if not isinstance(by, str) or by not in fields:
        hint = did_you_mean(by, fields) if isinstance(by, str) else ""
        raise TopologyError(
            f"{ASSUME}: by= is the name of a field of the key, which is {type_text(key)}; found "
            f"{by!r}{hint}"
        )
    return by


def _serde_in_front(stream: Stream, by: object) -> Serde:
    """Of the keys of the topics in front, which the field ``by`` was."""
    kind = stream.edge.type.key.field(by).type
    found = [node for node in _sources(stream) if node.key_serde is not None]
    for source in found:
        if not same_type(source.key_serde.type, kind):
            raise TopologyError(
                f"{ASSUME}: the field {by} is {type_text(kind)}, and the keys of "
                f"{', '.join(source.topics)} are {type_text(source.key_serde.type)}: by= is the "
                f"field that was the key when the records were written; where it was another one, "
                f"say partitioner=, a function of (topic, key, value, partitions)"
            )
        if not write_alike(source.key_serde, found[0].key_serde):
            raise TopologyError(
                f"{ASSUME}: the keys of {', '.join(found[0].topics)} and of "
                f"{', '.join(source.topics)} are written as {found[0].key_serde!r} and "
                f"{source.key_serde!r}: equal keys are in different partitions",
                code="EF-COPARTITION",
            )
    return found[0].key_serde


def _sources(stream: Stream) -> list[SourceNode]:
    found: dict[str, SourceNode] = {}
    seen, todo = set[str](), [stream.node]
    while todo:
        node = stream.graph.nodes[todo.pop()]
        if node.name in seen:
            continue
        seen.add(node.name)
        todo += node.inputs
        if isinstance(node, SourceNode):
            found[node.name] = node
    return [found[name] for name in sorted(found)]


def _require_without_ids(serde: Serde) -> None:
    if isinstance(serde, Registered) and serde.registry is not None:
        raise TopologyError(
            f"{ASSUME}: the keys are written as {serde!r}, with the id of a schema, which only "
            f"their producer knows; say partitioner=, a function of (topic, key, value, "
            f"partitions) that gives the partition of a key, or leave {ASSUME} out"
        )
