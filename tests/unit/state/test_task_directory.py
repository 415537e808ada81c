"""The state folder: one holder, one application, trust after a crash, rebuilt paths."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from everflow.errors import StateDiskError, StateFormatError, StateLockedError
from everflow.records import TaskId
from everflow.state.task_directory import StateDirectory, content_of

TASK = TaskId(0, 3)


def opened(path: Path, **changes: str) -> StateDirectory:
    return StateDirectory.open(path, "app", **{"boot_id": "boot-1", **changes})  # type: ignore[arg-type]


def make_store(directory: StateDirectory, store: str) -> Path:
    path = directory.store_path(TASK, store)
    path.mkdir(parents=True)
    (path / "data.mdb").write_bytes(b"x")
    return path


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    program = (
        "import sys\n"
        "from everflow.errors import StateLockedError\n"
        "from everflow.state.task_directory import StateDirectory\n"
        "try:\n    StateDirectory.open(sys.argv[1], 'app')\n"
        "except StateLockedError as error:\n    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert f"in use by process {os.getpid()}" in said.stdout
    directory.close()
    said = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert said.stdout == ""


def test_the_folder_is_private_to_its_user_also_one_that_was_there(tmp_path: Path) -> None:
    """A umask that lets others read is a machine's affair, not that of who may read the records."""
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    there.chmod(0o755)
    before = os.umask(0)
    try:
        for path in (tmp_path / "new", there):
            directory = opened(path)
            assert stat.S_IMODE(directory.path.stat().st_mode) == 0o700
            directory.close()
    finally:
        os.umask(before)


def test_the_same_process_is_refused_too(tmp_path: Path) -> None:
    with_first = opened(tmp_path)
    with pytest.raises(StateLockedError, match=r"KafkaStreams\.running\('app'.*one\.close"):
        opened(tmp_path)
    with_first.close()
    opened(tmp_path).close()


def test_a_restart_finds_process_id_and_transactional_ids(tmp_path: Path) -> None:
    first = opened(tmp_path)
    assert first.previous is None
    first.record_transactional_ids(["app-p-0"])
    first.record_transactional_ids(["app-p-0", "app-p-1"])
    first.close(clean=False)
    second = opened(tmp_path)
    assert second.process_id == first.process_id
    assert second.transactional_ids == ("app-p-0", "app-p-1")
    assert second.previous is not None
    assert not second.previous.clean_close
    second.forget_transactional_ids(["app-p-0"])
    second.close()
    third = opened(tmp_path)
    assert third.previous is not None
    assert third.previous.clean_close
    assert third.transactional_ids == ("app-p-1",)
    third.close()


@pytest.mark.parametrize(
    "wrong", [{"application_id": "other"}, {"format": 99}, {"transactional_ids": 7}]
)
def test_a_foreign_or_newer_folder_is_left_alone(tmp_path: Path, wrong: dict[str, object]) -> None:
    opened(tmp_path).close()
    metadata = tmp_path / "app" / "process-metadata"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **wrong}))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "app").iterdir()}
    with pytest.raises(StateFormatError):
        opened(tmp_path)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "app").iterdir()} == before


@pytest.mark.parametrize(
    ("clean", "boot_id", "sync", "distrusted"),
    [
        (False, "boot-2", "none", True),
        (
            False,
            "boot-1",
            "none",
            False,
        ),  # the process was killed: the operating system has the pages
        (True, "boot-2", "none", False),
        (False, "boot-2", "commit", False),
    ],
)
def test_stores_are_distrusted_after_a_crash_of_the_operating_system_only(
    tmp_path: Path, clean: bool, boot_id: str, sync: str, distrusted: bool
) -> None:
    first = opened(tmp_path)
    make_store(first, "counts")
    first.close(clean=clean)
    second = opened(tmp_path, boot_id=boot_id, sync=sync)
    assert (second.distrusted(TASK, "counts") is not None) == distrusted
    second.close()


def test_distrust_outlives_restarts_until_the_store_is_rebuilt(tmp_path: Path) -> None:
    first = opened(tmp_path)
    make_store(first, "counts")
    first.close(clean=False)
    opened(tmp_path, boot_id="boot-2").close()
    third = opened(tmp_path, boot_id="boot-2")
    assert "operating system" in (third.distrusted(TASK, "counts") or "")
    third.rebuild(TASK, "counts")
    assert third.distrusted(TASK, "counts") is None
    third.close()


def test_a_rebuild_goes_to_a_new_path_and_removes_the_old_one(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    old = make_store(directory, "by-carrier")
    assert old == tmp_path.resolve() / "app" / "0_3" / "by-carrier-0"
    fresh = directory.rebuild(TASK, "by-carrier")
    assert fresh.name == "by-carrier-1"
    assert directory.store_path(TASK, "by-carrier") == fresh
    assert not old.exists()
    assert (directory.tasks(), directory.stores(TASK)) == ([TASK], ["by-carrier"])
    directory.remove_task(TASK)
    assert directory.tasks() == []
    directory.close()


def test_an_interrupted_rebuild_leaves_the_newer_folder_in_charge(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    old = make_store(directory, "counts")
    (
        old.parent / "counts-1"
    ).mkdir()  # killed between making the new folder and removing the old one
    assert directory.store_path(TASK, "counts").name == "counts-1"
    assert not old.exists()
    directory.close()


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00broken", b"\xc3\x28", b"", b"[]", b"{}", b'{"format": 1']
)
def test_metadata_that_was_damaged_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    opened(tmp_path).close()
    metadata = tmp_path / "app" / "process-metadata"
    metadata.write_bytes(content)
    with pytest.raises(StateFormatError, match=r"process-metadata.*damaged"):
        opened(tmp_path)
    assert metadata.read_bytes() == content


def test_a_folder_deleted_under_it_is_noticed_and_anothers_is_left_alone(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.require_held()
    shutil.rmtree(directory.path)
    with pytest.raises(StateDiskError, match="deleted"):
        directory.require_held()
    directory.path.mkdir()
    (directory.path / ".lock").write_text("another process")
    with pytest.raises(StateDiskError, match="made anew"):
        directory.require_held()
    directory.close()
    assert [entry.name for entry in directory.path.iterdir()] == [".lock"]
    directory.require_held()  # closed: nothing is held, nothing is wrong


def test_a_folder_is_looked_at_without_being_taken_and_deleted_as_a_whole(tmp_path: Path) -> None:
    assert content_of(tmp_path, "app") is None
    directory = opened(tmp_path)
    directory.record_transactional_ids(["app-1-0"])
    make_store(directory, "counts")
    (directory.path / "logs").mkdir()
    (directory.path / "logs" / "everflow.log").write_text("said\n")
    found = content_of(tmp_path, "app")
    assert found is not None
    assert (found.stores, found.transactional_ids) == (1, ("app-1-0",))
    assert found.path == directory.path

    directory.delete()
    assert not directory.path.exists()
    directory.close()
    again = opened(tmp_path)
    assert (again.previous, again.tasks()) == (None, [])
    again.close()


def test_a_folder_that_was_half_deleted_is_deleted_by_the_next_one(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    make_store(directory, "counts")
    directory.close()
    (directory.path / "process-metadata").unlink()
    found = content_of(tmp_path, "app")
    assert found is not None
    assert found.transactional_ids == ()
    opened(tmp_path).delete()
    assert not directory.path.exists()
