"""Tasks in words."""

from dataclasses import replace

import pytest

from everflow.instance.describe import TaskStatus, duration, statuses, summary, task_lines
from everflow.instance.tasks.task import TaskRole, TaskState
from everflow.instance.thread.retry_policy import Trouble
from everflow.records import TaskId

RUNNING = TaskStatus(
    role=TaskRole.ACTIVE, state=TaskState.RUNNING, lag=1_200, rate=0.0, remaining_s=0.0
)
STANDBY = TaskStatus(
    role=TaskRole.STANDBY, state=TaskState.RUNNING, lag=0, rate=50.0, remaining_s=0.0, copied=900
)
WARM_UP = TaskStatus(
    role=TaskRole.WARMUP,
    state=TaskState.RUNNING,
    lag=6_000,
    rate=2_000.0,
    remaining_s=3.0,
    copied=2_000,
)
RESTORING = TaskStatus(
    role=TaskRole.ACTIVE,
    state=TaskState.RESTORING,
    lag=570,
    rate=1_000.0,
    remaining_s=0.57,
    copied=430,
)
BEGINNING = TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=None)


def tasks(*found: TaskStatus) -> dict[TaskId, TaskStatus]:
    return {TaskId(0, partition): status for partition, status in enumerate(found)}


def test_roles_are_counted_and_what_somebody_waits_for_has_its_progress() -> None:
    assert summary(tasks(RUNNING, RUNNING, STANDBY)) == "2 active, 1 standby"
    assert (
        summary(tasks(RUNNING, WARM_UP, WARM_UP))
        == "1 active, 2 warm-up · warm-up 25 %, 4,000 records/s, 3.0 s left"
    )
    assert summary(tasks(RESTORING)) == "1 restoring · restoring 43 %, 1,000 records/s, 0.6 s left"
    assert summary({}) == ""


def test_a_task_that_is_handed_over_is_leaving_not_starting() -> None:
    one, two = TaskId(0, 0), TaskId(0, 1)
    found = statuses([one, two], (), {}, {}, (), {}, handing_over=[two])
    assert summary(found) == "1 starting, 1 leaving"
    assert [line.split() for line in task_lines(found)] == [["0_0", "starting"], ["0_1", "leaving"]]


def test_what_is_not_known_is_not_said() -> None:
    assert summary(tasks(BEGINNING)) == "1 restoring · restoring begins"
    assert summary(tasks(BEGINNING, RESTORING)) == "2 restoring · restoring 43 %, 1,000 records/s"


def test_tasks_whose_batches_fail_say_so_with_how_often_since_when_and_why() -> None:
    trouble = Trouble(1_000, 3, "no leader for out-0")
    failing = replace(RUNNING, trouble=trouble)
    begun = TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=None, trouble=trouble)
    found = tasks(RUNNING, failing, begun)
    assert summary(found, 13_000) == "1 active, 2 failing · no leader for out-0 (3 times in 12 s)"
    assert [line[:16] for line in task_lines(found)] == [
        "   0_1  failing ",
        "   0_2  failing ",
        "   0_0  active  ",
    ]
    assert "no leader for out-0 (3 times in" in task_lines(found)[0]
    long = tasks(replace(RUNNING, trouble=Trouble(1_000, 1, "x" * 500)))
    assert summary(long, 1_000) == f"1 failing · {'x' * 120}... (once in 0.0 s)"


def test_a_hundred_percent_is_said_of_complete_copies_only() -> None:
    nearly = TaskStatus(
        role=TaskRole.WARMUP,
        state=TaskState.RUNNING,
        lag=1,
        rate=0.0,
        remaining_s=None,
        copied=999_999,
    )
    done = TaskStatus(
        role=TaskRole.WARMUP, state=TaskState.RUNNING, lag=0, rate=0.0, remaining_s=0.0, copied=5
    )
    assert summary(tasks(nearly)) == "1 warm-up · warm-up 99 %"
    assert summary(tasks(done)) == "1 warm-up · warm-up 100 %"


def test_lines_begin_with_what_is_waited_for_and_end_after_a_dozen() -> None:
    lines = task_lines(tasks(STANDBY, RUNNING, WARM_UP, RESTORING))
    assert lines == [
        "   0_3  restoring  43 %, 1,000 records/s, 0.6 s left",
        "   0_2  warm-up    25 %, 2,000 records/s, 3.0 s left",
        "   0_1  active     lag 1,200",
        "   0_0  standby    100 %, 50 records/s",
    ]
    assert task_lines(tasks(*[RUNNING] * 15))[-1] == "and 3 more tasks"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.44, "0.4 s"), (9.96, "10 s"), (100, "2 min"), (7_800, "2 h 10 min"), (0.0, "0.0 s")],
)
def test_durations_are_as_exact_as_people_read_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
