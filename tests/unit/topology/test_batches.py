"""Rows of records that the JVM computes, every type there and back; batches that are joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from everflow.records import HEADERS, EdgeBatch
from everflow.topology.batches import ColumnRows, concat, in_order
from everflow.topology.graph import EdgeType
from everflow.topology.plan import Slot

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
WINDOWED = pa.struct([("key", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
PLAIN = Slot(1, "plain", EdgeType(pa.string(), pa.int64()))
NESTED = Slot(2, "nested", EdgeType(WINDOWED, STRUCT))


def edge(
    slot: Slot,
    keys: list[Any],
    values: list[Any],
    headers: Any = None,
    seq: list[int] | None = None,
) -> EdgeBatch:
    n = len(keys)
    order = np.arange(n, dtype=np.int64) if seq is None else np.array(seq, np.int64)
    small = np.zeros(n, np.int32)
    found = None if headers is None else pa.array(headers, HEADERS)
    return EdgeBatch(
        key=pa.array(keys, slot.type.key),
        value=pa.array(values, slot.type.value),
        timestamp=order + 100,
        seq=order,
        source=small,
        partition=small,
        offset=order + 7,
        headers=found,
    )


EMPTY = edge(PLAIN, [], [])
ALL = frozenset({"topic", "partition", "offset", "timestamp", "headers"})


def back(given: EdgeBatch, slot: Slot, live: list[bool | None]) -> EdgeBatch:
    """Records, of which the JVM gives the same key and value where ``live`` says so."""
    rows = ColumnRows(given=slot, made=(slot,), uses=frozenset())
    made = [pa.array(live, pa.bool_()), *rows.of(given).columns]
    table = pa.Table.from_arrays(made, schema=rows.made_schema())
    ((number, found),) = rows.records(given, table)
    assert number == slot.id
    return found


def test_records_that_a_filter_drops_are_not_there() -> None:
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], [], None]
    given = edge(PLAIN, ["a", "b", "c"], [1, 2, 3], headers, seq=[4, 6, 9])
    found = back(given, PLAIN, [True, None, True])
    assert found.key.to_pylist() == ["a", "c"]
    assert (found.seq.tolist(), found.offset.tolist()) == ([4, 9], [11, 16])
    assert found.headers is not None
    assert found.headers.to_pylist() == [headers[0], headers[2]]


def test_rows_have_what_columns_use_and_no_more() -> None:
    given = edge(PLAIN, ["a"], [1])
    names = ColumnRows(given=PLAIN, made=(), uses=ALL).of(given).schema.names
    assert names == ["_src", "_part", "_off", "_ts", "_hdr", "p1_k", "p1_v"]
    bare = ColumnRows(given=NESTED, made=(), uses=frozenset({"value", "offset"})).given_schema()
    assert bare.names == ["_off", "p2_k", "p2_vn", "p2_v0", "p2_v1"]


def test_text_that_is_not_utf8_is_mended_as_java_does() -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"], pa.binary()).buffers())
    batch = edge(PLAIN, ["?"], [1]).with_columns(key=bad)
    assert back(batch, PLAIN, [True]).key.to_pylist() == ["a\ufffd"]


def test_times_of_a_session_in_another_zone_are_the_same_instants() -> None:
    slot = Slot(1, "at", EdgeType(pa.string(), pa.timestamp("us", "UTC")))
    given = edge(slot, ["k"], [0])
    rows = ColumnRows(given=slot, made=(slot,), uses=frozenset())
    key, value = rows.of(given).columns
    made = [pa.array([True]), key, value.cast(pa.timestamp("us", "Asia/Tokyo"))]
    ((_, found),) = rows.records(given, pa.table(made, names=rows.made_schema().names))
    assert found.value.type == slot.type.value
    assert found.value.to_pylist() == given.value.to_pylist()


def test_concat_is_in_merge_order_and_stable() -> None:
    left = edge(PLAIN, ["a", "b", "c"], [1, 2, 3], seq=[0, 2, 2])
    right = edge(PLAIN, ["x", "y"], [8, 9], [[{"key": "h", "value": None}], None], seq=[1, 2])
    joined = concat([left, EMPTY, right])
    assert joined.key.to_pylist() == ["a", "x", "b", "c", "y"]
    assert joined.headers is not None
    assert joined.headers.to_pylist() == [[], [{"key": "h", "value": None}], [], [], None]
    assert concat([EMPTY, EMPTY]).key.to_pylist() == []
    assert in_order(edge(PLAIN, ["b", "a"], [2, 1], seq=[5, 4])).key.to_pylist() == ["a", "b"]
