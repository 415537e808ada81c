"""A processor's versioned store, and LMDB's versions, beside the reference."""

import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.operators.processors.stores import VersionEntries
from everflow.records import StoreChanges
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import OPEN, InMemoryVersions
from everflow.state.versioned_snapshot import version_changes
from unit.builders import store_spec

HISTORY_MS = 30
TIMES = struct.Struct(">qq")
SPEC = store_spec(
    "s", "versioned", key=serdes.bytes_(), value=serdes.bytes_(), retention_ms=HISTORY_MS
)
KEYS = [b"a", b"ab"]
PUT = st.tuples(
    st.sampled_from(KEYS), st.sampled_from([b"1", b"2", None]), st.integers(0, 2 * HISTORY_MS)
)
PUTS = st.lists(PUT, max_size=12)
ASKED = [(key, first, first + more) for key in KEYS for first in range(0, 65, 4) for more in (0, 7)]


def changes(puts: list[Any]) -> StoreChanges:
    return StoreChanges(
        "s",
        [key for key, _, _ in puts],
        [value for _, value, _ in puts],
        np.array([time for _, _, time in puts], np.int64),
    )


def with_values(view: Any) -> list[Any]:
    """A deletion that is older than the history is nobody's to see."""
    return [[one for one in found if one.value] for found in view.versions_many(ASKED)]


def everything(view: Any) -> list[Any]:
    return [
        view.versions_many(ASKED),
        view.latest_many(KEYS),
        [view.begins_after(key, time) for key in KEYS for time in range(0, 65, 5)],
        list(view.range(None, None)),
        list(view.range(None, None, reverse=True)),
        view.stream_time,
    ]


@given(committed=PUTS, batch=PUTS)
def test_a_processor_sees_what_applying_its_puts_gives(committed: Any, batch: Any) -> None:
    below, applied = InMemoryVersions(SPEC), InMemoryVersions(SPEC)
    below.apply(changes(committed))
    applied.apply(changes(committed))
    entries = VersionEntries(SPEC, below)
    for put in batch:
        end = entries.put(*put)
        applied.apply(changes([put]))
        kept = put[2] >= applied.stream_time - HISTORY_MS
        assert end == (applied.begins_after(put[0], put[2]) if kept else None)
        assert with_values(entries) == with_values(applied)
        shown = [(key, stored[8:]) for key, stored in applied.range(None, None)]
        assert list(entries.latest()) == shown
        for key, was in zip(KEYS, applied.latest_many(KEYS), strict=True):
            if was is not None:
                assert entries.latest_many([key]) == [was]


@given(batches=st.lists(PUTS, max_size=5))
def test_versions_are_written_to_disk_as_to_the_reference(batches: Any) -> None:
    reference = InMemoryVersions(SPEC)
    with TemporaryDirectory() as folder:
        store = LmdbStore.open(Path(folder) / "s", kind="versioned", retention_ms=HISTORY_MS)
        try:
            for number, puts in enumerate(batches, 1):
                reference.apply(changes(puts))
                listed = changes(puts)
                store.load_chunk(listed.keys, listed.values, listed.timestamps, number)
                with store.snapshot() as view:
                    assert everything(view) == everything(reference)
        finally:
            store.close()


def test_a_version_before_all_ends_with_the_first_one() -> None:
    below = InMemoryVersions(SPEC)
    below.apply(changes([(b"a", b"1", 20), (b"a", b"2", 25)]))
    entries = VersionEntries(SPEC, below)
    assert (entries.put(b"a", b"0", 10), entries.put(b"a", b"3", 40)) == (20, OPEN)


class CountedView:
    def __init__(self, view: Any) -> None:
        self._view, self.read = view, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    def versions_many(self, asked: Any) -> Any:
        found = self._view.versions_many(asked)
        self.read += sum(map(len, found))
        return found


@pytest.mark.parametrize("count", [20, 200])
def test_a_late_version_reads_those_around_it(count: int, tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "s", kind="versioned", retention_ms=10 * count)
    try:
        kept = changes([(b"a", b"v", 10 * at) for at in range(1, count)])
        store.load_chunk(kept.keys, kept.values, kept.timestamps, 1)
        late = changes([(b"a", b"w", 25), (b"a", b"w", 3), (b"a", b"w", 10 * count)])
        with store.snapshot() as view:
            counted: Any = CountedView(view)
            latest, earlier = version_changes(counted, late.keys, late.values, late.timestamps)
        assert counted.read == 1
        assert sorted(end for end, _ in map(TIMES.unpack, (key[1:] for key in earlier))) == sorted(
            [10, 25, 30, 30, 10 * count]
        )
        assert list(latest) == [b"a"]
    finally:
        store.close()
