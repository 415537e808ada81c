"""A real instance in a process of its own, which tests stop at named points, kill and restart."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from everflow.instance.thread.worker_processes import alive
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition
from everflow.state.changelog import pack_value, unpack_value
from everflow.state.lmdb_store import LmdbStore
from everflow.testing.broker import EmbeddedBroker
from everflow.testing.waiting import wait_until
from everflow.worker.crash_points import ENVIRONMENT_VARIABLE
from integration.crash.crash_topologies import COUNTS, copies_topic, counts_topic, input_topic
from integration.lifecycle.lifecycle_cluster import Cluster, Record

HERE = Path(__file__).parent
PARTITIONS = 2
READY_S = 180.0
DRAIN_S = 60.0
REACH_S = 60.0
Pair = tuple[bytes | None, bytes | None]
"""Key and value."""


@dataclass
class Application:
    """An application on a broker: its topics, its state folder, its running instance, and what it
    should have done.

    ``sent`` are the records (key, value) produced so far. Owned by one test at a time; `close` ends
    all its processes.
    """

    name: str
    broker: EmbeddedBroker
    folder: Path
    program: str = "counts-and-copies"
    settings: Mapping[str, Any] = field(default_factory=dict)
    sent: list[tuple[str, str]] = field(default_factory=list)
    foreign: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Records that others wrote to the topic of copies."""
    process: subprocess.Popen[bytes] | None = None
    _family: list[psutil.Process] = field(default_factory=list)
    _before: int = 0
    """States said by earlier processes."""

    def __post_init__(self) -> None:
        self.points.mkdir(parents=True)
        self.admin = ClusterAdmin({"bootstrap.servers": self.broker.bootstrap_servers})
        self.cluster = Cluster(self.broker.bootstrap_servers, self.name)
        topics = (input_topic(self.name), copies_topic(self.name), counts_topic(self.name))
        there = self.admin.describe_topics(topics)  # of another instance of the application
        for topic in topics:
            if topic not in there:
                self.broker.create_topic(topic, PARTITIONS)

    # --- places ----------------------------------------------------------------------------------

    @property
    def points(self) -> Path:
        return self.folder / "points"

    @property
    def state(self) -> Path:
        return self.folder / "state" / self.name

    @property
    def log(self) -> Path:
        return self.folder / "instance.log"

    def inputs(self) -> list[TopicPartition]:
        return [TopicPartition(input_topic(self.name), p) for p in range(PARTITIONS)]

    def outputs(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic(self.name), p)
            for topic in (copies_topic, counts_topic)
            for p in range(PARTITIONS)
        ]

    def changelogs(self) -> list[TopicPartition]:
        return [TopicPartition(f"{self.name}-{COUNTS}-changelog", p) for p in range(PARTITIONS)]

    # --- the instance ----------------------------------------------------------------------------

    def start(self, **settings: Any) -> None:
        self.launch(**settings)
        self.await_running()

    def await_running(self) -> None:
        """Since its launch."""
        assert self.process is not None
        process = self.process
        wait_until(
            lambda: process.poll() is not None or "RUNNING" in self._states()[self._before :],
            READY_S,
            "the instance to run",
            self.history,
        )
        assert process.poll() is None, (
            f"the instance ended with {process.returncode}\n" + "\n".join(self.history())
        )
        self.family()

    def launch(self, **settings: Any) -> None:
        config = {
            "application.id": self.name,
            "bootstrap.servers": self.broker.bootstrap_servers,
            "state.dir": str(self.folder / "state"),
            "processing.guarantee": "exactly_once_v2",
            "num.stream.threads": 1,
            "session.timeout.ms": 6_000,
            "task.timeout.ms": 60_000,
            **self.settings,
            **settings,
        }
        self._before = len(self._states())
        environment = {**os.environ, ENVIRONMENT_VARIABLE: str(self.points)}
        command = [
            sys.executable,
            str(HERE / "crash_topologies.py"),
            self.program,
            json.dumps(config),
        ]
        with self.log.open("ab") as log, (self.folder / "states").open("ab") as states:
            self.process = subprocess.Popen(
                command, cwd=HERE, env=environment, stdout=states, stderr=log
            )

    def _states(self) -> list[str]:
        path = self.folder / "states"
        return path.read_text().split() if path.exists() else []

    def history(self) -> list[str]:
        return self.log.read_text(errors="replace").splitlines()[-60:]

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def driver(self) -> int:
        assert self.process is not None
        return self.process.pid

    def family(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            self._family += [
                p
                for p in psutil.Process(self.driver).children(recursive=True)
                if p not in self._family
            ]
        return [p for p in self._family if p.is_running()]

    def jvm(self) -> int:
        pids: list[int] = [
            p.pid
            for p in psutil.Process(self.driver).children(recursive=True)
            if p.name() == "java"
        ]
        return pids[0]

    def wait_end(self, timeout_s: float = 30.0) -> int:
        assert self.process is not None
        process = self.process
        wait_until(
            lambda: process.poll() is not None, timeout_s, "the instance to end", self.history
        )
        return int(process.returncode)

    def stop(self) -> int:
        self.family()
        assert self.process is not None
        self.process.terminate()
        return self.wait_end(60.0)

    def close(self) -> None:
        if self.process is not None:
            members = self.family()
            self.process.kill()
            self.process.wait(30)
            for member in members:
                with suppress(psutil.NoSuchProcess):
                    member.kill()
        self.admin.close()
        self.cluster.close()

    # --- crash points ----------------------------------------------------------------------------

    def arm(self, point: str) -> None:
        """The next process that comes to ``point`` stops there."""
        for left in self.points.iterdir():
            left.unlink()
        (self.points / point).touch()

    def go(self, point: str) -> None:
        (self.points / f"{point}.go").touch()

    def wait_reached(self, point: str) -> int:
        marker = self.points / f"{point}.reached"
        wait_until(marker.exists, REACH_S, f"a worker to reach {point}", self.history)
        self.family()
        return int(marker.read_text())

    # --- input and results -----------------------------------------------------------------------

    def produce(self, records: Sequence[tuple[str, str]]) -> None:
        """Append to the input topic; partitions by the key's hash."""
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "linger.ms": 5,
                "partitioner": "murmur2_random",
            }
        )
        for key, value in records:
            producer.produce(input_topic(self.name), value, key)
            producer.poll(0)
        assert producer.flush(30) == 0
        self.sent += records

    def ends(
        self, partitions: Iterable[TopicPartition], isolation: Any
    ) -> dict[TopicPartition, int]:
        return self.admin.end_offsets(list(partitions), isolation)

    def committed(self, *, stable: bool = True) -> dict[TopicPartition, int]:
        """The group's offsets, 0 where there is none; ``stable`` waits for open transactions."""
        if stable:
            found = self.admin.committed(self.name, self.inputs(), 30.0)
            return {tp: found[tp].offset if tp in found else 0 for tp in self.inputs()}
        offsets = self.cluster.committed(self.name, input_topic(self.name), "read_uncommitted")
        return {tp: offsets.get(tp.partition, (0, ""))[0] for tp in self.inputs()}

    def drain(self) -> None:
        """Wait until all input is committed and the stores have followed."""
        ends = self.ends(self.inputs(), "read_uncommitted")

        def drained() -> bool:
            # Beyond these ends where the markers of a transaction of the input have landed since
            # (KAFKA-10167).
            committed = self.committed()
            return all(committed.get(tp, -1) >= end for tp, end in ends.items())

        wait_until(drained, DRAIN_S, "all input to be committed", self.history)
        # Nothing is committed any more: the stores are to have what the changelogs have now.
        last = {tp.partition: self.read(tp)[-1:] for tp in self.changelogs()}

        def followed() -> bool:
            return all(
                (self.position(partition) or 0) > record.offset
                for partition, listed in last.items()
                for record in listed
            )

        wait_until(followed, DRAIN_S, "the stores to hold all that is committed", self.history)

    def read(self, tp: TopicPartition, isolation: str = "read_committed") -> list[Record]:
        return [one for one in self.read_all(tp.topic, isolation) if one.partition == tp.partition]

    def read_all(self, topic: str, isolation: str = "read_committed") -> list[Record]:
        return self.cluster.read(topic, isolation)

    # --- stores ----------------------------------------------------------------------------------

    def store_paths(self) -> dict[int, tuple[str, int]]:
        """Partition -> (folder name, inode of the data file), others once wiped or rebuilt."""
        found = {}
        for partition in range(PARTITIONS):
            folders = sorted((self.state / f"0_{partition}").glob(f"{COUNTS}-*"))
            assert len(folders) == 1, f"store folders of task 0_{partition}: {folders}"
            found[partition] = (folders[0].name, (folders[0] / "data.mdb").stat().st_ino)
        return found

    def _store(self, partition: int) -> LmdbStore:
        (folder,) = (self.state / f"0_{partition}").glob(f"{COUNTS}-*")
        return LmdbStore.open(folder)

    def position(self, partition: int) -> int | None:
        return self._store(partition).meta().position

    def positions(self) -> dict[int, int | None]:
        return {partition: self.position(partition) for partition in range(PARTITIONS)}

    def store_content(self, partition: int) -> dict[bytes, bytes]:
        """Stored key -> stored value (time and value)."""
        with self._store(partition).snapshot() as view:
            return dict(view.range(None, None))

    def changelog_fold(self, partition: int) -> dict[bytes, bytes]:
        """The content of the store according to the committed changelog (I2)."""
        folded: dict[bytes, bytes] = {}
        for record in self.read(self.changelogs()[partition]):
            assert record.key is not None
            if record.value is None:
                folded.pop(record.key, None)
            else:
                folded[record.key] = pack_value(record.timestamp, record.value)
        return folded

    # --- the check -------------------------------------------------------------------------------

    def check(self) -> None:
        """Outputs and stores are those of an undisturbed run over ``sent`` (I2, I3)."""
        self.check_outputs()
        self.check_stores()

    def check_outputs(self) -> None:
        """Every record was copied once; a key's updates rise to its true count and end there."""
        copies = Counter[Pair](
            (record.key, record.value) for record in self.read_all(copies_topic(self.name))
        )
        expected = Counter[Pair](self.foreign) + Counter[Pair](
            (key.encode(), value.encode()) for key, value in self.sent
        )
        lost, doubled = expected - copies, copies - expected
        assert not lost, f"lost {lost.total()}: {lost.most_common(10)}"
        assert not doubled, f"doubled {doubled.total()}: {doubled.most_common(10)}"
        updates: dict[str, list[int]] = {}
        for record in self.read_all(counts_topic(self.name)):
            assert record.key is not None
            assert record.value is not None
            updates.setdefault(record.key.decode(), []).append(int.from_bytes(record.value, "big"))
        truth = Counter(key for key, _ in self.sent)
        assert {key: counts[-1] for key, counts in updates.items()} == truth
        for key, counts in updates.items():
            assert all(a < b for a, b in pairwise(counts)), f"{key}: {counts}"

    def check_stores(self) -> None:
        """Store = fold of its changelog = the true counts."""
        counts: dict[str, int] = {}
        for partition in range(PARTITIONS):
            content = self.store_content(partition)
            assert content == self.changelog_fold(partition)
            counts |= {
                key.decode(): int.from_bytes(unpack_value(stored)[1], "big")
                for key, stored in content.items()
            }
        assert counts == Counter(key for key, _ in self.sent)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid), 10, f"process {pid} to be gone")


def records(keys: int, count: int, tag: str) -> list[tuple[str, str]]:
    """``count`` records over ``keys`` keys, every value different."""
    return [(f"k{at % keys}", f"{tag}-{at}") for at in range(count)]
