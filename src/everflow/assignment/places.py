"""How many tasks each member gets, and who gets which of those that move: first who has most of their state. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from everflow.assignment.cluster_state import Member
from everflow.assignment.lags import Lags
from everflow.records import TaskId


@dataclass(frozen=True)
class Share:
    """An even deal, by member id: ``least`` for everyone, and one more for ``extra`` of those in ``open``.

    Who of equals gets one more is left to who holds it, or its state, already: a fixed choice would move tasks for nothing.
    """

    least: Mapping[str, int]
    open: frozenset[str]
    extra: int


class Places:
    """Free places: ``must`` be filled (number by member id), and ``extra`` further ones, one at most on each of ``open``."""

    def __init__(self, members: Sequence[Member], must: Mapping[str, int], open_: Collection[str], extra: int) -> None:
        self._members = members
        self._at = {member.member_id: place for place, member in enumerate(members)}
        self._must = dict(must)
        self._open = set(open_)
        self._extra = extra

    def fill(self, tasks: Sequence[TaskId], lags: Lags, only_hot: frozenset[TaskId] = frozenset()) -> dict[TaskId, str]:
        """A member for each task; there must be as many places as tasks.

        For tasks in ``only_hot`` a copy counts only where it is hot. What has no copy goes to the member with the most
        free places per thread, so that neighbouring partitions go to different members.
        """
        offers = [
            (lag, task, self._at[holder])
            for task in tasks
            for holder, lag in lags.copies(task).items()
            if holder in self._at and (task not in only_hot or lags.hot(holder, task))
        ]
        dealt: dict[TaskId, str] = {}
        for _, task, place in sorted(offers):
            taker = self._members[place].member_id
            if task not in dealt and self._take(taker):
                dealt[task] = taker
        self._in_turn([task for task in tasks if task not in dealt], dealt)
        return dealt

    def _take(self, member_id: str) -> bool:
        if self._must.get(member_id, 0) > 0:
            self._must[member_id] -= 1
            return True
        if self._extra > 0 and member_id in self._open:
            self._open.remove(member_id)
            self._extra -= 1
            return True
        return False

    def _in_turn(self, tasks: Sequence[TaskId], dealt: dict[TaskId, str]) -> None:
        for member_id in sorted(self._open, key=lambda one: self._at[one])[: self._extra]:
            self._must[member_id] = self._must.get(member_id, 0) + 1

        def entry(place: int) -> tuple[float, int]:
            return (-self._must[self._members[place].member_id] / self._members[place].threads, place)

        heap = [entry(self._at[member_id]) for member_id, number in self._must.items() if number > 0]
        heapq.heapify(heap)
        for task in tasks:
            place = heap[0][1]
            taker = self._members[place].member_id
            dealt[task] = taker
            self._must[taker] -= 1
            if self._must[taker] > 0:
                heapq.heapreplace(heap, entry(place))
            else:
                heapq.heappop(heap)
