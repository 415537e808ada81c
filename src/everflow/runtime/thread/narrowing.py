"""What a stream thread makes of a batch that fails: one of fewer records, or without one of them.

Owned by one thread. Pure but for what it remembers; times are monotonic ms (notes 041 and 042).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from everflow.config import BatchLimits
from everflow.memory.batch_memory import BatchMemory
from everflow.memory.budget import WorkerMemory
from everflow.moves import some
from everflow.records import TopicPartition
from everflow.runtime.commit.batch import BatchFailure, BatchResult
from everflow.runtime.tasks.task import ActiveTask, positions_of
from everflow.runtime.thread.batching import BatchSize, PlannedBatch, plan_ranges
from everflow.runtime.thread.thread_ports import ThreadServices, ThreadSettings

Inputs = Sequence[Collection[TopicPartition]]

TOLD_EVERY_MS = 5_000.0
FIRST_WITH_FUNCTIONS = 1_000
"""Bound of the first batch of a thread whose plan has Python functions: nobody knows yet what one
of their calls costs."""
_ONE_OF_THEM = frozenset({"worker", "hang", "column", "refused"})
"""Kinds of failure that fewer records may not meet, and that a single one may have caused."""
_COMPUTING = ("operators", "columns")
"""Of a batch's timings, what grows with its records and with nothing else."""


def first_size(functions: bool) -> BatchSize:
    """``functions``: the plan has Python functions."""
    return BatchSize(FIRST_WITH_FUNCTIONS) if functions else BatchSize()


@dataclass
class RecordSearch:
    """How the look for a record that fails its batch gets on. ``left``: as many as the batch had
    that failed last, less those committed since; until there are none, batches do not grow again.
    Not until that batch is behind: of inputs that are merged, one can be far ahead of another."""

    left: int
    began_ms: float
    _told_ms: float = 0.0

    def __post_init__(self) -> None:
        self._told_ms = self.began_ms

    def told(self, planned: PlannedBatch, now_ms: float) -> str | None:
        """Before ``planned`` runs, what to say to who waits; None where it was said a moment
        ago."""
        if now_ms - self._told_ms < TOLD_EVERY_MS:
            return None
        self._told_ms = now_ms
        tried = some(
            (f"{tp}@{r.start}" for tp, r in sorted(planned.ranges.items()) if r.end > r.start), 3
        )
        elapsed_s = (now_ms - self.began_ms) / 1000
        return (
            f"the record is still looked for, {elapsed_s:.0f} s so far: trying "
            f"{planned.records:,} from {tried}"
        )


