"""One application of several instances under a steady load, for the benches that let instances come
and go.

The input first holds every key once, so that the state has so many keys; then a sender keeps one
pace and a probe notes when each output partition shows a committed count. All times are seconds
since the epoch, the clock that all processes share.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from confluent_kafka.admin import AdminClient

from bench.events import EventFile, balanced_since
from bench.gaps import OutputProbe
from bench.load.steady_sender import times_sent
from bench.systems import ROOT, Job, Launcher, RunningSystem
from bench.topics import (
    GroupProgress,
    create_topics,
    delete_topics,
    end_offsets,
    key_of,
    produce_all,
)
from bench.verify import WrongOutputError

POLL_INTERVAL_S = 0.05
RUNNING_TIMEOUT_S = 300.0
LOAD_TIMEOUT_S = 900.0
DRAIN_TIMEOUT_S = 120.0
OUTPUT_TIMEOUT_S = 120.0
SETTLED_S = 2.0
"""The group counts as balanced once it has been so for this long; the time is that of the first
moment."""
EXACTLY_ONCE = "exactly_once_v2"


@dataclass(frozen=True)
class Load:
    """Sizes: `partitions` tasks with `keys_per_task` keys each, `rate` records/s over all of them
    while it is measured."""

    partitions: int = 4
    keys_per_task: int = 1_000_000
    rate: float = 1_000.0

    @property
    def keys(self) -> int:
        """Keys of all tasks."""
        return self.partitions * self.keys_per_task


class Instance:
    """A process of the application, and what it notes about itself."""

    def __init__(
        self, process: RunningSystem, events: EventFile, started_s: float, state: Path
    ) -> None:
        self.process = process
        self.state = state
        self.events = events
        self.started_s = started_s


@dataclass(frozen=True)
class Trial:
    """One system under one guarantee: what a run of an `Application` is given."""

    bench: str
    system: str
    launcher: Launcher
    guarantee: str
    threads: int
    load: Load
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Application:
    """One run of a trial; made by `application`. Used by one thread."""

    trial: Trial
    job: Job
    folder: Path
    stack: ExitStack
    instances: list[Instance] = field(default_factory=list)

    def start(self) -> Instance:
        """Start one more instance, with a state folder of its own; returns at once."""
        number = len(self.instances) + 1
        events = self.folder / f"instance-{number}.events"
        state = Path(tempfile.mkdtemp(prefix="bench-state-"))
        self.stack.callback(shutil.rmtree, state, ignore_errors=True)
        job = Job(**{**vars(self.job), "state_dir": state, "events": events})
        started_s = time.time()
        name = f"{self.trial.system}, instance {number}"
        process = RunningSystem(
            name, self.trial.launcher(job), self.folder / f"instance-{number}.log"
        )
        # Nothing is measured any more when the run ends: killing is quicker than two clean stops.
        self.stack.callback(process.kill)
        self.instances.append(Instance(process, EventFile(events), started_s, state))
        return self.instances[-1]

    def wait(
        self,
        what: str,
        reached: Callable[[], bool],
        timeout_s: float,
        *,
        survivors: Sequence[Instance] | None = None,
    ) -> None:
        """Poll until `reached`; SystemFailedError when the time is over, or when an instance ends
        that should not."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            for instance in self.instances if survivors is None else survivors:
                instance.process.check_alive()
            if time.monotonic() > deadline:
                raise self.instances[-1].process.failure(f"{what}: not within {timeout_s:.0f} s")
            time.sleep(POLL_INTERVAL_S)

    def fill(self) -> None:
        """Let the running instances count every key once."""
        began = time.monotonic()
        rows = ((key_of(index).encode(), b"{}") for index in range(self.trial.load.keys))
        produce_all(self.job.bootstrap_servers, self.job.input_topic, rows)
        self.wait_committed(LOAD_TIMEOUT_S)
        print(
            (
                f"{self.trial.system}: state of {self.trial.load.keys:,} keys in "
                f"{time.monotonic() - began:.0f} s"
            ),
            flush=True,
        )

    def wait_committed(
        self, timeout_s: float, *, survivors: Sequence[Instance] | None = None
    ) -> None:
        """Until the group has committed all that the input holds now."""
        ends = end_offsets(self.job.bootstrap_servers, self.job.input_topic)
        progress = GroupProgress(
            self.job.bootstrap_servers, self.job.application_id, self.job.input_topic, ends
        )
        try:
            total = progress.total_records()
            self.wait(
                "all input committed",
                lambda: progress.committed_records() >= total,
                timeout_s,
                survivors=survivors,
            )
        finally:
            progress.close()

    def balanced_since(self, standbys: int) -> float | None:
        """When the group became balanced; None while it is not, or not for long enough."""
        since = balanced_since(
            [instance.events.read() for instance in self.instances],
            self.trial.load.partitions,
            standbys,
        )
        return since if since is not None and time.time() - since >= SETTLED_S else None

    def watch(self, seconds: float, *, survivors: Sequence[Instance] | None = None) -> None:
        """Let time pass; SystemFailedError if an instance ends meanwhile that should not."""
        until = time.monotonic() + seconds
        self.wait("", lambda: time.monotonic() >= until, seconds + 60.0, survivors=survivors)

    def wait_output(
        self, probe: OutputProbe, since_s: float, *, survivors: Sequence[Instance] | None = None
    ) -> None:
        """Until every partition has shown an output after a moment."""

        def reached() -> bool:
            return min(probe.latest().values()) > since_s

        self.wait("outputs on every partition", reached, OUTPUT_TIMEOUT_S, survivors=survivors)

    @contextmanager
    def under_load(self) -> Iterator[OutputProbe]:
        """Send while the block runs, then check that every count is right; SystemFailedError,
        WrongOutputError."""
        sent_file = self.folder / "sent.json"
        command = [
            sys.executable,
            "-m",
            "bench.load.steady_sender",
            "--bootstrap-servers",
            self.job.bootstrap_servers,
        ]
        command += [
            "--topic",
            self.job.input_topic,
            "--keys",
            str(self.trial.load.keys),
            "--rate",
            str(self.trial.load.rate),
        ]
        command += ["--sent-file", str(sent_file)]
        with OutputProbe(self.job.bootstrap_servers, self.job.output_topic) as probe:
            with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as sender:
                try:
                    yield probe
                    sender.communicate(timeout=DRAIN_TIMEOUT_S)
                finally:
                    sender.kill()
            if not sent_file.exists():
                raise RuntimeError(f"the sender ended with exit code {sender.returncode}")
            survivors = [instance for instance in self.instances if not instance.process.ended]
            self.wait_committed(DRAIN_TIMEOUT_S, survivors=survivors)
            time.sleep(SETTLED_S)  # the last commit's counts are on their way to the probe
        sent = json.loads(sent_file.read_text())
        print(
            (
                f"sent {sent['records']:,} records, longest pause between two "
                f"{sent['longest_pause_s'] * 1000:.0f} ms"
            ),
            flush=True,
        )
        exactly = self.trial.guarantee == EXACTLY_ONCE
        check_counts(
            probe.counts(), probe.fallen(), sent["records"], self.trial.load.keys, exactly=exactly
        )


