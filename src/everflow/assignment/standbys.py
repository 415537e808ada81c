"""Places standbys: apart by tags (KIP-708), even per thread, where one is if that fits. Pure.

Copies are exchanged between members for less traffic between racks (KIP-925). The racks of both
members and the places of both changelogs say what an exchange saves; the tags of both members and
of the tasks' other holders, whether it loses a tag. Copies that are alike in all of these are one
class, of which only the first is compared.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence, Set

from everflow.assignment.cluster_state import ClusterState, Member, RackCosts, costs_of
from everflow.assignment.lags import Lags
from everflow.records import TaskId

SharedTags = tuple[str | None, ...]
"""A member's tags; None for a value that no other member has: it is new to every task of the
others, so its name says nothing."""
_Place = int
_Taken = tuple[frozenset[str | None], ...]
"""The values of a task's other holders, by tag key."""
_Far = tuple[int, ...]
_Copies = list[tuple[TaskId, _Place]]

EXCHANGE_ROUNDS = 4
EXCHANGE_COMPARISONS = 1_000_000
"""Classes compared in one decision: where nearly every copy is a class of its own, what was saved
by then has to do."""


def shared_tags(tags: Sequence[tuple[str, ...]]) -> list[SharedTags]:
    numbers = [Counter(values) for values in zip(*tags, strict=True)]
    return [
        tuple(
            value if number[value] > 1 else None for value, number in zip(one, numbers, strict=True)
        )
        for one in tags
    ]


def new_tags(tags: SharedTags, taken: Sequence[Set[str | None]]) -> int:
    """The number of a member's tags that are not among ``taken``, the values by tag key."""
    return sum(
        value is None or value not in others for value, others in zip(tags, taken, strict=True)
    )


class Exchange:
    """Copies change places, each in turn with the one that saves most; members keep their numbers.

    ``tags`` and ``racks`` are of the members, by place. ``remote``: what a copy of a task costs in
    each rack. ``costs``: of traffic, and of a copy that moves.
    """

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
        self._compared = 0
        for task in self.standby:
            self._list(task)

    def placed(self) -> dict[TaskId, set[_Place]]:
        for _ in range(EXCHANGE_ROUNDS):
            if not self._round():
                break
        return self.standby

    def _round(self) -> bool:
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
            if self._compared > EXCHANGE_COMPARISONS or (best is not None and saved < -best[0]):
                break
            self._compared += len(classes)
            for (tags, other_taken), copies in classes.items():
                if best is not None and (-saved, *copies[0]) >= best:
                    continue
                # neither loses a tag: not this copy there, and not the other one here
                if new(tags, taken) >= had and new(own, other_taken) >= new(tags, other_taken):
                    free = (
                        (other, there)
                        for other, there in copies
                        if not self._holds(there, task) and not self._holds(place, other)
                    )
                    first = next(free, None)
                    if first is not None and (best is None or (-saved, *first) < best):
                        best = (-saved, *first)
        return None if best is None else best[1:]

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


def place_standbys(
    lags: Lags, members: Sequence[Member], tasks: Sequence[TaskId], active: Mapping[TaskId, str]
) -> dict[TaskId, frozenset[str]]:
    """``num.standby.replicas`` members for each task, fewer if there are not as many; never the
    task's own.

    With ``rack.aware.assignment.tags`` each copy stands where most tags are new, then by load.
    """
    cluster = lags.cluster
    if cluster.rules.num_standbys == 0 or len(members) < 2:
        return {}
    draft = _StandbyDraft(cluster, members, tasks, active)
    even = draft.even_numbers()
    if cluster.rules.rack_tags:
        for task in tasks:
            draft.place_apart(task, even, lags)
    else:
        draft.keep_hot_copies(tasks, even, lags)
        for task in tasks:
            draft.fill(task)
    draft.level()
    costs = RackCosts.of(cluster, members)
    if costs is not None:
        draft.exchange(costs, costs_of(cluster))
    return {
        task: frozenset(members[place].member_id for place in draft.standby[task]) for task in tasks
    }


