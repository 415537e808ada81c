"""Operators against Kafka Streams itself: drawn programs and scripts, in its TopologyTestDriver and
in ours (`programs` says what they are)."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from bench.java_program import java_command
from everflow import LogAndSkipOnInvalidTimestamp, Topology, serdes
from everflow.errors import EverflowError
from everflow.jvm import resolve_jars
from everflow.operators.optimization import REUSE_SOURCE_TOPICS, optimized
from everflow.testing import InputTopic, TopologyTestDriver
from oracle.book import Book, drawn_programs, programs_with
from oracle.cuts import Records, batches, left_out, taken_in_turn, unsettled
from oracle.drawing import WIDE_MS
from oracle.processors import TEXT
from oracle.programs import BAD, ODD, Node, Program, built, script
from oracle.restored import RestoringDriver

SOURCES = Path(__file__).with_name("java")
SCRIPTS_A_PROGRAM = 8
"""Each program is planned once, its Columns with Spark's help."""
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A JVM that runs for minutes, beside others: half its time would go into compiling."""
RECORDS = 25
Both: TypeAlias = "tuple[dict[str, Any], dict[str, Any]]"
"""What everflow and Kafka Streams told of one script."""
LOST = "lost"
"""In place of a key: all state is lost here."""
_BYTES = {BAD: b"\xfe", ODD: b"\xff"}
RAW = serdes.bytes_()
LETTERS = "abcpqrtxyz&_-"
"""All keys that there can be."""


@dataclass
class Report:
    """A case is a program with one script. ``book``: in how many each operator was."""

    seed: int
    cases: int = 0
    equal: int = 0
    differing: list[str] = field(default_factory=list)
    book: Book = field(default_factory=Book)

    @property
    def clean(self) -> bool:
        """Whether nothing differs."""
        return not self.differing

    @property
    def operators(self) -> list[str]:
        """What was compared."""
        return sorted(self.book.operators)

    def said(self) -> str:
        """What became of the cases, in lines."""
        counts = ", ".join(f"{name} {count}" for name, count in self.book.operators.most_common())
        equal = f"{self.equal} equal, {len(self.differing)} differ"
        return f"{equal}\n  in programs: {counts}\n  {self.book.said()}"

    def more(self) -> dict[str, object]:
        """What the figures of this comparison alone are."""
        return {"programs": dict(self.book.operators), "pairs": self.book.counted()}


def compare(cases: int, seed: int, having: str | None = None) -> Iterator[Report]:
    """Compares ``cases`` cases of ``seed``, of programs ``having`` this of `book.STATEFUL`; the
    report so far after each program."""
    drawn, report = random.Random(seed), Report(seed)
    with kafka_streams() as ask:
        own = random.Random(drawn.random())
        for program in drawn_programs(own) if having is None else programs_with(having, own):
            if report.cases >= cases:
                return
            topology = built(program)
            scripts = [
                with_a_loss(
                    batches(script(program, drawn, drawn.randint(1, RECORDS)), drawn, topology),
                    drawn,
                )
                for _ in range(SCRIPTS_A_PROGRAM)
            ]
            _compare(program, topology, scripts, ask, report)
            yield report


def told_by_both(
    program: Program, topology: Topology, cuts: list[list[Records]], ask: Any
) -> list[Both]:
    """What everflow and Kafka Streams, whom ``ask`` asks, make of one program with each of these
    scripts, cut into micro-batches: ``outputs`` by topic, and ``stores``, made comparable."""
    one_by_one = [
        [record for batch in cut for record in batch if record[1] != LOST] for cut in cuts
    ]
    times = [times_asked(records) for records in one_by_one] if program.versioned else []
    answer = ask({**asdict(program), "scripts": one_by_one, "as_of": times})
    reused = optimized(topology, REUSE_SOURCE_TOPICS if program.reuses else "none")
    settings: dict[str, Any] = {
        "emit_every_update": True,
        "exception_handlers": {"deserialization": "continue"},
        "default_timestamp_extractor": LogAndSkipOnInvalidTimestamp(),
    }
    try:
        with closing(RestoringDriver(reused, **settings)) as driver:
            told_here = [_run(driver, program, cut) for cut in cuts]
    finally:
        theirs = answer()
    if "error" in theirs:
        raise RuntimeError(f"Kafka Streams: {theirs['error']}\n{json.dumps(asdict(program))}")
    both = list(zip(told_here, theirs["runs"], strict=True))
    for cut, (ours, run) in zip(cuts, both, strict=True):
        _make_comparable(program, cut, ours, run)
    return both


def _make_comparable(program: Program, cut: list[Records], *both: dict[str, Any]) -> None:
    """Leaves out what is different on purpose, or not settled (docs/differences.md)."""
    in_turn = taken_in_turn(program)
    cuts = unsettled(program) if any(len(batch) > 1 for batch in cut) else set[str]()
    _leave_out(program, cuts | in_turn.unknown, *both)
    _forget_headers(program, *both)
    _forget_told_twice(program, *both)
    for one in both:
        for topic in program.unordered:
            one["outputs"].get(topic, []).sort(key=json.dumps)
        for topic in _outputs_of(program, in_turn.of_keys):
            one["outputs"].get(topic, []).sort(key=lambda result: str(result[0]))


def _compare(
    program: Program, topology: Topology, scripts: list[list[Records]], ask: Any, report: Report
) -> None:
    report.book.add(program)
    try:
        both = told_by_both(program, topology, scripts, ask)
    except EverflowError as error:
        report.cases += len(scripts)
        text = (
            f"{program.shape()}: everflow fails\n  program {json.dumps(program.nodes)}\n  {error}"
        )
        report.differing += [text] * len(scripts)
        return
    for cut, (ours, theirs) in zip(scripts, both, strict=True):
        report.cases += 1
        if ours == theirs:
            report.equal += 1
        else:
            report.differing.append(_told(program, cut, ours, theirs))


def _outputs_of(program: Program, names: set[str]) -> list[str]:
    sinks = [node for node in program.nodes if node["op"] == "sink"]
    return [node["topic"] for node in sinks if node["id"] in names]


def _leave_out(program: Program, behind: set[str], *told: dict[str, Any]) -> None:
    outputs, stores, times = left_out(program, behind)
    for one in told:
        for name in outputs:
            one["outputs"].pop(name, None)
        for name in stores:
            one["stores"].pop(name, None)
        for name in times & one["stores"].keys():
            one["stores"][name] = [entry[:2] for entry in one["stores"][name]]


def _forget_headers(program: Program, *told: dict[str, Any]) -> None:
    """Those of updates of sessions and of what is behind them, which have none in the original, and
    of results without a match, which it may tell with another record (docs/differences.md)."""
    behind = set[str]()
    for node in program.nodes:
        windows = node.get("windows", {})
        sides = {node.get(side) for side in ("in", "left", "right")}
        if sides & behind or ("gap" in windows and windows["results"] != "final"):
            behind.add(node["id"])
    topics = {
        node["topic"] for node in program.nodes if node["op"] == "sink" and node["id"] in behind
    }
    for one in told:
        for topic, results in one["outputs"].items():
            for result in results:
                if topic in topics or (topic in program.unordered and "_" in (result[1] or "")):
                    result[3] = []


def _forget_told_twice(program: Program, *told: dict[str, Any]) -> None:
    """Results without a match of records that have one as well: the original emits one at once
    where a window is over and its grace is not, and others later than when they close
    (docs/differences.md). Where windows are wide nothing is late, and they count."""
    joins = {
        node["id"]
        for node in program.nodes
        if node["op"] == "join" and node.get("windows", {}).get("before", WIDE_MS) < WIDE_MS
    }
    sinks = [node for node in program.nodes if node["op"] == "sink" and node["in"] in joins]
    for topic in {node["topic"] for node in sinks}.intersection(program.unordered):
        known = [one["outputs"][topic] for one in told if topic in one["outputs"]]
        rows = {(row[0], row[1]) for one in known for row in one}
        for one in known:
            one[:] = [row for row in one if not _has_a_match_too(row[0], row[1], rows)]


def _has_a_match_too(key: str | None, value: str, rows: set[tuple[str | None, str]]) -> bool:
    left, right = value.removesuffix("_"), value.removeprefix("_")
    return any(
        (left != value and its.startswith(left)) or (right != value and its.endswith(right))
        for its_key, its in rows
        if its_key == key and its != value
    )


def with_a_loss(cut: list[Records], drawn: random.Random) -> list[Records]:
    """Half of the scripts: at a drawn place all state is lost, and restored. In place of a value
    is what says how."""
    if drawn.random() < 0.5:
        return cut
    at = drawn.randint(0, len(cut))
    return [*cut[:at], [[None, LOST, drawn.randrange(1 << 30), 0, []]], *cut[at:]]


def times_asked(records: Records) -> list[int]:
    """At which a versioned store is looked up behind a script."""
    latest = max(record[3] for record in records)
    return list(range(max(0, latest - 70), latest + 8, 7))


def _run(driver: RestoringDriver, program: Program, cut: list[Records]) -> dict[str, Any]:
    inputs = {topic: driver.create_input_topic(topic, RAW, RAW) for topic in program.inputs}
    for records in cut:
        if records[0][1] == LOST:
            driver.lose_state(random.Random(records[0][2]))
            continue
        if records[0][0] is None:
            driver.advance_wall_clock_time(records[0][3])
            continue
        piped: dict[InputTopic, list[tuple[Any, ...]]] = {topic: [] for topic in inputs.values()}
        for topic, key, value, time, headers in records:
            listed = [
                (name, None if one is None else one.encode("latin-1")) for name, one in headers
            ]
            piped[inputs[topic]].append((_bytes(key), _bytes(value), time, listed))
        driver.pipe_batch(piped)
    outputs = {
        topic: [
            [one.key, one.value, one.timestamp, _texts(one.headers)]
            for one in driver.create_output_topic(topic, TEXT, TEXT).read_records()
        ]
        for topic in program.outputs
    }
    stores = {
        name: [
            [key, str(entry.value), entry.timestamp]
            for key, entry in driver.get_key_value_store(name).all_with_timestamps()
        ]
        for name in program.stores
    }
    times = times_asked([record for records in cut for record in records])
    for name in program.versioned:
        store = driver.get_versioned_store(name)
        asked = [(key, time, store.get_as_of(key, time)) for key in LETTERS for time in times]
        stores[name] = [
            [key, time, found.value, found.timestamp] for key, time, found in asked if found
        ]
    for node in program.nodes:
        if _shows_windows(node):
            stores[node["store"]] = _windows(driver, node)
        elif node.get("does") in _PROCESSORS:
            stores[node["store"]] = _PROCESSORS[node["does"]](driver, node["store"])
    driver.reset()
    return {"outputs": outputs, "stores": stores}


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else _BYTES.get(text) or text.encode()


def _texts(headers: Any) -> list[list[str | None]]:
    return [[name, None if one is None else one.decode("latin-1")] for name, one in headers]


def _shows_windows(node: Node) -> bool:
    """Whether the windows of a node's store are compared. Where results are final the original's
    has a longer retention (see StreamsOracle)."""
    windows = node.get("windows", {})
    return node["op"] != "join" and windows.get("results") in ("each", "suppressed")


def _windows(driver: TopologyTestDriver, node: Node) -> list[Any]:
    name, found = node["store"], list[Any]()
    if "gap" in node["windows"]:
        for window, value in driver.get_session_store(name).all():
            found.append([f"{window.key}@{window.start}-{window.end}", str(value), window.end])
    else:
        for window, entry in driver.get_window_store(name).all_with_timestamps():
            at = f"{window.key}@{window.start}"
            found.append([at, str(entry.value), entry.timestamp])
    return sorted(found)


_PROCESSORS: dict[str, Callable[[TopologyTestDriver, str], list[Any]]] = {
    "running": lambda driver, name: [list(one) for one in driver.get_key_value_store(name).all()],
    "windows": lambda driver, name: [
        [window.key, window.start, value] for window, value in driver.get_window_store(name).all()
    ],
    "sessions": lambda driver, name: _windows(driver, {"store": name, "windows": {"gap": None}}),
}


def _told(program: Program, cut: list[Records], ours: Any, theirs: Any) -> str:
    lines = [f"{program.shape()}", f"  program {json.dumps(program.nodes)}"]
    lines.append(f"  batches {json.dumps(cut)}")
    for part in ("outputs", "stores"):
        for name in theirs[part]:
            if ours[part][name] != theirs[part][name]:
                lines.append(f"  {name}: everflow      {json.dumps(ours[part][name])}")
                lines.append(f"  {name}: Kafka Streams {json.dumps(theirs[part][name])}")
    return "\n".join(lines)


@cache
def _compiled() -> tuple[tempfile.TemporaryDirectory[str], list[str]]:
    """The folder of the Java program's classes, which goes with this process, and its command."""
    folder = tempfile.TemporaryDirectory(prefix="everflow-oracle-")
    jars = resolve_jars("oracle")
    return folder, java_command(jars, Path(folder.name), SOURCES, "StreamsOracle")


@contextmanager
def kafka_streams() -> Iterator[Any]:
    """Asks Kafka Streams, in a process of its own, what it makes of a program and its scripts;
    what is returned waits for the answer."""
    java, *rest = _compiled()[1]
    with tempfile.TemporaryDirectory(prefix="everflow-oracle-") as folder:
        process = subprocess.Popen(
            [java, *SHORT_LIVED, *rest, str(Path(folder) / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def answered() -> Any:
            answer = stdout.readline()
            if not answer:
                raise RuntimeError(f"Kafka Streams ended with {process.wait()}")
            return json.loads(answer)

        def ask(question: dict[str, Any]) -> Callable[[], Any]:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            return answered

        try:
            yield ask
        finally:
            stdin.close()
            process.wait(30)
