"""Reads packed values one at a time, in plain Python: for whoever wants one, or a few.

A column takes 0.1 ms for its kernels, whether it has one value or hundreds; a value takes
microseconds. What the bytes mean, the columns say (`packed`): types that are not plain ones, and
bytes that do not fit, are left to them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import pyarrow as pa

from everflow.serdes.base import Serde

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
            return by_column(serde, data)
        nulls, *values = fixed.unpack_from(data)
        for at, text in tails:
            begin, end = end, end + values[at]
            if not begin <= end <= len(data):
                return by_column(serde, data)
            values[at] = data[begin:end]
            if text:
                try:
                    values[at] = values[at].decode()
                except UnicodeDecodeError:
                    return by_column(serde, data)
        if end != len(data):
            return by_column(serde, data)
        if nulls != no_nulls:
            for at in range(len(values)):
                if nulls[at // 8] >> (at % 8) & 1:
                    values[at] = None
        return dict(zip(names, values, strict=True))

    return read


def by_column(serde: Serde, data: bytes) -> Any:
    """The value by a column of one. SerdeError."""
    return serde.decode_array(pa.array([data], pa.binary()))[0].as_py()
