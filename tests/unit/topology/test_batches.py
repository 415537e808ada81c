"""Batches that are joined, and text that comes back from the JVM."""

from typing import Any

import numpy as np
import pyarrow as pa

from everflow.records import HEADERS, EdgeBatch
from everflow.topology.batches import concat, in_order, readable


def edge(
    keys: list[Any], values: list[Any], headers: Any = None, seq: list[int] | None = None
) -> EdgeBatch:
    n = len(keys)
    order = np.arange(n, dtype=np.int64) if seq is None else np.array(seq, np.int64)
    small = np.zeros(n, np.int32)
    found = None if headers is None else pa.array(headers, HEADERS)
    return EdgeBatch(
        key=pa.array(keys, pa.string()),
        value=pa.array(values, pa.int64()),
        timestamp=order + 100,
        seq=order,
        source=small,
        partition=small,
        offset=order + 7,
        headers=found,
    )


EMPTY = edge([], [])


def test_text_that_is_not_utf8_is_mended_as_java_does() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"], pa.binary()).buffers())
    assert readable(bad).to_pylist() == ["a\ufffd"]


def test_concat_is_in_merge_order_and_stable() -> None:
    left = edge(["a", "b", "c"], [1, 2, 3], seq=[0, 2, 2])
    right = edge(["x", "y"], [8, 9], [[{"key": "h", "value": None}], None], seq=[1, 2])
    joined = concat([left, EMPTY, right])
    assert joined.key.to_pylist() == ["a", "x", "b", "c", "y"]
    assert joined.headers is not None
    assert joined.headers.to_pylist() == [[], [{"key": "h", "value": None}], [], [], None]
    assert concat([EMPTY, EMPTY]).key.to_pylist() == []
    assert in_order(edge(["b", "a"], [2, 1], seq=[5, 4])).key.to_pylist() == ["a", "b"]
