"""What readers of exact ranges hand out, and the error they share."""

from __future__ import annotations

from dataclasses import dataclass

from everflow.errors import RetriableError
from everflow.records import Int64


class LogStartMovedError(RetriableError):
    """Records before the log's start were asked for (deleted or compacted away): the store must be rebuilt (D5)."""

    code = "EF-LOG-START-MOVED"


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
