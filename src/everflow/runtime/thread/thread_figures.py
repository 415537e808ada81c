"""Keeps what micro-batches tell for `/metrics`. Of one stream thread, which alone calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from everflow import metrics as names
from everflow.clock import Clock
from everflow.metrics import Labels, Metrics, Seen
from everflow.records import LATE_UNMATCHED
from everflow.runtime.commit.batch import RENEWED, BatchResult

COMMIT_PHASES = ("gate", "offsets", "delivery", "commit", "apply")
ABORTED = "aborted"
GATE = "gate"
"""The phase that a batch without a commit does not have."""


@dataclass
class ThreadFigures:
    """``number``: of the thread, from 0; ``began_ms``: monotonic start of the batch in flight."""

    metrics: Metrics
    clock: Clock
    number: int
    began_ms: float = 0.0

    def committed(self, result: BatchResult) -> None:
        """The batch in flight was."""
        thread, now_ms = str(self.number), self.clock.monotonic_ms()
        elapsed_ms = self._took()
        self.metrics.add_series(names.BATCHES, {(thread,): 1})
        phases = _phases(result.timings, elapsed_ms)
        self.metrics.add_series(
            names.BATCH_SECONDS, {(thread, phase): ms / 1000 for phase, ms in phases.items()}
        )
        commit_ms = sum(phases.get(phase, 0.0) for phase in COMMIT_PHASES)
        self.metrics.saw(names.BATCH_LATENCY, {(thread,): _seen(elapsed_ms)}, now_ms)
        self.metrics.saw(names.COMMIT_LATENCY, {(thread,): _seen(commit_ms)}, now_ms)
        renewed = result.counts.get(RENEWED, 0)
        self.metrics.add_series(names.RENEWED_PRODUCERS, {(thread,): renewed} if renewed else {})
        if GATE in result.timings:
            self.metrics.put_series(names.LAST_COMMIT, {(thread,): self.clock.now_ms()})
        self._records(result, now_ms)

    def again(self, kind: str, reason: str) -> None:
        """It failed (the kind of failure), or was `ABORTED` for this reason: it runs again."""
        self._took()
        self.metrics.add_series(names.FAILED_BATCHES, {(str(self.number), kind): 1})
        if kind == ABORTED:
            cause = reason.partition(":")[0]
            self.metrics.add_series(names.REFUSED_COMMITS, {(str(self.number), cause): 1})

    def _took(self) -> float:
        elapsed_ms = self.clock.monotonic_ms() - self.began_ms
        self.metrics.add_series(names.BUSY_SECONDS, {(str(self.number),): elapsed_ms / 1000})
        return elapsed_ms

    def _records(self, result: BatchResult, now_ms: float) -> None:
        thread, wall_ms = str(self.number), self.clock.now_ms()
        ages, sent, puts, letters, keys = result.figures
        read = [one for one in ages if one.task]
        add, saw = self.metrics.add_series, self.metrics.saw
        add(names.PROCESSED, _sums(((thread, one.task, one.node), one.records) for one in read))
        add(names.SENT, _sums(((one.node, one.topic), one.records) for one in sent))
        add(names.SENT_BYTES, _sums(((one.node, one.topic), one.bytes) for one in sent))
        add(names.KEYS_CHECKED, _sums(((one.topic,), one.checked) for one in keys))
        add(names.KEYS_MISPLACED, _sums(((one.topic,), one.misplaced) for one in keys))
        add(names.STORE_PUTS, _sums(((one.task, one.store), one.changes) for one in puts))
        counted = [
            (node, reason, count)
            for node, reasons in result.dropped.items()
            for reason, count in reasons.items()
        ]
        dropped = (
            ((thread, node, reason), count)
            for node, reason, count in counted
            if reason != LATE_UNMATCHED
        )
        add(names.DROPPED, _sums(dropped))
        unmatched = (
            ((thread, node), count) for node, reason, count in counted if reason == LATE_UNMATCHED
        )
        add(names.UNMATCHED_LATE, _sums(unmatched))
        causes = {(one.exception, one.node, one.topic): one for one in letters}
        add(names.LEFT_OUT, {cause: one.records for cause, one in causes.items()})
        self.metrics.note(names.LEFT_OUT, {cause: one.sample for cause, one in causes.items()})
        latency = (((one.task, one.node), one.latency_ms(wall_ms)) for one in ages)
        saw(names.RECORD_LATENCY, _all(latency), now_ms)
        lateness = (((thread, one.task), one.lateness_ms) for one in read)
        saw(names.RECORD_LATENESS, _all(lateness), now_ms)


def _phases(timings: Mapping[str, float], elapsed_ms: float) -> dict[str, float]:
    """ms by phase. Columns of all levels are one; what nobody measured is the plan's: all in the
    driver, and the way there and back."""
    found: dict[str, float] = {}
    for name, ms in timings.items():
        if name != "began":
            phase = name.partition(" ")[0]
            found[phase] = found.get(phase, 0.0) + ms
    found["plan"] = max(0.0, elapsed_ms - sum(found.values()))
    return found


def _seen(value: float) -> Seen:
    return Seen(1, value, value, value)


def _sums(amounts: Iterable[tuple[Labels, float]]) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for labels, amount in amounts:
        found[labels] = found.get(labels, 0.0) + amount
    return found


def _all(values: Iterable[tuple[Labels, Seen]]) -> dict[Labels, Seen]:
    found: dict[Labels, Seen] = {}
    for labels, seen in values:
        found[labels] = found[labels].also(seen) if labels in found else seen
    return found
