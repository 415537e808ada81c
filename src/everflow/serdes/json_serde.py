"""JSON with a schema: objects in schema order, missing fields null, extra fields ignored.

`json_reading` defines what a text means, and `json_writing` what is written (note 015). Arrow's
parser reads columns of texts, where it agrees. It takes more than JSON, and a bare ``null`` at the
beginning of a block ends the process (apache/arrow#47409). So it gets only rows that begin with
``{`` and end with ``}``, and in which nothing stands that it reads in another way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from everflow.serdes.base import SerdeError, encode_one, flat
from everflow.serdes.json_reading import Faults, Unfit, from_texts, read_rows, reader
from everflow.serdes.json_writing import write
from everflow.serdes.schema import storable

_Bytes = npt.NDArray[np.uint8]
_Flags = npt.NDArray[np.bool_]

_LONG = 200
"""A double holds 308 digits: with so few in a row and two in the exponent none is too large."""
_ODD = (
    r"[\x00-\x1f]"  # a newline ends a block; the others are no JSON in a text
    r"|\}[n ]"  # a null behind the value
    r"|[:,\[ -](?:NaN|Inf)"
    r"|[0-9][eE]\+?[0-9]{3}"
    rf"|[0-9]{{{_LONG}}}"
)
_CHUNK_ROWS, _CHUNK_BYTES = 16_384, 2_000_000
"""Limits of what is read at once: more rows cost as much each, and memory."""
_FEW = 2000
"""A call of Arrow's parser costs as much as so many small rows one by one. Large ones are read a
few at a time in any case: as objects they take six times their bytes and more."""
_BLOCK = 1 << 17
"""Bytes that stay in the processor's cache while a few passes go over them."""
_MOST_ODD = 0.5
_MOST_LEVELS = 500
"""Fewer than orjson takes. A row that is shorter, or has fewer brackets, has no more levels."""


def read(data: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Faults]:
    """As `read_rows` for the rows of ``data`` (``pa.binary()``), in a part of the time."""
    if len(data) < _FEW and data.nbytes <= _CHUNK_BYTES:
        return read_rows(data.to_pylist(), type_)
    in_columns = pa.types.is_struct(type_) and _readable(type_)
    size = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES * len(data) // max(1, data.nbytes)))
    columns: list[pa.Array] = []
    faults: Faults = {}
    waits, failures = 0, 0
    for start in range(0, len(data), size):
        rows = data.slice(start, size)
        found = read_chunk(rows, type_) if in_columns and waits == 0 else None
        if found is None:
            found = read_rows(rows.to_pylist(), type_)
            failures += waits == 0
            waits = (waits or 2**failures) - 1
        columns.append(found[0])
        faults.update((start + row, error) for row, error in found[1].items())
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns), faults


def read_chunk(data: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Faults] | None:
    """Odd rows are read by `read_rows`, the others by Arrow; None where it does not read them."""
    odd: _Flags = np.ones(len(data), np.bool_)
    valid = data.is_valid().to_numpy(zero_copy_only=False)
    odd[valid] = odd_rows(data.drop_null() if data.null_count else data)
    if odd.mean() > _MOST_ODD:
        return None
    if not odd.any():
        column = read_objects(data, type_)
        return None if column is None else (column, {})
    column = read_objects(data.filter(pa.array(~odd)), type_)
    if column is None:
        return None
    places = np.flatnonzero(odd)
    others, faults = read_rows(data.take(pa.array(places)).to_pylist(), type_)
    order = np.argsort(np.concatenate([np.flatnonzero(~odd), places]), kind="stable")
    both = pa.concat_arrays([column, others]).take(pa.array(order))
    return both, {int(places[row]): error for row, error in faults.items()}


@lru_cache(maxsize=256)
def _readable(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        return 0 < len(names) == len(set(names)) and all(_readable(field.type) for field in type_)
    if pa.types.is_list(type_):
        return _readable(type_.value_type) and _asked(type_.value_type) == type_.value_type
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_signed_integer(type_)
        or pa.types.is_boolean(type_)
        or _asked(type_) in (pa.string(), pa.float64())
    )


