"""Looks at an instance for who watches it (`everflow.observe`), and says how many there should be.

A look reads what is in memory, and the sizes of the stores' files. What only the brokers know is
asked now and then on other threads: the number of members, and, while somebody looks, what
`broker_facts` has.
"""

from __future__ import annotations

import logging
import math
import os
import shutil
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from everflow import metrics as names
from everflow.clock import Clock, SystemClock
from everflow.config import StreamsConfig
from everflow.errors import ConfigError, EverflowError
from everflow.location import place, short
from everflow.metrics import Metrics
from everflow.moves import moves
from everflow.observe.desired_instances import DesiredInstances, Load, ScalingRules
from everflow.observe.observation import (
    DiskSpace,
    Observation,
    ObservedHost,
    ObservedStore,
    ObservedTask,
    ObservedThread,
)
from everflow.observe.page.history import EventBook, Facts, LookHistory
from everflow.observe.status import status_of
from everflow.observe.task_rates import with_rates
from everflow.records import TaskId, TopicPartition
from everflow.runtime.instance import Instance
from everflow.runtime.observed.broker_facts import BrokerFacts, BrokerPorts
from everflow.runtime.task_status import TaskStatus, trouble
from everflow.runtime.tasks.blueprint import Blueprint
from everflow.runtime.tasks.task import TaskStore
from everflow.runtime.wiring import client_id
from everflow.threads import on_thread
from everflow.topology.describe_physical import roads
from everflow.topology.drawing import as_svg
from everflow.topology.plan import plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut

if TYPE_CHECKING:
    from everflow.observe.http_server import HttpServer
    from everflow.observe.page.letters import DeadLetterService
    from everflow.observe.page.peers import Peers


# --- busy shares ----------------------------------------------------------------------------------
# How busy stream threads were in the last half minute, the batches that run included. Pure.

BUSY_MS = 30_000


@dataclass
class BusyShares:
    """Owned by one thread; whoever else reads `of` may get the share before."""

    _samples: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def note(
        self, now_ms: float, done_s: Mapping[int, float], since_ms: Mapping[int, float | None]
    ) -> None:
        """Look at the threads, by number. ``done_s``: seconds in batches that have ended;
        ``since_ms``: when the one that runs began (monotonic), None where none runs. A batch of a
        minute is told by its end only: until then its thread would look idle."""
        for thread in done_s.keys() | since_ms.keys():
            since = since_ms.get(thread)
            running_s = 0.0 if since is None else max(0.0, now_ms - since) / 1000
            seconds = done_s.get(thread, 0.0) + running_s
            samples = self._samples.setdefault(thread, [])
            if samples:
                # One that ends right now may be in both: no thread is busy for longer than it was.
                last_ms, last = samples[-1]
                seconds = min(max(seconds, last), last + (now_ms - last_ms) / 1000)
            keep(samples, now_ms, seconds)

    def of(self, thread: int) -> float:
        """Share of the time since the oldest look that it was in batches (0 to 1)."""
        samples = self._samples.get(thread, [])
        if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
            return 0.0
        (began_ms, before), (ended_ms, after) = samples[0], samples[-1]
        return min(1.0, (after - before) * 1000 / (ended_ms - began_ms))


def keep(samples: list[tuple[float, float]], now_ms: float, value: float) -> None:
    """One more; of the older ones those of the last half minute, and the one before."""
    samples.append((now_ms, value))
    while len(samples) > 2 and samples[1][0] <= now_ms - BUSY_MS:
        samples.pop(0)


log = logging.getLogger("everflow")

LOOK_S = 5.0
"""How often the load is looked at."""
ASK_MEMBERS_S = 15.0
FRESH_MS = 250.0
"""A look within this time is as good as another: many may watch one instance."""

