"""Restore: how fast an instance with an empty folder reads a changelog into its stores.

Both systems restore the very same topic, one after the other: they share application id, store name and format. Measured by
their restore listeners, from the first start to the last end.
"""

from __future__ import annotations

import shutil
import struct
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench.events import EventFile, restored
from bench.results import Measurement
from bench.systems import CountJob, Launcher, RunningSystem
from bench.topics import create_topics, delete_topics, draw_keys, key_of, produce_all, warm_broker
from bench.verify import WrongOutputError

POLL_INTERVAL_S = 0.05
STORE = "counts"
# Compacted, as changelogs are, but not while the bench runs: both systems must find the same records.
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
    """Fill the changelog once, then let the systems take turns; yields the figure of each run as it ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    application_id = f"bench-restore-{uuid.uuid4().hex[:8]}"
    job = CountJob(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee="",
        threads=plan.threads,
        input_topic=f"{application_id}-input",
        output_topic=f"{application_id}-output",
        state_dir=log_folder,
    )
    _fill(plan, admin, job)
    for guarantee, run, (system, launcher) in product(plan.guarantees, range(plan.runs), launchers.items()):
        files = log_folder / f"{system}-{guarantee}-{run + 1}"
        files.mkdir()
        yield _run_once(plan, replace(job, guarantee=guarantee), system, launcher, run, files)
    delete_topics(admin, application_id)


def _fill(plan: RestorePlan, admin: AdminClient, job: CountJob) -> None:
    began = time.monotonic()
    changelog = f"{job.application_id}-{STORE}-changelog"
    create_topics(admin, [job.input_topic, job.output_topic], plan.partitions)
    create_topics(admin, [changelog], plan.partitions, CHANGELOG_CONFIG)
    produce_all(job.bootstrap_servers, changelog, _counts(plan.records, plan.keys))
    # A changelog without committed offsets would be that of an application whose offsets expired.
    group = Consumer({"bootstrap.servers": job.bootstrap_servers, "group.id": job.application_id})
    offsets = [TopicPartition(job.input_topic, partition, 0) for partition in range(plan.partitions)]
    group.commit(offsets=offsets, asynchronous=False)
    group.close()
    print(f"changelog of {plan.records:,} records, {plan.keys:,} keys in {time.monotonic() - began:.0f} s", flush=True)


def _counts(records: int, keys: int) -> Iterator[tuple[bytes, bytes]]:
    """What a count would have written: keys drawn as for the other benches, each with its next count."""
    counts: Counter[int] = Counter()
    encoded_keys = [key_of(index).encode() for index in range(keys)]
    for index in draw_keys(records, keys):
        counts[index] += 1
        yield encoded_keys[index], struct.pack(">q", counts[index])


def _run_once(plan: RestorePlan, job: CountJob, system: str, launcher: Launcher, run: int, files: Path) -> Measurement:
    state_dir = Path(tempfile.mkdtemp(prefix="bench-state-"))
    events = EventFile(files / "instance.events")
    job = replace(job, state_dir=state_dir, events=files / "instance.events")
    try:
        with RunningSystem(system, launcher(job), files / "instance.log") as process:
            while (done := restored(events.read(), plan.partitions)) is None:
                process.check_alive()
                if time.monotonic() - process.started_at > plan.timeout_s:
                    raise process.failure(f"not restored in {plan.timeout_s:.0f} s")
                time.sleep(POLL_INTERVAL_S)
            process.wait_running(plan.timeout_s)
    finally:
        shutil.rmtree(state_dir, ignore_errors=True)
    records, seconds = done
    if records != plan.records:
        raise WrongOutputError(f"{system} restored {records:,} records of {plan.records:,}")
    rate = records / seconds
    print(f"{job.guarantee}, run {run + 1}: {system} {rate:,.0f} records/s ({seconds:.2f} s)", flush=True)
    case = f"{plan.records:,} records, {plan.keys:,} keys"
    return Measurement("restore", case, system, job.guarantee, "restore", "records/s", rate)
