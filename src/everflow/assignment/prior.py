"""Lets everyone keep what it has: Kafka's FallbackPriorTaskAssignor. Pure.

It answers where lags are unknown, and where an assignor of the user's own fails."""

from __future__ import annotations

from collections import Counter

from everflow.assignment.cluster_state import ClusterState
from everflow.assignment.lags import Lags
from everflow.assignment.refine import Placement
from everflow.assignment.target import Ideal, eligible
from everflow.records import TaskId


def prior_placement(cluster: ClusterState, lags: Lags) -> tuple[Ideal, Placement]:
    """Owned tasks stay; a task that nobody owns goes to the copy with the largest offset sum, else
    to the least loaded.

    The nearest copies stay standbys; where lags are known, one of another history is none (X1). No
    warm-ups: nothing shall move. Movements are at least one, so that the group looks again.
    """
    members = eligible(cluster)
    everyone = {member.member_id: member for member in cluster.members}
    if not members:
        return Ideal({}, {}), Placement({}, {}, {}, 0)
    held_back = cluster.held_back - set(lags.owners)
    known = Lags.known(cluster)
    positions: dict[TaskId, dict[str, int]] = {}
    for member in cluster.members:
        for task, position in member.offset_sums.items():
            if position > 0 and (not known or member.member_id in lags.copies(task)):
                positions.setdefault(task, {})[member.member_id] = position

    def nearest(task: TaskId) -> list[str]:
        return sorted(
            positions.get(task, {}), key=lambda one: (-positions[task][one], everyone[one].order)
        )

    active: dict[TaskId, str] = {}
    load: Counter[str] = Counter()
    for task in sorted(cluster.tasks):
        owner = lags.owner(task)
        if owner is not None:
            active[task] = owner
            load[owner] += 1
    for task in sorted(set(cluster.tasks) - set(active) - held_back):
        stateful = cluster.tasks[task].stateful
        best = nearest(task)[0] if stateful and nearest(task) else None
        if best is None:
            best = min(
                members, key=lambda member: (load[member.member_id] / member.threads, member.order)
            ).member_id
        active[task] = best
        load[best] += 1
    standby = {}
    for task in sorted(positions):
        if task in cluster.tasks and cluster.tasks[task].stateful:
            followers = [one for one in nearest(task) if one != active.get(task)]
            standby[task] = frozenset(followers[: cluster.rules.num_standbys])
    return Ideal(active, standby), Placement(active, standby, {}, 1)
