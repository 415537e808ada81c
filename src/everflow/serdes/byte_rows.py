"""What Avro and Protobuf share in columns: where each row is in the bytes, varints, and sizes in
front of what they count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import SerdeError, bytes_of, gathered, numbers_as_bytes, ranges, starts

Faults = dict[int, SerdeError]
Flags = npt.NDArray[np.bool_]
UInt64 = npt.NDArray[np.uint64]
NOTHING = pa.scalar(b"")
MOST_ROUNDS = 512
"""Entries of a list that are read one after the other; rows with more are read by themselves."""
_PAD = 32
"""Zeros behind the bytes: no number is read beyond them."""
_LAST_SHIFT = 63


@dataclass
class Rows:
    """Where each row is. ``row``: its number among those that are decoded, ``bad``: of those, which
    columns do not read. ``stops``: where a varint may end, found once for all rows."""

    content: npt.NDArray[np.uint8]
    at: Int64
    end: Int64
    row: Int64
    bad: Flags
    stops: list[Int64]

    @staticmethod
    def of(data: pa.Array) -> Rows:
        """``data``: ``pa.binary()`` without nulls."""
        content, places = bytes_of(data)
        first, last = int(places[0]), int(places[-1])
        padded = np.zeros(last - first + _PAD, np.uint8)
        padded[: last - first] = content[first:last]
        begins = places.astype(np.int64) - first
        count = len(data)
        numbers, bad = np.arange(count), np.zeros(count, bool)
        return Rows(padded, begins[:-1].copy(), begins[1:], numbers, bad, [])

    def __len__(self) -> int:
        return len(self.at)

    def some(self, rows: Int64) -> Rows:
        """Those ``rows``; `back` takes over how far they were read."""
        at, end, row = self.at[rows], self.end[rows], self.row[rows]
        return Rows(self.content, at, end, row, self.bad, self.stops)

    def back(self, some: Rows, rows: Int64) -> None:
        self.at[rows] = some.at

    def none(self) -> Rows:
        return self.some(np.zeros(0, np.int64))

    def mark(self, wrong: Flags) -> None:
        if wrong.any():
            self.bad[self.row[wrong]] = True
            self.at[wrong] = self.end[wrong]

    def moved(self, sizes: Int64 | int) -> Int64:
        """The places; the rows are then behind ``sizes`` bytes."""
        before = self.at
        self.at = before + sizes
        self.mark(self.at > self.end)
        return before

    def varints(self) -> UInt64:
        """Seven bits a byte, the lowest first; rows of more than 64 bits are marked."""
        first = self.content[self.at]
        value = first.astype(np.uint64)
        more = np.flatnonzero(first >= 0x80)
        if not len(more):
            self.moved(1)
            return value
        value &= np.uint64(0x7F)
        sizes = np.ones(len(self), np.int64)
        large = np.zeros(len(self), bool)
        for shift in range(7, _LAST_SHIFT + 1, 7):
            byte = self.content[self.at[more] + sizes[more]]
            value[more] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
            sizes[more] += 1
            if shift == _LAST_SHIFT:
                large[more[byte > 1]] = True
            more = more[byte >= 0x80]
            if not len(more):
                break
        self.moved(sizes)
        self.mark(large)
        return value

    def varint_ends(self) -> Int64:
        """Every place where a varint may end, in order."""
        if not self.stops:
            self.stops.append(np.flatnonzero(self.content < 0x80))
        return self.stops[0]

    def longs(self) -> Int64:
        """Varints, zigzag."""
        return signed(self.varints())

    def sizes(self, numbers: Int64) -> Int64:
        """``numbers`` of bytes, or of entries of at least a byte each, that are within the rows."""
        self.mark((numbers < 0) | (numbers > self.end - self.at))
        return np.where(self.bad[self.row], 0, numbers)

    def blobs(self, numbers: Int64) -> pa.Array:
        """So many bytes of each row."""
        sizes = self.sizes(numbers)
        begins = self.moved(sizes)
        return gathered(self.content, begins, sizes)

    def numbers(self, code: str) -> npt.NDArray[Any]:
        """As NumPy's ``code`` lays them."""
        width = np.dtype(code).itemsize
        begins = np.minimum(self.moved(width), len(self.content) - width)
        found = self.content[begins[:, None] + np.arange(width)]
        return np.ascontiguousarray(found).view(code).reshape(-1)


