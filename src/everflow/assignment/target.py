"""The ideal placement: balanced per thread, close to what is, as if state could be moved for free. Pure (D8).

Kafka's ideal deals the tasks anew over the sorted processes at every change, which moves most of them when one instance
joins. Here the *numbers* per member are dealt, and everyone keeps what it runs up to its number: only the surplus moves.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from everflow.assignment import racks
from everflow.assignment.cluster_state import ClusterState, Member
from everflow.assignment.lags import Lags
from everflow.assignment.places import Places, Share
from everflow.assignment.standbys import place_standbys
from everflow.records import TaskId


@dataclass(frozen=True)
class Ideal:
    """Member id by task, and the members that should follow it."""

    active: Mapping[TaskId, str]
    standby: Mapping[TaskId, frozenset[str]]


def target(cluster: ClusterState, lags: Lags) -> Ideal:
    """Stateful tasks, then their standbys, then stateless tasks on top; draining members get none unless all drain.

    Equal cluster states give equal answers in whatever order they are listed (I8). Tasks that are held back get
    standbys, but no owner.
    """
    members = eligible(cluster)
    if not members:
        return Ideal({}, {})
    held_back = cluster.held_back - set(lags.owners)
    tasks = sorted(task for task in cluster.tasks if task not in held_back)
    stateful = [task for task in tasks if cluster.tasks[task].stateful]
    stateless = [task for task in tasks if not cluster.tasks[task].stateful]
    active = _deal_all(cluster, stateful, members, {}, lags)
    followed = sorted(task for task, info in cluster.tasks.items() if info.stateful)
    standby = place_standbys(cluster, members, followed, active, lags)
    base: dict[str, int] = defaultdict(int)
    for member_id in active.values():
        base[member_id] += 1
    active.update(_deal_all(cluster, stateless, members, base, lags))
    return Ideal(active, standby)


def eligible(cluster: ClusterState) -> list[Member]:
    """Those that may be given anything new, in their order."""
    members = sorted(cluster.members, key=lambda member: member.order)
    return [member for member in members if not member.draining] or members


def exchanged_actives(cluster: ClusterState, placed: Mapping[TaskId, str]) -> dict[TaskId, str]:
    """``placed`` with tasks exchanged between members for less traffic between racks and few moves; numbers stay, with
    ``balance_subtopology`` those of each sub-topology too."""
    members = sorted(cluster.members, key=lambda member: member.order)
    owned: dict[str, set[TaskId]] = {member.member_id: set() for member in members}
    for task, member_id in placed.items():
        owned[member_id].add(task)
    as_placed = replace(cluster, members=tuple(replace(m, owned=frozenset(owned[m.member_id]), offset_sums={}) for m in members))
    lags = Lags(as_placed)
    each_alone = cluster.rules.rack_strategy == "balance_subtopology"
    exchanged: dict[TaskId, str] = {}
    for group in sorted({(cluster.tasks[task].stateful, task.subtopology if each_alone else -1) for task in placed}):
        part = [t for t in sorted(placed) if (cluster.tasks[t].stateful, t.subtopology if each_alone else -1) == group]
        share = Share({one: len(tasks.intersection(part)) for one, tasks in owned.items()}, frozenset(), 0)
        for rack_members, rack_tasks in racks.split(as_placed, members, part, share, lags):
            exchanged.update(_deal(rack_tasks, rack_members, share, lags))
    return exchanged


def _deal_all(
    cluster: ClusterState, tasks: Sequence[TaskId], members: Sequence[Member], base: Mapping[str, int], lags: Lags
) -> dict[TaskId, str]:
    """All at once, or sub-topology by sub-topology where each of them is to be balanced by itself (KIP-925)."""
    each_alone = cluster.rules.rack_strategy == "balance_subtopology"
    parts = sorted({task.subtopology for task in tasks}) if each_alone else [None]
    load = defaultdict(int, base)
    dealt: dict[TaskId, str] = {}
    for index in parts:
        part = [task for task in tasks if index is None or task.subtopology == index]
        share = _share(len(part), members, load, each_alone=each_alone)
        for rack_members, rack_tasks in racks.split(cluster, members, part, share, lags):
            dealt.update(_deal(rack_tasks, rack_members, share, lags))
        for task in part:
            load[dealt[task]] += 1
    return dealt


def _share(total: int, members: Sequence[Member], base: Mapping[str, int], *, each_alone: bool) -> Share:
    """Always one more for the least loaded per thread; the last ones stay open among equals."""
    numbers = {member.member_id: 0 for member in members}

    def entry(place: int) -> tuple[tuple[float, float], int]:
        member = members[place]
        here = numbers[member.member_id]
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
        numbers[members[place].member_id] += 1
        heapq.heapreplace(heap, entry(place))
    for place in last:
        numbers[members[place].member_id] -= 1
    equals = {*last, *(place for load, place in heap if load == level)}
    return Share(numbers, frozenset(members[place].member_id for place in equals), len(last))


def _deal(tasks: Sequence[TaskId], members: Sequence[Member], share: Share, lags: Lags) -> dict[TaskId, str]:
    """Everyone keeps what it owns up to its share; the surplus goes to who has most of its state, the rest in turn."""
    owned: dict[str, list[TaskId]] = {member.member_id: [] for member in members}
    loose: list[TaskId] = []
    for task in tasks:
        owned.get(lags.owner(task) or "", loose).append(task)
    extra = len(tasks) - sum(share.least[member.member_id] for member in members)
    numbers = {}
    for member_id, held in owned.items():
        one_more = extra > 0 and member_id in share.open and len(held) > share.least[member_id]
        numbers[member_id] = share.least[member_id] + one_more
        extra -= one_more
    spare = {member_id: numbers[member_id] - len(held) for member_id, held in owned.items()}
    may_open = {one for one in owned if one in share.open and numbers[one] == share.least[one]} if extra else set()
    takers = {one for one in owned if spare[one] > 0 or (one in may_open and spare[one] == 0)}
    dealt: dict[TaskId, str] = {}
    released: list[TaskId] = []
    for member_id, held in owned.items():
        given_up = _surplus(held, -spare[member_id], takers, lags)
        released.extend(given_up)
        dealt.update((task, member_id) for task in held if task not in given_up)
    places = Places(members, {one: number for one, number in spare.items() if number > 0}, may_open & takers, extra)
    unowned = frozenset(task for task in loose if task not in lags.owners)
    dealt.update(places.fill(sorted([*released, *loose]), lags, only_hot=unowned))
    return dealt


def _surplus(held: Sequence[TaskId], number: int, takers: set[str], lags: Lags) -> set[TaskId]:
    """Which of a member's tasks to give up: first those on whose copy a taker is furthest, then from the largest
    sub-topology, so that what remains and what goes are both mixed."""
    if number <= 0:
        return set()
    lag_at_takers = {}
    for task in held:
        known = [lag for holder, lag in lags.copies(task).items() if holder in takers]
        if known:
            lag_at_takers[task] = min(known)
    given_up = set(sorted(lag_at_takers, key=lambda task: (lag_at_takers[task], task))[:number])
    remaining: dict[int, list[TaskId]] = defaultdict(list)
    for task in sorted(held):
        if task not in given_up:
            remaining[task.subtopology].append(task)
    while len(given_up) < number:
        largest = max(remaining, key=lambda index: (len(remaining[index]), index))
        given_up.add(remaining[largest].pop())
    return given_up
