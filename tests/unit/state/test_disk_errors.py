"""A disk that refuses: what happened, to which store, why, and what to do; nothing is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

from everflow.errors import ConfigError, StateDiskError, StoreMismatchError
from everflow.records import TaskId
from everflow.state import lmdb_store, store_snapshot, task_directory
from everflow.state.disk import (
    FULL_BYTES,
    MemoryFolder,
    disk_errors,
    lies_in_memory,
    message,
    require_usable,
)
from everflow.state.lmdb_env import LOCK_FILE_BYTES, StoreClosedError
from everflow.state.lmdb_store import LmdbStore
from everflow.state.store_snapshot import KEYS_MIN, PROBES, ReadingAhead
from everflow.state.task_directory import StateDirectory
from everflow.testing.waiting import wait_until

_FILLS = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from everflow.errors import StateDiskError
from everflow.state.lmdb_store import LmdbStore

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, batch = Path(sys.argv[1]), 1000

def load(number):
    keys = [b"%d-%d" % (number, n) for n in range(batch)]
    store.load_chunk(keys, [bytes(100)] * batch, np.zeros(batch, dtype=np.int64), (number + 1) * batch)

store = LmdbStore.open(path, kind="key_value")
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
done = 0
try:
    for done in range(1000):
        load(done)
except StateDiskError as error:
    print(error)
assert store.position == done * batch, (store.position, done)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
load(done)
print("went on at", store.position, "of", (done + 1) * batch)
"""  # noqa: E501


