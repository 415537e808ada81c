"""Records in stores: their headers and values as bytes, and stored ones beside those of a batch."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from everflow.records import HEADERS, EdgeBatch, Int64, joined_headers
from everflow.serdes import Serde

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
