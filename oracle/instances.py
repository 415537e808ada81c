"""One instance against several that are killed: programs whose tables do not depend on how records
of different partitions meet give the same tables on a real broker (I8).

Several programs are drawn and run side by side as one application: first on three instances, one of
which is killed with all its processes while it works and comes back, with its input in parts; then,
under another name, on one instance that finds all of its input. What both have written has to be
equal: outputs, and the changelogs of all stores, with their times.
"""

from __future__ import annotations

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
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from everflow.runtime.query.key_metadata import default_partitioner
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from oracle.programs import KEYS, VALUES, Node, Program

TOGETHER = 6
"""Programs of one application."""
PARTITIONS = 3
INSTANCES = 3
RECORDS = 120
"""Of a program, in three parts."""
GRACE_MS = 3_600_000
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


class DrawSettled:
    """Draws one program whose tables follow from each key's records in their order. Its nodes,
    topics and stores are called after ``name``."""

    def __init__(self, drawn: random.Random, name: str) -> None:
        self._drawn, self._name = drawn, name
        self.program = Program()
        self._streams: dict[str, bool] = {}
        """Whether the key has changed: then records of a key come from several partitions."""
        self._tables: list[str] = []

    def drawn_program(self) -> Program:
        for _ in range(2):
            self._streams[self._add("stream", topic=self._input())] = False
        self._table("table", topic=self._input())
        for _ in range(self._drawn.randint(3, 6)):
            self._drawn.choice(
                [
                    *(self._count, self._count, self._fold, self._windows, self._to_table),
                    *(self._join_tables, self._join_tables, self._join_streams, self._foreign),
                    *(self._group, self._derive, self._rekey, self._merge),
                ]
            )()
        for table in self._tables:
            self._sink(self._add("to_stream", **{"in": table}))
        return self.program

    def _add(self, op: str, **more: Any) -> str:
        name = f"{self._name}n{len(self.program.nodes)}"
        self.program.nodes.append({"op": op, "id": name, **more})
        return name

    def _input(self) -> str:
        self.program.inputs.append(f"{self._name}in{len(self.program.inputs)}")
        return self.program.inputs[-1]

    def _store(self) -> str:
        return f"{self._name}store{len(self.program.nodes)}"

    def _table(self, op: str, **more: Any) -> None:
        store = self._store()
        self._tables.append(self._add(op, store=store, **more))
        self.program.stores.append(store)

    def _sink(self, stream: str) -> None:
        topic = f"{self._name}out{len(self.program.outputs)}"
        self.program.outputs.append(topic)
        self._add("sink", **{"in": stream}, topic=topic)

    def _stream(self, changed: bool | None = None) -> str:
        found = [name for name, is_ in self._streams.items() if changed is None or is_ == changed]
        return self._drawn.choice(found)

    def _count(self) -> None:
        self._table("count", **{"in": self._stream()})

    def _fold(self) -> None:
        self._table(self._drawn.choice(["reduce", "aggregate"]), **{"in": self._stream(False)})

    def _windows(self) -> None:
        windows: dict[str, Any] = {"gap": 30, "grace": GRACE_MS, "results": "each"}
        if self._drawn.random() < 0.5:
            windows = {"size": 40, "advance": 20, "grace": GRACE_MS, "results": "each"}
        given = self._add("filter", **{"in": self._stream(False)}, without="\0")
        store = self._store()
        self._sink(self._add("count", **{"in": given}, store=store, windows=windows))
        self.program.stores.append(store)

    def _to_table(self) -> None:
        self._table("to_table", **{"in": self._stream(False)})

    def _join_tables(self) -> None:
        if len(self._tables) > 1:
            left, right = self._drawn.sample(self._tables, 2)
            kind = self._drawn.choice(["inner", "left", "outer"])
            self._table("join", left=left, right=right, kind=kind)

    def _join_streams(self) -> None:
        found = [name for name, changed in self._streams.items() if not changed]
        if len(found) > 1:
            left, right = self._drawn.sample(found, 2)
            windows = {"before": 20, "after": 30, "grace": GRACE_MS}
            more = {"left": left, "right": right, "kind": "inner", "windows": windows}
            self._sink(self._add("join", store=self._store(), **more))

    def _foreign(self) -> None:
        if len(self._tables) > 1:
            left, right = self._drawn.sample(self._tables, 2)
            self._table(
                "foreign", left=left, right=right, kind=self._drawn.choice(["inner", "left"])
            )

    def _group(self) -> None:
        tables = [node["id"] for node in self.program.nodes if node["op"] in ("table", "to_table")]
        self._table("group_count", **{"in": self._drawn.choice(tables)})

    def _derive(self) -> None:
        how = self._drawn.choice(
            [{"op": "filter", "without": "x"}, {"op": "map_values", "suffix": "q"}]
        )
        given = self._stream()
        op = how.pop("op")
        self._streams[self._add(op, **{"in": given}, **how)] = self._streams[given]

    def _rekey(self) -> None:
        self._streams[self._add("select_key", **{"in": self._stream()})] = True

    def _merge(self) -> None:
        """Behind it the records of a key come from two topics: only what counts may follow."""
        left, right = self._stream(), self._stream()
        if left != right:
            self._streams[self._add("merge", left=left, right=right)] = True


