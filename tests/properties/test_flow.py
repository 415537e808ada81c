"""The placement by flow costs what the cheapest one costs, and fills its places."""

import random
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from everflow.assignment.flow import Placed, Seats, Wish, cheapest


def random_problem(rng: random.Random) -> tuple[list[Wish], Seats]:
    members = rng.randint(1, 4)
    racks = rng.randint(1, min(3, members))
    rack = [*range(racks), *(rng.randrange(racks) for _ in range(members - racks))]
    least = [rng.randint(0, 2) for _ in range(members)]
    open_ = [rng.random() < 0.6 for _ in range(members)]
    extra = rng.randint(0, sum(open_))
    wishes = []
    for _ in range(sum(least) + extra):
        away = tuple(rng.randint(0, 6) for _ in range(racks))
        known = rng.sample(range(members), rng.randint(0, members))
        near = tuple((place, rng.randint(0, away[rack[place]])) for place in known)
        wishes.append(Wish(away, near, rng.randint(0, 1)))
    return wishes, Seats(rack, least, open_, extra)


def costs(wish: Wish, seats: Seats) -> list[int]:
    return [dict(wish.near).get(place, wish.away[rack]) for place, rack in enumerate(seats.rack)]


def least_sum(wishes: list[Wish], seats: Seats) -> int:
    """By trying who gets one more, and then all that is left over after each task."""
    best = []
    for more in product(*([0, 1] if may else [0] for may in seats.open)):
        if sum(more) != seats.extra:
            continue
        sums = {tuple(least + one for least, one in zip(seats.least, more, strict=True)): 0}
        for wish in wishes:
            after: dict[tuple[int, ...], int] = {}
            for left, total in sums.items():
                for place, cost in enumerate(costs(wish, seats)):
                    if left[place]:
                        rest = (*left[:place], left[place] - 1, *left[place + 1 :])
                        after[rest] = min(after.get(rest, total + cost), total + cost)
            sums = after
        best.append(min(sums.values()))
    return min(best)


def check_places(placed: Placed, wishes: list[Wish], seats: Seats) -> None:
    numbers = list(placed.left)
    for place in placed.member.values():
        numbers[place] += 1
    for number, least, may in zip(numbers, seats.least, seats.open, strict=True):
        assert number - least in ((0, 1) if may else (0,)), (numbers, wishes, seats)
    assert sum(numbers) == len(wishes) == len(placed.member) + len(placed.rack), (
        placed,
        wishes,
        seats,
    )
    for rack in set(seats.rack):
        there = sum(left for left, at in zip(placed.left, seats.rack, strict=True) if at == rack)
        assert there == list(placed.rack.values()).count(rack), (placed, wishes, seats)


@given(st.integers(0, 2**48))
def test_no_placement_costs_less(seed: int) -> None:
    wishes, seats = random_problem(random.Random(seed))
    placed = cheapest(wishes, seats)
    check_places(placed, wishes, seats)
    total = sum(costs(wishes[task], seats)[place] for task, place in placed.member.items())
    total += sum(wishes[task].away[rack] for task, rack in placed.rack.items())
    assert total == least_sum(wishes, seats), (placed, wishes, seats)
