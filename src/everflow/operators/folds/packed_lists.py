"""Lists as bytes, written and read a column at a time.

Layout, all numbers big endian::

    count       4 bytes
    lengths     4 bytes for each element: of its bytes
    elements    each a packed struct of one field (`everflow.serdes.packed`)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import SerdeError, flat
from everflow.serdes.packed import PackedSerde

_WORD = 4


def pack(lists: pa.Array) -> pa.Array:
    """Bytes of lists; null where the list is null."""
    lists = flat(lists, lists.type)
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy()
    elements = _serde(lists.type).encode_array(
        pa.StructArray.from_arrays([lists.flatten()], names=["e"])
    )
    sizes = pc.binary_length(elements).to_numpy()
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    parts = [
        _words(lengths),
        pc.binary_join(pa.ListArray.from_arrays(offsets, _words(sizes)), b""),
        pc.binary_join(pa.ListArray.from_arrays(offsets, elements), b""),
    ]
    packed = pc.binary_join_element_wise(*parts, pa.scalar(b""))
    return pc.if_else(lists.is_valid(), packed, pa.scalar(None, pa.binary()))


def unpack(data: pa.Array, type_: pa.DataType) -> pa.Array:
    """Inverse of `pack`; SerdeError for bytes that are none."""
    data = flat(data, pa.binary())
    there = data.is_valid()
    some = data.drop_null()
    sizes = pc.binary_length(some).to_numpy().astype(np.int64)
    if (sizes < _WORD).any():
        raise SerdeError(f"a list of {int(sizes.min())} bytes, expected at least {_WORD}")
    raw = np.frombuffer(b"".join(some.to_pylist()), np.uint8)
    begins = np.cumsum(sizes) - sizes
    counts = _numbers(raw, begins)
    if (counts < 0).any() or (_WORD * (counts + 1) > sizes).any():
        raise SerdeError("bytes that are no list: their count is wrong")
    inside = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    lengths = _numbers(raw, np.repeat(begins, counts) + _WORD * (inside + 1))
    heads = _WORD * (counts + 1)
    ends = np.cumsum(lengths)
    lists = np.cumsum(counts)
    total = np.diff(np.concatenate([[0], ends])[lists], prepend=0)
    if (lengths < 0).any() or (total + heads != sizes).any():
        raise SerdeError("bytes that are no list: their lengths are wrong")
    before = np.repeat(np.concatenate([[0], ends])[lists - counts], counts)
    starts = ends - lengths - before + np.repeat(heads, counts)
    starts += np.repeat(begins, counts)
    items = _serde(type_).decode_array(_cut(raw, starts, lengths)).field(0)
    offsets = np.concatenate([[0], lists])
    if items.type != type_.value_type:  # a cast of lists of voids to their own type breaks them
        items = items.cast(type_.value_type)
    found = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)
    if data.null_count == 0:
        return found
    at = np.cumsum(there.to_numpy(zero_copy_only=False)) - 1
    return found.take(pa.array(at, mask=~there.to_numpy(zero_copy_only=False)))


def _serde(type_: pa.DataType) -> PackedSerde:
    return PackedSerde(pa.struct([("e", type_.value_type)]))


def _words(numbers: Int64) -> pa.Array:
    buffer = pa.py_buffer(np.ascontiguousarray(numbers.astype(">i4")))
    words = pa.Array.from_buffers(pa.binary(_WORD), len(numbers), [None, buffer])
    return words.cast(pa.binary())


def _cut(raw: npt.NDArray[np.uint8], starts: Int64, lengths: Int64) -> pa.Array:
    """The bytes from each start on."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    index = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(raw[index])]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _numbers(raw: npt.NDArray[np.uint8], at: Int64) -> Int64:
    """The words that begin at these places."""
    rows = raw[at[:, None] + np.arange(_WORD)]
    return np.ascontiguousarray(rows).view(">i4").reshape(-1).astype(np.int64)
