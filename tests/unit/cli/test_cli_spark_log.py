"""What a started process writes to stderr goes to a file that is only kept when it may explain a failure."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from everflow.cli.spark_log import spark_log
from everflow.errors import FatalError, TopologyError


@pytest.fixture(autouse=True)
def temp_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def shout() -> object:
    return subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('WARN noise')"], check=True)


def start_and_fail(error: Exception) -> None:
    with spark_log(shout, show=False) as start:
        start()
        raise error


def test_a_run_that_ends_well_is_quiet_and_leaves_nothing(temp_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with spark_log(shout, show=False) as start:
        start()
        assert [file.read_text() for file in temp_folder.iterdir()] == ["WARN noise"]
        print("ours", file=sys.stderr)
    assert capfd.readouterr().err == "ours\n"
    assert list(temp_folder.iterdir()) == []


def test_after_a_failure_the_log_is_kept_and_named(temp_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FatalError):
        start_and_fail(FatalError("stopped"))
    (kept,) = temp_folder.iterdir()
    assert kept.read_text() == "WARN noise"
    assert capfd.readouterr().err == f"Spark's log is in {kept}\n"


def test_a_wrong_program_needs_no_log_of_spark(temp_folder: Path) -> None:
    with pytest.raises(TopologyError):
        start_and_fail(TopologyError("no such field"))
    assert list(temp_folder.iterdir()) == []


def test_nothing_is_redirected_when_shown(temp_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with spark_log(shout, show=True) as start:
        start()
    assert capfd.readouterr().err == "WARN noise"
    assert list(temp_folder.iterdir()) == []
