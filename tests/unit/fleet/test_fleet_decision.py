"""What a fleet decides, and a supervisor over an instance that is none: its acts, what it tells."""

import fcntl
import json
import re
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from everflow.autoscale import Autoscaler, InstanceSeen
from everflow.cli.watch import fleet_lines, planned
from everflow.errors import ConfigError, EverflowError, SetupError, TopologyError
from everflow.fleet.command import (
    FAILED,
    Fleet,
    SlotJob,
    SparkJobs,
    last_words,
    pack,
    require_master_answers,
)
from everflow.fleet.control import HEARD_S, MOST_BODY_BYTES, Door, Places, application
from everflow.fleet.decision import (
    AGAIN_S,
    DRIVER_SILENT_S,
    PLACE_S,
    STOP_S,
    TOKEN_HEADER,
    Act,
    MissingPlaces,
    Report,
    SlotOrder,
    SlotOutcome,
    SupervisorState,
    Wanted,
    answer,
    instance_environment,
    instance_settings,
    moved,
    next_act,
    require_cluster,
    require_not_own,
    shown_lines,
    spark_settings,
)
from everflow.fleet.supervisor import EARLIER_S, NOBODY, LogTail, Supervisor
from everflow.observe.http_server import HttpServer
from everflow.testing import wait_until

GOES = SupervisorState(executor_there=True, silent_s=0.0, wanted=Wanted.run)
LOST = DRIVER_SILENT_S + 1


def test_one_executor_is_one_place() -> None:
    found = spark_settings("orders", 3, 2, "1g", {"spark.executor.memory": "4g"})
    assert found["spark.executor.cores"] == found["spark.task.cpus"] == "2"
    assert found["spark.dynamicAllocation.initialExecutors"] == "3"
    assert found["spark.executor.memory"] == "4g", "what is given wins"


@pytest.mark.parametrize("master", ["local", "local[4]", "local[*,1]", "local-cluster[1,1,1]"])
def test_one_machine_is_no_cluster(master: str) -> None:
    with pytest.raises(ConfigError, match="everflow autoscale"):
        require_cluster(master)


def test_a_master_has_to_be_named() -> None:
    with pytest.raises(ConfigError, match="--master is missing"):
        require_cluster(None)
    assert require_cluster("yarn") == "yarn"


@pytest.mark.parametrize("key", ["group.instance.id", "state.dir", "http.listen"])
def test_what_the_fleet_sets_itself_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        require_not_own({"application.id": "a", key: "x"})


def test_the_number_of_a_slot_is_its_member() -> None:
    found = instance_settings({"application.id": "orders", "commit.interval.ms": 50}, "orders", 3)
    assert found == {
        "application.id": "orders",
        "commit.interval.ms": "50",
        "group.instance.id": "orders-3",
    }


def test_an_instance_is_no_part_of_the_spark_that_hosts_it() -> None:
    found = instance_environment(
        {
            "HOME": "/root",
            "SPARK_HOME": "/opt/spark",
            "SPARK_SUBMIT_OPTS": "-Xint",
            "PYSPARK_GATEWAY_PORT": "1",
            "PYTHON_WORKER_FACTORY_SECRET": "s",
            "PYTHONPATH": "/opt/spark/python/lib/pyspark.zip:/opt/py4j-0.10.9.9-src.zip:/libs",
        },
        "/venv/bin/python",
    )
    assert found == {
        "HOME": "/root",
        "SPARK_SUBMIT_OPTS": "-Xint",
        "PYTHONPATH": "/libs",
        "PYSPARK_PYTHON": "/venv/bin/python",
    }


