"""How many instances are asked for, and how long a number stays."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everflow.observe.desired_instances import DesiredInstances, Load, ScalingRules, wanted

RULES = ScalingRules(target=0.7, drain_s=100, up_after_s=10, down_after_s=60)


def load(
    busy: float = 0.35,
    lag: float | None = 0,
    rate: float = 1_000,
    restoring: bool = False,
    members: int = 2,
    tasks: int = 8,
) -> Load:
    return Load(busy, lag, rate, restoring, members, tasks)


@pytest.mark.parametrize(
    ("seen", "number"),
    [
        (load(busy=0.35), 1),
        (load(busy=0.7), 2),
        (load(busy=0.72), 2),
        (load(busy=1.0), 3),
        # 100,000 records at 1,000/s: as much again is needed for 100 s
        (load(busy=1.0, lag=100_000), 5),
        # the same rate while half busy: it can do 2,000/s
        (load(busy=0.5, lag=100_000), 3),
        (load(busy=1.0, lag=10_000_000), 8),
        (load(busy=0.0, rate=0), 1),
        (load(busy=0.0, rate=0, lag=5), None),
        (load(lag=None), None),
        (load(lag=math.nan), None),
        (load(restoring=True), None),
    ],
)
def test_what_a_moment_asks_for(seen: Load, number: int | None) -> None:
    assert wanted(seen, RULES) == number


def told(*steps: tuple[float, Load]) -> list[int]:
    desired = DesiredInstances(rules=RULES)
    return [desired.look(seen, at * 1000) for at, seen in steps]


def test_it_begins_with_what_there_is_and_goes_up_after_a_while() -> None:
    busy = load(busy=1.0)
    assert told((0, busy), (9, busy), (10, busy), (20, busy)) == [2, 2, 3, 3]


def test_down_it_goes_later_and_to_the_largest_of_the_time() -> None:
    idle, half = load(busy=0.1, members=4), load(busy=0.5, members=4)
    assert told((0, idle), (30, half), (59, idle), (60, idle)) == [4, 4, 4, 3]


def test_a_peak_is_no_trend() -> None:
    busy, calm = load(busy=1.0), load(busy=0.7)
    assert told((0, busy), (5, calm), (10, busy), (19, busy), (20, busy)) == [2, 2, 2, 2, 3]


def test_while_tasks_are_restored_nothing_changes() -> None:
    busy, restoring = load(busy=1.0), load(restoring=True)
    assert told((0, busy), (9, restoring), (11, busy), (20, busy), (21, busy)) == [2, 2, 2, 2, 3]


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e7), st.integers(1, 9)), min_size=1))
def test_it_stays_between_one_and_the_tasks(drawn: list[tuple[float, float, int]]) -> None:
    desired = DesiredInstances(rules=RULES)
    for number, (busy, lag, members) in enumerate(drawn):
        seen = load(busy=busy, lag=lag, members=members)
        assert 1 <= desired.look(seen, number * 7_000) <= max(8, members)
