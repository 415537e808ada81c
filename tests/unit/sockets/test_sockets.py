"""Socket folders stay short wherever the temporary folder is."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from everflow.sockets import (
    ABANDONED_AFTER_S,
    LONGEST,
    remove_abandoned,
    remove_socket_folder,
    socket_folder,
)


def test_a_long_folder_holds_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = socket_folder()
    try:
        assert len(str(folder)) < LONGEST
        assert folder.stat().st_mode & 0o777 == 0o700
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
            bound.bind(str(folder / "name-of-a-socket"))
        (folder / "name-of-a-socket").unlink()
    finally:
        remove_socket_folder(folder)


def aged(folder: Path) -> Path:
    before = folder.stat().st_mtime - ABANDONED_AFTER_S - 1
    os.utime(folder, (before, before))
    return folder


def left_by_a_killed_process() -> Path:
    """Its folder has a socket, and its lock went with it."""
    program = (
        "import os, signal, socket; from everflow.sockets import socket_folder; folder = "
        "socket_folder(); os.chdir(folder); "
        "socket.socket(socket.AF_UNIX).bind('s'); print(folder, flush=True); os.kill(os.getpid(), "
        "signal.SIGKILL)"
    )
    env = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    killed = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False, env=env
    )
    return Path(killed.stdout.strip())


def test_only_folders_of_killed_processes_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as base:
        monkeypatch.setattr(tempfile, "tempdir", base)
        used, young, abandoned, foreign = (
            socket_folder(),
            *(left_by_a_killed_process() for _ in range(3)),
        )
        (foreign / "notes").write_text("somebody's")
        other = Path(base) / "efforts"
        other.mkdir()
        for folder in (used, abandoned, foreign, other):
            aged(folder)
        assert (abandoned / "s").is_socket()
        assert remove_abandoned() == [abandoned]
        assert set(Path(base).iterdir()) == {used, young, foreign, other}
        remove_socket_folder(used)
        assert not used.exists()
