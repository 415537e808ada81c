"""One instance against several that are killed: programs whose tables do not depend on how records
of different partitions meet give the same tables on a real broker (I8).

Several programs are drawn and run side by side as one application: first on three instances, one of
which is killed with all its processes while it works and comes back, with its input in parts; then,
under another name, on one instance that gets all of its input at once. Tables that streams are
joined with are there before, and last records close all windows. What both have written has to be
equal: outputs, and the changelogs of all stores, with their times.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from everflow.instance.query.queries import default_partitioner
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from oracle.programs import KEYS, VALUES, Node, Program
from oracle.settled import GRACE_MS, DrawSettled

TOGETHER = 6
"""Programs of one application."""
PARTITIONS = 3
INSTANCES = 3
RECORDS = 120
"""Of a program, in three parts."""
WAIT_S = 600.0
INSTANCE = Path(__file__).with_name("instance_process.py")


@dataclass
class Report:
    """A case is a program. ``programs``: in how many each operator was."""

    seed: int
    cases: int = 0
    equal: int = 0
    kills: int = 0
    differing: list[str] = field(default_factory=list)
    programs: Counter[str] = field(default_factory=Counter)

    @property
    def clean(self) -> bool:
        """Whether nothing differs."""
        return not self.differing

    @property
    def operators(self) -> list[str]:
        """What was compared."""
        return sorted(self.programs)

    def said(self) -> str:
        """What became of the cases, in lines."""
        counts = ", ".join(f"{name} {count}" for name, count in self.programs.most_common())
        return (
            f"{self.equal} equal, {len(self.differing)} differ, {self.kills} instances killed\n"
            f"  in programs: {counts}"
        )

    def more(self) -> dict[str, object]:
        """What the figures of this comparison alone are."""
        return {"programs": dict(self.programs), "kills": self.kills}


def compare(cases: int, seed: int) -> Iterator[Report]:
    """Compares ``cases`` programs of ``seed``; the report so far after each application."""
    drawn, report = random.Random(seed), Report(seed)
    with EmbeddedBroker() as broker:
        while report.cases < cases:
            count = min(TOGETHER, cases - report.cases)
            drawings = [DrawSettled(drawn, f"p{at}") for at in range(count)]
            programs = [one.drawn_program() for one in drawings]
            static = {topic for one in drawings for topic in one.static}
            script = _script(programs, static, drawn)
            with tempfile.TemporaryDirectory(prefix="everflow-instances-") as folder:
                _compare(programs, script, drawn, broker.bootstrap_servers, Path(folder), report)
            yield report


def _compare(
    programs: Sequence[Program],
    script: Script,
    drawn: random.Random,
    bootstrap: str,
    folder: Path,
    report: Report,
) -> None:
    name = f"i{uuid.uuid4().hex[:8]}"
    several, one = (
        _Application(Topics(bootstrap, f"{name}-{how}"), programs, folder / how)
        for how in ("several", "one")
    )
    with ExitStack() as running:
        running.callback(several.end)
        several.write(script.before)
        for number in range(INSTANCES):
            several.start(number)
        several.take([])
        several.take(script.parts[0])
        several.write(script.parts[1])
        victim = drawn.randrange(INSTANCES)
        several.kill(victim)
        report.kills += 1
        several.write(script.parts[2])
        several.start(victim)
        several.until_caught_up()
        several.take(script.last)
    with ExitStack() as running:
        running.callback(one.end)
        one.write(script.before)
        one.start(0)
        one.take([])
        one.take([record for part in script.parts for record in part])
        one.take(script.last)
    for program in programs:
        report.cases += 1
        report.programs.update(set(program.shape().split()))
        told = [application.told(program) for application in (several, one)]
        if told[0] == told[1]:
            report.equal += 1
            continue
        lines = [program.shape(), f"  program {json.dumps(program.nodes)}"]
        for topic in told[0]:
            if told[0][topic] != told[1][topic]:
                lines += [
                    f"  {topic}: several {told[0][topic]}",
                    f"  {topic}: one     {told[1][topic]}",
                ]
        report.differing.append("\n".join(lines))


Written = tuple[str, str | None, str | None, int]
"""Topic, key, value, time."""
Kept = tuple[int, bytes | None, bytes | None, int]
"""Partition, key, value, time."""


@dataclass(frozen=True)
class Script:
    """What is written before all else, then in parts, and last of all to each partition."""

    before: list[Written]
    parts: list[list[Written]]
    last: list[Written]


def _script(programs: Sequence[Program], static: set[str], drawn: random.Random) -> Script:
    """Each topic's times rise with some disorder, from some hours ago on."""
    latest, found = int(time.time() * 1000) - 4 * GRACE_MS, list[Written]()
    keys = [f"{key}{number}" for key in KEYS for number in range(3)]

    def record(topic: str) -> Written:
        value = None if drawn.random() < 0.1 else drawn.choice(VALUES)
        return topic, drawn.choice(keys), value, latest - drawn.choice([0, 0, 0, 5, 25])

    before = []
    for topic in sorted(static):
        for _ in range(RECORDS // 4):
            latest += drawn.choice([0, 1, 3, 10])
            before.append(record(topic))
    latest += 1_000
    for _ in range(RECORDS):
        latest += drawn.choice([0, 1, 3, 10, 40])
        for program in programs:
            found.append(record(drawn.choice([one for one in program.inputs if one not in static])))
    third = len(found) // 3
    parts = [found[:third], found[third : 2 * third], found[2 * third :]]
    inputs = [topic for program in programs for topic in program.inputs if topic not in static]
    last: list[Written] = [
        (topic, key, "last", latest + 2 * GRACE_MS) for topic in inputs for key in _ENDS
    ]
    return Script(before, parts, last)


def _a_key_of_each_partition() -> list[str]:
    found: dict[int, str] = {}
    for key in (f"end{number}" for number in itertools.count()):
        found.setdefault(default_partitioner(key.encode(), PARTITIONS), key)
        if len(found) == PARTITIONS:
            return sorted(found.values())
    raise AssertionError("there is no end of keys")


_ENDS = _a_key_of_each_partition()


class Topics:
    """Topics of one application, all beginning with ``prefix``."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, names: Sequence[str], partitions: int = PARTITIONS) -> None:
        topics = [NewTopic(f"{self.prefix}-{name}", partitions, 1) for name in names]
        for future in self._admin.create_topics(topics, operation_timeout=30).values():
            future.result(30)

    def names(self) -> list[str]:
        """Of all topics there are."""
        return sorted(self._admin.list_topics(timeout=30).topics)

    def write(self, records: Sequence[Written], partitions: int = PARTITIONS) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for topic, key, value, at in records:
            partition = default_partitioner((key or "").encode(), partitions)
            producer.produce(f"{self.prefix}-{topic}", value, key, partition, timestamp=at)
        assert producer.flush(60) == 0

    def read(self, topics: Sequence[str]) -> dict[str, list[Kept]]:
        """What a reader of committed records sees of each topic, partition by partition."""
        found = self.read_with_offsets(topics)
        return {topic: [one[:4] for one in records] for topic, records in found.items()}

    def read_with_offsets(self, topics: Sequence[str]) -> dict[str, list[tuple[Any, ...]]]:
        """As `read`, each record with its offset behind its time."""
        consumer = self._consumer("read", enable_partition_eof=True)
        found: dict[str, list[tuple[Any, ...]]] = {topic: [] for topic in topics}
        try:
            partitions = [tp for topic in topics for tp in _of(consumer, topic)]
            left = {(tp.topic, tp.partition) for tp in partitions}
            consumer.assign(
                [TopicPartition(tp.topic, tp.partition, OFFSET_BEGINNING) for tp in partitions]
            )
            while left:
                for message in consumer.consume(500, 1.0):
                    topic, partition, error = message.topic(), message.partition(), message.error()
                    assert topic is not None
                    assert partition is not None
                    if error is None:
                        kept = partition, message.key(), message.value(), message.timestamp()[1]
                        found[topic].append((*kept, message.offset()))
                    elif error.code() == KafkaError._PARTITION_EOF:
                        left.discard((topic, partition))
        finally:
            consumer.close()
        return {name: sorted(all_, key=lambda record: record[0]) for name, all_ in found.items()}

    def behind(self, group: str, topics: Sequence[str]) -> list[str]:
        """Partitions that the group has not read to their ends."""
        consumer = self._consumer(group)
        try:
            partitions = [tp for topic in topics for tp in _of(consumer, topic)]
            have = consumer.committed(partitions, timeout=30)
            return [
                f"{tp.topic}-{tp.partition}"
                for tp in have
                if max(tp.offset, 0) < consumer.get_watermark_offsets(tp, 30)[1]
            ]
        finally:
            consumer.close()

    def _consumer(self, group: str, **more: Any) -> Consumer:
        return Consumer(
            {name.replace("_", "."): value for name, value in more.items()}
            | {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )


def _of(consumer: Consumer, topic: str) -> list[TopicPartition]:
    partitions = consumer.list_topics(topic, timeout=30).topics[topic].partitions
    return [TopicPartition(topic, number) for number in sorted(partitions)]


class _Application:
    """Programs as one application; its topics begin with its name."""

    def __init__(self, cluster: Topics, programs: Sequence[Program], folder: Path) -> None:
        self._cluster, self.name, self._folder = cluster, cluster.prefix, folder
        self._inputs = [
            f"{self.name}-{node['topic']}"
            for one in programs
            for node in one.nodes
            if node["op"] in ("stream", "table")  # a global table's positions are not the group's
        ]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        cluster.create([topic for one in programs for topic in (*one.inputs, *one.outputs)])
        folder.mkdir(parents=True)
        self._file = folder / "programs.json"
        self._file.write_text(json.dumps([self._renamed(asdict(one)) for one in programs]))

    def _renamed(self, program: dict[str, Any]) -> dict[str, Any]:
        nodes: list[Node] = []
        for node in program["nodes"]:
            own = {"topic": f"{self.name}-{node['topic']}"} if "topic" in node else {}
            nodes.append(node | own)
        return {**program, "nodes": nodes}

    def write(self, records: Sequence[Written]) -> None:
        """Add to the inputs."""
        self._cluster.write(records)

    def take(self, records: Sequence[Written]) -> None:
        """Write them, and wait until all is processed."""
        self.until_running(len(self._processes))
        self.write(records)
        self.until_caught_up()

    def start(self, number: int) -> None:
        log = (self._folder / f"instance-{number}.log").open("ab")
        arguments = [str(self._file), self.name, self._cluster.bootstrap]
        self._processes[number] = subprocess.Popen(
            [sys.executable, str(INSTANCE), *arguments, str(self._folder / f"state-{number}")],
            stdout=log,
            stderr=log,
        )

    def kill(self, number: int) -> None:
        """With all its processes, at once."""
        process = self._processes.pop(number)
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(True)]
        for one in family:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGKILL)
        process.wait(30)

    def end(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        for number, process in list(self._processes.items()):
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                self.kill(number)
        self._processes.clear()

    def until_running(self, count: int) -> None:
        """Until so many have said that they run."""

        def running() -> bool:
            self._require_alive()
            logs = [log.read_text("utf-8", "replace") for log in self._folder.glob("*.log")]
            return sum("RUNNING" in log for log in logs) >= count

        wait_until(running, WAIT_S, f"{count} instances to run", self._last_lines)

    def until_caught_up(self) -> None:
        """Until everything is processed, also what goes through topics in between."""
        internal = f"{self.name}-"

        def done() -> bool:
            self._require_alive()
            looped = [
                topic
                for topic in self._cluster.names()
                if topic.startswith(internal) and topic.endswith("-repartition")
            ]
            behind = self._cluster.behind(self.name, self._inputs)
            # Twice: what a topic is read of is written before it is committed.
            return not any(
                behind or self._cluster.behind(self.name, looped + self._inputs) for _ in range(2)
            )

        wait_until(done, WAIT_S, f"{self.name} to catch up", self._last_lines)

    def _last_lines(self) -> list[str]:
        logs = sorted(self._folder.glob("*.log"))
        return [
            line for log in logs for line in log.read_text("utf-8", "replace").splitlines()[-5:]
        ]

    def _require_alive(self) -> None:
        for number, process in self._processes.items():
            if process.poll() is not None:
                log = (self._folder / f"instance-{number}.log").read_text("utf-8", "replace")
                raise RuntimeError(f"an instance ended with {process.returncode}: {log[-3000:]}")

    def told(self, program: Program) -> dict[str, Any]:
        """The tables of outputs, and of changelogs; of streams each record. Behind a join by a
        foreign key the time is that of whichever side was seen last, and is left out."""
        late = _behind_foreign(program)
        kept = {
            **{topic: f"{self.name}-{topic}" for topic in program.outputs},
            **{store: f"{self.name}-{store}-changelog" for store in program.stores},
        }
        read = self._cluster.read(list(kept.values()))
        found: dict[str, Any] = {}
        for name, topic in kept.items():
            records = read[topic]
            plain = name in program.unordered
            found[name] = sorted(map(repr, records)) if plain else table_of(records, name in late)
        return found


def _behind_foreign(program: Program) -> set[str]:
    """Topics and stores."""
    found, late = set[str](), set[str]()
    for node in program.nodes:
        sides = {node.get(side) for side in ("in", "left", "right")}
        if node["op"] == "foreign" or sides & found:
            found.add(node["id"])
            late |= {str(node[what]) for what in ("topic", "store") if what in node}
    return late


def table_of(records: Sequence[Kept], without_times: bool) -> dict[str, Any]:
    """The table that the records are the changes of."""
    table: dict[str, Any] = {}
    for partition, key, value, at in records:
        table[f"{partition} {key!r}"] = value if without_times else (value, at)
    return {
        key: found
        for key, found in sorted(table.items())
        if (found if without_times else found[0]) is not None
    }
