"""Tasks are dealt to threads by the table (reference 5.1), and have a time-out each (KIP-572)."""

from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.errors import IllegalTransitionError, RetriableError, TaskTimeoutError
from everflow.instance.client_state import CLIENT_TRANSITIONS, ClientState, StateMachine
from everflow.instance.tasks.blueprint import Blueprint
from everflow.instance.tasks.recovery import fence_lost_writers, lost_writers
from everflow.instance.tasks.task import (
    PART_OF_LIMIT,
    ActiveTask,
    StandbyTask,
    TaskRole,
    TaskState,
    TaskStore,
    TaskTimeouts,
    deal,
)
from everflow.records import TaskId, TopicPartition

tasks = st.sets(st.builds(TaskId, st.integers(0, 3), st.integers(0, 7)))


@given(tasks, tasks, st.integers(1, 5))
def test_dealing_is_balanced_and_stable(before: set[TaskId], now: set[TaskId], count: int) -> None:
    threads = range(count)
    first = deal(before, threads, {})
    second = deal(now, threads, first)
    for dealt, wanted in ((first, before), (second, now)):
        assert dealt.keys() == wanted
        loads = [sum(1 for t in dealt.values() if t == thread) for thread in threads]
        assert max(loads) - min(loads) <= 1
    assert deal(now, threads, second) == second
    assert deal(sorted(now, reverse=True), threads, first) == second


@given(
    st.dictionaries(st.builds(TaskId, st.integers(0, 1), st.integers(0, 5)), st.integers(0, 3)),
    tasks,
    tasks,
)
def test_what_runs_stays_on_its_thread_wherever_the_balance_allows(
    previous: dict[TaskId, int], now: set[TaskId], gone: set[TaskId]
) -> None:
    """``gone`` ran here once and come back, or come for the first time: they must not drive away
    what runs."""
    threads = range(4)
    running = now & previous.keys() - gone
    dealt = deal(now, threads, previous, running)
    held = [sum(1 for task in running if previous[task] == thread) for thread in threads]
    low, extra = divmod(len(now), len(threads))
    most = sum(min(one, low) for one in held) + min(extra, sum(one > low for one in held))
    stay = sum(dealt[task] == previous[task] for task in running)
    assert stay == most, f"{stay} of {most} stay: {previous} -> {dealt}, running {running}"


def test_tasks_of_one_subtopology_are_spread() -> None:
    dealt = deal([TaskId(s, p) for s in range(2) for p in range(4)], [0, 1], {})
    for sub in range(2):
        assert sorted(dealt[TaskId(sub, p)] for p in range(4)) == [0, 0, 1, 1]


def test_the_listener_sees_every_change_in_order_and_may_fail() -> None:
    machine = StateMachine()
    seen: list[tuple[ClientState, ClientState]] = []

    def listener(new: ClientState, old: ClientState) -> None:
        seen.append((new, old))
        raise RuntimeError("the user's listener")

    machine.listener = listener
    for state in (
        ClientState.REBALANCING,
        ClientState.RUNNING,
        ClientState.PENDING_SHUTDOWN,
        ClientState.NOT_RUNNING,
    ):
        assert machine.to(state)
    assert [new for new, _ in seen] == [
        ClientState.REBALANCING,
        ClientState.RUNNING,
        ClientState.PENDING_SHUTDOWN,
        ClientState.NOT_RUNNING,
    ]
    assert machine.wait_ended(0)


def test_late_events_do_not_revive_an_instance_and_impossible_steps_raise() -> None:
    machine = StateMachine()
    with pytest.raises(IllegalTransitionError):
        machine.to(ClientState.RUNNING)
    machine.to(ClientState.PENDING_SHUTDOWN)
    assert not machine.to(ClientState.RUNNING)
    assert not machine.to(ClientState.PENDING_ERROR)
    assert machine.state is ClientState.PENDING_SHUTDOWN
    assert CLIENT_TRANSITIONS[ClientState.ERROR] == frozenset()


TASK = TaskId(0, 1)
INPUTS = (TopicPartition("in", 1),)
STORES = (TaskStore("s", Path("s"), TopicPartition("log", 1)),)
ACTIVE = {
    ("CREATED", "RESTORING"),
    ("CREATED", "CLOSED"),
    ("RESTORING", "RUNNING"),
    ("RESTORING", "SUSPENDED"),
    ("RESTORING", "CLOSED"),
    ("RUNNING", "RESTORING"),
    ("RUNNING", "SUSPENDED"),
    ("SUSPENDED", "RESTORING"),
    ("SUSPENDED", "CLOSED"),
}
STANDBY = {
    ("CREATED", "RUNNING"),
    ("CREATED", "CLOSED"),
    ("RUNNING", "SUSPENDED"),
    ("SUSPENDED", "RUNNING"),
    ("SUSPENDED", "CLOSED"),
}