@dataclass(kw_only=True)
class Narrowing:
    """``may_continue(stage, node)``: whether a record that fails there need not stop the
    instance. ``worker()``: what the thread's worker may take now, of the instance's memory."""

    limits: BatchLimits
    size: BatchSize
    worker: Callable[[], WorkerMemory]
    memory: BatchMemory = field(default_factory=BatchMemory)
    may_continue: Callable[[str, str | None], bool]
    search: RecordSearch | None = None
    failed_after_ms: float = 0.0
    """How long the last batch ran that failed."""
    _part: int = 0
    """Which task's records were last run alone, to find the one for which a Column fails, or an
    entry of a store is refused."""
    _aside: dict[tuple[str, int, int], BatchFailure] = field(default_factory=dict)

    @staticmethod
    def of(settings: ThreadSettings, services: ThreadServices) -> Narrowing:
        """Of a thread that has run nothing yet."""
        return Narrowing(
            limits=settings.limits,
            size=first_size(settings.functions),
            worker=services.worker_memory,
            may_continue=settings.may_continue,
        )

    @property
    def bounds(self) -> BatchLimits:
        """Of the next batch: the limits, with as many bytes as there is memory for."""
        fitting = self.memory.most_bytes(self.limits.max_bytes, self.worker())
        return replace(self.limits, max_bytes=fitting)

    def forget(self) -> None:
        """Other tasks than before."""
        self.search = None
        self._aside.clear()

    def aside(self, planned: PlannedBatch) -> tuple[BatchFailure, ...]:
        """What earlier attempts failed on, of the records of a batch."""
        return tuple(
            failure
            for (topic, partition, offset), failure in self._aside.items()
            if (wanted := planned.ranges.get(TopicPartition(topic, partition))) is not None
            and wanted.start <= offset < wanted.end
        )

    def set_aside(self, failure: BatchFailure, planned: PlannedBatch | None) -> bool:
        """Whether the record of a failure is left to its handler from the next attempt on: it is
        known, no handler has said FAIL, and it has not been tried yet."""
        record = failure.record
        if planned is None or failure.judged or failure.kind == "undecodable":
            return False
        if record is None and failure.kind in _ONE_OF_THEM:
            record = planned.only_record()
        if record is None or record.place in self._aside:
            return False
        if not self.may_continue(failure.stage, record.node):
            return False
        for one in (replace(failure, record=record), *failure.also):
            if one.record is not None:
                self._aside.setdefault(one.record.place, replace(one, also=()))
        return True

    def after(
        self,
        result: BatchResult,
        planned: int,
        read: int,
        elapsed_ms: float,
        tasks: Collection[ActiveTask],
    ) -> None:
        """A batch was committed: ``read`` offsets of those ``planned``; ``tasks``: all of the
        thread, as they are now."""
        before = self.size
        if result.silent:  # it waited for a leader: that says nothing of what records cost
            elapsed_ms = min(elapsed_ms, self.limits.target_ms)
        computing_ms = sum(
            spent for name, spent in result.timings.items() if name.startswith(_COMPUTING)
        )
        bounds, raw_bytes = self.bounds, result.counts.get("bytes", 0)
        self.size = before.after(
            bounds,
            planned,
            read,
            elapsed_ms,
            raw_bytes if "bytes" in result.counts else None,
            computing_ms,
            result.held_ms,
        )
        self.memory = self.memory.after(raw_bytes, bounds.max_bytes, result.memory)
        if self.search is not None:
            self.search.left -= read
            if self.search.left > 0:
                self.size = self.size.no_larger_than(before)
            else:
                self.search = None
        if not self._aside:
            return
        at = positions_of(tasks)
        for topic, partition, offset in list(self._aside):
            if at.get(TopicPartition(topic, partition), 0) > offset:
                del self._aside[topic, partition, offset]

    def smaller(
        self, failure: BatchFailure, planned: PlannedBatch, inputs: Inputs, now_ms: float
    ) -> PlannedBatch:
        """What to run after a failure whose attempt is counted in ``planned``: the same again, or
        fewer records of it."""
        if failure.kind == "worker":
            self.memory = self.memory.doubted()
        column = failure.record if failure.kind == "column" else None
        if column is not None and (before := planned.until(column.place)) is not None:
            return before
        records = self._records(failure, planned)
        if records is None:
            return planned
        if failure.kind in _ONE_OF_THEM:
            self.search = self.search or RecordSearch(planned.records, now_ms)
            self.search.left = planned.records
        self.size = self.size.bounded(records)
        alone = failure.kind in ("column", "refused") and planned.smallest
        if alone and (parts := planned.parts(inputs)):
            # Of one that does not fail the records are committed: the next one's turn.
            self._part += 1
            return parts[self._part % len(parts)]
        ranges = plan_ranges(planned.ranges, self.size.records(self.bounds))
        return replace(planned, ranges=ranges)

    def _records(self, failure: BatchFailure, planned: PlannedBatch) -> int | None:
        """How many the next attempt takes; None: as many."""
        repeated = planned.attempt > 1 or self.search is not None
        if failure.kind in ("hang", "column", "refused") or (failure.kind == "worker" and repeated):
            fewer = self.size.shrunk(planned.records).bound
            return min(fewer, self._fitting(planned)) if failure.kind == "hang" else fewer
        if repeated and self.failed_after_ms > self.limits.target_ms:
            # Whatever the time-out was that it has met, half as much may not meet it.
            return max(1, min(planned.records // 2, self._fitting(planned)))
        return None

    def _fitting(self, planned: PlannedBatch) -> int:
        """How many would have ended in the time that a batch may take, had each cost the same."""
        share = self.limits.target_ms / max(self.failed_after_ms, 1.0)
        return max(1, int(planned.records * min(1.0, share)))