STATES = (
    "CREATED",
    "REBALANCING",
    "RUNNING",
    "PENDING_SHUTDOWN",
    "NOT_RUNNING",
    "PENDING_ERROR",
    "ERROR",
)
"""Their numbers are Kafka Streams' (KIP-1091)."""
RECENT = (
    names.RECORD_LATENCY,
    names.RECORD_LATENESS,
    names.BATCH_LATENCY,
    names.COMMIT_LATENCY,
)


class Observed(Protocol):
    """The part of `KafkaStreams` that is looked at."""

    @property
    def state(self) -> object: ...
    @property
    def error(self) -> EverflowError | None: ...
    def all_tasks(self) -> dict[TaskId, TaskStatus]: ...
    def metrics(self) -> dict[str, float | str]: ...


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What does not change while an instance runs. ``folder``: ``state.dir``; ``tasks``: active
    ones of the application; ``members`` asks how many are in the group; ``topology``,
    ``program``, ``started_ms``: see `Observation`."""

    application_id: str
    client_id: str
    version: str
    roads: Mapping[str, int]
    folder: Path | None = None
    tasks: int = 0
    members: Callable[[], int] = lambda: 0
    topology: str = ""
    program: str = ""
    started_ms: int = 0


@dataclass(kw_only=True)
class Observer:
    """``streams`` and ``instance`` may be looked at from any thread; so may this."""

    streams: Observed
    instance: Callable[[], Instance | None]
    raw: Metrics
    clock: Clock
    subject: Subject
    members: int | None = None
    address: str | None = None
    """Where it is served."""
    rules: ScalingRules = field(default_factory=ScalingRules)
    _busy: BusyShares = field(default_factory=BusyShares)
    _processed: list[tuple[float, float]] = field(default_factory=list)
    _seen: tuple[float, Observation] | None = None
    _state: tuple[str, float] = ("", 0.0)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._desired = DesiredInstances(rules=self.rules)
        self._stop = threading.Event()
        self._history, self._said = LookHistory(), EventBook()
        self._next_members_ms = 0.0
        self._brokers: BrokerFacts | None = None

    def know(
        self,
        blueprint: Blueprint,
        topology: str,
        members: Callable[[], int] | None = None,
        brokers: BrokerPorts | None = None,
    ) -> None:
        """The cluster was looked at, again where ``members`` is None. ``topology``: see
        `Observation`; ``brokers`` None: nothing is written in transactions."""
        self.subject = replace(
            self.subject,
            tasks=tasks_of(blueprint),
            topology=topology,
            members=members or self.subject.members,
        )
        if brokers is not None:
            facts = self._brokers = BrokerFacts(
                ports=brokers,
                inputs=lambda: _inputs(self.instance()),
                ids=lambda: _writers(self.instance()),
                clock=self.clock,
            )
            on_thread("everflow-broker-facts", lambda: facts.run(self._stop))

    # --- a look ----------------------------------------------------------------------------------

    def look(self) -> Observation:
        """The instance now, or a quarter of a second ago."""
        with self._lock:
            now_ms = self.clock.monotonic_ms()
            if self._seen is None or now_ms - self._seen[0] >= FRESH_MS:
                seen = self._look(now_ms)
                facts = self._history.pair(seen, now_ms, self.clock.now_ms())
                self._seen = now_ms, replace(seen, tasks=with_rates(facts))
            return self._seen[1]

    def watch(self) -> Observation:
        """A look for somebody who also wants to know what has to be asked of the brokers: that is
        asked from now on, for a minute."""
        if self._brokers is not None:
            self._brokers.watched()
        return self.look()

    def status(self) -> dict[str, Any]:
        """As `/status` says it."""
        return status_of(self.watch())

    def facts(self) -> Facts:
        """For the page: a look, and those before."""
        seen = self.watch()
        with self._lock:
            now_ms = self.clock.monotonic_ms()
            found = self._history.facts(seen, now_ms, self.clock.now_ms(), self._said.events())
        return replace(found, drain_goal_s=self.rules.drain_s)

    def _look(self, now_ms: float) -> Observation:
        instance, subject = self.instance(), self.subject
        state = str(getattr(self.streams.state, "name", self.streams.state))
        if state != self._state[0]:
            self._state = state, now_ms
        error = self.streams.error
        statuses = self.streams.all_tasks()
        values, brokers = self.streams.metrics(), self._brokers
        return Observation(
            application_id=subject.application_id,
            client_id=subject.client_id,
            version=subject.version,
            state=state,
            topology=subject.topology,
            program=subject.program,
            started_ms=subject.started_ms,
            state_number=STATES.index(state),
            state_s=(now_ms - self._state[1]) / 1000,
            error="" if error is None else f"[{error.code}] {error}",
            threads=self._threads(instance),
            tasks=_tasks(statuses, instance),
            counters={name: v for name, v in values.items() if isinstance(v, (int, float))},
            series=self.raw.series(),
            recent={name: self.raw.recent(name, now_ms) for name in RECENT},
            samples=self.raw.notes(names.LEFT_OUT),
            misplaced_keys={t: line for (t,), line in self.raw.notes(names.KEYS_MISPLACED).items()},
            lags=_lags(instance),
            roads=subject.roads,
            members=self.members,
            application_tasks=subject.tasks,
            desired_instances=self._desired.told,
            hosts=_hosts(instance),
            silent_s=0.0 if instance is None else instance.ends.failing_ms() / 1000,
            writers=() if brokers is None else brokers.writers(),
            held_back={} if brokers is None else brokers.held_back(),
            told_s=None if brokers is None else brokers.told_s(now_ms),
            disk=None if subject.folder is None else _space(subject.folder),
        )

    def _threads(self, instance: Instance | None) -> Sequence[ObservedThread]:
        return [
            ObservedThread(
                number=thread.number,
                alive=not thread.join(0),
                tasks=len(thread.tasks),
                busy=self._busy.of(thread.number),
                trouble="" if thread.trouble is None else trouble(thread.trouble),
                warm=thread.warm.is_set(),
            )
            for thread in ([] if instance is None else list(instance.threads))
        ]

    # --- how many there should be ----------------------------------------------------------------

    def start(self) -> None:
        """Look at the load now and then, on a thread of its own, and hear what is said, until
        `stop`."""
        logging.getLogger("everflow").addHandler(self._said)
        on_thread("everflow-observer", self._run)

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self.sample()
            except Exception:  # it is only watched: what is watched goes on
                log.debug("A look at the load failed", exc_info=True)

    def stop(self) -> None:
        """Look and hear no more; returns at once."""
        logging.getLogger("everflow").removeHandler(self._said)
        self._stop.set()

    def sample(self) -> None:
        """Note how busy the instance is, and what follows."""
        now_ms = self.clock.monotonic_ms()
        instance = self.instance()
        threads = [] if instance is None else list(instance.threads)
        # Before what has ended: a batch that ends in between is in one of them at least.
        since = {thread.number: thread.batch_since_ms for thread in threads}
        ended = self.raw.series().get(names.BUSY_SECONDS, {})
        self._busy.note(now_ms, {int(one): seconds for (one,), seconds in ended.items()}, since)
        seen = self.look()
        with self._lock:
            self._history.add(seen, now_ms, self.clock.now_ms())
        processed = float(self.raw.snapshot().get(names.RECORDS_CONSUMED, 0.0))
        keep(self._processed, now_ms, processed)
        if now_ms >= self._next_members_ms:
            self._next_members_ms = now_ms + ASK_MEMBERS_S * 1000
            self._ask_members()
        if self.members:
            self._desired.look(self._load(self.members), now_ms)

    def _ask_members(self) -> None:
        try:
            self.members = self.subject.members() or self.members
        except EverflowError as error:  # the brokers are away: the instance says so itself
            log.debug("The group's members are not known: %s", error)

    def _load(self, members: int) -> Load:
        seen = self.look()
        busy = [thread.busy for thread in seen.threads]
        (began_ms, before), (ended_ms, after) = self._processed[0], self._processed[-1]
        passed_s = (ended_ms - began_ms) / 1000
        lag = seen.counters.get(names.LAG, math.nan)
        return Load(
            busy=sum(busy) / len(busy) if busy else 0.0,
            lag=None if math.isnan(lag) else lag,
            rate=(after - before) / passed_s if passed_s > 0 else 0.0,
            restoring=bool(seen.restoring),
            members=members,
            tasks=seen.application_tasks,
        )


def _tasks(
    statuses: Mapping[TaskId, TaskStatus], instance: Instance | None
) -> Sequence[ObservedTask]:
    threads: dict[TaskId, int] = {}
    stores: dict[TaskId, Sequence[TaskStore]] = {}
    if instance is not None:
        stores.update(instance.updater.stores())
        for thread in list(instance.threads):
            for task in thread.held():
                threads[task.id], stores[task.id] = thread.number, task.stores
    return [
        ObservedTask(
            task=str(task),
            role=status.role.value,
            state=status.state.name,
            lag=status.lag,
            rate=status.rate,
            remaining_s=status.remaining_s,
            copied=status.copied,
            thread=threads.get(task),
            trouble="" if status.trouble is None else trouble(status.trouble),
            stores=[
                ObservedStore(name=one.name, bytes=_size(one.path)) for one in stores.get(task, ())
            ],
        )
        for task, status in statuses.items()
    ]


def _hosts(instance: Instance | None) -> Sequence[ObservedHost]:
    return [
        ObservedHost(
            host=host,
            active=[str(task) for task in sorted(tasks.active)],
            standby=[str(task) for task in sorted(tasks.standby)],
        )
        for host, tasks in sorted(({} if instance is None else instance.hosts.known()).items())
    ]


def _size(folder: Path) -> int:
    """Disk space of a store's files; one that is just made or removed has none."""
    total = 0
    try:
        with os.scandir(folder) as files:
            for file in files:
                total += file.stat().st_blocks * 512
    except OSError:
        return total
    return total


