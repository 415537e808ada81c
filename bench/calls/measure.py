"""Calls to an HTTP service of 50 ms, side by side: how many records a second, what becomes of them
if the service fails and hangs now and then, and the latency of a slow stream.

Before a figure counts, the output is read: each record's answer once and in the order of the
records of its partition, and the records that the service refuses as dead letters.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench import latency
from bench.calls.program import OPTIONS_VARIABLE, PORT_VARIABLE
from bench.calls.service import is_refused
from bench.load.latency_schedule import key_at, number_of
from bench.results import Measurement
from bench.systems import CALLS, EVERFLOW, ROOT, Job, Launch, RunningSystem, everflow_launch
from bench.throughput import time_run
from bench.topics import (
    PARTITIONS,
    GroupProgress,
    create_topics,
    delete_topics,
    end_offsets,
    produce_all,
    warm_broker,
)
from bench.verify import WrongOutputError, each_message, each_record

MARK_PER_S = 5_000.0
MARK_CALLS = 2.0
"""The p99 of the latency, in calls."""
_LETTERS = "bench-calls-letters"
_SETTINGS = {"errors.dead.letter.queue.topic.name": _LETTERS}


class TooSlowError(RuntimeError):
    """A mark was missed."""


@dataclass(frozen=True)
class Case:
    """``fail``, ``hang``: what the service does to so many of a hundred requests."""

    name: str
    fail: float = 0.0
    hang: float = 0.0
    options: Mapping[str, object] | None = None


CASES = (
    Case("all answer"),
    Case("5 % fail, 1 % hang", 5.0, 1.0, {"timeout": "500 ms", "retries": 5}),
)


@dataclass(frozen=True)
class CallsPlan:
    """``ms``: of a call; ``rate``: records/s of the latency; 0: none is measured."""

    guarantees: Sequence[str] = ("exactly_once_v2",)
    records: int = 100_000
    threads: int = 2
    concurrency: int = 256
    ms: float = 50.0
    runs: int = 1
    rate: int = 200
    warm_up_s: float = 60.0  # a broker compiles its code for so long
    measured_s: float = 30.0
    timeout_s: float = 600.0

    @property
    def keys(self) -> int:
        """Each record has a key of its own, which says its number."""
        return max(self.records, 100_000)


def measure(plan: CallsPlan, bootstrap_servers: str, folder: Path) -> Iterator[Measurement]:
    """TooSlowError after all figures if a mark was missed."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    create_topics(admin, [_LETTERS], 1)
    missed: list[str] = []
    rows = (
        (key_at(number, plan.keys).encode(), b'{"number": %d}' % number)
        for number in range(plan.records)
    )
    create_topics(admin, ["bench-calls-input"], PARTITIONS)
    produce_all(bootstrap_servers, "bench-calls-input", rows)
    for guarantee in plan.guarantees:
        for run in range(plan.runs):
            for number, case in enumerate(CASES):
                found = _drained(
                    plan, bootstrap_servers, guarantee, f"{run}-{number}", case, folder
                )
                print(
                    f"{guarantee}, run {run + 1}, {case.name}: {found:,.0f} records/s", flush=True
                )
                yield Measurement(
                    "calls", case.name, EVERFLOW, guarantee, "throughput", "records/s", found
                )
                if case is CASES[0] and found < MARK_PER_S:
                    missed.append(f"{found:,.0f} records/s, the mark is {MARK_PER_S:,.0f}")
        if plan.rate:
            for one in _latency(plan, bootstrap_servers, guarantee, folder):
                yield one
                most_ms = MARK_CALLS * plan.ms
                if one.metric == "latency_p99" and one.value > most_ms:
                    missed.append(f"p99 of {one.value:.0f} ms, the mark is {most_ms:.0f} ms")
    if missed:
        raise TooSlowError("; ".join(missed))