def compare(cases: int, seed: int) -> Iterator[Report]:
    """Compares ``cases`` programs of ``seed``; the report so far after each application."""
    drawn, report = random.Random(seed), Report(seed)
    with EmbeddedBroker() as broker:
        while report.cases < cases:
            count = min(TOGETHER, cases - report.cases)
            programs = [DrawSettled(drawn, f"p{at}").drawn_program() for at in range(count)]
            with tempfile.TemporaryDirectory(prefix="everflow-instances-") as folder:
                _compare(programs, drawn, broker.bootstrap_servers, Path(folder), report)
            yield report


def _compare(
    programs: Sequence[Program], drawn: random.Random, bootstrap: str, folder: Path, report: Report
) -> None:
    name = f"i{uuid.uuid4().hex[:8]}"
    cluster = _Topics(bootstrap, name)
    cluster.create([topic for program in programs for topic in program.inputs])
    several, one = (
        _Application(cluster, programs, f"{name}-{how}", folder / how) for how in ("several", "one")
    )
    parts = _parts(programs, drawn)
    with ExitStack() as running:
        running.callback(several.end)
        for number in range(INSTANCES):
            several.start(number)
        several.until_running(INSTANCES)
        cluster.write(parts[0])
        several.until_caught_up()
        cluster.write(parts[1])
        victim = drawn.randrange(INSTANCES)
        several.kill(victim)
        report.kills += 1
        cluster.write(parts[2])
        several.start(victim)
        several.until_caught_up()
    with ExitStack() as running:
        running.callback(one.end)
        one.start(0)
        one.until_caught_up()
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


def _parts(programs: Sequence[Program], drawn: random.Random) -> list[list[Written]]:
    """Three parts of the input: each topic's times rise with some disorder, an hour ago."""
    latest, found = int(time.time() * 1000) - GRACE_MS // 2, list[Written]()
    keys = [f"{key}{number}" for key in KEYS for number in range(3)]
    for _ in range(RECORDS):
        latest += drawn.choice([0, 1, 3, 10, 40])
        for program in programs:
            value = None if drawn.random() < 0.1 else drawn.choice(VALUES)
            at = latest - drawn.choice([0, 0, 0, 5, 25])
            found.append((drawn.choice(program.inputs), drawn.choice(keys), value, at))
    third = len(found) // 3
    return [found[:third], found[third : 2 * third], found[2 * third :]]