@pytest.mark.parametrize(
    ("sees", "act"),
    [
        (GOES, Act.go_on),
        (replace(GOES, wanted=Wanted.drain), Act.drain),
        (replace(GOES, wanted=Wanted.stop), Act.stop),
        (replace(GOES, executor_there=False), Act.stop),
        (replace(GOES, silent_s=LOST), Act.stop),
        # it is told once
        (replace(GOES, wanted=Wanted.drain, ending=Wanted.drain), Act.go_on),
        (replace(GOES, wanted=Wanted.stop, ending=Wanted.stop), Act.go_on),
        # nobody is left for whom it would drain
        (replace(GOES, wanted=Wanted.drain, ending=Wanted.drain, silent_s=LOST), Act.stop),
        # a time for each end
        (replace(GOES, executor_there=False, ending=Wanted.stop, ending_s=STOP_S + 1), Act.kill),
        (replace(GOES, wanted=Wanted.drain, ending=Wanted.drain, ending_s=STOP_S + 1), Act.go_on),
        (replace(GOES, wanted=Wanted.drain, ending=Wanted.drain, ending_s=121.0), Act.kill),
        # the driver came back: an end that has begun goes on
        (replace(GOES, ending=Wanted.stop, ending_s=1.0), Act.go_on),
        (replace(GOES, executor_there=False, code=0), Act.done),
    ],
)
def test_what_a_keeper_does_next(sees: SupervisorState, act: Act) -> None:
    assert next_act(sees, drain_s=120.0) is act


@pytest.mark.parametrize("wanted", list(Wanted))
def test_a_keeper_whose_task_runs_elsewhere_by_now_stops(wanted: Wanted) -> None:
    assert answer(wanted, newest=7, attempt=6) is Wanted.stop
    assert answer(wanted, newest=7, attempt=7) is wanted
    assert answer(wanted, newest=7, attempt=8) is wanted


def test_a_keeper_of_no_slot_stops() -> None:
    assert answer(None, newest=-1, attempt=0) is Wanted.stop


def test_a_place_is_told_once_and_its_loss_too() -> None:
    comes = Report(slot=2, attempt=4, host="one", phase="comes", log="/s/log")
    runs = replace(comes, phase="runs")
    assert moved(None, comes) is None
    assert moved(comes, runs) == "instance 2 runs on one, its log there: /s/log"
    assert moved(runs, runs) is None
    elsewhere = replace(comes, attempt=9, host="two")
    assert re.fullmatch("instance 2 lost .* one; .* two", moved(runs, elsewhere) or "")
    waits = moved(elsewhere, replace(elsewhere, phase="waits"))
    assert re.match("instance 2 waits on two ", waits or "")


def test_lines_say_whose_they_are() -> None:
    report = Report(
        slot=2, attempt=4, host="one", phase="runs", log="/s/log", lines=["a", "b"], left_out=7
    )
    assert shown_lines(report) == ["2@one | (7 lines are only in /s/log)", "2@one | a", "2@one | b"]


def test_too_few_places_are_told_once_and_then_seldom() -> None:
    told = MissingPlaces(cores=1, memory="512m")
    assert told.text({1: 0.0, 2: PLACE_S - 1}, 0.0) is None
    text = told.text({1: 0.0, 2: PLACE_S, 3: PLACE_S}, 1.0)
    assert text is not None
    assert re.match(r"2 of 3 instances .* executor \(2, 3\): ", text)
    assert "ask for 1 instances" in text
    assert told.text({1: 0.0, 2: PLACE_S + 1, 3: PLACE_S + 1}, 2.0) is None
    assert told.text({1: 0.0, 2: 0.0, 3: 99.0}, 3.0) is None, "it gets better: no new line"
    assert told.text({1: 0.0, 2: 0.0, 3: 99.0}, 3.0 + AGAIN_S) is not None
    assert told.text({1: 0.0, 2: 0.0, 3: 0.0}, 9e9) is None
    assert told.text({1: 99.0, 2: 0.0, 3: 0.0}, 9e9) is not None


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
    """A supervisor whose clock goes on by a second with each report. ``answers``: number of the
    report -> what the driver does then; from there on it holds."""

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
        return Supervisor(
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
    assert "answer here at http://driver" in found.tail
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

        monkeypatch.setattr("everflow.fleet.supervisor.os.killpg", kill)
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


# The driver's side without Spark.

RUNS = Report(
    slot=1, attempt=5, host="one", phase="runs", log="/log", state="RUNNING", ready=True, desired=2
)
FLEET = Fleet(
    target="app:x",
    application_id="orders",
    settings={"application.id": "orders", "drain.timeout.ms": "30000"},
    least=2,
    most=2,
)


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


class PretendedJobs:
    """Spark whose tasks run until they are told to end; each reports once."""

    def __init__(self, places: Places, *, room: int = 99) -> None:
        self.places, self.room = places, room
        self.ends: dict[int, threading.Event] = {}
        self.outcome: SlotOutcome | Exception = SlotOutcome(0)

    def run(self, order: SlotOrder) -> SlotOutcome:
        self.ends[order.slot] = threading.Event()
        if order.slot <= self.room:
            self.places.reported(replace(RUNS, slot=order.slot))
        self.ends[order.slot].wait(60)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self, slot: int) -> None:
        self.ends[slot].set()


