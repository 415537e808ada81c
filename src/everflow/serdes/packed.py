"""The packed layout: a struct in few bytes, written and read a column at a time.

Layout of a value with n fields, all numbers big endian::

    null bits   ceil(n / 8) bytes; field i is null if bit (i % 8) of byte (i // 8) is set
    fields      in schema order, each with a fixed width:
                boolean 1, int8/16/32/64 1/2/4/8, float 4, double 8, date 4, timestamp 8, decimal
                16; string, binary and all others 4 = the length of their bytes in the tail; zero
                where null
    tail        the bytes of those last fields, in schema order: UTF-8, raw bytes, or JSON
                (lists, maps, structs)
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import (
    ByColumn,
    Serde,
    SerdeError,
    binary_from_matrix,
    bytes_of,
    decode_one,
    flat,
    matrix_from_binary,
    slices,
    with_nulls_of,
)
from everflow.serdes.json_serde import JsonSerde
from everflow.serdes.primitives import BytesSerde, StringSerde
from everflow.serdes.schema import storable

_FIXED = {
    pa.bool_(): "?",
    pa.int8(): "b",
    pa.int16(): "h",
    pa.int32(): "i",
    pa.int64(): "q",
    pa.float32(): "f",
    pa.float64(): "d",
}
"""As `struct` writes them."""
_TAILS = {pa.string(): "i", pa.binary(): "i"}
"""Their lengths; their bytes follow."""
_CODES = {**_FIXED, **_TAILS}


@lru_cache(maxsize=256)
def packed_reader(serde: Serde) -> Callable[[bytes], Any] | None:
    """Reads a value of the packed ``serde`` as its columns do; None: it has fields that only those
    read."""
    names = [field.name for field in serde.type]
    types = [field.type for field in serde.type]
    if len(set(names)) < len(names) or not all(one in _CODES for one in types):
        return None
    null_bytes = (len(types) + 7) // 8
    fixed = struct.Struct(f">{null_bytes}s{''.join(_CODES[one] for one in types)}")
    tails = [(at, pa.types.is_string(one)) for at, one in enumerate(types) if one in _TAILS]
    no_nulls = bytes(null_bytes)

    def read(data: bytes) -> Any:
        end = fixed.size
        if len(data) < end:
            return decode_one(serde, data)
        nulls, *values = fixed.unpack_from(data)
        for at, text in tails:
            begin, end = end, end + values[at]
            if not begin <= end <= len(data):
                return decode_one(serde, data)
            values[at] = data[begin:end]
            if text:
                try:
                    values[at] = values[at].decode()
                except UnicodeDecodeError:
                    return decode_one(serde, data)
        if end != len(data):
            return decode_one(serde, data)
        if nulls != no_nulls:
            for at in range(len(values)):
                if nulls[at // 8] >> (at % 8) & 1:
                    values[at] = None
        return dict(zip(names, values, strict=True))

    return read


_Bytes = npt.NDArray[np.uint8]
_NULLS = "nulls"


@dataclass(frozen=True, repr=False)
class PackedSerde(ByColumn):
    """Values of ``type``, a struct with at least one field, in everflow's packed binary format."""

    type: pa.DataType
    kind: str = "packed"

    def __post_init__(self) -> None:
        if not pa.types.is_struct(self.type) or self.type.num_fields == 0:
            raise SerdeError(f"the packed layout takes a struct with fields, found {self.type}")
        storable(self.type)

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        read = packed_reader(self)
        return decode_one(self, data) if read is None else read(data)

    def value_reader(self) -> Callable[[bytes], Any] | None:
        return packed_reader(self)

    def encode_array(self, values: pa.Array) -> pa.Array:
        values = flat(values, self.type)
        rows = np.zeros(len(values), _layout(self.type))
        tails: list[pa.Array] = []
        for index, column in enumerate(values.flatten()):
            if column.null_count:
                nulls = column.is_null().to_numpy(zero_copy_only=False)
                rows[_NULLS][:, index // 8] |= nulls.astype(np.uint8) << np.uint8(index % 8)
            if _fixed(column.type) is None:
                tails.append(_tail_serde(column.type).encode_array(column).fill_null(b""))
                rows[str(index)] = pc.binary_length(tails[-1]).to_numpy()
            else:
                rows[str(index)] = _numbers(column)
        packed = binary_from_matrix(rows.view(np.uint8).reshape(len(rows), rows.itemsize))
        if tails:
            packed = pc.binary_join_element_wise(packed, *tails, pa.scalar(b""))
        return with_nulls_of(packed, values)

    def _decode_all(self, data: pa.Array) -> pa.Array:
        layout = _layout(self.type)
        width = layout.itemsize
        _, places = bytes_of(data)
        lengths = (places[1:] - places[:-1]).astype(np.int64)
        _check(lengths >= width, lengths, f"at least {width}")
        heads = data if (lengths == width).all() else pc.binary_slice(data, 0, width)
        rows = np.ascontiguousarray(matrix_from_binary(heads, width)).view(layout).reshape(-1)
        whole = not rows[_NULLS].any()
        columns: list[pa.Array] = []
        taken = np.full(len(data), width, np.int64)
        for index, field in enumerate(self.type):
            numbers = rows[str(index)]
            in_tail = _fixed(field.type) is None
            if in_tail:
                size = numbers.astype(np.int64)
                _check(
                    (size >= 0) & (taken + size <= lengths),
                    lengths,
                    f"a tail that holds field {field.name!r}",
                )
                column = slices(data, taken, size)
                taken = taken + size
            else:
                column = _from_numbers(numbers, field.type)
            if not whole:
                column = with_nulls_of(column, _mask(rows[_NULLS], index))
            columns.append(_from_tail(column, field) if in_tail else column)
        _check(taken == lengths, lengths, "no bytes after the last field")
        return pa.StructArray.from_arrays(columns, fields=list(self.type))

    def __repr__(self) -> str:
        return f"packed({self.type})"


@lru_cache(maxsize=256)
def _layout(type_: pa.DataType) -> np.dtype[np.void]:
    """What stands before the tail: null bits, and the fields by number."""
    fields = [(str(at), _fixed(field.type) or ">i4") for at, field in enumerate(type_)]
    return np.dtype([(_NULLS, f"({(len(fields) + 7) // 8},)u1"), *fields])


def _fixed(type_: pa.DataType) -> str | None:
    """A field of fixed width, as NumPy writes it; None if it lives in the tail."""
    if pa.types.is_boolean(type_):
        return "u1"
    if pa.types.is_decimal128(type_):
        return "(16,)u1"
    if pa.types.is_float32(type_) or pa.types.is_float64(type_):
        return f">f{type_.bit_width // 8}"
    if (
        pa.types.is_signed_integer(type_)
        or pa.types.is_date32(type_)
        or pa.types.is_timestamp(type_)
    ):
        return f">i{type_.bit_width // 8}"
    return None


def _tail_serde(type_: pa.DataType) -> StringSerde | BytesSerde | JsonSerde:
    if pa.types.is_string(type_):
        return StringSerde()
    if pa.types.is_binary(type_):
        return BytesSerde()
    return JsonSerde(type_)


def _from_tail(tail: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return _tail_serde(field.type).decode_array(tail)
    except SerdeError as error:
        raise SerdeError(f"the field {field.name}: {error}", index=error.index) from error


def _numbers(column: pa.Array) -> npt.NDArray[Any]:
    """The values of a field of fixed width, zero where it is null."""
    if pa.types.is_decimal128(column.type):
        if column.null_count:  # the bytes behind a null are undefined, the layout says zero
            column = pc.fill_null(column, pa.scalar(decimal.Decimal(0), column.type))
        raw = np.frombuffer(column.buffers()[1], np.uint8)
        rows = raw[column.offset * 16 : (column.offset + len(column)) * 16].reshape(-1, 16)
        return rows[:, ::-1]
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int64() if column.type.bit_width == 64 else pa.int32())
    if column.null_count:
        zero = False if pa.types.is_boolean(column.type) else 0
        column = column.fill_null(pa.scalar(zero, column.type))
    found: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found


def _from_numbers(numbers: npt.NDArray[Any], type_: pa.DataType) -> pa.Array:
    if pa.types.is_boolean(type_):
        return pa.array(numbers != 0, pa.bool_())
    if pa.types.is_decimal128(type_):
        little = np.ascontiguousarray(numbers[:, ::-1]).reshape(-1)
        return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(little)])
    found = pa.array(numbers.astype(numbers.dtype.newbyteorder("=")))
    return found if found.type == type_ else found.view(type_)


def _mask(rows: _Bytes, index: int) -> pa.Array:
    nulls = (rows[:, index // 8] >> np.uint8(index % 8)) & np.uint8(1)
    return pa.array(nulls, pa.uint8(), mask=nulls != 0)


def _check(good: npt.NDArray[np.bool_], lengths: Int64, expected: str) -> None:
    if not good.all():
        index = int(np.argmin(good))
        raise SerdeError(
            f"a packed value of {lengths[index]} bytes, expected {expected}", index=index
        )
