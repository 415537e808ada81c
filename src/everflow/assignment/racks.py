"""What it costs where a task runs: traffic between racks (KIP-925) and moves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everflow.assignment.cluster_state import ClusterState, Member
from everflow.records import TopicPartition

TRAFFIC_COST = 10
NON_OVERLAP_COST = 1
STATELESS_TRAFFIC_COST = 1
STATELESS_NON_OVERLAP_COST = 0


@dataclass(frozen=True)
class RackCosts:
    """What it costs to read a task's partitions from each rack of the group.

    ``racks`` in the order of the cost tuples; ``rack_of`` gives the place of a member's rack in it.
    A partition whose racks are unknown costs nothing anywhere.
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
        return RackCosts(
            racks, {member.member_id: racks.index(member.rack) for member in members}, cluster.racks
        )

    @staticmethod
    def none(members: Sequence[Member]) -> RackCosts:
        """As if all members stood in one rack, where every partition is."""
        return RackCosts(("",), {member.member_id: 0 for member in members}, {})

    def remote(self, partitions: Sequence[TopicPartition]) -> tuple[int, ...]:
        """How many of the partitions have no replica in a rack, for each rack."""
        if not self.replicas:
            return (0,) * len(self.racks)
        known = [
            self.replicas[partition] for partition in partitions if self.replicas.get(partition)
        ]
        return tuple(sum(rack not in replicas for replicas in known) for rack in self.racks)


def costs_of(cluster: ClusterState, *, stateful: bool = True) -> tuple[int, int]:
    """Traffic and non-overlap cost for stateful tasks and standbys, as configured or Kafka Streams'
    defaults."""
    if not stateful:
        return STATELESS_TRAFFIC_COST, STATELESS_NON_OVERLAP_COST
    traffic, non_overlap = cluster.rules.traffic_cost, cluster.rules.non_overlap_cost
    return (
        TRAFFIC_COST if traffic is None else traffic,
        NON_OVERLAP_COST if non_overlap is None else non_overlap,
    )
