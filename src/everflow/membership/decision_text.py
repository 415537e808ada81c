"""Tells a leader's decision to people: who came and went, what moves, what is waited for. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from everflow.assignment.cluster_state import Assignment, ClusterState, Member, owners_of
from everflow.logs import counted, some
from everflow.records import TaskId

_MOVES_SHOWN = 5
_UUID = re.compile(r"\b([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Known = Mapping[str, tuple[str, frozenset[TaskId]]]
"""Members of the leader's last decision: what they are called, what they run or hand over."""


def known_of(cluster: ClusterState, decided: Assignment) -> Known:
    return {
        member.member_id: (
            name_of(member),
            decided.active.get(member.member_id, frozenset()) | (member.owned & decided.withheld),
        )
        for member in cluster.members
    }


def name_of(member: Member) -> str:
    """The member id, of each random part the beginning only, and ``application.server`` if set."""
    short = _UUID.sub(r"\1", member.member_id)
    return f"{short} ({member.endpoint})" if member.endpoint else short


def decision_text(before: Known, cluster: ClusterState, decided: Assignment) -> str:
    """One line. ``before`` is empty where this member did not make the last decision."""
    names = {member.member_id: name_of(member) for member in cluster.members}
    parts = [f"{counted(len(cluster.tasks), 'task')} on {counted(len(names), 'instance')}"]
    if before:
        gone = [
            f"{name} (had {some(sorted(had))})"
            for member_id, (name, had) in sorted(before.items())
            if member_id not in names
        ]
        new = [names[member_id] for member_id in sorted(names) if member_id not in before]
        parts += [f"gone: {some(gone)}"] * bool(gone) + [f"new: {some(new)}"] * bool(new)
    moved = _moved(before, cluster, decided, names)
    parts += [f"moves now: {some(moved, _MOVES_SHOWN)}"] * bool(moved)
    if decided.withheld:
        parts.append(
            f"being handed over: {some(sorted(decided.withheld))} (their owners finish, the next "
            f"rebalance gives them on)"
        )
    if cluster.held_back:
        parts.append(f"held back for a lost instance: {some(sorted(cluster.held_back))}")
    warming = [
        f"{task} on {names[m]}"
        for m, tasks in sorted(decided.warmup.items())
        for task in sorted(tasks)
    ]
    parts += [f"warm-ups: {some(warming)}"] * bool(warming)
    later = decided.movements - len(decided.withheld)
    if later > 0:
        parts.append(f"still to move: {later:,}")
    elif not (decided.withheld or warming or cluster.held_back):
        parts.append("nothing left to move")
    return "; ".join(parts)


def _moved(
    before: Known, cluster: ClusterState, decided: Assignment, names: Mapping[str, str]
) -> list[str]:
    """``0_2, 0_3 from two to one`` of tasks whose new owner did not have them."""
    owners = owners_of(cluster.members)
    last = {task: member_id for member_id, (_, had) in before.items() for task in had}
    routes: dict[tuple[str, str], list[TaskId]] = defaultdict(list)
    for member_id, tasks in decided.active.items():
        for task in tasks:
            held_by = owners.get(task, frozenset())
            if member_id in held_by:
                continue
            giver = min(held_by, default=last.get(task, ""))
            origin = names.get(giver) or (
                before[giver][0] if giver in before else "nobody (new, or the owner is gone)"
            )
            routes[origin, names.get(member_id, member_id)].append(task)
    return [
        f"{some(sorted(tasks))} from {origin} to {to}"
        for (origin, to), tasks in sorted(routes.items())
    ]
