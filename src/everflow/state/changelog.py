"""Store changes as changelog records and as stored values: the bytes, and nothing else (pure).

A changelog record of a store is (key bytes of the store, plain value bytes or None for a delete, record time
in ms): the same bytes as Kafka Streams writes, so its changelogs can be taken over. The local store keeps the
record time in front of the value: ``8-byte big-endian timestamp + value bytes``. A window store's key is
``key bytes + 8-byte window start + 4-byte sequence number``, in the changelog and in the store alike.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from everflow.records import Int64, StoreChanges

_TIMESTAMP = struct.Struct(">q")
TIMESTAMP_BYTES = 8
WINDOW_SUFFIX_BYTES = 12
"""Window start and sequence number at the end of a window store's key."""


def pack_value(timestamp: int, value: bytes) -> bytes:
    """The stored form of one value; ``timestamp`` in ms."""
    return _TIMESTAMP.pack(timestamp) + value


def unpack_value(stored: bytes) -> tuple[int, bytes]:
    """Inverse of :func:`pack_value`: (timestamp in ms, value bytes)."""
    return _TIMESTAMP.unpack_from(stored)[0], stored[TIMESTAMP_BYTES:]


def pack_values(values: Sequence[bytes | None], timestamps: Int64) -> list[bytes | None]:
    """Stored forms of many values, None staying None; ``timestamps`` int64 ms, as long as ``values``."""
    if len(values) != len(timestamps):
        raise ValueError(f"{len(values)} values but {len(timestamps)} timestamps")
    stamps = np.asarray(timestamps, dtype=np.int64).astype(">i8").tobytes()
    offsets = range(0, TIMESTAMP_BYTES * len(values), TIMESTAMP_BYTES)
    return [
        None if value is None else stamps[at : at + TIMESTAMP_BYTES] + value for at, value in zip(offsets, values, strict=True)
    ]


def last_values(keys: Sequence[bytes | None], values: Sequence[bytes | None], timestamps: Int64) -> dict[bytes, bytes | None]:
    """The fold of changelog records: key -> stored form of its last value, None where that is a delete.

    Records with a null key are skipped, as Kafka Streams does. The dictionary is in order of first
    appearance.
    """
    folded: dict[bytes | None, bytes | None] = dict(
        zip(keys, pack_values(values, timestamps), strict=True),
    )
    folded.pop(None, None)
    return folded  # type: ignore[return-value]  # the only None key has just been removed


def fold(changes: StoreChanges) -> dict[bytes, bytes | None]:
    """:func:`last_values` of one batch's changes."""
    return last_values(changes.keys, changes.values, changes.timestamps)


def records(changes: StoreChanges) -> Iterator[tuple[bytes, bytes | None, int]]:
    """The changelog records (key, value, timestamp in ms) of ``changes``, in order, none left out."""
    return zip(changes.keys, changes.values, np.asarray(changes.timestamps).tolist(), strict=True)


def from_records(store: str, log: Iterable[tuple[bytes, bytes | None, int]]) -> StoreChanges:
    """Inverse of :func:`records`."""
    rows = list(log)
    return StoreChanges(
        store,
        [key for key, _, _ in rows],
        [value for _, value, _ in rows],
        np.array([timestamp for _, _, timestamp in rows], dtype=np.int64),
    )


def window_starts(keys: Sequence[bytes]) -> Int64:
    """Window starts (ms) of window store keys. ValueError if a key is too short to be one."""
    starts = b"".join([key[-WINDOW_SUFFIX_BYTES:-4] for key in keys])
    if keys and min(map(len, keys)) < WINDOW_SUFFIX_BYTES:
        shortest = min(keys, key=len)
        raise ValueError(
            f"{shortest!r} is no window store key: it has {len(shortest)} bytes, a key ends with the "
            "8-byte window "
            "start and the 4-byte sequence number"
        )
    return np.frombuffer(starts, dtype=">i8").astype(np.int64)
