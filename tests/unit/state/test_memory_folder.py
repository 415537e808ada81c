"""Where stores in memory lie: whose they are, when they go, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from everflow.errors import ConfigError
from everflow.records import TaskId
from everflow.state.disk import MemoryFolder, lies_in_memory, message
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory

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


def test_they_end_with_the_instance_and_a_killed_one_leaves_nothing_to_the_next(
    tmp_path: Path, memory: Path
) -> None:
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
