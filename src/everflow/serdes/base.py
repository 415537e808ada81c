"""What a serde is, its error, and the two Arrow steps all fixed-width serdes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.errors import EverflowError
from everflow.records import Int64
from everflow.serdes.arrow_types import column_of
from everflow.user_program import shown

REGISTRY_HEAD = 5
"""A zero and the schema's id, before what Confluent's serializers write."""


_MOST_OFFSET = np.iinfo(np.int32).max


def of_a_registry(data: bytes) -> str | None:
    """The hint for unreadable bytes that begin as those of a schema registry; else None."""
    if len(data) < REGISTRY_HEAD or data[0] != 0:
        return None
    number = int.from_bytes(data[1:REGISTRY_HEAD], "big")
    return (
        f"it was written with a schema registry (schema id {number}): five bytes stand before "
        f"the data. Read it with serdes.avro, serdes.protobuf or serdes.json_schema and registry="
    )


class SerdeError(EverflowError, code="EF-SERDE"):
    """Raised for a value that cannot be written, or bytes that cannot be read.

    Attributes:
        index: row of the first bad value in the array; None for a scalar.
    """

    def __init__(self, message: str, *, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class Serde(Protocol):
    """Converts values to bytes and back, one at a time or a column at a time.

    Implementations are frozen, comparable, picklable and safe from any thread. None or null means
    "no bytes" in both directions.
    """

    @property
    def kind(self) -> str:
        """``bytes``, ``string``, ``boolean``, ``short``, ``int``, ``long``, ``float``, ``double``,
        ``list``, ``json``, ``time_windowed`` or ``packed``, for example."""

    @property
    def type(self) -> pa.DataType:
        """Arrow type of the decoded value."""

    def encode(self, value: Any) -> bytes | None:
        """Bytes of one value; SerdeError if it does not fit the type."""

    def decode(self, data: bytes | None) -> Any:
        """The value as ``pa.Scalar.as_py`` gives it (dict for a struct); SerdeError if
        unreadable."""

    def encode_array(self, values: pa.Array) -> pa.Array:
        """``pa.binary()`` of the same length, null where ``values`` is null."""

    def decode_array(self, data: pa.Array) -> pa.Array:
        """Values of type ``type``; SerdeError with the index of the first unreadable row."""


def flat(values: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> pa.Array:
    """``values`` as one contiguous array of ``type_`` (cast where it differs, e.g.
    large_string)."""
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if values.type != type_:
        try:
            values = values.cast(type_)
        except pa.ArrowException as error:
            raise SerdeError(
                f"a column of {values.type} cannot be written as {type_}: {error}"
            ) from error
    return values


def binary_from_matrix(rows: npt.NDArray[np.uint8]) -> pa.Array:
    """One binary value per row of a C-contiguous ``(n, width)`` byte matrix, without copying."""
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(width)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows).reshape(-1))]
    return pa.Array.from_buffers(pa.binary(), count, buffers)


def numbers_as_rows(numbers: npt.NDArray[Any], code: str) -> npt.NDArray[np.uint8]:
    """A row of bytes for each number, as NumPy's ``code`` lays it, for example ``>i8``."""
    rows: npt.NDArray[np.uint8] = np.ascontiguousarray(numbers, code).view(np.uint8)
    return rows.reshape(-1, np.dtype(code).itemsize)


def numbers_as_bytes(numbers: npt.NDArray[Any], code: str) -> pa.Array:
    """As `numbers_as_rows`, in a column of ``pa.binary()``."""
    return binary_from_matrix(numbers_as_rows(numbers, code))


def bytes_of(data: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """The bytes behind ``data`` (``pa.binary()`` or ``pa.string()``), where each row begins in
    them, and where the last one ends."""
    if not len(data):
        return np.zeros(0, np.uint8), np.zeros(1, np.int32)
    _, places, content = data.buffers()
    rows = slice(data.offset, data.offset + len(data) + 1)
    return np.frombuffer(content or b"", np.uint8), np.frombuffer(places, np.int32)[rows]


def wrong_width(
    expected: str,
    width: int,
    data: bytes,
    *,
    index: int | None = None,
) -> SerdeError:
    registry = of_a_registry(data) if len(data) == REGISTRY_HEAD + width else None
    cause = f": {registry}" if registry else ""
    return SerdeError(f"{expected}, found {len(data)}{cause}", index=index)


def matrix_from_binary(data: pa.Array, width: int) -> npt.NDArray[np.uint8]:
    """The bytes of ``data`` (``pa.binary()``) as a read-only ``(n, width)`` matrix; zero for nulls.
    SerdeError with the first row that has another length."""
    if data.null_count:
        data = data.fill_null(b"\x00" * width)
    content, places = bytes_of(data)
    right = places[1:] - places[:-1] == width
    if not right.all():
        index = int(np.argmin(right))
        raise wrong_width(f"expected {width} bytes", width, data[index].as_py(), index=index)
    return content[places[0] : places[-1]].reshape(len(data), width)


def with_nulls_of(values: pa.Array, source: pa.Array) -> pa.Array:
    if source.null_count == 0:
        return values
    return pc.if_else(source.is_valid(), values, pa.scalar(None, values.type))


def slices(data: pa.Array, begin: Int64, size: Int64) -> pa.Array:
    """Bytes ``[begin, begin + size)`` of every row of ``data``, without a loop over rows."""
    content, places = bytes_of(data)
    return gathered(content, places[:-1] + begin, size)


def words(content: npt.NDArray[np.uint8], code: str) -> npt.NDArray[Any]:
    """What stands at each place of ``content``, as NumPy's ``code`` lays it: without a copy."""
    places = max(len(content) - np.dtype(code).itemsize + 1, 0)
    found: npt.NDArray[Any] = np.ndarray((places,), code, content, strides=(1,))
    return found


def gathered(content: npt.NDArray[np.uint8], begins: Int64, sizes: Int64) -> pa.Array:
    """A value of ``sizes`` bytes from each place of ``content`` on."""
    count = len(sizes)
    places = np.empty(2 * count, np.int64)
    places[::2], places[1::2] = begins, begins + sizes
    if count and (np.diff(places) >= 0).all() and places[-1] <= _MOST_OFFSET:
        # Arrow copies a value at a time, seven times as fast as NumPy byte for byte: what lies
        # between two values is a value, too, and is not taken.
        buffers = [None, pa.py_buffer(places.astype(np.int32)), pa.py_buffer(content)]
        found = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
        return found.take(pa.array(np.arange(0, 2 * count, 2)))
    offsets = pa.py_buffer(starts(sizes).astype(np.int32))
    data = pa.py_buffer(content[ranges(begins, sizes)])
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, data])


