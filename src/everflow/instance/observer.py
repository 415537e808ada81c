"""Observes an instance for dashboards and metrics, and computes the desired number of instances."""

from __future__ import annotations

import logging
import math
import os
import shutil
import ssl
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from everflow import metrics as names
from everflow.assignment.user_data import digest
from everflow.clock import Clock, SystemClock, on_thread
from everflow.config import StreamsConfig
from everflow.errors import ConfigError, EverflowError, FatalError
from everflow.instance.assembly import client_id
from everflow.instance.client_state import ClientState
from everflow.instance.describe import TaskStatus, trouble
from everflow.instance.instance import Instance
from everflow.instance.life import InstanceLife
from everflow.instance.tasks.blueprint import Blueprint
from everflow.instance.tasks.task import TaskStore
from everflow.kafka.admin import ClusterAdmin, Isolation, TransactionState
from everflow.kafka.dead_letters import (
    Cause,
    LetterPlace,
    LetterTally,
    OldLetters,
    Replayer,
    portions,
    sample_of,
    stored,
    tallied,
)
from everflow.logs import counted, rebalance_log
from everflow.metrics import Labels, Metrics
from everflow.observe.desired_instances import DesiredInstances, Load, ScalingRules
from everflow.observe.observation import (
    DiskSpace,
    Observation,
    ObservedConnector,
    ObservedHost,
    ObservedStore,
    ObservedTask,
    ObservedThread,
    ObservedTime,
    ObservedWriter,
    StableLag,
    status_of,
)
from everflow.observe.page.history import EventBook, Facts, SnapshotHistory
from everflow.observe.page.routes import (
    CauseLetters,
    LetterCause,
    LettersFound,
    LettersReplayed,
    Page,
)
from everflow.observe.page.view import with_rates
from everflow.rebalances import Rebalance
from everflow.records import Offsets, TaskId, TopicPartition
from everflow.topology.connectors import Connector, connectors
from everflow.topology.describe import drawing_json, execution_paths
from everflow.topology.plan import plan
from everflow.topology.program import Topology
from everflow.topology.subtopologies import cut
from everflow.user_program import place, short

if TYPE_CHECKING:
    from everflow.observe.http_server import HttpServer
    from everflow.observe.otlp import OtlpExport
    from everflow.observe.page.other_instances import OtherInstances

log = logging.getLogger("everflow")


# --- facts that only the brokers know (note 054) --------------------------------------------------

ASK_S = 5.0
WATCHED_MS = 70_000.0
"""The brokers are asked for so long after a request: Prometheus' interval is a minute."""


class Standing(NamedTuple):
    """A partition's last stable offset, the records behind it, and since when it stands; ms."""

    stable: int
    records: int
    since_ms: float


def standing(
    before: Mapping[TopicPartition, Standing], written: Offsets, stable: Offsets, now_ms: float
) -> dict[TopicPartition, Standing]:
    """Of partitions with both ends. ``written`` was read first: later records count as stable."""
    found = {}
    for tp in written.keys() & stable.keys():
        records = max(0, written[tp] - stable[tp])
        old = before.get(tp)
        stands = old is not None and records and old.records and old.stable == stable[tp]
        since_ms = old.since_ms if old is not None and stands else now_ms
        found[tp] = Standing(stable[tp], records, since_ms)
    return found


