"""Closing a store while another thread reads it; where stores in memory lie, and when they go."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from everflow.errors import ConfigError, StoreMismatchError
from everflow.records import TaskId
from everflow.state import lmdb_store
from everflow.state.disk import MemoryFolder, lies_in_memory, message
from everflow.state.lmdb_env import StoreClosedError
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_snapshot import KEYS_MIN
from everflow.state.task_directory import StateDirectory
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


def test_removed_while_opened_it_is_gone(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
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


TASK = TaskId(0, 1)


def opened(path: Path, memory: Path, *stores: str) -> StateDirectory:
    return StateDirectory.open(
        path / "state", "app", boot_id="b", memory=MemoryFolder(memory, frozenset(stores))
    )


def made(directory: StateDirectory, store: str) -> Path:
    path = directory.store_path(TASK, store)
    LmdbStore.open(path, kind="key_value").close()
    return path


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    place = tmp_path / "memory"
    place.mkdir()
    return place


def test_stores_in_memory_lie_apart_and_belong_to_their_task(tmp_path: Path, memory: Path) -> None:
    directory = opened(tmp_path, memory, "quick")
    quick, slow = made(directory, "quick"), made(directory, "slow")
    assert quick.is_relative_to(memory)
    assert slow.is_relative_to(directory.path)
    assert lies_in_memory(quick)
    assert not lies_in_memory(slow)
    assert directory.tasks() == [TASK]
    assert directory.stores(TASK) == ["quick", "slow"]
    assert directory.rebuild(TASK, "quick") == quick.with_name("quick-1")
    directory.remove_task(TASK)
    assert directory.tasks() == []
    assert not quick.parent.exists()
    directory.close()


def test_a_task_whose_stores_are_all_in_memory_is_removed(tmp_path: Path, memory: Path) -> None:
    directory = opened(tmp_path, memory, "quick")
    made(directory, "quick")
    assert directory.tasks() == [TASK]
    directory.remove_task(TASK)
    assert directory.tasks() == []
    directory.close()


def test_they_end_with_the_instance_also_a_killed_one(tmp_path: Path, memory: Path) -> None:
    first = opened(tmp_path, memory, "quick")
    path = made(first, "quick")
    first.close()
    assert not path.exists()
    path.mkdir(parents=True)  # as a process that was killed would have left it
    (path / "data.mdb").write_text("old")
    second = opened(tmp_path, memory)  # of a program that has no store in memory any more
    assert second.stores(TASK) == []
    assert not path.exists()
    second.close()


def test_two_state_folders_do_not_meet(tmp_path: Path, memory: Path) -> None:
    one = opened(tmp_path / "one", memory, "quick")
    two = opened(tmp_path / "two", memory, "quick")
    paths = [made(one, "quick"), made(two, "quick")]
    one.close()
    assert [path.exists() for path in paths] == [False, True]
    two.close()


def test_what_cannot_be_is_told_with_its_cure(tmp_path: Path, memory: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone.*quick.*set state"):
        opened(tmp_path, tmp_path / "gone", "quick")
    opened(tmp_path, tmp_path / "gone").close()  # none is needed
    full = message(MemoryFolder(memory).place(tmp_path) / "0_1", "written", "No space left")
    assert "--shm-size" in full
    assert "state.memory.dir" in full
