"""Names of metrics: Kafka Streams' name if it has the metric."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import NamedTuple

CLIENT_STATE = "client-state"
REBALANCES = "rebalance-total"
ALIVE_STREAM_THREADS = "alive-stream-threads"
FAILED_STREAM_THREADS = "failed-stream-threads"
FAILING_STREAM_THREADS = "failing-stream-threads"
"""Whose batches fail at the moment and are run again."""

RECORDS_CONSUMED = "records-consumed-total"
RECORDS_PRODUCED = "records-produced-total"
CHANGELOG_RECORDS = "changelog-records-total"
DROPPED_RECORDS = "dropped-records-total"
DEAD_LETTERS = "dead-letters-total"
ENFORCED_PROCESSING = "enforced-processing-total"
"""How often a task went on though one of its inputs had nothing to read (``max.task.idle.ms``)."""
COMMITS = "commit-total"
COMMITS_ABORTED = "commit-aborted-total"
BATCHES_FAILED = "batch-failed-total"
WRITERS_FENCED = "writers-fenced-total"
"""Transactional ids of processes that were gone, with an open transaction that was ended here."""
RESTORED_RECORDS = "restore-total"
RESTORE_REMAINING = "restoring-remaining-records-total"
LAG = "records-lag"
"""NaN, as Kafka has it, while it is not known."""
STANDBY_TASKS = "standby-updating-tasks"
WARMUP_TASKS = "warmup-updating-tasks"
COPIES_LAG = "standby-update-remaining-records-total"
COPIES_RATE = "standby-update-rate"

# --- with labels: totals since the start ---------------------------------------------------------
PROCESSED = "process-total"
"""By thread, task and source node."""
BATCHES = "batch-total"
"""By thread."""
BATCH_SECONDS = "batch-seconds-total"
"""By thread and phase, as the worker of the last step measured it."""
BUSY_SECONDS = "busy-seconds-total"
"""By thread: batches from their plan to their end, those that were aborted included."""
DROPPED = "dropped-total"
"""By thread, node and reason."""
UNMATCHED_LATE = "late-unmatched-total"
"""By thread and node: outer rows emitted without a match, as window and grace were over."""
KEYS_CHECKED = "keys-checked-total"
"""By topic: keys of sources whose place was compared with that of the topic's partitioner."""
KEYS_MISPLACED = "keys-misplaced-total"
"""By topic: those of them that do not."""
LEFT_OUT = "left-out-total"
"""By the error's class, node and input topic: failed records that a handler left out; a sample."""
SENT = "sent-total"
"""By node and topic: records of an output."""
SENT_BYTES = "sent-bytes-total"
STORE_PUTS = "put-total"
"""By task and store."""
FAILED_BATCHES = "failed-batch-total"
"""By thread and kind of failure, or ``aborted``."""
REFUSED_COMMITS = "refused-commit-total"
"""By thread and cause: what the gate or the group said where a batch was aborted."""
CONNECTOR_ROWS = "connector-rows-total"
"""By connector: rows given to it in committed batches."""
CONNECTOR_BYTES = "connector-bytes-total"
CONNECTOR_SECONDS = "connector-seconds-total"
CONNECTOR_ERRORS = "connector-errors-total"
"""By connector: batches that it failed; the last error for people."""
CONNECTOR_FAILED = "connector-failed"
"""By connector: epoch ms of the last one. No total, but the present value."""
RENEWED_PRODUCERS = "renewed-producer-total"
"""By thread: tainted producers that asked for a new epoch (note 019)."""
LAST_COMMIT = "last-commit"
"""By thread: epoch ms. No total, but the present value."""

# --- with labels: of the last minute -------------------------------------------------------------
RECORD_LATENESS = "record-lateness"
"""ms, by thread and task."""
RECORD_LATENCY = "record-e2e-latency"
"""ms from a record's time to the commit of its batch, by task and source, or by sink."""
BATCH_LATENCY = "process-latency"
"""ms, by thread."""
COMMIT_LATENCY = "commit-latency"
"""ms of the commit in it, by thread."""

