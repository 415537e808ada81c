"""Workers find what the driver finds, also where the driver's path names its current folder by nothing."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from everflow.spark.job import worker_environment


def test_the_current_folder_and_relative_folders_reach_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "lib", str(tmp_path / "app.zip")])
    found = worker_environment("t0-0")["PYTHONPATH"].split(os.pathsep)
    assert found == [str(tmp_path), str(tmp_path / "lib"), str(tmp_path / "app.zip")]
