"""Says what a task costs on each member: traffic, then moves, then how far its state is. Pure.

The three are one number, each scaled to outweigh all that follow, and the ideal is a placement with
the least sum over the whole group. From this follows that the group comes to rest, whichever of
equal placements is chosen. Let V be that least sum.
On the way to an ideal no step makes a task dearer where that ideal wants it, so V never rises:

* a task that is let go costs there, where it is hot, as much as if it had always been there: one
  move less. So V falls with every task that is let go, and a task is not given back: what keeps it
  where it was would have cost less before, too;
* a warm-up that begins there makes it nearer by one: V falls. How far a copy is behind does not
  count, as it would vary;
* while it runs elsewhere meanwhile, whether someone owns it or not, it costs the same where it is
  cold.

A member without a copy is equally far from every task, however little state that has. Else those
with little would be nearest to who joins, and all of a small sub-topology would go there and none
of a large one; of equals the flow mixes.

V has few values, so only so many ideals follow one another. At rest every other placement costs at
least as much and moves something, so the ideal of the ideal is itself. For the same reason an owner
that is not hot while somebody is does not count as owner: it does not keep the task (I5), and would
become dearer when it loses it.
"""

from __future__ import annotations

from collections.abc import Sequence

from everflow.assignment.cluster_state import ClusterState, Member
from everflow.assignment.flow import Wish
from everflow.assignment.lags import Lags
from everflow.assignment.racks import RackCosts, costs_of
from everflow.records import TaskId

OWN, HOT, COPY, NOTHING = range(4)
"""How far the state is."""


def wishes(
    cluster: ClusterState,
    tasks: Sequence[TaskId],
    members: Sequence[Member],
    racks: RackCosts,
    lags: Lags,
) -> list[Wish]:
    """The costs of each task; members by their place, racks by theirs in ``racks``. All tasks have
    state, or none has."""
    if not tasks:
        return []
    traffic, non_overlap = costs_of(cluster, stateful=cluster.tasks[tasks[0]].stateful)
    scale = NOTHING * len(tasks) + 1

    def cost(remote: int, moves: int, distance: int) -> int:
        return ((traffic * remote + non_overlap * moves) * scale + moves) * scale + distance

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
            moves = 0 if anywhere and owner is None else 1
            away = tuple(cost(one, moves, NOTHING) for one in remote)
            far[remote, anywhere, owner is None] = away
        near = []
        for member_id, lag in lags.copies(task).items():
            if member_id in place_of and member_id != owner:
                hot = lags.hot(member_id, task)
                distance = NOTHING if anywhere else HOT if hot else COPY
                here = cost(
                    remote[racks.rack_of[member_id]], 0 if hot and owner is None else 1, distance
                )
                near.append((0 if hot else lag, place_of[member_id], here))
        near.sort()
        if owner is not None:
            near.insert(0, (0, place_of[owner], cost(remote[racks.rack_of[owner]], 0, OWN)))
        answer.append(Wish(away, tuple((place, here) for _, place, here in near), task.subtopology))
    return answer
