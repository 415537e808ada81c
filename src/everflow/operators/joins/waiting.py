"""Records of a stream-stream join that wait for a match, in Kafka Streams' bytes.

Key: 8-byte time, 1 for the left side or 0, key bytes (TimestampedKeyAndJoinSide). Value: the list
of the values of that key and time, each 1 (left) or 0 (right) and the value's bytes
(LeftOrRightValue in a ListSerializer's variable form). Earlier records come first.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from everflow.serdes.base import SerdeError

_KEY = struct.Struct(">qB")
_TIME = struct.Struct(">q")
_HEAD = struct.Struct(">Bi")
_SIZE = struct.Struct(">i")
_VARIABLE = 1
LEFT, RIGHT = 1, 0


class WaitingKey(NamedTuple):
    """Record time (ms), side (`LEFT`, `RIGHT`) and key bytes; sorts as its bytes do."""

    time: int
    side: int
    key: bytes

    def to_bytes(self) -> bytes:
        """The store's key."""
        return _KEY.pack(self.time, self.side) + self.key

    @staticmethod
    def of(stored: bytes) -> WaitingKey:
        """Inverse of `to_bytes`; SerdeError."""
        if len(stored) < _KEY.size:
            raise SerdeError(f"{stored!r} is no key of a record that waits for a match")
        time, side = _KEY.unpack_from(stored)
        return WaitingKey(time, side, stored[_KEY.size :])


def up_to(time: int) -> bytes:
    """A bound behind all keys of times from 0 to ``time`` (ms)."""
    return _TIME.pack(time + 1)


def to_bytes(side: int, values: Sequence[bytes]) -> bytes:
    """Values of one key, time and side."""
    parts = [_HEAD.pack(_VARIABLE, len(values))]
    for value in values:
        parts += [_SIZE.pack(len(value) + 1), bytes((side,)), value]
    return b"".join(parts)


def values_of(data: bytes) -> list[bytes]:
    """Inverse of `to_bytes`; SerdeError."""
    try:
        form, count = _HEAD.unpack_from(data)
        at, found = _HEAD.size, list[bytes]()
        for _ in range(count):
            (size,) = _SIZE.unpack_from(data, at)
            at += _SIZE.size
            found.append(data[at + 1 : at + size])
            at += size
    except struct.error:
        form, at = -1, -1
    if form != _VARIABLE or at != len(data):
        raise SerdeError(f"{data[:40]!r} is no list of values that wait for a match")
    return found
