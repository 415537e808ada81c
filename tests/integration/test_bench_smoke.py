"""The throughput bench end to end on little data: both systems finish with verified output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20_000
TIMEOUT_S = 240


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_throughput_bench_measures_both_systems(tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench.run", "throughput", "--json", str(rows_file), "--runs", "1"]
    command += ["--records", str(RECORDS), "--keys", "1000", "--guarantee", "exactly_once_v2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(rows_file.read_text())
    measured = {(row["system"], row["metric"]) for row in rows}
    metrics = ("throughput", "throughput_from_start", "memory_peak")
    assert measured == {(system, metric) for system in ("everflow", "kafka-streams") for metric in metrics}
    assert all(row["value"] > 0 and row["runs"] == [row["value"]] for row in rows)
