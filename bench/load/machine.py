"""How fast this machine is, told by one loop, so that figures of two machines can be compared."""

from __future__ import annotations

import time

ADDITIONS = 2_000_000
TRIES = 5


def loop_ms() -> float:
    """Milliseconds that Python takes to add up the squares of two million numbers: the quickest of
    five times, as other work on the machine only adds to it."""
    return min(_once_ms() for _ in range(TRIES))


def _once_ms() -> float:
    began = time.perf_counter()
    total = 0
    for number in range(ADDITIONS):
        total += number * number
    return (time.perf_counter() - began) * 1e3
