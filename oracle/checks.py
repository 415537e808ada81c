"""`everflow check` against what a restart on real state does, on drawn pairs of programs.

Some pairs share an application on a real broker. Their old programs read the first half of the
records and are stopped. Then it is asked, of each pair by itself, what the check says of the two
programs and of the stopped application, what a group of the old program would say, and whether a
start accepts the new one; a start that refuses has to leave all as it was. The new programs that
are accepted, and the old ones of the other pairs, read the second half, on the same state folder or
an empty one. What they have written has to be what an application under another name writes that
gets all records in one run: behind a new store, what it writes of the second half alone.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions

from everflow import KafkaStreams, StreamsBuilder, Topology
from everflow.cli.check import facts_of_group, facts_on_cluster
from everflow.clock import SystemClock
from everflow.config import StreamsConfig
from everflow.errors import EverflowError, TopologyError
from everflow.instance.client_state import ClientState
from everflow.instance.start_up import prepare_cluster
from everflow.kafka.admin import ClusterAdmin
from everflow.records import TopicPartition
from everflow.state.task_directory import StateDirectory
from everflow.testing import wait_until
from everflow.testing.broker import EmbeddedBroker
from everflow.topology.compatibility import Change, Effect, changes, effect_of, lines_of
from everflow.topology.known_programs import difference_of_lines
from everflow.topology.program_facts import facts_of
from everflow.topology.store_layouts import fingerprint
from everflow.topology.subtopologies import cut
from oracle.changing import ALONE, KEEPING, TOUCHING, Changed, DrawStored, changed_by
from oracle.instances import Topics, Written, table_of
from oracle.programs import KEYS, VALUES, Program, built, put_in
from oracle.settled import GRACE_MS

TOGETHER = 4
"""Pairs of one application."""
ALONE_EACH = 8
"""Of so many applications one has one pair."""
PARTITIONS = 2
RECORDS = 30
"""Of a pair, in each half."""
WAIT_S = 180.0
REFUSALS = ("EF-INTERNAL-TOPIC", "EF-STORE-LAYOUT")


@dataclass
class Report:
    """A case is a pair. ``answers``: by what the check said and what a start did; ``kinds``: how
    many pairs had a change; ``reasons``: what a change did, by the check's words for it."""

    seed: int
    cases: int = 0
    equal: int = 0
    differing: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    compared: int = 0

    @property
    def clean(self) -> bool:
        """Whether the check and the starts agree."""
        return not self.differing

    @property
    def operators(self) -> list[str]:
        """What was changed."""
        return sorted(self.kinds)

    def said(self) -> str:
        """What became of the cases, in lines."""
        lines = [
            f"{self.equal} agree, {len(self.differing)} differ; {self.compared} tables compared"
        ]
        for name in ("answers", "kinds"):
            lines += [f"  {text}: {count}" for text, count in getattr(self, name).most_common()]
        return "\n".join(lines)

    def more(self) -> dict[str, object]:
        """What the figures of this comparison alone are."""
        return {
            "answers": dict(self.answers),
            "kinds": dict(self.kinds),
            "reasons": dict(self.reasons),
            "tables compared": self.compared,
        }


@dataclass
class Pair:
    """A program, its second version, and what is said of it."""

    name: str
    old: Program
    new: Changed
    keeps: bool
    verdict: Effect = Effect.SAME
    found: list[Change] = field(default_factory=list)
    code: str = ""
    """Why a start was refused; empty: it was accepted."""
    flag: bool = False
    """Accepted with ``create.new.topics``."""
    faults: list[str] = field(default_factory=list)

    @property
    def outcome(self) -> str:
        return "refused, " + self.code if self.code else "new topics" if self.flag else "accepted"

    @property
    def runs(self) -> Program:
        return self.old if self.code else self.new.program

    def told(self) -> str:
        lines = [f"{self.name}, {', '.join(self.new.kinds)}: {self.verdict.text}, {self.outcome}"]
        lines += [f"  {fault}" for fault in self.faults]
        grave = [one for one in self.found if one.effect >= Effect.MIGRATION]
        lines += [f"  said{line}" for one in grave for line in lines_of(one)]
        lines += [
            f"  old {json.dumps(self.old.nodes)}",
            f"  new {json.dumps(self.new.program.nodes)}",
        ]
        return "\n".join(lines)


