"""Three instances with many connectors, through a rolling bounce, a lost instance that comes back,
and one connector more; everflow, and Kafka Connect beside it.

Each task writes four records a second, which say where it runs. What a task lost is what a reader
of the output sees: the time without a record of it, where that is longer than two seconds. An event
is over when every task writes again and every instance has its share.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient

from bench.connect.groups import (
    MODES_OF,
    Everflow,
    GroupPlan,
    KafkaConnect,
    Processes,
    create_output,
)
from bench.connect.outputs import OutputReader, cost_of, per_second
from bench.connect.simulated import ADDED, BENCH, BOUNCE, EVENTS
from bench.java_program import java_command
from bench.results import Measurement
from bench.systems import EVERFLOW, Job, SystemFailedError
from bench.topics import delete_topics, warm_broker

KAFKA_CONNECT = "kafka-connect"
SYSTEMS = (KAFKA_CONNECT, EVERFLOW)
START_TIMEOUT_S = 400.0
CALM_S = 5.0
"""A group is at rest when it has been so for this long."""
POLL_S = 0.25
AT_LEAST_ONCE = "at_least_once"


@dataclass(frozen=True)
class ConnectPlan:
    """What to run: of each system its modes, or those of them that are given."""

    group: GroupPlan = field(default_factory=GroupPlan)
    systems: tuple[str, ...] = SYSTEMS
    modes: tuple[str, ...] = ()
    events: tuple[str, ...] = EVENTS


@dataclass(frozen=True)
class Course:
    """The records in each second of an event, for the plot."""

    system: str
    mode: str
    event: str
    seconds: Sequence[tuple[float, int]]


def measure(
    plan: ConnectPlan,
    bootstrap_servers: str,
    folder: Path,
    seen: Callable[[Course], None] = lambda _: None,
) -> Iterator[Measurement]:
    """The figures of each event as it ends; ``seen`` gets its course. SystemFailedError at the end,
    where a mode has failed: the others are measured all the same."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    warm_broker(admin, bootstrap_servers)
    run = uuid.uuid4().hex[:8]
    failed = []
    for system in plan.systems:
        created: list[str] = []
        for number, mode in enumerate(MODES_OF[system]):
            if plan.modes and mode not in plan.modes:
                continue
            # Connect's connectors stay in its topics; everflow's application is a new one.
            name = f"bench-connect-{run}-{system}" + f"-{number}" * (system == EVERFLOW)
            start = _Start(system, mode, name, created)
            try:
                yield from _mode(plan, admin, bootstrap_servers, folder, start, seen)
            except (SystemFailedError, OSError) as error:
                print(f"{system}, {mode} failed: {error}", flush=True)
                failed.append(f"{system}, {mode}: {error}")
        delete_topics(admin, f"bench-connect-{run}-{system}")
    if failed:
        raise SystemFailedError("\n".join(failed))


@dataclass(frozen=True)
class _Start:
    """``name`` of the application; ``created``: those so far."""

    system: str
    mode: str
    name: str
    created: list[str]


def _mode(
    plan: ConnectPlan,
    admin: AdminClient,
    bootstrap_servers: str,
    logs: Path,
    start: _Start,
    seen: Callable[[Course], None],
) -> Iterator[Measurement]:
    system, mode, name, created = start.system, start.mode, start.name, start.created
    folder = logs / f"{name}-{mode.replace(', ', '-')}"
    folder.mkdir()
    job = Job(
        bootstrap_servers=bootstrap_servers,
        application_id=name,
        guarantee=AT_LEAST_ONCE,
        threads=plan.group.threads,
        input_topic=f"{name}-in",
        output_topic=f"{name}-out",
        state_dir=folder,
        program="bench.connect.program:builder",
    )
    if name not in created:
        create_output(admin, job.output_topic)
    with ExitStack() as stack:
        group: Everflow | KafkaConnect
        if system == EVERFLOW:
            group = Everflow(plan.group, mode, job, admin, folder)
            stack.enter_context(group.ticker)
        else:
            group = KafkaConnect(plan.group, mode, _worker_command(logs), job, folder)
        run = _Run(plan.group, Processes(group, folder, stack), stack, system, mode)
        run.output = stack.enter_context(OutputReader(bootstrap_servers, job.output_topic))
        for number in range(plan.group.instances):
            run.processes.start(f"i{number + 1}")
        if isinstance(group, KafkaConnect) and name not in created:
            group.create(plan.group.connectors)
        elif isinstance(group, KafkaConnect):
            run.tasks = plan.group.tasks_each * group.connectors()  # each mode has added one
        created.append(name)
        run.await_rest("the start", START_TIMEOUT_S)
        for event in plan.events:
            yield from run.event(event, seen)