@dataclass(kw_only=True)
class BrokerFacts:
    """``ids``: transactional id -> stream thread. `run` is a thread of its own; else any thread."""

    known_ends: Callable[[Collection[TopicPartition], Isolation], Offsets]
    transactions: Callable[[Collection[str]], Mapping[str, TransactionState]]
    inputs: Callable[[], Collection[TopicPartition]]
    ids: Callable[[], Mapping[str, int]]
    clock: Clock
    _standing: Mapping[TopicPartition, Standing] = field(default_factory=dict)
    _states: Mapping[str, TransactionState] = field(default_factory=dict)
    _asked_ms: float = 0.0
    """Wall clock of the last answer about states, as for a transaction's begin."""
    _answered_ms: float | None = None
    _watched_ms: float = -math.inf

    def watched(self) -> None:
        self._watched_ms = self.clock.monotonic_ms()

    def age_s(self, now_ms: float) -> float | None:
        return None if self._answered_ms is None else max(0.0, now_ms - self._answered_ms) / 1000

    def stable_lags(self) -> dict[tuple[str, int], StableLag]:
        until_ms = self._answered_ms or 0.0
        return {
            (tp.topic, tp.partition): StableLag(
                one.records, one.stable, (until_ms - one.since_ms) / 1000 if one.records else 0.0
            )
            for tp, one in self._standing.items()
        }

    def writers(self) -> list[ObservedWriter]:
        """In the order of the threads. A transaction's age is as of the brokers' answer."""
        found = []
        for name, thread in sorted(self.ids().items(), key=lambda item: item[1]):
            writer = ObservedWriter(thread=thread, transactional_id=name)
            if (known := self._states.get(name)) is not None:
                open_ms = 0 if known.since_ms is None else self._asked_ms - known.since_ms
                writer = replace(writer, state=known.state, open_s=max(0, open_ms) / 1000)
            found.append(writer)
        return found

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(ASK_S):
            if self.clock.monotonic_ms() - self._watched_ms > WATCHED_MS:
                continue
            try:
                self.ask()
            except Exception:  # the brokers are away, or the instance ends
                log.debug("The brokers were not asked for transactions", exc_info=True)

    def ask(self) -> None:
        inputs, ids = self.inputs(), self.ids()
        written = self.known_ends(inputs, "read_uncommitted") if inputs else {}
        stable = self.known_ends(list(written), "read_committed") if written else {}
        now_ms = self.clock.monotonic_ms()
        self._standing = standing(self._standing, written, stable, now_ms)
        # Before the states, which brokers older than 3.0 do not report.
        self._answered_ms = now_ms
        states = self.transactions(list(ids)) if ids else {}
        self._asked_ms, self._states = self.clock.now_ms(), states


BUSY_MS = 30_000


@dataclass
class BusyShares:
    """How busy stream threads were in the last half minute. One thread writes, others may read."""

    _samples: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def note(
        self, now_ms: float, done_s: Mapping[int, float], since_ms: Mapping[int, float | None]
    ) -> None:
        """``done_s``: seconds in ended batches; ``since_ms``: begin of the running (monotonic)."""
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
        return min(1.0, per_second(self._samples.get(thread, [])))


def per_second(samples: Sequence[tuple[float, float]]) -> float:
    if len(samples) < 2 or samples[-1][0] <= samples[0][0]:
        return 0.0
    (began_ms, before), (ended_ms, after) = samples[0], samples[-1]
    return (after - before) * 1000 / (ended_ms - began_ms)


def keep(samples: list[tuple[float, float]], now_ms: float, value: float) -> None:
    samples.append((now_ms, value))
    while len(samples) > 2 and samples[1][0] <= now_ms - BUSY_MS:
        samples.pop(0)


SAMPLE_S = 5.0
ASK_MEMBERS_S = 15.0
FRESH_MS = 250.0
"""An observation is shared for so long: many may watch one instance."""

STATES = [state.name for state in ClientState]
"""Their numbers are Kafka Streams' (KIP-1091)."""
RECENT = (names.RECORD_LATENCY, names.RECORD_LATENESS, names.BATCH_LATENCY, names.COMMIT_LATENCY)


class Observed(Protocol):
    config: StreamsConfig

    @property
    def state(self) -> object: ...
    @property
    def error(self) -> EverflowError | None: ...
    def all_tasks(self) -> dict[TaskId, TaskStatus]: ...
    def metrics(self) -> dict[str, float | str]: ...