def compare(cases: int, seed: int) -> Iterator[Report]:
    """Compares ``cases`` pairs of ``seed``; the report so far after each application."""
    drawn, report = random.Random(seed), Report(seed)
    with EmbeddedBroker(heap="1g") as broker:
        for number in range(cases):
            if report.cases >= cases:
                return
            alone = number % ALONE_EACH == ALONE_EACH - 1
            count = 1 if alone else min(TOGETHER, cases - report.cases)
            pairs = [_drawn_pair(drawn, f"p{at}", alone) for at in range(count)]
            with tempfile.TemporaryDirectory(prefix="everflow-checks-") as folder:
                _Case(broker.bootstrap_servers, Path(folder), pairs, drawn, report).run()
            for pair in pairs:
                report.cases += 1
                report.kinds.update(pair.new.kinds)
                report.answers[f"{pair.verdict.text} -> {pair.outcome}"] += 1
                report.reasons.update(
                    {f"{one.kind}: {one.reason[:60]} -> {pair.outcome}" for one in pair.found}
                )
                if pair.faults:
                    report.differing.append(pair.told())
                else:
                    report.equal += 1
            yield report


def _drawn_pair(drawn: random.Random, name: str, alone: bool) -> Pair:
    """One that can be built."""
    while True:
        pair = _drawn(drawn, name, alone)
        with suppress(TopologyError):
            built(pair.new.program)
            return pair


def _drawn(drawn: random.Random, name: str, alone: bool) -> Pair:
    drawing = DrawStored(drawn, name)
    program = drawing.drawn_program()
    if alone:
        new, keeps = changed_by(program, drawn, ALONE, drawn.randint(1, 2)), False
    elif drawn.random() < 0.4:
        new, keeps = changed_by(program, drawn, KEEPING, drawn.randint(1, 3)), True
    else:
        touching = drawn.choice([1, 1, 2])
        new, keeps = changed_by(program, drawn, TOUCHING, touching), False
        if drawn.random() < 0.3:
            more = changed_by(new.program, drawn, KEEPING, 1)
            new = _both(new, more)
    pair = Pair(name, program, new, keeps)
    pair.new.static = set(drawing.static)
    return pair


def _both(one: Changed, two: Changed) -> Changed:
    return replace(
        one,
        program=two.program,
        kinds=one.kinds + two.kinds,
        aside=one.aside | two.aside,
        moved={**one.moved, **two.moved},
    )


@dataclass(frozen=True)
class _Table:
    """An output or a store, whose changelog is read. ``whole``: all of it, else what was written of
    the second half. ``truth``: the topic of the application that has run without a stop."""

    pair: Pair
    name: str
    output: bool
    whole: bool
    topics: list[str]
    truth: str


