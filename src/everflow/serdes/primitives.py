"""Serdes of single values in Java's byte formats: bytes, text, booleans, numbers."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from everflow.serdes.base import (
    SerdeError,
    binary_from_matrix,
    flat,
    matrix_from_binary,
    with_nulls_of,
    wrong_width,
)

_INTEGERS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


class _Single:
    """A serde of single values, which reads one value faster by itself than in a column."""

    kind: str

    def decode(self, data: bytes | None) -> Any:
        raise NotImplementedError

    def value_reader(self) -> Callable[[bytes], Any]:
        return self.decode

    def __repr__(self) -> str:
        return self.kind


class _Number(_Single):
    """Numbers of ``width`` bytes, big endian; ``letter``: NumPy's for them."""

    letter: ClassVar[str]

    @property
    def type(self) -> pa.DataType:
        raise NotImplementedError

    @property
    def width(self) -> int:
        raise NotImplementedError

    def encode_array(self, values: pa.Array) -> pa.Array:
        values = flat(values, self.type)
        filled = values.fill_null(pa.scalar(0, self.type)) if values.null_count else values
        rows = self._laid(filled.to_numpy()).view(np.uint8).reshape(-1, self.width)
        return with_nulls_of(binary_from_matrix(rows), values)

    def decode_array(self, data: pa.Array) -> pa.Array:
        data = flat(data, pa.binary())
        rows = np.ascontiguousarray(matrix_from_binary(data, self.width))
        code = f"{self.letter}{self.width}"
        numbers = rows.view(f">{code}").reshape(-1).astype(code)
        return with_nulls_of(pa.array(numbers, self.type), data)

    def _laid(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Big endian, with the NaNs that Java writes."""
        return numbers.astype(f">{self.letter}{self.width}")


@dataclass(frozen=True, repr=False)
class BytesSerde(_Single):
    """Bytes, unchanged (Java's ByteArraySerializer)."""

    kind: str = "bytes"

    @property
    def type(self) -> pa.DataType:
        return pa.binary()

    def encode(self, value: Any) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise SerdeError(f"expected bytes, found {type(value).__name__} {value!r:.100}")

    def decode(self, data: bytes | None) -> Any:
        return data

    def encode_array(self, values: pa.Array) -> pa.Array:
        return flat(values, pa.binary())

    def decode_array(self, data: pa.Array) -> pa.Array:
        return flat(data, pa.binary())


@dataclass(frozen=True, repr=False)
class StringSerde(_Single):
    """UTF-8 text (Java's StringSerializer). Unlike in Java, invalid UTF-8 raises SerdeError."""

    kind: str = "string"

    @property
    def type(self) -> pa.DataType:
        return pa.string()

    def encode(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise SerdeError(f"expected text, found {type(value).__name__} {value!r:.100}")
        try:
            return value.encode()
        except UnicodeEncodeError as error:  # a lone surrogate
            raise SerdeError(
                f"the text cannot be written as UTF-8: it has half of a pair of surrogates at "
                f"{error.start}"
            ) from error

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            byte = data[error.start]
            raise SerdeError(f"not UTF-8: the byte 0x{byte:02x} at {error.start}") from error

    def encode_array(self, values: pa.Array) -> pa.Array:
        return flat(values, pa.string()).view(pa.binary())

    def decode_array(self, data: pa.Array) -> pa.Array:
        data = flat(data, pa.binary())
        try:
            return data.cast(pa.string())
        except pa.ArrowInvalid as error:
            for index, item in enumerate(data.to_pylist()):
                try:
                    self.decode(item)
                except SerdeError as bad:
                    raise SerdeError(str(bad), index=index) from error
            raise SerdeError(f"not UTF-8: {error}") from error


@dataclass(frozen=True, repr=False)
class IntegerSerde(_Number):
    """Integers, two's complement, big endian: Java's ShortSerializer (``bits=16``),
    IntegerSerializer (32) and LongSerializer (64)."""

    kind: str
    bits: int
    letter: ClassVar[str] = "i"

    @property
    def type(self) -> pa.DataType:
        return _INTEGERS[self.bits]

    @property
    def width(self) -> int:
        return self.bits // 8

    def encode(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise SerdeError(f"expected {self.kind}, found {type(value).__name__} {value!r:.100}")
        try:
            return int(value).to_bytes(self.width, "big", signed=True)
        except OverflowError as error:
            raise SerdeError(f"{value} does not fit into {self.bits} bits") from error

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != self.width:
            raise wrong_width(f"{self.kind} takes {self.width} bytes", self.width, data)
        return int.from_bytes(data, "big", signed=True)


@dataclass(frozen=True, repr=False)
class BooleanSerde(_Single):
    """One byte, 1 or 0 (Java's BooleanSerializer). Any other byte raises SerdeError."""

    kind: str = "boolean"

    @property
    def type(self) -> pa.DataType:
        return pa.bool_()

    def encode(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if not isinstance(value, bool | np.bool_):
            raise SerdeError(f"expected boolean, found {type(value).__name__} {value!r:.100}")
        return b"\x01" if value else b"\x00"

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        if data not in (b"\x00", b"\x01"):
            raise SerdeError(f"boolean takes one byte, 0 or 1, found {data!r:.100}")
        return data == b"\x01"

    def encode_array(self, values: pa.Array) -> pa.Array:
        values = flat(values, pa.bool_())
        rows = values.fill_null(False).to_numpy(zero_copy_only=False).astype(np.uint8)
        return with_nulls_of(binary_from_matrix(rows.reshape(-1, 1)), values)

    def decode_array(self, data: pa.Array) -> pa.Array:
        data = flat(data, pa.binary())
        rows = matrix_from_binary(data, 1).reshape(-1)
        wrong = np.flatnonzero(rows > 1)
        if len(wrong):
            index = int(wrong[0])
            raise SerdeError(f"boolean takes 0 or 1, found {rows[index]}", index=index)
        return with_nulls_of(pa.array(rows == 1, pa.bool_()), data)


@dataclass(frozen=True, repr=False)
class _FloatingSerde(_Number):
    """IEEE 754, big endian, in ``width`` bytes."""

    kind: str
    letter: ClassVar[str] = "f"

    @property
    def type(self) -> pa.DataType:
        return pa.float64() if self.width == 8 else pa.float32()

    def encode(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, float | int | np.floating | np.integer):
            raise SerdeError(f"expected {self.kind}, found {type(value).__name__} {value!r:.100}")
        try:
            number = float(value)
            return struct.pack(self._code, math.nan if math.isnan(number) else number)
        except OverflowError as error:
            raise SerdeError(f"{value!r:.100} is too large for a {self.kind}") from error

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != self.width:
            raise wrong_width(f"{self.kind} takes {self.width} bytes", self.width, data)
        return struct.unpack(self._code, data)[0]

    @property
    def _code(self) -> str:
        return ">d" if self.width == 8 else ">f"


@dataclass(frozen=True, repr=False)
class DoubleSerde(_FloatingSerde):
    """Doubles (Java's DoubleSerializer). Every NaN is written in its canonical form."""

    kind: str = "double"
    width: ClassVar[int] = 8

    def _laid(self, numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.where(np.isnan(numbers), np.nan, numbers).astype(">f8")


@dataclass(frozen=True, repr=False)
class FloatSerde(_FloatingSerde):
    """Floats (Java's FloatSerializer). Columns keep the bits of each NaN, as Java's
    floatToRawIntBits does."""

    kind: str = "float"
    width: ClassVar[int] = 4
