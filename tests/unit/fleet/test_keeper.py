"""A keeper over an instance that is none, and a driver that is a function."""

import fcntl
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from everflow.fleet.decision import DRIVER_SILENT_S, STOP_S, Report, SlotOrder, SlotOutcome, Wanted
from everflow.fleet.keeper import EARLIER_S, NOBODY, Keeper, LogTail


class Pretended:
    """An instance: it ends when it is told, or when it is killed where it is deaf."""

    def __init__(self, log: Path, deaf: bool = False) -> None:
        self.log, self.deaf, self.address = log, deaf, "127.0.0.1:1"
        self.process: Any = SimpleNamespace(pid=2**22 + 1)  # nobody has it
        self.code: int | None = None
        self.told: list[str] = []
        log.write_text("first line\n")

    def status(self) -> dict[str, Any]:
        return {"state": "RUNNING", "ready": {"ok": True}, "lag": 3, "desired_instances": 2}

    def end(self) -> None:
        self.told.append("end")
        if not self.deaf:
            self.code = 0

    def kill(self) -> None:
        self.told.append("kill")
        self.code = -9


class Rig:
    """A keeper whose clock goes on by a second with each report. ``answers``: number of the report
    -> what the driver does then; from there on it holds."""

    def __init__(self, folder: Path, *, deaf: bool = False) -> None:
        program = folder / "program.zip"
        with zipfile.ZipFile(program, "w") as packed:
            packed.writestr("app.py", "x = 1")
        self.order = SlotOrder(
            slot=2,
            target="app:x",
            settings={"application.id": "orders", "sasl.password": "secret"},
            threads=1,
            folder=str(folder / "fleet"),
            url="http://driver",
            token="t",
            drain_s=120.0,
            program=str(program),
            attempt=5,
        )
        self.folder = folder / "fleet" / "slot-2"
        self.task_gone = Event()
        self.reports: list[Report] = []
        self.now_s = 0.0
        self.instance: Pretended | None = None
        self.started: dict[str, Any] = {}
        self.deaf = deaf
        self.answers: dict[int, Wanted | Callable[[], None] | None] = {0: Wanted.run}
        self._answer: Wanted | None = Wanted.run

    def post(self, report: Report) -> Wanted:
        found = self.answers.get(len(self.reports), self._answer)
        self.reports.append(report)
        self.now_s += 1.0
        if callable(found):
            found()
            return Wanted.run
        self._answer = found
        if found is None:
            raise OSError("no answer")
        return found

    def start(self, number: int, target: str, options: Any, folder: Path, **more: Any) -> Any:
        self.started = {"number": number, "target": target, "options": list(options), **more}
        self.secret = (folder / "settings" / "sasl.password").read_text()
        self.instance = Pretended(folder / "instance.log", self.deaf)
        return self.instance

    def run(self) -> SlotOutcome:
        return Keeper(
            self.order,
            self.task_gone,
            self.post,
            start=self.start,
            clock=lambda: self.now_s,
            host="here",
            pause_s=0.0,
        ).run()


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_it_starts_the_instance_and_tells_how_it_does(rig: Rig) -> None:
    rig.answers[5] = Wanted.stop
    assert rig.run() == SlotOutcome(0, "first line")
    assert (rig.folder / "program" / "app.py").read_text() == "x = 1"
    assert rig.started["cwd"] == rig.folder / "program"
    assert rig.secret == "secret"
    assert not (rig.folder / "settings").exists()
    assert not any("secret" in str(one) for one in rig.started["options"])
    assert [one.phase for one in rig.reports[:2]] == ["comes", "runs"]
    seen = rig.reports[1]
    assert (seen.slot, seen.attempt, seen.host, seen.state) == (2, 5, "here", "RUNNING")
    assert (seen.ready, seen.lag, seen.desired) == (True, 3, 2)
    assert seen.lines == ["first line"]
    assert rig.reports[-1].phase == "ended"
    assert rig.instance is not None
    assert rig.instance.told == ["end"]


