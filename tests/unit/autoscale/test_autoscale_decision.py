"""What an autoscaler does next."""

from __future__ import annotations

import pytest

from everflow.autoscale import InstanceSeen, change


def up(desired: int | None = 1, *, settled: bool = True, ending: bool = False) -> InstanceSeen:
    return InstanceSeen(settled, desired, ending)


@pytest.mark.parametrize(
    ("seen", "number"),
    [
        ([], 1),
        ([up(1)], 0),
        ([up(3)], 2),
        ([up(9)], 3),  # at most 4
        ([up(2), up(3)], 1),  # the largest counts
        ([up(None)], 0),
        ([up(3), up(settled=False)], 0),  # one still starts
        ([up(1), up(1), up(1)], -1),  # down by one
        ([up(1), up(1), up(1, ending=True)], 0),  # one still ends
        ([up(1), up(1, settled=False)], 0),
        ([up()] * 5, -1),
        ([up(ending=True)], 1),  # the last one ends: one is needed
    ],
)
def test_a_change(seen: list[InstanceSeen], number: int) -> None:
    assert change(seen, 1, 4) == number


def test_there_are_never_fewer_than_the_least() -> None:
    assert change([up(1)], 2, 4) == 1
    assert change([up(1), up(1)], 2, 4) == 0
