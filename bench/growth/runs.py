"""The runs of `bench growth`: a system fills its state, stops, and starts again on it to do the
records whose time counts."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench import latency
from bench.growth import pages, state
from bench.growth.cases import (
    LATENCY_RATE,
    PAGES,
    STATE,
    Case,
    GrowthPlan,
    latency_cases,
    throughput_cases,
)
from bench.growth.inputs import check
from bench.limits import limited, memory_group
from bench.memory import StateUse
from bench.results import Measurement
from bench.systems import KAFKA_STREAMS, Job, Launcher, RunningSystem
from bench.throughput import Timing, time_run
from bench.topics import (
    GroupProgress,
    create_topics,
    delete_topics,
    end_offsets,
    produce_all,
    warm_broker,
)
from bench.verify import each_record

# Its classic members stay in the group when they close: the second start would wait for a session
# time-out of 45 s. Before anything counts, in both.
SHORT_SESSION = {"session.timeout.ms": "6000", "heartbeat.interval.ms": "2000"}


def measure(
    plan: GrowthPlan, bootstrap_servers: str, launchers: Mapping[str, Launcher], folder: Path
) -> Iterator[Measurement]:
    """State and pages first, which need no broker; then throughput, then latency, case by case. A
    case's figures are yielded when all its output was right."""
    if STATE in plan.dimensions:
        yield from state.measure(plan.states)
    if PAGES in plan.dimensions:
        yield from pages.measure(plan.keys, plan.changed)
    if not bootstrap_servers:
        return
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    if "throughput" in plan.measures:
        numbers = count()
        for case in throughput_cases(plan):
            for _ in range(plan.runs):
                at = f"growth-{next(numbers)}"
                yield from _Grown(plan, case, at, bootstrap_servers, folder).run(admin, launchers)
    if "latency" in plan.measures:
        yield from _latencies(plan, bootstrap_servers, launchers, folder)


@dataclass(frozen=True)
class _Stage:
    """One start of a system: what it took, the bytes that it read from and wrote to disks, and its
    peak of memory without mapped files."""

    timing: Timing
    processor_s: float
    read_bytes: int
    written_bytes: int
    own_memory_mib: float


@dataclass(frozen=True)
class _Grown:
    """A case, run once by each system on one input topic; its topics and stores begin with
    `name`."""

    plan: GrowthPlan
    case: Case
    name: str
    bootstrap_servers: str
    folder: Path

    def run(self, admin: AdminClient, launchers: Mapping[str, Launcher]) -> Iterator[Measurement]:
        case = self.case
        jobs = {system: self._job(system) for system in launchers}
        outputs = [job.output_topic for job in jobs.values()]
        create_topics(admin, [f"{self.name}-input", *outputs], case.partitions)
        try:
            self._load("fill")
            fills = {
                system: self._stage(system, launcher, jobs[system], 0)
                for system, launcher in launchers.items()
            }
            self._load("updates")
            for system, launcher in launchers.items():
                job = jobs[system]
                stage = self._stage(system, launcher, job, case.made.keys)
                check(
                    case.made,
                    each_record(self.bootstrap_servers, job.output_topic),
                    f"{case.name}, {system}",
                )
                shutil.rmtree(job.state_dir, ignore_errors=True)
                yield from self._figures(system, fills[system], stage)
        finally:
            for job in jobs.values():
                shutil.rmtree(job.state_dir, ignore_errors=True)
        delete_topics(admin, f"{self.name}-")

    def _job(self, system: str) -> Job:
        application_id = f"{self.name}-{system}"
        return Job(
            bootstrap_servers=self.bootstrap_servers,
            application_id=application_id,
            guarantee=self.plan.guarantee,
            threads=self.plan.threads,
            input_topic=f"{self.name}-input",
            output_topic=f"{application_id}-output",
            state_dir=Path(tempfile.mkdtemp(prefix="bench-state-")),
            program=self.case.made.program,
            settings=SHORT_SESSION if system == KAFKA_STREAMS else {},
        )

    def _load(self, what: str) -> None:
        began = time.monotonic()
        made = self.case.made
        rows = made.fill() if what == "fill" else made.updates()
        produce_all(self.bootstrap_servers, f"{self.name}-input", rows)
        print(f"{self.case.name}: {what} sent in {time.monotonic() - began:.1f} s", flush=True)

    def _stage(self, system: str, launcher: Launcher, job: Job, done: int) -> _Stage:
        """Start it, and stop it when it has committed all that there is; `done` records were
        committed before."""
        launch = launcher(job)
        log = self.folder / f"{job.application_id}-{'updates' if done else 'fill'}.log"
        ends = end_offsets(job.bootstrap_servers, job.input_topic)
        progress = GroupProgress(job.bootstrap_servers, job.application_id, job.input_topic, ends)
        limit = self.case.limit_bytes
        with closing(progress), contextlib.ExitStack() as stack:
            if limit is not None:
                launch = limited(launch, stack.enter_context(memory_group(limit)))
            process = stack.enter_context(RunningSystem(system, launch, log))
            use = StateUse(process.pid)
            try:
                timing = time_run(process, progress, self.plan.timeout_s, done=done)
            finally:
                use.stop()
        return _Stage(
            timing,
            use.processor_s(timing.done_at) - use.processor_s(timing.joined_at),
            use.read_bytes,
            use.written_bytes,
            use.own_peak_mib,
        )

    def _figures(self, system: str, fill: _Stage, stage: _Stage) -> Iterator[Measurement]:
        made = self.case.made
        throughput = made.records / _seconds(stage)
        figures = (
            ("throughput", "records/s", throughput),
            ("throughput_bytes", "MB/s", throughput * made.value_bytes / 1e6),
            ("throughput_fill", "records/s", made.keys / _seconds(fill)),
            ("processor_per_record", "us", stage.processor_s / made.records * 1e6),
            ("disk_read_per_record", "bytes", stage.read_bytes / made.records),
            ("disk_written_per_record", "bytes", stage.written_bytes / made.records),
            ("own_memory_peak", "MiB", max(fill.own_memory_mib, stage.own_memory_mib)),
        )
        print(
            f"{self.case.name}: {system} "
            + ", ".join(f"{metric} {value:,.1f} {unit}" for metric, unit, value in figures)
            + "; every key's result as it must be",
            flush=True,
        )
        for metric, unit, value in figures:
            yield Measurement(
                "growth", self.case.name, system, self.plan.guarantee, metric, unit, value
            )


def _seconds(stage: _Stage) -> float:
    return stage.timing.done_at - stage.timing.joined_at


def _latencies(
    plan: GrowthPlan, bootstrap_servers: str, launchers: Mapping[str, Launcher], folder: Path
) -> Iterator[Measurement]:
    """The live count with a state of so many keys, which it makes itself first."""
    for number, (name, keys, partitions) in enumerate(latency_cases(plan)):
        tail = latency.LatencyPlan(
            guarantees=[plan.guarantee],
            rates=[LATENCY_RATE],
            keys=keys,
            threads=plan.threads,
            runs=plan.runs,
            warm_up_s=plan.warm_up_s,
            measured_s=plan.measured_s,
            idle_s=0.0,
            partitions=partitions,
            name=f"growth-live-{number}",
            filled=True,
        )
        for figure in latency.measure(tail, bootstrap_servers, launchers, folder):
            yield replace(figure, bench="growth", case=f"{name} at {LATENCY_RATE:,}")
