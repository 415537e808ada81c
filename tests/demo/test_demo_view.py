"""Who runs what, as text; status lines between processes."""

from __future__ import annotations

from everflow.instance.describe import TaskStatus
from everflow.instance.tasks.task import TaskRole, TaskState
from everflow.records import TaskId
from everflow_demo.elastic import copies, matrix, roles, shared
from everflow_demo.instance import decode, encode

A, B = TaskId(0, 0), TaskId(1, 0)
ACTIVE = TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RUNNING, lag=3, rate=0.0, remaining_s=0.0)
RESTORING = TaskStatus(
    role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=60, rate=100.0, remaining_s=0.6, copied=40
)
STANDBY = TaskStatus(
    role=TaskRole.STANDBY, state=TaskState.RUNNING, lag=0, rate=5.0, remaining_s=0.0, copied=70
)
WARM_UP = TaskStatus(
    role=TaskRole.WARMUP, state=TaskState.RUNNING, lag=60, rate=100.0, remaining_s=0.6, copied=40
)


def test_a_status_line_comes_through_and_other_lines_are_nobodys() -> None:
    tasks = {
        A: ACTIVE,
        B: WARM_UP,
        TaskId(12, 345): TaskStatus(role=TaskRole.ACTIVE, state=TaskState.CREATED, lag=None),
    }
    assert decode(encode("RUNNING", tasks) + "\n") == ("RUNNING", tasks)
    assert decode("OpenJDK 64-Bit Server VM warning\n") is None


def test_the_matrix_has_a_row_for_each_instance() -> None:
    instances = {"first": {A: ACTIVE, B: RESTORING}, "second": {B: STANDBY}}
    rows = [
        "        0_0      1_0",
        "first   active   restore",
        "second           standby",
    ]
    assert matrix(instances, [A, B], {}) == rows
    assert matrix(instances, [A, B], {A: 0.25, B: 12.0}) == [*rows, "pause   0.25 s   12.00 s"]


def test_what_is_waited_for_is_told_with_its_progress() -> None:
    beginning = TaskStatus(
        role=TaskRole.WARMUP,
        state=TaskState.RUNNING,
        lag=None,
        rate=0.0,
        remaining_s=None,
        copied=0,
    )
    assert copies({"first": {A: ACTIVE, B: STANDBY}, "second": {A: beginning, B: WARM_UP}}) == [
        "second: warm-up of 1_0 40 %, 100 records/s, 0.6 s left"
    ]


def test_progress_alone_is_no_change_of_roles() -> None:
    further = TaskStatus(
        role=TaskRole.WARMUP,
        state=TaskState.RUNNING,
        lag=10,
        rate=100.0,
        remaining_s=0.1,
        copied=90,
    )
    assert roles({"first": {A: WARM_UP}}) == roles({"first": {A: further}})
    assert roles({"first": {A: WARM_UP}}) != roles({"first": {A: STANDBY}})
    assert roles({"first": {A: ACTIVE}}) != roles({"second": {A: ACTIVE}})


def test_shared_means_that_all_work_and_nobody_waits() -> None:
    assert shared({"first": {A: ACTIVE, B: STANDBY}, "second": {B: ACTIVE}}, [A, B])
    assert not shared({"first": {A: ACTIVE, B: ACTIVE}, "second": {B: STANDBY}}, [A, B])
    assert not shared({"first": {A: ACTIVE}, "second": {B: RESTORING}}, [A, B])
    assert not shared({"first": {A: ACTIVE, B: WARM_UP}, "second": {B: ACTIVE}}, [A, B])
    assert not shared({"first": {A: ACTIVE}, "second": {A: ACTIVE}}, [A, B])
