"""What a user is told of restores (KIP-988 for standby tasks: `standby_listener`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from everflow.records import TaskId, TopicPartition


@dataclass(frozen=True, kw_only=True)
class RestoreProgress:
    """One store's restore, as far as it is; offsets of the changelog, seconds since it began."""

    task: TaskId
    store: str
    changelog: TopicPartition
    start: int
    end: int
    position: int
    records: int
    elapsed_s: float
    rebuild: bool = False
    """Whether the store was not trusted and begins empty; ``reason`` (`RestorePlan`) says why."""
    reason: str = ""

    @property
    def done(self) -> bool:
        """Whether the whole range is in the store."""
        return self.position >= self.end

    @property
    def fraction(self) -> float:
        """Share of the offsets that are done, 0 to 1."""
        return (
            1.0
            if self.end <= self.start
            else (self.position - self.start) / (self.end - self.start)
        )

    @property
    def rate(self) -> float:
        """Records a second so far; 0 before the first chunk."""
        return self.records / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Expected seconds to the end by the offsets done so far; None before the first chunk."""
        if self.done:
            return 0.0
        if self.position <= self.start or self.elapsed_s <= 0:
            return None
        return self.elapsed_s * (self.end - self.position) / (self.position - self.start)


class RestoreListener(Protocol):
    """Told in this order: start, batch (per chunk), then end or suspended (KIP-988 gave the last
    its name).

    Called on the restoring thread; return at once.
    """

    def restore_start(self, progress: RestoreProgress) -> None:
        """Restoring begins; ``position`` is the start."""

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        """A chunk of ``records`` records has been stored."""

    def restore_end(self, progress: RestoreProgress) -> None:
        """The store holds its changelog up to the end that `restore_start` told."""

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        """It ended early: the task went away, or reading failed. The store keeps what it has."""


class SilentListener:
    """A `RestoreListener` that does nothing."""

    def restore_start(self, progress: RestoreProgress) -> None:
        """Nothing."""

    def batch_restored(self, progress: RestoreProgress, records: int) -> None:
        """Nothing."""

    def restore_end(self, progress: RestoreProgress) -> None:
        """Nothing."""

    def restore_suspended(self, progress: RestoreProgress, reason: str) -> None:
        """Nothing."""
