"""Batches of records by slot, and what joins them.

Results of functions are kept (`KnownResults`), so that none is called twice (note 041).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow.records import EdgeBatch, Int64, KeyPlaces, joined_headers, rises


@dataclass(kw_only=True)
class BatchInput:
    """Decoded records by slot, with the batch's rows in which they stand; metadata of all rows, as
    in an `EdgeBatch`."""

    batches: dict[int, EdgeBatch]
    rows: dict[int, Int64]
    source: np.ndarray
    partition: np.ndarray
    offset: Int64
    timestamp: Int64
    bytes: int = 0
    """Bytes of the records that were read from the log."""
    known: KnownResults | None = None
    """Earlier results of functions for these records; None if the batch is not computed again."""
    keys: Sequence[KeyPlaces] = ()
    """The partitions of these records' keys."""
    decode_taken: Callable[[BatchInput, npt.NDArray[np.bool_]], None] | None = None
    """Decodes into a copy of this the records that no slot has yet, once it is known which rows of
    the batch are taken (``stream.time=lowest``). Raises as decoding does."""


def _places(rows: Int64, count: int) -> pa.Array:
    index = np.zeros(count, np.int64)
    index[rows] = np.arange(len(rows))
    absent = np.ones(count, bool)
    absent[rows] = False
    return pa.array(index, pa.int64(), mask=absent)


def spread(column: pa.Array, rows: Int64, count: int) -> pa.Array:
    return column.take(_places(rows, count))


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The column in its edge's type: a session's types name its time zone."""
    return array if array.type.equals(kind) else array.cast(kind)


def readable(array: pa.Array) -> pa.Array:
    """Catalyst passes bytes as text unchecked; Arrow's check costs next to nothing."""
    if not pa.types.is_string(array.type):
        return array
    try:
        array.validate(full=True)
        return array
    except pa.ArrowInvalid:
        return as_text(array.cast(pa.binary()))


def as_text(raw: pa.Array) -> pa.Array:
    """Bytes as text; bad ones become U+FFFD, as in Java."""
    try:
        text = raw.view(pa.string())
        text.validate(full=True)
        return text
    except pa.ArrowInvalid:
        decoded = [
            None if text is None else text.decode("utf-8", "replace") for text in raw.to_pylist()
        ]
        return pa.array(decoded, pa.string())


def concat(batches: Sequence[EdgeBatch]) -> EdgeBatch:
    """All records of several batches of one type, in merge order (stable by ``seq``)."""
    if len(batches) == 1:
        return batches[0]
    joined = appended(batches)
    return in_order(joined) if sum(map(bool, map(len, batches))) > 1 else joined


def appended(batches: Sequence[EdgeBatch]) -> EdgeBatch:
    if len(batches) == 1:
        return batches[0]
    filled = [batch for batch in batches if len(batch)] or [batches[0]]
    if len(filled) == 1:
        return filled[0]
    olds = [batch.old for batch in filled if batch.old is not None]
    return EdgeBatch(
        key=pa.concat_arrays([_as(batch.key, filled[0].key.type) for batch in filled]),
        value=pa.concat_arrays([_as(batch.value, filled[0].value.type) for batch in filled]),
        timestamp=np.concatenate([batch.timestamp for batch in filled]),
        seq=np.concatenate([batch.seq for batch in filled]),
        source=np.concatenate([batch.source for batch in filled]),
        partition=np.concatenate([batch.partition for batch in filled]),
        offset=np.concatenate([batch.offset for batch in filled]),
        headers=joined_headers([(batch.headers, len(batch)) for batch in filled]),
        old=appended(olds) if len(olds) == len(filled) else None,
    )


def empty_like(key: pa.DataType, value: pa.DataType) -> EdgeBatch:
    none64, none32 = np.empty(0, np.int64), np.empty(0, np.int32)
    return EdgeBatch(
        key=pa.array([], key),
        value=pa.array([], value),
        timestamp=none64,
        seq=none64,
        source=none32,
        partition=none32,
        offset=none64,
    )


def in_order(batch: EdgeBatch) -> EdgeBatch:
    """The same records with ``seq`` never decreasing (stable)."""
    if rises(batch.seq):
        return batch
    return batch.take(np.argsort(batch.seq, kind="stable"))


class Made(NamedTuple):
    """Results of a function in columns; ``rows``: of which record each is."""

    rows: Int64
    key: pa.Array
    value: pa.Array


@dataclass(frozen=True)
class KnownResults:
    """Of one micro-batch, by the slots that get them; owned by the thread that computes it."""

    _by_slot: dict[int, tuple[EdgeBatch, Made]] = field(default_factory=dict)

    def keep(self, slot: int, batch: EdgeBatch, made: Made) -> None:
        self._by_slot[slot] = batch, made

    def of(self, slot: int, asked: EdgeBatch) -> tuple[Int64, Made]:
        """The rows of ``asked`` whose results are known, and these, with their rows in ``asked``. A
        record is identified by its offset and by what the function would see of it."""
        nothing: Int64 = np.empty(0, np.int64)
        none = nothing, Made(nothing, asked.key.slice(0, 0), asked.value.slice(0, 0))
        if slot not in self._by_slot:
            return none
        known, made = self._by_slot[slot]
        mine, theirs = _common(known, asked)
        if not len(mine) or len(mine) != len(theirs):
            return none
        before, now = known.take(mine), asked.take(theirs)
        for one, other in ((before.offset, now.offset), (before.partition, now.partition)):
            if not np.array_equal(one, other):
                return none
        if not (before.key.equals(now.key) and before.value.equals(now.value)):
            return none
        place = np.full(len(known), -1, np.int64)
        place[mine] = theirs
        rows = place[made.rows]
        kept = np.flatnonzero(rows >= 0)
        taken = pa.array(kept, pa.int64())
        return theirs, Made(rows[kept], made.key.take(taken), made.value.take(taken))


def joined(parts: list[Made]) -> Made:
    """``parts``: of different records."""
    rows = np.concatenate([one.rows for one in parts])
    order = np.argsort(rows, kind="stable")
    taken = pa.array(order, pa.int64())
    key = pa.concat_arrays([one.key for one in parts]).take(taken)
    value = pa.concat_arrays([one.value for one in parts]).take(taken)
    return Made(rows[order], key, value)


def _common(known: EdgeBatch, asked: EdgeBatch) -> tuple[Int64, Int64]:
    mine, theirs = np.zeros(len(known), bool), np.zeros(len(asked), bool)
    for source in np.unique(asked.source).tolist():
        for partition in np.unique(asked.partition).tolist():
            left = np.flatnonzero((known.source == source) & (known.partition == partition))
            right = np.flatnonzero((asked.source == source) & (asked.partition == partition))
            mine[left] = np.isin(known.offset[left], asked.offset[right])
            theirs[right] = np.isin(asked.offset[right], known.offset[left])
    return np.flatnonzero(mine), np.flatnonzero(theirs)
