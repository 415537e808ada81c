"""Socket folders stay short wherever the temporary folder is."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from everflow.sockets import LONGEST, socket_folder


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
