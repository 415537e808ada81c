"""A crash point stops the first process that comes to it, once, and only if armed."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from everflow.testing.waiting import wait_until
from everflow.worker import crash_points


def test_nothing_happens_without_the_variable_or_unarmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(crash_points.ENVIRONMENT_VARIABLE, raising=False)
    (tmp_path / "committed").touch()
    crash_points.reached("committed")
    assert [path.name for path in tmp_path.iterdir()] == ["committed"]
    monkeypatch.setenv(crash_points.ENVIRONMENT_VARIABLE, str(tmp_path))
    crash_points.reached("applying")
    assert [path.name for path in tmp_path.iterdir()] == ["committed"]


def test_an_armed_point_names_the_pid_and_waits_for_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(crash_points.ENVIRONMENT_VARIABLE, str(tmp_path))
    (tmp_path / "committed").touch()
    stopped = threading.Thread(target=crash_points.reached, args=("committed",), daemon=True)
    stopped.start()
    caught = tmp_path / "committed.reached"
    wait_until(caught.exists, 5, "the point to be reached")
    assert caught.read_text() == str(os.getpid())
    crash_points.reached("committed")  # only one process is caught
    assert stopped.is_alive()
    (tmp_path / "committed.go").touch()
    stopped.join(5)
    assert not stopped.is_alive()
