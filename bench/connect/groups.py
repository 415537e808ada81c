"""Three instances of everflow, and three workers of Kafka Connect, which a bench starts, stops,
kills, and gives one connector more."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from bench.connect.program import CONNECTORS_VARIABLE, INSTANCE_VARIABLE, input_of
from bench.connect.simulated import COOPERATIVE, DELAYED, DRAINED, EAGER
from bench.rebalances import records_in
from bench.systems import STOP_TIMEOUT_S, Job, Launch, RunningSystem, everflow_launch
from bench.topics import PARTITIONS, REQUEST_TIMEOUT_S, create_topics
from everflow.autoscale import free_port

EVERY_S = 0.25
"""Each task has a record so often."""


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """``away_s``: how long a lost instance is away; ``delay_s``: how long its tasks wait for it, in
    the modes with a delay."""

    connectors: int = 60
    tasks_each: int = 4
    instances: int = 3
    threads: int = 2
    session_s: float = 10.0
    delay_s: float = 60.0
    away_s: float = 20.0
    settle_s: float = 10.0
    cut_off_s: float = 300.0

    @property
    def tasks(self) -> int:
        """Before one is added."""
        return self.connectors * self.tasks_each


class Group(Protocol):
    """What the bench does to a group. Instances are known by name."""

    def launch(self, name: str) -> Launch:
        """How an instance starts, for the first time or again."""

    def add_connector(self) -> None:
        """So many tasks more as a connector has."""

    def generations(self) -> int:
        """Rebalances so far."""


@dataclass
class Processes:
    """The processes of a group. Used by one thread; the stack ends what is left."""

    group: Group
    folder: Path
    stack: ExitStack
    running: dict[str, RunningSystem] = field(default_factory=dict)
    lives: int = 0

    def start(self, name: str) -> None:
        """Returns at once."""
        self.lives += 1
        log = self.folder / f"{name}-life-{self.lives}.log"
        self.running[name] = RunningSystem(name, self.group.launch(name), log)
        self.stack.callback(self.running[name].kill)

    def stop(self, name: str) -> None:
        """As its user would, until it has ended; SystemFailedError if it does not."""
        process = self.running.pop(name)
        process.ask_to_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not process.ended:
            if time.monotonic() > deadline:
                raise process.failure(f"has not ended within {STOP_TIMEOUT_S:.0f} s")
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """SIGKILL to all of it."""
        self.running.pop(name).kill()

    def check_alive(self) -> None:
        """SystemFailedError if one has ended by itself."""
        for process in self.running.values():
            process.check_alive()
            if process.ended:
                raise process.failure("has ended")


class Everflow:
    """Connectors are sub-topologies. One more is four partitions more of the last one's topic: a
    sub-topology more would be another program (note 075)."""

    def __init__(
        self, plan: GroupPlan, mode: str, job: Job, admin: AdminClient, folder: Path
    ) -> None:
        self._plan, self._admin, self._folder = plan, admin, folder
        settings = {"session.timeout.ms": str(int(plan.session_s * 1_000))}
        if mode != DRAINED:
            settings["drain.timeout.ms"] = "0"
        if mode == DELAYED:
            settings["scheduled.rebalance.max.delay.ms"] = str(int(plan.delay_s * 1_000))
        self._job = replace(job, settings={**job.settings, **settings})
        self._topics = [input_of(job.input_topic, number) for number in range(plan.connectors)]
        create_topics(admin, self._topics, plan.tasks_each)
        self.ticker = Ticker(job.bootstrap_servers)
        for number, topic in enumerate(self._topics):
            self.ticker.add(topic, f"c{number:03d}", range(plan.tasks_each))

    def launch(self, name: str) -> Launch:
        """A state folder for each name: it is the same instance that comes back."""
        state = self._folder / f"state-{name}"
        launch = everflow_launch(replace(self._job, state_dir=state))
        more = {CONNECTORS_VARIABLE: str(self._plan.connectors), INSTANCE_VARIABLE: name}
        return replace(launch, environment={**launch.environment, **more})

    def add_connector(self) -> None:
        """See the class."""
        each = self._plan.tasks_each
        more = [NewPartitions(self._topics[-1], 2 * each)]
        for future in self._admin.create_partitions(more).values():
            future.result(REQUEST_TIMEOUT_S)
        self.ticker.add(self._topics[-1], f"c{len(self._topics) - 1:03d}", range(each, 2 * each))

    def generations(self) -> int:
        """By the instances' own records."""
        records = records_in(self._folder.glob("state-*"))
        return len({record["generation"] for record in records})


