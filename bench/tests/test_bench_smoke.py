"""The benches beside Kafka Streams end to end on little data: both systems finish with verified
output."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20_000
TIMEOUT_S = 240
# Two instances of each system, one case after the other.
ELASTIC_TIMEOUT_S = 600


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_throughput_bench_measures_both_systems(tmp_path: Path) -> None:
    rows_file = tmp_path / "rows.json"
    command = [
        sys.executable,
        "-m",
        "bench.run",
        "throughput",
        "--json",
        str(rows_file),
        "--runs",
        "1",
    ]
    command += ["--records", str(RECORDS), "--keys", "1000", "--guarantee", "exactly_once_v2"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(rows_file.read_text())
    measured = {(row["system"], row["metric"]) for row in rows}
    metrics = ("throughput", "throughput_from_start", "memory_peak")
    assert measured == {
        (system, metric) for system in ("everflow", "kafka-streams") for metric in metrics
    }
    assert all(row["value"] > 0 and row["runs"] == [row["value"]] for row in rows)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_programs_bench_compares_the_outputs_of_both_systems(tmp_path: Path) -> None:
    """Of one of them: a filter, a new key, windows."""
    rows_file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench.run", "programs", "--json", str(rows_file)]
    command += ["--programs", "trades", "--records", "5000", "--rates", "200"]
    command += ["--warm-up", "2", "--seconds", "2", "--guarantee", "exactly_once_v2"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(rows_file.read_text())
    metrics = {
        "trades": ("throughput", "throughput_from_start", "start", "memory_peak"),
        "trades at 200": ("latency_p50", "latency_p99"),
    }
    measured = {(row["case"], row["system"], row["metric"]) for row in rows if row["value"] > 0}
    assert measured >= {
        (case, system, metric)
        for case, named in metrics.items()
        for system in ("everflow", "kafka-streams")
        for metric in named
    }


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_growth_bench_runs_both_systems_on_a_state_that_was_filled_before(tmp_path: Path) -> None:
    """Their outputs are checked key by key, those of the fill and of the second start."""
    rows_file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench.run", "growth", "--json", str(rows_file)]
    command += ["--dimensions", "keys,sizes,pages", "--keys", "2000", "--sizes", "1000"]
    command += ["--records", "10000", "--changed", "10", "--warm-up", "2", "--seconds", "2"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=ELASTIC_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(rows_file.read_text())
    measured = {(row["case"], row["system"], row["metric"]) for row in rows if row["value"] > 0}
    figures = {
        "2,000 keys": ("throughput", "throughput_fill", "processor_per_record"),
        "records of 1,000 bytes": ("throughput", "throughput_bytes", "throughput_fill"),
        "2,000 keys at 1,000": ("latency_p50", "latency_p99"),
    }
    assert measured >= {
        (case, system, metric)
        for case, named in figures.items()
        for system in ("everflow", "kafka-streams")
        for metric in named
    } | {("2,000 keys, 10 changed", "everflow", "pages_per_commit")}


ELASTIC = ["--keys-per-task", "2000", "--rate", "200", "--settle", "3"]


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize(
    ("bench", "arguments", "metrics"),
    [
        (
            "scaleout",
            [*ELASTIC, "--cut-off", "90"],
            {"gap_max", "gap_steady", "time_to_balance", "time_to_balance_from_join"},
        ),
        ("failover", [*ELASTIC, "--cases", "clean stop"], {"gap_max", "gap_steady"}),
        ("restore", ["--records", "50000", "--keys", "5000"], {"restore"}),
    ],
)
def test_benches_of_several_instances_measure_both_systems(
    tmp_path: Path, bench: str, arguments: list[str], metrics: set[str]
) -> None:
    """State below the acceptable lag moves without warm-up: Kafka Streams needs no probing
    either."""
    rows_file = tmp_path / "rows.json"
    command = [
        sys.executable,
        "-m",
        "bench.run",
        bench,
        "--json",
        str(rows_file),
        "--runs",
        "1",
        *arguments,
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=ELASTIC_TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(rows_file.read_text())
    measured = {(row["system"], row["metric"]) for row in rows}
    ours = (
        {("everflow", "follow")} if bench == "restore" else set()
    )  # the rate of warm-ups, for `everflow simulate`
    assert (
        measured
        == {(system, metric) for system in ("everflow", "kafka-streams") for metric in metrics}
        | ours
    )
    assert all(row["value"] > 0 and "note" not in row for row in rows), rows
