"""A versioned store: the reference in memory and LMDB show the same whatever is put (KIP-889)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow import serdes
from everflow.records import Int64, StoreChanges
from everflow.state.changelog import pack_value
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store import OPEN, StoreSpec, Version, memory_store
from unit.builders import store_spec

MINUTE_MS = 60_000
HISTORY_MS = 4 * MINUTE_MS

Put = tuple[bytes, bytes | None, int]


def spec_of(history_ms: int) -> StoreSpec:
    raw = serdes.bytes_()
    return store_spec("s", "versioned", key=raw, value=raw, retention_ms=history_ms)


class Store(Protocol):
    def put(self, puts: Sequence[Put]) -> None: ...
    @contextmanager
    def view(self) -> Iterator[Any]: ...


def as_changes(puts: Sequence[Put]) -> StoreChanges:
    times: Int64 = np.array([time for _, _, time in puts], np.int64)
    return StoreChanges("s", [key for key, _, _ in puts], [value for _, value, _ in puts], times)


class Memory:
    def __init__(self, history_ms: int, path: Path) -> None:
        self._store = memory_store(spec_of(history_ms))

    def put(self, puts: Sequence[Put]) -> None:
        self._store.apply(as_changes(puts))

    @contextmanager
    def view(self) -> Iterator[Any]:
        yield self._store


class Lmdb:
    """``restored``: puts come as chunks of a changelog."""

    def __init__(self, history_ms: int, path: Path, *, restored: bool = False) -> None:
        self.store = LmdbStore.open(
            path, kind="versioned", retention_ms=history_ms, map_bytes=1 << 22
        )
        self.store.claim("i")
        self._restored = restored

    def put(self, puts: Sequence[Put]) -> None:
        changes = as_changes(puts)
        if self._restored:
            self.store.load_chunk(
                changes.keys,
                changes.values,
                changes.timestamps,
                (self.store.position or 0) + len(puts),
            )
        else:
            owner = self.store.meta().owner
            self.store.apply(changes, position=None, expected=owner, batch="b")

    @contextmanager
    def view(self) -> Iterator[Any]:
        with self.store.snapshot() as view:
            yield view


@pytest.fixture(params=[Memory, Lmdb], ids=["memory", "lmdb"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return request.param(HISTORY_MS, tmp_path / "s-0")  # type: ignore[no-any-return]


def versions(
    store: Store, key: bytes = b"a", first: int = 0, last: int = OPEN - 1
) -> list[Version]:
    with store.view() as view:
        found: list[Version] = view.versions_many([(key, first, last)])[0]
        return found


def test_a_version_is_valid_until_the_next_one(store: Store) -> None:
    store.put([(b"a", b"1", 10), (b"a", b"3", 30)])
    store.put([(b"a", b"2", 20)])
    assert versions(store) == [(10, 20, b"1"), (20, 30, b"2"), (30, OPEN, b"3")]
    assert versions(store, first=20, last=29) == [(20, 30, b"2")]
    assert versions(store, first=19, last=20) == [(10, 20, b"1"), (20, 30, b"2")]
    assert versions(store, first=0, last=9) == []


def test_a_view_shows_the_latest_values_whatever_came_last(store: Store) -> None:
    store.put([(b"b", b"1", 30), (b"b", b"0", 10), (b"a", b"2", 20), (b"c", b"3", 5)])
    store.put([(b"c", None, 6)])
    with store.view() as view:
        assert view.get_many([b"b", b"x", b"a", b"c"]) == [
            pack_value(30, b"1"),
            None,
            pack_value(20, b"2"),
            None,
        ]
        assert list(view.range(None, None)) == [
            (b"a", pack_value(20, b"2")),
            (b"b", pack_value(30, b"1")),
        ]
        assert view.latest_many([b"b", b"x", b"c"]) == [(30, b"1"), None, (6, None)]
        assert view.stream_time == 30


def test_a_deletion_is_a_version(store: Store) -> None:
    store.put([(b"a", b"1", 10), (b"a", None, 20)])
    assert versions(store) == [(10, 20, b"1"), (20, OPEN, None)]
    store.put([(b"a", b"0", 15)])
    assert versions(store)[1:] == [(15, 20, b"0"), (20, OPEN, None)]
    store.put([(b"a", b"3", 30), (b"a", None, 12), (b"a", b"2", 25)])
    assert versions(store) == [
        (10, 12, b"1"),
        (12, 15, None),
        (15, 20, b"0"),
        (20, 25, None),
        (25, 30, b"2"),
        (30, OPEN, b"3"),
    ]


def test_a_version_of_the_same_time_takes_the_place_of_the_other(store: Store) -> None:
    store.put([(b"a", b"1", 10), (b"a", b"2", 20), (b"a", b"x", 10), (b"a", None, 20)])
    assert versions(store) == [(10, 20, b"x"), (20, OPEN, None)]
    store.put([(b"a", b"y", 20)])
    assert versions(store) == [(10, 20, b"x"), (20, OPEN, b"y")]


def test_what_is_older_than_the_history_is_ignored(store: Store) -> None:
    store.put([(b"a", b"1", HISTORY_MS + 10), (b"a", b"late", 9), (b"a", b"0", 10)])
    assert versions(store) == [(10, HISTORY_MS + 10, b"0"), (HISTORY_MS + 10, OPEN, b"1")]


def test_what_ended_before_the_history_goes_and_the_latest_stays(store: Store) -> None:
    store.put([(b"a", b"1", 10), (b"a", b"2", 20), (b"b", None, 15), (b"c", b"3", 5)])
    store.put([(b"d", None, HISTORY_MS + 20)])
    assert versions(store) == [(20, OPEN, b"2")]
    assert versions(store, b"b") == []
    store.put([(b"x", b"", 100 * HISTORY_MS)])
    assert [versions(store, key) for key in (b"a", b"b", b"c")] == [
        [(20, OPEN, b"2")],
        [],
        [(5, OPEN, b"3")],
    ]


@pytest.mark.parametrize("length", [460, 477, 478, 500, 5000])
def test_keys_of_any_length_have_versions(store: Store, length: int) -> None:
    keys = [b"k" * length + tail for tail in (b"", b"a", bytes(8), b"\xff")]
    store.put([(key, key[-1:], time) for time in (30, 10, 20) for key in reversed(keys)])
    for key in keys:
        assert versions(store, key) == [
            (10, 20, key[-1:]),
            (20, 30, key[-1:]),
            (30, OPEN, key[-1:]),
        ]


KEYS = [b"", b"a", b"ab", b"a" + bytes(8), b"k" * 500, b"k" * 500 + b"x"]
BATCHES = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(KEYS), st.sampled_from([None, b"", b"1", b"2"]), st.integers(0, 30)
        ),
        max_size=8,
    ),
    min_size=1,
    max_size=8,
)


@given(BATCHES, st.sampled_from([0, 3, 10]), st.sampled_from([1, MINUTE_MS // 5, MINUTE_MS]))
def test_all_show_the_same_for_any_put(batches: list[list[Put]], history: int, unit: int) -> None:
    """``unit``: of times, so that versions lie in one or in many segments; restored, too."""
    with TemporaryDirectory() as folder:
        memory = Memory(history * unit, Path(folder) / "m")
        applied = Lmdb(history * unit, Path(folder) / "a")
        restored = Lmdb(history * unit, Path(folder) / "r", restored=True)
        for turn, batch in enumerate(batches):
            puts = [(key, value, (time + 2 * turn) * unit) for key, value, time in batch]
            found = []
            for store in (memory, applied, restored):
                store.put(puts)
                with store.view() as view:
                    asked = [
                        (key, (at + turn) * unit, (at + 9) * unit) for key in KEYS for at in (0, 9)
                    ]
                    found.append(
                        (
                            list(view.range(None, None)),
                            view.latest_many(KEYS),
                            view.versions_many(asked),
                            view.stream_time,
                        )
                    )
            assert found[0] == found[1] == found[2]
        for opened in (applied, restored):
            opened.store.close()
