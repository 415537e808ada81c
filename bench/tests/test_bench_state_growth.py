"""What a micro-batch reads of its stores does not grow with what they hold: the programs of `bench
growth --dimensions state` beside a small and a tenfold state, counted."""

from __future__ import annotations

import pytest

from bench.growth.state import Cost, cost_in_memory, cost_on_disk, growth
from bench.growth.state_programs import PROGRAMS, StateProgram

FEW, MANY = 40, 400


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_a_batch_reads_as_much_beside_a_tenfold_state(program: StateProgram) -> None:
    for own in program.owners:
        few, many = (cost_in_memory(program, count, own, 1).entries for count in (FEW, MANY))
        assert few == many, "of its own key" if own else "of others"


def test_reads_are_counted_on_disk_as_in_memory() -> None:
    (late,) = (one for one in PROGRAMS if one.name == "sessions, late")
    on_disk, in_memory = (
        cost(late, FEW, True, 1).entries for cost in (cost_on_disk, cost_in_memory)
    )
    assert on_disk == in_memory > 0


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Cost(0.010, 10), Cost(0.012, 12), 0),
        (Cost(0.010, 10), Cost(0.010, 100), 1),
        (Cost(0.010, 10), Cost(0.030, 10), 1),
        (Cost(0.001, 0), Cost(0.004, 0), 0),
    ],
)
def test_what_grows_is_told(before: Cost, after: Cost, told: int) -> None:
    assert len(list(growth("a program", [10, 100], [before, after]))) == told
