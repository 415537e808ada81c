"""How many raw bytes a micro-batch may take, by what became of those before. Pure.

The bytes of the records are bounded before they are read; what is made of them (columns, objects of
the user's functions, prepared changes, output) is only known afterwards, in times of their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from everflow.memory.budget import WORKER_BYTES, WorkerMemory

FIRST_TIMES = 8.0
"""Bytes of memory for each byte of records, until one batch has been seen: JSON in columns takes
three to five."""
MOST_TIMES = 1_000.0
AIMED_AT = 0.75
"""Of the room, what a batch is planned to take: the next one's records may be others."""
TELLING_SHARE = 4
"""A batch tells something from a fourth of the most on: what a small one takes are the buffers that
the large ones left."""
OUTGROWN_SHARE = 8
"""By so small a part must a batch have outgrown what the process held before, for its peak to be
what it needs; else it is a bound of it."""
_LEAST_RECORD_BYTES = 1_024


class Taken(NamedTuple):
    """Bytes that a worker held: without a batch, when the batch's records had been read, and at the
    most until its end."""

    idle: int
    before: int
    peak: int


@dataclass(frozen=True)
class BatchMemory:
    """Learnt by one stream thread. ``times``: bytes of memory for a byte of records; ``idle``: of
    its worker, without any."""

    times: float = FIRST_TIMES
    idle: int = WORKER_BYTES

    def most_bytes(self, limit: int, worker: WorkerMemory) -> int:
        """Bytes of records that the next batch may take; ``limit``: ``max.batch.bytes``."""
        fitting = int(worker.room(self.idle) * AIMED_AT / self.times)
        return min(limit, max(_LEAST_RECORD_BYTES, fitting))

    def after(self, raw_bytes: int, most_bytes: int, taken: Taken | None) -> BatchMemory:
        """With one more batch, which might have had ``most_bytes``. More is believed at once, less
        by half."""
        if taken is None or raw_bytes * TELLING_SHARE < most_bytes or raw_bytes <= 0:
            return self if taken is None else replace(self, idle=taken.idle)
        needed = max(0, taken.peak - taken.idle)
        seen = min(MOST_TIMES, max(1.0, needed / raw_bytes))
        outgrown = (taken.peak - taken.before) * OUTGROWN_SHARE >= needed
        if seen > self.times:
            return BatchMemory(seen if outgrown else self.times, taken.idle)
        return BatchMemory((self.times + seen) / 2, taken.idle)

    def doubted(self) -> BatchMemory:
        """After a worker that died: it may have had no memory."""
        return replace(self, times=min(MOST_TIMES, 2 * self.times))
