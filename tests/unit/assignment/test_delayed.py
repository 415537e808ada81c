"""What waits for a lost member, for how long; and the values an assignor works with."""

from dataclasses import replace

from everflow.assignment.assignor import assign
from everflow.assignment.cluster_state import (
    Assignment,
    AssignmentRules,
    ClusterState,
    Member,
    TaskInfo,
    owners_of,
    tasks_of,
    validate_assignment,
)
from everflow.assignment.lags import Delay, hold_back, remember
from everflow.records import TaskId, TopicPartition

A, B, FREE = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
TASKS = {
    task: TaskInfo(task, (), (TopicPartition("c", task.partition),), True) for task in (A, B)
} | {FREE: TaskInfo(FREE, ())}
ONE = Member(member_id="m1", process_id="p1", owned=frozenset({A}), generation=1)
TWO = Member(member_id="m2", process_id="p2", owned=frozenset({B, FREE}), generation=1)


def cluster(*members: Member) -> ClusterState:
    return ClusterState(
        members=members,
        tasks=TASKS,
        end_sums={A: 100_000, B: 100_000},
        racks={},
        rules=AssignmentRules(),
    )


def step(
    delay: Delay, state: ClusterState, now_ms: int, max_delay_ms: int = 60_000
) -> tuple[Delay, Assignment]:
    delay, state = hold_back(delay, state, now_ms, max_delay_ms)
    return remember(delay, state, assign(state), now_ms)


def after_a_loss() -> tuple[Delay, Assignment]:
    delay, _ = step(Delay(), cluster(ONE, TWO), 0)
    return step(delay, cluster(ONE), 1_000)


def test_cold_tasks_wait_and_others_go_on() -> None:
    delay, decided = after_a_loss()
    assert decided.active == {"m1": {A, FREE}}
    assert decided.followup_ms == 60_000
    assert delay.lost == {B: "p2"}


def test_the_member_that_returns_gets_its_task() -> None:
    delay, _ = after_a_loss()
    now_one = replace(ONE, owned=frozenset({A, FREE}), generation=2)
    back = Member(member_id="m9", process_id="p2", offset_sums={B: 99_990})
    delay, decided = step(delay, cluster(now_one, back), 30_000)
    assert B in decided.active["m9"]
    assert delay.deadline_ms is None


def test_the_waiting_ends_and_a_further_loss_does_not_prolong_it() -> None:
    delay, _ = after_a_loss()
    one = replace(ONE, owned=frozenset({A, FREE}), generation=2)
    delay, decided = step(delay, cluster(one), 40_000)
    assert decided.followup_ms == 21_000
    newcomer = Member(member_id="m3", process_id="p3")
    delay, decided = step(delay, cluster(newcomer), 50_000)
    assert delay.lost == {A: "p1", B: "p2"}
    assert decided.active == {"m3": {FREE}}
    delay, decided = step(
        delay, cluster(replace(newcomer, owned=frozenset({FREE}), generation=4)), 61_000
    )
    assert decided.active == {"m3": {A, B, FREE}}
    assert delay.deadline_ms is None
    assert delay.lost == {}


def test_a_hot_copy_elsewhere_takes_over_at_once() -> None:
    delay, _ = step(Delay(), cluster(ONE, TWO), 0)
    _, decided = step(delay, cluster(replace(ONE, offset_sums={B: 99_999})), 1_000)
    assert decided.active == {"m1": {A, B, FREE}}
    assert decided.followup_ms is None


def test_off_by_default_and_nothing_is_held_back_by_a_new_leader() -> None:
    delay, _ = step(Delay(), cluster(ONE, TWO), 0, max_delay_ms=0)
    assert step(delay, cluster(ONE), 1_000, max_delay_ms=0)[1].active == {"m1": {A, B, FREE}}
    assert step(Delay(), cluster(ONE), 1_000)[1].active == {"m1": {A, B, FREE}}


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
