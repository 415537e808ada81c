"""Measures how long the parts of a micro-batch take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def timed(timings: dict[str, float], name: str) -> Iterator[None]:
    """Add to ``timings`` how many ms the block took, also where it fails: the batch may be computed
    again in the same attempt, and the time was spent on that all the same."""
    began = time.perf_counter()
    try:
        yield
    finally:
        spent = (time.perf_counter() - began) * 1000
        timings[name] = round(timings.get(name, 0.0) + spent, 2)
