"""What the readers of the output notice while a new version takes over under load: by `everflow
migrate`, or by the growth of an input, beside the stop and reset of Kafka Streams."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions

from bench.gaps import Gap
from bench.memory import MemoryPeak, ProcessorUse, tree_memory_mib
from bench.migrate.books import Sent, number_of, shown, wrong_ends, wrong_pairs, wrong_sums
from bench.migrate.orders import least_keys, time_ms
from bench.migrate.probe import OutputLog, Seen, batch_s, gaps_of_tasks
from bench.migrate.programs import PAIRS
from bench.results import Measurement
from bench.systems import (
    EVERFLOW,
    KAFKA_STREAMS,
    ROOT,
    Job,
    Launcher,
    RunningSystem,
    SystemFailedError,
)
from bench.topics import PARTITIONS, create_topics, delete_topics, warm_broker
from bench.verify import WrongOutputError
from everflow.kafka.admin import ClusterAdmin
from everflow.protocol.messages import FILLED, mark_in

BENCH = "migrate"
GUARANTEE = "exactly_once_v2"
POLL_S = 0.05
READY_S = 300.0
DRAIN_S = 180.0
QUIET_S = 3.0
WINDOW_BYTES = 8
UP_TO_DATE_S = 1.0
"""An output is, if the record that caused it was due so shortly before."""
BATCHES = 2
"""A task may be without a committed output for so many micro-batches and the switch."""
GROWN = 2 * PARTITIONS
_PROGRAMS = "bench.migrate.programs:"
_MARKS = (("gap_allowed", "batch", "median"), ("gap_allowed_longest", "gap_steady", "longest"))


@dataclass(frozen=True)
class Case:
    """``new``: what the next version's name has behind the program's; empty: the input grows.
    ``after``: tasks of the next version's state."""

    name: str
    program: str
    new: str = ""
    options: tuple[str, ...] = ()
    after: int = PARTITIONS

    @property
    def joined(self) -> bool:
        return self.program == "joined"


