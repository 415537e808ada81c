"""Counts what does not enter a global table, as stream threads count what they leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everflow import metrics as names
from everflow.metrics import Labels, Metrics
from everflow.moves import counted, moves

if TYPE_CHECKING:
    from everflow.runtime.worker.global_records import LeftOut

GLOBAL = "global"
"""In the place of a stream thread's number."""
_WHY = {
    "failed": "that failed, as their exception handler said",
    "null-key": "without a key",
}


def count_left_out(metrics: Metrics, left_out: LeftOut) -> None:
    """Add to the metrics, and tell people."""
    dropped: dict[Labels, float] = {
        (GLOBAL, node, reason): float(count)
        for node, reasons in left_out.dropped.items()
        for reason, count in reasons.items()
    }
    causes = {(one.exception, one.node, one.topic): one for one in left_out.causes}
    metrics.add(names.DEAD_LETTERS, left_out.dead_letters)
    metrics.add(names.DROPPED_RECORDS, sum(dropped.values()))
    metrics.add_series(names.DROPPED, dropped)
    metrics.add_series(names.LEFT_OUT, {cause: one.records for cause, one in causes.items()})
    metrics.note(names.LEFT_OUT, {cause: one.sample for cause, one in causes.items()})
    if left_out.lines:
        moves.warning("left out of a global table: %s", "; ".join(left_out.lines))
    for node, reasons in left_out.dropped.items():
        for reason, number in reasons.items():
            moves.warning("%s dropped %s %s", node, counted(number, "record"), _WHY[reason])
