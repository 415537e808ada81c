"""Throughput of a program: how fast a system drains a topic that is full, as `bench.throughput`
measures the count."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.memory import MemoryPeak
from bench.programs.catalogue import Finals, Program
from bench.programs.left import Leftovers
from bench.programs.outputs import compare, finals
from bench.results import Measurement
from bench.systems import (
    FLINK_SQL,
    OURS,
    Job,
    Launcher,
    RunningSystem,
    flink_script,
    turns,
)
from bench.throughput import Timing, time_run
from bench.topics import (
    PARTITIONS,
    GroupProgress,
    case_name,
    create_topics,
    delete_topics,
    end_offsets,
    produce_all,
)

AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True)
class DrainPlan:
    """What to measure. `records` None: each program's own; `timeout_s` bounds one run."""

    guarantees: Sequence[str]
    records: int | None = None
    partitions: int = PARTITIONS
    threads: int = 2
    runs: int = 1
    timeout_s: float = 600.0


@dataclass(frozen=True)
class _Drained:
    timing: Timing
    memory_mib: float
    processor_s: float
    # Since it had joined.
    processor_running_s: float


def measure(
    plan: DrainPlan,
    program: Program,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    log_folder: Path,
) -> Iterator[Measurement]:
    """Load the program's input, then `take_turns` at it."""
    with loaded(plan, program, bootstrap_servers) as input_topic:
        yield from take_turns(plan, program, input_topic, bootstrap_servers, launchers, log_folder)


@contextmanager
def loaded(plan: DrainPlan, program: Program, bootstrap_servers: str) -> Iterator[str]:
    """A topic with the program's input, for as long as the context lasts."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    records = plan.records or program.records
    input_topic = f"programs-{program.name}-input"
    create_topics(admin, [input_topic], plan.partitions)
    began = time.monotonic()
    produce_all(
        bootstrap_servers, input_topic, map(program.row, range(records)), program.times_ms(records)
    )
    took = time.monotonic() - began
    print(f"{program.name}: loaded {records:,} records in {took:.1f} s", flush=True)
    yield input_topic
    delete_topics(admin, input_topic)


def take_turns(
    plan: DrainPlan,
    program: Program,
    input_topic: str,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    log_folder: Path,
    truth: Finals | None = None,
) -> Iterator[Measurement]:
    """Let the systems take turns at the input that was `loaded`; a run's figures are yielded when
    its output equals the truth, or without one that of the first run."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    records = plan.records or program.records
    first = None if truth is None else ("Spark's batch SQL", truth)
    able = {system: launcher for system, launcher in launchers.items() if _has(system, program)}
    for guarantee, run, system, launcher in turns(plan.guarantees, plan.runs, able):
        job = _job(plan, program, input_topic, bootstrap_servers, system, guarantee, run, records)
        create_topics(
            admin, [job.output_topic + branch for branch in program.branches], plan.partitions
        )
        try:
            drained = _drain(plan, job, system, launcher, log_folder)
        finally:
            shutil.rmtree(job.state_dir, ignore_errors=True)
        output = finals(program, bootstrap_servers, job.output_topic)
        name = f"{system}, {guarantee}, run {run + 1}"
        first = first or (name, output)
        compare(program, name, output, *first)
        delete_topics(admin, job.application_id)
        case = case_name(program.name, plan.partitions)
        yield from _measurements(case, system, guarantee, run, records, drained, len(output))


def _has(system: str, program: Program) -> bool:
    if system == FLINK_SQL:
        return flink_script(program.name) is not None
    return system in OURS or program.in_kafka_streams


def _job(
    plan: DrainPlan,
    program: Program,
    input_topic: str,
    bootstrap_servers: str,
    system: str,
    guarantee: str,
    run: int,
    records: int,
) -> Job:
    application_id = f"programs-{program.name}-{system}-{guarantee.replace('_', '-')}-{run}"
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=guarantee,
        threads=plan.threads,
        input_topic=input_topic,
        output_topic=f"{application_id}-output",
        state_dir=Path(tempfile.mkdtemp(prefix="bench-state-")),
        program=program.name,
    )
    if guarantee != AT_LEAST_ONCE or system in (*OURS, FLINK_SQL):
        return job
    if program.at_least_once:
        return replace(job, settings=program.at_least_once)
    return replace(job, stop_after=records)


def _drain(
    plan: DrainPlan,
    job: Job,
    system: str,
    launcher: Launcher,
    log_folder: Path,
) -> _Drained:
    progress = GroupProgress(
        job.bootstrap_servers,
        job.application_id,
        job.input_topic,
        end_offsets(job.bootstrap_servers, job.input_topic),
    )
    log = log_folder / f"{job.application_id}.log"
    with (
        closing(progress),
        closing(Leftovers(job.bootstrap_servers, job.application_id)) as left,
        RunningSystem(system, launcher(job), log) as process,
    ):
        memory = MemoryPeak(process.pid)
        try:
            timing = time_run(process, progress, plan.timeout_s, left.any)
        finally:
            memory.stop()
    return _Drained(
        timing,
        memory.peak_mib,
        memory.processor_s(timing.done_at),
        memory.processor_s(timing.done_at) - memory.processor_s(timing.joined_at),
    )


def _measurements(
    case: str,
    system: str,
    guarantee: str,
    run: int,
    records: int,
    drained: _Drained,
    results: int,
) -> Iterator[Measurement]:
    timing = drained.timing
    figures = (
        ("throughput", "records/s", records / (timing.done_at - timing.joined_at)),
        ("throughput_from_start", "records/s", records / (timing.done_at - timing.started_at)),
        ("start", "s", timing.joined_at - timing.started_at),
        ("memory_peak", "MiB", drained.memory_mib),
        ("processor_time", "s", drained.processor_s),
        ("processor_per_record", "us", drained.processor_running_s / records * 1e6),
    )
    print(
        f"{case}, {guarantee}, run {run + 1}: {system} "
        + ", ".join(f"{metric} {value:,.1f} {unit}" for metric, unit, value in figures)
        + f"; {results:,} final values as they must be",
        flush=True,
    )
    for metric, unit, value in figures:
        yield Measurement("programs", case, system, guarantee, metric, unit, value)
