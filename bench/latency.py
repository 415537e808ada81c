"""Latency: from sending a record to reading its committed count, live at the tail of the topic.

A sender process keeps the pace and notes send times, a probe process reads the output as a
read_committed consumer and notes arrival times; both use the machine's monotonic clock. One start
of the application serves all rates.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from confluent_kafka.admin import AdminClient

from bench.load.latency_schedule import Phase, schedule, write_schedule
from bench.memory import ProcessorUse, memory_parts_mib, tree_memory_mib
from bench.programs.left import Leftovers
from bench.results import Measurement
from bench.systems import ROOT, Job, Launcher, RunningSystem, turns
from bench.topics import (
    PARTITIONS,
    GroupProgress,
    case_name,
    create_topics,
    delete_topics,
    end_offsets,
    warm_broker,
)
from bench.verify import WrongOutputError

RUNNING_TIMEOUT_S = 180.0
DRAIN_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.5

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LatencyPlan:
    """What to measure; rates in records/s, times in s."""

    guarantees: Sequence[str]
    rates: Sequence[int] = (100, 1_000, 10_000)
    keys: int = 100_000
    threads: int = 2
    runs: int = 1
    warm_up_s: float = 20.0
    measured_s: float = 30.0
    idle_s: float = 70.0
    partitions: int = PARTITIONS
    name: str = "bench-latency"
    # Whether each key is counted once before all else.
    filled: bool = False


def measure(
    plan: LatencyPlan, bootstrap_servers: str, launchers: Mapping[str, Launcher], log_folder: Path
) -> Iterator[Measurement]:
    """One start per system, guarantee and run; yields all its cases when it has ended."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    for guarantee, run, system, launcher in turns(plan.guarantees, plan.runs, launchers):
        yield from _run_once(
            plan, admin, bootstrap_servers, system, launcher, guarantee, run, log_folder
        )


def _run_once(
    plan: LatencyPlan,
    admin: AdminClient,
    bootstrap_servers: str,
    system: str,
    launcher: Launcher,
    guarantee: str,
    run: int,
    log_folder: Path,
) -> Iterator[Measurement]:
    application_id = f"{plan.name}-{system}-{guarantee.replace('_', '-')}-{run}"
    state_dir = Path(tempfile.mkdtemp(prefix="bench-state-"))
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=guarantee,
        threads=plan.threads,
        input_topic=f"{application_id}-input",
        output_topic=f"{application_id}-output",
        state_dir=state_dir,
    )
    fill = plan.keys if plan.filled else 0
    phases = schedule(plan.rates, plan.warm_up_s, plan.measured_s, plan.idle_s, fill)
    files = log_folder / application_id
    keys = ["--keys", str(plan.keys)]
    use = run_live(
        Live(
            job=job,
            output_topics=[job.output_topic],
            phases=phases,
            sender=keys,
            probe=["bench.load.latency_probe", *keys],
            files=files,
            partitions=plan.partitions,
        ),
        admin,
        system,
        launcher,
    )
    yield from _figures(plan, system, guarantee, run, phases, files, use.processor)


def _figures(
    plan: LatencyPlan,
    system: str,
    guarantee: str,
    run: int,
    phases: Sequence[Phase],
    files: Path,
    processor: ProcessorUse,
) -> Iterator[Measurement]:
    sent_ns = np.fromfile(files / "sent", dtype=np.int64)
    seen = np.fromfile(files / "seen", dtype=np.int64).reshape(-1, 2)
    shares = processor_shares(phases, sent_ns, processor)
    for case, share in shares.items():
        print(f"{guarantee}, run {run + 1}: {system}, {case}: {share:.2f} cores", flush=True)
        name = case_name(case, plan.partitions)
        yield Measurement("latency", name, system, guarantee, "processor", "cores", share)
    for case, latencies_ms in _latencies(phases, sent_ns, seen):
        p50, p99 = np.percentile(latencies_ms, [50, 99])
        print(
            f"{guarantee}, run {run + 1}: {system}, {case}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, "
            f"largest {latencies_ms.max():.0f} ms of {len(latencies_ms):,} records",
            flush=True,
        )
        for metric, value in (("latency_p50", p50), ("latency_p99", p99)):
            yield Measurement(
                "latency",
                case_name(case, plan.partitions),
                system,
                guarantee,
                metric,
                "ms",
                float(value),
            )


@dataclass(frozen=True)
class Live:
    """One start of a system with records sent at set paces: what the sender and the probe (module
    and arguments) are told. The sender writes `sent` into the folder `files`, the probe `seen`."""

    job: Job
    output_topics: Sequence[str]
    phases: Sequence[Phase]
    sender: Sequence[str]
    probe: Sequence[str]
    files: Path
    partitions: int
    # The system may be slower than the sender; then the bench stops waiting for it.
    may_fall_behind: bool = False


@dataclass(frozen=True)
class LiveUse:
    """What the system used: its processor time, s from the start of the process to RUNNING, and MiB
    once all was committed, and by kind of process. `given_up_ns` (monotonic): when the bench no
    longer waited for that."""

    processor: ProcessorUse
    start_s: float
    memory_mib: float
    memory_parts_mib: Mapping[str, float]
    given_up_ns: int | None


