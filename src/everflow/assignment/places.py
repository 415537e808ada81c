"""Deals tasks to free places: first to who has most of their state, then in turn. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from everflow.assignment.cluster_state import Member
from everflow.assignment.lags import Lags
from everflow.records import TaskId


def fill_places(
    tasks: Sequence[TaskId],
    members: Sequence[Member],
    places: Mapping[str, int],
    lags: Lags,
    only_hot: frozenset[TaskId] = frozenset(),
) -> dict[TaskId, str]:
    """A member for each task; there must be as many free ``places`` (by member id) as tasks.

    For tasks in ``only_hot`` a copy counts only where it is hot. What has no copy goes to the member with the most
    free places per thread, so that neighbouring partitions go to different members.
    """
    free = {member_id: number for member_id, number in places.items() if number > 0}
    at = {member.member_id: place for place, member in enumerate(members)}
    offers = [
        (lag, task, at[holder])
        for task in tasks
        for holder, lag in lags.copies(task).items()
        if holder in free and (task not in only_hot or lags.hot(holder, task))
    ]
    dealt: dict[TaskId, str] = {}
    for _, task, place in sorted(offers):
        taker = members[place].member_id
        if task not in dealt and free[taker] > 0:
            dealt[task] = taker
            free[taker] -= 1

    def entry(place: int) -> tuple[float, int]:
        return (-free[members[place].member_id] / members[place].threads, place)

    heap = [entry(at[member_id]) for member_id, number in free.items() if number > 0]
    heapq.heapify(heap)
    for task in tasks:
        if task in dealt:
            continue
        place = heap[0][1]
        taker = members[place].member_id
        dealt[task] = taker
        free[taker] -= 1
        if free[taker] > 0:
            heapq.heapreplace(heap, entry(place))
        else:
            heapq.heappop(heap)
    return dealt