def _space(folder: Path) -> DiskSpace | None:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:  # it is made by the start
        return None
    return DiskSpace(usage.total, usage.free)


def _lags(instance: Instance | None) -> Mapping[tuple[str, int], int]:
    if instance is None:
        return {}
    ends = instance.ends.ends()
    return {
        (tp.topic, tp.partition): max(0, ends[tp] - offset)
        for tp, offset in instance.running_positions().items()
        if tp in ends
    }


def _inputs(instance: Instance | None) -> Sequence[TopicPartition]:
    """Of the running tasks."""
    return [] if instance is None else sorted(instance.running_positions())


def _writers(instance: Instance | None) -> Mapping[str, int]:
    """Transactional id -> stream thread."""
    threads = [] if instance is None else list(instance.threads)
    return {thread.settings.transactional_id: thread.number for thread in threads}


def subject_of(
    config: StreamsConfig, topology: Topology, process_id: str, started_ms: int = 0
) -> Subject:
    """As far as it is known before the cluster was looked at."""
    planned = plan(topology, cut(topology).index_of, config.application_id)
    counted = Counter(road.road for road in roads(planned))
    return Subject(
        application_id=config.application_id,
        client_id=client_id(config, process_id),
        version=version("everflow"),
        roads=dict(sorted(counted.items())),
        folder=Path(config.state_dir).expanduser(),
        program=_line(next((node.where for node in topology.nodes if node.where), "")),
        started_ms=started_ms,
    )