class _Topics:
    """Topics of one comparison, all beginning with ``prefix``."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap, self.prefix = bootstrap, prefix
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, names: Sequence[str]) -> None:
        topics = [NewTopic(f"{self.prefix}-{name}", PARTITIONS, 1) for name in names]
        for future in self._admin.create_topics(topics, operation_timeout=30).values():
            future.result(30)

    def names(self) -> list[str]:
        """Of all topics there are."""
        return sorted(self._admin.list_topics(timeout=30).topics)

    def write(self, records: Sequence[Written]) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap})
        for topic, key, value, at in records:
            partition = default_partitioner((key or "").encode(), PARTITIONS)
            producer.produce(f"{self.prefix}-{topic}", value, key, partition, timestamp=at)
        assert producer.flush(60) == 0

    def read(self, topic: str) -> list[tuple[int, bytes | None, bytes | None, int]]:
        """What a reader of committed records sees: partition, key, value, time."""
        consumer, found = self._consumer("read"), []
        try:
            for tp in _of(consumer, topic):
                start, end = consumer.get_watermark_offsets(tp, 30)
                consumer.assign([TopicPartition(topic, tp.partition, start)])
                position = start
                while position < end:
                    message = consumer.poll(0.2)
                    if message is not None and message.error() is None:
                        record = message.key(), message.value(), message.timestamp()[1]
                        found.append((tp.partition, *record))
                    position = max(position, consumer.position([tp])[0].offset)
        finally:
            consumer.close()
        return found

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

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
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
    """Programs as one application; its outputs begin with its name."""

    def __init__(
        self, cluster: _Topics, programs: Sequence[Program], name: str, folder: Path
    ) -> None:
        self._cluster, self.name, self._folder = cluster, name, folder
        self._inputs = [f"{cluster.prefix}-{topic}" for one in programs for topic in one.inputs]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        cluster.create([f"{self._of_prefix()}{topic}" for one in programs for topic in one.outputs])
        folder.mkdir(parents=True)
        self._file = folder / "programs.json"
        self._file.write_text(json.dumps([self._renamed(asdict(one)) for one in programs]))

    def _of_prefix(self) -> str:
        return f"{self.name.removeprefix(self._cluster.prefix + '-')}-"

    def _renamed(self, program: dict[str, Any]) -> dict[str, Any]:
        nodes: list[Node] = []
        for node in program["nodes"]:
            begin = self.name if node["op"] == "sink" else self._cluster.prefix
            nodes.append(node | {"topic": f"{begin}-{node['topic']}"} if "topic" in node else node)
        return {**program, "nodes": nodes}

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
        """The tables of outputs, and of changelogs; of pairs of a stream join each. Behind a join
        by a foreign key the time is that of whichever side was seen last, and is left out."""
        pairs = {
            node["topic"]
            for node in program.nodes
            if node["op"] == "sink" and self._op(program, node["in"]) == "join"
        }
        late = _behind_foreign(program)
        found: dict[str, Any] = {}
        for topic in program.outputs:
            records = self._cluster.read(f"{self.name}-{topic}")
            found[topic] = (
                sorted(map(repr, records)) if topic in pairs else _last(records, topic in late)
            )
        for store in program.stores:
            records = self._cluster.read(f"{self.name}-{store}-changelog")
            found[store] = _last(records, store in late)
        return found

    @staticmethod
    def _op(program: Program, name: str) -> str:
        return str(next(node["op"] for node in program.nodes if node["id"] == name))


def _behind_foreign(program: Program) -> set[str]:
    """Topics and stores."""
    found, late = set[str](), set[str]()
    for node in program.nodes:
        sides = {node.get(side) for side in ("in", "left", "right")}
        if node["op"] == "foreign" or sides & found:
            found.add(node["id"])
            late |= {str(node[what]) for what in ("topic", "store") if what in node}
    return late


def _last(
    records: Sequence[tuple[int, bytes | None, bytes | None, int]], without_times: bool
) -> dict[str, Any]:
    """The table that the records are the changes of."""
    table: dict[str, Any] = {}
    for partition, key, value, at in records:
        table[f"{partition} {key!r}"] = value if without_times else (value, at)
    return {
        key: found
        for key, found in sorted(table.items())
        if (found if without_times else found[0]) is not None
    }