class _Case:
    """One application and its pairs."""

    def __init__(
        self, bootstrap: str, folder: Path, pairs: list[Pair], drawn: random.Random, report: Report
    ) -> None:
        self._bootstrap, self._folder, self._pairs = bootstrap, folder, pairs
        self._drawn, self._report = drawn, report
        self._app = f"c{uuid.uuid4().hex[:8]}"
        self._truth = f"{self._app}-truth"
        self._admin = ClusterAdmin(self._config(self._app, "state").admin())
        self._counts: dict[str, dict[str, int]] = {self._app: {}, self._truth: {}}

    def run(self) -> None:
        try:
            self._run()
        finally:
            names = [name for name in self._admin.list_topics() if name.startswith(self._app)]
            self._admin.delete_topics(names)  # hundreds: a broker gets slow
            self._admin.close()

    def _run(self) -> None:
        script = _Script(self._pairs, self._drawn)
        topics = {
            topic
            for pair in self._pairs
            for one in (pair.old, pair.new.program)
            for topic in (*one.inputs, *one.outputs)
        }
        self._create(self._app, topics)
        olds = {pair.name: pair.old for pair in self._pairs}
        self._process(self._app, olds, [script.before, script.first], "state")
        for pair in self._pairs:
            self._grow(pair.new.grown)
        self._wait_in_between(self._app, script.latest)
        before, old = self._state(), self._built(self._app, olds)
        for pair in self._pairs:
            self._ask(pair, old, self._built(self._app, {**olds, pair.name: pair.new.program}))
        if self._state() != before:
            self._pairs[0].faults.append("a start that was refused has changed something")
        if not any(pair.code and pair.new.grown for pair in self._pairs):
            self._go_on(script, topics)

    def _go_on(self, script: _Script, topics: set[str]) -> None:
        runs = {pair.name: pair.runs for pair in self._pairs}
        self._ends = self._ends_of(self._app, topics)
        folder = self._drawn.choice(["state", "empty"])
        second = script.second_of(self._pairs)
        flag = any(pair.flag for pair in self._pairs)
        try:
            self._process(self._app, runs, [second, script.last_of(self._pairs)], folder, flag)
        except (EverflowError, AssertionError) as error:
            self._pairs[0].faults.append(f"together on folder {folder}: {error}")
            return
        truth, halves = (
            dict(runs),
            [pair for pair in self._pairs if not pair.code and pair.new.fresh],
        )
        for pair in halves:
            truth[f"h{pair.name}"] = _other_names(pair.runs, pair.name)
        self._create(
            self._truth, {t for one in truth.values() for t in (*one.inputs, *one.outputs)}
        )
        first = _in_the_new(script.first, self._pairs)
        again = [_half(one) for one in second if _is_of(one, halves)]
        last = script.last_of(self._pairs)
        last += [_half(one) for one in last if _is_of(one, halves)]
        self._process(
            self._truth,
            truth,
            [_in_the_new(script.before, self._pairs), first, [*second, *again], last],
            "truth",
            between=lambda: self._wait_in_between(self._truth, script.latest),
        )
        self._compare(folder)

    # --- what is said -----------------------------------------------------------------------------

    def _ask(self, pair: Pair, old: Topology, new: Topology) -> None:
        """``new``: only this pair's program is the second version."""
        pair.found = changes(facts_of(cut(old)), facts_of(cut(new)))
        topics = {name: shape.partitions for name, shape in self._admin.list_topics().items()}
        config = self._config(self._app, "state")
        application, before = facts_of_group(self._app, topics, config, self._admin)
        try:
            asked = facts_on_cluster(
                new, application_id=self._app, topics=topics, before=before, optimization="none"
            )
            stopped = changes(application, asked)
        except EverflowError as error:
            pair.faults.append(f"the check of the application failed: {error}")
            stopped = []
        misfits = [one for one in stopped if one.kind == "partitions"]
        pair.found += [one for one in misfits if pair.new.grown]
        pair.verdict = effect_of(pair.found)
        grave, graver = pair.verdict >= Effect.MIGRATION, effect_of(stopped) >= Effect.MIGRATION
        if grave != graver:
            pair.faults.append(
                f"of the application the check says {effect_of(stopped).text}: "
                f"{[(c.kind, c.name, c.reason) for c in stopped if c.effect >= Effect.MIGRATION]}"
            )
        lines = [fingerprint(cut(one)) for one in (old, new)]
        # A number of partitions is refused by the start, before an instance asks a group.
        between = [one for one in pair.found if one.kind != "partitions"]
        if (effect_of(between) >= Effect.MIGRATION) != (lines[0] != lines[1]):
            pair.faults.append(f"a group says: {difference_of_lines(*lines) or 'welcome'}")
        pair.code = self._refusal(new)
        if pair.code == "EF-INTERNAL-TOPIC" and not self._refusal(new, flag=True):
            pair.code, pair.flag = "", True
        if pair.code and pair.code not in REFUSALS:
            pair.faults.append(f"refused with {pair.code}")
        if not grave and (pair.code or pair.flag):
            pair.faults.append(f"said to be safe, and the start is not: {pair.outcome}")
        if pair.verdict is Effect.RESET and not pair.code and not _drained(pair):
            pair.faults.append("said to need a reset, and accepted")
        if pair.new.written and self._waits(pair) and pair.code != "EF-STORE-LAYOUT":
            pair.faults.append(f"records wait with another type, and the start says {pair.outcome}")

    def _refusal(self, topology: Topology, *, flag: bool = False) -> str:
        """The code with which a start refuses, before it has done anything; nothing is created."""
        config = self._config(self._app, "state", create_new_topics=flag)
        directory = StateDirectory.open(Path(config.state_dir), self._app)
        admin = _Looking(config.admin())
        try:
            prepare_cluster(topology, config, admin, directory, SystemClock(), threading.Event())
        except EverflowError as error:
            return str(error.code)
        finally:
            admin.close()
            directory.close()
        return ""

    def _state(self) -> object:
        """All that a start that is refused leaves as it is."""
        topics = {name: one.partitions for name, one in self._admin.list_topics().items()}
        folder = self._folder / "state" / self._app
        files = sorted(str(one) for one in folder.glob("*_*/**/*") if one.name != "lock.mdb")
        ends = self._ends_of(self._app, [n for n in topics if n.startswith(self._app)], whole=True)
        return topics, self._admin.all_committed(self._app), files, ends

    # --- what becomes of it -----------------------------------------------------------------------

    def _compare(self, folder: str) -> None:
        """All pairs' tables, read at once."""
        asked = [one for pair in self._pairs for one in self._tables(pair)]
        topics = {topic for one in asked for topic in (*one.topics, one.truth)}
        cluster = Topics(self._bootstrap, "")
        found = cluster.read_with_offsets(sorted(topics)) if topics else {}
        for one in asked:
            have = [record for topic in one.topics for record in found[topic]]
            if one.output and not one.whole:
                have = [record for record in have if self._since(one.topics[-1], record)]
            runs = one.pair.runs
            late = one.name in _behind_joins(runs)
            told = [
                sorted(repr(record[1:4]) for record in records)
                if one.name in runs.unordered
                else table_of([(0, *_in_order(record)) for record in records], late)
                for records in (have, found[one.truth])
            ]
            self._report.compared += 1
            if told[0] != told[1]:
                half = "" if one.whole else ", of the second half alone"
                one.pair.faults.append(
                    f"{one.name} on folder {folder}{half}:\n    is  {told[0]}\n    not {told[1]}"
                )

    def _tables(self, pair: Pair) -> Iterator[_Table]:
        changed, runs = pair.new if not pair.code else Changed(pair.old), pair.runs
        for name, node in _compared(runs):
            above = changed.above(node)
            if above & changed.aside:
                continue
            whole = not above & changed.fresh
            if not whole and not _all_fresh(changed, above):
                continue
            output = name in runs.outputs
            behind = "" if output else "-changelog"
            before = [f"{self._app}-{changed.moved[name]}"] if name in changed.moved else []
            other = name if whole else _other_name(name, pair.name)
            yield _Table(
                pair,
                name,
                output,
                whole,
                [*before, f"{self._app}-{name}{behind}"],
                f"{self._truth}-{other}{behind}",
            )

    def _since(self, topic: str, record: tuple[Any, ...]) -> bool:
        return bool(record[4] >= self._ends.get(TopicPartition(topic, record[0]), 0))

    def _ends_of(
        self, application: str, topics: Sequence[str] | set[str], *, whole: bool = False
    ) -> dict[TopicPartition, int]:
        shapes = self._admin.list_topics()
        names = topics if whole else [f"{application}-{topic}" for topic in topics]
        asked = [
            TopicPartition(name, number)
            for name in names
            if name in shapes
            for number in range(shapes[name].partitions)
        ]
        return self._admin.end_offsets(asked, "read_uncommitted")

    # --- on the cluster ---------------------------------------------------------------------------

    def _config(self, application: str, folder: str, **more: Any) -> StreamsConfig:
        return StreamsConfig(
            application_id=application,
            bootstrap_servers=self._bootstrap,
            state_dir=str(self._folder / folder),
            num_stream_threads=1,
            emit_every_update=True,
            processing_guarantee="exactly_once_v2",
            **more,
        )

    def _built(self, application: str, programs: Mapping[str, Program]) -> Topology:
        builder = StreamsBuilder()
        for program in programs.values():
            put_in(builder, _renamed(program, application))
        return builder.build()

    def _create(self, application: str, topics: set[str]) -> None:
        Topics(self._bootstrap, application).create(sorted(topics), PARTITIONS)
        self._counts[application] = dict.fromkeys(topics, PARTITIONS)

    def _grow(self, grown: Mapping[str, int]) -> None:
        admin = AdminClient({"bootstrap.servers": self._bootstrap})
        for topic, count in grown.items():
            name = f"{self._app}-{topic}"
            admin.create_partitions([NewPartitions(name, count)])[name].result(30)
            wait_until(
                lambda n=name, c=count: self._admin.list_topics()[n].partitions == c,  # type: ignore[misc]
                30,
                f"{name} to grow",
            )
            self._counts[self._app][topic] = count

    def _write(self, application: str, records: Sequence[Written]) -> None:
        cluster = Topics(self._bootstrap, application)
        by_count: dict[int, list[Written]] = {}
        for record in records:
            count = self._counts[application].get(record[0], PARTITIONS)
            by_count.setdefault(count, []).append(record)
        for count, some in by_count.items():
            cluster.write(some, count)

    def _waits(self, pair: Pair) -> list[str]:
        """Repartition topics in which records are put."""
        return pair.new.written if pair.new.kinds == ["another type in a repartition"] else []

    def _wait_in_between(self, application: str, latest: int) -> None:
        """Records of the old type."""
        for pair in self._pairs:
            for name in self._waits(pair):
                old = next(n for n in pair.old.nodes if n.get("name", n["id"]) == name)
                text = json.dumps({old["boxed"]: "x"}) if "boxed" in old else "x"
                topic = f"{name}-repartition"
                self._write(application, [(topic, f"wait{n}", text, latest) for n in range(3)])

    def _process(
        self,
        application: str,
        programs: Mapping[str, Program],
        parts: Sequence[Sequence[Written]],
        folder: str,
        flag: bool = False,
        between: Callable[[], None] | None = None,
    ) -> None:
        """Runs an instance until it has processed one part after the other."""
        streams = KafkaStreams(
            self._built(application, programs),
            self._config(application, folder, create_new_topics=flag),
        )
        inputs = {
            node["topic"]
            for one in programs.values()
            for node in one.nodes
            if node["op"] in ("stream", "table")
        }
        try:
            streams.start()
            wait_until(lambda: _running(streams), WAIT_S, "state RUNNING", lambda: [streams.state])
            for number, records in enumerate(parts):
                self._write(application, records)
                self._until_caught_up(streams, application, inputs)
                if between is not None and number == 1:
                    between()
        finally:
            with suppress(EverflowError):
                streams.close(60.0)

    def _until_caught_up(self, streams: KafkaStreams, application: str, inputs: set[str]) -> None:
        behind: list[str] = []

        def done() -> bool:
            behind.clear()
            for _ in range(2):  # what a topic is read of is written before it is committed
                behind.extend(self._behind(application, inputs))
            return _running(streams) and not behind

        wait_until(done, WAIT_S, f"{application} to catch up", lambda: behind)

    def _behind(self, application: str, inputs: set[str]) -> list[str]:
        shapes = self._admin.list_topics()
        names = [f"{application}-{topic}" for topic in inputs]
        names += [
            n for n in shapes if n.startswith(f"{application}-p") and n.endswith("-repartition")
        ]
        asked = [
            TopicPartition(name, number)
            for name in names
            for number in range(shapes[name].partitions)
        ]
        ends = self._admin.end_offsets(asked, "read_committed")
        have = self._admin.all_committed(application)
        return [str(tp) for tp, end in ends.items() if end > have.get(tp, 0)]


