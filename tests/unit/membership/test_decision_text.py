"""What a leader says of its decision."""

from __future__ import annotations

import dataclasses

from everflow.assignment.cluster_state import (
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    TaskInfo,
)
from everflow.membership.decision_text import decision_text, known_of
from everflow.records import TaskId, TopicPartition

TASKS = [TaskId(0, partition) for partition in range(8)]
FIRST, REST = frozenset(TASKS[:4]), frozenset(TASKS[4:])
ONE = Member(
    member_id="one-3ad7a161-4510-4366-9fcf-9ea9b616b279", process_id="p1", owned=FIRST, generation=3
)
TWO = Member(
    member_id="two-a309ccc1-197c-4c9b-b8a4-0ddd6950e3f6",
    process_id="p2",
    owned=REST,
    generation=3,
    endpoint="host-2:80",
)


def cluster(*members: Member) -> ClusterState:
    return ClusterState(
        members=members,
        tasks={task: TaskInfo(task, (TopicPartition("in", task.partition),)) for task in TASKS},
        end_sums={},
        racks={},
        rules=AssignmentRules(),
    )


BOTH = Assignment(active={ONE.member_id: FIRST, TWO.member_id: REST})


def test_who_vanished_and_who_has_its_tasks_now() -> None:
    before = known_of(cluster(ONE, TWO), BOTH)
    assert decision_text(
        before, cluster(ONE), Assignment(active={ONE.member_id: FIRST | REST})
    ) == (
        "8 tasks on 1 instance; gone: two-a309ccc1 (host-2:80) (had 0_4, 0_5, 0_6, 0_7); "
        "moves now: 0_4, 0_5, 0_6, 0_7 from two-a309ccc1 (host-2:80) to one-3ad7a161; nothing left "
        "to move"
    )


def test_a_new_leader_knows_only_that_they_had_no_owner() -> None:
    assert decision_text({}, cluster(ONE), Assignment(active={ONE.member_id: FIRST | REST})) == (
        "8 tasks on 1 instance; moves now: 0_4, 0_5, 0_6, 0_7 from nobody (new, or the owner is "
        "gone) to one-3ad7a161; "
        "nothing left to move"
    )


def test_what_waits_for_its_owner_is_not_called_finished() -> None:
    before = known_of(cluster(ONE, TWO), BOTH)
    handing = Assignment(
        active={ONE.member_id: FIRST, TWO.member_id: frozenset()},
        withheld=REST,
        movements=0,
        followup_ms=0,
    )
    text = decision_text(before, cluster(ONE, TWO), handing)
    assert text.startswith("8 tasks on 2 instances; being handed over: 0_4, 0_5, 0_6, 0_7 (")
    assert "nothing left" not in text


def test_a_lost_instance_s_tasks_count_while_they_are_held_back() -> None:
    held = dataclasses.replace(cluster(ONE), held_back=REST)
    text = decision_text({}, held, Assignment(active={ONE.member_id: FIRST}))
    assert text == "8 tasks on 1 instance; held back for a lost instance: 0_4, 0_5, 0_6, 0_7"


def test_a_task_that_was_handed_over_comes_from_who_had_it() -> None:
    handing = Assignment(active={ONE.member_id: FIRST, TWO.member_id: frozenset()}, withheld=REST)
    done = Member(member_id=TWO.member_id, process_id="p2", generation=4, endpoint="host-2:80")
    handed = Assignment(active={ONE.member_id: FIRST | REST, TWO.member_id: frozenset()})
    text = decision_text(known_of(cluster(ONE, TWO), handing), cluster(ONE, done), handed)
    assert "moves now: 0_4, 0_5, 0_6, 0_7 from two-a309ccc1 (host-2:80) to one-3ad7a161;" in text


def test_a_newcomer_s_warm_ups_and_what_comes_later() -> None:
    alone = Member(member_id=ONE.member_id, process_id="p1", owned=FIRST | REST, generation=3)
    new = Member(member_id=TWO.member_id, process_id="p2")
    before = known_of(cluster(alone), Assignment(active={ONE.member_id: FIRST | REST}))
    warming = Assignment(
        active={ONE.member_id: FIRST | REST, TWO.member_id: frozenset()},
        warmup={TWO.member_id: frozenset(TASKS[4:6])},
        movements=4,
    )
    assert decision_text(before, cluster(alone, new), warming) == (
        "8 tasks on 2 instances; new: two-a309ccc1; warm-ups: 0_4 on two-a309ccc1, 0_5 on "
        "two-a309ccc1; still to move: 4"
    )
