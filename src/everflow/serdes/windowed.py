"""Windowed keys in Java's bytes: TimeWindowedSerializer, WindowKeySchema, SessionKeySchema."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import (
    ByColumn,
    Serde,
    SerdeError,
    flat,
    matrix_from_binary,
    numbers_as_bytes,
    slices,
)
from everflow.windows import Windowed

START_BYTES = 8
_SEQUENCE_ZERO = b"\x00\x00\x00\x00"
_NOTHING = pa.scalar(b"")
STORE_SUFFIX_BYTES = START_BYTES + len(_SEQUENCE_ZERO)
_TWO_TIMES = struct.Struct(">qq")
SESSION_SUFFIX_BYTES = _TWO_TIMES.size
"""End and start of a session behind its key, in a store and on a topic."""
KEY_SUFFIX_BYTES = {"time_windowed": START_BYTES, "session_windowed": 2 * START_BYTES}
"""Bytes behind the key in a windowed key of a topic, by the kind of its serde."""
TIME_MAX = (1 << 63) - 1
"""The highest time (ms) that a key can hold."""


class _WindowedSerde(ByColumn):
    """``inner`` key bytes and the window's times in ms, 8 bytes each, big endian: a `Windowed`."""

    inner: Serde
    kind: str
    size_ms: int | None
    """None: the end is in the bytes, before the start."""

    @property
    def type(self) -> pa.DataType:
        return windowed_key_type(self.inner.type)

    def encode(self, value: Any) -> bytes | None:
        if value is None:
            return None
        inner, start, end = _windowed(value)
        key = self.inner.encode(inner)
        if key is None or self.size_ms is None:
            return None if key is None else session_key(key, start, end)
        try:
            return key + _time_bytes(start)
        except OverflowError:
            raise SerdeError(f"a window's start of {start} ms does not fit into a long") from None

    def decode(self, data: bytes | None) -> Any:
        if data is None:
            return None
        if self.size_ms is None:
            key, start, end = split_session_key(data)
            return Windowed(self.inner.decode(key), start, end)
        if len(data) < START_BYTES:
            raise SerdeError(
                f"a windowed key takes at least {START_BYTES} bytes, found {len(data)}"
            )
        start = int.from_bytes(data[-START_BYTES:], "big", signed=True)
        end = min(start + self.size_ms, TIME_MAX)
        return Windowed(self.inner.decode(data[:-START_BYTES]), start, end)

    def encode_array(self, values: pa.Array) -> pa.Array:
        key, start, end = flat(values, self.type).flatten()
        written = [end, start] if self.size_ms is None else [start]
        filled = [one.fill_null(0) if one.null_count else one for one in written]
        times = [time_column(column.to_numpy()) for column in filled]
        return _join(self.inner.encode_array(key), times)

    def _decode_all(self, data: pa.Array) -> pa.Array:
        size_ms = self.size_ms
        keys, times = _split_all(self.inner, data, 2 if size_ms is None else 1)
        starts, ends = times[-1], times[0]
        if size_ms is not None:
            ends = np.minimum(starts, TIME_MAX - size_ms) + size_ms  # as Java's TimeWindow
        return pa.StructArray.from_arrays(
            [keys, pa.array(starts), pa.array(ends)], fields=list(self.type)
        )

    def __repr__(self) -> str:
        size = "" if self.size_ms is None else f", {self.size_ms} ms"
        return f"{self.kind}({self.inner!r}{size})"


@dataclass(frozen=True, repr=False)
class TimeWindowedSerde(_WindowedSerde):
    """Keys of windowed results: the key bytes of ``inner``, then the window's start (Java's
    TimeWindowedSerializer)."""

    inner: Serde
    size_ms: int
    kind: str = "time_windowed"


@dataclass(frozen=True, repr=False)
class SessionWindowedSerde(_WindowedSerde):
    """Keys of sessions: the key bytes of ``inner``, then end and start (Java's
    SessionWindowedSerializer)."""

    inner: Serde
    kind: str = "session_windowed"
    size_ms: None = field(default=None, init=False)


def without_windows(keys: pa.Array, serde: Serde) -> pa.Array:
    """Bytes of keys of a topic, which ``serde`` has written, without the windows of windowed
    ones."""
    suffix = KEY_SUFFIX_BYTES.get(serde.kind)
    return keys if suffix is None else without_suffix(keys, suffix)


def without_suffix(keys: pa.Array, suffix: int) -> pa.Array:
    """Bytes of keys without the last ``suffix`` bytes; of shorter ones nothing is left."""
    return pc.binary_slice(keys, 0, -suffix)


@lru_cache(maxsize=256)
def windowed_key_type(key: pa.DataType) -> pa.DataType:
    """``struct<key: K, start: int64, end: int64>``, the key of windowed results."""
    return pa.struct([("key", key), ("start", pa.int64()), ("end", pa.int64())])