def exchanged_standbys(
    cluster: ClusterState, active: Mapping[TaskId, str], standby: Mapping[TaskId, frozenset[str]]
) -> dict[TaskId, frozenset[str]]:
    """``standby`` with copies exchanged between members for less traffic between racks, losing no
    tag; numbers stay."""
    members = sorted(cluster.members, key=lambda member: member.order)
    costs = RackCosts.of(cluster, members)
    if costs is None:
        return dict(standby)
    draft = _StandbyDraft(cluster, members, sorted(standby), active)
    draft.put(standby)
    draft.exchange(costs, costs_of(cluster))
    return {
        task: frozenset(members[place].member_id for place in draft.standby[task])
        for task in sorted(standby)
    }


_Values = Sequence[Set[str | None]]
"""Values by tag key."""

MOST_GROUPS = 32


def _coarse_keys(tags: Sequence[SharedTags]) -> tuple[int, ...]:
    """The tag keys with few values, as long as they make few groups of members: every group is
    looked at, and few members of it, as with many values nearly all members are new to a task."""
    keys: list[int] = []
    for key in sorted(
        range(len(tags[0]) if tags else 0), key=lambda key: len({one[key] for one in tags})
    ):
        if len({tuple(one[other] for other in (*keys, key)) for one in tags}) > MOST_GROUPS:
            break
        keys.append(key)
    return tuple(sorted(keys))


