"""The final values of a program's output, and whether two systems agree on them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bench.programs.catalogue import Finals, Program
from bench.verify import WrongOutputError, read_all

# Sums of floats depend on the order of their records.
RELATIVE_TOLERANCE = 1e-9
SHOWN = 3


def finals(program: Program, bootstrap_servers: str, output_topic: str) -> Finals:
    """What of the final values is compared; a key whose last value is null is not there."""
    last: dict[tuple[str, bytes], bytes] = {}
    for branch in program.branches:
        for key, value in read_all(bootstrap_servers, output_topic + branch):
            last[branch, key] = value
    return program.compared(
        {place: program.decode(value) for place, value in last.items() if value}
    )


def compare(program: Program, system: str, got: Finals, reference: str, expected: Finals) -> None:
    """Raise `WrongOutputError`, with the first differences, unless both are equal but for the
    rounding of floats."""
    if not got:
        raise WrongOutputError(f"{program.name}: {system} wrote nothing")
    places = sorted(got.keys() | expected.keys())
    wrong = [
        place
        for place in places
        if place not in got or place not in expected or not equal(got[place], expected[place])
    ]
    if wrong:
        shown = "; ".join(
            f"{place}: {got.get(place, 'nothing')} and {expected.get(place, 'nothing')}"
            for place in wrong[:SHOWN]
        )
        raise WrongOutputError(
            f"{program.name}: {system} and {reference} differ in {len(wrong):,} of "
            f"{len(places):,} final values: {shown}"
        )


def equal(one: Any, other: Any) -> bool:
    """Equal JSON, numbers up to `RELATIVE_TOLERANCE`; a field that is absent is not null."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=RELATIVE_TOLERANCE)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(one[name], other[name]) for name in one)
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)