@dataclass(kw_only=True)
class Observer:
    """``streams`` and ``instance`` may be read from any thread; so may this."""

    streams: Observed
    instance: Callable[[], Instance | None]
    raw: Metrics
    clock: Clock
    subject: Observation
    folder: Path | None = None
    connectors: Mapping[str, Connector] = field(default_factory=dict)
    count_members: Callable[[], int] = lambda: 0
    members: int | None = None
    address: str | None = None
    rules: ScalingRules = field(default_factory=ScalingRules)
    _busy: BusyShares = field(default_factory=BusyShares)
    _processed: list[tuple[float, float]] = field(default_factory=list)
    _seen: tuple[float, Observation] | None = None
    _state: tuple[str, float] = ("", 0.0)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._desired = DesiredInstances(rules=self.rules)
        self._stop = threading.Event()
        self._history, self._said = SnapshotHistory(), EventBook()
        self._next_members_ms = 0.0
        self._brokers: BrokerFacts | None = None

    def know(
        self, blueprint: Blueprint, admin: ClusterAdmin | None = None, exactly_once: bool = False
    ) -> None:
        """Called once the cluster is checked; without ``admin`` when the plan has grown."""
        tasks, made = tasks_of(blueprint), digest(blueprint.fingerprint)
        self.subject = replace(self.subject, application_tasks=tasks, topology=made)
        if admin is not None:
            group = blueprint.application_id
            self.count_members = lambda: len(admin.client_ids(group))
        if admin is not None and exactly_once:
            facts = self._brokers = BrokerFacts(
                known_ends=lambda logs, isolation: admin.list_offsets(
                    logs, "latest", isolation, whole=False
                ),
                transactions=admin.transactions,
                inputs=lambda: _inputs(self.instance()),
                ids=lambda: _writers(self.instance()),
                clock=self.clock,
            )
            on_thread("everflow-broker-facts", lambda: facts.run(self._stop))

    def observe(self) -> Observation:
        with self._lock:
            now_ms = self.clock.monotonic_ms()
            if self._seen is None or now_ms - self._seen[0] >= FRESH_MS:
                seen = self._observe(now_ms)
                facts = self._history.pair(seen, now_ms, self.clock.now_ms())
                self._seen = now_ms, replace(seen, tasks=with_rates(facts))
            return self._seen[1]

    def watch(self) -> Observation:
        """An observation for a viewer who needs the brokers' facts, too: read for a minute."""
        if self._brokers is not None:
            self._brokers.watched()
        return self.observe()

    def status(self) -> dict[str, Any]:
        return status_of(self.watch())

    def facts(self) -> Facts:
        seen = self.watch()
        with self._lock:
            now_ms = self.clock.monotonic_ms()
            found = self._history.facts(
                seen,
                now_ms,
                self.clock.now_ms(),
                self._said.events(),
            )
        return replace(found, drain_goal_s=self.rules.drain_s, rebalances=self.rebalances())

    def rebalances(self) -> list[Rebalance]:
        """The last ones, the oldest first."""
        instance = self.instance()
        return [] if instance is None else instance.rebalances.records()

    def _observe(self, now_ms: float) -> Observation:
        instance = self.instance()
        state = str(getattr(self.streams.state, "name", self.streams.state))
        if state != self._state[0]:
            self._state = state, now_ms
        error = self.streams.error
        statuses = self.streams.all_tasks()
        values, brokers = self.streams.metrics(), self._brokers
        return replace(
            self.subject,
            state=state,
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
            times=_times(instance, self.clock.now_ms()),
            connectors=_connectors(
                self.connectors, statuses, instance, self.raw.series(), self.raw.notes
            ),
            members=self.members,
            desired_instances=self._desired.instances,
            hosts=_hosts(instance),
            silent_s=0.0 if instance is None else instance.ends.failing_ms() / 1000,
            writers=() if brokers is None else brokers.writers(),
            stable_lags={} if brokers is None else brokers.stable_lags(),
            answer_age_s=None if brokers is None else brokers.age_s(now_ms),
            disk=None if self.folder is None else _space(self.folder),
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

    def start(self) -> None:
        """Measure the load, on a thread of its own, and collect log lines, until `stop`."""
        logging.getLogger("everflow").addHandler(self._said)
        on_thread("everflow-observer", self._run)

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            try:
                self.sample()
            except Exception:  # it is only watched: what is watched goes on
                log.debug("Measuring the load failed", exc_info=True)

    def stop(self) -> None:
        logging.getLogger("everflow").removeHandler(self._said)
        self._stop.set()

    def sample(self) -> None:
        now_ms = self.clock.monotonic_ms()
        instance = self.instance()
        threads = [] if instance is None else list(instance.threads)
        # Before what has ended: a batch that ends in between is in one of them at least.
        since = {thread.number: thread.batch_since_ms for thread in threads}
        ended = self.raw.series().get(names.BUSY_SECONDS, {})
        self._busy.note(now_ms, {int(one): seconds for (one,), seconds in ended.items()}, since)
        seen = self.observe()
        with self._lock:
            self._history.add(seen, now_ms, self.clock.now_ms())
        processed = float(self.raw.snapshot().get(names.RECORDS_CONSUMED, 0.0))
        keep(self._processed, now_ms, processed)
        if now_ms >= self._next_members_ms:
            self._next_members_ms = now_ms + ASK_MEMBERS_S * 1000
            self._ask_members()
        if self.members:
            self._desired.update(self._load(self.members), now_ms)

    def _ask_members(self) -> None:
        try:
            self.members = self.count_members() or self.members
        except EverflowError as error:  # the brokers are away: the instance says so itself
            log.debug("The group's members are not known: %s", error)

    def _load(self, members: int) -> Load:
        seen = self.observe()
        busy = [thread.busy for thread in seen.threads]
        lag = seen.counters.get(names.LAG, math.nan)
        return Load(
            busy=sum(busy) / len(busy) if busy else 0.0,
            lag=None if math.isnan(lag) else lag,
            rate=per_second(self._processed),
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
            for task in thread.all_tasks():
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
            paused=status.paused,
            stores=[
                ObservedStore(name=one.name, bytes=_size(one.path)) for one in stores.get(task, ())
            ],
        )
        for task, status in statuses.items()
    ]


