"""Operators against Kafka Streams itself: drawn programs and scripts, in its TopologyTestDriver and
in ours (`programs` says what they are)."""

from __future__ import annotations

import json
import random
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.java_program import java_command
from everflow.jvm.jars import resolve_jars
from everflow.testing import TopologyTestDriver
from oracle.programs import TEXT, Draw, Program, built, script

SOURCES = Path(__file__).with_name("java")
SCRIPTS_A_PROGRAM = 5
RECORDS = 25


@dataclass
class Report:
    """A case is a program with one script. ``programs``: in how many each operator was."""

    seed: int
    cases: int = 0
    equal: int = 0
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
        return f"{self.equal} equal, {len(self.differing)} differ\n  in programs: {counts}"

    def more(self) -> dict[str, object]:
        """What the figures of this comparison alone are."""
        return {"programs": dict(self.programs)}


def compare(cases: int, seed: int) -> Iterator[Report]:
    """Compares ``cases`` cases of ``seed``; the report so far after each program."""
    drawn, report = random.Random(seed), Report(seed)
    with _kafka_streams() as ask:
        while report.cases < cases:
            program = Draw(drawn).drawn_program()
            scripts = [
                script(program, drawn, drawn.randint(1, RECORDS)) for _ in range(SCRIPTS_A_PROGRAM)
            ]
            _compare(program, scripts, ask, report)
            yield report


def _compare(program: Program, scripts: list[list[Any]], ask: Any, report: Report) -> None:
    theirs = ask({**asdict(program), "scripts": scripts})
    report.programs.update(set(program.shape().split()))
    if "error" in theirs:
        raise RuntimeError(f"Kafka Streams: {theirs['error']}\n{json.dumps(asdict(program))}")
    with TopologyTestDriver(built(program), emit_every_update=True) as driver:
        for records, run in zip(scripts, theirs["runs"], strict=True):
            ours = _run(driver, program, records)
            for topic in program.unordered:
                for told in (ours, run):
                    told["outputs"][topic].sort(key=json.dumps)
            for topic in program.by_key:
                for told in (ours, run):
                    told["outputs"][topic].sort(key=lambda result: str(result[0]))
            report.cases += 1
            if ours == run:
                report.equal += 1
            else:
                report.differing.append(_told(program, records, ours, run))
            driver.reset()


def _run(driver: TopologyTestDriver, program: Program, records: list[Any]) -> dict[str, Any]:
    inputs = {topic: driver.create_input_topic(topic, TEXT, TEXT) for topic in program.inputs}
    for topic, key, value, time in records:
        inputs[topic].pipe_input(key, value, time)
    outputs = {
        topic: [
            [one.key, one.value, one.timestamp]
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
    return {"outputs": outputs, "stores": stores}


def _told(program: Program, records: list[Any], ours: Any, theirs: Any) -> str:
    lines = [f"{program.shape()}", f"  program {json.dumps(program.nodes)}"]
    lines.append(f"  script {json.dumps(records)}")
    for part in ("outputs", "stores"):
        for name in theirs[part]:
            if ours[part][name] != theirs[part][name]:
                lines.append(f"  {name}: everflow      {json.dumps(ours[part][name])}")
                lines.append(f"  {name}: Kafka Streams {json.dumps(theirs[part][name])}")
    return "\n".join(lines)


@contextmanager
def _kafka_streams() -> Iterator[Any]:
    """Asks Kafka Streams, in a process of its own, what it makes of a program and its scripts."""
    with tempfile.TemporaryDirectory(prefix="everflow-oracle-") as folder:
        command = java_command(resolve_jars("oracle"), Path(folder), SOURCES, "StreamsOracle")
        process = subprocess.Popen(
            [*command, str(Path(folder) / "state")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout

        def ask(question: dict[str, Any]) -> Any:
            stdin.write(json.dumps(question) + "\n")
            stdin.flush()
            answer = stdout.readline()
            if not answer:
                raise RuntimeError(f"Kafka Streams ended with {process.wait()}")
            return json.loads(answer)

        try:
            yield ask
        finally:
            stdin.close()
            process.wait(30)