@pytest.mark.parametrize("old", TaskState)
@pytest.mark.parametrize("new", TaskState)
def test_the_steps_there_are(old: TaskState, new: TaskState) -> None:
    for task, steps in (
        (ActiveTask(id=TASK, inputs=INPUTS, stores=STORES, state=old), ACTIVE),
        (StandbyTask(TASK, STORES, state=old), STANDBY),
    ):
        if (old.name, new.name) in steps:
            task.to(new)
            assert task.state is new
        else:
            with pytest.raises(IllegalTransitionError, match=rf"{old.name}.*{new.name}"):
                task.to(new)


def test_a_task_changes_its_role_with_its_stores_and_only_suspended() -> None:
    standby = StandbyTask(TASK, STORES)
    standby.to(TaskState.RUNNING)
    with pytest.raises(IllegalTransitionError, match="suspended"):
        standby.recycle(INPUTS)
    standby.to(TaskState.SUSPENDED)
    active = standby.recycle(INPUTS)
    assert (active.stores, active.inputs, active.state) == (STORES, INPUTS, TaskState.SUSPENDED)
    active.to(TaskState.RESTORING)
    active.to(TaskState.RUNNING)
    with pytest.raises(IllegalTransitionError):
        active.recycle(TaskRole.STANDBY)
    active.to(TaskState.SUSPENDED)
    again = active.recycle(TaskRole.WARMUP)
    assert (again.stores, again.role, again.state) == (STORES, TaskRole.WARMUP, TaskState.SUSPENDED)


def test_only_topics_that_nobody_else_deletes_from_say_what_was_purged() -> None:
    blueprint = Blueprint(
        application_id="app",
        cluster_id="c",
        plan=cast(Any, None),
        inputs={},
        stores={},
        partitions={"in": 1, "kept": 2, "aging": 2},
        offset_reset={},
        repartition=frozenset({"kept", "aging"}),
        kept=frozenset({"kept"}),
    )
    assert blueprint.purged() == [TopicPartition("kept", 0), TopicPartition("kept", 1)]


ME, LIVE, DEAD = (f"{digit * 8}-aaaa-bbbb-cccc-{digit * 12}" for digit in "123")


def test_only_ids_of_processes_that_are_no_members_are_lost() -> None:
    open_ids = [f"app-{ME}-0", f"app-{LIVE}-0", f"app-{DEAD}-0", f"app-{DEAD}-11"]
    open_ids += [f"other-{DEAD}-0", "app-foreign", f"app-x-{DEAD}-0"]
    assert lost_writers("app", open_ids, [f"app-{LIVE}", f"app-{ME}"], ME) == [
        f"app-{DEAD}-0",
        f"app-{DEAD}-11",
    ]


def test_the_own_process_lives_even_where_the_group_does_not_list_it() -> None:
    assert lost_writers("app", [f"app-{ME}-0"], [], ME) == []


def test_a_member_of_whom_the_process_cannot_be_told_may_own_any_of_them() -> None:
    assert lost_writers("app", [f"app-{DEAD}-0"], [f"app-{LIVE}", "everflow"], ME) == []


def test_nobody_is_asked_for_members_where_nothing_is_open_and_a_fault_is_no_failure() -> None:
    fenced: list[str] = []

    def refuse() -> list[str]:
        raise RetriableError("away")

    assert fence_lost_writers("app", ME, list, refuse, fenced.extend) == []
    assert fence_lost_writers("app", ME, lambda: [f"app-{DEAD}-0"], refuse, fenced.extend) == []
    assert fenced == []
    assert fence_lost_writers("app", ME, lambda: [f"app-{DEAD}-0"], list, fenced.extend)
    assert fenced == [f"app-{DEAD}-0"]


A, B, C = TaskId(0, 0), TaskId(0, 1), TaskId(1, 0)
ALL = (A, B, C)
LIMIT_MS = 10_000.0


def test_the_time_of_a_task_begins_with_a_failure_and_ends_with_progress() -> None:
    timeouts = TaskTimeouts(LIMIT_MS)
    timeouts.failed([A], "no leader", 0)
    timeouts.failed([A, B], "no leader", 9_000)
    timeouts.progressed(A)
    timeouts.failed([A], "no leader", 15_000)
    timeouts.failed([B], "no leader", 19_000)
    with pytest.raises(TaskTimeoutError) as late:
        timeouts.failed([A, B], "no answer", 19_001)
    assert late.value.task == B, "A got on meanwhile"
    assert str(late.value) == (
        "Task 0_1 made no progress for 10 s (task.timeout.ms: 10 s); the last failure: no answer"
    )


