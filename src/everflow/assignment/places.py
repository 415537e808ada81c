"""How many tasks each member gets, and who of equals gets which. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from everflow.assignment.cluster_state import Member
from everflow.records import TaskId


@dataclass(frozen=True)
class Share:
    """An even deal, by member id: ``least`` for everyone, and one more for ``extra`` of those in
    ``open``.

    Who of equals gets one more is left to who holds it, or its state, already: a fixed choice would
    move tasks for nothing.
    """

    least: Mapping[str, int]
    open: frozenset[str]
    extra: int


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
