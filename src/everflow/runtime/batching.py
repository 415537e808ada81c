"""How large the next micro-batch is and which offsets it takes: pure (D1).

Small when caught up (everything there is, at once), up to `BatchLimits` when lagging, and bounded in time by
the throughput measured so far, so that a rebalance never waits long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everflow.config import BatchLimits
from everflow.records import OffsetRange, TopicPartition

FIRST_RECORDS = 50_000
"""Bound of the first batch of an assignment: nothing is known yet of what a record costs."""
SMALLEST_RECORDS = 100
"""However slow the user's code is, a batch takes this many records (if there are as many)."""
GROWTH = 4.0
"""A bound at most this many times the last batch: one lucky measurement must not end in a batch that takes
minutes."""
SMALL_BATCH_RECORDS = 2_000
"""Batches below this size are all fixed costs and say nothing about throughput."""


@dataclass(frozen=True)
class Throughput:
    """What has been measured in this assignment.

    ``records_per_ms``: smoothed, None before the first batch of some size; ``last_records``: size of that
    batch; ``bytes_per_record``: smoothed raw size, None where unknown.
    """

    records_per_ms: float | None = None
    last_records: int = 0
    bytes_per_record: float | None = None

    def after(self, records: int, elapsed_ms: float, raw_bytes: int | None = None) -> Throughput:
        """With one more finished batch. A slower batch counts at once, a faster one by half."""
        size = self.bytes_per_record
        if raw_bytes is not None and records > 0:
            size = raw_bytes / records if size is None else (size + raw_bytes / records) / 2
        if records < SMALL_BATCH_RECORDS and elapsed_ms < 1_000:
            return Throughput(self.records_per_ms, self.last_records, size)
        rate = records / max(elapsed_ms, 1.0)
        if self.records_per_ms is not None and rate > self.records_per_ms:
            rate = (rate + self.records_per_ms) / 2
        return Throughput(rate, records, size)


def budget(limits: BatchLimits, measured: Throughput) -> int:
    """How many records the next batch may take, at least 1."""
    bound: float = limits.max_records
    if measured.records_per_ms is None:
        bound = min(bound, FIRST_RECORDS)
    else:
        bound = min(bound, measured.records_per_ms * limits.target_ms)
        bound = min(bound, max(measured.last_records, SMALLEST_RECORDS) * GROWTH)
    bound = max(bound, min(SMALLEST_RECORDS, limits.max_records))
    if measured.bytes_per_record:
        bound = min(bound, limits.max_bytes / measured.bytes_per_record)
    return max(1, int(bound))


def plan_ranges(
    available: Mapping[TopicPartition, OffsetRange], records: int
) -> dict[TopicPartition, OffsetRange]:
    """Offset ranges for one batch, fair over the partitions; a range for every partition given (maybe empty).

    ``available`` is ``[next offset, end that may be read)``; ends are last stable offsets under exactly-once
    and high watermarks otherwise, so a range never goes beyond them (scenario 5). What one partition does not
    use of its equal share, the others get. Offsets without a record (transaction markers, compaction) count
    as records.
    """
    waiting = {tp: max(0, r.end - r.start) for tp, r in available.items()}
    taken = dict.fromkeys(available, 0)
    left = max(0, records)
    # Smallest backlog first: each leaves what it does not need to the ones behind it.
    order = sorted(available, key=lambda tp: (waiting[tp], tp))
    for position, tp in enumerate(order):
        share = -(
            -left // (len(order) - position)
        )  # rounded up: a budget below the number of partitions is used too
        taken[tp] = min(waiting[tp], share)
        left -= taken[tp]
    return {tp: OffsetRange(r.start, r.start + taken[tp]) for tp, r in available.items()}


def is_empty(ranges: Mapping[TopicPartition, OffsetRange]) -> bool:
    """Whether there is nothing to read."""
    return all(r.end <= r.start for r in ranges.values())
