"""What `chaos.migrate` strikes: versions of a program, their instances, and the migrator."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Producer

from chaos.migrate_plan import BEHIND, COMMIT_SENT, Strike
from everflow.errors import EverflowError
from everflow.kafka.admin import ClusterAdmin
from everflow.migration.migrator import SWITCHED, SWITCHING
from everflow.protocol.messages import FILLED, GONE, mark_in
from everflow.records import TopicPartition
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.kafka_proxy import KafkaProxy
from everflow.worker.crash_points import (
    ENVIRONMENT_VARIABLE,
    OFFSETS_SENT,
    RECOVERING,
    SWITCH_SEEN,
)
from integration.lifecycle.lifecycle_cluster import Application, Cluster

KEYS = 24
WINDOW_MS = 10_000
PARTITIONS = 4
WAIT_S = 300.0
CALLS = 6
"""So often the command is called until it has switched: where its group is rebalanced under it, or
nobody of the old version runs, it gives up and says so."""
COMMAND = "from everflow.cli import main; main()"
KEPT = "windowstore.changelog.additional.retention.ms=3153600000000"
PROGRAM = """
from everflow import Materialized, StreamsBuilder, TimeWindows, serdes
builder = StreamsBuilder()
words = builder.stream({source!r}, key=serdes.string(), value=serdes.string())
words.map_values(lambda value: value + "@{number}", returns=serdes.string()).to({copies!r})
again = words{inserted}.repartition(name="again", partitions={partitions})
again.group_by_key().count(store="{counts}").to_stream().to({updates!r})
again.group_by_key() \\
    .windowed_by(TimeWindows.of_size_and_grace("10 seconds", "1 hour")) \\
    .count(store=Materialized("windows", retention="2 hours"))
