"""Decides who runs what: the ideal, as much of it as may be now (KIP-441, KIP-429). Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from everflow.assignment.cluster_state import Assignment, ClusterState, validate_assignment
from everflow.assignment.lags import Lags
from everflow.assignment.refine import prior_placement, refine
from everflow.assignment.target import Placement, target
from everflow.errors import FatalError
from everflow.records import TaskId

UNKNOWN_ENDS_RETRY_MS = 5_000
"""Without end sums nothing may move and a newcomer stands idle: the next decision comes soon."""


def assign(cluster: ClusterState) -> Assignment:
    """The next assignment; equal cluster states give equal answers, however they are listed (I8).

    A task whose owner does not change is never withheld (I4); a stateful task never becomes active
    on a cold member while a hot copy lives (I5). Without end sums everyone keeps what it has, and
    a rebalance follows soon (X2). FatalError: the decision breaks a rule of its own, a bug.
    """
    lags = Lags(cluster)
    ideal, placement = place(lags)
    assignment = cooperate(lags, ideal, placement)
    problems = validate(lags, assignment)
    if problems:
        raise FatalError(
            f"the assignor broke its own rules, nothing was assigned: {'; '.join(problems)}"
        )
    return assignment


def place(lags: Lags) -> tuple[Placement, Placement]:
    """The ideal, and what should be now, before present owners are asked to let go."""
    if not lags.known:
        prior = prior_placement(lags)
        return prior, prior
    ideal = target(lags)
    return ideal, refine(lags, ideal)


def cooperate(lags: Lags, ideal: Placement, placement: Placement) -> Assignment:
    """KIP-429: what another member still holds is taken from it now and given away in the follow-up
    it asks for.

    Until then the next owner goes on following the task if it has a copy: its state stays hot.
    """
    cluster = lags.cluster
    active: dict[str, set[TaskId]] = {member.member_id: set() for member in cluster.members}
    standby, warmup = _by_member(placement.standby), _by_member(placement.warmup)
    withheld: set[TaskId] = set()
    for task, member_id in placement.active.items():
        if lags.owners.get(task, frozenset()) <= {member_id}:
            active[member_id].add(task)
            continue
        withheld.add(task)
        if member_id in lags.copies(task):
            standby[member_id].add(task)
    ideals: dict[str, set[TaskId]] = {member.member_id: set() for member in cluster.members}
    for task, member_id in ideal.active.items():
        ideals[member_id].add(task)
    followup_ms = 0 if withheld else None
    if followup_ms is None and placement.movements:
        interval = cluster.rules.probing_interval_ms
        followup_ms = interval if lags.known else min(interval, UNKNOWN_ENDS_RETRY_MS)
    return Assignment(
        active=_frozen(cluster, active),
        standby=_frozen(cluster, standby),
        warmup=_frozen(cluster, warmup),
        withheld=frozenset(withheld),
        target=_frozen(cluster, ideals),
        movements=placement.movements,
        followup_ms=followup_ms,
    )


def validate(lags: Lags, assignment: Assignment) -> list[str]:
    """Faults of a decision, one phrase each: ``validate_assignment``'s, no stateful task newly
    active on a cold member while a hot copy lives (I5), no more warm-ups than the budget."""
    cluster = lags.cluster
    held_back = cluster.held_back - set(lags.owners)
    problems = validate_assignment(assignment, cluster.members, cluster.tasks, held_back)
    if sum(len(tasks) for tasks in assignment.warmup.values()) > cluster.rules.max_warmups:
        problems.append(f"more than {cluster.rules.max_warmups} warm-ups")
    for copies in (assignment.standby, assignment.warmup):
        for member_id, tasks in copies.items():
            stateless = sorted(
                task for task in tasks if task in cluster.tasks and not cluster.tasks[task].stateful
            )
            problems.extend(
                f"task {task} has no state, yet {member_id} is to follow it" for task in stateless
            )
    if lags.known:
        problems.extend(_cold_owners(lags, assignment))
    return problems


def _cold_owners(lags: Lags, assignment: Assignment) -> list[str]:
    problems, infos = [], lags.cluster.tasks
    for member_id, tasks in assignment.active.items():
        for task in sorted(tasks):
            if task not in infos or not infos[task].stateful or lags.hot(member_id, task):
                continue
            hot = sorted(holder for holder in lags.copies(task) if lags.hot(holder, task))
            if hot:
                problems.append(
                    f"task {task} is given to {member_id}, which is cold, while {', '.join(hot)} "
                    f"is hot"
                )
    return problems


def _by_member(holders: Mapping[TaskId, frozenset[str]]) -> dict[str, set[TaskId]]:
    tasks: dict[str, set[TaskId]] = defaultdict(set)
    for task, members in holders.items():
        for member_id in members:
            tasks[member_id].add(task)
    return tasks


def _frozen(
    cluster: ClusterState, tasks: Mapping[str, set[TaskId]]
) -> dict[str, frozenset[TaskId]]:
    return {
        member.member_id: frozenset(tasks.get(member.member_id, ())) for member in cluster.members
    }
