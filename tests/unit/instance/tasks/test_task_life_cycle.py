"""Tasks change state and role by the table only (reference 5.1)."""

from __future__ import annotations

from pathlib import Path

import pytest

from everflow.errors import IllegalTransitionError
from everflow.instance.tasks.task import ActiveTask, StandbyTask, TaskRole, TaskState, TaskStore
from everflow.records import TaskId, TopicPartition

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
