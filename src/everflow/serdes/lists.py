"""Lists in the bytes of Java's ListSerializer (`Serdes.ListSerde`); numbers: 4 bytes, big endian.

A byte says how entries lie. 0, where all have as many bytes (Java's Short, Integer, Long, Float,
Double): how many are null, the place of each, the number of entries, the others' bytes. 1, for
others: the number of entries, and of each length (-1: null) and bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import (
    ByColumn,
    Serde,
    SerdeError,
    bytes_of,
    flat,
    gathered,
    numbers_as_bytes,
    ranges,
    starts,
    with_nulls_of,
)
from everflow.serdes.primitives import DoubleSerde, FloatSerde, IntegerSerde
from everflow.user_program import shown

_CONSTANT, _VARIABLE = 0, 1
_NULL = -1
_INT = 4
_NOTHING = pa.scalar(b"")
_WALKED_BELOW = 100
"""A step of `_Rows.variable` takes as long as about that many entries one by one."""

_WHOLE = "entries of the lengths that it says, and nothing behind them"
_INT_AT = struct.Struct(">i").unpack_from

_Bytes = npt.NDArray[np.uint8]


class _Entries(NamedTuple):
    """The entries of several lists: how many each list has, and where an entry's bytes begin and
    how many they are (-1: it is null)."""

    counts: Int64
    begins: Int64
    sizes: Int64

    def of(self, content: _Bytes) -> pa.Array:
        """The bytes of each entry, null where it is."""
        data = gathered(content, self.begins, np.maximum(self.sizes, 0))
        present = self.sizes >= 0
        return data if present.all() else pc.if_else(pa.array(present), data, None)


@dataclass(frozen=True, repr=False)
class ListSerde(ByColumn):
    """Lists of values of ``inner`` (Java's ListSerializer). Bytes after the last entry raise
    SerdeError."""

    inner: Serde
    kind: str = "list"

    @property
    def type(self) -> pa.DataType:
        return pa.list_(self.inner.type)

    @property
    def width(self) -> int | None:
        """Bytes of an entry, where all have as many, by the serdes of which Java knows that."""
        inner = self.inner
        return inner.width if isinstance(inner, IntegerSerde | FloatSerde | DoubleSerde) else None

    def encode(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, list | tuple | np.ndarray):
            raise SerdeError(f"expected a list, found {type(value).__name__} {shown(value)}")
        entries = [self.inner.encode(entry) for entry in value]
        if self.width is None:
            parts = [_int(_NULL) if one is None else _int(len(one)) + one for one in entries]
            return bytes((_VARIABLE,)) + _int(len(entries)) + b"".join(parts)
        nulls = [at for at, entry in enumerate(entries) if entry is None]
        places = b"".join(map(_int, nulls))
        present = b"".join(entry for entry in entries if entry is not None)
        return bytes((_CONSTANT,)) + _int(len(nulls)) + places + _int(len(entries)) + present

    def encode_array(self, values: pa.Array) -> pa.Array:
        values = flat(values, self.type)
        counts = pc.list_value_length(values).fill_null(0).to_numpy().astype(np.int64)
        entries = self.inner.encode_array(values.flatten())
        laid = _constant if self.width is not None else _variable
        return with_nulls_of(laid(counts, entries), values)

    def _decode_all(self, data: pa.Array) -> pa.Array:
        rows, width = _Rows.of(data), self.width
        forms = rows.content[rows.begins]
        known = forms == _VARIABLE if width is None else forms <= _VARIABLE
        rows.require(known, f"{'1' if width is None else '0 or 1'} as its first byte")
        if len(np.unique(forms)) > 1:  # a serializer that Java does not know wrote some of them
            return pa.concat_arrays([self._alone(data, index) for index in range(len(data))])
        entries = rows.variable() if width is None or forms.any() else rows.constant(width)
        offsets = starts(entries.counts)
        try:
            values = self.inner.decode_array(entries.of(rows.content))
        except SerdeError as error:
            if error.index is None:
                raise
            index = int(np.searchsorted(offsets, error.index, "right")) - 1
            place = error.index - int(offsets[index])
            raise SerdeError(f"entry {place} of a list: {error}", index=index) from error
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=self.type)

    def _alone(self, data: pa.Array, index: int) -> pa.Array:
        try:
            return self._decode_all(data[index : index + 1])
        except SerdeError as error:
            raise SerdeError(str(error), index=index) from error

    def __repr__(self) -> str:
        return f"list({self.inner!r})"


def _int(number: int) -> bytes:
    return struct.pack(">i", number)


def _sums(values: Int64, counts: Int64) -> Int64:
    """The sums of ``values`` of each of the lists, which have so many of them."""
    ends = starts(values)
    bounds = starts(counts)
    return ends[bounds[1:]] - ends[bounds[:-1]]


def _ints(numbers: Int64) -> pa.Array:
    return numbers_as_bytes(numbers, ">i4")


def _of_each(counts: Int64, parts: pa.Array) -> pa.Array:
    """The parts of each list, which has so many of them, one behind the other."""
    lists = pa.ListArray.from_arrays(pa.array(starts(counts), pa.int32()), parts)
    return pc.binary_join(lists, _NOTHING)


def _constant(counts: Int64, entries: pa.Array) -> pa.Array:
    absent = entries.is_null().to_numpy(zero_copy_only=False)
    places = _ints(ranges(np.zeros(len(counts), np.int64), counts))
    return pc.binary_join_element_wise(
        pa.scalar(bytes((_CONSTANT,))),
        _ints(_sums(absent.astype(np.int64), counts)),
        _of_each(counts, pc.if_else(pa.array(absent), places, _NOTHING)),
        _ints(counts),
        _of_each(counts, entries.fill_null(b"")),
        _NOTHING,
    )


def _variable(counts: Int64, entries: pa.Array) -> pa.Array:
    sizes = pc.binary_length(entries).fill_null(_NULL).to_numpy()
    parts = pc.binary_join_element_wise(_ints(sizes), entries.fill_null(b""), _NOTHING)
    return pc.binary_join_element_wise(
        pa.scalar(bytes((_VARIABLE,))), _ints(counts), _of_each(counts, parts), _NOTHING
    )


class _Rows(NamedTuple):
    """Lists in bytes: all of them, and where each begins and ends."""

    content: _Bytes
    begins: Int64
    ends: Int64

    @staticmethod
    def of(data: pa.Array) -> _Rows:
        """``data`` without nulls. SerdeError for rows that are too short for any list."""
        content, places = bytes_of(data)
        rows = _Rows(content, *(side.astype(np.int64) for side in (places[:-1], places[1:])))
        rows.require(rows.ends - rows.begins >= 1 + _INT, "5 bytes or more")
        return rows

    def constant(self, width: int) -> _Entries:
        """The entries of lists in form 0. SerdeError with the index of the first that is none."""
        nulls = self._ints(self.begins + 1)
        counted = self.begins + 1 + _INT + _INT * nulls
        self.require((nulls >= 0) & (counted + _INT <= self.ends), "room for its null entries")
        counts = self._ints(counted)
        taken = (counts - nulls) * width
        whole = (counts >= nulls) & (counted + _INT + taken == self.ends)
        self.require(whole, f"entries of {width} bytes")
        places = self._ints(ranges(self.begins + 1 + _INT, nulls * _INT)[::_INT])
        lists = np.repeat(np.arange(len(counts)), nulls)
        wrong = (places < 0) | (places >= counts[lists])
        wrong[1:] |= (places[1:] <= places[:-1]) & (lists[1:] == lists[:-1])
        self.require(_sums(wrong.astype(np.int64), nulls) == 0, "null entries in their order")
        present = np.ones(int(counts.sum()), bool)
        present[starts(counts)[lists] + places] = False
        begins = np.zeros(len(present), np.int64)
        begins[present] = ranges(counted + _INT, taken)[::width]
        return _Entries(counts, begins, np.where(present, width, _NULL))

    def variable(self) -> _Entries:
        """As `constant`, of form 1: the n-th entries of all lists at a time, or else one by one."""
        counts = self._ints(self.begins + 1)
        most = self.ends - self.begins - 1 - _INT
        self.require((counts >= 0) & (counts * _INT <= most), "room for its entries")
        firsts = starts(counts)
        if int(counts.max(initial=0)) * _WALKED_BELOW > firsts[-1]:
            return self._walked(counts)
        begins, sizes = np.zeros(firsts[-1], np.int64), np.zeros(firsts[-1], np.int64)
        at = self.begins + 1 + _INT
        for number in range(int(counts.max(initial=0))):
            left = np.flatnonzero(counts > number)
            self._require_of(left, at[left] + _INT <= self.ends[left])
            size = self._ints(at[left])
            begins[firsts[left] + number], sizes[firsts[left] + number] = at[left] + _INT, size
            at[left] += _INT + np.maximum(size, 0)
            self._require_of(left, (size >= _NULL) & (at[left] <= self.ends[left]))
        self.require(at == self.ends, _WHOLE)
        return _Entries(counts, begins, sizes)

    def _walked(self, counts: Int64) -> _Entries:
        begins, sizes, content = [], [], self.content.data
        rows = zip(self.begins.tolist(), self.ends.tolist(), counts.tolist(), strict=True)
        for index, (begin, end, count) in enumerate(rows):
            at = begin + 1 + _INT
            for _ in range(count):
                size = _INT_AT(content, at)[0] if at + _INT <= end else end
                begins.append(at + _INT)
                sizes.append(size)
                at += _INT + max(size, 0)
                if size < _NULL or at > end:
                    raise self._not(index, _WHOLE)
            if at != end:
                raise self._not(index, _WHOLE)
        return _Entries(counts, np.array(begins, np.int64), np.array(sizes, np.int64))

    def require(self, good: npt.NDArray[np.bool_], expected: str) -> None:
        bad = np.flatnonzero(~good)
        if len(bad):
            raise self._not(int(bad[0]), expected)

    def _require_of(self, which: Int64, good: npt.NDArray[np.bool_]) -> None:
        if not good.all():
            raise self._not(int(which[~good][0]), _WHOLE)

    def _not(self, index: int, expected: str) -> SerdeError:
        size = int(self.ends[index] - self.begins[index])
        return SerdeError(f"a list of {size} bytes, expected {expected}", index=index)

    def _ints(self, places: Int64) -> Int64:
        found: Int64 = self.content[places[:, None] + np.arange(_INT)].view(">i4").astype(np.int64)
        return found.reshape(-1)
