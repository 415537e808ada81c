"""``task.assignor.class``: a user's assignor is loaded at start, or the start fails and says
why."""

from __future__ import annotations

import threading

import pytest

from everflow import StreamsConfig
from everflow.assignment import (
    ApplicationState,
    AssignmentError,
    KafkaStreamsAssignment,
    TaskAssignment,
)
from everflow.assignment import assignor as everflow_assignor
from everflow.assignment.cluster_state import ClusterState, Member, TaskInfo
from everflow.config import AssignmentRules
from everflow.errors import ConfigError
from everflow.membership.own_assignor import check_assignor, decision
from everflow.records import TaskId, TopicPartition


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
def test_one_that_exits_or_hangs_leaves_everyone_what_it_has(
    name: str, says: str, caplog: pytest.LogCaptureFixture
) -> None:
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
