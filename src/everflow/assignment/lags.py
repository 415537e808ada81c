"""Lags of all copies, and tasks that wait for a lost member. Pure.

With ``scheduled.rebalance.max.delay.ms`` (Connect's rule, KIP-415) a lost member's tasks wait until
it returns; here only those of which no other member has a hot copy (note 075).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from everflow.assignment.cluster_state import RUNNING, Assignment, ClusterState, owners_of
from everflow.records import TaskId

STALE_ENDS_RECORDS = 10_000
"""See `Lags`."""


class Lags:
    """Lags of all copies in the cluster, in records; ``RUNNING`` where a task runs active.

    A member without a copy has the whole end sum as its lag. An offset sum beyond the end is a copy
    of another history and counts as none (X1), but only from ``STALE_ENDS_RECORDS`` (or the
    acceptable lag, if larger) beyond it: a standby at the tail of a busy log must not look cold.
    """

    def __init__(self, cluster: ClusterState) -> None:
        self.cluster = cluster
        self._acceptable = cluster.rules.acceptable_lag
        self._beyond = max(self._acceptable, STALE_ENDS_RECORDS)
        self._ends = cluster.end_sums or {}
        self._copies: dict[TaskId, dict[str, int]] = {}
        self.owners: Mapping[TaskId, frozenset[str]] = owners_of(cluster.members)
        stateful = {task for task, info in cluster.tasks.items() if info.stateful}
        for member in cluster.members:
            for task, position in member.offset_sums.items():
                if task in stateful and position >= 0:
                    self._add(task, member.member_id, position)
            for task in member.owned:
                runs = task in stateful and member.offset_sums.get(task, RUNNING) == RUNNING
                if runs and member.member_id in self.owners[task]:
                    self._copies.setdefault(task, {})[member.member_id] = RUNNING

    @property
    def known(self) -> bool:
        """True if the end of every task with changelogs is known (X2)."""
        ends = self.cluster.end_sums
        return ends is not None and all(
            task in ends
            for task, info in self.cluster.tasks.items()
            if info.stateful and info.changelogs
        )

    def _add(self, task: TaskId, member_id: str, position: int) -> None:
        end = self.end(task)
        if position - end <= self._beyond and (position > 0 or end == 0):
            self._copies.setdefault(task, {})[member_id] = max(0, end - position)

    def end(self, task: TaskId) -> int:
        return self._ends.get(task, 0)

    def lag(self, member_id: str, task: TaskId) -> int:
        copies = self._copies.get(task)
        return self.end(task) if copies is None else copies.get(member_id, self.end(task))

    def hot(self, member_id: str, task: TaskId) -> bool:
        return self.lag(member_id, task) <= self._acceptable

    def hot_without_copy(self, task: TaskId) -> bool:
        """True if anybody could run the task at once: it has no state, or less than may be
        missing."""
        return self.end(task) <= self._acceptable

    def copies(self, task: TaskId) -> Mapping[str, int]:
        """Lag by member id, of those that hold a copy."""
        return self._copies.get(task, {})

    def owner(self, task: TaskId) -> str | None:
        """The one member that holds the task; None if nobody does, or more than one claims it."""
        holders = self.owners.get(task, frozenset())
        return next(iter(holders)) if len(holders) == 1 else None

    def restoring(self, member_id: str, task: TaskId) -> bool:
        return member_id in self.owners.get(task, frozenset()) and not self.hot(member_id, task)


@dataclass(frozen=True)
class Delay:
    """What the leader remembers between decisions; a new leader has what the last one told it.

    ``owners``: the process of each task in the last assignment, unless it was draining: who drains
    goes for good. ``lost``: held-back tasks, with the process they wait for. ``deadline_ms``: end
    of the waiting for all; a further loss does not prolong it.
    """

    owners: Mapping[TaskId, str] = field(default_factory=dict)
    lost: Mapping[TaskId, str] = field(default_factory=dict)
    deadline_ms: int | None = None


def hold_back(
    delay: Delay, cluster: ClusterState, now_ms: int, max_delay_ms: int
) -> tuple[Delay, ClusterState]:
    """``cluster`` with the tasks that wait at ``now_ms`` (none with a delay of 0), and what to
    remember.

    They wait until the member is back (same process id), which then has the first claim on them, a
    copy elsewhere is hot, or the deadline.
    """
    present = {member.process_id: member.member_id for member in cluster.members}
    lags = Lags(cluster)
    staying = {member.member_id for member in cluster.members if not member.draining}
    waiting = {
        task: process
        for task, process in (*delay.owners.items(), *delay.lost.items())
        if task in cluster.tasks and task not in lags.owners
        if not any(lags.hot(one, task) for one in lags.copies(task) if one in staying)
    }
    lost = {task: process for task, process in waiting.items() if process not in present}
    back = {
        task: present[process]
        for task, process in delay.lost.items()
        if task in waiting and process in present
    }
    cluster = replace(cluster, held_back=frozenset(), back=back)
    if max_delay_ms <= 0 or not lost:
        return replace(delay, lost={}, deadline_ms=None), cluster
    deadline_ms = now_ms + max_delay_ms if delay.deadline_ms is None else delay.deadline_ms
    if now_ms >= deadline_ms:
        owners = {task: process for task, process in delay.owners.items() if task not in lost}
        return Delay(owners), cluster
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
    processes = {
        member.member_id: member.process_id for member in cluster.members if not member.draining
    }
    lags = Lags(cluster)
    owner_of = {task: one for one, tasks in assignment.active.items() for task in tasks}
    owner_of |= {task: one for task in assignment.withheld if (one := lags.owner(task)) is not None}
    owners = {task: processes[one] for task, one in owner_of.items() if one in processes}
    remembered = replace(delay, owners=owners)
    if delay.deadline_ms is None:
        return remembered, assignment
    left_ms = max(1, delay.deadline_ms - now_ms)
    followup_ms = (
        left_ms if assignment.followup_ms is None else min(left_ms, assignment.followup_ms)
    )
    return remembered, replace(assignment, followup_ms=followup_ms)