def _connectors(
    found: Mapping[str, Connector],
    statuses: Mapping[TaskId, TaskStatus],
    instance: Instance | None,
    series: Mapping[str, Mapping[Labels, float]],
    notes: Callable[[str], Mapping[Labels, str]],
) -> Sequence[ObservedConnector]:
    if not found:
        return ()
    tasks = defaultdict[int, dict[TaskId, str]](dict)
    for task, (state, _) in ({} if instance is None else instance.connector_tasks()).items():
        tasks[task.subtopology][task] = state
    paused = frozenset[str]() if instance is None else instance.pause.connectors
    rows, errors, failed = (
        series.get(name, {})
        for name in (names.CONNECTOR_ROWS, names.CONNECTOR_ERRORS, names.CONNECTOR_FAILED)
    )
    said = notes(names.CONNECTOR_ERRORS)
    observed = []
    for name, one in found.items():
        here = {task: st for part in one.subtopologies for task, st in tasks[part].items()}
        lags = [statuses[task].lag if task in statuses else None for task in here]
        failed_ms = failed.get((name,))
        observed.append(
            ObservedConnector(
                name=name,
                kind=one.kind,
                what=one.what,
                paused=name in paused,
                tasks={str(task): state for task, state in sorted(here.items())},
                lag=None if None in lags else sum(lag or 0 for lag in lags),
                rows=rows.get((name,), 0.0),
                errors=errors.get((name,), 0.0),
                error=said.get((name,), ""),
                failed_ms=None if failed_ms is None else int(failed_ms),
            )
        )
    return observed


