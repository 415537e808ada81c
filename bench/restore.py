"""Restore: how fast an instance with an empty folder reads a changelog into its stores.

Both systems restore the very same topic, one after the other: they share application id, store name
and format. Measured by their restore listeners, from the first start to the last end. Beside
everflow's instance a second one joins with an empty folder and warms half of the tasks up: how fast
it does is measured in the same way (`follow`; `everflow simulate --measured` wants both).
"""

from __future__ import annotations

import contextlib
import shutil
import struct
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.events import Event, EventFile, first_restores, restored
from bench.results import Measurement
from bench.systems import EVERFLOW, Job, Launcher, RunningSystem, turns
from bench.topics import create_topics, delete_topics, draw_keys, key_of, produce_all, warm_broker
from bench.verify import WrongOutputError

POLL_INTERVAL_S = 0.05
STORE = "counts"
# All that moves is warmed up at once, and from its first record on; whichever instance leads the
# group decides.
WARM_UP_ALL = {"max.warmup.replicas": "100", "acceptable.recovery.lag": "100"}
# Compacted, as changelogs are, but not while the bench runs: both systems must find the same
# records.
CHANGELOG_CONFIG = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(24 * 3_600_000)}


@dataclass(frozen=True)
class RestorePlan:
    """What to measure; `timeout_s` bounds one run from the start of the process."""

    guarantees: Sequence[str]
    records: int = 3_000_000
    keys: int = 100_000
    partitions: int = 4
    threads: int = 2
    runs: int = 3
    timeout_s: float = 600.0


def measure(
    plan: RestorePlan, bootstrap_servers: str, launchers: Mapping[str, Launcher], log_folder: Path
) -> Iterator[Measurement]:
    """Fill the changelog once, then let the systems take turns; yields the figure of each run as it
    ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    application_id = f"bench-restore-{uuid.uuid4().hex[:8]}"
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee="",
        threads=plan.threads,
        input_topic=f"{application_id}-input",
        output_topic=f"{application_id}-output",
        state_dir=log_folder,
    )
    _fill(plan, admin, job)
    for guarantee, run, system, launcher in turns(plan.guarantees, plan.runs, launchers):
        files = log_folder / f"{system}-{guarantee}-{run + 1}"
        files.mkdir()
        yield from _run_once(
            plan, replace(job, guarantee=guarantee), Turn(system, launcher, run, files)
        )
    delete_topics(admin, application_id)


def _fill(plan: RestorePlan, admin: AdminClient, job: Job) -> None:
    began = time.monotonic()
    changelog = f"{job.application_id}-{STORE}-changelog"
    create_topics(admin, [job.input_topic, job.output_topic], plan.partitions)
    create_topics(admin, [changelog], plan.partitions, CHANGELOG_CONFIG)
    produce_all(job.bootstrap_servers, changelog, _counts(plan.records, plan.keys))
    # A changelog without committed offsets would be that of an application whose offsets expired.
    group = Consumer({"bootstrap.servers": job.bootstrap_servers, "group.id": job.application_id})
    offsets = [
        TopicPartition(job.input_topic, partition, 0) for partition in range(plan.partitions)
    ]
    group.commit(offsets=offsets, asynchronous=False)
    group.close()
    print(
        (
            f"changelog of {plan.records:,} records, {plan.keys:,} keys in "
            f"{time.monotonic() - began:.0f} s"
        ),
        flush=True,
    )


def _counts(records: int, keys: int) -> Iterator[tuple[bytes, bytes]]:
    """What a count would have written: keys drawn as for the other benches, each with its next
    count."""
    counts: Counter[int] = Counter()
    encoded_keys = [key_of(index).encode() for index in range(keys)]
    for index in draw_keys(records, keys):
        counts[index] += 1
        yield encoded_keys[index], struct.pack(">q", counts[index])


@dataclass(frozen=True)
class Turn:
    """One run of one system; its files go into `files`."""

    system: str
    launcher: Launcher
    run: int
    files: Path


def _run_once(plan: RestorePlan, job: Job, turn: Turn) -> Iterator[Measurement]:
    if turn.system == EVERFLOW:
        job = replace(job, settings={**job.settings, **WARM_UP_ALL})
    with _instance(job, turn, "instance") as (process, events):
        _wait_restored(plan, process, events, plan.partitions)
        process.wait_running(plan.timeout_s)
        yield _measured(plan, job, turn, "restore", events.read(), plan.records)
        if turn.system == EVERFLOW:
            yield _warm_up(plan, job, turn, _records_of(events))


def _warm_up(plan: RestorePlan, job: Job, turn: Turn, records: Mapping[int, int]) -> Measurement:
    """A second instance joins with an empty folder; `records` are those of each partition."""
    with _instance(job, turn, "warm-up") as (process, events):
        _wait_restored(plan, process, events, plan.partitions // 2)
        expected = sum(records[partition] for partition in _records_of(events))
        return _measured(plan, job, turn, "follow", events.read(), expected)


@contextlib.contextmanager
def _instance(job: Job, turn: Turn, name: str) -> Iterator[tuple[RunningSystem, EventFile]]:
    """A process with an empty state folder, and what it notes."""
    state_dir = Path(tempfile.mkdtemp(prefix="bench-state-"))
    events = turn.files / f"{name}.events"
    try:
        launch = turn.launcher(replace(job, state_dir=state_dir, events=events))
        with RunningSystem(turn.system, launch, turn.files / f"{name}.log") as process:
            yield process, EventFile(events)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)


def _wait_restored(
    plan: RestorePlan, process: RunningSystem, events: EventFile, stores: int
) -> None:
    """Shows what the restore listener says meanwhile, the longer it takes the more seldom."""
    shown: Event | None = None
    show_at = began = time.monotonic()
    while restored(first_restores(events.read()), stores) is None:
        process.check_alive()
        now = time.monotonic()
        if now - process.started_at > plan.timeout_s:
            raise process.failure(f"not restored in {plan.timeout_s:.0f} s")
        said = events.last("restore_progress")
        if said is None:
            show_at = began = now
        elif said is not shown and now >= show_at:
            shown, show_at = said, now + max(0.2, (now - began) / 4)
            print(f"  {process.name}: {progress_line(said)}", flush=True)
        time.sleep(POLL_INTERVAL_S)


def progress_line(event: Event) -> str:
    """What a restore listener was told, for people."""
    fields = event.fields
    left = "" if fields["remaining_s"] is None else f", {fields['remaining_s']:.1f} s left"
    return (
        f"partition {fields['partition']} at {fields['fraction']:.0%}, {fields['rate']:,.0f} "
        f"records/s{left}"
    )


def _records_of(events: EventFile) -> dict[int, int]:
    found = first_restores(events.read())
    return {
        event.fields["partition"]: event.fields["records"]
        for event in found
        if event.kind == "restore_end"
    }


def _measured(
    plan: RestorePlan,
    job: Job,
    turn: Turn,
    metric: str,
    events: Sequence[Event],
    expected: int,
) -> Measurement:
    done = restored(first_restores(events), 1)
    assert done is not None
    records, seconds = done
    if records != expected:
        raise WrongOutputError(
            f"{turn.system} restored {records:,} records of {expected:,} ({metric})"
        )
    rate = records / seconds
    print(
        (
            f"{job.guarantee}, run {turn.run + 1}: {turn.system} {metric} {rate:,.0f} records/s "
            f"({seconds:.2f} s)"
        ),
        flush=True,
    )
    case = f"{plan.records:,} records, {plan.keys:,} keys"
    return Measurement("restore", case, turn.system, job.guarantee, metric, "records/s", rate)
