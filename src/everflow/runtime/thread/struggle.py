"""Keeps what is against a stream thread since it last got on: failures, pauses, when to give up."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field, replace

from everflow.clock import Clock, Deadline
from everflow.errors import TaskTimeoutError
from everflow.retry import FIRST_PAUSE_MS, LONGEST_PAUSE_MS
from everflow.runtime.commit.batch import BatchFailure
from everflow.runtime.thread.failure_text import ending, short, told
from everflow.runtime.thread.repeated_failures import RepeatedFailures, Trouble

log = logging.getLogger("everflow")


@dataclass(frozen=True)
class Recovering:
    """After a batch whose outcome is not known yet; since when, monotonic ms."""

    failure: BatchFailure
    since_ms: float


@dataclass(frozen=True)
class Hung:
    """A batch that did not end in time: when it began (monotonic), and how long it might take;
    ms."""

    since_ms: float
    limit_ms: float

    def told_of(self, failure: BatchFailure) -> BatchFailure:
        """How the batch failed, in place of how its workers died."""
        text = f"A batch has not ended within {self.limit_ms / 1000:g} s (max.poll.interval.ms)"
        return replace(failure, kind="hang", error=text)


@dataclass(kw_only=True)
class Struggle:
    """Of stream thread ``number``, which begins a new one with each progress, and alone changes it.
    ``limit_ms``: ``task.timeout.ms``."""

    number: int
    limit_ms: float
    clock: Clock
    trouble: Trouble | None = None
    """Any thread may read it."""
    _repeated: RepeatedFailures = field(default_factory=RepeatedFailures)
    _limit: Deadline | None = None
    _pause_ms: float = FIRST_PAUSE_MS

    def note(self, failure: BatchFailure, *, cut_off: bool) -> None:
        """Count the failure and tell of it: in a line, and in full once it has repeated.
        ``cut_off``: it was brought about here."""
        self._repeated = self._repeated.with_one(failure, self.clock.monotonic_ms())
        before = self.trouble or Trouble(self.clock.now_ms(), 0, "")
        self.trouble = Trouble(before.since_ms, before.count + 1, short(failure))
        if cut_off:
            log.info(
                "Stream thread %d: its batch was cut off by the end of the instance (%s)",
                self.number,
                short(failure),
            )
            return
        if self._repeated.to_be_told(failure):
            log.warning(
                "Stream thread %d: the same failure again, nothing has changed: %s",
                self.number,
                told(failure),
            )
        else:
            log.warning(
                "Stream thread %d: batch failed (%s): %s",
                self.number,
                failure.kind,
                short(failure),
            )
        log.debug("Stream thread %d: the whole cause: %s", self.number, failure.details)

    def require_hope(self, failure: BatchFailure, smallest: bool, records: str) -> None:
        """Raise the error that ends the instance, where another attempt would be in vain.
        ``smallest``: the batch cannot have fewer records; ``records`` names them where they are
        few."""
        if self.in_vain(failure, smallest):
            raise ending(failure, self._repeated.times(failure), records)

    def in_vain(self, failure: BatchFailure, smallest: bool) -> bool:
        """Whether another attempt would be in vain, after a failure that was noted."""
        return self._repeated.in_vain(failure, self.clock.monotonic_ms(), smallest)

    def require_time(self, cause: str) -> None:
        """There is to be another attempt: TaskTimeoutError where there have been attempts for too
        long. ``cause`` of the last."""
        if self._limit is None:
            self._limit = Deadline(self.clock, self.limit_ms)
        elif self._limit.expired():
            raise TaskTimeoutError(
                f"Stream thread {self.number} made no progress for "
                f"{self._limit.timeout_ms / 1000:g} s "
                f"(task.timeout.ms); the last failure: {cause}"
            )

    def pause(self, stop: threading.Event) -> None:
        """Before another attempt: longer each time."""
        self.clock.wait(stop, self._pause_ms)
        self._pause_ms = min(self._pause_ms * 2, LONGEST_PAUSE_MS)
