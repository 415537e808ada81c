"""Finds the ideal placement, as if state could be moved for free (D8). Pure.

Kafka's ideal deals tasks anew at every change, which moves most of them. Here the *numbers* per
member are dealt, and placement is what costs least (`task_costs`): only the surplus moves, and the
ideal of the ideal is itself.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from everflow.assignment.cluster_state import ClusterState, Member, RackCosts, costs_of
from everflow.assignment.flow import Capacities, TaskCosts, cheapest
from everflow.assignment.lags import Lags
from everflow.assignment.standbys import place_standbys
from everflow.records import TaskId

OWN, HOT, COPY, NOTHING = range(4)
"""How near a member is to a task: it owns it, is hot, has a copy, has nothing."""


def task_costs(
    lags: Lags, tasks: Sequence[TaskId], members: Sequence[Member], racks: RackCosts
) -> list[TaskCosts]:
    """The costs of each task; members by their place, racks by theirs in ``racks``. All tasks have
    state, or none has."""
    if not tasks:
        return []
    cluster = lags.cluster
    traffic, non_overlap = costs_of(cluster, stateful=cluster.tasks[tasks[0]].stateful)
    scale = NOTHING * len(tasks) + 1

    def cost(remote: int, moved: int, distance: int) -> int:
        return ((traffic * remote + non_overlap * moved) * scale + moved) * scale + distance

    far: dict[tuple[object, ...], tuple[int, ...]] = {}
    place_of = {member.member_id: place for place, member in enumerate(members)}
    answer = []
    for task in tasks:
        info = cluster.tasks[task]
        remote = racks.remote((*info.inputs, *info.changelogs))
        owner = lags.owner(task)
        if owner not in place_of:
            owner = None
        anywhere = lags.hot_without_copy(task)
        away = far.get((remote, anywhere, owner is None))
        if away is None:
            moved = 0 if anywhere and owner is None else 1
            away = tuple(cost(one, moved, NOTHING) for one in remote)
            far[remote, anywhere, owner is None] = away
        near = []
        copies = {one: lag for one, lag in lags.copies(task).items() if one in place_of}
        nearest = min(copies.values(), default=None)
        for member_id, lag in copies.items():
            if member_id != owner:
                hot = lags.hot(member_id, task)
                distance = NOTHING if anywhere else HOT if hot else COPY
                # A task without an owner moves in any case, so its nearest copy costs no move:
                # else two tasks may exchange their next owners in every round, for ever.
                free = owner is None and (hot or lag == nearest)
                here = cost(remote[racks.rack_of[member_id]], 0 if free else 1, distance)
                near.append((0 if hot else lag, place_of[member_id], here))
        near.sort()
        if owner is not None:
            near.insert(0, (0, place_of[owner], cost(remote[racks.rack_of[owner]], 0, OWN)))
        elif not near and (back := cluster.back.get(task, "")) in place_of:
            near.append((0, place_of[back], cost(remote[racks.rack_of[back]], 0, OWN)))
        answer.append(
            TaskCosts(away, tuple((place, here) for _, place, here in near), task.subtopology)
        )
    return answer


_Quotas = tuple[list[int], list[bool], int]
"""What of `Capacities` an even deal decides: ``least``, ``open``, ``extra``. Who of equals gets one
more is left to who holds it, or its state, already: a fixed choice would move tasks for nothing."""


def in_turn(
    tasks: Sequence[TaskId], members: Sequence[Member], free: Mapping[int, int]
) -> dict[TaskId, str]:
    """Each task to the member with the most free places per thread, so that neighbouring partitions
    go to different members.

    ``free`` by the member's place; there must be as many places as tasks.
    """
    left = dict(free)

    def entry(place: int) -> tuple[float, int]:
        return (-left[place] / members[place].threads, place)

    heap = [entry(place) for place, number in left.items() if number > 0]
    heapq.heapify(heap)
    dealt: dict[TaskId, str] = {}
    for task in tasks:
        place = heap[0][1]
        dealt[task] = members[place].member_id
        left[place] -= 1
        if left[place] > 0:
            heapq.heapreplace(heap, entry(place))
        else:
            heapq.heappop(heap)
    return dealt


@dataclass(frozen=True)
class Placement:
    """Member id by task, and the members that should follow it: in the end, or now.

    Of now, ``warmup`` names the members that prepare to take a role, ``movements`` counts the roles
    not yet where the ideal wants them.
    """

    active: Mapping[TaskId, str]
    standby: Mapping[TaskId, frozenset[str]]
    warmup: Mapping[TaskId, frozenset[str]] = field(default_factory=dict)
    movements: int = 0


def target(lags: Lags) -> Placement:
    """Stateful tasks, their standbys, stateless tasks; none for draining members unless all drain.
    Held-back tasks get standbys only."""
    cluster = lags.cluster
    members = eligible(cluster)
    if not members:
        return Placement({}, {})
    held_back = cluster.held_back - set(lags.owners)
    tasks = sorted(task for task in cluster.tasks if task not in held_back)
    stateful = [task for task in tasks if cluster.tasks[task].stateful]
    stateless = [task for task in tasks if not cluster.tasks[task].stateful]
    active = _deal_all(lags, stateful, members, {})
    followed = sorted(task for task, info in cluster.tasks.items() if info.stateful)
    standby = place_standbys(lags, members, followed, active)
    active.update(_staying(lags, stateless, members) if held_back else {})
    base = Counter(active.values())
    active.update(
        _deal_all(lags, [task for task in stateless if task not in active], members, base)
    )
    return Placement(active, standby)


def _staying(lags: Lags, tasks: Sequence[TaskId], members: Sequence[Member]) -> dict[TaskId, str]:
    """While others wait for a lost member, nobody gives up a task without state for balance
    (KIP-415): it would be taken back when the member returns, or a newcomer gets the lost ones."""
    may_keep = {member.member_id for member in members}
    owners = {task: lags.owner(task) or lags.cluster.back.get(task, "") for task in tasks}
    return {task: one for task, one in owners.items() if one in may_keep}


def eligible(cluster: ClusterState) -> list[Member]:
    """The members that may get anything new, in their order."""
    members = sorted(cluster.members, key=lambda member: member.order)
    return [member for member in members if not member.draining] or members


def exchanged_actives(cluster: ClusterState, placed: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """``placed`` with tasks exchanged between members for less traffic between racks and few moves;
    numbers stay, with ``balance_subtopology`` those of each sub-topology too."""
    members = sorted(cluster.members, key=lambda member: member.order)
    owned: dict[str, set[TaskId]] = {member.member_id: set() for member in members}
    for task, member_id in placed.items():
        owned[member_id].add(task)
    as_placed = replace(
        cluster,
        members=tuple(
            replace(m, owned=frozenset(owned[m.member_id]), offset_sums={}) for m in members
        ),
    )
    lags = Lags(as_placed)
    each_alone = cluster.rules.rack_strategy == "balance_subtopology"
    groups: dict[tuple[bool, int], list[TaskId]] = defaultdict(list)
    for task in sorted(placed):
        index = task.subtopology if each_alone else -1
        groups[cluster.tasks[task].stateful, index].append(task)
    exchanged: dict[TaskId, str] = {}
    for _, part in sorted(groups.items()):
        numbers = [len(owned[member.member_id].intersection(part)) for member in members]
        quotas = numbers, [False] * len(members), 0
        exchanged.update(_deal(lags, part, members, quotas))
    return exchanged


def _deal_all(
    lags: Lags, tasks: Sequence[TaskId], members: Sequence[Member], base: Mapping[str, int]
) -> dict[TaskId, str]:
    """All at once, or sub-topology by sub-topology where each of them is to be balanced by itself
    (KIP-925)."""
    each_alone = lags.cluster.rules.rack_strategy == "balance_subtopology"
    parts = sorted({task.subtopology for task in tasks}) if each_alone else [None]
    load = defaultdict(int, base)
    dealt: dict[TaskId, str] = {}
    for index in parts:
        part = [task for task in tasks if index is None or task.subtopology == index]
        quotas = _even_quotas(len(part), members, load, each_alone=each_alone)
        dealt.update(_deal(lags, part, members, quotas))
        for task in part:
            load[dealt[task]] += 1
    return dealt


def _even_quotas(
    total: int, members: Sequence[Member], base: Mapping[str, int], *, each_alone: bool
) -> _Quotas:
    """Always one more for the least loaded per thread; the last ones stay open among equals."""
    numbers = [0] * len(members)

    def entry(place: int) -> tuple[tuple[float, float], int]:
        member = members[place]
        here = numbers[place]
        load = (here + base.get(member.member_id, 0)) / member.threads
        return ((here / member.threads if each_alone else load, load), place)

    heap = [entry(place) for place in range(len(members))]
    heapq.heapify(heap)
    level: tuple[float, float] | None = None
    last: list[int] = []
    for _ in range(total):
        load, place = heap[0]
        if load != level:
            level, last = load, []
        last.append(place)
        numbers[place] += 1
        heapq.heapreplace(heap, entry(place))
    for place in last:
        numbers[place] -= 1
    equals = {*last, *(place for load, place in heap if load == level)}
    return numbers, [place in equals for place in range(len(members))], len(last)


def _deal(
    lags: Lags, tasks: Sequence[TaskId], members: Sequence[Member], quotas: _Quotas
) -> dict[TaskId, str]:
    """The cheapest placement; tasks that nobody in their rack has anything of are dealt in turn
    there."""
    racks = RackCosts.of(lags.cluster, members) or RackCosts.none(members)
    rack_of = [racks.rack_of[member.member_id] for member in members]
    placed = cheapest(task_costs(lags, tasks, members, racks), Capacities(rack_of, *quotas))
    dealt = {tasks[at]: members[place].member_id for at, place in placed.member.items()}
    for rack in range(len(racks.racks)):
        left = {
            place: number
            for place, number in enumerate(placed.left)
            if number and rack_of[place] == rack
        }
        dealt.update(
            in_turn(
                [tasks[at] for at, to in sorted(placed.rack.items()) if to == rack], members, left
            )
        )
    return dealt
