"""Exchanges copies between members for less traffic between racks (KIP-925, 708). Pure.

What an exchange saves depends on the racks of the two members and on where the two changelogs
stand; whether it loses a tag, on the tags of the two members and of the tasks' other holders.
Copies that are alike in all of these are one class, of which only the first has to be looked at: a
copy is compared with some classes instead of with every copy of every member.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

from everflow.records import TaskId

SharedTags = tuple[str | None, ...]
"""A member's tags; None for a value that no other member has: it is new to every task of the
others, so its name says nothing."""
_Place = int
_Taken = tuple[frozenset[str | None], ...]
"""By tag key, the values of the other holders of a task."""
_Far = tuple[int, ...]
_Copies = list[tuple[TaskId, _Place]]

EXCHANGE_ROUNDS = 4
EXCHANGE_LOOKS = 1_000_000
"""Classes looked at in one decision: where nearly every copy is a class of its own, what was saved
by then has to do."""


def shared_tags(tags: Sequence[tuple[str, ...]]) -> list[SharedTags]:
    """Of each member, by place."""
    numbers = [Counter(values) for values in zip(*tags, strict=True)]
    return [
        tuple(
            value if number[value] > 1 else None for value, number in zip(one, numbers, strict=True)
        )
        for one in tags
    ]


def new_tags(tags: SharedTags, taken: Sequence[Set[str | None]]) -> int:
    """How many of a member's tags none of those has whose values, by tag key, are ``taken``."""
    return sum(
        value is None or value not in others for value, others in zip(tags, taken, strict=True)
    )


def exchanged(
    standby: Mapping[TaskId, set[_Place]],
    active: Mapping[TaskId, _Place],
    tags: Sequence[SharedTags],
    racks: Sequence[int],
    remote: Mapping[TaskId, _Far],
    costs: tuple[int, int],
) -> dict[TaskId, set[_Place]]:
    """``standby`` where each copy in turn is exchanged with the one that saves most; every member
    keeps its number.

    ``tags`` and ``racks`` are of the members, by place. ``remote``: what a copy of the task costs
    in each rack. ``costs``: of traffic, and of a copy that moves.
    """
    exchange = _Exchange(standby, active, tags, racks, remote, costs)
    for _ in range(EXCHANGE_ROUNDS):
        if not exchange.round():
            break
    return exchange.standby


class _Exchange:
    """The placement while copies change places."""

    def __init__(
        self,
        standby: Mapping[TaskId, set[_Place]],
        active: Mapping[TaskId, _Place],
        tags: Sequence[SharedTags],
        racks: Sequence[int],
        remote: Mapping[TaskId, _Far],
        costs: tuple[int, int],
    ) -> None:
        self.standby = {task: set(standby[task]) for task in sorted(standby)}
        self._active, self._rack, self._remote = active, racks, remote
        self._traffic, self._non_overlap = costs
        self._tags = tags
        self._classes: dict[tuple[int, _Far], dict[tuple[SharedTags, _Taken], _Copies]] = (
            defaultdict(dict)
        )
        self._new_tags: dict[tuple[SharedTags, _Taken], int] = {}
        self._looks = 0
        for task in self.standby:
            self._list(task)

    def round(self) -> bool:
        """Each copy once that stands where its changelogs do not; whether anything was
        exchanged."""
        copies = [
            (task, place) for task, places in self.standby.items() for place in sorted(places)
        ]
        remote = [(task, place) for task, place in copies if self._remote[task][self._rack[place]]]
        exchanged = [
            self._exchange(task, place) for task, place in remote if place in self.standby[task]
        ]
        return any(exchanged)  # of all of them, not until the first

    def _exchange(self, task: TaskId, place: _Place) -> bool:
        best = self._best(task, place)
        if best is None:
            return False
        other, there = best
        for one, source, destination in ((task, place, there), (other, there, place)):
            self._unlist(one)
            self.standby[one].remove(source)
            self.standby[one].add(destination)
            self._list(one)
        return True

    def _best(self, task: TaskId, place: _Place) -> tuple[TaskId, _Place] | None:
        """The copy with which most is saved; of equals the first in the order of tasks and
        members."""
        here, far, taken = self._rack[place], self._remote[task], self._taken(task, place)
        own, new = self._tags[place], self._new
        had = new(own, taken)
        worth = []
        for (rack, other_far), classes in self._classes.items():
            gain = far[here] - far[rack]
            saved = (
                self._traffic * (gain + other_far[rack] - other_far[here]) - 2 * self._non_overlap
            )
            if gain > 0 and saved > 0:
                worth.append((saved, classes))
        best: tuple[int, TaskId, _Place] | None = None
        for saved, classes in sorted(worth, key=lambda one: -one[0]):
            if self._looks > EXCHANGE_LOOKS or (best is not None and saved < -best[0]):
                break
            self._looks += len(classes)
            for (tags, other_taken), copies in classes.items():
                if best is not None and (-saved, *copies[0]) >= best:
                    continue
                # neither loses a tag: not this copy there, and not the other one here
                if new(tags, taken) >= had and new(own, other_taken) >= new(tags, other_taken):
                    first = next((one for one in copies if self._free(task, place, *one)), None)
                    if first is not None and (best is None or (-saved, *first) < best):
                        best = (-saved, *first)
        return None if best is None else best[1:]

    def _free(self, task: TaskId, place: _Place, other: TaskId, there: _Place) -> bool:
        return not self._holds(there, task) and not self._holds(place, other)

    def _holds(self, place: _Place, task: TaskId) -> bool:
        return place in self.standby[task] or self._active.get(task) == place

    def _new(self, tags: SharedTags, taken: _Taken) -> int:
        known = self._new_tags.get((tags, taken))
        if known is None:
            known = self._new_tags[tags, taken] = new_tags(tags, taken)
        return known

    def _taken(self, task: TaskId, place: _Place) -> _Taken:
        holders = (*self.standby[task], *((self._active[task],) if task in self._active else ()))
        others = [self._tags[holder] for holder in holders if holder != place]
        return tuple(frozenset(one[key] for one in others) for key in range(len(self._tags[place])))

    # --- the classes ------------------------------------------------------------------------------

    def _list(self, task: TaskId) -> None:
        for place in self.standby[task]:
            classes = self._classes[self._rack[place], self._remote[task]]
            insort(
                classes.setdefault((self._tags[place], self._taken(task, place)), []), (task, place)
            )

    def _unlist(self, task: TaskId) -> None:
        for place in self.standby[task]:
            classes = self._classes[self._rack[place], self._remote[task]]
            alike = self._tags[place], self._taken(task, place)
            copies = classes[alike]
            del copies[bisect_left(copies, (task, place))]
            if not copies:
                del classes[alike]
