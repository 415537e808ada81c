"""The values an assignor works with, and the validator that stands beside them."""

from __future__ import annotations

from everflow.assignment.cluster_state import (
    Assignment,
    Member,
    owners_of,
    tasks_of,
    validate_assignment,
)
from everflow.records import TaskId, TopicPartition


def test_an_old_claim_gives_way_and_equal_claims_free_the_task() -> None:
    task = TaskId(0, 0)
    old, new = (
        Member(member_id="m1", process_id="a", owned=frozenset({task}), generation=3),
        Member(member_id="m2", process_id="b", owned=frozenset({task}), generation=4),
    )
    assert owners_of([old, new]) == {task: frozenset({"m2"})}
    assert owners_of(
        [Member(member_id="m1", process_id="a", owned=frozenset({task}), generation=4), new]
    ) == {task: frozenset({"m1", "m2"})}


def test_the_validator_names_each_broken_rule() -> None:
    a, b = (
        Member(member_id="m1", process_id="a", owned=frozenset({TaskId(0, 0)}), generation=1),
        Member(member_id="m2", process_id="b"),
    )
    task = [TaskId(0, partition) for partition in range(5)]
    wrong = Assignment(
        active={"m1": frozenset({task[1]}), "m2": frozenset(task[:2]), "m9": frozenset()},
        standby={"m2": frozenset({task[1], TaskId(7, 7)})},
        warmup={"m8": frozenset({task[0]})},
        withheld=frozenset({task[2]}),
    )
    text = "\n".join(validate_assignment(wrong, [a, b], task, held_back={task[4]}))
    for expected in (
        "['m9'] differ",
        "0_1 is on m1 and on m2",
        "0_3 is on nobody",
        "nobody owns it",
        "while m1 still own",
        "0_1 has two roles on m2",
        "7_7, which does not exist, on m2",
        "m8 is given copies but is no member",
    ):
        assert expected in text
    assert "0_4" not in text


def test_tasks_read_every_topic_that_reaches_their_partition() -> None:
    found = tasks_of({0: ["a", "b"], 1: ["c"], 2: ["absent"]}, {"a": 2, "b": 1, "c": 1})
    assert found == {
        TaskId(0, 0): (TopicPartition("a", 0), TopicPartition("b", 0)),
        TaskId(0, 1): (TopicPartition("a", 1),),
        TaskId(1, 0): (TopicPartition("c", 0),),
    }
