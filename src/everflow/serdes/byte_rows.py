"""What Avro and Protobuf share in columns: where each row is in the bytes, varints, and sizes in
front of what they count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import (
    SerdeError,
    binary_from_matrix,
    bytes_of,
    gathered,
    numbers_as_rows,
    ranges,
    starts,
    words,
)

Faults = dict[int, SerdeError]
Flags = npt.NDArray[np.bool_]
UInt64 = npt.NDArray[np.uint64]
NOTHING = pa.scalar(b"")
MOST_ROUNDS = 512
"""Entries of a list that are read one after the other; rows with more are read by themselves."""
_PAD = 32
"""Zeros behind the bytes: no number is read beyond them."""
_LAST_SHIFT = 63
_FIRST_BITS = np.uint64(0x8080_8080_8080_8080)
"""Of each byte of a word: zero where a varint ends."""
_MOST_BYTES = 10
_GOING_ON = np.array(
    [[0x80 * (at + 1 < size) for at in range(_MOST_BYTES)] for size in range(_MOST_BYTES + 1)],
    np.uint8,
)
"""By the size of a varint: the bits of its bytes that say that a further one comes."""
_SIZES = np.uint64(0x0102_0304_0506_0708)
"""Times 1 << 8 * n: the byte on top is n + 1."""
_PACKED = tuple(
    (np.uint64(mask), np.uint64(mask << shift << shift // 7), np.uint64(shift // 7))
    for mask, shift in ((0x007F_007F_007F_007F, 7), (0x3FFF_0000_3FFF, 14), (0x0FFF_FFFF, 28))
)
"""Seven bits a byte -> one number: low halves, high halves, and by how many bits these lie apart;
of bytes, of pairs, of fours."""


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
        if not len(first) or int(first.max()) < 0x80:
            self.moved(1)
            return first.astype(np.uint64)
        word = words(self.content, "<u8")[self.at]
        stops = ~word & _FIRST_BITS
        stop = stops & -stops  # the lowest
        value: UInt64 = word & (stop - np.uint64(1)) & ~_FIRST_BITS
        for low, high, apart in _PACKED:
            value = (value & low) | (value & high) >> apart
        sizes = ((stop >> np.uint64(7)) * _SIZES >> np.uint64(56)).astype(np.int64)
        more = np.flatnonzero(stop == 0)  # nine bytes, or ten
        if not len(more):
            self.moved(sizes)
            return value
        sizes[more] = 8
        large = np.zeros(len(self), bool)
        for shift in range(56, _LAST_SHIFT + 1, 7):
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
        found: npt.NDArray[Any] = words(self.content, code)[begins]
        return found


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


Piece: TypeAlias = "pa.Array | npt.NDArray[np.uint8] | bytes"
"""A part of each row's bytes: a column of ``pa.binary()``, the rows of a matrix, or what is the
same for all."""


def joined(pieces: Sequence[Piece], count: int) -> pa.Array:
    """``pa.binary()``: the pieces of each of ``count`` rows, one behind the other. Each column
    costs Arrow 8 ns a row, so neighbours of a fixed width are laid side by side first."""
    columns: list[Any] = []
    there = (piece for piece in pieces if len(piece))
    for is_column, run in groupby(there, lambda piece: isinstance(piece, pa.Array)):
        some: list[Any] = list(run)
        columns += some if is_column else [_side_by_side(some, count)]
    if any(isinstance(one, pa.Array) for one in columns):
        return columns[0] if len(columns) == 1 else pc.binary_join_element_wise(*columns, NOTHING)
    return constant(columns[0].as_py() if columns else b"", count)


def _side_by_side(pieces: Sequence[npt.NDArray[np.uint8] | bytes], count: int) -> Any:
    """A column, or a scalar if all rows are the same."""
    if all(isinstance(piece, bytes) for piece in pieces):
        return pa.scalar(b"".join(pieces))  # type: ignore[arg-type]
    rows = [np.frombuffer(one, np.uint8) if isinstance(one, bytes) else one for one in pieces]
    if len(rows) == 1:
        return binary_from_matrix(rows[0])
    ends = np.cumsum([one.shape[-1] for one in rows]).tolist()
    both = np.empty((count, ends[-1]), np.uint8)
    for end, one in zip(ends, rows, strict=True):
        both[:, end - one.shape[-1] : end] = one
    return binary_from_matrix(both)


def varint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def varints(numbers: UInt64) -> Piece:
    """Seven bits a byte, the lowest first."""
    least, most = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    width = len(varint(most))
    if width == 1:
        return numbers_as_rows(numbers, "u1")
    same = len(varint(least)) == width
    sizes = np.full(len(numbers), width) if same else np.ones(len(numbers), np.int64)
    for at in range(1, 1 if same else width):
        sizes += numbers >= np.uint64(1 << 7 * at)
    found = numbers_as_rows(_spread(numbers), "<u8") if width <= 8 else _one_by_one(numbers, width)
    found[:, :width] |= _GOING_ON[width if same else sizes, :width]
    if same:
        return found[:, :width]
    return gathered(found.reshape(-1), np.arange(len(found)) * found.shape[1], sizes)


def _spread(numbers: UInt64) -> UInt64:
    """Seven bits a byte, of numbers of 56 bits at most."""
    for low, high, apart in reversed(_PACKED):
        numbers = (numbers & low) | (numbers << apart & high)
    return numbers


def _one_by_one(left: UInt64, width: int) -> npt.NDArray[np.uint8]:
    found = np.empty((len(left), width), np.uint8)
    for at in range(width):
        found[:, at] = left & np.uint64(0x7F)
        left = left >> np.uint64(7)
    return found


def lengths(data: pa.Array) -> Int64:
    found: Int64 = pc.binary_length(data).to_numpy().astype(np.int64)
    return found


def constant(data: bytes, count: int) -> pa.Array:
    return pa.array([data], pa.binary()).take(pa.array(np.zeros(count, np.int64)))
