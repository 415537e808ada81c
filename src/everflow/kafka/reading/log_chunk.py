"""What taps hand out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from everflow.kafka.reading.log_columns import LogColumns
from everflow.records import Int64

Key = bytes


class Records(Protocol):
    """Records in log order as they came. Each call makes its lists or columns anew."""

    @property
    def timestamps(self) -> Int64: ...
    @property
    def sizes(self) -> Int64: ...
    def keys(self) -> list[bytes | None]: ...
    def values(self) -> list[bytes | None]: ...
    def arrow(self, headers: bool) -> LogColumns: ...
    def latest(self) -> Records: ...


@dataclass(frozen=True)
class LogChunk:
    """Committed records of one partition in log order. ``next_position`` is the offset to go on
    from; before it, no record is left out. ``records``: how many the log has here; more than the
    keys behind `latest`."""

    held: Records
    next_position: int
    records: int

    def __len__(self) -> int:
        return len(self.held.timestamps)

    @property
    def keys(self) -> list[bytes | None]:
        """The keys, None for null."""
        return self.held.keys()

    @property
    def values(self) -> list[bytes | None]:
        """The values, None for null."""
        return self.held.values()

    @property
    def timestamps(self) -> Int64:
        """Times in ms."""
        return self.held.timestamps

    @property
    def bytes(self) -> int:
        """Bytes of keys and values."""
        return int(self.held.sizes.sum())

    @property
    def offsets(self) -> Int64:
        """Where the records are."""
        return self.held.arrow(False).offsets

    def offset_of(self, key: Key) -> int | None:
        """Of the last record that has this key."""
        found = self.held.arrow(False)
        rows = [row for row, one in enumerate(found.keys.to_pylist()) if one == key]
        return int(found.offsets[rows[-1]]) if rows else None

    def latest(self) -> LogChunk:
        """Without records that a later one of the same key replaces, as far as that is cheap to
        see: for who folds them anyhow. The record of the latest time stays."""
        return replace(self, held=self.held.latest())
