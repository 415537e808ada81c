"""Who runs what, as text; status lines between processes."""

from __future__ import annotations

from everflow.demo.instance import decode, encode
from everflow.demo.view import copies, matrix, roles, shared
from everflow.records import TaskId
from everflow.runtime.task_status import TaskStatus
from everflow.runtime.tasks.task import TaskRole, TaskState

A, B = TaskId(0, 0), TaskId(1, 0)
ACTIVE = TaskStatus(TaskRole.ACTIVE, TaskState.RUNNING, 3, 0.0, 0.0)
RESTORING = TaskStatus(TaskRole.ACTIVE, TaskState.RESTORING, 60, 100.0, 0.6, 40)
STANDBY = TaskStatus(TaskRole.STANDBY, TaskState.RUNNING, 0, 5.0, 0.0, 70)
WARM_UP = TaskStatus(TaskRole.WARMUP, TaskState.RUNNING, 60, 100.0, 0.6, 40)


def test_a_status_line_comes_through_and_other_lines_are_nobodys() -> None:
    tasks = {A: ACTIVE, B: WARM_UP, TaskId(12, 345): TaskStatus(TaskRole.ACTIVE, TaskState.CREATED, None)}
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
    beginning = TaskStatus(TaskRole.WARMUP, TaskState.RUNNING, None, 0.0, None, 0)
    assert copies({"first": {A: ACTIVE, B: STANDBY}, "second": {A: beginning, B: WARM_UP}}) == [
        "second: warm-up of 1_0 40 %, 100 records/s, 0.6 s left"
    ]


def test_progress_alone_is_no_change_of_roles() -> None:
    further = TaskStatus(TaskRole.WARMUP, TaskState.RUNNING, 10, 100.0, 0.1, 90)
    assert roles({"first": {A: WARM_UP}}) == roles({"first": {A: further}})
    assert roles({"first": {A: WARM_UP}}) != roles({"first": {A: STANDBY}})
    assert roles({"first": {A: ACTIVE}}) != roles({"second": {A: ACTIVE}})


def test_shared_means_that_all_work_and_nobody_waits() -> None:
    assert shared({"first": {A: ACTIVE, B: STANDBY}, "second": {B: ACTIVE}}, [A, B])
    assert not shared({"first": {A: ACTIVE, B: ACTIVE}, "second": {B: STANDBY}}, [A, B])
    assert not shared({"first": {A: ACTIVE}, "second": {B: RESTORING}}, [A, B])
    assert not shared({"first": {A: ACTIVE, B: WARM_UP}, "second": {B: ACTIVE}}, [A, B])
    assert not shared({"first": {A: ACTIVE}, "second": {A: ACTIVE}}, [A, B])