def _renames(pairs: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(part for was, now in pairs.items() for part in ("--rename", f"{was}={now}"))


_JOINED_RENAMES = {
    "windows": "spans",
    "pairs-this-join-store": "matches-this-join-store",
    "pairs-other-join-store": "matches-other-join-store",
}
CASES = {
    case.name: case
    for case in (
        Case("insert", "sums", "insert"),
        Case("rename", "sums", "rename", _renames({"sums": "totals"})),
        Case("field", "sums", "field"),
        Case("grow", "sums", "grow", after=8),
        Case("reshard", "sums", "reshard", after=6),
        Case("input", "direct"),
        Case("joined-insert", "joined", "insert"),
        Case("joined-rename", "joined", "rename", _renames(_JOINED_RENAMES)),
        Case("joined-field", "joined", "field"),
        Case("joined-grow", "joined", "grow", after=8),
        Case("joined-reshard", "joined", "reshard", after=6),
        Case("joined-input", "joined"),
    )
}


@dataclass(frozen=True)
class MigratePlan:
    """What to measure; times in s, rate in records/s. ValueError for too few keys."""

    cases: Sequence[str] = tuple(CASES)
    rate: int = 5_000
    keys: int = 20_000
    threads: int = 2
    runs: int = 1
    settle_s: float = 10.0
    after_s: float = 10.0

    def __post_init__(self) -> None:
        if self.keys < least_keys(self.rate):
            raise ValueError(
                f"--keys {self.keys}: at {self.rate} records/s at least {least_keys(self.rate)}"
            )


@dataclass
class Trial:
    """One run of a case on one system. One thread."""

    plan: MigratePlan
    case: Case
    system: str
    job: Job
    folder: Path
    launcher: Launcher
    admin: AdminClient
    stack: ExitStack
    outputs: OutputLog = field(init=False)
    began_ms: int = 0

    @property
    def window_bytes(self) -> int:
        return WINDOW_BYTES if self.case.joined else 0

    def start(self, name: str, program: str, application_id: str) -> RunningSystem:
        """A version of the program, with a state folder of its own; returns at once."""
        state = Path(tempfile.mkdtemp(prefix="bench-state-"))
        self.stack.callback(shutil.rmtree, state, ignore_errors=True)
        if self.system == EVERFLOW:
            log = state / application_id / "logs" / "everflow.log"
            kept = self.folder / f"{name}-everflow.log"
            self.stack.callback(lambda: log.is_file() and shutil.copy(log, kept))
        job = replace(self.job, program=program, application_id=application_id, state_dir=state)
        if self.system == KAFKA_STREAMS:  # so it leaves the group when it stops
            job = replace(job, events=self.folder / f"{name}.events")
        started = RunningSystem(
            f"{self.system}, {name}", self.launcher(job), self.folder / f"{name}.log"
        )
        self.stack.callback(started.kill)
        return started

    def wait(
        self,
        what: str,
        reached: Callable[[], bool],
        timeout_s: float,
        alive: Sequence[RunningSystem] = (),
    ) -> None:
        """Poll until ``reached``; SystemFailedError when the time is over or one ends."""
        deadline = time.monotonic() + timeout_s
        while not reached():
            for one in alive:
                one.check_alive()
            if time.monotonic() > deadline:
                raise SystemFailedError(f"{self.case.name}, {self.system}: {what}: not in time")
            time.sleep(POLL_S)

    def watch(self, seconds: float, alive: Sequence[RunningSystem]) -> None:
        until = time.monotonic() + seconds
        self.wait("", lambda: time.monotonic() >= until, seconds + 60.0, alive)

    def sums(self) -> Sequence[Seen]:
        return self.outputs.seen(self.job.output_topic)

    def pairs(self) -> Sequence[Seen]:
        return self.outputs.seen(self.job.output_topic + PAIRS) if self.case.joined else ()

    def worst_gap(self, start_s: float, end_s: float) -> Gap:
        """Of the tasks of both versions: a task of either is the keys that it has."""
        gaps = [
            gap
            for tasks in {PARTITIONS, self.case.after}
            for gap in gaps_of_tasks(self.sums(), start_s, end_s, tasks, self.window_bytes).values()
        ]
        return max(gaps, key=lambda gap: gap.seconds)

    def send(self) -> subprocess.Popen[bytes]:
        """Begin to send orders; `sent` ends it."""
        plan = self.plan
        command = [
            *(sys.executable, "-m", "bench.migrate.sender"),
            *("--bootstrap-servers", self.job.bootstrap_servers),
            *("--topic", self.job.input_topic, "--keys", str(plan.keys)),
            *("--rate", str(plan.rate), "--sent-file", str(self.folder / "sent.json")),
            *("--began-file", str(self.folder / "began.json")),
        ]
        sender = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE)
        self.stack.callback(sender.kill)
        return sender

    def sent(self, sender: subprocess.Popen[bytes]) -> Sent:
        """End the sender; what it has sent."""
        sender.communicate(timeout=DRAIN_S)
        told = json.loads((self.folder / "sent.json").read_text())
        self.began_ms = json.loads((self.folder / "began.json").read_text())["began_ms"]
        print(
            f"sent {told['records']:,} records, longest pause between two "
            f"{told['longest_pause_s'] * 1000:.0f} ms",
            flush=True,
        )
        return Sent(told["records"], self.plan.keys, self.plan.rate)

    def drain(self, alive: Sequence[RunningSystem], sent: Sent, since_s: float = 0.0) -> None:
        """Until there is an update of each record since then, and no output came for a while. What
        does not come in time is told by the verdict."""
        until_s = time.time() + DRAIN_S

        def all_there() -> bool:
            there = sum(one.at_s > since_s for one in self.sums())
            return there >= sent.records or time.time() > until_s

        self.wait("an update of each record", all_there, DRAIN_S + 60.0, alive)

        def quiet() -> bool:
            newest = max((seen[-1].at_s for seen in (self.sums(), self.pairs()) if seen), default=0)
            return time.time() - newest > QUIET_S

        self.wait("the last outputs", quiet, DRAIN_S, alive)

    def until_steady(self, alive: Sequence[RunningSystem]) -> float:
        """Until there is state of all keys and some time has gone by; when the latter began."""
        every = 2 * self.plan.keys  # an order and its payment, in turns
        self.wait("outputs of all keys", lambda: len(self.sums()) >= every, READY_S, alive)
        began = time.time()
        self.watch(self.plan.settle_s, alive)
        return began

    def behind_s(self, since_s: float, end_s: float) -> float:
        """How long after a moment outputs were not `UP_TO_DATE_S`."""
        late = since_s
        for one in self.outputs.updates(self.job.output_topic):
            if since_s < one.at_s <= end_s:
                due_s = time_ms(number_of(one.value), self.plan.rate, self.began_ms) / 1000
                if one.at_s - due_s > UP_TO_DATE_S:
                    late = one.at_s
        return late - since_s

    def require_right(self, sent: Sent, *, once: bool = True) -> None:
        """WrongOutputError."""
        updates = self.outputs.updates(self.job.output_topic)
        check = wrong_sums if once else wrong_ends
        wrong = check(updates, sent, self.window_bytes)
        if self.case.joined:
            pairs = self.outputs.updates(self.job.output_topic + PAIRS)
            wrong += wrong_pairs(pairs, sent, once=once)
        if wrong:
            raise WrongOutputError(
                f"{self.case.name}, {self.system}: {shown(wrong)}{self._missing(sent)}"
            )

    def _missing(self, sent: Sent) -> str:
        """Where the records are of which no update tells."""
        told = {number_of(one.value) for one in self.outputs.updates(self.job.output_topic)}
        if len(told) >= sent.records:
            return ""
        topic = self.job.input_topic
        with OutputLog(self.job.bootstrap_servers, [topic], GROWN) as log:
            self.wait("the input", lambda: len(log.seen(topic)) >= sent.records, READY_S)
            places = [
                f"{one.partition}@{one.offset} ({json.loads(one.value)['id']})"
                for one in log.seen(topic)
                if json.loads(one.value)["id"] not in told
            ]
        return f"; in no update are the input's records {', '.join(places[:20])}"


