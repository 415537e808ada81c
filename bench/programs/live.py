"""Latency of a program: from sending a record to reading the result that has it in it, as
`bench.latency` measures the count."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from confluent_kafka.admin import AdminClient

from bench.latency import Live, processor_shares, run_live
from bench.load.latency_schedule import Phase, schedule
from bench.memory import ProcessorUse
from bench.programs.catalogue import Program
from bench.programs.matching import KEYS_FILE, latencies
from bench.results import Measurement
from bench.systems import FLINK_SQL, Job, Launcher, turns
from bench.topics import PARTITIONS, case_name


@dataclass(frozen=True)
class LivePlan:
    """What to measure; rates in records/s, times in s."""

    guarantees: Sequence[str]
    rates: Sequence[int]
    threads: int = 2
    runs: int = 1
    warm_up_s: float = 8.0
    measured_s: float = 10.0
    partitions: int = PARTITIONS


def measure(
    plan: LivePlan,
    program: Program,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    log_folder: Path,
) -> Iterator[Measurement]:
    """One start per guarantee, run and system, for all rates."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    clock_offset_ns = time.time_ns() - time.monotonic_ns()
    phases = schedule(plan.rates, plan.warm_up_s, plan.measured_s, idle_s=0)
    name = ["--program", program.name]
    able = {one: launcher for one, launcher in launchers.items() if one != FLINK_SQL}
    for guarantee, run, system, launcher in turns(plan.guarantees, plan.runs, able):
        application_id = f"live-{program.name}-{system}-{guarantee.replace('_', '-')}-{run}"
        job = Job(
            bootstrap_servers=bootstrap_servers,
            application_id=application_id,
            guarantee=guarantee,
            threads=plan.threads,
            input_topic=f"{application_id}-input",
            output_topic=f"{application_id}-output",
            state_dir=Path(tempfile.mkdtemp(prefix="bench-state-")),
            program=program.name,
        )
        files = log_folder / application_id
        sender = [*name, "--clock-offset-ns", str(clock_offset_ns)]
        topics = [job.output_topic + branch for branch in program.branches]
        processor = run_live(
            Live(
                job=job,
                output_topics=topics,
                phases=phases,
                sender=sender,
                probe=["bench.programs.probe", *name],
                files=files,
                partitions=plan.partitions,
            ),
            admin,
            system,
            launcher,
        )
        yield from _figures(
            plan, program, system, guarantee, run, phases, files, clock_offset_ns, processor
        )


def _figures(
    plan: LivePlan,
    program: Program,
    system: str,
    guarantee: str,
    run: int,
    phases: Sequence[Phase],
    files: Path,
    clock_offset_ns: int,
    processor: ProcessorUse,
) -> Iterator[Measurement]:
    sent_ns = np.fromfile(files / "sent", dtype=np.int64)
    seen = np.fromfile(files / "seen", dtype=np.int64).reshape(-1, 3)
    keys = [bytes.fromhex(key) for key in json.loads((files / KEYS_FILE).read_text())]
    shares = processor_shares(phases, sent_ns, processor)
    for rate, ms in latencies(program, phases, sent_ns, clock_offset_ns, seen, keys):
        p50, p99 = np.percentile(ms, [50, 99])
        print(
            f"{program.name}, {guarantee}, run {run + 1}: {system}, {rate} records/s: "
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms, largest {ms.max():.0f} ms of {len(ms):,}, "
            f"{shares.get(rate, 0.0):.2f} cores",
            flush=True,
        )
        case = f"{case_name(program.name, plan.partitions)} at {rate}"
        for metric, unit, value in (
            ("latency_p50", "ms", float(p50)),
            ("latency_p99", "ms", float(p99)),
            ("processor", "cores", shares.get(rate, 0.0)),
        ):
            yield Measurement("programs", case, system, guarantee, metric, unit, value)
