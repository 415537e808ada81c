"""What Confluent's serializers write in front of a value: which schema it was written with.

A zero and the schema's id in 4 bytes, or a one and its GUID in 16; for Protobuf then the numbers
that say which message of the schema it is. Or the latter form stands in a header of the record.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import REGISTRY_HEAD, SerdeError, bytes_of, ranges, rest, starts, words
from everflow.serdes.byte_rows import Flags

ID_HEADERS = {"key": "__key_schema_id", "value": "__value_schema_id"}
GUID_HEAD = 17
_MOST_INDEXES = 1_000

SchemaId = int | str
"""An id, or a GUID in the form of `uuid.UUID`."""


class Group(NamedTuple):
    """Values that were written with one schema. ``data``: what stands behind the ids."""

    schema: SchemaId
    rows: Int64
    data: pa.Array


def groups(data: pa.Array) -> tuple[list[Group], dict[int, SerdeError]]:
    """The values of ``data`` (``pa.binary()``, none null) by their schemas, and why a row has
    none."""
    content, places = bytes_of(data)
    begins, sizes = places[:-1].astype(np.int64), np.diff(places).astype(np.int64)
    content = content if len(content) else np.zeros(1, np.uint8)
    magic = np.where(sizes > 0, content[np.minimum(begins, len(content) - 1)], 0xFF)
    by_id = np.flatnonzero((magic == 0) & (sizes >= REGISTRY_HEAD))
    by_guid = np.flatnonzero((magic == 1) & (sizes >= GUID_HEAD))
    found = [
        *_grouped(data, content, begins, by_id, REGISTRY_HEAD),
        *_grouped(data, content, begins, by_guid, GUID_HEAD),
    ]
    faults = {}
    if len(by_id) + len(by_guid) < len(data):
        wrong = np.ones(len(data), bool)
        wrong[by_id] = wrong[by_guid] = False
        faults = {int(row): _no_head(data[int(row)].as_py()) for row in np.flatnonzero(wrong)}
    return found, faults


def _grouped(
    data: pa.Array, content: npt.NDArray[np.uint8], begins: Int64, rows: Int64, head: int
) -> list[Group]:
    if not len(rows):
        return []
    whole = len(rows) == len(data)
    own = begins if whole else begins[rows]
    fours = words(content, "<u4")
    parts = [fours[own + at] for at in range(1, head, 4)]
    if all((part == part[0]).all() for part in parts):
        first = content[own[0] + 1 : own[0] + head].tobytes()
        some = data if whole else data.take(pa.array(rows))
        return [Group(_schema_id(first), rows, rest(some, head))]
    heads = np.ascontiguousarray(np.stack(parts, axis=1)).view(f"V{head - 1}")
    kinds, places = np.unique(heads.reshape(-1), return_inverse=True)
    found = []
    for at, kind in enumerate(kinds):
        mine = rows[places == at]
        found.append(Group(_schema_id(kind.tobytes()), mine, rest(data.take(pa.array(mine)), head)))
    return found


def _schema_id(data: bytes) -> SchemaId:
    return int.from_bytes(data, "big") if len(data) == 4 else str(uuid.UUID(bytes=data))


def _no_head(data: bytes) -> SerdeError:
    if not data:
        return SerdeError("it is empty; a schema's id comes first")
    if data[0] in (0, 1):
        whole = REGISTRY_HEAD if data[0] == 0 else GUID_HEAD
        return SerdeError(f"its {len(data)} bytes end before the schema's id does ({whole} bytes)")
    return SerdeError(
        f"it was not written with a schema registry: its first byte is {data[0]}, not 0 or 1"
    )


def head_of(schema: SchemaId, indexes: Sequence[int] = ()) -> bytes:
    """What is written before a value; ``indexes``: of Protobuf's message."""
    if isinstance(schema, int):
        return b"\0" + schema.to_bytes(4, "big") + written_indexes(indexes)
    return b"\1" + uuid.UUID(schema).bytes + written_indexes(indexes)


def with_header(data: pa.Array, headers: pa.Array | None, part: str) -> pa.Array:
    """``data`` as if the ids that stand in headers (of type `everflow.records.HEADERS`) stood in
    front of the values. ``part``: ``key`` or ``value``."""
    if headers is None or not len(headers):
        return data
    entries = headers.flatten()
    mine = pc.equal(entries.field("key"), ID_HEADERS[part]).fill_null(False)
    if not pc.any(mine, min_count=0).as_py():
        return data
    places = np.flatnonzero(mine.to_numpy(zero_copy_only=False))
    owners = pc.list_parent_indices(headers).to_numpy()[places]
    owners, first = np.unique(owners, return_index=True)
    where = np.full(len(data), -1)
    where[owners] = places[first]
    ids = entries.field("value").take(pa.array(where, mask=where < 0)).fill_null(b"")
    return pc.binary_join_element_wise(ids, data, pa.scalar(b""))


def identified(
    data: bytes | None, headers: Iterable[tuple[str, bytes | None]], part: str
) -> bytes | None:
    """As `with_header`, of one record."""
    found = next((id_ for name, id_ in headers if name == ID_HEADERS[part]), None)
    return data if data is None or found is None else found + data


def without_ids(headers: pa.Array | None, part: str) -> pa.Array | None:
    """``headers`` without the ids that `with_header` has read: another schema's bytes may be
    written under them. ``part``: ``key`` or ``value``."""
    if headers is None or not len(headers):
        return headers
    entries = headers.flatten()
    kept = pc.not_equal(entries.field("key"), ID_HEADERS[part]).fill_null(True)
    if pc.all(kept, min_count=0).as_py():
        return headers
    counts = np.bincount(
        pc.list_parent_indices(headers).to_numpy()[kept.to_numpy(zero_copy_only=False)],
        minlength=len(headers),
    )
    return _listed(counts, entries.filter(kept), headers.type)


def with_ids(headers: pa.Array, part: str, head: bytes, there: Flags) -> pa.Array:
    """``headers`` with ``head`` as the id of each record that is ``there``."""
    bare = without_ids(headers, part)
    assert bare is not None
    entries = bare.flatten()
    counts = pc.list_value_length(bare).fill_null(0).to_numpy().astype(np.int64)
    total = counts + there
    own = pa.array([{"key": ID_HEADERS[part], "value": head}], headers.type.value_type)
    places = np.full(int(total.sum()), len(entries))
    places[ranges(starts(total)[:-1], counts)] = np.arange(len(entries))
    return _listed(total, pa.concat_arrays([entries, own]).take(pa.array(places)), headers.type)


def _listed(counts: Int64, entries: pa.Array, type_: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(starts(counts), pa.int32()), entries, type=type_)


# --- which message of a Protobuf schema -----------------------------------------------------------


def written_indexes(indexes: Sequence[int]) -> bytes:
    """As MessageIndexes of Java: their number and they themselves, zigzag; (0,) is one zero."""
    if not indexes:
        return b""
    if tuple(indexes) == (0,):
        return b"\0"
    return b"".join(_varint(one) for one in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    left, found = number << 1, bytearray()
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes((*found, left))


def read_indexes(data: bytes) -> tuple[tuple[int, ...], int]:
    """The numbers at the beginning, and how many bytes they take. SerdeError where they end too
    early."""
    count, at = _read_varint(data, 0)
    if count == 0:
        return (0,), at
    if not 0 < count <= _MOST_INDEXES:
        raise SerdeError(f"it says that its message lies {count} levels deep")
    found = []
    for _ in range(count):
        number, at = _read_varint(data, at)
        found.append(number)
    return tuple(found), at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise SerdeError("it ends before the numbers of its message do")