topology = builder.build()
"""


class Load(threading.Thread):
    """Numbered records over `KEYS` keys at one pace, until it is stopped. ``times``: of each."""

    def __init__(self, bootstrap: str, topic: str, times: list[int], rate: float) -> None:
        super().__init__(name="load", daemon=True)
        self._servers, self._topic, self._times, self._rate = bootstrap, topic, times, rate
        self._stop_asked = threading.Event()
        self._refused: list[str] = []

    def run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._servers, "linger.ms": 5, "enable.idempotence": True}
        )
        began, first = time.monotonic(), len(self._times)
        while not self._stop_asked.wait(0.02):
            due = first + int((time.monotonic() - began) * self._rate)
            for number in range(len(self._times), due):
                at = int(time.time() * 1000)
                producer.produce(
                    self._topic,
                    str(number).encode(),
                    key_of(number),
                    partition=number % PARTITIONS,
                    timestamp=at,
                    on_delivery=self._told,
                )
                self._times.append(at)
            producer.poll(0)
        if producer.flush(WAIT_S):
            self._refused.append("records are left unsent")

    def _told(self, error: object, _message: object) -> None:
        if error is not None:
            self._refused.append(str(error))

    def stop(self) -> None:
        """End the thread; RuntimeError if a record was refused."""
        self._stop_asked.set()
        self.join()
        if self._refused:
            raise RuntimeError(f"the load failed: {self._refused[0]}")


def key_of(number: int) -> bytes:
    return f"w{number % KEYS}".encode()


@dataclass
class Version(Application):
    """One program under an ``application.id`` of its own."""

    number: int = 0
    partitions: int = PARTITIONS

    @property
    def id(self) -> str:
        return f"{self.cluster.prefix}-v{self.number}"

    @property
    def counts(self) -> str:
        return "counts" if self.number % 2 else "totals"

    @property
    def file(self) -> str:
        return f"v{self.number}.py"

    @property
    def points(self) -> Path:
        return self.folder / f"points-v{self.number}"

    @property
    def between(self) -> str:
        return f"{self.id}-again-repartition"

    def changelog(self, store: str) -> str:
        return f"{self.id}-{store}-changelog"

    def write(self, source: str, copies: str, updates: str) -> None:
        inserted = ".filter(lambda key, value: value is not None)" if self.number % 2 else ""
        text = PROGRAM.format(
            source=source,
            copies=copies,
            updates=updates,
            number=self.number,
            inserted=inserted,
            partitions=self.partitions,
            counts=self.counts,
        )
        (self.folder / self.file).write_text(text)
        self.points.mkdir(exist_ok=True)


class Instance:
    """``everflow run`` of a version; started again on its own disk."""

    def __init__(self, version: Version, number: int, guarantee: str) -> None:
        self.version, self.number, self.guarantee = version, number, guarantee
        self.state = version.folder / f"state-{number}"
        self.log = version.folder / f"{version.file}-{number}.log"
        self._family: list[psutil.Process] = []
        self.process: psutil.Popen | None = None
        self.earlier: frozenset[str] = frozenset()
        """Members of the group before it was started: one that was killed stays for a session."""

    def start(self, members: Iterable[str] = ()) -> None:
        version, self.earlier = self.version, frozenset(members)
        command = [
            *(sys.executable, "-c", COMMAND, "run", f"{version.file}:topology"),
            *("--application-id", version.id, "--bootstrap-servers", version.cluster.bootstrap),
            *("--state-dir", str(self.state), "--guarantee", self.guarantee, "--threads", "1"),
            *("--set", "session.timeout.ms=6000", "--set", "task.timeout.ms=120000"),
            *("--set", KEPT),
        ]
        environment = {**os.environ, ENVIRONMENT_VARIABLE: str(version.points)}
        with self.log.open("ab") as log:
            self.process = psutil.Popen(
                command, cwd=version.folder, env=environment, stdout=log, stderr=log
            )

    @property
    def ended(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def history(self) -> list[str]:
        return self.said().splitlines()[-30:]

    def process_id(self) -> str:
        try:
            text = (self.state / self.version.id / "process-metadata").read_text()
            return str(json.loads(text)["process_id"])
        except (OSError, ValueError):
            return "not yet"

    def kill(self, *, whole: bool) -> None:
        """SIGKILL: of the driver alone, its JVM and workers end by themselves."""
        assert self.process is not None
        with suppress(psutil.NoSuchProcess):
            self._family = [p for p in self._family if p.is_running()]
            self._family += self.process.children(recursive=True)
        self.process.kill()
        self.process.wait()
        if whole:
            self.close()

    def close(self) -> None:
        """End all that it has started."""
        with suppress(psutil.NoSuchProcess):
            if self.process is not None:
                self._family += [*self.process.children(recursive=True), self.process]
        for one in self._family:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(self._family, WAIT_S)
        if self.process is not None:
            self.process.wait()


class Chain:
    """Versions of one program, one after the other, and what goes on between two of them."""

    def __init__(self, broker: EmbeddedBroker, folder: Path, guarantee: str) -> None:
        name = guarantee[:5]
        self.broker, self.guarantee = broker, guarantee
        self.folder = folder / name
        self.points = self.folder / "points"
        self.points.mkdir(parents=True)
        self.cluster = Cluster(broker.bootstrap_servers, name)
        self.admin = ClusterAdmin({"bootstrap.servers": broker.bootstrap_servers})
        self.proxy = KafkaProxy(broker.bootstrap_servers).start()
        self.source = self.cluster.topic("in", PARTITIONS)
        stamped = {"message_timestamp_type": "LogAppendTime"}
        self.copies = self.cluster.topic("copies", PARTITIONS, **stamped)
        self.updates = self.cluster.topic("updates", PARTITIONS, **stamped)
        self.times: list[int] = []
        self.may_double = False
        """Under at-least-once, from the first kill of an instance on."""
        self.old = self.next_version(1, PARTITIONS)
        self.new = self.next_version(2, PARTITIONS)
        self.olds = [Instance(self.old, 1, guarantee)]
        self.news: list[Instance] = []
        self.pending = False
        """A migration was left alone: the new version follows it."""
        self.process: subprocess.Popen[bytes] | None = None
        self.codes: Counter[str] = Counter()
        """Of commands that ended with an error."""
        self.wanted, self.calls = 1, 0
        self.half: list[str] = []
        """Looks at which one version had switched and the other had not."""

    def next_version(self, number: int, partitions: int) -> Version:
        made = Version(self.cluster, self.folder, {}, number, partitions)
        made.write(self.source, self.copies, self.updates)
        return made

    def start(self) -> None:
        self.begin(self.olds[0])
        self.until_joined(self.olds[0])

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for one in (*self.olds, *self.news):
            one.close()
        self.proxy.close()
        self.admin.close()
        self.cluster.close()

    # --- the migrator ----------------------------------------------------------------------------

    def call(self, instances: int) -> None:
        """The command that goes on; the first time, and after a kill."""
        self.wanted, self.calls = instances, 0
        self.launch("--instances", str(instances))

    def call_again(self) -> None:
        """As it says itself when it gave up. The old version has to run for that."""
        self.until_ended()
        self.calls += 1
        assert self.calls < CALLS, self.said()
        for one in self.olds:
            self.until_joined(one)
        self.launch("--instances", str(self.wanted))

    def launch(self, *options: str) -> None:
        command = [
            *(sys.executable, "-c", COMMAND, "migrate", self.old.id, f"{self.new.file}:topology"),
            *("--from", f"{self.old.file}:topology", "--application-id", self.new.id),
            *("--bootstrap-servers", self.proxy.bootstrap_servers, "--set", KEPT),
            *("--set", "task.timeout.ms=120000", "--yes", *options),
        ]
        environment = {**os.environ, ENVIRONMENT_VARIABLE: str(self.points)}
        self._said = self.folder / "migrate.log"
        with self._said.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def said(self) -> list[str]:
        return self._said.read_text(errors="replace").splitlines()[-30:]

    def until_ended(self) -> int:
        process = self.process
        assert process is not None
        wait_until(lambda: process.poll() is not None, WAIT_S, "the migrator to end", self.said)
        if process.returncode:
            self.codes.update(set(re.findall(r"EF-[A-Z-]+", "\n".join(self.said()))))
        return int(process.returncode)

    def kill_migrator(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    # --- points ----------------------------------------------------------------------------------

    def folder_of(self, point: str) -> Path:
        return self.new.points if point in (SWITCH_SEEN, RECOVERING, OFFSETS_SENT) else self.points

    def arm(self, strikes: Iterable[Strike]) -> None:
        for folder in (self.points, self.new.points):
            for left in folder.iterdir():
                left.unlink()
        for strike in strikes:
            point = SWITCHING if strike.point == COMMIT_SENT else strike.point
            (self.folder_of(point) / point).touch()
            if point in BEHIND:
                (self.points / SWITCHED).touch()

    def until_reached(self, point: str) -> None:
        marker = self.folder_of(point) / f"{point}.reached"

        def there() -> bool:
            code = None if self.process is None else self.process.poll()
            if code is not None and code > 0 and not marker.exists() and not self.switched():
                self.call_again()
            assert marker.exists() or code != 0 or point in BEHIND, self.said()
            return marker.exists()

        wait_until(there, WAIT_S, f"{point} to be reached", self.said)

    def go(self, point: str) -> None:
        folder = self.folder_of(point)
        if (folder / f"{point}.reached").exists():
            (folder / f"{point}.reached").unlink()
            (folder / f"{point}.go").touch()

    # --- what is on the brokers ------------------------------------------------------------------

    def marks(self, version: Version) -> set[str]:
        """Kinds of the marks beside a group's offsets of the input, "" where there is none. Waits
        for pending ones."""
        inputs = [TopicPartition(self.source, number) for number in range(PARTITIONS)]
        found: list[set[str]] = []

        def known() -> bool:
            with suppress(EverflowError):
                committed = self.admin.committed(version.id, inputs, 10.0)
                marks = [mark_in(one.metadata) for one in committed.values()]
                found.append({mark.kind if mark else "" for mark in marks})
            return bool(found)

        wait_until(known, WAIT_S, f"the offsets of {version.id}")
        return found[-1]

    def switched(self) -> bool:
        """Whether the switch took place; `half` notes where it has for one version only."""
        old, new = self.marks(self.old), self.marks(self.new)
        gone = GONE in old
        if (gone and old != {GONE}) or (gone and FILLED in new) or (not gone and "" in new):
            self.half.append(f"half: {self.old.id} has {old}, {self.new.id} has {new}")
        return gone

    # --- instances -------------------------------------------------------------------------------

    def begin(self, one: Instance) -> None:
        one.start(member.member_id for member in self.admin.members(one.version.id, 30.0))

    def joined(self, one: Instance) -> bool:
        return any(
            one.process_id() in member.client_id and member.member_id not in one.earlier
            for member in self.admin.members(one.version.id, 30.0)
        )

    def until_joined(self, one: Instance) -> None:
        """A member, or ended: then it says why."""
        wait_until(
            lambda: one.ended or self.joined(one),
            WAIT_S,
            f"an instance of {one.version.id} to join",
            one.history,
        )

    def until_waiting(self, one: Instance) -> None:
        """Until its start says that it waits for the migrator to create its topics."""
        wait_until(
            lambda: one.ended or "everflow migrate" in one.said(),
            WAIT_S,
            "the start to wait",
            one.history,
        )
        assert not one.ended, one.history()

    def require_joined(self, one: Instance) -> None:
        self.until_joined(one)
        assert not one.ended, one.history()

    def follow(self, instances: int) -> None:
        """Start the new version where it does not run."""
        if not self.news:
            numbers = range(1, instances + 1)
            self.news = [Instance(self.new, number, self.guarantee) for number in numbers]
        for one in self.news:
            if one.ended:
                self.begin(one)

    def until_processed(self, version: Version, instances: Sequence[Instance]) -> None:
        def history() -> list[str]:
            return [line for one in instances for line in one.history()]

        for topic in (self.source, version.between):
            wait_until(
                lambda topic=topic: self._processed(version, topic, instances),  # type: ignore[misc]
                WAIT_S,
                f"{version.id} to read {topic} to its end",
                history,
            )

    def _processed(self, version: Version, topic: str, instances: Sequence[Instance]) -> bool:
        for one in instances:
            assert not one.ended, one.history()
        return version.processed(None, topic)

    def until_ended_by_switch(self, one: Instance) -> None:
        wait_until(lambda: one.ended, WAIT_S, "the old version to end", one.history)
        assert "EF-MIGRATED" in one.said(), one.history()
        one.close()

    def until_gone(self, version: Version) -> None:
        wait_until(
            lambda: not self.admin.members(version.id, 30.0),
            WAIT_S,
            f"the members of {version.id} to be gone",
        )
