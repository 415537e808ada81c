"""The driver's side without Spark: places, slots, the door, the packed program."""

import json
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, cast

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
from everflow.fleet.decision import STOP_S, TOKEN_HEADER, Report, SlotOrder, SlotOutcome, Wanted
from everflow.observe.http_server import HttpServer
from everflow.testing import wait_until

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
    assert said[-1] == "instance 1 lost its executor on one; it restarts on two"


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
    assert door("scale", large) == Answer(400, "it is larger than 8,388,608 bytes\n")


def test_an_operator_resizes(door: Asked) -> None:
    assert json.loads(door("scale", '{"instances": 3}').text)["instances"] == 3
    assert door.sizes == (3, 3)
    assert door("scale", '{"instances": 3, "max": 5}').status == 200
    assert door.sizes == (3, 5)
    shown = json.loads(door("fleet").text)
    assert (shown["application_id"], shown["instances"], shown["max"]) == ("orders", 3, 5)
    assert [one["slot"] for one in shown["slots"]] == [RUNS.slot]
    from_a_page = door("scale", '{"instances": 9}', origin="http://elsewhere")
    assert from_a_page == Answer(403, "not from a browser\n")
    assert door.sizes == (3, 5)


def test_a_size_that_is_none_is_refused(door: Asked) -> None:
    for asked in ("{}", "[]", '{"instances": 0}', '{"instances": "3"}', "7", "{", "true"):
        assert door("scale", asked).status == 400, asked
    found = door("scale", '{"instances": 3, "max": 2}')
    assert found == Answer(
        400, "instances=3, max=2: a fleet has 1 to 1,000 instances, and max is no smaller\n"
    )
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
