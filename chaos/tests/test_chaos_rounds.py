"""What a chaos run does with faults that are open at once, with a round that fails, with a wrong
clock, and with guards that are taken away."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos import elastic
from chaos.elastic_group import GroupFailedError
from chaos.rounds import command
from chaos.rounds.command import ChaosRun, Plan
from chaos.rounds.fleet import SETTLE_S, Fleet, Place
from chaos.rounds.load import Load
from chaos.rounds.mutations import MUTATIONS, _put
from chaos.rounds.schedule import LOGS, Fault, FaultKind, Round
from chaos.rounds.strikes import DONE, WAITING, NotDoneError, Steps, Strikes
from chaos.rounds.surroundings import Clock, Proxies
from everflow.testing.broker import EmbeddedBroker

NOTHING = Plan(3, seed=1, kinds=frozenset())


def fleet(folder: Path) -> Fleet:
    return Fleet("a", "nowhere:1", folder, Proxies())


class Told(Strikes):
    """Its faults note what they do; each waits three times."""

    def __init__(self, folder: Path) -> None:
        super().__init__(fleet(folder), EmbeddedBroker(folder), Load("nowhere:1", "a", 1, 1.0))
        self.notes: list[str] = []

    def _of(self, kind: FaultKind) -> Callable[[Fault], Steps]:
        def steps(fault: Fault) -> Steps:
            yield WAITING
            self.notes.append(f"{fault.instance} done")
            yield DONE
            if kind is FaultKind.LATE_MARKERS:
                yield from self._waits(lambda: self._first_of_its_kind(fault), fault, "its turn")
            for turn in range(3):
                self.notes.append(f"{fault.instance} waits {turn}")
                yield WAITING

        return steps


def struck(strikes: Told, kind: FaultKind) -> list[Fault]:
    faults = [Fault(kind, instance=1), Fault(kind, instance=2)]
    for fault in faults:
        strikes.strike(fault)
    assert strikes.notes == ["1 done", "2 done"]
    strikes.notes.clear()
    assert strikes.heal() == faults
    return faults


def test_faults_heal_beside_each_other(tmp_path: Path) -> None:
    strikes = Told(tmp_path)
    struck(strikes, FaultKind.CUT)
    assert strikes.notes == [f"{one} waits {turn}" for turn in range(3) for one in (1, 2)]


def test_markers_are_late_for_one_after_the_other(tmp_path: Path) -> None:
    strikes = Told(tmp_path)
    struck(strikes, FaultKind.LATE_MARKERS)
    assert strikes.notes == [f"{one} waits {turn}" for one in (1, 2) for turn in range(3)]


def test_a_wait_that_is_over_is_an_error_that_says_for_what(tmp_path: Path) -> None:
    strikes, fault = Told(tmp_path), Fault(FaultKind.LATE_MARKERS, instance=3, late=LOGS)
    waiting = strikes._waits(lambda: False, fault, "its turn", timeout_s=-1.0)
    with pytest.raises(GroupFailedError, match=r"turn .late-markers.*3"):
        next(waiting)


class Failing(ChaosRun):
    """A run without a broker; its second round fails."""

    error: Exception = NotDoneError("cut instance 1 did not happen: the broker is reached")
    finished = given_back = False

    def _open(self) -> None:
        self.fleet = fleet(self.folder)
        run = self

        class Back(Told):
            def give_up(self) -> None:
                run.given_back = True

        self.strikes = Back(self.folder)
        self.report.network = "none"

    def _round(
        self, number: int, of: int, one: Round, files: Mapping[Place, tuple[str, int]]
    ) -> dict[Place, tuple[str, int]]:
        if number == 2:
            raise self.error
        return dict(files)

    def _finish(self) -> None:
        self.finished = True


def test_a_fault_that_does_not_happen_ends_the_rounds_and_books_are_checked(tmp_path: Path) -> None:
    run = Failing(NOTHING, tmp_path)
    report = run.run()
    assert (run.finished, run.given_back, run._stuck) == (True, True, False)
    assert (report.clean, report.rounds, report.not_done) == (False, 1, 1)
    assert report.remarks == [f"NotDoneError: {Failing.error}"]


def test_what_does_not_come_ends_all_waits(tmp_path: Path) -> None:
    run = Failing(NOTHING, tmp_path)
    run.error = GroupFailedError("instance 1 ended with 1")
    report = run.run()
    assert (run.finished, run.given_back, run._stuck) == (True, True, True)
    assert (report.clean, report.not_done) == (False, 0)
    began_s = time.monotonic()
    run._wait_visible([])
    assert time.monotonic() - began_s < SETTLE_S / 2


def test_a_run_that_failed_has_its_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ChaosRun", Failing)
    monkeypatch.setattr(command, "sweep", lambda: None)
    monkeypatch.setattr(command, "possible", lambda _: frozenset({FaultKind.CUT}))
    file = tmp_path / "told.json"
    assert command.main(["--kinds", "cut,clock", "--seed", "4", "--json", str(file)]) == 1
    told = json.loads(file.read_text())
    assert (told["rounds"], told["not_done"], told["seed"]) == (1, 1, 4)
    assert (told["network"], told["left_out"]) == ("none", ["clock"])
    assert "cut instance 1 did not happen" in told["remarks"][0]


def test_what_another_left_stops_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broker").mkdir()
    for main in (command.main, elastic.main):
        with pytest.raises(SystemExit):
            main(["--keep", str(tmp_path)])
        assert f"{tmp_path} holds" in capsys.readouterr().err
    assert command.parsed(["--keep", str(tmp_path / "broker")]).keep == tmp_path / "broker"


AHEAD = 26
POLLS = """
import time
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "nobody"})
began = time.monotonic()
consumer.poll(0.2)
print(time.time(), time.monotonic() - began)
"""


def test_time_outs_are_as_long_though_the_clock_is_ahead(tmp_path: Path) -> None:
    library = Clock.library(tmp_path)
    if library is None:
        pytest.skip("no compiler here, or no Linux: a chaos run says that it leaves clocks out")
    clock = Clock(tmp_path / "clock", library)
    clock.turn(AHEAD)
    before_s = time.time()
    told = subprocess.run(
        [sys.executable, "-c", POLLS],
        env={**os.environ, **clock.environment},
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.split()
    shown_s, took_s = map(float, told)
    assert shown_s - before_s >= AHEAD * 60
    assert took_s < 30


ROOT = Path(__file__).resolve().parents[2]


def test_every_guard_is_there_to_be_taken_away() -> None:
    """In a process of its own: it has none of them afterwards."""
    taken = "from chaos.rounds.mutations import MUTATIONS\nfor take in MUTATIONS.values(): take()"
    ended = subprocess.run(
        [sys.executable, "-c", taken], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert len(MUTATIONS) == 5
    assert ended.returncode == 0, ended.stderr


def test_a_guard_of_another_name_is_heard() -> None:
    guard = SimpleNamespace(checked=1)
    _put(guard, checked=2)
    assert guard.checked == 2
    with pytest.raises(AttributeError, match="renamed"):
        _put(guard, renamed=2)
