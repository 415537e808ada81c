"""Fits keys of any length into LMDB's 1 to 511 bytes, in their order (D4). Pure.

- A key of up to ``SHORT_BYTES`` is stored as ``0x00 + key``: the prefix makes the empty key legal.
- A longer one is stored under ``0x00 + its first SHORT_BYTES bytes + hash of the whole key``
  (always 511 bytes, so it cannot be taken for a short one). The rest of the key lies in the value,
  a *bucket*: usually one entry, several where hashes collide. So stored order is key order, except
  inside a group of long keys with one common beginning, which a range scan sorts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

PREFIX = b"\x00"
HASH_BYTES = 32
STORED_BYTES_MAX = 511
SHORT_BYTES = STORED_BYTES_MAX - HASH_BYTES - len(PREFIX)
GROUP_BYTES = len(PREFIX) + SHORT_BYTES
"""Length of the part that stored long keys of one group have in common."""

_LENGTHS = struct.Struct(">II")


def has_long(keys: Sequence[bytes]) -> bool:
    return bool(keys) and max(map(len, keys)) > SHORT_BYTES


def encode_short(keys: Iterable[bytes]) -> list[bytes]:
    return [PREFIX + key for key in keys]


def encode(key: bytes) -> bytes:
    if len(key) <= SHORT_BYTES:
        return PREFIX + key
    return PREFIX + key[:SHORT_BYTES] + _digest(key)


def lower_bound(key: bytes | None) -> bytes:
    """The first stored key at which ``key``, or anything behind it, may lie."""
    return PREFIX if key is None else PREFIX + key[:SHORT_BYTES]


def upper_bound(key: bytes | None) -> bytes | None:
    """A stored key behind all at which something below ``key`` may lie; None: there is no bound."""
    if key is None or len(key) <= SHORT_BYTES:
        return None if key is None else PREFIX + key
    return PREFIX + key[:SHORT_BYTES] + b"\xff" * HASH_BYTES


def is_bucket(stored_key: bytes) -> bool:
    return len(stored_key) == STORED_BYTES_MAX


def read_bucket(bucket: bytes | None) -> dict[bytes, bytes]:
    """Rest of the key -> stored value."""
    entries: dict[bytes, bytes] = {}
    at = 0
    while bucket and at < len(bucket):
        rest_bytes, value_bytes = _LENGTHS.unpack_from(bucket, at)
        at += _LENGTHS.size
        rest, at = bucket[at : at + rest_bytes], at + rest_bytes
        entries[rest], at = bucket[at : at + value_bytes], at + value_bytes
    return entries


def write_bucket(entries: dict[bytes, bytes]) -> bytes:
    """Inverse of :func:`read_bucket`."""
    return b"".join(
        _LENGTHS.pack(len(rest), len(value)) + rest + value
        for rest, value in sorted(entries.items())
    )


def in_range(
    stored: Iterable[tuple[bytes, bytes]],
    start: bytes | None,
    end: bytes | None,
    *,
    reverse: bool = False,
) -> Iterator[tuple[bytes, bytes]]:
    """Entries ``start <= key < end`` in key order, of stored ones from ``lower_bound(start)`` on;
    ``reverse``: falling, from ``upper_bound(end)`` on.

    Stops once nothing can follow. Holds one group of long keys with a common beginning in memory.
    """
    group: list[tuple[bytes, bytes]] = []
    group_prefix = b""
    for stored_key, value in stored:
        if group and not (is_bucket(stored_key) and stored_key.startswith(group_prefix)):
            group.sort(reverse=reverse)
            yield from _within(group, start, end)
            last, group = group[-1][0], []
            if (
                (start is not None and last < start)
                if reverse
                else (end is not None and last >= end)
            ):
                return
        if is_bucket(stored_key):
            group_prefix = stored_key[:GROUP_BYTES]
            group += [
                (group_prefix[1:] + rest, found) for rest, found in read_bucket(value).items()
            ]
            continue
        key = stored_key[1:]
        if end is not None and key >= end:
            if not reverse:
                return
        elif start is None or key >= start:
            yield key, value
        elif reverse:
            return
    group.sort(reverse=reverse)
    yield from _within(group, start, end)


def _within(
    entries: list[tuple[bytes, bytes]], start: bytes | None, end: bytes | None
) -> Iterator[tuple[bytes, bytes]]:
    for key, value in entries:
        if (start is None or key >= start) and (end is None or key < end):
            yield key, value


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=HASH_BYTES).digest()
