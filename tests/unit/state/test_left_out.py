"""A reused topic as a changelog: whatever compaction has removed, and wherever it is cut, a store
is what processing has made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.records import Int64, StoreChanges
from everflow.state.changelog import pack_value
from everflow.state.left_out import KeptEntry, as_written, corrected, unpacked
from everflow.state.store import InMemoryStore
from unit.builders import store_spec

SPEC = store_spec("s", value=serdes.bytes_(), source_topic="in")


@dataclass(frozen=True)
class Chunk:
    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: Int64
    offsets: Int64
    next_position: int

    @property
    def records(self) -> int:
        return len(self.keys)


Row = tuple[bytes | None, bytes | None, bool]
"""Key, value, and whether processing skips it."""
ROWS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"\xff", None]),
        st.sampled_from([b"x", b"y", b"", None]),
        st.booleans(),
    ),
    max_size=30,
)


def processed(rows: Sequence[Row], ends: Sequence[int]) -> tuple[InMemoryStore, list[Chunk]]:
    """The store, and the log of what was left out: what batches that end at ``ends`` have made."""
    store, log = InMemoryStore(), list[Chunk]()
    for begin, end in zip([0, *ends], [*ends, len(rows)], strict=True):
        skipped = dict[bytes, None]()
        for offset in range(begin, end):
            key, value, skips = rows[offset]
            if key is None:
                continue
            (written,) = as_written([key], SPEC.key_serde)
            assert written is not None
            if skips:
                skipped[written] = None
            else:
                store.apply(StoreChanges("s", [written], [value], np.array([offset])))
        for key in skipped:
            entry = KeptEntry.of(end - 1, store.get_many([key])[0], 99)
            log.append(
                Chunk([key], [entry.packed()], np.array([entry.time]), np.array([0]), len(log) + 1)
            )
    return store, log


@given(ROWS, st.data())
def test_a_restored_store_is_what_was_processed(rows: list[Row], data: st.DataObject) -> None:
    places = st.lists(st.integers(0, len(rows)), max_size=4).map(sorted)
    wanted, log = processed(rows, data.draw(places))
    left_out = unpacked(log)
    clean, forgets = data.draw(st.integers(0, len(rows))), data.draw(st.booleans())
    last = {key: offset for offset, (key, _, _) in enumerate(rows[:clean])}
    kept = [
        offset
        for offset, (key, value, _) in enumerate(rows)
        if offset >= clean
        or (last[key] == offset and key is not None and not (forgets and value is None))
    ]
    chunks = []
    cuts = [0, *data.draw(places), len(rows)]
    for begin, end in pairwise(cuts):
        mine = [offset for offset in kept if begin <= offset < end]
        keys, values = [rows[at][0] for at in mine], [rows[at][1] for at in mine]
        times = np.array(mine, np.int64)
        chunks.append(Chunk(keys, values, times, times, end))
    found = InMemoryStore()
    for chunk in corrected(chunks, 0, left_out, SPEC):
        rows_ = [row for row, key in enumerate(chunk.keys) if key is not None]
        found.apply(
            StoreChanges(
                "s",
                [key for key in chunk.keys if key is not None],
                [chunk.values[row] for row in rows_],
                chunk.timestamps[rows_],
            )
        )
    assert dict(found.range(None, None)) == dict(wanted.range(None, None))


def test_what_is_not_one_of_its_records_is_an_error() -> None:
    chunk = Chunk([b"a"], [b"1234"], np.array([0]), np.array([0]), 1)
    with pytest.raises(ValueError, match="no record of what was left out"):
        unpacked([chunk])
    entry = KeptEntry.of(7, pack_value(5, b"v"), 0)
    assert unpacked([replace(chunk, values=[entry.packed()], timestamps=np.array([5]))]) == {
        b"a": KeptEntry(7, b"v", 5)
    }