def slot_job(number: int, places: Places, jobs: PretendedJobs) -> SlotJob:
    made = SlotJob(FLEET.order(number, "http://d", "t"), places, cast(SparkJobs, jobs))
    wait_until(lambda: number in jobs.ends, 60, "the job to run")
    return made


def test_a_slot_is_settled_while_its_keeper_says_so() -> None:
    now, said = Now(), list[str]()
    places = Places(said.append, now)
    places.open(1)
    assert places.seen(1, False) == InstanceSeen(False, None, False)
    assert places.reported(replace(RUNS, lines=["hello"])) is Wanted.run
    assert places.seen(1, False) == InstanceSeen(True, 2, False)
    assert said == ["instance 1 runs on one, its log there: /log", "1@one | hello"]
    now.s += HEARD_S + 1
    assert places.seen(1, False) == InstanceSeen(False, None, False)
    assert places.without_s() == {1: HEARD_S + 1}


def test_the_newest_task_of_a_slot_counts() -> None:
    said = list[str]()
    places = Places(said.append)
    places.open(1)
    places.reported(RUNS)
    assert places.reported(replace(RUNS, attempt=6, host="two")) is Wanted.run
    assert places.reported(RUNS) is Wanted.stop, "its host was cut off and is back"
    last = places.last(1)
    assert last is not None
    assert last.host == "two"
    assert re.fullmatch("instance 1 lost .* one; .* two", said[-1])


def test_what_is_wanted_is_the_answer_to_a_report() -> None:
    places = Places(lambda _: None)
    places.open(1)
    places.want(1, Wanted.drain)
    assert places.reported(RUNS) is Wanted.drain
    assert places.close(1) is not None
    assert places.reported(RUNS) is Wanted.stop


def test_a_slot_tells_how_it_ended() -> None:
    places = Places(lambda _: None)
    jobs = PretendedJobs(places)
    slot = slot_job(1, places, jobs)
    assert slot.code is None
    jobs.outcome = SlotOutcome(2, "no such topic")
    jobs.cancel(1)
    assert slot.wait(60)
    assert (slot.code, slot.tail(), slot.where) == (2, "no such topic", "one: /log")


def test_a_job_that_fails_is_a_slot_that_failed() -> None:
    places = Places(lambda _: None)
    jobs = PretendedJobs(places)
    slot = slot_job(1, places, jobs)
    jobs.outcome = RuntimeError("Job aborted\n\tat org.apache.spark.Here\nbecause")
    jobs.cancel(1)
    assert slot.wait(60)
    assert (slot.code, slot.tail()) == (FAILED, "Job aborted\nbecause")
    assert "has no everflow" in last_words(RuntimeError("x No module named 'everflow' y"))


def test_a_slot_without_a_place_ends_at_once() -> None:
    """Nobody would hear that it is to drain."""
    places = Places(lambda _: None)
    jobs = PretendedJobs(places, room=1)
    slots = [slot_job(number, places, jobs) for number in (1, 2)]
    slots[1].end(for_good=True)
    assert slots[1].wait(60)
    slots[0].end(for_good=True)
    assert slots[0].code is None
    assert places.reported(RUNS) is Wanted.drain
    jobs.cancel(1)
    assert slots[0].wait(60)


