"""Hop rows: complete or refused (scenario 33), matched by name (scenario 35), every type there and
back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from everflow.records import HEADERS, EdgeBatch
from everflow.topology.graph import EdgeType
from everflow.topology.hops import HopError, HopSchema, concat, in_order, read_hop, write_hop
from everflow.topology.physical_plan import Slot

STRUCT = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
WINDOWED = pa.struct([("key", pa.string()), ("start", pa.int64()), ("end", pa.int64())])
SLOTS = (
    Slot(
        id=1,
        name="plain",
        type=EdgeType(pa.string(), pa.int64()),
        level=0,
        in_step=True,
        last_step=1,
    ),
    Slot(id=2, name="nested", type=EdgeType(WINDOWED, STRUCT), level=0, in_step=True, last_step=1),
)


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


FULL = {
    1: edge(SLOTS[0], ["x", None], [None, 5]),
    2: edge(
        SLOTS[1],
        [{"key": "k", "start": 0, "end": 9}, None, {"key": None, "start": 1, "end": 2}],
        [{"a": 1, "b": ["p", None]}, None, {"a": None, "b": None}],
    ),
}
EMPTY = {1: edge(SLOTS[0], [], []), 2: edge(SLOTS[1], [], [])}


@pytest.mark.parametrize(
    "records", [FULL, EMPTY, {1: FULL[1], 2: EMPTY[2]}], ids=["full", "empty", "one slot"]
)
def test_round_trip(records: dict[int, EdgeBatch]) -> None:
    schema = HopSchema(SLOTS, headers=False)
    back = read_hop(write_hop(records, schema, '{"x":1}'), schema)
    assert back.control == '{"x":1}'
    for slot, batch in records.items():
        assert back.batches[slot].key.to_pylist() == batch.key.to_pylist()
        assert back.batches[slot].value.to_pylist() == batch.value.to_pylist()
        assert back.batches[slot].timestamp.tolist() == batch.timestamp.tolist()
        assert back.batches[slot].offset.tolist() == batch.offset.tolist()


def test_headers_keep_duplicates_and_nulls() -> None:
    schema = HopSchema(SLOTS[:1], headers=True)
    headers = [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], []]
    back = read_hop(
        write_hop({1: edge(SLOTS[0], ["a", "b"], [1, 2], headers)}, schema, "{}"), schema
    )
    assert back.batches[1].headers is not None
    assert back.batches[1].headers.to_pylist() == headers


def test_input_without_marker_is_a_failure_upstream() -> None:
    schema = HopSchema(SLOTS, headers=False)
    rows = write_hop(FULL, schema, "{}")
    cut_short: list[list[pa.RecordBatch]] = [
        [],
        rows[:-1],
        rows[:1],
        [rows[-1].slice(0, 0)],
        [*rows, rows[0]],
        [rows[-1], *rows],
    ]
    for batches in cut_short:
        with pytest.raises(HopError, match="end marker"):
            read_hop(batches, schema)


def test_swapped_columns_are_refused() -> None:
    two = (
        SLOTS[0],
        Slot(id=3, name="twin", type=SLOTS[0].type, level=0, in_step=True, last_step=1),
    )
    schema = HopSchema(two, headers=False)
    (batch, *rest) = write_hop({1: FULL[1], 3: EMPTY[1]}, schema, "{}")
    swapped = {"p1_v": "p3_v", "p3_v": "p1_v"}
    names = [swapped.get(name, name) for name in batch.schema.names]
    with pytest.raises(HopError, match="columns differ"):
        read_hop([pa.RecordBatch.from_arrays(batch.columns, names=names), *rest], schema)


def test_text_that_is_not_utf8_is_mended_as_java_does() -> None:
    schema = HopSchema(SLOTS[:1], headers=False)
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"], pa.binary()).buffers())
    batch = edge(SLOTS[0], ["?"], [1]).with_columns(key=bad)
    assert read_hop(write_hop({1: batch}, schema, "{}"), schema).batches[1].key.to_pylist() == [
        "a\ufffd"
    ]


def test_times_of_a_session_in_another_zone_are_the_same_instants() -> None:
    slot = Slot(
        id=1,
        name="at",
        type=EdgeType(pa.string(), pa.timestamp("us", "UTC")),
        level=0,
        in_step=True,
        last_step=1,
    )
    schema = HopSchema((slot,), headers=False)
    rows = write_hop({1: edge(slot, ["k"], [0])}, schema, "{}")
    zoned = [
        b.set_column(
            b.schema.get_field_index("p1_v"),
            "p1_v",
            b["p1_v"].cast(pa.timestamp("us", "Asia/Tokyo")),
        )
        for b in rows
    ]
    assert read_hop(zoned, schema).batches[1].value.type == slot.type.value


def test_concat_is_in_merge_order_and_stable() -> None:
    left = edge(SLOTS[0], ["a", "b", "c"], [1, 2, 3], seq=[0, 2, 2])
    right = edge(SLOTS[0], ["x", "y"], [8, 9], [[{"key": "h", "value": None}], None], seq=[1, 2])
    joined = concat([left, EMPTY[1], right])
    assert joined.key.to_pylist() == ["a", "x", "b", "c", "y"]
    assert joined.headers is not None
    assert joined.headers.to_pylist() == [[], [{"key": "h", "value": None}], [], [], None]
    assert concat([EMPTY[1], EMPTY[1]]).key.to_pylist() == []
    assert in_order(edge(SLOTS[0], ["b", "a"], [2, 1], seq=[5, 4])).key.to_pylist() == ["a", "b"]
