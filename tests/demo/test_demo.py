"""The demo with a slice of its data: real broker, real Spark, as a command."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from everflow.testing.waiting import wait_until
from everflow_demo import batch, data
from everflow_demo.enrichment import batch as enriched
from everflow_demo.enrichment.data import load_airlines, load_planes, load_weather

FLIGHTS = 3_000
TIMEOUT_S = 240
STAYING_PAUSE_S = 8.0
"""A task that stays may not stand still for so long (and twice what a lone instance did on this
machine) while instances come and go. A few tenths of a second are usual. What this has to catch is
above: to stop everything while an instance joins takes as long as its Spark takes to start, and a
pause until a session ends is 45 s."""


def command(*arguments: str) -> list[str]:
    return [
        sys.executable,
        "-c",
        "from everflow.cli import main; main()",
        "demo",
        "--threads",
        "1",
        *arguments,
    ]


@pytest.fixture
def temp_folder() -> Iterator[Path]:
    """Short, unlike tmp_path: sockets of Spark's workers lie in it."""
    with tempfile.TemporaryDirectory(prefix="ef-") as folder:
        yield Path(folder)


class Demo:
    """The command, under way; its temporary files lie in ``temp_folder``."""

    def __init__(self, folder: Path, temp_folder: Path, *arguments: str) -> None:
        self._output = folder / "output"
        with self._output.open("wb") as file:
            self.process = subprocess.Popen(
                command(*arguments),
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "TMPDIR": str(temp_folder)},
            )

    @property
    def said(self) -> str:
        return self._output.read_text()

    def until(self, happened: Callable[[], bool], what: str) -> None:
        wait_until(happened, 3 * TIMEOUT_S, what, lambda: [self.said])

    def ended(self) -> str:
        self.until(lambda: self.process.poll() is not None, "the demo's end")
        assert self.process.returncode == 0, self.said
        return self.said

    def interrupted(self, moment: str, number: int) -> int:
        self.until(lambda: moment in self.said, repr(moment))
        self.process.send_signal(number)
        return self.process.wait(TIMEOUT_S)


@pytest.fixture
def demo(tmp_path: Path, temp_folder: Path) -> Iterator[Callable[..., Demo]]:
    with ExitStack() as stack:

        def started(*arguments: str) -> Demo:
            made = Demo(tmp_path, temp_folder, *arguments)
            stack.callback(made.process.kill)
            return made

        yield started


@pytest.mark.broker
@pytest.mark.spark
def test_every_result_of_a_slice_matches_the_batch(
    demo: Callable[..., Demo], tmp_path: Path, temp_folder: Path
) -> None:
    report = tmp_path / "demo.json"
    assert "matches batch: yes" in demo("--limit", str(FLIGHTS), "--json", str(report)).ended()
    expected = batch.figures(data.load_flights(FLIGHTS))
    written = json.loads(report.read_text())
    assert (written["records_in"], written["guarantee"], written["matches_batch"]) == (
        FLIGHTS,
        "exactly_once_v2",
        True,
    )
    assert written["routes"] == dict(expected.routes)
    assert {code: found["flights"] for code, found in written["carriers"].items()} == {
        code: delay.flights for code, delay in expected.carriers.items()
    }
    assert list(temp_folder.glob("everflow-*")) == []


@pytest.mark.parametrize(
    "limit", [FLIGHTS, pytest.param(data.FLIGHTS_TOTAL, marks=pytest.mark.slow)]
)
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_flights_joined_with_airlines_weather_and_planes_match_the_batch(
    demo: Callable[..., Demo], limit: int, tmp_path: Path, temp_folder: Path
) -> None:
    report = tmp_path / "enrichment.json"
    ran = demo("enrichment", "--limit", str(limit), "--json", str(report))
    assert "matches batch: yes" in ran.ended()
    written = json.loads(report.read_text())
    assert (written["records_in"]["departures"], written["matches_batch"]) == (limit, True)
    expected = enriched.figures(
        data.load_flights(limit), load_weather(), load_airlines(), load_planes()
    )
    for result, figures in vars(expected).items():
        assert len(figures) > 3, result
        assert {key: delay["flights"] for key, delay in written[result].items()} == {
            key: delay.flights for key, delay in figures.items()
        }
    assert list(temp_folder.glob("everflow-*")) == []


def check_two_instances(written: dict[str, Any], output: str, flights: int) -> None:
    """The results are those of the batch, and both instances really worked."""
    expected = batch.figures(data.load_flights(flights))
    assert (written["records_in"], written["matches_batch"]) == (flights, True), output
    assert written["routes"] == dict(expected.routes)
    assert written["instances"] == 2
    assert written["rebalances"] >= 2, output
    assert 0 < len(written["tasks_moved"]) < 8, output
    assert 0 < written["longest_pause_s"] < STAYING_PAUSE_S + 2 * written["longest_pause_alone_s"]
    assert written["longest_pause_s"] < written["join_s"], output
    for told in (
        "the second instance has its share",
        "told to stop",
        "the second instance has left",
    ):
        assert told in output
    # A row of the second instance with work, and a copy on its way there.
    assert re.search(r"^second .*active", output, re.MULTILINE), output
    assert re.search(r"warm-up", output), output
    # Below them each task's longest pause, while instances come and go.
    rows = re.findall(r"^pause (.*)$", output, re.MULTILINE)
    pauses = [[float(shown) for shown in re.findall(r"([\d.]+) s", row)] for row in rows]
    assert pauses, output
    assert any(len(row) == 8 and max(row) > 0 for row in pauses), output


@pytest.mark.parametrize("flights", [FLIGHTS, data.FLIGHTS_TOTAL])
@pytest.mark.slow  # the default suite has instances that come and go in `test_elastic`
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_second_instance_comes_and_goes_and_every_result_matches(
    demo: Callable[..., Demo], flights: int, tmp_path: Path, temp_folder: Path
) -> None:
    report = tmp_path / "demo.json"
    output = demo("--limit", str(flights), "--instances", "2", "--json", str(report)).ended()
    check_two_instances(json.loads(report.read_text()), output, flights)
    assert list(temp_folder.iterdir()) == []


@pytest.mark.slow
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(1_000)
@pytest.mark.parametrize(
    "moment", ["the second instance starts", "the second instance has its share"]
)
def test_an_interrupt_ends_both(demo: Callable[..., Demo], moment: str, temp_folder: Path) -> None:
    ran = demo("--limit", str(FLIGHTS), "--instances", "2")
    assert ran.interrupted(moment, signal.SIGINT) == 130, ran.said
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    assert [line for line in listed.stdout.splitlines() if str(temp_folder) in line] == []
    assert list(temp_folder.iterdir()) == []


@pytest.mark.broker
@pytest.mark.spark
def test_an_interrupted_demo_leaves_nothing(demo: Callable[..., Demo], temp_folder: Path) -> None:
    ran = demo("--limit", str(FLIGHTS))
    assert ran.interrupted("in topic flights", signal.SIGTERM) == 143, ran.said
    assert list(temp_folder.glob("everflow-*")) == []