def _hosts(instance: Instance | None) -> Sequence[ObservedHost]:
    def named(tasks: Iterable[TaskId]) -> list[str]:
        return [str(task) for task in sorted(tasks)]

    known = {} if instance is None else instance.hosts.known()
    return [
        ObservedHost(host=host, active=named(tasks.active), standby=named(tasks.standby))
        for host, tasks in sorted(known.items())
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
    ends, positions = instance.ends.ends(), instance.running_positions().items()
    return {(tp.topic, tp.partition): max(0, ends[tp] - at) for tp, at in positions if tp in ends}


def _times(instance: Instance | None, now_ms: int) -> Sequence[ObservedTime]:
    if instance is None or instance.group_times is None:
        return ()
    return [
        ObservedTime(
            subtopology=subtopology,
            ms=one.ms if one.ms >= 0 else None,
            lag_s=(now_ms - one.ms) / 1000 if one.ms >= 0 else None,
            held_by="" if one.input is None else str(one.input),
            behind_s=one.behind_ms / 1000,
            since_ms=one.since_ms,
        )
        for subtopology, one in sorted(instance.group_times.times.watermarks().items())
    ]


def _inputs(instance: Instance | None) -> Sequence[TopicPartition]:
    return [] if instance is None else sorted(instance.running_positions())


def _writers(instance: Instance | None) -> Mapping[str, int]:
    threads = [] if instance is None else list(instance.threads)
    return {thread.settings.transactional_id: thread.number for thread in threads}


def subject_of(
    config: StreamsConfig, topology: Topology, process_id: str, started_ms: int = 0
) -> Observation:
    """As far as it is known before the cluster was checked."""
    planned = plan(topology, cut(topology).index_of, config.application_id)
    counted = Counter(path.kind for path in execution_paths(planned))
    return Observation(
        application_id=config.application_id,
        client_id=client_id(config, process_id),
        version=version("everflow"),
        state="",
        state_number=0,
        threads=(),
        tasks=(),
        execution_paths=dict(sorted(counted.items())),
        program=_line(next((node.where for node in topology.nodes if node.where), "")),
        started_ms=started_ms,
    )


def _line(where: str) -> str:
    """The program's line, without folders of the machine: everybody may see it."""
    file, _, line = place(where).rpartition(":")
    return f"{short(file, sys.path)}:{line}" if file else where


def tasks_of(blueprint: Blueprint) -> int:
    return sum(map(blueprint.number_of_tasks, blueprint.inputs))


def observed(
    streams: Observed,
    life: InstanceLife,
    topology: Topology,
    process_id: str,
    raw: Metrics,
    clock: Clock,
    drain: Callable[[], None],
) -> Observer:
    """Observe until the instance ends; ``drain`` returns at once. ConfigError: it cannot start."""
    config, opened = streams.config, life.opened
    observer = Observer(
        streams=streams,
        instance=lambda: life.instance,
        raw=raw,
        clock=clock,
        rules=ScalingRules(
            target=config.scale_target_percent / 100,
            drain_s=config.scale_drain_ms / 1000,
            up_after_s=config.scale_up_delay_ms / 1000,
            down_after_s=config.scale_down_delay_ms / 1000,
        ),
        subject=subject_of(config, topology, process_id, clock.now_ms()),
        folder=Path(config.state_dir).expanduser(),
        connectors=connectors(cut(topology)),
    )
    opened.callback(observer.stop)
    observer.start()
    if config.otel_exporter_otlp_metrics_endpoint:
        opened.callback(_exported(observer).close)
    if config.http_listen:
        opened.callback(_served(observer, topology, drain).close)
    return observer


def _served(observer: Observer, topology: Topology, drain: Callable[[], None]) -> HttpServer:
    from everflow.instance.serving.routes import tokens_of  # a third of a second
    from everflow.observe.http_server import HttpServer, application
    from everflow.observe.requests import OwnNames

    streams, config = observer.streams, observer.streams.config
    tokens = tokens_of(config) if config.query_token_file else ()
    page = Page(
        facts=observer.facts,
        drawing=drawing_json(topology),
        tokens=tokens,
        desk=dead_letters_of(config),
        other_instances=other_instances_of(
            config, tokens, lambda: streams.config.application_server
        ),
    )
    server = HttpServer(
        config.http_listen,
        application(
            observer.observe,
            topology.describe(),
            drain,
            page,
            observer.watch,
            observer.rebalances,
        ),
        names=OwnNames(config.http_listen, (config.application_server, *config.allowed_hosts)),
        free=page.needs_token,
    )
    observer.address = server.address
    text = "Dashboard and metrics at http://%s (/page, /metrics, /live, /ready, /status)"
    rebalance_log.info(text, server.address)
    return server


def _exported(observer: Observer) -> OtlpExport:
    from everflow.observe.otlp import OtlpExport

    config, subject = observer.streams.config, observer.subject
    endpoint = config.otel_exporter_otlp_metrics_endpoint
    about = (subject.application_id, subject.client_id, subject.version)
    sender = OtlpExport(endpoint, config.otel_metric_export_interval, observer.watch, *about)
    rebalance_log.info("Metrics are sent to %s", endpoint)
    return sender


# --- other instances (note 060) -------------------------------------------------------------------


def other_instances_of(
    config: StreamsConfig, tokens: Sequence[str], own: Callable[[], str]
) -> OtherInstances:
    """``own``: this instance's address. ConfigError for an authority's file that cannot be used."""
    from everflow.observe.page.other_instances import (  # a third of a second, too
        OtherInstances,
        StatusClient,
    )

    token = tokens[0] if tokens else ""
    client = StatusClient(
        application_id=config.application_id,
        token=token,
        tls=_trust(config),
    )
    return OtherInstances(client, own, SystemClock())


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


# --- the dead letter topic (note 056) -------------------------------------------------------------

MOST_READ = 20_000
"""Offsets of the topic's end, over all partitions: it is read while records are processed."""
MOST_CAUSES = 40
MOST_REPLAYED = 5_000


@dataclass(frozen=True)
class _Part:
    starts: Offsets
    ends: Offsets
    earlier: int

    @staticmethod
    def of(admin: ClusterAdmin, topic: str) -> _Part:
        """The end of the topic as it is committed now; empty if it does not exist yet."""
        found = admin.describe_topics([topic])
        partitions = [
            TopicPartition(topic, n) for one in found.values() for n in range(one.partitions)
        ]
        first = admin.list_offsets(partitions, "earliest", "read_committed")
        ends = admin.list_offsets(partitions, "latest", "read_committed")
        each = max(1, MOST_READ // max(1, len(partitions)))
        starts = {tp: max(first[tp], ends[tp] - each) for tp in partitions}
        return _Part(starts, ends, sum(starts[tp] - first[tp] for tp in partitions))


@dataclass(frozen=True)
class DeadLetterTopic:
    """`everflow.observe.page.routes.DeadLetterService`. Each call has connections of its own."""

    config: StreamsConfig
    topic: str

    def by_cause(self) -> LettersFound:
        with closing(ClusterAdmin(self.config.admin())) as admin:
            part = _Part.of(admin, self.topic)
            tallies = self._tallied(part)
            newest = _newest(
                admin, {one.source or "" for t in tallies.values() for one in t.open.values()}
            )
        ranked = sorted(tallies.items(), key=lambda item: (-len(item[1].open), item[0]))
        causes = [
            CauseLetters(
                cause=LetterCause(*cause),
                letters=tally.letters,
                open=len(tally.open),
                sample=sample_of(tally.sample()),
                late=None if newest is None else _late(tally, newest),
            )
            for cause, tally in ranked[:MOST_CAUSES]
        ]
        return LettersFound(topic=self.topic, causes=causes, earlier=part.earlier)

    def replay(self, cause: LetterCause, time_ms: int | None) -> LettersReplayed:
        """The oldest first, of the part of the topic that `by_cause` reads."""
        with (
            closing(ClusterAdmin(self.config.admin())) as admin,
            # Before the topic is read: it cannot commit what another replay commits later.
            closing(
                Replayer(self.config, self.topic, cache(partial(_partitions, admin)))
            ) as replayer,
        ):
            part = _Part.of(admin, self.topic)
            tally = self._tallied(part).get(cause)
            open_ = sorted(tally.open) if tally is not None else []
            done, error = self._write(replayer, part, open_[:MOST_REPLAYED], time_ms)
        failed = f" and then failed: {error}" if error else ""
        rebalance_log.info(
            "Replayed %s from %s into %s%s, by request of the dashboard (%s at %s)%s",
            counted(done, "dead letter"),
            self.topic,
            cause.topic,
            "" if time_ms is None else " with the present time",
            cause.exception,
            cause.node,
            failed,
        )
        return LettersReplayed(replayed=done, left=len(open_) - done, error=error)

    def _write(
        self, replayer: Replayer, part: _Part, chosen: list[LetterPlace], time_ms: int | None
    ) -> tuple[int, str]:
        done = 0
        starts: dict[TopicPartition, int] = {}
        for letter in chosen:  # in order
            starts.setdefault(TopicPartition(self.topic, letter.partition), letter.offset)
        ends = {tp: part.ends[tp] for tp in starts}
        try:
            for portion in portions(stored(self.config, starts, ends), set(chosen)):
                done += replayer.replay(portion, None, time_ms)
        except EverflowError as failure:
            return done, f"[{failure.code}] {failure}"
        return done, ""

    def _tallied(self, part: _Part) -> dict[Cause, LetterTally]:
        return tallied(stored(self.config, part.starts, part.ends))


def _late(tally: LetterTally, newest: Mapping[TopicPartition, int]) -> int:
    old = OldLetters.among(tally.open.values(), None, newest)
    return 0 if old is None else old.count


def _newest(admin: ClusterAdmin, topics: set[str]) -> dict[TopicPartition, int] | None:
    """The latest record time in each partition; None if the brokers do not return it."""
    try:
        shapes = admin.describe_topics(topics) if topics else {}
        logs = [TopicPartition(name, n) for name in shapes for n in range(shapes[name].partitions)]
        return admin.newest_times(logs)
    except FatalError:  # brokers before 3.0, or a topic of somebody else's
        return None


def _partitions(admin: ClusterAdmin, topic: str) -> int:
    found = admin.describe_topics([topic])
    if topic not in found:
        raise ConfigError(
            f"topic {topic}, which the dead letters came from, does not exist any more. "
            f"`everflow dlq replay --to TOPIC` writes them into another one."
        )
    return found[topic].partitions


def dead_letters_of(config: StreamsConfig) -> DeadLetterTopic | None:
    topic = config.errors_dead_letter_queue_topic_name
    return DeadLetterTopic(config, topic) if topic else None