@pytest.mark.parametrize("wanted", [Wanted.stop, Wanted.drain])
def test_a_slot_that_is_not_wanted_any_more_starts_nothing(rig: Rig, wanted: Wanted) -> None:
    rig.answers[0] = wanted
    assert rig.run() == SlotOutcome(0)
    assert rig.instance is None


def test_it_ends_with_its_task(rig: Rig) -> None:
    rig.answers[4] = rig.task_gone.set
    rig.run()
    assert rig.instance is not None
    assert rig.instance.told == ["end"]
    assert rig.now_s < 10


def test_it_ends_after_a_minute_without_the_driver(rig: Rig) -> None:
    rig.answers[4] = None
    monotonic = rig.now_s
    rig.run()
    assert rig.instance is not None
    assert rig.instance.told == ["end"]
    assert monotonic + DRIVER_SILENT_S < rig.now_s < DRIVER_SILENT_S + 15


def test_a_driver_that_answers_again_in_time_changes_nothing(rig: Rig) -> None:
    rig.answers.update({1: None, 40: Wanted.run, 150: Wanted.stop})
    rig.run()
    assert len(rig.reports) > 150
    assert [one.lines for one in rig.reports[39:42]] == [["first line"], ["first line"], []]


def test_an_instance_that_does_not_end_is_killed(tmp_path: Path) -> None:
    rig = Rig(tmp_path, deaf=True)
    rig.answers[4] = rig.task_gone.set
    assert rig.run().code == -9
    assert rig.instance is not None
    assert rig.instance.told == ["end", "kill"]
    assert STOP_S < rig.now_s < STOP_S + 15


def test_a_driver_that_never_answers_is_named(rig: Rig) -> None:
    rig.answers[0] = None
    found = rig.run()
    assert found.code == NOBODY
    assert "did not answer here at http://driver" in found.tail
    assert rig.instance is None


def test_it_waits_for_the_earlier_process_of_the_slot(rig: Rig) -> None:
    rig.folder.mkdir(parents=True)
    with (rig.folder / "lock").open("a+") as earlier:
        fcntl.flock(earlier, fcntl.LOCK_EX)
        rig.answers[6] = lambda: fcntl.flock(earlier, fcntl.LOCK_UN)
        rig.answers[20] = Wanted.stop
        assert rig.run().code == 0
    phases = [one.phase for one in rig.reports]
    assert phases[:8] == ["comes", *["waits"] * 6, "runs"]


def test_an_earlier_process_that_stays_is_killed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    rig.folder.mkdir(parents=True)
    with (rig.folder / "lock").open("a+") as earlier:
        fcntl.flock(earlier, fcntl.LOCK_EX)
        earlier.write("4194400")
        earlier.flush()

        def kill(group: int, _: int) -> None:
            killed.append(group)
            fcntl.flock(earlier, fcntl.LOCK_UN)

        monkeypatch.setattr("everflow.fleet.keeper.os.killpg", kill)
        rig.answers[int(EARLIER_S) + 30] = Wanted.stop
        assert rig.run().code == 0
    assert killed == [4194400]


def test_the_lines_of_a_log_are_told_once_and_whole(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier start\n")
    tail = LogTail(log)
    with log.open("a") as file:
        file.write("one\ntw")
        file.flush()
        assert tail.new_lines() == ["one"]
        file.write("o\n")
        file.flush()
    assert tail.new_lines() == ["two"]
    assert tail.new_lines() == []


def test_orders_reports_and_outcomes_travel(rig: Rig) -> None:
    assert SlotOrder.from_json(rig.order.to_json()) == rig.order
    outcome = SlotOutcome(1, "über\nzwei")
    assert SlotOutcome.from_json(outcome.to_json()) == outcome
    with pytest.raises(ValueError, match="Expecting value"):
        SlotOutcome.from_json("")
    placed = replace(rig.order, program="", attempt=0).placed("/here", 9)
    assert (placed.program, placed.attempt) == ("/here", 9)
