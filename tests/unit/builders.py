"""Values that many tests need and few look at: each has what a test leaves out."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

import everflow
from everflow import StreamsConfig, serdes
from everflow.config import EXACTLY_ONCE_V2
from everflow.protocol.messages import BatchRequest
from everflow.records import EdgeBatch, OffsetRange, TopicPartition
from everflow.serdes import Serde
from everflow.state.store import StoreSpec
from everflow.topology.sources import Source

TEXT, LONG = serdes.string(), serdes.long()
PUBLIC = {name: getattr(everflow, name) for name in everflow.__all__}
"""For programs that are written as text: ``eval("b.stream('t')", {**PUBLIC, "b": builder})``."""


def streams_config(**more: Any) -> StreamsConfig:
    """Of application ``app``, whose broker nobody asks."""
    return StreamsConfig(**{"application_id": "app", "bootstrap_servers": "b:1", **more})


def store_spec(
    name: str = "s", kind: str = "key_value", key: Serde = TEXT, value: Serde = LONG, **more: Any
) -> StoreSpec:
    """From text to a long where nothing else is said."""
    return StoreSpec(name=name, kind=kind, key_serde=key, value_serde=value, **more)


def source(
    topic: str = "in", index: int = 0, key: Serde = TEXT, value: Serde = TEXT, **more: Any
) -> Source:
    """A topic of texts that alone feeds its sub-topology."""
    defaults: dict[str, Any] = {
        "subtopology": 0,
        "node": "source",
        "offset_reset": "earliest",
        "kind": "stream",
        "merged": False,
        "slot": index + 1,
    }
    return Source(
        index=index, topic=topic, key_serde=key, value_serde=value, **{**defaults, **more}
    )


def batch_request(ranges: Mapping[TopicPartition, OffsetRange], **more: Any) -> BatchRequest:
    """Of these ranges, which end where the logs end; without a transaction and a gate."""
    defaults: dict[str, Any] = {
        "batch_id": "i.0.0",
        "thread": 0,
        "attempt": 0,
        "guarantee": EXACTLY_ONCE_V2,
        "transactional_id": "",
        "wall_clock_ms": 0,
        "gate": "",
        "log_ends": {tp: wanted.end for tp, wanted in ranges.items()},
        "tasks": [],
        "application_id": "app",
    }
    return BatchRequest(ranges=ranges, **{**defaults, **more})


def edge_batch(
    keys: Sequence[Any] | pa.Array,
    values: Sequence[Any] | pa.Array,
    key_type: pa.DataType | None = None,
    value_type: pa.DataType | None = None,
    *,
    partition: Any = 0,
    offset: Any = 0,
    **columns: Any,
) -> EdgeBatch:
    """Records in order, one behind the other: times from 0 on, offsets from ``offset`` (or one for
    each record, as all ``columns`` are)."""
    order, zeros = np.arange(len(keys), dtype=np.int64), np.zeros(len(keys), np.int32)
    made = {
        "timestamp": order,
        "seq": order,
        "source": zeros,
        "partition": zeros + np.int32(partition),
        "offset": order + offset if isinstance(offset, int) else offset,
    }
    return EdgeBatch(
        key=pa.array(keys, key_type), value=pa.array(values, value_type), **{**made, **columns}
    )
