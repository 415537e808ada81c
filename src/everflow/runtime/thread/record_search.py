"""Tells how the look for a record that fails its batch gets on. Pure.

Batches get smaller until it is alone. Times are monotonic ms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from everflow.moves import some
from everflow.records import TopicPartition
from everflow.runtime.thread.batching import PlannedBatch

TOLD_EVERY_MS = 5_000.0


@dataclass
class RecordSearch:
    """``ends``: of the batch that failed last, among whose records it is; up to there batches do
    not grow again."""

    ends: Mapping[TopicPartition, int]
    began_ms: float
    _told_ms: float = 0.0

    def __post_init__(self) -> None:
        self._told_ms = self.began_ms

    def over(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Whether all those records are behind ``positions``."""
        return all(positions.get(tp, end) >= end for tp, end in self.ends.items())

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