def measure(
    plan: MigratePlan,
    bootstrap_servers: str,
    launchers: Mapping[str, Launcher],
    log_folder: Path,
) -> Iterator[Measurement]:
    """Let the systems take turns; yields the figures of each run as it ends."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    for run in range(plan.runs):
        for name in plan.cases:
            case = CASES[name]
            order = list(launchers.items())[:: -1 if run % 2 else 1]
            for system, launcher in order:
                yield from _run_once(
                    plan, case, system, launcher, bootstrap_servers, admin, log_folder
                )


def _run_once(
    plan: MigratePlan,
    case: Case,
    system: str,
    launcher: Launcher,
    bootstrap_servers: str,
    admin: AdminClient,
    log_folder: Path,
) -> Iterator[Measurement]:
    application_id = f"bench-{case.name}-{system}-{uuid.uuid4().hex[:8]}"
    folder = log_folder / application_id
    folder.mkdir()
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=application_id,
        guarantee=GUARANTEE,
        threads=plan.threads,
        input_topic=f"{application_id}-input",
        output_topic=f"{application_id}-output",
        state_dir=folder,
    )
    topics = [job.output_topic, *([job.output_topic + PAIRS] if case.joined else ())]
    create_topics(admin, [job.input_topic, *topics], PARTITIONS)
    with ExitStack() as stack:
        stack.callback(delete_topics, admin, application_id)
        trial = Trial(plan, case, system, job, folder, launcher, admin, stack)
        trial.outputs = stack.enter_context(OutputLog(bootstrap_servers, topics, PARTITIONS))
        if system == EVERFLOW:
            found = _grown(trial) if not case.new else _migrated(trial)
        else:
            found = _reset(trial)
        for metric, (value, unit) in found.items():
            yield Measurement(BENCH, case.name, system, GUARANTEE, metric, unit, value)


Figures = dict[str, tuple[float, str]]


def _begin(trial: Trial, program: str) -> tuple[RunningSystem, subprocess.Popen[bytes], float]:
    """The first version, at work: it, the sender, and since when all keys have state."""
    old = trial.start("old", program, trial.job.application_id)
    old.wait_running(READY_S)
    sender = trial.send()
    return old, sender, trial.until_steady([old])


def _steady(trial: Trial, since_s: float, until_s: float) -> Figures:
    return {
        "batch": (batch_s(trial.sums(), since_s, until_s), "s"),
        "gap_steady": (trial.worst_gap(since_s, until_s).seconds, "s"),
    }


def _gap(trial: Trial, found: Figures, gap: Gap, since_s: float) -> Figures:
    print(
        f"{trial.case.name}, {trial.system}: right; longest time without a committed output of a "
        f"task {gap.seconds:.2f} s, from {gap.began_s - since_s:+.1f} s on (before "
        f"{found['gap_steady'][0]:.2f} s)",
        flush=True,
    )
    return {**found, "gap_max": (gap.seconds, "s")}


def _judged(trial: Trial, found: Figures, gap: Gap, since_s: float, switch_s: float) -> Figures:
    """With the mark."""
    figures = _gap(trial, found, gap, since_s)
    for metric, batch, kind in _MARKS:
        length = found[batch][0]
        allowed = BATCHES * length + switch_s
        figures[metric] = allowed, "s"
        print(
            f"  {BATCHES} micro-batches of {length:.2f} s (the {kind} before) and the switch of "
            f"{switch_s:.2f} s: {'kept' if gap.seconds <= allowed else 'NOT KEPT'}",
            flush=True,
        )
    return figures


# --- everflow ------------------------------------------------------------------------------------


def _grown(trial: Trial) -> Figures:
    """The input gets twice the partitions while the application runs."""
    old, sender, steady_s = _begin(trial, _PROGRAMS + trial.case.program)
    grown_s = time.time()
    grown = trial.admin.create_partitions([NewPartitions(trial.job.input_topic, GROWN)])
    grown[trial.job.input_topic].result()
    trial.watch(trial.plan.after_s + 10.0, [old])  # it notices within ten seconds
    end_s = time.time()
    sent = trial.sent(sender)
    trial.drain([old], sent)
    trial.require_right(sent)
    gap = trial.worst_gap(grown_s, end_s)
    found = _judged(trial, _steady(trial, steady_s, grown_s), gap, grown_s, 0.0)
    return {**found, "up_to_date": (trial.behind_s(grown_s, end_s), "s")}


def _migrated(trial: Trial) -> Figures:
    case, plan = trial.case, trial.plan
    was, now = _PROGRAMS + case.program, f"{_PROGRAMS}{case.program}_{case.new}"
    old, sender, steady_s = _begin(trial, was)
    of_old = ProcessorUse(old.pid)
    begin_s = time.time()
    memory = {"old": tree_memory_mib(old.pid)}
    migrator = _Migrator(trial, was, now)
    trial.wait("the mark", migrator.marked, READY_S, [old])
    new = trial.start("new", now, migrator.application_id)
    of_new = ProcessorUse(new.pid)
    trial.wait("the switch", migrator.ended, READY_S, [new])
    told = migrator.told()
    end_s = time.time() + plan.after_s
    trial.watch(plan.after_s, [new])
    memory["new"] = tree_memory_mib(new.pid)
    sent = trial.sent(sender)
    trial.drain([new], sent)
    for use in (of_old, of_new):
        use.stop()
    trial.require_right(sent)
    phases = {name.removeprefix("migration-"): ms / 1000 for name, ms in told["phases_ms"].items()}
    updates = [(one.value["by"], one.at_s) for one in trial.outputs.updates(trial.job.output_topic)]
    last_s = max(at_s for by, at_s in updates if by == "old")
    first_s = min(at_s for by, at_s in updates if by == "new")
    _tell_phases(phases, first_s)
    asked = phases["asked"]
    gap = trial.worst_gap(begin_s, end_s)
    found = _judged(trial, _steady(trial, steady_s, begin_s), gap, last_s, first_s - last_s)
    clock = time.time() - time.monotonic()

    def cores(use: ProcessorUse, start_s: float, stop_s: float) -> tuple[float, str]:
        spent = use.processor_s(stop_s - clock) - use.processor_s(start_s - clock)
        return spent / (stop_s - start_s), "cores"

    return {
        **found,
        "gap_copy": (trial.worst_gap(begin_s, asked).seconds, "s"),
        "switch": (first_s - last_s, "s"),
        "held_to_output": (first_s - phases["held"], "s"),
        "asked_to_output": (first_s - asked, "s"),
        "up_to_date": (trial.behind_s(asked, end_s), "s"),
        "copy": (phases["caught-up"] - phases["created"], "s"),
        "processor_old": cores(of_old, begin_s, asked),
        "processor_new": cores(of_new, phases["switched"], end_s),
        "processor_migrator": (migrator.processor_s / (phases["switched"] - begin_s), "cores"),
        "memory_old": (memory["old"], "MiB"),
        "memory_new": (memory["new"], "MiB"),
        "memory_migrator": (migrator.use.peak_mib, "MiB"),
    }


def _tell_phases(phases: Mapping[str, float], output_s: float) -> None:
    """One line: how long each step of the switch took."""
    steps = sorted({**phases, "output": output_s}.items(), key=lambda step: step[1])
    begin = next(at for at, (name, _) in enumerate(steps) if name == "caught-up")
    texts = [
        f"{name} +{(at_s - before_s) * 1000:.0f}"
        for (_, before_s), (name, at_s) in zip(steps[begin:], steps[begin + 1 :], strict=False)
    ]
    print(f"ms since caught up: {', '.join(texts)}", flush=True)


class _Migrator:
    """The command, as a process."""

    def __init__(self, trial: Trial, was: str, now: str) -> None:
        self.application_id = f"{trial.job.application_id}-next"
        self._trial = trial
        self._admin = ClusterAdmin({"bootstrap.servers": trial.job.bootstrap_servers})
        trial.stack.callback(self._admin.close)
        environment = trial.launcher(replace(trial.job, program=was)).environment
        command = [
            *(sys.executable, "-c", "from everflow.cli import main; main()"),
            *("migrate", trial.job.application_id, now, "--from", was),
            *("--application-id", self.application_id, "--yes", "--output", "json"),
            *("--bootstrap-servers", trial.job.bootstrap_servers, *trial.case.options),
        ]
        self._out, self._log = trial.folder / "migrate.json", trial.folder / "migrate.log"
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **environment},
                cwd=trial.folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=log,
            )
        trial.stack.callback(self._process.kill)
        self.use = MemoryPeak(self._process.pid)
        self.processor_s = 0.0

    def marked(self) -> bool:
        """The new version may be started; SystemFailedError."""
        self._check()
        found = self._admin.committed(self.application_id, None, 30.0, stable=False)
        marks = [mark_in(one.metadata) for one in found.values()]
        return any(mark is not None and mark.kind == FILLED for mark in marks)

    def ended(self) -> bool:
        self._check()
        return self._process.poll() is not None

    def told(self) -> dict[str, Any]:
        """What it wrote, once it has ended."""
        self.use.stop()
        self.processor_s = self.use.processor_s(time.monotonic())
        found: dict[str, Any] = json.loads(self._out.read_text())
        return found

    def _check(self) -> None:
        if self._process.poll():
            raise SystemFailedError(
                f"{self._trial.case.name}: everflow migrate ended with exit code "
                f"{self._process.returncode}:\n{self._log.read_text()}"
            )


# --- Kafka Streams -------------------------------------------------------------------------------


def _reset(trial: Trial) -> Figures:
    """Stop, reset to the beginning of the input, start the new version: what is left to do where a
    program does not fit its state. It has no other way for a part that grows."""
    program = "sums" if trial.case.program == "direct" else trial.case.program
    name = trial.job.application_id
    old, sender, steady_s = _begin(trial, f"{program}-old")
    begin_s = time.time()
    old.stop()
    stopped_s = time.time()
    # What kafka-streams-application-reset does, without its JVM's start: the input from its
    # beginning, and no internal topics.
    trial.admin.delete_consumer_groups([name])[name].result()
    for ending in ("-changelog", "-repartition"):
        delete_topics(trial.admin, f"{name}-", ending)
    reset_s = time.time()
    new = trial.start("new", f"{program}-{trial.case.new or 'grow'}", name)
    new.wait_running(READY_S)
    running_s = time.time()
    trial.wait("an output", lambda: trial.sums()[-1].at_s > running_s, READY_S, [new])
    trial.watch(trial.plan.after_s + (running_s - steady_s) / 2, [new])
    end_s = time.time()
    sent = trial.sent(sender)
    trial.drain([new], sent, reset_s)
    trial.require_right(sent, once=False)
    gap = trial.worst_gap(begin_s, end_s)
    print(
        f"{trial.case.name}, {trial.system}: s to stop {stopped_s - begin_s:.2f}, reset "
        f"{reset_s - stopped_s:.2f}, start {running_s - reset_s:.2f}",
        flush=True,
    )
    found = _gap(trial, _steady(trial, steady_s, begin_s), gap, begin_s)
    return {**found, "up_to_date": (trial.behind_s(begin_s, end_s), "s")}
