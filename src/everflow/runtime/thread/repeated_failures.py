"""Judges a stream thread's failures: which may pass, which repeat, when it gives up. Pure.

Passing causes (a broker that is away, a rebalance, one killed worker) are retried under
``task.timeout.ms``. What repeats unchanged is told after the second time and ends the instance
after the third, once a few seconds have gone by.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from everflow.runtime.commit.batch import BatchFailure

TOLD_AFTER = 2
ENDS_AFTER = 3
ENDS_AFTER_MS = 2_000.0
"""A cause that nobody has thought of may be gone after a moment; three attempts may take less."""

_PASSING = frozenset({"migrated", "generation", "data-loss", "retriable"})
_AT_ONCE = frozenset({"record", "undecodable", "fatal", "spark-gone"})
_SMALLER = frozenset({"worker", "hang", "column", "refused"})
"""What fewer records may not meet."""
_CERTAIN = frozenset({"hang", "column", "damaged", "refused"})
"""What waiting does not change: it has waited long enough, or it computes the same again, or the
store has been rebuilt meanwhile."""
_ADDRESSES = re.compile(
    r"0x[0-9a-f]+|\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\d+", re.IGNORECASE
)

Sameness = tuple[object, ...]


def may_pass(failure: BatchFailure) -> bool:
    """Whether the same batch may succeed later with nobody doing anything about it."""
    return failure.kind in _PASSING


def sameness(failure: BatchFailure) -> Sameness:
    """Equal for failures of one cause: kind, place and text, whatever offsets, ids, ports, pids and
    times it names. A loop is met at any of its lines; whatever entry of a store cannot be read,
    rebuilding it has not helped."""
    if failure.entry is not None:
        return (failure.kind, failure.entry.store, failure.entry.task)
    line = None if failure.kind == "hang" else failure.line
    return (failure.kind, failure.record, line, failure.where, _ADDRESSES.sub("#", failure.error))


@dataclass(frozen=True)
class Trouble:
    """A stream thread that does not get on. ``since_ms``: wall clock of the first failure;
    ``count``: failures since then; ``text``: the last one in a line."""

    since_ms: int
    count: int
    text: str


@dataclass(frozen=True)
class RepeatedFailures:
    """Immutable; a new one begins with each progress. Times are monotonic ms."""

    began_ms: float | None = None
    seen: Mapping[Sameness, int] = field(default_factory=dict)

    def with_one(self, failure: BatchFailure, now_ms: float) -> RepeatedFailures:
        """With one more failure."""
        same = sameness(failure)
        counted = {**self.seen, same: self.seen.get(same, 0) + 1}
        return RepeatedFailures(now_ms if self.began_ms is None else self.began_ms, counted)

    def times(self, failure: BatchFailure) -> int:
        """How often this one was met."""
        return self.seen.get(sameness(failure), 0)

    def in_vain(self, failure: BatchFailure, now_ms: float, smallest: bool) -> bool:
        """Whether to give up after ``failure``, which has been counted. ``smallest``: the batch
        cannot have fewer records; until then a worker's death and a Column that fails are no reason
        to: the record is not known yet."""
        if failure.kind in _AT_ONCE:
            return True
        if (
            may_pass(failure)
            or self.began_ms is None
            or (failure.kind in _SMALLER and not smallest)
        ):
            return False
        if failure.kind == "column" and failure.record is not None:
            return True  # nothing is before it any more
        if failure.kind in _CERTAIN:
            return self.times(failure) >= TOLD_AFTER
        return self.times(failure) >= ENDS_AFTER and now_ms - self.began_ms >= ENDS_AFTER_MS

    def to_be_told(self, failure: BatchFailure) -> bool:
        """Whether ``failure`` has just repeated unchanged and will not pass."""
        return not may_pass(failure) and self.times(failure) == TOLD_AFTER