def test_a_slot_that_loses_its_place_while_it_ends_is_not_waited_for() -> None:
    now = Now()
    places = Places(lambda _: None, now)
    jobs = PretendedJobs(places)
    slot = slot_job(1, places, jobs)
    slot.end(for_good=True)
    slot.seen()
    assert not jobs.ends[1].is_set()
    now.s += HEARD_S + 1
    slot.seen()
    assert slot.wait(60)


def test_a_fleet_grows_and_shrinks_from_its_last_slot() -> None:
    places, said = Places(lambda _: None), list[str]()
    jobs = PretendedJobs(places)
    loop = Autoscaler(
        target="app:x",
        options=(),
        folder=Path(),
        least=2,
        most=2,
        say=said.append,
        start=lambda slot, *_: slot_job(slot, places, jobs),
    )
    loop.step()
    assert sorted(jobs.ends) == [1, 2]
    loop.resize(3, 3)
    loop.step()
    assert sorted(jobs.ends) == [1, 2, 3]
    loop.resize(1, 1)
    loop.step()
    assert places.reported(replace(RUNS, slot=3)) is Wanted.drain
    assert places.reported(replace(RUNS, slot=2)) is Wanted.run, "one after the other"
    for slot in jobs.ends:
        jobs.cancel(slot)
    for one in loop.instances:
        assert one.wait(60)


def test_a_drain_has_its_setting_and_a_minute() -> None:
    assert FLEET.order(1, "u", "t").drain_s == 30.0 + STOP_S
    assert replace(FLEET, settings={}).order(1, "u", "t").drain_s == 120.0


class Answer(NamedTuple):
    status: int
    text: str


class Asked:
    def __init__(self, folder: Path, own_host: str = "127.0.0.1") -> None:
        self.loop = Autoscaler(
            target="", options=(), folder=folder, least=1, most=1, say=lambda _: None
        )
        places = Places(lambda _: None)
        places.open(RUNS.slot)
        places.want(RUNS.slot, Wanted.drain)
        door = Door("secret", frozenset({own_host}), "orders", places, self.loop)
        self.server = HttpServer("127.0.0.1:0", application(door))

    @property
    def sizes(self) -> tuple[int, int]:
        return self.loop.least, self.loop.most

    def __call__(self, path: str, body: str | None = None, **headers: str) -> Answer:
        asked = urllib.request.Request(
            f"http://{self.server.address}/{path}", None if body is None else body.encode(), headers
        )
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return Answer(answer.status, answer.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read().decode())


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Asked]:
    asked = Asked(tmp_path)
    yield asked
    asked.server.close()


def test_a_keeper_shows_its_token(door: Asked) -> None:
    body = RUNS.to_json()
    assert door("report", body).status == 403
    assert door("report", body, **{TOKEN_HEADER: "guess"}).status == 403
    assert door("report", body, **{TOKEN_HEADER: "gu\u00e9ss"}).status == 403
    assert door("report", body, **{TOKEN_HEADER: "secret"}) == Answer(200, '{"wanted":"drain"}')


def test_what_is_no_report_is_refused(door: Asked) -> None:
    for body in ("", "[]", "7", '{"slot": 1}', '{"x": 1}', "{", RUNS.to_json().replace("5", '"5"')):
        assert door("report", body, **{TOKEN_HEADER: "secret"}).status == 400, body
    large = '"' + "x" * MOST_BODY_BYTES + '"'
    found = door("scale", large)
    assert (found.status, f"{MOST_BODY_BYTES:,} bytes" in found.text) == (400, True)


