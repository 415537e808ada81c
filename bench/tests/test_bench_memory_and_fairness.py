"""Short slices of the memory and fairness benches: a real instance, few micro-batches, wide
bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.memory_growth import KINDS, Sample, slope

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 280


def bench(
    tmp_path: Path, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], list[dict[str, object]]]:
    """Run a bench; what it did and its rows."""
    rows_file = tmp_path / "rows.json"
    command = [sys.executable, "bench/run.py", *arguments, "--json", str(rows_file)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    return done, json.loads(rows_file.read_text()) if rows_file.exists() else []


def test_slope_is_per_thousand_micro_batches() -> None:
    samples = [
        Sample(batches, dict.fromkeys(KINDS, 100 + batches * 0.01))
        for batches in range(0, 2_000, 100)
    ]
    assert slope(samples, "jvm") == pytest.approx(10.0)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_200_micro_batches_leave_driver_and_workers_flat(tmp_path: Path) -> None:
    """The JVM still compiles and loads classes in so short a run: its growth is for the whole bench
    to judge."""
    done, rows = bench(tmp_path, "memory", "--batches", "200")
    grown = {
        str(row["case"]): float(str(row["value"]))
        for row in rows
        if row["metric"] == "memory_growth"
    }
    assert {case.rpartition(", ")[2] for case in grown} == set(KINDS), done.stdout + done.stderr
    for case, mib in grown.items():
        assert mib < 8.0 or "jvm" in case, done.stdout
    peaks = [float(str(row["value"])) for row in rows if row["metric"] == "memory_peak"]
    assert peaks
    assert all(200 < peak < 2_560 for peak in peaks), done.stdout


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_a_small_job_is_measured_beside_full_ones(tmp_path: Path) -> None:
    done, rows = bench(tmp_path, "fairness", "--records", "200000")
    cases = {(row["metric"], row["case"]) for row in rows}
    assert ("batch_time_median", "beside full threads") in cases, done.stdout + done.stderr
    assert ("batch_time_median", "alone") in cases


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_a_backlog_of_small_and_of_large_records_keeps_to_the_bounds(tmp_path: Path) -> None:
    done, rows = bench(tmp_path, "backlog", "--bytes", "60000000", "--record-bytes", "1000,1000000")
    peaks = {str(row["case"]) for row in rows if row["metric"] == "memory_peak"}
    kinds = ("driver", "jvm", "workers", "instance")
    assert peaks == {
        f"records of {size} bytes, {kind}" for size in ("1,000", "1,000,000") for kind in kinds
    }, done.stdout + done.stderr
    assert done.returncode == 0, done.stdout + done.stderr
