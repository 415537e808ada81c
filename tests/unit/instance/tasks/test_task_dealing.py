"""Dealing tasks to threads, and the state machines of tasks and instances."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.errors import IllegalTransitionError
from everflow.instance.client_state import CLIENT_TRANSITIONS, ClientState, StateMachine
from everflow.instance.tasks.task import TASK_TRANSITIONS, ActiveTask, TaskState, deal
from everflow.records import TaskId

tasks = st.sets(st.builds(TaskId, st.integers(0, 3), st.integers(0, 7)))


@given(tasks, tasks, st.integers(1, 5))
def test_dealing_is_balanced_deterministic_and_stable(
    before: set[TaskId], now: set[TaskId], count: int
) -> None:
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
    most = sum(min(number, low) for number in held) + min(
        extra, sum(number > low for number in held)
    )
    stay = sum(dealt[task] == previous[task] for task in running)
    assert stay == most, f"{stay} of {most} stay: {previous} -> {dealt}, running {running}"


def test_a_task_that_comes_back_does_not_take_its_old_place_from_one_that_runs() -> None:
    first, second = TaskId(0, 0), TaskId(0, 1)
    remembered = {first: 0, second: 0}  # ``first`` was here, left, and ``second`` came in its place
    assert deal([first, second], [0, 1], remembered, [second]) == {first: 1, second: 0}


def test_tasks_of_one_subtopology_are_spread() -> None:
    dealt = deal([TaskId(s, p) for s in range(2) for p in range(4)], [0, 1], {})
    for sub in range(2):
        assert sorted(dealt[TaskId(sub, p)] for p in range(4)) == [0, 0, 1, 1]


def test_every_transition_that_is_not_listed_is_refused() -> None:
    for state in TaskState:
        for target in TaskState:
            task = ActiveTask(id=TaskId(0, 0), inputs=(), state=state)
            if target in TASK_TRANSITIONS[state]:
                task.to(target)
                assert task.state is target
            else:
                with pytest.raises(IllegalTransitionError):
                    task.to(target)


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
