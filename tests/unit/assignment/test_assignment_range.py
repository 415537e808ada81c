"""Range assignment: even, in runs, deterministic, and a moving task is on nobody for one generation."""

from __future__ import annotations

import random

import pytest

from everflow.assignment.cluster_state import Assignment, Member, owners_of, tasks_of, validate_assignment
from everflow.assignment.range import assign
from everflow.records import TaskId, TopicPartition


def tasks(*sizes: int) -> list[TaskId]:
    return [TaskId(index, partition) for index, size in enumerate(sizes) for partition in range(size)]


def numbers(given: frozenset[TaskId]) -> list[str]:
    return [str(task) for task in sorted(given)]


def test_runs_and_rotating_remainders() -> None:
    decided = assign([Member("m1", "a"), Member("m2", "b"), Member("m3", "c")], tasks(4, 4))
    assert numbers(decided.active["m1"]) == ["0_0", "0_1", "1_0"]
    assert numbers(decided.active["m2"]) == ["0_2", "1_1", "1_2"]
    assert numbers(decided.active["m3"]) == ["0_3", "1_3"]
    assert decided.withheld == frozenset()


def test_a_moving_task_is_withheld_for_one_generation() -> None:
    everything = frozenset(tasks(4))
    first = assign([Member("m1", "a", everything, 1), Member("m2", "b")], everything)
    assert numbers(first.active["m1"]) == ["0_0", "0_1"]
    assert first.active["m2"] == frozenset()
    assert numbers(first.withheld) == ["0_2", "0_3"]
    second = assign([Member("m1", "a", first.active["m1"], 2), Member("m2", "b", frozenset(), 2)], everything)
    assert numbers(second.active["m2"]) == ["0_2", "0_3"]
    assert not second.withheld


def test_an_old_claim_gives_way_and_equal_claims_free_the_task() -> None:
    task = TaskId(0, 0)
    old, new = Member("m1", "a", frozenset({task}), 3), Member("m2", "b", frozenset({task}), 4)
    assert owners_of([old, new]) == {task: frozenset({"m2"})}
    equal = [Member("m1", "a", frozenset({task}), 4), new]
    decided = assign(equal, [task])
    assert decided.withheld == {task}
    assert validate_assignment(decided, equal, [task]) == []


@pytest.mark.parametrize("seed", range(30))
def test_any_history_of_joins_and_leaves_converges_without_two_owners(seed: int) -> None:
    rng = random.Random(seed)
    every = tasks(*(rng.randint(0, 7) for _ in range(rng.randint(1, 4))))
    held: dict[str, frozenset[TaskId]] = {}
    for generation in range(12):
        if rng.random() < 0.5 or not held:
            held[f"m{generation}"] = frozenset()
        elif len(held) > 1:
            del held[rng.choice(sorted(held))]
        rebalances = 0
        while rebalances < 3:
            rebalances += 1
            members = [Member(m, m, owned, generation) for m, owned in held.items()]
            rng.shuffle(members)
            decided = assign(members, rng.sample(every, len(every)))
            assert validate_assignment(decided, members, every) == []
            assert decided == assign(sorted(members, key=lambda m: m.member_id), every)
            held = dict(decided.active)
            if not decided.withheld:
                break
        assert rebalances <= 2
        loads = [len(owned) for owned in held.values()]
        assert sum(loads) == len(every)
        assert max(loads) - min(loads) <= 1


def test_the_validator_names_each_broken_rule() -> None:
    a, b = Member("m1", "a", frozenset({TaskId(0, 0)}), 1), Member("m2", "b")
    wrong = Assignment({"m1": frozenset({TaskId(0, 1)}), "m2": frozenset(tasks(2)), "m9": frozenset()}, withheld=frozenset({TaskId(0, 2)}))
    text = "\n".join(validate_assignment(wrong, [a, b], tasks(4)))
    for expected in ("['m9'] differ", "0_1 is on m1 and on m2", "0_3 is on nobody", "nobody owns it", "while m1 still own"):
        assert expected in text


def test_tasks_read_every_topic_that_reaches_their_partition() -> None:
    found = tasks_of({0: ["a", "b"], 1: ["c"], 2: ["absent"]}, {"a": 2, "b": 1, "c": 1})
    assert found == {
        TaskId(0, 0): (TopicPartition("a", 0), TopicPartition("b", 0)),
        TaskId(0, 1): (TopicPartition("a", 1),),
        TaskId(1, 0): (TopicPartition("c", 0),),
    }
