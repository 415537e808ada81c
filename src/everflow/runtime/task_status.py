"""What an operator sees of an instance's tasks: role, state, how far behind, for how long still."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from everflow import metrics as names
from everflow.records import TaskId, TopicPartition
from everflow.runtime.copies.copied_tasks import FollowedTask
from everflow.runtime.restore.restore_listener import RestoreProgress
from everflow.runtime.tasks.task import ActiveTask, TaskRole, TaskState
from everflow.runtime.thread.retry_policy import Trouble


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """One task on this instance.

    Attributes:
        state: CREATED while it is ours and is nowhere yet: it waits for its stream thread, or for
        the state updater to let go.
            SUSPENDED while it is handed over: revoked here, and its next owner does not have it
            yet.
        lag: a running active task: input records that wait; otherwise offsets between its copy and
        the end of its changelogs.
            None: not known yet.
        rate: records/s of its copy, restoring or following.
        remaining_s: until its copy is complete at that rate; None: not known, 0: complete.
        copied: offsets of its changelogs that its copy has, of ``copied + lag``; None for a running
        active task.
        trouble: what keeps it from getting on, since when and how often; None for one that does.
    """

    role: TaskRole
    state: TaskState
    lag: int | None
    rate: float = 0.0
    remaining_s: float | None = None
    copied: int | None = None
    trouble: Trouble | None = None


def statuses(
    owned: Iterable[TaskId],
    running: Iterable[ActiveTask],
    ends: Mapping[TopicPartition, int],
    followed: Mapping[TaskId, FollowedTask],
    recovering: Collection[TaskId],
    restores: Mapping[TaskId, Sequence[RestoreProgress]],
    handing_over: Collection[TaskId] = (),
    troubles: Mapping[TaskId, Trouble] | None = None,
    stalled_copies: Mapping[TaskId, TaskRole] | None = None,
) -> dict[TaskId, TaskStatus]:
    """All tasks by id. ``owned``: what the group wants active here; ``ends``: of input partitions;
    ``restores``: under way; ``handing_over``: revoked, not given up yet. One whose last batch still
    runs is RUNNING. ``troubles``: of their threads, and of ``stalled_copies``, which make no
    progress and may not be open yet."""
    told = troubles or {}
    found = {
        task: TaskStatus(role=TaskRole.ACTIVE, state=TaskState.CREATED, lag=None) for task in owned
    }
    found |= {
        task: TaskStatus(
            role=copy.role,
            state=TaskState.RUNNING,
            lag=copy.lag,
            rate=copy.rate,
            remaining_s=copy.remaining_s,
            copied=copy.offset_sum,
            trouble=told.get(task),
        )
        for task, copy in followed.items()
    }
    found |= {
        task: TaskStatus(role=role, state=TaskState.CREATED, lag=None, trouble=told.get(task))
        for task, role in (stalled_copies or {}).items()
        if task not in found
    }
    found |= {task: _restoring(restores.get(task, ())) for task in recovering}
    found |= {
        task: TaskStatus(role=TaskRole.ACTIVE, state=TaskState.SUSPENDED, lag=None)
        for task in handing_over
    }
    for task in running:
        positions = dict(task.positions)
        known = all(tp in ends for tp in positions)
        lag = sum(max(0, ends[tp] - offset) for tp, offset in positions.items()) if known else None
        found[task.id] = TaskStatus(
            role=TaskRole.ACTIVE,
            state=task.state,
            lag=lag,
            rate=0.0,
            remaining_s=0.0,
            trouble=told.get(task.id),
        )
    return dict(sorted(found.items()))


def _restoring(stores: Sequence[RestoreProgress]) -> TaskStatus:
    if not stores:
        return TaskStatus(role=TaskRole.ACTIVE, state=TaskState.RESTORING, lag=None)
    left = [store.remaining_s for store in stores]
    known = [seconds for seconds in left if seconds is not None]
    return TaskStatus(
        role=TaskRole.ACTIVE,
        state=TaskState.RESTORING,
        lag=sum(store.end - store.position for store in stores),
        rate=sum(store.rate for store in stores),
        remaining_s=max(known) if len(known) == len(left) else None,
        copied=sum(store.position - store.start for store in stores),
    )


def input_lag(tasks: Iterable[TaskStatus]) -> float:
    """Input records that wait for the active tasks; NaN while one of them does not run yet, or its
    ends were not read yet."""
    ours = [
        task
        for task in tasks
        if task.role is TaskRole.ACTIVE and task.state is not TaskState.SUSPENDED
    ]
    if any(task.state is not TaskState.RUNNING or task.lag is None for task in ours):
        return math.nan
    return sum(task.lag or 0 for task in ours)


def copies_metrics(followed: Mapping[TaskId, FollowedTask]) -> dict[str, float]:
    """Gauges of standbys and warm-ups."""
    standbys = [f for f in followed.values() if f.role is TaskRole.STANDBY]
    warmups = [f for f in followed.values() if f.role is TaskRole.WARMUP]
    return {
        names.STANDBY_TASKS: len(standbys),
        names.WARMUP_TASKS: len(warmups),
        names.COPIES_LAG: sum(f.lag or 0 for f in followed.values()),
        names.COPIES_RATE: sum(f.rate for f in followed.values()),
    }