def _line(where: str) -> str:
    """Of the program, without anybody's folders: it is shown to whoever reaches http.listen."""
    file, _, line = place(where).rpartition(":")
    return f"{short(file, sys.path)}:{line}" if file else where


def rules_of(config: StreamsConfig) -> ScalingRules:
    """The ``scale.`` keys."""
    return ScalingRules(
        target=config.scale_target_percent / 100,
        drain_s=config.scale_drain_ms / 1000,
        up_after_s=config.scale_up_delay_ms / 1000,
        down_after_s=config.scale_down_delay_ms / 1000,
    )


def tasks_of(blueprint: Blueprint) -> int:
    """Active tasks of the whole application."""
    return sum(
        max(blueprint.partitions[topic] for topic in topics) for topics in blueprint.inputs.values()
    )


@contextmanager
def watched(
    observer: Observer,
    topology: Topology,
    address: str,
    drain: Callable[[], None],
    tokens: Sequence[str] = (),
    desk: DeadLetterService | None = None,
    peers: Peers | None = None,
    names: Sequence[str] = (),
) -> Iterator[HttpServer]:
    """The instance over HTTP, until the end of the block. ``drain`` returns at once; ``tokens``:
    one has to come with each request for the page; ``desk``: who replays dead letters;
    ``peers``: who asks the other instances; ``names``: by which requests may call this host,
    besides its own. ConfigError where it cannot listen."""
    from everflow.observe.host_names import OwnNames
    from everflow.observe.http_server import HttpServer, application  # a third of a second
    from everflow.observe.page.routes import Page

    page = Page(
        facts=observer.facts,
        drawing=as_svg(topology),
        tokens=tokens,
        desk=desk,
        peers=peers,
    )
    app = application(observer.look, topology.describe(), drain, page, observer.watch)
    server = HttpServer(
        address,
        app,
        ending=page.readers.close,
        names=OwnNames(address, names),
        free=page.needs_token,
    )
    observer.address = server.address
    moves.info("Watched at http://%s (/page, /metrics, /live, /ready, /status)", server.address)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """It looks and hears until the end of the block."""
    observer.start()
    try:
        yield
    finally:
        observer.stop()


