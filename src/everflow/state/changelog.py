"""Store changes as changelog records and as stored values: the bytes, and nothing else (pure).

A changelog record is (key bytes, plain value bytes or None for a delete, record time in ms), as in
Kafka Streams. Stored values are ``8-byte big-endian timestamp + value bytes``; keys are the same.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np

from everflow.records import Int64, StoreChanges

_TIMESTAMP = struct.Struct(">q")
TIMESTAMP_BYTES = 8
SUFFIX_BYTES: Mapping[str, int] = {"window": 12, "session": 16}
"""Bytes behind a store's keys; by the first 8 it expires: a window's start, a session's end."""


def pack_value(timestamp: int, value: bytes) -> bytes:
    """The stored form of one value; ``timestamp`` in ms."""
    return _TIMESTAMP.pack(timestamp) + value


def unpack_value(stored: bytes) -> tuple[int, bytes]:
    """Inverse of :func:`pack_value`: (timestamp in ms, value bytes)."""
    return _TIMESTAMP.unpack_from(stored)[0], stored[TIMESTAMP_BYTES:]


def pack_values(values: Sequence[bytes | None], timestamps: Int64) -> list[bytes | None]:
    """Stored forms of many values, None staying None; as many ``timestamps`` (ms)."""
    if len(values) != len(timestamps):
        raise ValueError(f"{len(values)} values but {len(timestamps)} timestamps")
    stamps = np.asarray(timestamps, dtype=np.int64).astype(">i8").tobytes()
    offsets = range(0, TIMESTAMP_BYTES * len(values), TIMESTAMP_BYTES)
    return [
        None if value is None else stamps[at : at + TIMESTAMP_BYTES] + value
        for at, value in zip(offsets, values, strict=True)
    ]


def last_values(
    keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Int64
) -> dict[bytes, bytes | None]:
    """Key -> stored form of its last value (None: a delete), by first appearance; no null keys."""
    folded: dict[bytes | None, bytes | None] = dict(
        zip(keys, pack_values(values, timestamps), strict=True),
    )
    folded.pop(None, None)
    return folded  # type: ignore[return-value]  # the only None key has just been removed


def fold(changes: StoreChanges) -> dict[bytes, bytes | None]:
    return last_values(changes.keys, changes.values, changes.timestamps)


def expiry_times(keys: Sequence[bytes], kind: str) -> Int64:
    """The times (ms) by which windows or sessions expire. ValueError for too short a key."""
    suffix = SUFFIX_BYTES[kind]
    times = b"".join([key[-suffix : 8 - suffix] for key in keys])
    if keys and min(map(len, keys)) < suffix:
        shortest = min(keys, key=len)
        raise ValueError(
            f"{shortest!r} is no {kind} store key: it has {len(shortest)} bytes, a key ends with "
            f"{suffix} bytes: an 8-byte time "
            f"and {'the start of the session' if kind == 'session' else 'a 4-byte sequence number'}"
        )
    return np.frombuffer(times, dtype=">i8").astype(np.int64)


def expiry_time(key: bytes, kind: str) -> int:
    suffix = SUFFIX_BYTES[kind]
    if len(key) < suffix:
        return int(expiry_times([key], kind)[0])
    return int.from_bytes(key[-suffix : 8 - suffix], "big", signed=True)
