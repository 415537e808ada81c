"""How far behind every copy is: the leader's view of who could take over which task. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from everflow.assignment.cluster_state import RUNNING, ClusterState, owners_of
from everflow.records import TaskId

STALE_ENDS_RECORDS = 10_000
"""How far a copy may be beyond the end that the leader has read: it may have read a moment before
the copy went on."""


class Lags:
    """Lags of all copies in the cluster, in records; ``RUNNING`` where a task runs active.

    A member without a copy has the whole end sum as its lag. An offset sum beyond the end is a copy
    of another history and counts as none (X1), but only from ``STALE_ENDS_RECORDS`` (or the
    acceptable lag, if larger) beyond it: a standby at the tail of a busy log must not look cold.
    """

    def __init__(self, cluster: ClusterState) -> None:
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

    @staticmethod
    def known(cluster: ClusterState) -> bool:
        """Whether the end of every task with changelogs is known (X2)."""
        if cluster.end_sums is None:
            return False
        return all(
            task in cluster.end_sums
            for task, info in cluster.tasks.items()
            if info.stateful and info.changelogs
        )

    def _add(self, task: TaskId, member_id: str, position: int) -> None:
        end = self.end(task)
        if position - end <= self._beyond and (position > 0 or end == 0):
            self._copies.setdefault(task, {})[member_id] = max(0, end - position)

    def end(self, task: TaskId) -> int:
        """What a member without a copy has to restore."""
        return self._ends.get(task, 0)

    def lag(self, member_id: str, task: TaskId) -> int:
        """Of this member's copy, or of none."""
        copies = self._copies.get(task)
        return self.end(task) if copies is None else copies.get(member_id, self.end(task))

    def hot(self, member_id: str, task: TaskId) -> bool:
        """Whether the member could run the task at once."""
        return self.lag(member_id, task) <= self._acceptable

    def hot_without_copy(self, task: TaskId) -> bool:
        """Whether anybody could run the task at once: it has no state, or less than may be
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
        """Whether the member owns the task and still restores it."""
        return member_id in self.owners.get(task, frozenset()) and not self.hot(member_id, task)