def time_column(times: Int64) -> pa.Array:
    """Times (ms) as 8-byte big-endian values."""
    return numbers_as_bytes(times, ">i8")


def window_store_keys(
    keys: pa.Array,
    starts: Int64,
    numbers: Int64 | None = None,
) -> pa.Array:
    """Keys of a window store: key bytes + start + 4-byte sequence number (None: 0). ``keys`` is
    ``pa.binary()``."""
    zero = pa.scalar(_SEQUENCE_ZERO)
    sequence = zero if numbers is None else numbers_as_bytes(numbers, ">i4")
    return _join(keys, [time_column(starts), sequence])


def window_store_prefixes(keys: pa.Array, starts: Int64) -> pa.Array:
    """Key bytes + start: how a window store's keys of these begin."""
    return _join(keys, [time_column(starts)])


def window_store_key(key: bytes, start: int) -> bytes:
    return key + _time_bytes(start) + _SEQUENCE_ZERO


def split_window_store_key(stored: bytes) -> tuple[bytes, int]:
    """Key bytes and window start (ms) of a window store's key; SerdeError if it is too short."""
    if len(stored) < STORE_SUFFIX_BYTES:
        raise SerdeError(
            f"a window store's key takes at least {STORE_SUFFIX_BYTES} bytes, found {len(stored)}"
        )
    start = stored[-STORE_SUFFIX_BYTES : -len(_SEQUENCE_ZERO)]
    return stored[:-STORE_SUFFIX_BYTES], int.from_bytes(start, "big", signed=True)


def _time_bytes(time: int) -> bytes:
    return time.to_bytes(START_BYTES, "big", signed=True)


def session_key(key: bytes, start: int, end: int) -> bytes:
    """The key of a session, in its store and on a topic; SerdeError for a time that is no long."""
    try:
        return key + _TWO_TIMES.pack(end, start)
    except struct.error:
        raise SerdeError(
            f"a session from {start} to {end} ms does not fit into two longs"
        ) from None


def split_session_key(stored: bytes) -> tuple[bytes, int, int]:
    """Key bytes, start and end (ms) of a session's key; SerdeError if it is too short."""
    if len(stored) < SESSION_SUFFIX_BYTES:
        raise SerdeError(
            f"a session's key takes at least {SESSION_SUFFIX_BYTES} bytes, found {len(stored)}"
        )
    end, start = _TWO_TIMES.unpack_from(stored, len(stored) - SESSION_SUFFIX_BYTES)
    return stored[:-SESSION_SUFFIX_BYTES], start, end


def _windowed(value: Any) -> Windowed:
    if not isinstance(value, Windowed) or not all(isinstance(time, int) for time in value[1:]):
        raise SerdeError(
            f"expected everflow.Windowed(key, start, end), with times in ms, found {value!r:.100}"
        )
    return value


def python_keys(column: pa.Array) -> list[Any]:
    """Keys as Python functions get them: ``to_pylist``, with a `Windowed` for a windowed one."""
    if not _is_windowed(column.type):
        plain: list[Any] = column.to_pylist()
        return plain
    present = column.is_valid().to_pylist()
    keys = python_keys(column.field(0))
    starts, ends = (column.field(at).to_pylist() for at in (1, 2))
    return [
        Windowed(key, start, end) if there else None
        for there, key, start, end in zip(present, keys, starts, ends, strict=True)
    ]


def _is_windowed(type_: pa.DataType) -> bool:
    fields = [(field.name, field.type) for field in type_] if pa.types.is_struct(type_) else []
    return [name for name, _ in fields] == ["key", "start", "end"] and {
        kind for _, kind in fields[1:]
    } == {pa.int64()}


def _split_all(inner: Serde, data: pa.Array, times: int) -> tuple[pa.Array, list[Int64]]:
    """Decoded keys, and the columns of the ``times`` 8-byte times behind them. SerdeError names a
    row that is too short."""
    suffix = times * START_BYTES
    lengths = pc.binary_length(data).to_numpy().astype(np.int64)
    short = np.flatnonzero(lengths < suffix)
    if len(short):
        index = int(short[0])
        raise SerdeError(f"a windowed key of {lengths[index]} bytes", index=index)
    keys = inner.decode_array(slices(data, np.zeros(len(data), np.int64), lengths - suffix))
    width = np.full(len(data), START_BYTES, np.int64)
    found = [slices(data, lengths - suffix + at * START_BYTES, width) for at in range(times)]
    rows = [np.ascontiguousarray(matrix_from_binary(one, START_BYTES)) for one in found]
    return keys, [one.view(">i8").reshape(-1).astype(np.int64) for one in rows]


def _join(keys: pa.Array, rest: list[pa.Array | pa.Scalar]) -> pa.Array:
    return pc.binary_join_element_wise(keys, *rest, _NOTHING)
