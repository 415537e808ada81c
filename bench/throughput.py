"""Throughput: how fast each system counts a topic that is already full.

The clock starts when the application has joined (it prints RUNNING, or its group commits its first
offset, whichever is first) and stops when the committed input offsets reach the end of the topic,
polled every 50 ms from outside; so the warm-up of JVM, Spark and workers on the first records is
inside. `throughput_from_start` starts the clock at the start of the process instead.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.memory import MemoryPeak
from bench.results import Measurement
from bench.systems import Job, Launcher, RunningSystem, turns
from bench.topics import GroupProgress, create_topics, delete_topics, end_offsets, load, warm_broker
from bench.verify import verify_counts

POLL_INTERVAL_S = 0.05
INPUT_TOPIC = "bench-input"


@dataclass(frozen=True)
class ThroughputPlan:
    """What to measure. `timeout_s` bounds one run from the start of the process."""

    guarantees: Sequence[str]
    records: int = 2_000_000
    keys: int = 100_000
    partitions: int = 4
    threads: int = 2
    runs: int = 3
    timeout_s: float = 600.0


@dataclass(frozen=True)
class Timing:
    """Monotonic times of one run."""

    started_at: float
    joined_at: float
    done_at: float


def measure(
    plan: ThroughputPlan,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    log_folder: Path,
) -> Iterator[Measurement]:
    """Load the input once, then let the systems take turns; yields the figures of each run as it
    ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    create_topics(admin, [INPUT_TOPIC], plan.partitions)
    began = time.monotonic()
    load(bootstrap_servers, INPUT_TOPIC, plan.records, plan.keys)
    print(
        f"loaded {plan.records:,} records, {plan.keys:,} keys in {time.monotonic() - began:.1f} s",
        flush=True,
    )
    for guarantee, run, system, launcher in turns(plan.guarantees, plan.runs, launchers):
        yield from _run_once(
            plan, admin, bootstrap_servers, system, launcher, guarantee, run, log_folder
        )


def _run_once(
    plan: ThroughputPlan,
    admin: AdminClient,
    bootstrap_servers: str,
    system: str,
    launcher: Launcher,
    guarantee: str,
    run: int,
    log_folder: Path,
) -> Iterator[Measurement]:
    application_id = f"bench-{system}-{guarantee.replace('_', '-')}-{run}"
    output_topic = f"{application_id}-output"
    create_topics(admin, [output_topic], plan.partitions)
    state_dir = Path(tempfile.mkdtemp(prefix="bench-state-"))
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=guarantee,
        threads=plan.threads,
        input_topic=INPUT_TOPIC,
        output_topic=output_topic,
        state_dir=state_dir,
        stop_after=plan.records,
    )
    progress = GroupProgress(
        bootstrap_servers, application_id, INPUT_TOPIC, end_offsets(bootstrap_servers, INPUT_TOPIC)
    )
    try:
        with RunningSystem(system, launcher(job), log_folder / f"{application_id}.log") as process:
            memory = MemoryPeak(process.pid)
            try:
                timing = time_run(process, progress, plan.timeout_s)
            finally:
                memory.stop()
        verify_counts(bootstrap_servers, output_topic, plan.records)
        delete_topics(admin, application_id)
    finally:
        progress.close()
        shutil.rmtree(state_dir, ignore_errors=True)
    throughput = plan.records / (timing.done_at - timing.joined_at)
    from_start = plan.records / (timing.done_at - timing.started_at)
    print(
        f"{guarantee}, run {run + 1}: {system} {throughput:,.0f} records/s, from process start "
        f"{from_start:,.0f} records/s, {memory.peak_mib:,.0f} MiB, output verified",
        flush=True,
    )
    for metric, unit, value in (
        ("throughput", "records/s", throughput),
        ("throughput_from_start", "records/s", from_start),
        ("memory_peak", "MiB", memory.peak_mib),
    ):
        yield Measurement("throughput", "count", system, guarantee, metric, unit, value)


def time_run(
    process: RunningSystem,
    progress: GroupProgress,
    timeout_s: float,
    is_something_left: Callable[[], bool] = lambda: False,
    done: int = 0,
) -> Timing:
    """Poll the group until its offsets cover the input, and nothing is left behind it; or until
    the process has ended, where it does so by itself. `done` records were committed before its
    start."""
    total = progress.total_records()
    first_commit_at: float | None = None
    while True:
        committed = progress.committed_records()
        now = time.monotonic()
        if committed > done and first_commit_at is None:
            first_commit_at = now
        if process.ends_when_done:
            if process.ended:
                break
        elif committed >= total and not is_something_left():
            break
        process.check_alive()
        if now - process.started_at > timeout_s:
            raise process.failure(
                f"committed {committed:,} of {total:,} records in {timeout_s:.0f} s"
            )
        time.sleep(POLL_INTERVAL_S)
    process.check_alive()
    joined_at = min(at for at in (process.running_at, first_commit_at, now) if at is not None)
    return Timing(process.started_at, joined_at, now)
