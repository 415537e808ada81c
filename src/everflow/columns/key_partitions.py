"""Which partition a key goes to, by its producer's hash, for a column of keys at once. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from everflow.records import Int64

Hashes = NDArray[np.uint32]

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)
_POSITIVE = np.uint32(0x7FFFFFFF)
_WORD = 4
MURMUR2, CRC32, FNV1A = "murmur2", "crc32", "fnv1a"
BY_HASH = (MURMUR2, CRC32, FNV1A)
"""Java's default; librdkafka's (``consistent_random``: confluent-kafka, and so most producers in
Python, C, Go and .NET); librdkafka's ``fnv1a_random``, which is Sarama's default, too."""
_CRC_TABLE = np.array([zlib.crc32(bytes((n ^ 0xFF,))) ^ 0xFF000000 for n in range(256)], np.uint32)
"""The change by one byte: `zlib.crc32` of it, without beginning and end."""


def murmur2(keys: pa.Array) -> Hashes:
    """``Utils.murmur2`` of kafka-clients for every key; a null hashes as an empty key."""
    raw, starts, lengths = places(keys)
    # Longest first: the keys that still have a word at some place are then the first ones.
    order = np.argsort(-lengths, kind="stable")
    at, left = starts[order], lengths[order]
    with np.errstate(over="ignore"):
        hashes = np.uint32(_SEED) ^ left.astype(np.uint32)
        words = _words(raw)
        longest = int(left[0]) if len(left) else 0
        for place in range(0, longest - _WORD + 1, _WORD):
            some = int(np.searchsorted(-left, -(place + _WORD), side="right"))
            k = words[at[:some] + place] * _M
            k ^= k >> _R
            hashes[:some] = (hashes[:some] * _M) ^ (k * _M)
        _mix_rest(hashes, raw, at, left)
        hashes ^= hashes >> np.uint32(13)
        hashes *= _M
        hashes ^= hashes >> np.uint32(15)
    found: Hashes = np.empty_like(hashes)
    found[order] = hashes
    return found


def crc32(keys: pa.Array) -> Hashes:
    """`zlib.crc32` of every key of a binary column; a null hashes as an empty key."""

    def step(hashes: Hashes, data: NDArray[np.uint8]) -> Hashes:
        mixed: Hashes = _CRC_TABLE[(hashes & np.uint32(0xFF)) ^ data] ^ (hashes >> np.uint32(8))
        return mixed

    return ~_byte_by_byte(keys, 0xFFFFFFFF, step)


def fnv1a(keys: pa.Array) -> Hashes:
    """librdkafka's ``rd_fnv1a``, the absolute value of FNV-1a as a signed number, of every key."""

    def step(hashes: Hashes, data: NDArray[np.uint8]) -> Hashes:
        mixed: Hashes = (hashes ^ data) * np.uint32(0x01000193)
        return mixed

    with np.errstate(over="ignore"):
        signed = _byte_by_byte(keys, 0x811C9DC5, step).view(np.int32)
        positive: Hashes = np.where(signed < 0, -signed, signed).astype(np.int32).view(np.uint32)
        return positive


def java_partitions(keys: pa.Array, partitions: int | Int64) -> Int64:
    return key_partitions(keys, partitions, MURMUR2)


def key_partitions(keys: pa.Array, partitions: int | Int64, by: str) -> Int64:
    """The partition of each key, of so many (for all, or for each), by one of `BY_HASH`."""
    if by == MURMUR2:
        hashes = murmur2(keys) & _POSITIVE
    else:
        hashes = crc32(keys) if by == CRC32 else fnv1a(keys)
    found: Int64 = (hashes % np.asarray(partitions, np.uint32)).astype(np.int64)
    return found


def _byte_by_byte(
    keys: pa.Array,
    begin: int,
    step: Callable[[Hashes, NDArray[np.uint8]], Hashes],
) -> Hashes:
    raw, starts, lengths = places(keys)
    order = np.argsort(-lengths, kind="stable")
    at, left = starts[order], lengths[order]
    hashes = np.full(len(left), begin, np.uint32)
    for place in range(int(left[0]) if len(left) else 0):
        some = int(np.searchsorted(-left, -place, side="left"))
        hashes[:some] = step(hashes[:some], raw[at[:some] + place])
    found: Hashes = np.empty_like(hashes)
    found[order] = hashes
    return found


def places(column: pa.Array) -> tuple[NDArray[np.uint8], Int64, Int64]:
    """The bytes of a binary column (int32 offsets), each value's start and length (a null: 0)."""
    _, offset_buffer, data = column.buffers()
    count = len(column)
    if offset_buffer is None or not count:
        nothing = np.empty(0, np.int64)
        return np.empty(0, np.uint8), nothing, nothing
    offsets = np.frombuffer(
        offset_buffer,
        np.int32,
        count + 1,
        column.offset * 4,
    ).astype(np.int64)
    lengths = np.diff(offsets)
    if column.null_count:
        lengths[column.is_null().to_numpy(zero_copy_only=False)] = 0
    raw = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    return raw, offsets[:-1], lengths


def _words(raw: NDArray[np.uint8]) -> Hashes:
    """The little-endian number of four bytes at every place."""
    found: Hashes = np.ndarray((max(0, len(raw) - _WORD + 1),), "<u4", raw, 0, (1,))
    return found


def _mix_rest(hashes: Hashes, raw: NDArray[np.uint8], at: Int64, lengths: Int64) -> None:
    """The last one to three bytes."""
    rest = lengths & (_WORD - 1)
    behind = at + (lengths - rest)
    for more in (2, 1, 0):
        some = np.flatnonzero(rest > more)
        hashes[some] ^= raw[behind[some] + more].astype(np.uint32) << np.uint32(8 * more)
    some = np.flatnonzero(rest)
    hashes[some] *= _M
