"""Serdes of single values in Java's byte formats: bytes, string, int, long, double."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from everflow.serdes.base import (
    SerdeError,
    binary_from_matrix,
    first_bad,
    flat,
    matrix_from_binary,
    with_nulls_of,
)


@dataclass(frozen=True, repr=False)
class BytesSerde:
    """Bytes as they are (Java's ByteArraySerializer)."""

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

    def value_reader(self) -> Callable[[bytes], Any]:
        """See `everflow.serdes.base.value_reader`."""
        return self.decode

    def encode_array(self, values: pa.Array) -> pa.Array:
        return flat(values, pa.binary())

    def decode_array(self, data: pa.Array) -> pa.Array:
        return flat(data, pa.binary())

    def __repr__(self) -> str:
        return "bytes"


@dataclass(frozen=True, repr=False)
class StringSerde:
    """UTF-8 text (Java's StringSerializer). Unlike Java's, invalid UTF-8 is an error."""

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
            raise SerdeError(f"the text cannot be written as UTF-8: {error}") from error

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise SerdeError(f"not UTF-8: {error}") from error

    def value_reader(self) -> Callable[[bytes], Any]:
        """See `everflow.serdes.base.value_reader`."""
        return self.decode

    def encode_array(self, values: pa.Array) -> pa.Array:
        return flat(values, pa.string()).cast(pa.binary())

    def decode_array(self, data: pa.Array) -> pa.Array:
        data = flat(data, pa.binary())
        try:
            return data.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise first_bad(data, self.decode) or SerdeError(f"not UTF-8: {error}") from error

    def __repr__(self) -> str:
        return "string"


@dataclass(frozen=True, repr=False)
class IntegerSerde:
    """Java's IntegerSerializer (``bits=32``) and LongSerializer (64): two's complement, big
    endian."""

    kind: str
    bits: int

    @property
    def type(self) -> pa.DataType:
        return pa.int32() if self.bits == 32 else pa.int64()

    @property
    def width(self) -> int:
        """Bytes of a value."""
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
            raise SerdeError(f"{self.kind} takes {self.width} bytes, found {len(data)}")
        return int.from_bytes(data, "big", signed=True)

    def value_reader(self) -> Callable[[bytes], Any]:
        """See `everflow.serdes.base.value_reader`."""
        return self.decode

    def encode_array(self, values: pa.Array) -> pa.Array:
        values = flat(values, self.type)
        numbers = (
            values.fill_null(0).to_numpy(zero_copy_only=False)
            if values.null_count
            else values.to_numpy()
        )
        rows = numbers.astype(f">i{self.width}").view(np.uint8).reshape(-1, self.width)
        return with_nulls_of(binary_from_matrix(rows), values)

    def decode_array(self, data: pa.Array) -> pa.Array:
        data = flat(data, pa.binary())
        rows = np.ascontiguousarray(matrix_from_binary(data, self.width))
        numbers = rows.view(f">i{self.width}").reshape(-1).astype(f"i{self.width}")
        return with_nulls_of(pa.array(numbers, self.type), data)

    def __repr__(self) -> str:
        return self.kind


@dataclass(frozen=True, repr=False)
class DoubleSerde:
    """Java's DoubleSerializer: IEEE 754, big endian, NaN in its one canonical form."""

    kind: str = "double"

    @property
    def type(self) -> pa.DataType:
        return pa.float64()

    def encode(self, value: Any) -> bytes | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, float | int | np.floating | np.integer):
            raise SerdeError(f"expected double, found {type(value).__name__} {value!r:.100}")
        try:
            number = float(value)
        except OverflowError as error:
            raise SerdeError(f"{value!r:.100} is too large for a double") from error
        return struct.pack(">d", math.nan if math.isnan(number) else number)

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        if len(data) != 8:
            raise SerdeError(f"double takes 8 bytes, found {len(data)}")
        return struct.unpack(">d", data)[0]

    def value_reader(self) -> Callable[[bytes], Any]:
        """See `everflow.serdes.base.value_reader`."""
        return self.decode

    def encode_array(self, values: pa.Array) -> pa.Array:
        values = flat(values, pa.float64())
        numbers = (
            values.fill_null(0.0).to_numpy(zero_copy_only=False)
            if values.null_count
            else values.to_numpy()
        )
        big_endian = np.where(np.isnan(numbers), np.nan, numbers).astype(">f8")
        return with_nulls_of(binary_from_matrix(big_endian.view(np.uint8).reshape(-1, 8)), values)

    def decode_array(self, data: pa.Array) -> pa.Array:
        data = flat(data, pa.binary())
        rows = np.ascontiguousarray(matrix_from_binary(data, 8))
        numbers = pa.array(rows.view(">f8").reshape(-1).astype(np.float64), pa.float64())
        return with_nulls_of(numbers, data)

    def __repr__(self) -> str:
        return "double"
