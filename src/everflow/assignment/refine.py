"""Says how far the group may go towards the ideal now: hot copies win (I5, D8). Pure.

As in KIP-441 a task runs on where it is hot while its ideal owner warms up. Where no warm-up is
left in the budget the task waits for one, and runs on all the same.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field

from everflow.assignment.cluster_state import Member
from everflow.assignment.lags import Lags
from everflow.assignment.target import Placement, eligible
from everflow.records import TaskId


@dataclass(frozen=True)
class _Movement:
    """A member that should hold a task and is not hot yet. ``standby``: the role it waits for is
    not the active one."""

    task: TaskId
    source: str
    destination: str
    standby: bool


@dataclass(kw_only=True)
class _Draft:
    lags: Lags
    ideal: Placement
    active: dict[TaskId, str] = field(default_factory=dict)
    standby: dict[TaskId, set[str]] = field(default_factory=dict)
    movements: list[_Movement] = field(default_factory=list)
    swaps: int = 0

    def __post_init__(self) -> None:
        self.members: dict[str, Member] = {
            member.member_id: member for member in self.lags.cluster.members
        }
        self.load: Counter[str] = Counter(self.ideal.active.values())

    def per_thread(self, member_id: str) -> float:
        return self.load[member_id] / self.members[member_id].threads

    def choice(self, member_id: str, task: TaskId) -> tuple[object, ...]:
        """Sort key among members to run or follow a task meanwhile: hot before near before far."""
        member = self.members[member_id]
        if self.lags.hot(member_id, task):
            new = member_id not in self.standby.get(task, ())
            rank: tuple[object, ...] = (0, member.draining, new, self.per_thread(member_id))
        else:
            rank = (1, self.lags.lag(member_id, task), member_id != self.lags.owner(task))
        return (*rank, member.order)


def refine(lags: Lags, ideal: Placement) -> Placement:
    """The next placement on the way to ``ideal``. Needs known end sums (``Lags.known``); stateless
    tasks go at once."""
    draft = _Draft(lags=lags, ideal=ideal)
    draft.standby = {task: set(holders) for task, holders in ideal.standby.items()}
    for task in sorted(ideal.active):
        _place_active(draft, task)
    for task in sorted(draft.standby):
        _place_standbys(draft, task)
    warmup: dict[TaskId, set[str]] = {}
    for movement in _within_budget(draft):
        warmup.setdefault(movement.task, set()).add(movement.destination)
    return Placement(
        draft.active,
        {task: frozenset(holders) for task, holders in draft.standby.items() if holders},
        {task: frozenset(holders) for task, holders in warmup.items()},
        draft.swaps + len(draft.movements),
    )


def _place_active(draft: _Draft, task: TaskId) -> None:
    wanted = draft.ideal.active[task]
    holder = _runs_meanwhile(draft, task, wanted)
    draft.active[task] = holder
    if holder == wanted:
        return
    draft.load[holder] += 1
    following = draft.standby.get(task, set())
    if holder in following:
        # Roles are swapped: costs nothing, as the copy at the ideal owner was wanted anyway.
        following.remove(holder)
        following.add(wanted)
        draft.swaps += 1
    else:
        draft.load[wanted] -= 1
        draft.movements.append(_Movement(task, holder, wanted, standby=False))


def _runs_meanwhile(draft: _Draft, task: TaskId, wanted: str) -> str:
    """The ideal owner if it is hot or nobody is nearer; else who runs it now and is hot; else the
    best copy."""
    lags = draft.lags
    if not lags.cluster.tasks[task].stateful or lags.hot(wanted, task):
        return wanted
    nearer = [
        member_id for member_id, lag in lags.copies(task).items() if lag < lags.lag(wanted, task)
    ]
    if not nearer:
        return wanted
    owner = lags.owner(task)
    if owner in nearer and lags.hot(owner, task):
        return owner
    return min(nearer, key=lambda member_id: draft.choice(member_id, task))


def _place_standbys(draft: _Draft, task: TaskId) -> None:
    """A standby that would start cold leaves its role to a nearer copy that has none, and warms
    up."""
    lags, following = draft.lags, draft.standby[task]
    busy = {*following, draft.active.get(task), draft.ideal.active.get(task)}
    for wanted in sorted(following, key=lambda member_id: draft.members[member_id].order):
        if lags.hot(wanted, task):
            continue
        nearer = [
            one
            for one, lag in lags.copies(task).items()
            if lag < lags.lag(wanted, task) and one not in busy
        ]
        if nearer:
            holder = min(nearer, key=lambda member_id: draft.choice(member_id, task))
            following.remove(wanted)
            following.add(holder)
            busy.add(holder)
            draft.load[holder] += 1
            draft.movements.append(
                _Movement(
                    task,
                    holder,
                    wanted,
                    standby=wanted != draft.ideal.active.get(task),
                )
            )


def _within_budget(draft: _Draft) -> list[_Movement]:
    """Which movements get a warm-up: actives before standbys; started ones before new ones, those
    nearest to hot first; last those on a member that restores tasks of its own."""
    lags = draft.lags
    cluster = lags.cluster
    busy = {
        member.member_id
        for member in cluster.members
        if any(lags.restoring(member.member_id, task) for task in member.owned)
    }
    planted: Counter[str] = Counter()

    def entry(index: int) -> tuple[object, ...]:
        movement = draft.movements[index]
        started = movement.destination in lags.copies(movement.task)
        rank = 0 if started else 2 if movement.destination in busy else 1
        threads = draft.members[movement.destination].threads
        load = (draft.load[movement.destination] + planted[movement.destination]) / threads
        near = lags.lag(movement.destination, movement.task) if started else 0
        return (
            movement.standby,
            rank,
            near,
            load,
            -draft.per_thread(movement.source),
            movement.task,
            index,
        )

    heap = [entry(index) for index in range(len(draft.movements))]
    heapq.heapify(heap)
    chosen: list[_Movement] = []
    while heap and len(chosen) < cluster.rules.max_warmups:
        index = heap[0][-1]
        assert isinstance(index, int)
        now = entry(index)
        if now != heap[0]:  # its destination was given another warm-up meanwhile
            heapq.heapreplace(heap, now)
            continue
        heapq.heappop(heap)
        chosen.append(draft.movements[index])
        planted[draft.movements[index].destination] += 1
    return chosen


def prior_placement(lags: Lags) -> Placement:
    """Owned tasks stay; a task that nobody owns goes to the copy with the largest offset sum, else
    to the least loaded.

    The nearest copies stay standbys; where lags are known, one of another history is none (X1). No
    warm-ups: nothing shall move. Movements are at least one, so that a rebalance follows.
    """
    cluster = lags.cluster
    members = eligible(cluster)
    everyone = {member.member_id: member for member in cluster.members}
    if not members:
        return Placement({}, {})
    held_back = cluster.held_back - set(lags.owners)
    known = lags.known
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
    return Placement(active, standby, movements=1)
