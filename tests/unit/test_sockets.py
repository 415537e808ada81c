"""Socket folders stay short wherever the temporary folder is."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import pytest

from everflow.sockets import ABANDONED_AFTER_S, LONGEST, remove_abandoned, socket_folder


def test_a_long_temporary_folder_does_not_make_sockets_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        folder.rmdir()


def aged(folder: Path) -> Path:
    before = folder.stat().st_mtime - ABANDONED_AFTER_S - 1
    os.utime(folder, (before, before))
    return folder


def test_only_folders_of_killed_processes_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("everflow.sockets._SHORT_BASE", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # short names for sockets
    served, killed, young, empty, foreign = (socket_folder("x-") for _ in range(5))
    other = socket_folder("y-")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as alive:
        alive.bind(str((served / "s").relative_to(tmp_path)))
        alive.listen(1)
        for folder in (killed, young, foreign, other):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
                dead.bind(str((folder / "s").relative_to(tmp_path)))
                dead.listen(1)
        (foreign / "notes").write_text("somebody's")
        for folder in (served, killed, empty, foreign, other):
            aged(folder)
        assert set(remove_abandoned("x-", "s")) == {killed, empty}
        assert (served / "s").exists()
        assert (foreign / "notes").exists()
        assert young.is_dir()
        assert other.is_dir()
