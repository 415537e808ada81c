"""The demo with a slice of its data: real broker, real Spark, as a command."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from everflow.demo import batch, data
from everflow.testing.waiting import wait_until

FLIGHTS = 3_000
TIMEOUT_S = 240


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from everflow.cli import main; main()", "demo", "--threads", "1", *arguments]


@pytest.fixture
def temp_folder() -> Iterator[Path]:
    """Where the demo keeps its temporary files. Short, unlike tmp_path: sockets of Spark's workers lie in it."""
    with tempfile.TemporaryDirectory(prefix="ef-") as folder:
        yield Path(folder)


@pytest.mark.broker
@pytest.mark.spark
def test_every_result_of_a_slice_matches_the_batch(tmp_path: Path, temp_folder: Path) -> None:
    report = tmp_path / "demo.json"
    done = subprocess.run(
        command("--limit", str(FLIGHTS), "--json", str(report)),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "TMPDIR": str(temp_folder)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "matches batch: yes" in done.stdout
    expected = batch.figures(data.load_flights(FLIGHTS))
    written = json.loads(report.read_text())
    assert (written["records_in"], written["guarantee"], written["matches_batch"]) == (FLIGHTS, "exactly_once_v2", True)
    assert written["routes"] == dict(expected.routes)
    assert {code: found["flights"] for code, found in written["carriers"].items()} == {
        code: delay.flights for code, delay in expected.carriers.items()
    }
    assert list(temp_folder.glob("everflow-*")) == []


@pytest.mark.broker
@pytest.mark.spark
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, temp_folder: Path) -> None:
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command("--limit", str(FLIGHTS)),
            stdout=file,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(temp_folder)},
        )
        try:
            wait_until(lambda: "are in topic flights" in output.read_text(), TIMEOUT_S, "the flights to be produced")
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 130, output.read_text()
        finally:
            process.kill()
    assert list(temp_folder.glob("everflow-*")) == []
