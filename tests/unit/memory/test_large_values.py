"""Large JSON values are taken apart and written a few at a time: what Python makes of all of them
at once would be many times their bytes."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable

import pyarrow as pa

from everflow import serdes

SERDE = serdes.json("n bigint, prices array<decimal(9,2)>, words array<string>")
"""Arrow's parser does not read decimals: record by record, the dearest way."""


def objects_made(work: Callable[[], pa.Array]) -> tuple[pa.Array, int]:
    """What it gives, and the bytes that Python's objects took at the most."""
    tracemalloc.start()
    try:
        found = work()
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_batch_of_large_values_is_never_all_objects_at_once() -> None:
    value = {"n": 1, "prices": [1.25] * 1_000, "words": [f"word-{n}" for n in range(20_000)]}
    raw = pa.array([json.dumps(value).encode()] * 20, pa.binary())
    assert raw.nbytes > 5_000_000
    column, reading = objects_made(lambda: SERDE.decode_array(raw))
    assert reading < 4 * raw.nbytes
    written, writing = objects_made(lambda: SERDE.encode_array(column))
    assert writing < 4 * raw.nbytes
    assert json.loads(written[19].as_py()) == value
