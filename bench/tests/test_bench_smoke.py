"""The benches end to end on little data: those beside Kafka Streams measure both systems with
verified output, those of everflow alone have wide bounds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.memory_growth import KINDS, Sample, slope

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600
"""Two instances of each system, one case after the other."""
BOTH = ("everflow", "kafka-streams")
ONCE = ["--guarantee", "exactly_once_v2"]
WARM = ["--transactions", "50"]
PACE = ["--warm-up", "2", "--seconds", "2"]
ELASTIC = ["--keys-per-task", "2000", "--rate", "200", "--settle", "3"]
STARTED = "throughput throughput_from_start memory_peak"
LOADED = "latency_p50 latency_p99 processor broker_processor memory start sent"


def bench(tmp_path: Path, *arguments: str, judged: bool = True) -> tuple[list[dict[str, Any]], str]:
    """A bench's rows, and all that it said. ``judged``: it has to find its figures good."""
    file = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bench.run", *arguments, "--json", str(file)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0 or not judged, said
    return json.loads(file.read_text())["rows"], said


def test_slope_is_per_thousand_micro_batches() -> None:
    samples = [
        Sample(batches, dict.fromkeys(KINDS, 100 + batches * 0.01))
        for batches in range(0, 2_000, 100)
    ]
    assert slope(samples, "jvm") == pytest.approx(10.0)


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "metrics", "ours"),
    [
        # Metrics of both systems, by case where it has a name; and those of everflow alone
        (
            ["throughput", "--runs", "1", "--records", "20000", "--keys", "1000", *ONCE],
            {"": STARTED},
            set(),
        ),
        (
            ["programs", "--programs", "trades", "--records", "5000", *ONCE, *WARM],
            {"trades": f"{STARTED} start"},
            set(),
        ),
        (
            ["nexmark", "--queries", "q4,q5", "--records", "5000", "--runs", "2", *WARM],
            dict.fromkeys(("q4", "q5"), f"{STARTED} start"),
            {("geometric mean, 2 queries to kafka-streams", "everflow", "throughput_ratio")},
        ),
        (
            [
                *("load", "--programs", "trades", "--rates", "200", "--shares", "1/2"),
                *("--records", "2000", "--cores", "1", "--neighbour"),
                *(*WARM, *PACE),
            ],
            {
                f"trades, held to 1 core, beside a neighbour at {pace}": LOADED
                for pace in ("200", "1/2 of the ceiling")
            },
            {("machine", "machine", "loop")},
        ),
        (
            [
                *("growth", "--dimensions", "keys,sizes,pages", "--keys", "2000"),
                *("--sizes", "1000", "--records", "10000", "--changed", "10", *PACE),
            ],
            {
                "2,000 keys": "throughput throughput_fill processor_per_record",
                "records of 1,000 bytes": "throughput throughput_bytes throughput_fill",
                "2,000 keys at 1,000": "latency_p50 latency_p99",
            },
            {("2,000 keys, 10 changed", "everflow", "pages_per_commit")},
        ),
        (
            ["scaleout", "--runs", "1", *ELASTIC, "--cut-off", "90"],
            {"": "gap_max gap_steady time_to_balance time_to_balance_from_join"},
            set(),
        ),
        (
            ["failover", "--runs", "1", *ELASTIC, "--cases", "clean stop"],
            {"": "gap_max gap_steady"},
            set(),
        ),
        (
            [
                *("migrate", "--changes", "reshard", "--load", "200", "--keys", "1000"),
                *("--settle", "2", "--seconds", "3"),
            ],
            {"reshard": "batch gap_steady gap_max"},
            {("reshard", "everflow", "switch"), ("reshard", "kafka-streams", "up_to_date")},
        ),
        (
            ["restore", "--runs", "1", "--records", "50000", "--keys", "5000"],
            {"": "restore"},
            {("", "everflow", "follow")},  # the rate of warm-ups, for `everflow simulate`
        ),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_bench_measures_both_systems(
    tmp_path: Path, arguments: list[str], metrics: dict[str, str], ours: set[tuple[str, str, str]]
) -> None:
    """State below the acceptable lag moves without warm-up: Kafka Streams needs no probing
    either."""
    rows, said = bench(tmp_path, *arguments)
    measured = {(row["case"], row["system"], row["metric"]) for row in rows if row["value"] > 0}
    wanted = ours | {
        (case, system, metric)
        for case, named in metrics.items()
        for system in BOTH
        for metric in named.split()
    }
    if "" in metrics:
        assert {("", *found[1:]) for found in measured} == wanted, said
        assert all(row["value"] > 0 and "note" not in row for row in rows), said
    else:
        assert measured >= wanted, said


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_200_micro_batches_leave_driver_and_workers_flat(tmp_path: Path) -> None:
    """The JVM still compiles and loads classes in so short a run: its growth is for the whole bench
    to judge."""
    rows, said = bench(tmp_path, "memory", "--batches", "200", judged=False)
    grown = {row["case"]: row["value"] for row in rows if row["metric"] == "memory_growth"}
    assert {case.rpartition(", ")[2] for case in grown} == set(KINDS), said
    assert all(mib < 8.0 or "jvm" in case for case, mib in grown.items()), said
    peaks = [row["value"] for row in rows if row["metric"] == "memory_peak"]
    assert peaks
    assert all(200 < peak < 2_560 for peak in peaks), said


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_a_small_job_is_measured_beside_full_ones(tmp_path: Path) -> None:
    rows, said = bench(tmp_path, "fairness", "--records", "200000", judged=False)
    cases = {(row["metric"], row["case"]) for row in rows}
    assert {("batch_time_median", where) for where in ("alone", "beside full threads")} <= cases, (
        said
    )


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_calls_to_a_service_are_measured_with_their_output_verified(tmp_path: Path) -> None:
    slice_ = ["--records", "4000", "--warm-up", "2", "--seconds", "3"]
    rows, said = bench(tmp_path, "calls", *slice_, judged=False)
    assert {(row["metric"], row["case"]) for row in rows} == {
        ("throughput", "all answer"),
        ("throughput", "5 % fail, 1 % hang"),
        ("latency_p50", "200 records/s"),
        ("latency_p99", "200 records/s"),
        ("processor", "200 records/s"),
    }, said


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_formats_of_a_registry_are_measured_with_their_bytes_compared(tmp_path: Path) -> None:
    rows, said = bench(tmp_path, "schemas", "--records", "2000", *ONCE, judged=False)
    drained = {(row["case"], row["system"]) for row in rows if row["metric"] == "throughput"}
    programs = ("trades", "trades-avro", "trades-protobuf")
    assert drained == {(program, system) for program in programs for system in BOTH}, said
    alone = {(row["case"], row["system"]) for row in rows if row["metric"] == "decode"}
    assert alone == {
        *(("avro alone", system) for system in ("everflow", "java", "fastavro", "spark")),
        *(("protobuf alone", system) for system in ("everflow", "java")),
        ("json alone", "everflow"),
    }, said


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_rows_of_sinks_are_measured_once_each_is_there(tmp_path: Path) -> None:
    rows, said = bench(tmp_path, "sinks", "--records", "20000", judged=False)
    assert {("throughput", "parquet"), ("throughput", "delta")} <= {
        (row["metric"], row["case"]) for row in rows
    }, said


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
def test_a_backlog_of_small_and_of_large_records_keeps_to_the_bounds(tmp_path: Path) -> None:
    sizes = ["--bytes", "60000000", "--record-bytes", "1000,1000000"]
    rows, said = bench(tmp_path, "backlog", *sizes)
    assert {row["case"] for row in rows if row["metric"] == "memory_peak"} == {
        f"records of {size} bytes, {kind}"
        for size in ("1,000", "1,000,000")
        for kind in ("driver", "jvm", "workers", "instance")
    }, said
