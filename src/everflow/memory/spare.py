"""Gives the system back what a process has freed and keeps for the next batch.

glibc keeps freed memory, up to `MALLOC_TRIM_THRESHOLD_` (`everflow.spark.job.worker_environment`),
and never gives back what lies below something that lives. After one large batch a worker would be
larger for good, though none of the batches behind it needs that; so would an instance's own process
after each rebalance of which a thread's area was largest.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable

EVERY_S = 60.0
"""Taking 128 MiB anew costs some 30 ms: a two-thousandth of that time at the most."""


def trim_of_libc() -> Callable[[int], object] | None:
    """glibc's ``malloc_trim``; None with another C library."""
    try:
        trim: Callable[[int], object] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return None
    return trim


class SpareMemory:
    """Of one process, by one of its threads; ``trim`` is called without the interpreter's lock."""

    def __init__(
        self,
        trim: Callable[[int], object] | None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trim, self._clock_s = trim, clock_s
        self._next_s = clock_s() + EVERY_S

    def look(self) -> None:
        """Where little waits for it: gives back what is free if it has not for `EVERY_S`."""
        now_s = self._clock_s()
        if self._trim is not None and now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            self._trim(0)
