"""Memory under a backlog: an instance begins behind a full topic of JSON, of small records and of
large ones, and each of its processes stays within what the configuration page says."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.backlog.peaks import MIB, Bounds, ProcessPeaks
from bench.backlog.program import rows
from bench.limits import killed_for_memory, limited, memory_group
from bench.results import Measurement
from bench.systems import BACKLOG, EVERFLOW, Job, RunningSystem, everflow_launch
from bench.throughput import Timing, time_run
from bench.topics import (
    LARGEST_RECORD_BYTES,
    PARTITIONS,
    GroupProgress,
    create_topics,
    delete_topics,
    end_offsets,
    produce_all,
    warm_broker,
)
from everflow.memory import MemoryBudget, machine_memory, usual_budget

_TOPIC = {"max.message.bytes": str(LARGEST_RECORD_BYTES)}
_SETTINGS = {
    "producer.message.max.bytes": str(LARGEST_RECORD_BYTES),
    "transaction.timeout.ms": "60000",
}


class TooMuchMemoryError(RuntimeError):
    """A process took more than it says."""


@dataclass(frozen=True)
class BacklogPlan:
    """``size``: bytes of the backlog of each case; ``memory``: ``max.memory.bytes``, None: as it is
    left out; ``container``: bytes of a cgroup that holds the instance, None: nothing does."""

    guarantees: Sequence[str] = ("exactly_once_v2",)
    size: int = 2_000_000_000
    record_bytes: Sequence[int] = (1_000, 1_000_000)
    keys: int = 100_000
    threads: int = 2
    memory: int | None = None
    container: int | None = None
    timeout_s: float = 1_200.0

    @property
    def bounds(self) -> Bounds:
        """What each process may take."""
        total = self.memory or usual_budget(self.threads, machine_memory())
        return Bounds(MemoryBudget(total), self.threads)


def measure(plan: BacklogPlan, bootstrap_servers: str, folder: Path) -> Iterator[Measurement]:
    """Every size of records and guarantee; TooMuchMemoryError after all figures if a process took
    more than its bound."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    beyond: list[str] = []
    for record_bytes in plan.record_bytes:
        topic = f"backlog-{record_bytes}-input"
        create_topics(admin, [topic], PARTITIONS, _TOPIC)
        records = max(PARTITIONS, plan.size // record_bytes)
        produce_all(bootstrap_servers, topic, rows(records, record_bytes, plan.keys))
        print(f"loaded {records:,} records of {record_bytes:,} bytes", flush=True)
        for guarantee in plan.guarantees:
            yield from _run(plan, bootstrap_servers, topic, record_bytes, guarantee, folder, beyond)
        delete_topics(admin, topic)
    if beyond:
        raise TooMuchMemoryError(f"more memory than is said: {'; '.join(beyond)}")


def _run(
    plan: BacklogPlan,
    bootstrap_servers: str,
    topic: str,
    record_bytes: int,
    guarantee: str,
    folder: Path,
    beyond: list[str],
) -> Iterator[Measurement]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    application_id = f"backlog-{record_bytes}-{guarantee.replace('_', '-')}"
    output = f"{application_id}-output"
    create_topics(admin, [output], PARTITIONS, _TOPIC)
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=guarantee,
        threads=plan.threads,
        input_topic=topic,
        output_topic=output,
        state_dir=Path(tempfile.mkdtemp(prefix="bench-state-")),
        program=BACKLOG,
        settings={**_SETTINGS, "max.memory.bytes": str(plan.bounds.budget.total)},
    )
    try:
        timing, peaks = _drained(plan, job, folder)
    finally:
        shutil.rmtree(job.state_dir, ignore_errors=True)
        delete_topics(admin, application_id)
    case = f"records of {record_bytes:,} bytes"
    yield from figures(plan, case, guarantee, peaks, beyond)
    speed = plan.size / (timing.done_at - timing.joined_at) / MIB
    print(f"{case}, {guarantee}: {speed:,.0f} MiB/s", flush=True)
    yield Measurement("backlog", case, EVERFLOW, guarantee, "throughput", "MiB/s", speed)


def _drained(plan: BacklogPlan, job: Job, folder: Path) -> tuple[Timing, Mapping[str, int]]:
    ends = end_offsets(job.bootstrap_servers, job.input_topic)
    progress = GroupProgress(job.bootstrap_servers, job.application_id, job.input_topic, ends)
    log = folder / f"{job.application_id}.log"
    launch = everflow_launch(job)
    with closing(progress), ExitStack() as stack:
        group = None
        if plan.container is not None:
            group = stack.enter_context(memory_group(plan.container))
            launch = limited(launch, group)
        process = stack.enter_context(RunningSystem(EVERFLOW, launch, log))
        peaks = ProcessPeaks(process.pid)
        try:
            timing = time_run(process, progress, plan.timeout_s)
        finally:
            peaks.stop()
        if group is not None and (killed := killed_for_memory(group)):
            raise TooMuchMemoryError(f"the kernel has ended {killed} processes in the container")
    return timing, peaks.largest()


def figures(
    plan: BacklogPlan,
    case: str,
    guarantee: str,
    peaks: Mapping[str, int],
    beyond: list[str],
) -> Iterator[Measurement]:
    """The peaks; what is above its bound is added to ``beyond``."""
    for kind in ("driver", "jvm", "workers", "instance"):
        peak, bound = peaks[kind], plan.bounds.of(kind)
        print(
            f"{case}, {guarantee}, {kind}: {peak / MIB:,.0f} of {bound / MIB:,.0f} MiB", flush=True
        )
        if peak > bound:
            beyond.append(
                f"{case}, {guarantee}, {kind}: {peak / MIB:,.0f} of {bound / MIB:,.0f} MiB"
            )
        yield Measurement(
            "backlog", f"{case}, {kind}", EVERFLOW, guarantee, "memory_peak", "MiB", peak / MIB
        )
