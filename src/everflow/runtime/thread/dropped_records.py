"""Tells of records that an operator left out: at once, then once a minute. Pure.

Kafka Streams warns of every such record; of a micro-batch that may be a hundred thousand lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from everflow.moves import counted

TOLD_EVERY_MS = 60_000.0

WHY = {
    "late": "too late: the window's grace was over, by the newest record time its task had seen (docs/guide/time.md)",
    "null-key": "without a key",
    "null-value": "without a value",
}


@dataclass
class DroppedRecords:
    """Of one stream thread. Times are monotonic ms."""

    _untold: dict[tuple[str, str], int] = field(default_factory=dict)
    _told_ms: dict[tuple[str, str], float] = field(default_factory=dict)

    def lines(self, dropped: Mapping[str, Mapping[str, int]], now_ms: float) -> list[str]:
        """What is to be told after a batch that dropped these: node -> reason -> records."""
        for node, reasons in dropped.items():
            for reason, count in reasons.items():
                self._untold[node, reason] = self._untold.get((node, reason), 0) + count
        due = [key for key in self._untold if now_ms - self._told_ms.get(key, -TOLD_EVERY_MS) >= TOLD_EVERY_MS]
        self._told_ms.update(dict.fromkeys(due, now_ms))
        return [f"{node} dropped {counted(self._untold.pop((node, why)), 'record')} {WHY.get(why, why)}" for node, why in due]
