"""Stores of an instance as rows: of one moment, whatever is written meanwhile; and their lag."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everflow import serdes
from everflow.instance.query.store_query import rows_of
from everflow.snapshots import entry_columns
from everflow.snapshots.entry_columns import EntryColumns, EntryError
from everflow.snapshots.query_errors import StaleStateError, StateElsewhereError, StateMovingError
from everflow.snapshots.snapshot import Rows
from everflow.state.lmdb_store import LmdbStore
from everflow.state.versioned_snapshot import VersionedSnapshot
from unit.instance.query.query_stores import COUNTS, WINDOWS, Instance, windows, write


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path / "state")
    yield made
    made.close()


def rows(instance: Instance, folder: Path, name: str = "counts", **options: Any) -> Rows:
    store = instance.store(name, **options)
    columns = EntryColumns(store.spec, store._results, lag=store._reader.stale)
    folder.mkdir(exist_ok=True)
    return rows_of(columns, store._reader, store._ready(), folder)


def content(found: Rows, *names: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row[name] for name in names) for batch in found.batches() for row in batch.to_pylist()
    ]


def test_rows_are_of_the_moment_in_which_a_partition_is_begun(
    instance: Instance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_columns, "PAGE_ENTRIES", 1)
    path = instance.put(0, COUNTS, {b"a": 1, b"b": 2, b"c": 3})
    found = []
    for number, batch in enumerate(rows(instance, tmp_path / "room").batches()):
        found += batch["value"].to_pylist()
        if not number:
            write(path, COUNTS, {b"a": None, b"b": 20, b"c": 30, b"d": 4})
    assert found == [1, 2, 3]
    assert content(rows(instance, tmp_path / "room"), "value") == [(20,), (30,), (4,)]
    assert list((tmp_path / "room").iterdir()) == []


def test_a_write_is_not_kept_waiting_by_who_reads_rows(instance: Instance, tmp_path: Path) -> None:
    path = instance.put(0, COUNTS, {b"a": 1})
    batches = rows(instance, tmp_path / "room").batches()
    next(batches)
    with LmdbStore.open(path)._env._gate:
        assert LmdbStore.open(path)._env._readers == 0
    batches.close()  # type: ignore[attr-defined]


def test_windows_and_partitions_are_told_apart(instance: Instance, tmp_path: Path) -> None:
    instance.put(0, WINDOWS, windows({("a", 1_000): 1, ("a", 2_000): 2}))
    instance.put(1, WINDOWS, windows({("b", 1_000): 3}))
    found = content(rows(instance, tmp_path / "room", "windows"), "key", "value", "partition")
    assert found == [("a", 1, 0), ("a", 2, 0), ("b", 3, 1)]


def test_copies_say_how_far_they_are_behind(instance: Instance, tmp_path: Path) -> None:
    instance.put(0, COUNTS, {b"a": 1})
    instance.put(1, COUNTS, {b"b": 2, b"c": 3}, active=False)
    instance.end = 14
    assert content(rows(instance, tmp_path / "room"), "key") == [("a",)]
    stale = rows(instance, tmp_path / "room", stale=True)
    assert content(stale, "key", "lag") == [("a", 0), ("b", 12), ("c", 12)]
    with pytest.raises(StaleStateError, match="lags by 12"):
        rows(instance, tmp_path / "room", stale=True, max_lag=11)
    with pytest.raises((StateMovingError, StateElsewhereError)):
        rows(instance, tmp_path / "room", partition=1)


def test_a_store_that_was_rebuilt_is_copied_at_its_new_place(
    instance: Instance, tmp_path: Path
) -> None:
    old = instance.put(0, COUNTS, {b"a": 1})
    found = rows(instance, tmp_path / "room")
    new = instance.place(0, COUNTS, 1)
    write(new, COUNTS, {b"a": 2})
    LmdbStore.close_at(old)
    shutil.rmtree(old)
    instance.show(0, COUNTS, new)
    assert content(found, "value") == [(2,)]


def test_bytes_that_cannot_be_read_are_named(instance: Instance, tmp_path: Path) -> None:
    path = instance.put(0, COUNTS, {b"a": 1})
    LmdbStore.open(path).load_chunk([b"b"], [b"abc"], np.zeros(1, np.int64), 2)
    with pytest.raises(EntryError, match=r"b'b'.*partition 0.*'counts'"):
        content(rows(instance, tmp_path / "room"), "value")
    assert list((tmp_path / "room").iterdir()) == []


def test_a_copy_holds_all_versions(tmp_path: Path) -> None:
    store = LmdbStore.open(tmp_path / "live", kind="versioned", retention_ms=100_000)
    values = [serdes.long().encode(value) for value in (1, 2)] + [None]
    store.load_chunk([b"a", b"a", b"b"], values, np.array([1, 2, 3]), 3)
    (tmp_path / "copy").mkdir()
    copy = store.copy_to(tmp_path / "copy")
    store.load_chunk([b"a"], [values[0]], np.array([9]), 4)
    with copy.snapshot() as view:
        assert isinstance(view, VersionedSnapshot)
        found = {(key, one.start) for key, one in view.every_version()}
    assert found == {(b"a", 1), (b"a", 2)}
    assert (copy.position, store.position) == (3, 4)
    for one in (store, copy):
        one.close()