def _asked(type_: pa.DataType) -> pa.DataType:
    """The type that Arrow's parser is asked for in place of ``type_``: `_made` converts it."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _asked(field.type)) for field in type_])
    if pa.types.is_timestamp(type_) or pa.types.is_date32(type_) or pa.types.is_binary(type_):
        return pa.string()
    return pa.float64() if pa.types.is_float32(type_) else type_


def _made(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """``type_`` from what was asked for; ArrowInvalid where one does not fit."""
    if column.type == type_:
        return column
    if pa.types.is_struct(type_):
        fields = [_made(column.field(index), field.type) for index, field in enumerate(type_)]
        nulls = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=nulls)
    in_time = pa.types.is_timestamp(type_) or pa.types.is_date32(type_)
    found = from_texts(column, type_) if in_time else None
    if found is None:
        unfit = Unfit()
        found = reader(type_)(column.to_pylist(), unfit)
        if unfit:
            raise pa.ArrowInvalid("a value does not fit")
    return found


def odd_rows(data: pa.Array) -> _Flags:
    """Marks the rows of ``data`` (``pa.binary()``, without nulls) that the parser must not see."""
    offsets = np.frombuffer(data.buffers()[1], np.int32)[data.offset : data.offset + len(data) + 1]
    lengths = np.diff(offsets)
    text = np.frombuffer(data.buffers()[2] or b"", np.uint8)
    odd: _Flags = lengths < 2
    if odd.all():
        return odd
    first, last = offsets[:-1], offsets[1:] - 1
    whole = ~odd
    odd[whole] = (text[first[whole]] != ord("{")) | (text[last[whole]] != ord("}"))
    longest = int(lengths.max())
    if _may_be_odd(text[offsets[0] : offsets[-1]], longest):
        odd |= pc.match_substring_regex(data, _ODD).to_numpy(zero_copy_only=False)
    if longest > _MOST_LEVELS:
        brackets = pc.add(pc.count_substring(data, "{"), pc.count_substring(data, "["))
        odd |= brackets.to_numpy() > _MOST_LEVELS
    return odd


def _may_be_odd(text: _Bytes, longest: int) -> bool:
    """False where no row matches `_ODD`: a few passes over the bytes, a tenth of the regular
    expression's time."""
    if text.min() < ord(" ") or _follows(text, ord("}"), b"n "):
        return True
    if _follows(text, ord("N"), b"a") or _follows(text, ord("I"), b"n"):
        return True
    if longest >= _LONG and _digits_in_a_row(text):
        return True
    exponents = _after_digits(text[:-3])
    exponents += text[exponents + 1] == ord("+")
    return bool((_is_digit(text[exponents + 1]) & _is_digit(text[exponents + 2])).any())


def _after_digits(text: _Bytes) -> npt.NDArray[np.intp]:
    """Places of an ``e`` or ``E`` behind a digit. Block by block: in the processor's cache a pass
    costs a fifth."""
    found = []
    for begin in range(0, len(text) - 1, _BLOCK):
        block = text[begin : begin + _BLOCK + 1]
        hits = _is_digit(block[:-1]) & ((block[1:] | 0x20) == ord("e"))
        if hits.any():
            found.append(np.flatnonzero(hits) + (begin + 1))
    return np.concatenate(found) if found else np.empty(0, np.intp)


def _follows(text: _Bytes, first: int, seconds: bytes) -> bool:
    after = text[np.flatnonzero(text[:-1] == first) + 1]
    return any(bool((after == second).any()) for second in seconds)


def _digits_in_a_row(text: _Bytes) -> bool:
    """True if there may be `_LONG` digits in a row: those would cover two samples."""
    samples = _is_digit(text[:: _LONG // 2])
    return bool((samples[:-1] & samples[1:]).any())


def _is_digit(text: _Bytes) -> _Flags:
    flags: _Flags = (text - np.uint8(ord("0"))) < 10
    return flags


def read_objects(data: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """A column of ``type_`` from rows none of which is odd; None where one of them is not read, or
    not as `json_reading` would."""
    rows = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), data)
    text = pc.binary_join(rows, pa.scalar(b"\n", data.type))[0].as_buffer()
    whole = pa.py_buffer(np.array([0, text.size], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, whole, text]).validate(full=True)
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(_asked(type_))), unexpected_field_behavior="ignore"
            ),
        )
        if len(table) != len(data):  # several values in a row
            return None
        objects = table.combine_chunks().to_struct_array().combine_chunks()
        return None if _has_negative_zero(objects) else _made(objects, type_)
    except pa.ArrowInvalid:
        return None


def _has_negative_zero(column: pa.Array) -> bool:
    """It may have been written ``-0``, which is an integer, and 0.0 as a double."""
    if pa.types.is_struct(column.type):
        fields = range(column.type.num_fields)
        return any(_has_negative_zero(column.field(index)) for index in fields)
    if pa.types.is_list(column.type):
        return _has_negative_zero(column.flatten())
    if not pa.types.is_floating(column.type):
        return False
    numbers = column.fill_null(1.0).to_numpy()
    return bool(np.signbit(numbers[numbers == 0]).any())


@dataclass(frozen=True, repr=False)
class JsonSerde:
    """UTF-8 JSON text <-> ``type``.

    Dates and timestamps are ISO 8601 text (timestamps ``2024-01-31T12:00:00.000000Z``, read with
    any offset), binary is base64, decimals are numbers (read from numbers or text), null fields are
    written as ``null``, NaN and the infinities as text. SerdeError for a type that is not written.
    """

    type: pa.DataType
    kind: str = "json"

    def __post_init__(self) -> None:
        storable(self.type)

    def encode(self, value: Any) -> bytes | None:
        return encode_one(self, value)

    def decode(self, data: bytes | None) -> Any:
        column, faults = read_rows([data], self.type)
        if faults:
            raise faults[0]
        return column[0].as_py()

    def encode_array(self, values: pa.Array) -> pa.Array:
        return write(flat(values, self.type))

    def decode_array(self, data: pa.Array) -> pa.Array:
        column, faults = self.decode_marked(data)
        for index, error in faults.items():
            raise SerdeError(str(error), index=index) from error
        return column

    def decode_marked(self, data: pa.Array) -> tuple[pa.Array, Faults]:
        """As `decode_array`, with null for each row that cannot be read, and why by row, in
        order."""
        return read(flat(data, pa.binary()), self.type)

    def __repr__(self) -> str:
        return f"json({self.type})"
