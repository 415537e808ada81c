"""Closing a store while another thread reads it: pages are never pulled from under a reader."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everflow.errors import StoreMismatchError
from everflow.state import lmdb_store
from everflow.state.lmdb_env import StoreClosedError
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_snapshot import KEYS_MIN
from everflow.testing.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    opened = LmdbStore.open(tmp_path / "s-0", kind="key_value")
    opened.load_chunk([b"a", b"b"], [b"1", b"2"], np.array([0, 0]), 2)
    yield opened
    LmdbStore.close_at(tmp_path / "s-0")


def test_closing_waits_for_a_reader_of_another_thread(store: LmdbStore) -> None:
    closing = threading.Thread(target=store.close)
    with store.snapshot() as view:
        closing.start()
        wait_until(lambda: store.path not in _open_paths(), 5, "the close to have begun")
        assert closing.is_alive()
        assert [key for key, _ in view.range(None, None)] == [b"a", b"b"]
    closing.join(5)
    assert not closing.is_alive()
    with pytest.raises(StoreClosedError, match="open it again"), store.snapshot():
        pass
    assert LmdbStore.open(store.path).position == 2


def test_a_removed_store_is_closed_by_its_last_reader(store: LmdbStore, tmp_path: Path) -> None:
    with store.snapshot() as view:
        (store.path / "data.mdb").unlink()
        LmdbStore.open(tmp_path / "other-0", kind="key_value").close()  # puts away what was removed
        assert store.path not in _open_paths()
        many = [b"%d" % number for number in range(KEYS_MIN)]
        assert view.get_many([b"b", *many]) == [bytes(8) + b"2", *[None] * KEYS_MIN]
    with pytest.raises(StoreClosedError), store.snapshot():
        pass


def test_a_store_removed_while_it_is_opened_is_gone_and_stays_so(
    store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    original = lmdb_store._open_environment

    def removed_first(path: Path, *rest: Any) -> LmdbStore:
        shutil.rmtree(path)
        return original(path, *rest)

    monkeypatch.setattr(lmdb_store, "_open_environment", removed_first)
    with pytest.raises(StoreMismatchError, match="store"):
        LmdbStore.open(store.path)
    assert not store.path.exists()


def test_a_store_is_one_object_by_any_path_and_a_path_that_leads_elsewhere_is_seen(
    store: LmdbStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LmdbStore.open(tmp_path / "s-1", kind="key_value")
    link = tmp_path / "link"
    link.symlink_to(store.path)
    monkeypatch.chdir(tmp_path)
    for path in (link, "s-0", str(store.path), tmp_path / "nowhere" / ".." / "s-0") * 2:
        assert LmdbStore.open(path) is store
    link.unlink()
    link.symlink_to(other.path)
    assert LmdbStore.open(link) is other
    store.path.rename(tmp_path / "aside")
    other.path.rename(store.path)
    moved = LmdbStore.open(store.path)
    assert moved is not store
    assert moved.position is None
    LmdbStore.close_at(link.parent / "s-0")
    with pytest.raises(StoreMismatchError):
        LmdbStore.open(link)


def _open_paths() -> set[Path]:
    return set(lmdb_store._cache._stores)
