"""Copies that are exchanged by classes, and placements by flow, are those of a plain search."""

import random
from collections.abc import Mapping, Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from everflow.assignment.flow import Capacities, Placed, TaskCosts, cheapest
from everflow.assignment.standbys import EXCHANGE_ROUNDS, Exchange, shared_tags
from everflow.records import TaskId

TASKS = 8
MEMBERS = 6
RACKS = 3


@st.composite
def placements(draw: st.DrawFn) -> tuple[dict[TaskId, set[int]], dict[TaskId, int]]:
    tasks = [TaskId(0, number) for number in range(draw(st.integers(1, TASKS)))]
    active = {task: draw(st.integers(0, MEMBERS - 1)) for task in tasks if draw(st.integers(0, 9))}
    others = {task: [at for at in range(MEMBERS) if at != active.get(task)] for task in tasks}
    return {
        task: set(draw(st.lists(st.sampled_from(others[task]), max_size=3))) for task in tasks
    }, active


tags_of_members = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from("uvwxyz")), min_size=MEMBERS, max_size=MEMBERS
)
racks_of_members = st.lists(st.integers(0, RACKS - 1), min_size=MEMBERS, max_size=MEMBERS)
far = st.lists(st.tuples(*[st.integers(0, 2)] * RACKS), min_size=TASKS, max_size=TASKS)


@given(
    placements(),
    tags_of_members,
    racks_of_members,
    far,
    st.tuples(st.integers(0, 10), st.integers(0, 3)),
)
def test_classes_decide_as_if_each_copy_were_compared_with_every_other(
    placed: tuple[dict[TaskId, set[int]], dict[TaskId, int]],
    tags: list[tuple[str, str]],
    racks: list[int],
    costs_by_rack: list[tuple[int, ...]],
    costs: tuple[int, int],
) -> None:
    standby, active = placed
    remote = {task: costs_by_rack[task.partition] for task in standby}
    got = Exchange(standby, active, shared_tags(tags), racks, remote, costs).placed()
    assert got == one_by_one(standby, active, tags, racks, remote, costs)


def one_by_one(
    standby: Mapping[TaskId, set[int]],
    active: Mapping[TaskId, int],
    tags: Sequence[tuple[str, ...]],
    racks: Sequence[int],
    remote: Mapping[TaskId, tuple[int, ...]],
    costs: tuple[int, int],
) -> dict[TaskId, set[int]]:
    placed = {task: set(standby[task]) for task in sorted(standby)}
    traffic, non_overlap = costs

    def holders(task: TaskId) -> set[int]:
        return placed[task] | ({active[task]} if task in active else set())

    def apart(members: set[int]) -> int:
        return sum(len({tags[one][key] for one in members}) for key in range(2))

    def keeps(task: TaskId, source: int, destination: int) -> bool:
        return apart(holders(task) - {source} | {destination}) >= apart(holders(task))

    def swap(task: TaskId, place: int) -> bool:
        here = racks[place]
        found = []
        for other, there in (
            (other, there) for other, places in placed.items() for there in places
        ):
            gain = remote[task][here] - remote[task][racks[there]]
            saved = (
                traffic * (gain + remote[other][racks[there]] - remote[other][here])
                - 2 * non_overlap
            )
            free = there not in holders(task) and place not in holders(other)
            if (
                gain > 0
                and saved > 0
                and free
                and keeps(task, place, there)
                and keeps(other, there, place)
            ):
                found.append((-saved, other, there))
        if not found:
            return False
        _, other, there = min(found)
        placed[task] = placed[task] - {place} | {there}
        placed[other] = placed[other] - {there} | {place}
        return True

    for _ in range(EXCHANGE_ROUNDS):
        copies = [
            (task, place)
            for task in placed
            for place in sorted(placed[task])
            if remote[task][racks[place]]
        ]
        swapped = [swap(task, place) for task, place in copies if place in placed[task]]
        if not any(swapped):
            break
    return placed


def random_problem(rng: random.Random) -> tuple[list[TaskCosts], Capacities]:
    members = rng.randint(1, 4)
    racks = rng.randint(1, min(3, members))
    rack = [*range(racks), *(rng.randrange(racks) for _ in range(members - racks))]
    least = [rng.randint(0, 2) for _ in range(members)]
    open_ = [rng.random() < 0.6 for _ in range(members)]
    extra = rng.randint(0, sum(open_))
    task_costs = []
    for _ in range(sum(least) + extra):
        away = tuple(rng.randint(0, 6) for _ in range(racks))
        known = rng.sample(range(members), rng.randint(0, members))
        near = tuple((place, rng.randint(0, away[rack[place]])) for place in known)
        task_costs.append(TaskCosts(away, near, rng.randint(0, 1)))
    return task_costs, Capacities(rack, least, open_, extra)


def costs(one_task: TaskCosts, capacities: Capacities) -> list[int]:
    return [
        dict(one_task.near).get(place, one_task.away[rack])
        for place, rack in enumerate(capacities.rack)
    ]


def least_sum(task_costs: list[TaskCosts], capacities: Capacities) -> int:
    """By trying who gets one more, and then all that is left over after each task."""
    best = []
    for more in product(*([0, 1] if may else [0] for may in capacities.open)):
        if sum(more) != capacities.extra:
            continue
        sums = {tuple(least + one for least, one in zip(capacities.least, more, strict=True)): 0}
        for one_task in task_costs:
            after: dict[tuple[int, ...], int] = {}
            for left, total in sums.items():
                for place, cost in enumerate(costs(one_task, capacities)):
                    if left[place]:
                        rest = (*left[:place], left[place] - 1, *left[place + 1 :])
                        after[rest] = min(after.get(rest, total + cost), total + cost)
            sums = after
        best.append(min(sums.values()))
    return min(best)


def check_places(placed: Placed, task_costs: list[TaskCosts], capacities: Capacities) -> None:
    numbers = list(placed.left)
    for place in placed.member.values():
        numbers[place] += 1
    for number, least, may in zip(numbers, capacities.least, capacities.open, strict=True):
        assert number - least in ((0, 1) if may else (0,)), (numbers, task_costs, capacities)
    assert sum(numbers) == len(task_costs) == len(placed.member) + len(placed.rack), (
        placed,
        task_costs,
        capacities,
    )
    for rack in set(capacities.rack):
        there = sum(
            left for left, at in zip(placed.left, capacities.rack, strict=True) if at == rack
        )
        assert there == list(placed.rack.values()).count(rack), (placed, task_costs, capacities)


@given(st.integers(0, 2**48))
def test_no_placement_costs_less(seed: int) -> None:
    task_costs, capacities = random_problem(random.Random(seed))
    placed = cheapest(task_costs, capacities)
    check_places(placed, task_costs, capacities)
    total = sum(costs(task_costs[task], capacities)[place] for task, place in placed.member.items())
    total += sum(task_costs[task].away[rack] for task, rack in placed.rack.items())
    assert total == least_sum(task_costs, capacities), (placed, task_costs, capacities)
