"""Holds a lost member's tasks back until it returns (Connect's rule, KIP-415). Pure.

The setting is ``scheduled.rebalance.max.delay.ms``.

Connect holds back everything a lost worker had. Here only what would have to start cold is held
back: a stateful task without a hot copy on a live member. Anything else goes on elsewhere at once
and comes back as cheaply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everflow.assignment.cluster_state import Assignment, ClusterState
from everflow.assignment.lags import Lags
from everflow.records import TaskId


@dataclass(frozen=True)
class Delay:
    """What the leader remembers from decision to decision; a new leader starts empty and holds
    nothing back.

    ``owners``: the process that held each task in the last assignment. ``lost``: held-back tasks,
    with the process they wait for. ``deadline_ms``: when the waiting ends for all of them; a
    further loss does not prolong it.
    """

    owners: Mapping[TaskId, str] = field(default_factory=dict)
    lost: Mapping[TaskId, str] = field(default_factory=dict)
    deadline_ms: int | None = None


def hold_back(
    delay: Delay, cluster: ClusterState, now_ms: int, max_delay_ms: int
) -> tuple[Delay, ClusterState]:
    """``cluster`` with the tasks that wait at ``now_ms``, and what to remember. A delay of 0 holds
    nothing back.

    Waiting ends when the member is back (same process id), when a copy elsewhere is hot, or at the
    deadline.
    """
    present = {member.process_id for member in cluster.members}
    lags = Lags(cluster)
    gone = {
        task: process
        for task, process in (*delay.owners.items(), *delay.lost.items())
        if process not in present
    }
    lost = {
        task: process
        for task, process in gone.items()
        if task in cluster.tasks and _would_start_cold(task, cluster, lags)
    }
    if max_delay_ms <= 0 or not lost:
        return replace(delay, lost={}, deadline_ms=None), replace(cluster, held_back=frozenset())
    deadline_ms = now_ms + max_delay_ms if delay.deadline_ms is None else delay.deadline_ms
    if now_ms >= deadline_ms:
        owners = {task: process for task, process in delay.owners.items() if task not in lost}
        return Delay(owners), replace(cluster, held_back=frozenset())
    return replace(delay, lost=lost, deadline_ms=deadline_ms), replace(
        cluster, held_back=frozenset(lost)
    )


def remember(
    delay: Delay, cluster: ClusterState, assignment: Assignment, now_ms: int
) -> tuple[Delay, Assignment]:
    """What to remember of a decision, and the decision with a follow-up no later than the deadline.

    A withheld task still counts as its present owner's: should that one die now, it is the one to
    wait for.
    """
    processes = {member.member_id: member.process_id for member in cluster.members}
    lags = Lags(cluster)
    owners = {task: processes[one] for one, tasks in assignment.active.items() for task in tasks}
    for task in assignment.withheld:
        owner = lags.owner(task)
        if owner is not None:
            owners[task] = processes[owner]
    remembered = replace(delay, owners=owners)
    if delay.deadline_ms is None:
        return remembered, assignment
    left_ms = max(1, delay.deadline_ms - now_ms)
    followup_ms = (
        left_ms if assignment.followup_ms is None else min(left_ms, assignment.followup_ms)
    )
    return remembered, replace(assignment, followup_ms=followup_ms)


def _would_start_cold(task: TaskId, cluster: ClusterState, lags: Lags) -> bool:
    if task in lags.owners or not cluster.tasks[task].stateful:
        return False
    return not any(
        lags.hot(member.member_id, task) for member in cluster.members if not member.draining
    )
