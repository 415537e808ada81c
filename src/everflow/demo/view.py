"""The tasks of several instances as text: who runs what, how far the copies are. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from everflow.records import TaskId
from everflow.runtime.describe import ACTIVE, RESTORING, WARM_UP, TaskStatus, progress, role_of

Instances = Mapping[str, Mapping[TaskId, TaskStatus]]
"""The tasks of each instance, by its name."""
PAUSE = "pause"
_WIDTH = 9


def matrix(
    instances: Instances, tasks: Sequence[TaskId], pauses: Mapping[TaskId, float]
) -> list[str]:
    """A row for each instance, a column for each task, below a head: the task's role there. Below
    them the longest pause of each task, in s; the row is left out where ``pauses`` is empty."""
    label = max(len(name) for name in instances) + 2
    rows = [" " * label + "".join(f"{task!s:<{_WIDTH}}" for task in tasks)]
    for name, found in instances.items():
        cells = (_cell(found[task]) if task in found else "" for task in tasks)
        rows.append(f"{name:<{label}}" + "".join(f"{cell:<{_WIDTH}}" for cell in cells))
    if pauses:
        cells = (f"{pauses[task]:.2f} s" if task in pauses else "" for task in tasks)
        rows.append(f"{PAUSE:<{label}}" + "".join(f"{cell:<{_WIDTH}}" for cell in cells))
    return [row.rstrip() for row in rows]


def copies(instances: Instances) -> list[str]:
    """``second: warm-up of 0_1 43 %, 12,000 records/s, 3 s left`` for each task that somebody waits
    for and of which that much is known."""
    return [
        f"{name}: {_DOING[role_of(status)]} {task} {progress([status])}"
        for name, tasks in instances.items()
        for task, status in sorted(tasks.items())
        if role_of(status) in _DOING and status.copied is not None and status.lag is not None
    ]


def roles(instances: Instances) -> frozenset[tuple[str, TaskId, str]]:
    """What changes when a task comes, goes or gets another role."""
    return frozenset(
        (name, task, role_of(status))
        for name, tasks in instances.items()
        for task, status in tasks.items()
    )


def shared(instances: Instances, tasks: Collection[TaskId]) -> bool:
    """Whether every instance processes some of these tasks, together all of them, and no copy is
    waited for."""
    active = [
        {task for task, status in found.items() if role_of(status) == ACTIVE}
        for found in instances.values()
    ]
    waited_for = any(
        role_of(status) in _DOING for found in instances.values() for status in found.values()
    )
    return all(active) and set(tasks) == set().union(*active) and not waited_for


def _cell(status: TaskStatus) -> str:
    role = role_of(status)
    return "restore" if role == RESTORING else role


_DOING = {WARM_UP: "warm-up of", RESTORING: "restore of"}