def test_an_operator_resizes(door: Asked) -> None:
    assert json.loads(door("scale", '{"instances": 3}').text)["instances"] == 3
    assert door.sizes == (3, 3)
    assert door("scale", '{"instances": 3, "max": 5}').status == 200
    assert door.sizes == (3, 5)
    shown = json.loads(door("fleet").text)
    assert (shown["application_id"], shown["instances"], shown["max"]) == ("orders", 3, 5)
    assert [one["slot"] for one in shown["slots"]] == [RUNS.slot]
    from_a_page = door("scale", '{"instances": 9}', origin="http://elsewhere")
    assert (from_a_page.status, "browser" in from_a_page.text) == (403, True)
    assert door.sizes == (3, 5)


def test_a_size_that_is_none_is_refused(door: Asked) -> None:
    for asked in ("{}", "[]", '{"instances": 0}', '{"instances": "3"}', "7", "{", "true"):
        assert door("scale", asked).status == 400, asked
    found = door("scale", '{"instances": 3, "max": 2}')
    assert found.status == 400
    assert found.text.startswith("instances=3, max=2: ")
    assert door.sizes == (1, 1)


def test_operators_are_heard_from_the_drivers_host_alone(tmp_path: Path) -> None:
    stranger = Asked(tmp_path, "10.0.0.1")
    assert stranger("fleet").status == 403
    assert stranger("scale", '{"instances": 3}').status == 403
    stranger.server.close()


def test_programs_pack_what_they_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    package = tmp_path / "packed_program"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "words.txt").write_text("a")
    (package / "__pycache__" / "x.pyc").write_text("")
    (tmp_path / "beside.csv").write_text("1")
    to = tmp_path / "to.zip"
    assert pack("packed_program.part", [tmp_path / "beside.csv"], to) == [
        "packed_program",
        "beside.csv",
    ]
    assert sorted(zipfile.ZipFile(to).namelist()) == [
        "beside.csv",
        "packed_program/__init__.py",
        "packed_program/words.txt",
    ]
    assert pack("pytest", [], to) == [], "what is installed is installed there, too"
    with pytest.raises(ConfigError, match="no such file"):
        pack("pytest", [tmp_path / "nowhere"], to)


def test_a_master_that_does_not_answer_is_told_at_once() -> None:
    with pytest.raises(SetupError, match=r"Spark master.*spark://127\.0\.0\.1:1,nobody"):
        require_master_answers("spark://127.0.0.1:1,nobody")
    require_master_answers("yarn")


@pytest.mark.parametrize(
    ("target", "settings", "most", "error"),
    [
        ("app", {}, None, TopologyError),
        ("no_such_module:x", {}, None, TopologyError),
        ("fleet_program:other", {}, None, TopologyError),
        ("fleet_program:x", {"state.dir": "/x"}, None, ConfigError),
        ("fleet_program:x", {"no.such.setting": "1"}, None, ConfigError),
        ("fleet_program:x", {}, 1, ConfigError),
    ],
)
def test_a_plan_that_no_instance_could_run_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    settings: dict[str, str],
    most: int | None,
    error: type[EverflowError],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "fleet_program.py").write_text("x = len('')\n")
    given = {"application.id": "orders", "bootstrap.servers": "localhost:1", **settings}
    with pytest.raises(error):
        planned(target, given, least=2, most=most)
    found = planned("fleet_program:x", {**given} if not settings else GOOD, least=2, most=3)
    assert (found.application_id, found.least, found.most) == ("orders", 2, 3)


GOOD = {"application.id": "orders", "bootstrap.servers": "localhost:1"}


def test_the_places_are_shown() -> None:
    found = {
        "application_id": "orders",
        "instances": 2,
        "max": 3,
        "slots": [
            {"slot": 1, "host": "one", "state": "RUNNING", "ready": True, "lag": 1200, "log": "/l"}
            | {"without_place_s": 0.0},
            {"slot": 2, "without_place_s": 21.5},
        ],
    }
    assert fleet_lines(found) == [
        "orders: 2 to 3 instances",
        "instance  host  state                   lag    log",
        "1         one   RUNNING                 1,200  /l",
        "2         -     no executor for 21.5 s  -      -",
    ]
