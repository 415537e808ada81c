"""Rack-aware actives (KIP-925): the same numbers per member, with the least traffic between racks. Pure.

What a task costs depends on the *rack* of its member only, besides the penalty for moving; and a task that stays in its
rack can stay where it is. So the flow runs between groups of tasks that cost the same and racks, not between tasks and
members: a few dozen nodes instead of thousands, with the same optimum. That is why networkx' network simplex, plain Python
without further packages, is enough. Measured with 1,000 tasks on 1,000 members: 3 ms with 3 racks, 0.2 s with 20; 10,000 tasks:
30 ms. On the graph of tasks and members it took 0.5 s, and 11 s for 5,000 tasks, where OR-tools took 5 and 84 ms at the price
of 80 MB and a pinned protobuf, scipy's linear_sum_assignment 45 ms and 5 s at the price of 140 MB.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everflow.assignment.cluster_state import ClusterState, Member
from everflow.assignment.lags import Lags
from everflow.assignment.places import fill_places
from everflow.records import TaskId, TopicPartition

TRAFFIC_COST = 10
NON_OVERLAP_COST = 1
STATELESS_TRAFFIC_COST = 1
STATELESS_NON_OVERLAP_COST = 0


@dataclass(frozen=True)
class RackCosts:
    """What it costs to read a task's partitions from each rack of the group.

    ``racks`` in the order of the cost tuples; ``rack_of`` gives the place of a member's rack in it. A partition whose
    racks are unknown costs nothing anywhere.
    """

    racks: tuple[str, ...]
    rack_of: Mapping[str, int]
    replicas: Mapping[TopicPartition, frozenset[str]]

    @staticmethod
    def of(cluster: ClusterState, members: Sequence[Member]) -> RackCosts | None:
        """None where racks are not to count, or nothing is known about them."""
        racks = tuple(sorted({member.rack for member in members}))
        if cluster.rules.rack_strategy == "none" or len(racks) < 2 or not cluster.racks:
            return None
        return RackCosts(racks, {member.member_id: racks.index(member.rack) for member in members}, cluster.racks)

    def remote(self, partitions: Sequence[TopicPartition]) -> tuple[int, ...]:
        """How many of the partitions have no replica in a rack, for each rack."""
        known = [self.replicas[partition] for partition in partitions if self.replicas.get(partition)]
        return tuple(sum(rack not in replicas for replicas in known) for rack in self.racks)


def optimise_actives(
    cluster: ClusterState, members: Sequence[Member], placed: Mapping[TaskId, str], lags: Lags, *, stateful: bool
) -> dict[TaskId, str]:
    """``placed`` with tasks exchanged between members so that traffic and moves together cost least; who had n tasks has n
    tasks afterwards. With ``balance_subtopology`` also of each sub-topology."""
    costs = RackCosts.of(cluster, members)
    if costs is None or not placed:
        return dict(placed)
    traffic, non_overlap = STATELESS_TRAFFIC_COST, STATELESS_NON_OVERLAP_COST
    if stateful:
        traffic, non_overlap = costs_of(cluster)
    if cluster.rules.rack_strategy != "balance_subtopology":
        return _exchange(cluster, members, placed, lags, costs, traffic, non_overlap)
    exchanged: dict[TaskId, str] = {}
    for index in sorted({task.subtopology for task in placed}):
        part = {task: member_id for task, member_id in placed.items() if task.subtopology == index}
        exchanged.update(_exchange(cluster, members, part, lags, costs, traffic, non_overlap))
    return exchanged


def costs_of(cluster: ClusterState) -> tuple[int, int]:
    """Traffic and non-overlap cost for stateful tasks and standbys, as configured or Kafka Streams' defaults."""
    traffic, non_overlap = cluster.rules.traffic_cost, cluster.rules.non_overlap_cost
    return TRAFFIC_COST if traffic is None else traffic, NON_OVERLAP_COST if non_overlap is None else non_overlap


def _exchange(
    cluster: ClusterState,
    members: Sequence[Member],
    placed: Mapping[TaskId, str],
    lags: Lags,
    costs: RackCosts,
    traffic: int,
    non_overlap: int,
) -> dict[TaskId, str]:
    groups: dict[tuple[int, tuple[int, ...]], list[TaskId]] = defaultdict(list)
    for task in sorted(placed):
        info = cluster.tasks[task]
        groups[costs.rack_of[placed[task]], costs.remote((*info.inputs, *info.changelogs))].append(task)
    numbers = Counter(costs.rack_of[member_id] for member_id in placed.values())
    arriving: dict[int, list[TaskId]] = defaultdict(list)
    for (home, remote), flows in _cheapest(groups, numbers, traffic, non_overlap).items():
        staying = groups[home, remote]
        for rack, number in sorted(flows.items()):
            if rack != home:
                leaving = _nearest(staying, number, rack, costs, lags)
                arriving[rack] += leaving
                staying = [task for task in staying if task not in leaving]
    moving = {task for tasks in arriving.values() for task in tasks}
    exchanged = {task: member_id for task, member_id in placed.items() if task not in moving}
    vacated = Counter(placed[task] for task in moving)
    for rack, tasks in sorted(arriving.items()):
        free = {one: places for one, places in vacated.items() if costs.rack_of[one] == rack}
        exchanged.update(fill_places(sorted(tasks), members, free, lags))
    return exchanged


def _nearest(tasks: Sequence[TaskId], number: int, rack: int, costs: RackCosts, lags: Lags) -> set[TaskId]:
    """Which of equal tasks to send: those on whose copy somebody in the rack is furthest, so that the choice stays the
    same while they warm up."""

    def key(task: TaskId) -> tuple[int, tuple[int, int]]:
        there = [lag for one, lag in lags.copies(task).items() if costs.rack_of.get(one) == rack]
        return (min(there, default=lags.end(task) + 1), (-task.subtopology, -task.partition))

    return set(sorted(tasks, key=key)[:number])


def _cheapest(
    groups: Mapping[tuple[int, tuple[int, ...]], Sequence[TaskId]], numbers: Mapping[int, int], traffic: int, non_overlap: int
) -> dict[tuple[int, tuple[int, ...]], dict[int, int]]:
    """How many tasks of each group go to which rack: a min-cost flow. Among equals the one that moves least."""
    import networkx  # here, as most groups have no racks and its import takes longer than the whole decision

    graph = networkx.DiGraph()
    scale = sum(numbers.values()) + 1
    for rack, number in sorted(numbers.items()):
        graph.add_node(rack, demand=number)
    for (home, remote), tasks in sorted(groups.items()):
        graph.add_node((home, remote), demand=-len(tasks))
        for rack in sorted(numbers):
            moves = rack != home
            graph.add_edge((home, remote), rack, weight=(traffic * remote[rack] + non_overlap * moves) * scale + moves)
    _, flow = networkx.network_simplex(graph)
    return {group: {rack: number for rack, number in flow[group].items() if number} for group in sorted(groups)}
