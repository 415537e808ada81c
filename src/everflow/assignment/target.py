"""The ideal placement: balanced per thread, close to what is, as if state could be moved for free. Pure (D8).

Kafka's ideal deals the tasks anew over the sorted processes at every change, which moves most of them when one instance
joins. Here the *numbers* per member are dealt, and everyone keeps what it runs up to its number: only the surplus moves.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everflow.assignment import racks
from everflow.assignment.cluster_state import ClusterState, Member
from everflow.assignment.lags import Lags
from everflow.assignment.places import fill_places
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
    active = racks.optimise_actives(cluster, members, _deal_all(cluster, stateful, members, {}, lags), lags, stateful=True)
    followed = sorted(task for task, info in cluster.tasks.items() if info.stateful)
    standby = place_standbys(cluster, members, followed, active, lags)
    base: dict[str, int] = defaultdict(int)
    for member_id in active.values():
        base[member_id] += 1
    dealt = _deal_all(cluster, stateless, members, base, lags)
    active.update(racks.optimise_actives(cluster, members, dealt, lags, stateful=False))
    return Ideal(active, standby)


def eligible(cluster: ClusterState) -> list[Member]:
    """Those that may be given anything new, in their order."""
    members = sorted(cluster.members, key=lambda member: member.order)
    return [member for member in members if not member.draining] or members


def _deal_all(
    cluster: ClusterState, tasks: Sequence[TaskId], members: Sequence[Member], base: Mapping[str, int], lags: Lags
) -> dict[TaskId, str]:
    """All at once, or sub-topology by sub-topology where each of them is to be balanced by itself (KIP-925)."""
    if cluster.rules.rack_strategy != "balance_subtopology":
        return _deal(tasks, members, base, lags, each_alone=False)
    load = defaultdict(int, base)
    dealt: dict[TaskId, str] = {}
    for index in sorted({task.subtopology for task in tasks}):
        part = _deal([task for task in tasks if task.subtopology == index], members, load, lags, each_alone=True)
        for member_id in part.values():
            load[member_id] += 1
        dealt.update(part)
    return dealt


def _deal(
    tasks: Sequence[TaskId], members: Sequence[Member], base: Mapping[str, int], lags: Lags, *, each_alone: bool
) -> dict[TaskId, str]:
    """Everyone keeps what it owns up to its number; the surplus goes to who has most of it, the rest in turn."""
    owned: dict[str, list[TaskId]] = {member.member_id: [] for member in members}
    loose: list[TaskId] = []
    for task in tasks:
        owner = lags.owner(task)
        owned.get(owner or "", loose).append(task)
    numbers = _numbers(len(tasks), members, base, owned, each_alone=each_alone)
    spare = {member_id: numbers[member_id] - len(held) for member_id, held in owned.items()}
    takers = {member_id for member_id, places in spare.items() if places > 0}
    dealt: dict[TaskId, str] = {}
    released: list[TaskId] = []
    for member_id, held in owned.items():
        given_up = _surplus(held, -spare[member_id], takers, lags)
        released.extend(given_up)
        dealt.update((task, member_id) for task in held if task not in given_up)
    places = {member_id: spare[member_id] for member_id in takers}
    dealt.update(fill_places(sorted([*released, *loose]), members, places, lags, only_hot=frozenset(loose)))
    return dealt


def _numbers(
    total: int, members: Sequence[Member], base: Mapping[str, int], owned: Mapping[str, Sequence[TaskId]], *, each_alone: bool
) -> dict[str, int]:
    """How many each member gets: always one more for the least loaded per thread; among equals for who holds more."""
    numbers = {member.member_id: 0 for member in members}

    def entry(place: int) -> tuple[float, float, bool, int]:
        member = members[place]
        here = numbers[member.member_id]
        load = (here + base.get(member.member_id, 0)) / member.threads
        return (here / member.threads if each_alone else load, load, here >= len(owned[member.member_id]), place)

    heap = [entry(place) for place in range(len(members))]
    heapq.heapify(heap)
    for _ in range(total):
        place = heap[0][-1]
        numbers[members[place].member_id] += 1
        heapq.heapreplace(heap, entry(place))
    return numbers


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