@contextmanager
def application(
    trial: Trial, admin: AdminClient, bootstrap_servers: str, log_folder: Path
) -> Iterator[Application]:
    """New topics and folders for one run; at the end its processes are killed, its topics and state
    deleted."""
    application_id = f"bench-{trial.bench}-{trial.system}-{uuid.uuid4().hex[:8]}"
    folder = log_folder / application_id
    folder.mkdir()
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=trial.guarantee,
        threads=trial.threads,
        input_topic=f"{application_id}-input",
        output_topic=f"{application_id}-output",
        state_dir=folder,
        settings=trial.settings,
    )
    create_topics(admin, [job.input_topic, job.output_topic], trial.load.partitions)
    with ExitStack() as stack:
        stack.callback(delete_topics, admin, application_id)
        yield Application(trial, job, folder, stack)


def check_counts(
    counts: Mapping[str, int], fallen: Sequence[str], sent: int, keys: int, *, exactly: bool
) -> None:
    """WrongOutputError unless each key that was sent ends with its count: once when the state was
    filled, then as often as sent.

    Without `exactly` (at-least-once) a count may be higher, and fall back after a crash.
    """
    expected = times_sent(sent, keys) + 1
    wrong = []
    for index in np.flatnonzero(expected > 1).tolist():
        key, want = key_of(index), int(expected[index])
        have = counts.get(key, 0)
        if have < want or (exactly and have != want):
            wrong.append(f"{key} ended with {have} instead of {want}")
    if exactly:
        wrong += fallen
    if wrong:
        raise WrongOutputError(f"{len(wrong):,} counts are wrong: {'; '.join(wrong[:5])}")