def _worker_command(logs: Path) -> list[str]:
    from everflow.jvm import resolve_jars

    sources = Path(__file__).with_name("java")
    classes = logs / "connect-classes"
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    jars = resolve_jars("connect")
    if classes.exists():
        return _command_of(classes, jars, main)
    java_command(jars, classes, sources, main)
    shutil.copytree(sources / "META-INF", classes / "META-INF")
    return _command_of(classes, jars, main)


def _command_of(classes: Path, jars: Sequence[Path], main: str) -> list[str]:
    from everflow.jvm import find_java

    path = os.pathsep.join([str(classes), *map(str, jars)])
    return [str(find_java()), "-cp", path, main]


@dataclass
class _Run:
    """One start of a group. Used by one thread."""

    plan: GroupPlan
    processes: Processes
    stack: ExitStack
    system: str
    mode: str
    output: OutputReader = field(init=False)
    tasks: int = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = self.plan.tasks

    def event(self, event: str, seen: Callable[[Course], None]) -> Iterator[Measurement]:
        """Carry it out, wait until the group is at rest, and say what it cost."""
        calm_s = time.time()
        self._wait(self.plan.settle_s)
        start_s, generations = time.time(), self.processes.group.generations()
        before = sum(
            len([at for at in task.arrivals_s if calm_s <= at < start_s])
            for task in self.output.tasks.values()
        ) / (start_s - calm_s)
        hit, settled = self._happen(event)
        end_s = time.time()
        self._wait(1.0)
        tasks = list(self.output.tasks.values())
        cost = cost_of(tasks, hit, start_s, end_s, before)
        arrivals = (at for task in tasks for at in task.arrivals_s)
        seen(Course(self.system, self.mode, event, per_second(arrivals, start_s - 5, end_s)))
        case = (
            f"{self.plan.instances} instances, {self.plan.connectors} x {self.plan.tasks_each} "
            f"tasks, {event}, {self.mode}"
        )
        note = "" if settled else "not at rest at the cut-off: a lower bound"
        figures = {
            "task_seconds_lost": ("s", cost.lost_s),
            "rebalances": (
                "rebalances",
                float(self.processes.group.generations() - generations),
            ),
            "tasks_moved": ("tasks", float(cost.moved)),
            "longest_stop_staying": ("s", cost.stayed_s),
            "throughput": ("records/s", cost.rate),
            "throughput_before": ("records/s", before),
            "throughput_worst_second": ("of before", cost.worst_share),
            "duration": ("s", end_s - start_s),
        }
        print(f"{self.system}, {self.mode}, {event}: {cost}, {end_s - start_s:.1f} s", flush=True)
        for metric, (unit, value) in figures.items():
            yield Measurement(BENCH, case, self.system, AT_LEAST_ONCE, metric, unit, value, note)

    def _happen(self, event: str) -> tuple[list[str], bool]:
        names = sorted(self.processes.running)
        if event == ADDED:
            self.processes.group.add_connector()
            self.tasks += self.plan.tasks_each
            return [], self._rests()
        hit = names if event == BOUNCE else names[-1:]
        settled = True
        for name in hit:
            if event == BOUNCE:
                self.processes.stop(name)
            else:
                self.processes.kill(name)
                self._wait(self.plan.away_s)
            self.processes.start(name)
            settled = self._rests() and settled
        return hit, settled

    def await_rest(self, what: str, timeout_s: float) -> None:
        """SystemFailedError if it does not come to rest."""
        if not self._rests(timeout_s):
            raise self._failed(what)

    def _failed(self, what: str) -> SystemFailedError:
        running = self.output.running(time.time())
        process = next(iter(self.processes.running.values()))
        return process.failure(
            f"{what}: {len(running)} of {self.tasks} tasks run; {_shares(running)}"
        )

    def _rests(self, timeout_s: float | None = None) -> bool:
        """Until every task has been running for a while, and each instance has its share; False if
        the time is over before."""
        deadline = time.monotonic() + (timeout_s or self.plan.cut_off_s)
        since: float | None = None
        while since is None or time.monotonic() - since < CALM_S:
            self.processes.check_alive()
            if time.monotonic() > deadline:
                return False
            running = self.output.running(time.time())
            shares = _shares(running)
            least = 0.8 * self.tasks / len(self.processes.running)
            rests = len(running) == self.tasks and all(
                shares.get(name, 0) >= least for name in self.processes.running
            )
            since = (since or time.monotonic()) if rests else None
            time.sleep(POLL_S)
        return True

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.processes.check_alive()
            time.sleep(min(POLL_S, max(0.0, end - time.monotonic())))


def _shares(running: Mapping[str, str]) -> dict[str, int]:
    shares: dict[str, int] = {}
    for owner in running.values():
        shares[owner] = shares.get(owner, 0) + 1
    return shares