def signed(numbers: UInt64) -> Int64:
    """Of zigzag."""
    found: Int64 = (numbers >> np.uint64(1)).astype(np.int64)
    found ^= -(numbers & np.uint64(1)).astype(np.int64)
    return found


def zigzag(numbers: Int64) -> UInt64:
    """Small numbers for those that are near zero, on either side."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def varint_places(rows: Rows, begins: Int64, first: Int64, counts: Int64) -> Int64:
    """Where the varints begin that end at the stops ``first`` to ``first + counts`` of each row,
    the first of them at ``begins``."""
    stops = rows.varint_ends()
    stop = stops[np.minimum(ranges(first, counts), len(stops) - 1)]
    places = np.concatenate(([0], stop[:-1] + 1))[: len(stop)]
    there = counts > 0
    places[starts(counts)[:-1][there]] = begins[there]
    return places


def in_order(columns: Sequence[pa.Array], owners: Sequence[Int64], type_: pa.DataType) -> pa.Array:
    """The rows of ``columns`` by their owners."""
    if not columns:
        return pa.nulls(0, type_)
    if len(columns) == 1 and bool((np.diff(owners[0]) >= 0).all()):
        return columns[0]
    order = np.argsort(np.concatenate(owners), kind="stable")
    return pa.concat_arrays(columns).take(pa.array(order))


def as_map(lists: pa.ListArray, counts: Int64, rows: Rows) -> pa.MapArray:
    """Lists of key and value; rows with a key twice are marked."""
    keys, values = lists.values.flatten()
    codes = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    owner = np.repeat(np.arange(len(counts)), counts)
    order = np.lexsort((codes, owner))
    same = np.diff(codes[order]) == 0
    twice = np.zeros(len(rows), bool)
    twice[owner[order][1:][same & (np.diff(owner[order]) == 0)]] = True
    rows.mark(twice)
    return pa.MapArray.from_arrays(lists.offsets, keys, values)


def as_text(raw: pa.Array) -> tuple[pa.Array, Flags | None]:
    """Bytes as texts, null where they are none, and which those are."""
    try:
        return raw.cast(pa.string()), None
    except pa.ArrowInvalid:
        wrong = np.array([not _is_text(one) for one in raw.to_pylist()])
        return pc.if_else(pa.array(wrong), None, raw).cast(pa.string()), wrong


def _is_text(data: bytes | None) -> bool:
    try:
        return data is None or data.decode() is not None
    except UnicodeDecodeError:
        return False


# --- writing --------------------------------------------------------------------------------------


def varints(left: UInt64) -> pa.Array:
    """``pa.binary()``: seven bits a byte, the lowest first."""
    if not len(left) or int(left.max()) < 0x80:
        return numbers_as_bytes(left, "u1")
    width = max(1, -(-int(left.max()).bit_length() // 7))
    found = np.zeros((len(left), width), np.uint8)
    sizes = np.ones(len(left), np.int64)
    for at in range(width):
        found[:, at] = (left & np.uint64(0x7F)).astype(np.uint8)
        left = left >> np.uint64(7)
        more = left > 0
        sizes += more
        found[:, at] |= np.where(more, 0x80, 0).astype(np.uint8)
    inside = np.arange(width) < sizes[:, None]
    offsets = pa.py_buffer(starts(sizes).astype(np.int32))
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [None, offsets, pa.py_buffer(found[inside])]
    )


def lengths(data: pa.Array) -> Int64:
    found: Int64 = pc.binary_length(data).to_numpy().astype(np.int64)
    return found


def constant(data: bytes, count: int) -> pa.Array:
    return pa.array([data], pa.binary()).take(pa.array(np.zeros(count, np.int64)))
