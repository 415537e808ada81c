"""A disk that refuses: what happened, to which store, why, and what to do; nothing is lost."""

import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from everflow.errors import ConfigError, StateDiskError
from everflow.state import task_directory
from everflow.state.disk import FULL_BYTES, disk_errors, message, require_usable
from everflow.state.lmdb_env import LOCK_FILE_BYTES
from everflow.state.lmdb_store import LmdbStore
from everflow.state.task_directory import StateDirectory

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
    assert refused.startswith(f"The state in {path} could not be written: "), done.stdout
    assert "nothing is lost" in refused
    assert went_on.split()[3] == went_on.split()[5], done.stdout


@pytest.mark.parametrize(
    ("reason", "free", "cause"),
    [
        ("mdb_txn_commit: Input/output error", FULL_BYTES - 1, "The disk is full (16.8 MB free)"),
        ("mdb_txn_commit: Input/output error", FULL_BYTES, "refuses the write (16.8 MB free)"),
        ("[Errno 28] No space left on device", 10**12, "The disk is full"),
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
