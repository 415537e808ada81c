"""Names of the metrics, as in Kafka Streams where it has them (D11), and a register of values."""

from __future__ import annotations

import threading
from collections.abc import Mapping

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
RESTORED_RECORDS = "restore-total"
RESTORE_REMAINING = "restoring-remaining-records-total"
LAG = "records-lag"
"""NaN, as Kafka has it, while it is not known."""
STANDBY_TASKS = "standby-updating-tasks"
WARMUP_TASKS = "warmup-updating-tasks"
COPIES_LAG = "standby-update-remaining-records-total"
COPIES_RATE = "standby-update-rate"

UNITS: Mapping[str, str] = {
    RECORDS_CONSUMED: "records",
    RECORDS_PRODUCED: "records",
    CHANGELOG_RECORDS: "records",
    DROPPED_RECORDS: "records",
    DEAD_LETTERS: "records",
    ENFORCED_PROCESSING: "tasks",
    COMMITS: "batches",
    COMMITS_ABORTED: "batches",
    BATCHES_FAILED: "batches",
    RESTORED_RECORDS: "records",
    RESTORE_REMAINING: "records",
    LAG: "records",
    STANDBY_TASKS: "tasks",
    WARMUP_TASKS: "tasks",
    COPIES_LAG: "records",
    COPIES_RATE: "records/s",
    REBALANCES: "rebalances",
    ALIVE_STREAM_THREADS: "threads",
    FAILED_STREAM_THREADS: "threads",
    FAILING_STREAM_THREADS: "threads",
}


class Metrics:
    """Counters and gauges by name; any thread may write and read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}

    def add(self, name: str, amount: float) -> None:
        """Add to a counter (starts at 0)."""
        with self._lock:
            self._values[name] = self._values.get(name, 0.0) + amount

    def set(self, name: str, value: float) -> None:
        with self._lock:
            self._values[name] = value

    def snapshot(self) -> dict[str, float]:
        """All values now."""
        with self._lock:
            return dict(self._values)