_COUNTED: Mapping[str, tuple[str, ...]] = {
    "records": (
        *(RECORDS_CONSUMED, RECORDS_PRODUCED, CHANGELOG_RECORDS, DROPPED_RECORDS, DEAD_LETTERS),
        *(RESTORED_RECORDS, RESTORE_REMAINING, LAG, COPIES_LAG),
    ),
    "records/s": (COPIES_RATE,),
    "batches": (COMMITS, COMMITS_ABORTED, BATCHES_FAILED),
    "tasks": (ENFORCED_PROCESSING, STANDBY_TASKS, WARMUP_TASKS),
    "transactions": (WRITERS_FENCED,),
    "rebalances": (REBALANCES,),
    "threads": (ALIVE_STREAM_THREADS, FAILED_STREAM_THREADS, FAILING_STREAM_THREADS),
}
UNITS = {name: unit for unit, names in _COUNTED.items() for name in names}


Labels = tuple[str, ...]
"""Values of the labels of one series, in the order that its name's text says."""


class Seen(NamedTuple):
    """Number of values, their sum, the smallest and the largest."""

    number: int
    total: float
    least: float
    most: float

    def also(self, other: Seen) -> Seen:
        return Seen(
            self.number + other.number,
            self.total + other.total,
            min(self.least, other.least),
            max(self.most, other.most),
        )

    @property
    def mean(self) -> float:
        """NaN of no value."""
        return self.total / self.number if self.number else math.nan


HALF_MS = 30_000.0
"""A value counts for one to two halves, as in Kafka's own windowed statistics."""


class RecentlySeen:
    """Values of the last 30 to 60 s. Pure: monotonic ms are passed in."""

    def __init__(self) -> None:
        self._half = -1
        self._halves: tuple[Seen | None, Seen | None] = (None, None)

    def add(self, seen: Seen, now_ms: float) -> None:
        self._turn(now_ms)
        before, now = self._halves
        self._halves = (before, seen if now is None else now.also(seen))

    def at(self, now_ms: float) -> Seen | None:
        self._turn(now_ms)
        before, now = self._halves
        return before if now is None else now if before is None else before.also(now)

    def _turn(self, now_ms: float) -> None:
        half = int(now_ms // HALF_MS)
        if half != self._half:
            self._halves = (self._halves[1] if half == self._half + 1 else None, None)
            self._half = half


class Metrics:
    """Counters and gauges by name, and by labels of a thread, task or node; of any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._series: dict[str, dict[Labels, float]] = {}
        self._recent: dict[str, dict[Labels, RecentlySeen]] = {}
        self._notes: dict[str, dict[Labels, str]] = {}

    def add(self, name: str, amount: float) -> None:
        with self._lock:
            self._values[name] = self._values.get(name, 0.0) + amount

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._values[name] = value

    def add_series(self, name: str, amounts: Mapping[Labels, float]) -> None:
        with self._lock:
            series = self._series.setdefault(name, {})
            for labels, amount in amounts.items():
                series[labels] = series.get(labels, 0.0) + amount

    def put_series(self, name: str, values: Mapping[Labels, float]) -> None:
        with self._lock:
            self._series.setdefault(name, {}).update(values)

    def note(self, name: str, texts: Mapping[Labels, str]) -> None:
        if texts:
            with self._lock:
                self._notes.setdefault(name, {}).update(texts)

    def notes(self, name: str) -> dict[Labels, str]:
        """The last text of each."""
        with self._lock:
            return dict(self._notes.get(name, {}))

    def snapshot(self) -> dict[str, float]:
        """All values without labels."""
        with self._lock:
            return dict(self._values)

    def series(self) -> dict[str, dict[Labels, float]]:
        """All values with labels."""
        with self._lock:
            return {name: dict(series) for name, series in self._series.items()}

    def saw(self, name: str, values: Mapping[Labels, Seen], now_ms: float) -> None:
        """Values of these labels were seen at this monotonic time."""
        with self._lock:
            recent = self._recent.setdefault(name, {})
            for labels, seen in values.items():
                recent.setdefault(labels, RecentlySeen()).add(seen, now_ms)

    def recent(self, name: str, now_ms: float) -> dict[Labels, Seen]:
        with self._lock:
            found = {labels: one.at(now_ms) for labels, one in self._recent.get(name, {}).items()}
        return {labels: seen for labels, seen in found.items() if seen is not None}
