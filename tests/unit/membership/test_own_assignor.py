"""``task.assignor.class``, the example's too, and other code of users: loaded, not waited for."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from everflow import StreamsConfig
from everflow.assignment import (
    ApplicationState,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
)
from everflow.assignment import assignor as everflow_assignor
from everflow.assignment.cluster_state import (
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    TaskInfo,
)
from everflow.errors import ConfigError
from everflow.membership.own_assignor import (
    OwnCode,
    OwnCodeError,
    check_assignor,
    decision,
    patience_s,
)
from everflow.records import TaskId, TopicPartition
from everflow.testing.waiting import wait_until


class GivesAll:
    """To the first process."""

    def assign(self, application_state: ApplicationState) -> TaskAssignment:
        first, *others = sorted(application_state.states)
        nothing = dict.fromkeys(others, KafkaStreamsAssignment())
        everything = KafkaStreamsAssignment(frozenset(application_state.tasks))
        return TaskAssignment({first: everything, **nothing})

    def on_assignment_computed(self, assignment: TaskAssignment, error: AssignmentError) -> None:
        assert error is AssignmentError.NONE


class NotAnAssignor:
    """Lacks everything."""


class NeedsMore:
    def __init__(self, more: int) -> None:
        self.more = more


def test_without_one_everflow_decides() -> None:
    assert (
        decision(StreamsConfig(application_id="a", bootstrap_servers="b:1").task_assignor_class)
        is everflow_assignor.assign
    )


@pytest.mark.parametrize("path", [f"{__name__}:GivesAll", f"{__name__}.GivesAll"])
def test_a_named_one_decides(path: str) -> None:
    task = TaskId(0, 0)
    cluster = ClusterState(
        members=(Member(member_id="m", process_id="p"),),
        tasks={task: TaskInfo(task, (TopicPartition("in", 0),))},
        end_sums={},
        racks={},
        rules=AssignmentRules(),
    )
    assert decision(path)(cluster).active == {"m": frozenset({task})}


def test_a_class_itself_is_taken() -> None:
    config = StreamsConfig(
        **{
            "application.id": "a",
            "bootstrap.servers": "b:1",
            "task.assignor.class": GivesAll,
        }
    )
    assert config.task_assignor_class == f"{__name__}:GivesAll"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere.at.all:Class", "No module named"),
        (f"{__name__}:Missing", "has no attribute"),
        ("Class", r"loaded.*module:Class"),
        (f"{__name__}:NotAnAssignor", r"assign.*on_assignment_computed"),
        (f"{__name__}:NeedsMore", "without arguments"),
    ],
)
def test_a_wrong_one_is_refused_with_the_reason(path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        decision(path)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("nowhere.at.all:Class", "No module named"),
        ("Class", "Write module:Class"),
        (f"{__name__}:NotAnAssignor", "has no assign"),
    ],
)
def test_the_check_before_spark_s_start_refuses_it_too(path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        check_assignor(path)


def test_the_check_makes_nothing() -> None:
    check_assignor("")
    check_assignor(f"{__name__}:GivesAll")


class Exits:
    def assign(self, application_state: object) -> object:
        raise SystemExit(1)

    def on_assignment_computed(self, assignment: object, error: object) -> None:
        raise AssertionError("there is no assignment")


class Hangs(Exits):
    def assign(self, application_state: object) -> object:
        threading.Event().wait(60)
        raise AssertionError("it came back")


@pytest.mark.parametrize(
    ("name", "says"), [("Exits", "raised SystemExit"), ("Hangs", "has not answered within 0.05 s")]
)
def test_exit_or_hang_moves_nobody(name: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    task = TaskId(0, 0)
    tasks = {task: TaskInfo(task, (TopicPartition("in", 0),))}
    cluster = ClusterState(
        members=(
            Member(member_id="m", process_id="p", owned=frozenset({task}), generation=1),
            Member(member_id="n", process_id="q"),
        ),
        tasks=tasks,
        end_sums={},
        racks={},
        rules=AssignmentRules(),
    )
    assert decision(f"{__name__}:{name}", 0.05)(cluster).active == {"m": {task}, "n": frozenset()}
    assert says in caplog.text


def test_it_runs_on_a_daemon_thread_of_its_own_and_what_it_raises_is_raised() -> None:
    seen: list[threading.Thread] = []
    code = OwnCode(10.0)
    code.run("Plug", lambda: seen.append(threading.current_thread()))
    assert seen[0] is not threading.current_thread()
    assert seen[0].daemon
    with pytest.raises(KeyError, match="a bug"):
        code.run("Plug", lambda: {}["a bug"])  # type: ignore[index]


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_its_thread_in_silence_is_an_error(failure: BaseException) -> None:
    def ends() -> None:
        raise failure

    with pytest.raises(OwnCodeError, match=f"Plug raised {type(failure).__name__}"):
        OwnCode(10.0).run("Plug", ends)


def test_one_that_hangs_is_not_entered_before_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    code, go_on, entered = OwnCode(0.05), threading.Event(), []

    def hangs() -> None:
        entered.append(1)
        go_on.wait(60)

    with pytest.raises(OwnCodeError, match=r"answered.*0\.05"):
        code.run("Plug", hangs)
    with pytest.raises(OwnCodeError, match="asked"):
        code.run("Plug", hangs)
    assert entered == [1]
    go_on.set()
    wait_until(lambda: "came back after" in caplog.text, 10, "the late answer is logged")
    code.run("Plug", lambda: entered.append(2))
    assert entered == [1, 2]


def test_whoever_waits_is_told_so_after_a_second(caplog: pytest.LogCaptureFixture) -> None:
    go_on = threading.Event()

    def said() -> None:
        wait_until(
            lambda: (
                "Plug has not answered for 1 s, and the whole group waits for it" in caplog.text
            ),
            10,
            "it is said",
        )
        go_on.set()

    waiter = threading.Thread(target=said)
    waiter.start()
    OwnCode(30.0).run("Plug", lambda: go_on.wait(20))
    waiter.join(20)
    assert go_on.is_set()


def test_a_member_that_waits_for_it_is_not_thrown_out() -> None:
    assert patience_s(45_000, 30_000) == 10
    assert patience_s(6_000, 300_000) == 2


EXAMPLES = Path(__file__).parents[3] / "examples"
TASKS = [TaskId(0, partition) for partition in range(4)]
INFOS = {task: TaskInfo(task, (), (TopicPartition("log", task.partition),), True) for task in TASKS}
ENDS = dict.fromkeys(TASKS, 1_000_000)
FIRST, SECOND = Member(member_id="m1", process_id="p1"), Member(member_id="m2", process_id="p2")

Decide = Callable[[ClusterState], Assignment]


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Decide:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return decision("own_assignor:StayingAssignor")


def cluster(*members: Member) -> ClusterState:
    return ClusterState(
        members=members, tasks=INFOS, end_sums=ENDS, rules=AssignmentRules(num_standbys=1)
    )


def test_tasks_of_nobody_are_dealt_evenly_by_threads(decide: Decide) -> None:
    found = decide(cluster(FIRST, replace(SECOND, threads=3)))
    assert {one: len(tasks) for one, tasks in found.active.items()} == {"m1": 1, "m2": 3}
    assert {one: len(tasks) for one, tasks in found.standby.items()} == {"m1": 3, "m2": 1}


def test_what_runs_stays_and_a_newcomer_gets_copies(decide: Decide) -> None:
    found = decide(cluster(replace(FIRST, owned=frozenset(TASKS), generation=1), SECOND))
    assert found.active == {"m1": frozenset(TASKS), "m2": frozenset()}
    assert found.standby["m2"] == frozenset(TASKS)
    assert not found.withheld


def test_a_draining_instance_gives_each_task_to_the_nearest_copy(decide: Decide) -> None:
    leaving = replace(FIRST, owned=frozenset(TASKS[:2]), generation=1, draining=True)
    near, far = (
        replace(SECOND, offset_sums={TASKS[0]: 999_000, TASKS[1]: 10}),
        Member(member_id="m3", process_id="p3", offset_sums={TASKS[1]: 999_000}),
    )
    busy = replace(far, owned=frozenset(TASKS[2:]), generation=1)
    taken = decide(cluster(leaving, near, busy))
    assert taken.withheld == frozenset(TASKS[:2]), "first the present owner lets go"
    assert not taken.active["m1"]
    given = decide(cluster(replace(leaving, owned=frozenset()), near, busy))
    assert given.active == {
        "m1": frozenset(),
        "m2": frozenset(TASKS[:1]),
        "m3": frozenset(TASKS[1:]),
    }


def test_where_everybody_drains_somebody_still_works(decide: Decide) -> None:
    found = decide(cluster(replace(FIRST, draining=True), replace(SECOND, draining=True)))
    assert frozenset().union(*found.active.values()) == frozenset(TASKS)
