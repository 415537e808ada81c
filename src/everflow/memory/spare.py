"""Gives the system back what a process has freed and keeps for the next batch.

glibc keeps freed memory, up to `MALLOC_TRIM_THRESHOLD_` (`everflow.spark.job.worker_environment`),
and never gives back what lies below something that lives. After one large batch a worker would be
larger for good, though none of the batches behind it needs that.

Of its areas (arenas; eight for each core, which threads take in turns) it gives back the end of the
first alone. An instance's own process was larger by 4 MiB for each area that a rebalance's threads
had come to (note 063), so that they share the first.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

M_ARENA_MAX = -8
"""Of glibc's ``malloc.h``."""
EVERY_S = 60.0
"""Taking 128 MiB anew costs some 30 ms: a two-thousandth of that time at the most."""


def trim_of_libc() -> Callable[[int], object] | None:
    """glibc's ``malloc_trim``; None with another C library."""
    return _of_libc("malloc_trim")


def share_one_area() -> None:
    """Threads that ask for memory for the first time from now on take it from the areas that there
    are, in turns: the first one alone, where this is said before there are threads. Without effect
    with another C library, and where the user has set ``MALLOC_ARENA_MAX``.

    A worker has two by its environment, which the process of a user's program cannot be given.
    """
    mallopt = _of_libc("mallopt")
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(M_ARENA_MAX, 1)


def _of_libc(name: str) -> Callable[..., object] | None:
    try:
        function: Callable[..., object] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError):
        return None
    return function


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
