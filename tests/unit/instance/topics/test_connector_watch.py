"""What an instance makes of the connector topic, and what it tells there (note 074)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from everflow.errors import RetriableError
from everflow.instance.client_state import Pause
from everflow.instance.topics.connector_watch import SAME_STATE_MS, ConnectorWatch, TaskNow
from everflow.records import TaskId
from everflow.retry import StoppedRequest
from everflow.topology.connectors import (
    FAILED,
    PAUSED,
    RUNNING,
    Connector,
    ConnectorBook,
    ConnectorFacts,
    Record,
    Restart,
    Row,
    TaskReport,
    pause_record,
    restart_record,
    resume_record,
)
from unit.manual_clock import ManualClock

LAKE = Connector(name="lake", kind="sink", what="DeltaSink", subtopologies=frozenset({1}))
TABLE = Connector(name="table", kind="sink", what="PostgresSink", subtopologies=frozenset({0}))
FACTS = ConnectorFacts(kind="sink", what="x", where="", tasks={1: 2}, inputs={1: ("in",)})
TASK, OTHER = TaskId(1, 0), TaskId(0, 0)


@dataclass
class Topic:
    records: list[Record] = field(default_factory=list)
    away: bool = False

    def read(self, position: int) -> Sequence[Row]:
        if self.away:
            raise RetriableError("no broker answers")
        return [(at, *one) for at, one in enumerate(self.records) if at >= position]

    def write(self, records: Sequence[Record]) -> None:
        self.records += records

    def book(self) -> ConnectorBook:
        book = ConnectorBook()
        book.take(self.read(0))
        return book


class Instance:
    """Of one topic there may be several."""

    def __init__(self, topic: Topic, name: str = "shop-1") -> None:
        self.clock, self.pause = ManualClock(), Pause()
        self.tasks = {TASK: TaskNow(RUNNING), OTHER: TaskNow(RUNNING)}
        self.restarted: list[tuple[list[TaskId], bool]] = []
        self.errors: dict[str, tuple[str, int]] = {}
        self.watch = ConnectorWatch(
            connectors={"lake": LAKE, "table": TABLE},
            facts={"lake": FACTS, "table": FACTS},
            read=topic.read,
            write=topic.write,
            restart=self.restart,
            tasks=lambda: self.tasks,
            last_error=self.errors.get,
            pause=self.pause.pause_connectors,
            clock=self.clock,
            instance=name,
        )

    def restart(self, chosen: Callable[[TaskId], bool], only_failed: bool) -> None:
        self.restarted.append(([task for task in self.tasks if chosen(task)], only_failed))


def test_a_pause_of_before_the_start_holds_before_the_first_batch() -> None:
    topic = Topic([pause_record("lake", 3), restart_record(Restart(connector="table"))])
    instance = Instance(topic)
    instance.watch.begin()
    assert instance.pause.parts == {1}
    instance.watch.turn()
    assert instance.restarted == [], "that restart was another time's"
    assert instance.watch.paused == {"lake"}


def test_every_instance_takes_a_command_and_tells_that_it_has() -> None:
    topic = Topic()
    first, second = Instance(topic), Instance(topic, "shop-2")
    second.tasks = {TaskId(1, 1): TaskNow(RUNNING)}
    for one in (first, second):
        one.watch.begin()
        one.watch.turn()
    topic.write([pause_record("lake", 3)])
    asked = len(topic.records)
    for one in (first, second):
        one.watch.turn()
        assert one.pause.parts == {1}
    reports = topic.book().reports
    assert [report.seen for report in reports.values()] == [asked] * 3
    assert {report.instance for report in reports.values()} == {"shop-1", "shop-2"}
    topic.write([resume_record("lake")])
    first.watch.turn()
    assert (first.pause.parts, second.pause.parts) == (frozenset(), {1})


def test_a_restart_is_of_the_tasks_that_are_named() -> None:
    topic = Topic()
    instance = Instance(topic)
    instance.watch.begin()
    for wanted in (
        Restart(connector="lake"),
        Restart(connector="lake", task=0, only_failed=True),
        Restart(connector="lake", task=1),
        Restart(connector="of another program"),
    ):
        topic.write([restart_record(wanted)])
    instance.watch.turn()
    instance.watch.turn()
    assert instance.restarted == [([TASK], False), ([TASK], True), ([], False)]


def test_states_are_told_at_once_and_texts_now_and_then() -> None:
    topic = Topic()
    instance = Instance(topic)
    instance.watch.begin()
    instance.watch.turn()
    before = len(topic.records)
    instance.watch.turn()
    assert len(topic.records) == before, "nothing is new"
    instance.tasks[TASK] = TaskNow(FAILED, "no answer", 1)
    instance.watch.turn()
    assert topic.book().reports["lake", TASK] == TaskReport(
        state=FAILED, instance="shop-1", error="no answer", failed_ms=1
    )
    instance.tasks[TASK] = TaskNow(FAILED, "no answer yet", 1)
    instance.watch.turn()
    assert len(topic.records) == before + 1
    instance.clock.advance(SAME_STATE_MS)
    instance.watch.turn()
    assert topic.book().reports["lake", TASK].error == "no answer yet"


def test_the_last_error_stays_when_it_is_over() -> None:
    topic = Topic()
    instance = Instance(topic)
    instance.watch.begin()
    instance.errors["lake"] = ("no answer", 9)
    instance.tasks[TASK] = TaskNow(PAUSED)
    instance.watch.turn()
    report = topic.book().reports["lake", TASK]
    assert (report.state, report.error, report.failed_ms) == (PAUSED, "no answer", 9)
    assert topic.book().reports["table", OTHER].error == ""


def test_the_last_error_outlives_the_instance_that_had_it() -> None:
    topic = Topic()
    first = Instance(topic)
    first.watch.begin()
    first.errors["lake"] = ("no answer", 9)
    first.watch.turn()
    second = Instance(topic, "shop-2")
    second.watch.begin()
    second.watch.turn()
    report = topic.book().reports["lake", TASK]
    assert (report.instance, report.state) == ("shop-2", RUNNING)
    assert (report.error, report.failed_ms) == ("no answer", 9)
    second.errors["lake"] = ("another", 11)
    second.clock.advance(SAME_STATE_MS)
    second.watch.turn()
    assert topic.book().reports["lake", TASK].error == "another"


@pytest.mark.parametrize("owned", [True, False])
def test_an_error_that_ends_the_instance_is_told_at_its_end(owned: bool) -> None:
    topic = Topic()
    instance = Instance(topic)
    instance.watch.begin()
    instance.watch.turn()
    instance.errors["lake"] = ("no such table", 9)
    if not owned:
        instance.tasks.clear()
    instance.watch.last_word()
    report = topic.book().reports["lake", TASK]
    assert (report.state, report.error, report.failed_ms) == (FAILED, "no such table", 9)
    assert topic.book().reports["table", OTHER].error == ""


def test_an_instance_without_errors_has_no_last_word() -> None:
    topic = Topic()
    instance = Instance(topic)
    instance.watch.begin()
    instance.errors["lake"] = ("no answer", 9)
    instance.watch.turn()
    told = len(topic.records)
    instance.watch.last_word()
    assert len(topic.records) == told


def test_before_its_first_turn_an_instance_tells_its_error_too() -> None:
    topic = Topic()
    instance = Instance(topic)
    instance.watch.begin()
    instance.errors["lake"] = ("no such table", 9)
    instance.watch.last_word()
    assert topic.book().reports["lake", TASK].error == "no such table"


def test_a_task_that_comes_back_is_told_of_again() -> None:
    topic = Topic()
    first, second = Instance(topic), Instance(topic, "shop-2")
    second.tasks = {}
    for one in (first, second):
        one.watch.begin()
        one.watch.turn()
    for task in (TASK, OTHER):
        second.tasks[task] = first.tasks.pop(task)
    first.watch.turn()
    second.watch.turn()
    assert topic.book().reports["lake", TASK].instance == "shop-2"
    for task in (TASK, OTHER):
        first.tasks[task] = second.tasks.pop(task)
    second.watch.turn()
    first.watch.turn()
    assert topic.book().reports["lake", TASK].instance == "shop-1"


def test_what_is_paused_stays_so_while_no_broker_answers() -> None:
    topic = Topic([pause_record("lake", 3)])
    instance = Instance(topic)
    instance.watch.begin()
    topic.away = True
    with pytest.raises(RetriableError):
        instance.watch.turn()
    assert instance.pause.parts == {1}


@pytest.mark.parametrize(
    ("error", "warned"), [(StoppedRequest("stopped"), 0), (RetriableError("no broker"), 1)]
)
def test_the_end_of_an_instance_is_no_warning(
    error: RetriableError, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    instance = Instance(Topic())
    turns = list[int]()

    def fail(position: int) -> Sequence[Row]:
        turns.append(position)
        if len(turns) == 3:
            instance.watch.close()
        raise error

    instance.watch.read = fail
    with caplog.at_level("WARNING", logger="everflow"):
        instance.watch._run()
    assert len(caplog.records) == warned
    assert len(turns) == (3 if warned else 1)


def test_another_program_tells_of_its_own_connectors_alone() -> None:
    topic = Topic()
    Instance(topic).watch.begin()
    instance = Instance(topic)
    instance.watch.connectors = {"lake": LAKE}
    instance.watch.facts = {"lake": FACTS}
    instance.watch.begin()
    assert topic.book().facts == {"lake": FACTS}
    told = len(topic.records)
    instance.watch.begin()
    assert len(topic.records) == told