@contextmanager
def exported(observer: Observer, config: StreamsConfig) -> Iterator[None]:
    """Its figures are sent to ``otel.exporter.otlp.metrics.endpoint`` until the end of the block.
    ConfigError where the packages for it are missing."""
    from everflow.observe.otlp import OtlpExport, OtlpSettings

    settings = OtlpSettings(
        endpoint=config.otel_exporter_otlp_metrics_endpoint,
        interval_ms=config.otel_metric_export_interval,
    )
    about = observer.subject
    sender = OtlpExport(
        settings, observer.watch, about.application_id, about.client_id, about.version
    )
    moves.info("Figures are sent to %s", settings.endpoint)
    try:
        yield
    finally:
        sender.close()


# --- other instances ------------------------------------------------------------------------------
# How this instance asks the others how they do: with its token and their scheme (note 060).


def peers_of(
    config: StreamsConfig,
    tokens: Sequence[str],
    own: Callable[[], str],
    clock: Clock | None = None,
) -> Peers:
    """``tokens``: of ``query.token.file``, of which all instances know the first; ``own``: this
    instance's address. ConfigError for an authority's file that cannot be used."""
    from everflow.observe.page.peers import (
        Peers,
        StatusClient,
    )  # as the server: a third of a second

    client = StatusClient(
        application_id=config.application_id,
        token=tokens[0] if tokens else "",
        tls=_trust(config),
    )
    return Peers(client, own, clock or SystemClock())


def _trust(config: StreamsConfig) -> ssl.SSLContext | None:
    """None: the instances' query services speak http, as this one's does."""
    authority = config.query_ssl_ca_location
    if not config.query_ssl_certificate_location:
        return None
    try:
        return ssl.create_default_context(cafile=authority or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"query.ssl.ca.location = {authority!r} cannot be used ({error}): it names the "
            f"authority (PEM) that has signed the instances' certificates."
        ) from error