class _Looking(ClusterAdmin):
    """Creates nothing."""

    def create_topics(self, topics: Mapping[str, Any], *_: Any, **__: Any) -> set[str]:
        return set(topics)


def _running(streams: KafkaStreams) -> bool:
    if streams.error is not None:
        raise streams.error
    return streams.state is ClientState.RUNNING


def _drained(pair: Pair) -> bool:
    """Keys of another type in a topic that was read to its end are accepted."""
    reset = [one for one in pair.found if one.effect is Effect.RESET]
    return all(one.kind == "repartition topic" for one in reset)


def _compared(program: Program) -> Iterator[tuple[str, str]]:
    """Outputs and stores, and the nodes that they are of."""
    for node in program.nodes:
        if node["op"] == "sink":
            yield node["topic"], node["id"]
        for what in ("store", "map", "calls"):
            if node.get(what) in program.stores:
                yield node[what], node["id"]


def _behind_joins(program: Program) -> set[str]:
    """Outputs and stores behind joins of tables: a result has the time of whichever side was seen
    last, and a side that was deleted has none any more."""
    whole = Changed(program)
    joins = {
        node["id"]
        for node in whole.of("join", "foreign")
        if node["op"] == "foreign" or whole.is_table(node["id"])
    }
    return {name for name, node in _compared(program) if whole.above(node) & joins}


