"""What readers of exact ranges hand out."""

from __future__ import annotations

from dataclasses import dataclass

from everflow.records import Int64


@dataclass(frozen=True)
class LogChunk:
    """Committed records of one partition in log order. ``next_position`` is the offset to go on from.

    ``records``: how many the log has here; more than the keys where replaced ones were left out (`LogReader`, ``latest``).
    """

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps: Int64
    next_position: int
    records: int

    def __len__(self) -> int:
        return len(self.keys)
