"""Records in stores: their headers and values as bytes, and stored ones beside those of a batch."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import HEADERS, EdgeBatch, Int64, StoreChanges, joined_headers, valid
from everflow.serdes import Serde
from everflow.topology.graph import LoadedTableNode
from everflow.user_program import shown

_LENGTH = struct.Struct(">i")
Headers: TypeAlias = "list[dict[str, object]]"


class StoredRecords(NamedTuple):
    """Records from a store, column by column; a key or value is None where the record has none."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Headers]


class RecordParts(NamedTuple):
    """Keys, values and headers of records; headers None: no record has any."""

    key: pa.Array
    value: pa.Array
    headers: pa.Array | None


def beside_stored(
    batch: EdgeBatch, stored: StoredRecords, key_serde: Serde, value_serde: Serde, at: Int64
) -> RecordParts:
    """The records ``at``, in that order: numbers from 0 on are rows of the batch, those from its
    length on are the stored records. SerdeError for bytes that cannot be read."""
    rows = pa.array(at)
    keys = key_serde.decode_array(pa.array(stored.keys, pa.binary()))
    values = value_serde.decode_array(pa.array(stored.values, pa.binary()))
    listed = pa.array(stored.headers, HEADERS) if any(stored.headers) else None
    headers = joined_headers([(batch.headers, len(batch)), (listed, len(stored.headers))])
    return RecordParts(
        pa.concat_arrays([batch.key, keys.cast(batch.key.type)]).take(rows),
        pa.concat_arrays([batch.value, values.cast(batch.value.type)]).take(rows),
        None if headers is None else headers.take(rows),
    )


def packed_record(headers: Sequence[Mapping[str, object]] | None, value: bytes) -> bytes:
    """Headers before a value: their number, then name and value with their lengths, -1 for none."""
    parts = [_LENGTH.pack(len(headers or ()))]
    for one in headers or ():
        name = str(one["key"]).encode()
        found = one["value"]
        parts += [_LENGTH.pack(len(name)), name]
        if isinstance(found, bytes):
            parts += [_LENGTH.pack(len(found)), found]
        else:
            parts.append(_LENGTH.pack(-1))
    return b"".join([*parts, value])


def unpacked_record(data: bytes) -> tuple[Headers, bytes]:
    """Inverse of `packed_record`."""
    (count,), at = _LENGTH.unpack_from(data), _LENGTH.size
    headers: Headers = []
    for _ in range(count):
        name, at = _part(data, at)
        value, at = _part(data, at)
        headers.append({"key": (name or b"").decode(), "value": value})
    return headers, data[at:]


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    (length,), at = _LENGTH.unpack_from(data, at), at + _LENGTH.size
    return (None, at) if length < 0 else (data[at : at + length], at + length)


# --- the rows of a DataFrame's table as its store keeps them: sorted key bytes, each once ---------


CHUNK_ROWS = 50_000


class LoadedRows(NamedTuple):
    """``keys`` and ``values``: binary columns; ``without_key``: rows that were left out."""

    store: str
    keys: pa.Array
    values: pa.Array
    without_key: int

    def chunks(self, at_ms: int) -> Iterator[StoreChanges]:
        """Parts that a store takes at once, one at least; ``at_ms``: the time of all entries."""
        for start in range(0, max(1, len(self.keys)), CHUNK_ROWS):
            part = slice(start, start + CHUNK_ROWS)
            keys = self.keys[part].to_pylist()
            times = np.full(len(keys), at_ms, np.int64)
            yield StoreChanges(self.store, keys, self.values[part].to_pylist(), times)


def loaded_rows(node: LoadedTableNode) -> LoadedRows:
    """The table's rows as they are now. ValueError if two have one key; what loading raises."""
    store = node.store
    keys, values, without_key = [pa.array([], pa.binary())], [pa.array([], pa.binary())], 0
    for key, value in node.rows():
        keyed = np.flatnonzero(valid(key))
        without_key += len(key) - len(keyed)
        at = pa.array(keyed)
        keys.append(store.key_serde.encode_array(key.take(at)).cast(pa.binary()))
        values.append(store.value_serde.encode_array(value.take(at)).cast(pa.binary()))
    every = pa.concat_arrays(keys)
    order = pc.sort_indices(every)
    every = every.take(order)
    if len(every) > 1:
        again = pc.equal(every[1:], every[:-1])
        if pc.any(again).as_py():
            twice = store.key_serde.decode(every[pc.index(again, True).as_py()].as_py())
            raise ValueError(
                f"two rows have the key {shown(twice)}; leave one out, for example by "
                f"dropDuplicates on the key"
            )
    return LoadedRows(store.name, every, pa.concat_arrays(values).take(order), without_key)
