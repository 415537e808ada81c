"""examples/own_assignor.py does what its text says, loaded as ``task.assignor.class`` loads it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from everflow.assignment.cluster_state import (
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    TaskInfo,
)
from everflow.membership.own_assignor import decision
from everflow.records import TaskId, TopicPartition

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