class Ticker:
    """Sends each task its records: what ticks by itself in Kafka Connect. Use as a context manager;
    ``add`` from any thread."""

    def __init__(self, bootstrap_servers: str) -> None:
        settings = {"linger.ms": 5, "topic.metadata.refresh.interval.ms": 1_000}
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, **settings})
        self._places: list[tuple[str, int, str]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._send, name="connect-ticks", daemon=True)

    def add(self, topic: str, connector: str, partitions: Sequence[int] | range) -> None:
        """From the next round on."""
        self._places += [(topic, part, f"{connector}/{part}") for part in partitions]

    def __enter__(self) -> Ticker:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        self._producer.flush(REQUEST_TIMEOUT_S)

    def _send(self) -> None:
        due = time.monotonic()
        while not self._stopped.wait(max(0.0, due - time.monotonic())):
            due = max(due + EVERY_S, time.monotonic())
            for topic, partition, value in list(self._places):
                # The client hears of a new partition within a second.
                with suppress(KafkaException):
                    self._producer.produce(topic, value.encode(), partition=partition)
                self._producer.poll(0)


_JOINED = re.compile(r"Joined group at generation (\d+)")
_INTERNAL = {"config": 1, "offset": 5, "status": 3}
"""Connect's topics, with their partitions."""
REST_TIMEOUT_S = 120.0
NAME = "BENCH_CONNECT"
_LOG4J = """\
appenders=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=INFO
rootLogger.appenderRef.out.ref=out
"""


class KafkaConnect:
    """Workers of one Connect cluster. Its connectors stay in the cluster's topics from mode to
    mode, so `create` is called once."""

    def __init__(
        self, plan: GroupPlan, mode: str, java: Sequence[str], job: Job, folder: Path
    ) -> None:
        self._plan, self._job, self._folder = plan, job, folder
        self._java = list(java)
        self._ports: dict[str, int] = {}
        self._settings = {
            "bootstrap.servers": job.bootstrap_servers,
            "group.id": job.application_id,
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "plugin.discovery": "service_load",
            "connect.protocol": "eager" if mode == EAGER else "sessioned",
            "scheduled.rebalance.max.delay.ms": str(
                int(plan.delay_s * 1_000) if mode == DELAYED else 0
            ),
            "session.timeout.ms": str(int(plan.session_s * 1_000)),
        }
        for kind, partitions in _INTERNAL.items():
            self._settings[f"{kind}.storage.topic"] = f"{job.application_id}-{kind}"
            self._settings[f"{kind}.storage.replication.factor"] = "1"
            if kind != "config":
                self._settings[f"{kind}.storage.partitions"] = str(partitions)
        (folder / "log4j2.properties").write_text(_LOG4J)

    def launch(self, name: str) -> Launch:
        """A worker; its port stays its own."""
        port = self._ports.setdefault(name, free_port())
        settings = {**self._settings, "listeners": f"http://127.0.0.1:{port}"}
        file = self._folder / f"{name}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        log4j = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}"
        options = [log4j, "-XX:+UseSerialGC", "-Xmx768m"]
        command = [self._java[0], *options, *self._java[1:], str(file)]
        return Launch(command, {INSTANCE_VARIABLE: name})

    def create(self, connectors: int) -> None:
        """So many, over the REST interface of a worker that runs."""
        for number in range(connectors):
            self._create(number)

    def connectors(self) -> int:
        """How many there are."""
        return len(self._asked("GET", "/connectors"))

    def add_connector(self) -> None:
        """The next one."""
        self._create(self.connectors())

    def _create(self, number: int) -> None:
        name = f"c{number:03d}"
        settings: Mapping[str, str] = {
            "connector.class": "TickSource",
            "tasks.max": str(self._plan.tasks_each),
            "topic": self._job.output_topic,
            "every.ms": str(int(EVERY_S * 1_000)),
        }
        self._asked("PUT", f"/connectors/{name}/config", settings)

    def _asked(self, method: str, path: str, body: object = None) -> list[object]:
        """Of any worker; while it starts or rebalances it is asked again."""
        deadline = time.monotonic() + REST_TIMEOUT_S
        port = next(iter(self._ports.values()))
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        while True:
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}{path}", data, headers, method=method
            )
            try:
                with urllib.request.urlopen(request, timeout=REQUEST_TIMEOUT_S) as answer:
                    found = json.load(answer)
                    return found if isinstance(found, list) else [found]
            except (urllib.error.URLError, OSError) as error:
                passes = not isinstance(error, urllib.error.HTTPError) or error.code in (
                    404,
                    409,
                    500,
                )
                if not passes or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def generations(self) -> int:
        """By what the workers log."""
        found = set()
        for log in self._folder.glob("*-life-*.log"):
            found |= set(_JOINED.findall(log.read_text(errors="replace")))
        return len(found)


def create_output(admin: AdminClient, topic: str) -> None:
    """One topic for all tasks: their records say whose they are."""
    create_topics(admin, [topic], PARTITIONS)


MODES_OF: Mapping[str, tuple[str, ...]] = {
    "everflow": (COOPERATIVE, DELAYED, DRAINED),
    "kafka-connect": (COOPERATIVE, DELAYED, EAGER),
}