@contextmanager
def service(plan: CallsPlan, case: Case, *more: str) -> Iterator[int]:
    """Its port; a process of its own."""
    command = [sys.executable, "-m", "bench.calls.service", "--ms", str(plan.ms), *more]
    command += ["--fail", str(case.fail), "--hang", str(case.hang)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _launch(plan: CallsPlan, case: Case, port: int, job: Job) -> Launch:
    launch = everflow_launch(replace(job, program=CALLS, settings={**_SETTINGS, **job.settings}))
    options = {"concurrency": plan.concurrency, **(case.options or {})}
    asked = {PORT_VARIABLE: str(port), OPTIONS_VARIABLE: json.dumps(options)}
    return replace(launch, environment={**launch.environment, **asked})


def _drained(
    plan: CallsPlan, bootstrap_servers: str, guarantee: str, run: str, case: Case, folder: Path
) -> float:
    """Records/s from joined to done."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    application_id = f"bench-calls-{guarantee.replace('_', '-')}-{run}"
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=guarantee,
        threads=plan.threads,
        input_topic="bench-calls-input",
        output_topic=f"{application_id}-output",
        state_dir=Path(tempfile.mkdtemp(prefix="bench-state-")),
    )
    create_topics(admin, [job.output_topic], PARTITIONS)
    before = len(_letters(bootstrap_servers))
    ends = end_offsets(bootstrap_servers, job.input_topic)
    progress = GroupProgress(bootstrap_servers, application_id, job.input_topic, ends)
    log = folder / f"{application_id}.log"
    try:
        with (
            closing(progress),
            service(plan, case, "--refuse") as port,
            RunningSystem(EVERFLOW, _launch(plan, case, port, job), log) as process,
        ):
            timing = time_run(process, progress, plan.timeout_s)
        # In one partition, which is read in order.
        verify(plan, bootstrap_servers, job.output_topic, _letters(bootstrap_servers)[before:])
    finally:
        shutil.rmtree(job.state_dir, ignore_errors=True)
    delete_topics(admin, application_id)
    return plan.records / (timing.done_at - timing.joined_at)


def _letters(bootstrap_servers: str) -> list[bytes]:
    return [key for key, _ in each_record(bootstrap_servers, _LETTERS)]


def verify(plan: CallsPlan, bootstrap_servers: str, topic: str, letters: list[bytes]) -> None:
    """WrongOutputError unless each number came once, those of a partition in order, or is a dead
    letter (its keys), as all are that the service refuses."""
    last: dict[int | None, int] = {}
    found: list[int] = []
    for message in each_message(bootstrap_servers, topic):
        partition, key = message.partition(), message.key() or b""
        number = number_of(key.decode(), 1, plan.keys)
        if number <= last.get(partition, -1):
            raise WrongOutputError(
                f"{topic}-{partition}: {number} came behind {last[partition]}: not in order"
            )
        last[partition] = number
        found.append(number)
    dead = [number_of(key.decode(), 1, plan.keys) for key in letters]
    if sorted([*found, *dead]) != list(range(plan.records)):
        raise WrongOutputError(
            f"{topic}: {len(found):,} answers and {len(dead)} dead letters are not each of "
            f"{plan.records:,} records once"
        )
    refused = set(filter(is_refused, range(plan.records)))
    if not refused <= set(dead):
        raise WrongOutputError(f"{topic}: a record that was refused is no dead letter")
    if given_up := len(dead) - len(refused):
        print(f"{topic}: {given_up} calls failed each time", flush=True)


def _latency(
    plan: CallsPlan, bootstrap_servers: str, guarantee: str, folder: Path
) -> Iterator[Measurement]:
    live = latency.LatencyPlan(
        guarantees=(guarantee,),
        rates=(plan.rate,),
        keys=plan.keys,
        threads=plan.threads,
        warm_up_s=plan.warm_up_s,
        measured_s=plan.measured_s,
        idle_s=0.0,
        name="bench-calls-live",
    )
    with service(plan, CASES[0]) as port:
        launchers = {EVERFLOW: lambda job: _launch(plan, CASES[0], port, job)}
        for one in latency.measure(live, bootstrap_servers, launchers, folder):
            yield replace(one, bench="calls", case=f"{plan.rate} records/s")