def starts(sizes: Int64) -> Int64:
    """The start of each, if they are contiguous, and the end of the last."""
    found = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=found[1:])
    return found


def ranges(begins: Int64, sizes: Int64) -> Int64:
    """All places of all ranges, one behind the other."""
    firsts = starts(sizes)
    return np.repeat(begins - firsts[:-1], sizes) + np.arange(firsts[-1])


def rest(data: pa.Array, start: int) -> pa.Array:
    # a finite stop: without one Arrow 26 overflows (stop - start) * rows
    return pc.binary_slice(data, start, np.iinfo(np.int32).max)


class ResultDecoder(Protocol):
    """Reads stored values as the table shows them; picklable. A `Serde` is one."""

    def decode_array(self, data: pa.Array) -> pa.Array:
        """A column of what the table shows for a binary column of value bytes (without the 8-byte
        timestamp); null stays null. Raises SerdeError."""


def value_reader(decoder: ResultDecoder) -> Callable[[bytes], Any] | None:
    """Reads one value as ``decoder`` does in a column, in plain Python: made once, called often.
    None: these values are read in columns alone, where one takes as long as hundreds."""
    make = getattr(decoder, "value_reader", None)
    read: Callable[[bytes], Any] | None = None if make is None else make()
    return read


def decode_one(decoder: ResultDecoder, data: bytes) -> Any:
    """One value, as a column of one. SerdeError."""
    return decoder.decode_array(pa.array([data], pa.binary()))[0].as_py()


def decode_present(data: pa.Array, decode: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """``decode`` of the rows that are not null, null elsewhere: ``decode`` may rely on every row's
    length."""
    if data.null_count == 0:
        return _naming_first(data, decode)
    valid = data.is_valid().to_numpy(zero_copy_only=False)
    try:
        decoded = _naming_first(data.drop_null(), decode)
    except SerdeError as error:
        if error.index is None:
            raise
        index = int(np.flatnonzero(valid)[error.index])
        raise SerdeError(str(error), index=index) from error
    return decoded.take(pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid))


def _naming_first(data: pa.Array, decode: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """``decode(data)``; of several bad rows the error names the first, whichever check found it."""
    try:
        return decode(data)
    except SerdeError as error:
        if error.index:
            _naming_first(data[: error.index], decode)
        raise


_BY_COLUMN = frozenset({"json", "packed", "avro", "protobuf", "json_schema", "debezium"})
"""Kinds of serdes whose `encode` is `encode_one`."""


def encode_each(serde: Serde, values: Sequence[Any]) -> pa.Array:
    """As ``serde.encode`` of each value, and what that raises; at once where it goes by columns."""
    if serde.kind in _BY_COLUMN:
        try:
            return serde.encode_array(column_of(values, serde.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError, SerdeError):
            pass  # one of them does not fit: which, and why, it says itself
    return pa.array([serde.encode(value) for value in values], pa.binary())


def encode_one(serde: Serde, value: Any) -> bytes | None:
    """One value through ``serde.encode_array``; None stays None. SerdeError where it does not fit
    the serde's type."""
    if value is None:
        return None
    try:
        row = column_of([value], serde.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SerdeError(f"{shown(value)} does not fit: {error}") from error
    data: bytes | None = serde.encode_array(row)[0].as_py()
    return data


class ByColumn:
    """The part of a serde that reads and writes columns: one value is a column of one."""

    def encode(self: Serde, value: Any) -> bytes | None:
        return encode_one(self, value)

    def decode(self: Serde, data: bytes | None) -> Any:
        return None if data is None else decode_one(self, data)

    def decode_array(self, data: pa.Array) -> pa.Array:
        return decode_present(flat(data, pa.binary()), self._decode_all)

    def _decode_all(self, data: pa.Array) -> pa.Array:
        """`decode_array` of rows none of which is null."""
        raise NotImplementedError
