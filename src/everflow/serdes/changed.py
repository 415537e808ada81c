"""A change of a table's entry, new and old value, in Java's bytes (ChangedSerializer, KIP-904).

Old alone: its bytes and 0. New alone: its bytes and 1. Both: the new one's length as a zigzag
varint, the bytes of the new one and of the old one, and 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import ByColumn, Serde, SerdeError, bytes_of, decode_present, flat, slices

_OLD, _NEW, _BOTH = 0, 1, 2
_VARINT_BYTES = 5


def changed_type(value: pa.DataType) -> pa.DataType:
    """``struct<new, old>``; null where there is no entry."""
    return pa.struct([("new", value), ("old", value)])


@dataclass(frozen=True, repr=False)
class ChangedSerde(ByColumn):
    """``struct<new, old>`` of ``inner``'s values; of both null there are no bytes."""

    inner: Serde
    kind: str = "changed"

    @property
    def type(self) -> pa.DataType:
        return changed_type(self.inner.type)

    def encode_array(self, values: pa.Array) -> pa.Array:
        new, old = (self.inner.encode_array(side) for side in flat(values, self.type).flatten())
        there = [side.is_valid().to_numpy(zero_copy_only=False) for side in (new, old)]
        both = there[0] & there[1]
        sizes = pc.binary_length(new).fill_null(0).to_numpy().astype(np.int64)
        known, place = np.unique(np.where(both, sizes, -1), return_inverse=True)
        heads = pa.array([b"" if size < 0 else varint(size) for size in known.tolist()])
        flags = np.where(both, _BOTH, np.where(there[0], _NEW, _OLD))
        tails = pa.array([bytes((flag,)) for flag in (_OLD, _NEW, _BOTH)])
        written = pc.binary_join_element_wise(
            heads.cast(pa.binary()).take(pa.array(place)),
            new.fill_null(b""),
            old.fill_null(b""),
            tails.take(pa.array(flags)),
            pa.scalar(b""),
        )
        return pc.if_else(pa.array(there[0] | there[1]), written, pa.scalar(None, pa.binary()))

    def _decode_all(self, data: pa.Array) -> pa.Array:
        sizes = pc.binary_length(data).to_numpy().astype(np.int64)
        flags = _bytes_at(data, sizes - 1, sizes)
        bad = np.flatnonzero((sizes == 0) | (flags > _BOTH))
        if len(bad):
            raise SerdeError("no change of an entry", index=int(bad[0]))
        new_size, head = _read_varints(data, sizes)
        both = flags == _BOTH
        new_size = np.where(both, new_size, np.where(flags == _NEW, sizes - 1, 0))
        head = np.where(both, head, 0)
        old_size = sizes - 1 - head - new_size
        bad = np.flatnonzero((new_size < 0) | (old_size < 0))
        if len(bad):
            raise SerdeError("a change of an entry is cut off", index=int(bad[0]))
        sides = (
            self._side(slices(data, head, new_size), flags != _OLD),
            self._side(slices(data, head + new_size, old_size), flags != _NEW),
        )
        return pa.StructArray.from_arrays(list(sides), fields=list(self.type))

    def _side(self, data: pa.Array, there: npt.NDArray[np.bool_]) -> pa.Array:
        rows = pa.array(np.arange(len(data)), mask=~there)
        return decode_present(data.take(rows), self.inner.decode_array)

    def __repr__(self) -> str:
        return f"changed({self.inner!r})"


def varint(number: int) -> bytes:
    """Zigzag, as Kafka's ByteUtils.writeVarint writes it."""
    rest, found = number << 1 if number >= 0 else -(number << 1) - 1, bytearray()
    while rest >= 0x80:
        found.append(rest & 0x7F | 0x80)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def _bytes_at(data: pa.Array, places: Int64, sizes: Int64) -> Int64:
    """The byte at each row's place; 0 where that lies outside of the row."""
    raw, starts = bytes_of(data)
    inside = (places >= 0) & (places < sizes)
    found = np.zeros(len(data), np.int64)
    found[inside] = raw[(starts[:-1] + places)[inside]]
    return found


def _read_varints(data: pa.Array, sizes: Int64) -> tuple[Int64, Int64]:
    """The zigzag varint that each row begins with, and its bytes; -1 where it does not end."""
    number, length = np.zeros(len(data), np.int64), np.zeros(len(data), np.int64)
    going = np.ones(len(data), bool)
    for at in range(_VARINT_BYTES):
        one = _bytes_at(data, np.full(len(data), at), sizes)
        number[going] |= (one[going] & 0x7F) << (7 * at)
        length[going] += 1
        going &= one >= 0x80
    decoded = (number >> 1) ^ -(number & 1)
    decoded[going] = -1
    return decoded, length