def test_a_store_whose_disk_refuses_stays_as_it_was_and_goes_on_with_room(tmp_path: Path) -> None:
    path = tmp_path / "0_3" / "counts-0"
    done = subprocess.run([sys.executable, "-c", _FILLS, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    refused, went_on = done.stdout.splitlines()
    assert refused.startswith(f"The state in {path} could not "), done.stdout
    assert "nothing is lost" in refused
    assert went_on.split()[3] == went_on.split()[5], done.stdout


@pytest.mark.parametrize(
    ("reason", "free", "cause"),
    [
        ("mdb_txn_commit: Input/output error", FULL_BYTES - 1, "full (16.8 MB free)"),
        ("mdb_txn_commit: Input/output error", FULL_BYTES, "refuses the write (16.8 MB free)"),
        ("[Errno 28] No space left on device", 10**12, "is full"),
        ("mdb_txn_commit: Input/output error", -1, "refuses the write (unknown free)"),
    ],
)
def test_the_likely_cause_is_told_by_the_free_space(reason: str, free: int, cause: str) -> None:
    text = message(Path("/s/app/0_1/counts-0"), "written", reason, free_bytes=lambda path: free)
    assert cause in text
    assert reason in text
    assert "/s/app/0_1/counts-0" in text


def test_what_is_no_fault_of_the_disk_passes(tmp_path: Path) -> None:
    for error in (
        lmdb.MapFullError("full"),
        lmdb.CorruptedError("torn"),
        FileNotFoundError(2, "gone"),
        ValueError("x"),
    ):
        with pytest.raises(type(error)), disk_errors(tmp_path, "written"):
            raise error
    with (
        pytest.raises(StateDiskError, match="flushed"),
        disk_errors(tmp_path / "gone" / "s-0", "flushed"),
    ):
        raise lmdb.DiskError("mdb_env_sync: No space left on device")


def test_the_lock_files_room_is_taken_at_creation(tmp_path: Path) -> None:
    """LMDB would leave a hole in it; a full disk then ends the process at its first use."""
    LmdbStore.open(tmp_path / "s-0", kind="key_value").close()
    assert (tmp_path / "s-0" / "lock.mdb").stat().st_blocks * 512 >= LOCK_FILE_BYTES


def test_no_room_for_the_lock_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(StateDiskError, match=r"s-0.*opened"):
        LmdbStore.open(tmp_path / "s-0", kind="key_value")
    assert list((tmp_path / "s-0").iterdir()) == []
    monkeypatch.undo()
    LmdbStore.open(tmp_path / "s-0", kind="key_value").close()


def test_a_close_not_noted_frees_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = StateDirectory.open(tmp_path, "app")

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(task_directory, "_write_durably", full)
    with pytest.raises(StateDiskError, match=r"could not be (closed in order|written)"):
        directory.close()
    with pytest.raises(StateDiskError, match="opened"):
        StateDirectory.open(tmp_path, "app")
    monkeypatch.undo()
    again = StateDirectory.open(tmp_path, "app")
    assert again.previous is not None
    assert not again.previous.clean_close
    again.close()


def _below_a_file(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "state"


def _a_file(folder: Path) -> Path:
    (folder / "state").write_text("")
    return folder / "state"


@pytest.mark.parametrize(
    "make", [_below_a_file, _a_file, lambda folder: Path("/proc/no-such-folder")]
)
def test_an_unusable_folder_is_a_matter_of_configuration(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path)
    for use in (lambda: StateDirectory.open(path, "app"), lambda: require_usable(path)):
        with pytest.raises(ConfigError, match=rf"state\.dir.*{path}.*state.*state\.dir") as refused:
            use()
        assert "Errno" not in str(refused.value)


def test_an_unwritable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", denied)  # root, whom tests may run as, is denied nothing
    with pytest.raises(ConfigError, match=rf"write.*{tmp_path}"):
        StateDirectory.open(tmp_path / "state", "app")


def test_a_usable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    require_usable(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


# Closing a store while another thread reads it.


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
    with pytest.raises(ConfigError, match=r"gone.*quick.*state"):
        opened(tmp_path, tmp_path / "gone", "quick")
    opened(tmp_path, tmp_path / "gone").close()  # none is needed
    full = message(MemoryFolder(memory).place(tmp_path) / "0_1", "written", "No space left")
    assert "--shm-size" in full
    assert "state.memory.dir" in full


# Where pages are missing, many keys are read by threads.


KEYS = [b"%05d" % number for number in range(4 * KEYS_MIN)]


class Reads:
    """Transactions that note who reads what; each read of the caller's thread waits, or none."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, missing: bool) -> None:
        self.own: list[bytes] = []
        self.others: list[bytes] = []
        self._caller = threading.get_ident()
        monkeypatch.setattr(store_snapshot, "_waits", lambda: len(self.own) if missing else 7)

    @contextmanager
    def transactions(self) -> Iterator[Reads]:
        yield self

    def get(self, key: bytes, default: None, database: object) -> None:
        assert database == "db"
        (self.own if threading.get_ident() == self._caller else self.others).append(key)


def test_missing_pages_are_fetched_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, missing=True)
    ReadingAhead(reads.transactions).fetch(KEYS, "db")
    assert 0 < len(reads.own) <= PROBES
    assert sorted(reads.others) == KEYS


def test_what_is_in_memory_is_not_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, missing=False)
    ReadingAhead(reads.transactions).fetch(KEYS, "db")
    assert len(reads.own) <= PROBES
    assert reads.others == []


def test_a_few_keys_are_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, missing=True)
    ReadingAhead(reads.transactions).fetch(KEYS[: KEYS_MIN - 1], "db")
    assert reads.own + reads.others == []


def test_a_failed_read_is_the_callers_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = Reads(monkeypatch, missing=True)
    opened: list[int] = []

    @contextmanager
    def once() -> Iterator[Reads]:
        opened.append(1)
        if len(opened) > 1:
            raise OSError("the disk is gone")
        yield reads

    with pytest.raises(OSError, match="gone"):
        ReadingAhead(once).fetch(KEYS, "db")


def test_a_store_that_another_made_larger_is_read_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def resized() -> Iterator[Reads]:
        raise lmdb.MapResizedError("mdb_txn_begin")
        yield

    ReadingAhead(resized).fetch(KEYS, "db")


def test_a_reader_does_not_wait_for_a_write_that_waits_for_it(tmp_path: Path) -> None:
    """The map has to grow, and that waits until the reader has left."""
    store = LmdbStore.open(tmp_path / "store", kind="key_value", map_bytes=1 << 20)
    times = np.zeros(len(KEYS), dtype=np.int64)
    writing = threading.Thread(
        target=lambda: store.load_chunk(KEYS, [b"x" * 2_000] * len(KEYS), times, len(KEYS))
    )
    try:
        with store.snapshot() as snapshot:
            writing.start()
            wait_until(lambda: store._env._resizing, 60, "the map to grow")
            assert snapshot.get_many(KEYS) == [None] * len(KEYS)
            assert store._env._resizing
        writing.join(60)
        with store.snapshot() as snapshot:
            assert all(snapshot.get_many(KEYS))
    finally:
        store.close()


def _cold_store(path: Path) -> LmdbStore:
    """40,000 entries, none of whose pages is in memory, where the file system has that."""
    store = LmdbStore.open(path, kind="key_value")
    keys = [b"%08d" % number for number in range(40_000)]
    times = np.zeros(len(keys), dtype=np.int64)
    store.load_chunk(keys, [b"x" * 100] * len(keys), times, len(keys))
    store._env._env.sync(True)
    store.close()
    file = os.open(path / "data.mdb", os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
    return LmdbStore.open(path)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="pages cannot be dropped here")
@pytest.mark.parametrize("ahead", [True, False])
def test_a_thread_does_not_wait_for_each_page_of_a_store_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    store = _cold_store(tmp_path / "store")
    asked = [b"%08d" % (number * 7919 % 40_000) for number in range(2_000)]
    if not ahead:
        monkeypatch.setattr(ReadingAhead, "fetch", lambda *_: None)
    try:
        before = store_snapshot._waits()
        with store.snapshot() as snapshot:
            assert all(snapshot.get_many(asked))
        waited = store_snapshot._waits() - before
    finally:
        store.close()
    # Some 1,100 pages of leaves: those of the probes and above them, or nearly all.
    if ahead:
        assert waited < 150
    elif waited < 500:
        pytest.skip("this file system keeps pages in memory, or reads them around others")