def _in_order(record: tuple[Any, ...]) -> tuple[bytes | None, bytes | None, int]:
    """Key, value and time; the entries of a map, whose order is that of batches, by its keys."""
    key, value, at = record[1:4]
    if value is not None and value.startswith(b"{"):
        value = json.dumps(json.loads(value), sort_keys=True).encode()
    return key, value, at


def _all_fresh(changed: Changed, above: set[str]) -> bool:
    """Whether all that is stored there is new, and its times are no matter."""
    nodes = [changed.node(name) for name in above]
    stateful = [one for one in nodes if "store" in one or "windows" in one or one["op"] == "table"]
    return all(one["id"] in changed.fresh for one in stateful) and not any(
        map(changed.is_timed, above)
    )


def _renamed(program: Program, application: str) -> Program:
    nodes = [
        node | ({"topic": f"{application}-{node['topic']}"} if "topic" in node else {})
        for node in program.nodes
    ]
    return replace(program, nodes=nodes)


def _other_name(name: str, pair: str) -> str:
    return f"h{name}" if name.startswith(pair) else name


def _other_names(program: Program, pair: str) -> Program:
    """The program under other names."""

    def other(value: Any) -> Any:
        if isinstance(value, str):
            return _other_name(value, pair)
        if isinstance(value, list):
            return [other(one) for one in value]
        if isinstance(value, dict):
            return {name: other(one) for name, one in value.items()}
        return value

    return Program(**other(asdict(program)))