def test_with_no_time_at_all_the_first_failure_is_forgiven() -> None:
    """As in Kafka Streams: it only says when the time ends."""
    timeouts = TaskTimeouts(0)
    timeouts.failed([A], "no leader", 5)
    with pytest.raises(TaskTimeoutError):
        timeouts.failed([A], "no leader", 6)


def test_who_failed_rests_longer_each_time_and_the_longer_it_held_the_others_up() -> None:
    timeouts = TaskTimeouts(1_000_000)
    rests = []
    for number, took_ms in enumerate((0, 0, 0, 3_000, 900_000)):
        timeouts.failed([A], "no leader", 0)
        timeouts.rest([A], 0, took_ms)
        assert timeouts.resting(0) == {A}, number
        rests.append(timeouts.stalled()[A].until_ms)
    assert rests == [500, 1_000, 2_000, 9_000, 1_000_000 * PART_OF_LIMIT]


def test_tasks_that_failed_together_are_tried_one_by_one_and_who_gets_on_is_free_again() -> None:
    timeouts = TaskTimeouts(LIMIT_MS)
    timeouts.failed([A, B], "nobody knows of whom", 0)
    assert timeouts.chosen(ALL, 0) == [A, B, C], "once may be bad luck"
    timeouts.set_apart([A, B])
    assert timeouts.chosen(ALL, 0) == [A]
    timeouts.progressed(A)
    assert timeouts.chosen(ALL, 0) == [B]
    timeouts.failed([B], "it is B", 100)
    timeouts.rest([B], 100, 100)
    assert timeouts.chosen([A, C], 200) == [A, C]
    assert timeouts.chosen(ALL, timeouts.stalled()[B].until_ms) == [B]


def test_tasks_that_get_on_have_most_of_the_time_however_many_do_not() -> None:
    timeouts = TaskTimeouts(1_000_000)
    many = [TaskId(2, number) for number in range(40)]
    timeouts.failed(many, "no leader", 0)
    timeouts.set_apart(many)
    now_ms, others_ms, took_ms = 0.0, 0.0, 3_000.0
    while now_ms < 300_000:
        awake = [task for task in many if task not in timeouts.resting(now_ms)]
        if timeouts.chosen([A, *awake], now_ms) == [A]:
            now_ms, others_ms = now_ms + 100, others_ms + 100
            continue
        (tried,) = timeouts.chosen([A, *awake], now_ms)
        now_ms += took_ms
        timeouts.failed([tried], "no leader", now_ms)
        timeouts.rest([tried], now_ms, took_ms)
    assert others_ms > 0.7 * now_ms


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("failed", "got on", "rest", "apart", "keep")),
            st.sets(st.sampled_from(ALL), min_size=1),
            st.integers(0, 4_000),
        ),
        max_size=40,
    )
)
def test_only_time_without_progress_ends_a_task(events: list[tuple[str, set[TaskId], int]]) -> None:
    """Against the rule in its plainest form: a list of what happened to each task."""
    timeouts, now_ms = TaskTimeouts(LIMIT_MS), 0.0
    since: dict[TaskId, float] = {}
    for what, tasks, later_ms in events:
        now_ms += later_ms
        known = sorted(tasks & timeouts.stalled().keys())
        if what == "failed":
            for task in tasks:
                since.setdefault(task, now_ms)
            over = {task for task in tasks if now_ms - since[task] > LIMIT_MS}
            if over:
                with pytest.raises(TaskTimeoutError) as late:
                    timeouts.failed(tasks, "no leader", now_ms)
                assert late.value.task in over
                return
            timeouts.failed(tasks, "no leader", now_ms)
        elif what == "rest":
            timeouts.rest(known, now_ms, later_ms)
        elif what == "apart":
            timeouts.set_apart(known)
        elif what == "keep":
            timeouts.keep(tasks)
            since = {task: at for task, at in since.items() if task in tasks}
        else:
            for task in tasks:
                timeouts.progressed(task)
                since.pop(task, None)
        assert timeouts.stalled().keys() == since.keys()
        awake = set(ALL) - timeouts.resting(now_ms)
        assert set(timeouts.chosen(sorted(awake), now_ms)) <= awake
        assert timeouts.chosen(sorted(awake), now_ms) or not awake, "somebody is always tried"
        assert all(one.until_ms <= now_ms + LIMIT_MS for one in timeouts.stalled().values()), (
            "who rests is tried again before its time is over"
        )
