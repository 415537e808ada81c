"""What taps hand out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pyarrow as pa

from everflow.errors import EverflowError
from everflow.kafka.reading.log_columns import LogColumns
from everflow.kafka.reading.record_columns import CorruptBatchError
from everflow.records import Int64, listed_headers

Key = bytes


class Records(Protocol):
    """Records in log order as they came. Each call makes its lists or columns anew."""

    @property
    def offsets(self) -> Int64: ...
    @property
    def timestamps(self) -> Int64: ...
    @property
    def sizes(self) -> Int64: ...
    def of(self, chosen: slice) -> Records: ...
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
        return self.held.offsets

    def columns(self, headers: bool) -> LogColumns:
        """The records in Arrow columns, with their headers if asked for. A record that cannot be
        read is `unread`, and keeps nobody else from being read. Raises RetriableError where the
        brokers have to be asked for headers and do not answer."""
        return _readable(self.held, len(self), headers)

    def rows(self, headers: bool) -> Iterator[tuple[Any, ...]]:
        """As `columns`, record by record: offset, time (ms), key, value, headers."""
        found = self.columns(headers)
        return zip(
            found.offsets.tolist(),
            found.timestamps.tolist(),
            found.keys.to_pylist(),
            found.values.to_pylist(),
            listed_headers(found.headers, len(found)),
            strict=True,
        )

    def offset_of(self, key: Key) -> int | None:
        """Of the last record that has this key."""
        found = self.held.arrow(False)
        rows = [row for row, one in enumerate(found.keys.to_pylist()) if one == key]
        return int(found.offsets[rows[-1]]) if rows else None

    def latest(self) -> LogChunk:
        """Without records that a later one of the same key replaces, as far as that is cheap to
        see: for who folds them anyhow. The record of the latest time stays."""
        return replace(self, held=self.held.latest())


def _readable(held: Records, count: int, headers: bool) -> LogColumns:
    """All at once where that is possible; else halved down to the record that is in the way."""
    try:
        return held.arrow(headers)
    except EverflowError as failure:
        if not isinstance(failure, CorruptBatchError):  # not of a record
            raise
        why: Exception = failure
    except Exception as failure:
        why = failure
    if count > 1:
        half = count // 2
        return LogColumns.concat(
            [
                _readable(held.of(slice(0, half)), half, headers),
                _readable(held.of(slice(half, count)), count - half, headers),
            ]
        )
    if headers:
        found = _readable(held, count, False)
        return replace(found, unread={0: why})
    nothing = pa.nulls(1, pa.binary())
    return LogColumns(
        keys=nothing,
        values=nothing,
        offsets=held.offsets,
        timestamps=held.timestamps,
        headers=None,
        unread={0: why},
    )
