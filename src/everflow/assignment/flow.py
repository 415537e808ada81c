"""Finds the cheapest placement of tasks on members as one min-cost flow. Pure.

A task costs the same on all members of a rack, except on its owner and on those with a copy. So the
graph has a hub for each rack, through which a task comes to anybody there, and direct arcs to those
few: thousands of tasks on a thousand members are some ten thousand arcs. The flow runs between
members and hubs; a task is what moves along an arc.

Successive shortest paths, all paths of equal length at once: every task begins where it is
cheapest, and a member with too many then passes tasks on. Most tasks stay, so few paths are needed.
Design note 008 says why it is not a library's.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class TaskCosts(NamedTuple):
    """What a task costs: ``away``, by rack, on a member that has nothing of it; ``near``, by place,
    on those that have (never more), in the order of preference among equals.

    ``kind``: of equal tasks those go first whose kind a member has most of.
    """

    away: tuple[int, ...]
    near: tuple[tuple[int, int], ...]
    kind: int


@dataclass(frozen=True)
class Capacities:
    """The number of tasks for each member, by place: ``least``, and one more for ``extra`` of those
    that are ``open``."""

    rack: Sequence[int]
    least: Sequence[int]
    open: Sequence[bool]
    extra: int


class Arc(NamedTuple):
    """``task``: the one that moves along it; -1 from a hub to a member, where any of those waiting
    does; -2 if none does."""

    to: int
    task: int


ANY, NOBODY = -1, -2


@dataclass(frozen=True)
class Placed:
    """The place of each task that is near somebody, and for the others the rack; ``left``: how many
    of them each member gets."""

    member: dict[int, int]
    rack: dict[int, int]
    left: Sequence[int]


def cheapest(costs: Sequence[TaskCosts], capacities: Capacities) -> Placed:
    """The placement with the least sum of costs; ValueError if there are fewer places than
    tasks."""
    flow = _Flow(costs, capacities)
    while sources := flow.sources():
        flow.measure(sources)
        for source in sources:
            flow.drain(source)
    return flow.placed()


class _Flow:
    """The flow while it grows. Nodes: members by place, then hubs by rack, and one for open places.

    ``_height``: potential of each node; no usable arc costs less than its rise, paths cost just
    that.
    """

    def __init__(self, costs: Sequence[TaskCosts], capacities: Capacities) -> None:
        self._costs = costs
        self._capacities = capacities
        self._members = len(capacities.least)
        self._racks = max(capacities.rack, default=-1) + 1
        self._extra = self._members + self._racks
        self._in_rack: list[list[int]] = [[] for _ in range(self._racks)]
        for place, rack in enumerate(capacities.rack):
            self._in_rack[rack].append(place)
        self._height = [0] * (self._extra + 1)
        self._tasks_at: list[dict[int, None]] = [
            {} for _ in self._height
        ]  # a dict as an ordered set
        self._at = [0] * len(costs)
        self._present_cost = [0] * len(costs)
        for task, of_task in enumerate(costs):
            self._begin(task, of_task)
        self._more = [False] * self._members
        self._left = capacities.extra
        for place in range(self._members):
            self._more[place] = (
                self._left > 0
                and capacities.open[place]
                and len(self._tasks_at[place]) > capacities.least[place]
            )
            self._left -= self._more[place]
        self._out: dict[int, dict[int, int]] = {}
        self._usable: dict[int, Iterator[Arc]] = {}
        self._next: dict[int, Arc | None] = {}
        self._dead: set[int] = set()

    def _begin(self, task: int, costs: TaskCosts) -> None:
        cost = min(costs.away)
        node = self._members + costs.away.index(cost)
        for place, there in reversed(costs.near):
            if there <= cost:
                node, cost = place, there
        self._at[task], self._present_cost[task] = node, cost
        self._tasks_at[node][task] = None

    def _surplus(self, node: int) -> int:
        """The number of tasks that a node has too many; negative if it can take more."""
        if node == self._extra:
            return -self._left
        if node >= self._members:
            return len(self._tasks_at[node])
        over = len(self._tasks_at[node]) - self._capacities.least[node]
        return over - self._more[node]

    def sources(self) -> list[int]:
        return [node for node in range(self._extra) if self._surplus(node) > 0]

    def placed(self) -> Placed:
        """The result; every hub is empty."""
        member, rack, left = {}, {}, [0] * self._members
        for task, costs in enumerate(self._costs):
            place = self._at[task]
            if any(place == near for near, _ in costs.near):
                member[task] = place
            else:
                rack[task] = self._capacities.rack[place]
                left[place] += 1
        return Placed(member, rack, left)

    def measure(self, sources: Sequence[int]) -> None:
        """Raises the heights so that the shortest paths cost just what they rise."""
        height, extra = self._height, self._extra
        far = 1 << 200
        distance = [far] * (extra + 1)
        heap = []
        for source in sources:
            distance[source] = 0
            heap.append((0, source))
        nearest = far
        while heap:
            here, node = heapq.heappop(heap)
            if here > distance[node]:
                continue
            if self._surplus(node) < 0:
                nearest = here
                break
            base = here + height[node]
            for to, cost in self._ways(node):
                there = base + cost - height[to]
                if there < distance[to]:
                    distance[to] = there
                    heapq.heappush(heap, (there, to))
        if nearest == far:
            places = sum(self._capacities.least) + self._capacities.extra
            raise ValueError(f"{len(self._costs)} tasks for {places} places")
        self._height = [
            old + min(nearest, more) for old, more in zip(height, distance, strict=True)
        ]
        self._usable.clear()
        self._next.clear()
        self._dead.clear()

    def _ways(self, node: int) -> Iterator[tuple[int, int]]:
        """The nodes to which a node can pass something on, and the least costs."""
        if node == self._extra:
            for place in range(self._members):
                if self._more[place]:
                    yield place, 0
            return
        out = self._out.get(node)
        if out is None:
            out = self._out[node] = self._cheapest_out(node)
        yield from out.items()
        if node >= self._members:
            for place in self._in_rack[node - self._members]:
                yield place, 0
        elif self._capacities.open[node] and not self._more[node]:
            yield self._extra, 0

    def _cheapest_out(self, node: int) -> dict[int, int]:
        out: dict[int, int] = {}
        for task in self._tasks_at[node]:
            present, costs = self._present_cost[task], self._costs[task]
            for to, there in enumerate(costs.away, self._members):
                if to != node and (to not in out or there - present < out[to]):
                    out[to] = there - present
            for to, there in costs.near:
                if to != node and (to not in out or there - present < out[to]):
                    out[to] = there - present
        return out

    def drain(self, source: int) -> None:
        """Passes on what a node has too much while there are paths of the present length."""
        while source not in self._dead and self._surplus(source) > 0:
            path = [source]
            arcs: list[Arc] = []
            while path and self._surplus(path[-1]) >= 0:
                arc = self._arc(path[-1], path)
                if arc is None:
                    self._dead.add(path.pop())
                    if arcs:
                        arcs.pop()
                else:
                    path.append(arc.to)
                    arcs.append(arc)
            for node, arc in zip(path, arcs, strict=False):
                self._pass(node, arc)

    def _arc(self, node: int, path: Sequence[int]) -> Arc | None:
        """The next arc that may be used from here; it stays the next one while it can be used
        again."""
        if node not in self._usable:
            self._usable[node] = self._arcs(node)
            self._next[node] = next(self._usable[node], None)
        while (arc := self._next[node]) is not None:
            if arc.to not in self._dead and arc.to not in path and self._there(node, arc):
                return arc
            self._next[node] = next(self._usable[node], None)
        return None

    def _there(self, node: int, arc: Arc) -> bool:
        if arc.task >= 0:
            return self._at[arc.task] == node
        if arc.task == ANY:
            return True
        return self._more[arc.to] if node == self._extra else not self._more[node]

    def _arcs(self, node: int) -> Iterator[Arc]:
        """The arcs that may be used: along them the height rises by the cost."""
        height = self._height
        here = height[node]
        if node == self._extra:
            for place in reversed(range(self._members)):
                if self._more[place] and height[place] == here:
                    yield Arc(place, NOBODY)
            return
        rising = {to for to, cost in self._ways(node) if height[to] - here == cost}
        tasks = self._in_order(node) if rising & self._out[node].keys() else []
        for task in tasks:
            for to, cost in self._costs[task].near:
                if to in rising and height[to] - here == cost - self._present_cost[task]:
                    yield Arc(to, task)
        if node >= self._members:
            in_rack = self._in_rack[node - self._members]
            for place in sorted(in_rack, key=self._surplus):  # those that can take more first
                if place in rising:
                    yield Arc(place, ANY)
        for task in tasks:
            for to, cost in enumerate(self._costs[task].away, self._members):
                if to in rising and height[to] - here == cost - self._present_cost[task]:
                    yield Arc(to, task)
        if self._extra in rising:
            yield Arc(self._extra, NOBODY)

    def _in_order(self, node: int) -> list[int]:
        """Of equal tasks, those first whose kind has most here: both sides stay mixed."""
        number: Counter[int] = Counter()
        ranked = []
        for task in self._tasks_at[node]:
            kind = self._costs[task].kind
            number[kind] += 1
            ranked.append((-number[kind], -kind, task))
        return [task for _, _, task in sorted(ranked)]

    def _pass(self, node: int, arc: Arc) -> None:
        if arc.task == NOBODY:
            giver = node == self._extra
            self._more[arc.to if giver else node] = not giver
            self._left += 1 if giver else -1
            return
        task = arc.task
        if task == ANY:
            task = next(reversed(self._tasks_at[node]))
        else:
            costs = self._costs[task]
            near = dict(costs.near)
            self._present_cost[task] = (
                costs.away[arc.to - self._members] if arc.to >= self._members else near[arc.to]
            )
        del self._tasks_at[node][task]
        self._tasks_at[arc.to][task] = None
        self._at[task] = arc.to
        self._out.pop(node, None)
        self._out.pop(arc.to, None)