def _half(record: Written) -> Written:
    return (f"h{record[0]}", *record[1:])


def _is_of(record: Written, pairs: Sequence[Pair]) -> bool:
    return any(record[0].startswith(f"{pair.name}") for pair in pairs)


def _in_the_new(records: Sequence[Written], pairs: Sequence[Pair]) -> list[Written]:
    """For those who read another input in the place of one: it has been there from the beginning.
    Without what nobody reads any more."""
    new = {old: name for pair in pairs if not pair.code for name, old in pair.new.replaced.items()}
    read = {topic for pair in pairs for topic in pair.runs.inputs}
    found = [(new.get(topic, topic), *rest) for topic, *rest in records]
    return [one for one in found if one[0] in read]  # type: ignore[misc]


class _Script:
    """What is written: tables that are looked up before all else, then two halves, and last of all
    records that close windows. Some topics are behind the others, and some records of the second
    half are older than all of the first."""

    def __init__(self, pairs: Sequence[Pair], drawn: random.Random) -> None:
        self._latest = int(time.time() * 1000) - 4 * GRACE_MS
        self._drawn = drawn
        self._keys = [f"{key}{number}" for key in KEYS for number in range(2)]
        self._static = {topic for pair in pairs for topic in pair.new.static}
        topics = {topic for pair in pairs for topic in pair.old.inputs}
        self._behind = {topic: drawn.choice([0, 0, 0, 300]) for topic in sorted(topics)}
        self.before = [
            self._record(topic) for topic in sorted(self._static) for _ in range(RECORDS // 3)
        ]
        self._latest += 1_000
        self.first = self._half(pairs, late=False)
        self.latest = self._latest
        self._second = self._half(pairs, late=True)

    def _record(self, topic: str, back: int = 0) -> Written:
        self._latest += self._drawn.choice([0, 1, 3, 10])
        value = None if self._drawn.random() < 0.1 else self._drawn.choice(VALUES)
        back += self._drawn.choice([0, 0, 0, 5, 25]) + self._behind.get(topic, 0)
        return topic, self._drawn.choice(self._keys), value, self._latest - back

    def _half(self, pairs: Sequence[Pair], *, late: bool) -> list[Written]:
        found = []
        for number in range(RECORDS):
            for pair in pairs:
                topics = [one for one in pair.old.inputs if one not in self._static]
                back = self._drawn.choice([0, 120, 250]) if late and number < 8 else 0
                found.append(self._record(self._drawn.choice(topics), back))
        return found

    def second_of(self, pairs: Sequence[Pair]) -> list[Written]:
        """As the programs that go on read it: into new inputs as well."""
        found = _in_the_new(self._second, pairs)
        added = {
            topic
            for pair in pairs
            if not pair.code
            for topic in pair.new.program.inputs
            if topic not in pair.old.inputs and topic not in pair.new.replaced
        }
        state = random.Random(1)
        return found + [
            (topic, state.choice(self._keys), "x", self._latest)
            for topic in sorted(added)
            for _ in range(5)
        ]

    def last_of(self, pairs: Sequence[Pair]) -> list[Written]:
        inputs = [topic for pair in pairs for topic in pair.runs.inputs]
        last = self._latest + 2 * GRACE_MS
        return [
            (topic, key, "last", last)
            for topic in inputs
            if topic not in self._static
            for key in _ENDS
        ]


_ENDS = ("end0", "end1", "end2", "end3", "end4", "end5")
"""Of each partition at least one."""
