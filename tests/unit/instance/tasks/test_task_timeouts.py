"""`task.timeout.ms` of each task (KIP-572): its begin, its end, and who is tried meanwhile."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.errors import TaskTimeoutError
from everflow.instance.tasks.task import PART_OF_LIMIT, TaskTimeouts
from everflow.records import TaskId

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