def run_live(live: Live, admin: AdminClient, system: str, launcher: Launcher) -> LiveUse:
    """Start the system, send, and watch until every record is committed; the job's topics and
    stores are deleted at the end."""
    job, files = live.job, live.files
    create_topics(admin, [job.input_topic, *live.output_topics], live.partitions)
    files.mkdir()
    write_schedule(live.phases, files / "schedule.json")
    try:
        with RunningSystem(system, launcher(job), files / "system.log") as process:
            processor = ProcessorUse(process.pid)
            try:
                running_at = process.wait_running(RUNNING_TIMEOUT_S)
                given_up_ns = _send_and_probe(live, process)
                # Not while a latency is measured: reading its pages holds a large process up.
                memory_mib = tree_memory_mib(process.pid)
                parts_mib = memory_parts_mib(process.pid)
            finally:
                processor.stop()
        delete_topics(admin, job.application_id)
    finally:
        shutil.rmtree(job.state_dir, ignore_errors=True)
    return LiveUse(processor, running_at - process.started_at, memory_mib, parts_mib, given_up_ns)


def processor_shares(
    phases: Sequence[Phase], sent_ns: Int64Array, processor: ProcessorUse
) -> dict[str, float]:
    """Of each case of more than one record: the cores that the system used between the first and
    the last."""
    shares: dict[str, float] = {}
    first = 0
    for phase in phases:
        last = first + max(phase.records, 1) - 1
        begin, end = int(sent_ns[first]) / 1e9, int(sent_ns[last]) / 1e9
        first += phase.records
        if phase.case is not None and end > begin:
            used = processor.processor_s(end) - processor.processor_s(begin)
            shares[phase.case] = used / (end - begin)
    return shares


def _send_and_probe(live: Live, process: RunningSystem) -> int | None:
    """Run sender and probe to the end of the schedule, until every record is committed. Returns
    when the bench no longer waited for that (monotonic ns), if so."""
    job, files = live.job, live.files
    servers = ["--bootstrap-servers", job.bootstrap_servers]
    probe_command = [sys.executable, "-m", *live.probe, *servers]
    probe_command += ["--partitions", str(live.partitions), "--seen-file", str(files / "seen")]
    for topic in live.output_topics:
        probe_command += ["--topic", topic]
    sender_command = [sys.executable, "-m", "bench.load.latency_sender", *live.sender, *servers]
    sender_command += ["--topic", job.input_topic, "--schedule", str(files / "schedule.json")]
    sender_command += ["--sent-file", str(files / "sent")]
    with subprocess.Popen(
        probe_command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as probe:
        try:
            assert probe.stdout is not None
            if probe.stdout.readline() != "READY\n":
                raise RuntimeError("the latency probe did not start")
            with subprocess.Popen(sender_command, cwd=ROOT) as sender:
                try:
                    _wait_for_sender(sender, probe, process)
                finally:
                    sender.kill()
            given_up = not _wait_until_committed(live, process)
            # Closing its input ends the probe once it polled what the last commit made visible.
            time.sleep(POLL_INTERVAL_S)
        except BaseException:
            probe.kill()
            raise
        probe.communicate()
        if probe.returncode != 0:
            raise RuntimeError(f"the latency probe ended with exit code {probe.returncode}")
    return time.monotonic_ns() if given_up else None


def _wait_for_sender(
    sender: subprocess.Popen[bytes], probe: subprocess.Popen[str], process: RunningSystem
) -> None:
    while sender.poll() is None:
        process.check_alive()
        if probe.poll() is not None:
            raise RuntimeError(f"the latency probe ended with exit code {probe.returncode}")
        time.sleep(POLL_INTERVAL_S)
    if sender.returncode != 0:
        raise RuntimeError(f"the latency sender ended with exit code {sender.returncode}")


def _wait_until_committed(live: Live, process: RunningSystem) -> bool:
    """Its input, and its repartition topics; False where a system that may fall behind did."""
    job = live.job
    ends = end_offsets(job.bootstrap_servers, job.input_topic)
    deadline = time.monotonic() + DRAIN_TIMEOUT_S
    with (
        closing(
            GroupProgress(job.bootstrap_servers, job.application_id, job.input_topic, ends)
        ) as progress,
        closing(Leftovers(job.bootstrap_servers, job.application_id)) as left,
    ):
        while (committed := progress.committed_records()) < progress.total_records() or left.any():
            process.check_alive()
            if time.monotonic() > deadline:
                if live.may_fall_behind:
                    return False
                raise process.failure(
                    f"committed {committed:,} of {progress.total_records():,} records sent"
                )
            time.sleep(POLL_INTERVAL_S)
    return True


def _latencies(
    phases: Sequence[Phase], sent_ns: Int64Array, seen: Int64Array
) -> Iterator[tuple[str, npt.NDArray[np.float64]]]:
    """Each case with its latencies in ms; raises `WrongOutputError` if an output is missing or came
    twice."""
    seen_ns = np.zeros(len(sent_ns), dtype=np.int64)
    numbers = seen[:, 0]
    if len(np.unique(numbers)) != len(numbers):
        raise WrongOutputError(f"{len(numbers) - len(np.unique(numbers))} counts were read twice")
    seen_ns[numbers] = seen[:, 1]
    first = 0
    for phase in phases:
        last = first + phase.records
        if phase.case is not None:
            missing = int(np.count_nonzero(seen_ns[first:last] == 0))
            if missing:
                raise WrongOutputError(
                    f"case {phase.case}: {missing:,} of {phase.records:,} records have no own "
                    f"count; "
                    "if a key came twice in one commit, use more --keys"
                )
            yield phase.case, (seen_ns[first:last] - sent_ns[first:last]) / 1e6
        first = last