class _StandbyDraft:
    """The placement while it is made; members are known by their place in the order."""

    def __init__(
        self,
        cluster: ClusterState,
        members: Sequence[Member],
        tasks: Sequence[TaskId],
        active: Mapping[TaskId, str],
    ) -> None:
        self._cluster = cluster
        self._count = cluster.rules.num_standbys
        self._members = members
        self._place = {member.member_id: place for place, member in enumerate(members)}
        self._tags = shared_tags(
            [
                tuple(member.tags.get(key, "") for key in cluster.rules.rack_tags)
                for member in members
            ]
        )
        self._load = [0] * len(members)
        self._active: dict[TaskId, int] = {}
        for task in tasks:
            if task in active:
                self._active[task] = self._place[active[task]]
                self._load[self._active[task]] += 1
        self.standby: dict[TaskId, set[int]] = {task: set() for task in tasks}
        self._of_member: list[set[TaskId]] = [set() for _ in members]
        self._coarse = _coarse_keys(self._tags)
        self._fine = len(cluster.rules.rack_tags) - len(self._coarse)
        self._group_of = [tuple(tags[key] for key in self._coarse) for tags in self._tags]
        self._groups: dict[SharedTags, list[tuple[float, int]]] = defaultdict(list)
        for place in range(len(members)):
            self._offer(place)

    def _per_thread(self, place: int, more: int = 0) -> float:
        return (self._load[place] + more) / self._members[place].threads

    def _offer(self, place: int) -> None:
        heapq.heappush(self._groups[self._group_of[place]], (self._per_thread(place), place))

    def _holds(self, place: int, task: TaskId) -> bool:
        return place in self.standby[task] or self._active.get(task) == place

    def _give(self, place: int, task: TaskId) -> None:
        self.standby[task].add(place)
        self._of_member[place].add(task)
        self._load[place] += 1
        self._offer(place)

    def put(self, standby: Mapping[TaskId, frozenset[str]]) -> None:
        for task, followers in standby.items():
            for member_id in followers:
                self._give(self._place[member_id], task)

    def _take(self, place: int, task: TaskId) -> None:
        self.standby[task].remove(place)
        self._of_member[place].remove(task)
        self._load[place] -= 1
        self._offer(place)

    def _most_apart(
        self, group: SharedTags, task: TaskId, taken: _Values, possible: int
    ) -> tuple[int, float, int] | None:
        """Of a group's members that hold nothing of the task the one with most tags that are new to
        it (given negative), then the least loaded: (tags, load, place). Its place stays on offer.

        ``possible``: nobody in the group has more new tags than that, so the first that has as many
        is it.
        """
        heap = self._groups[group]
        passed = []
        best: tuple[int, float, int] | None = None
        while heap:
            load, place = heap[0]
            if load != self._per_thread(place):
                heapq.heappop(heap)  # an old figure; the present one is in the heap too
                continue
            if not self._holds(place, task):
                new = new_tags(self._tags[place], taken)
                if best is None or -new < best[0]:  # of as many, the earlier one is loaded less
                    best = (-new, load, place)
                if new == possible:
                    break
            passed.append(heapq.heappop(heap))
        for entry in passed:
            heapq.heappush(heap, entry)
        return best

    def even_numbers(self) -> list[int]:
        numbers = [0] * len(self._members)
        heap = [(self._per_thread(place), place) for place in range(len(self._members))]
        heapq.heapify(heap)
        for _ in range(min(self._count, len(self._members) - 1) * len(self.standby)):
            place = heap[0][1]
            numbers[place] += 1
            heapq.heapreplace(heap, (self._per_thread(place, numbers[place]), place))
        return numbers

    def _hot_holders(self, task: TaskId, even: Sequence[int], lags: Lags) -> list[int]:
        """Members that could take over at once, have no role yet and less than the even number; the
        nearest first."""
        holders = sorted(
            (lag, self._place[one]) for one, lag in lags.copies(task).items() if one in self._place
        )
        return [
            place
            for _, place in holders
            if lags.hot(self._members[place].member_id, task)
            and len(self._of_member[place]) < even[place]
            and not self._holds(place, task)
        ]

    def keep_hot_copies(
        self,
        tasks: Sequence[TaskId],
        even: Sequence[int],
        lags: Lags,
    ) -> None:
        """Members that could take over at once keep following, up to the number an even deal gives
        them."""
        for task in tasks:
            for place in self._hot_holders(task, even, lags)[: self._count]:
                self._give(place, task)

    def fill(self, task: TaskId) -> None:
        while len(self.standby[task]) < self._count:
            found = self._most_apart((), task, (), 0)
            if found is None:
                return
            self._give(found[-1], task)

    def place_apart(self, task: TaskId, even: Sequence[int], lags: Lags) -> None:
        """Each next copy where most tags are new to the task; then where it is hot already, then
        least loaded."""
        while len(self.standby[task]) < self._count:
            taken = self._taken(task)
            coarse = [taken[key] for key in self._coarse]
            possible = {group: new_tags(group, coarse) + self._fine for group in self._groups}
            best: tuple[int, float, int] | None = None
            for group in sorted(possible, key=lambda one: -possible[one]):
                if best is not None and possible[group] < -best[0]:
                    break
                found = self._most_apart(group, task, taken, possible[group])
                if found is not None and (best is None or found < best):
                    best = found
            if best is None:
                return
            hot = [
                place
                for place in self._hot_holders(task, even, lags)
                if new_tags(self._tags[place], taken) == -best[0]
            ]
            self._give(hot[0] if hot else best[-1], task)

    def level(self) -> None:
        """Moves copies from the most to the least loaded while that narrows the gap and no tag is
        lost."""
        while self._level_once():
            pass

    def _level_once(self) -> bool:
        ordered = sorted(
            range(len(self._members)), key=lambda place: (self._per_thread(place), place)
        )
        for source in reversed(ordered):
            for destination in ordered:
                if self._per_thread(source, -1) < self._per_thread(destination, 1):
                    break
                if self._per_thread(source) == self._per_thread(destination):
                    break
                task = self._movable(source, destination)
                if task is not None:
                    self._take(source, task)
                    self._give(destination, task)
                    return True
            else:
                continue
            if ordered[0] == destination:
                return False  # nobody is loaded more than the source, nobody less than this one
        return False

    def _movable(self, source: int, destination: int) -> TaskId | None:
        return min(
            (task for task in self._of_member[source] if self._may_move(task, source, destination)),
            default=None,
        )

    def _may_move(self, task: TaskId, source: int, destination: int) -> bool:
        if self._holds(destination, task):
            return False
        if self._tags[source] == self._tags[destination]:
            return True
        others = self._taken(task, source)
        return new_tags(self._tags[destination], others) >= new_tags(self._tags[source], others)

    def _taken(self, task: TaskId, but: int = -1) -> list[set[str | None]]:
        """The values of those that have or follow the task, by tag key, ``but`` one member."""
        holders = {*self.standby[task], self._active.get(task, but)} - {but}
        return [{self._tags[place][key] for place in holders} for key in range(len(self._tags[0]))]

    def exchange(self, racks: RackCosts, costs: tuple[int, int]) -> None:
        """Members exchange copies while that saves traffic between racks (KIP-925); the last step:
        who has what is not kept up."""
        remote = {task: racks.remote(self._cluster.tasks[task].changelogs) for task in self.standby}
        rack = [racks.rack_of[member.member_id] for member in self._members]
        exchange = Exchange(self.standby, self._active, self._tags, rack, remote, costs)
        self.standby = exchange.placed()
