"""Reads a split in pieces, over several micro-batches: from any row on, as often as it is asked.

What a batch had is kept until a later one asks for rows behind it. So a batch that is run again
gets the same rows without a second reading; a process that begins in the middle of a split reads
it from its begin, and skips.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from everflow.sources.splits import Source, SplitError

PIECE_ROWS = 65_536
PIECE_BYTES = 16 << 20
PIECE_S = 1.0
"""What all tasks of a thread read of their splits for one micro-batch: about so many rows, bytes
and seconds, and at least what a source gives at once for each task."""
UNUSED_S = 60.0
"""So long a split stays open whose task has not come again: another process has it, perhaps."""


class Piece(NamedTuple):
    """Rows of a split. ``over``: it has no more."""

    rows: list[pa.RecordBatch]
    length: int
    over: bool


class Place(NamedTuple):
    """``partition``: of the task; ``offset``: of the split's record; ``row``: the first wanted."""

    partition: int
    offset: int
    row: int


@dataclass(kw_only=True)
class OpenSplit:
    """A split that is read. ``begin``: the number of the first row that is held."""

    offset: int
    data: bytes
    rows: Iterator[pa.RecordBatch]
    begin: int = 0
    held: list[pa.RecordBatch] = field(default_factory=list)
    ended: bool = False
    used_s: float = 0.0

    def take(self, start: int, most: int, most_bytes: int, timely: Callable[[], bool]) -> Piece:
        """About ``most`` rows from ``start`` on. Raises what the source raises, SplitError if the
        split has not so many rows any more."""
        self._drop(start)
        count = sum(map(len, self.held))
        size = sum(one.nbytes for one in self.held)
        while not self.ended:
            ahead = self.begin + count - start
            if ahead > 0 and (ahead >= most or size >= most_bytes or not timely()):
                break
            batch = next(self.rows, None)
            if batch is None:
                self.ended = True
            elif len(batch):
                self.held.append(batch)
                count, size = count + len(batch), size + batch.nbytes
                if self.begin + len(self.held[0]) <= start:
                    self._drop(start)
                    count, size = sum(map(len, self.held)), sum(one.nbytes for one in self.held)
        if self.begin + count < start:
            raise SplitError(
                f"it has {self.begin + count} rows, and {start} were read before: a split gives "
                f"the same rows in the same order each time"
            )
        found = self._from(start - self.begin, most)
        taken = sum(map(len, found))
        return Piece(found, taken, self.ended and start + taken >= self.begin + count)

    def close(self) -> None:
        """End a generator; idempotent."""
        close = getattr(self.rows, "close", None)
        if close is not None:
            close()
        self.held.clear()

    def _drop(self, start: int) -> None:
        while self.held and self.begin + len(self.held[0]) <= start:
            self.begin += len(self.held.pop(0))

    def _from(self, first: int, most: int) -> list[pa.RecordBatch]:
        found = []
        for batch in self.held:
            part = batch.slice(first, most)
            first, most = max(0, first - len(batch)), most - len(part)
            if len(part):
                found.append(part)
            if most <= 0:
                break
        return found


@dataclass
class OpenSplits:
    """The splits that a process reads, one for each task of an operator; for one thread. A copy by
    pickle has none."""

    monotonic: Callable[[], float] = time.monotonic
    _open: dict[int, OpenSplit] = field(default_factory=dict)

    def __reduce__(self) -> tuple[type[OpenSplits], tuple[Callable[[], float]]]:
        return OpenSplits, (self.monotonic,)

    def begin(self) -> float:
        """For a batch: closes what was not used for long; until when it may read."""
        now_s = self.monotonic()
        for partition, one in list(self._open.items()):
            if now_s - one.used_s > UNUSED_S:
                self.close(partition)
        return now_s + PIECE_S

    def take(
        self, source: Source, place: Place, data: bytes, most: int, most_bytes: int, until_s: float
    ) -> Piece:
        """The next rows of a split at a ``place``. Raises as `OpenSplit.take`; the split is then
        closed, and the next call opens it again."""
        partition, offset, start = place
        found = self._open.get(partition)
        if found is None or (found.offset, found.data) != (offset, data) or start < found.begin:
            self.close(partition)
            found = OpenSplit(offset=offset, data=data, rows=iter(source.read(data)))
            self._open[partition] = found
        found.used_s = self.monotonic()
        try:
            return found.take(start, most, most_bytes, lambda: self.monotonic() < until_s)
        except BaseException:
            self.close(partition)
            raise

    def close(self, partition: int) -> None:
        """Forget the split of a task; idempotent."""
        found = self._open.pop(partition, None)
        if found is not None:
            found.close()
