"""Columns -> Avro bytes, field by field for all rows; a value's pieces are joined by Arrow."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.arrow_types import field_step
from everflow.serdes.avro_types import Avro, branches, single
from everflow.serdes.base import SerdeError, numbers_as_rows, starts
from everflow.serdes.byte_rows import (
    NOTHING,
    Piece,
    in_order,
    joined,
    lengths,
    varint,
    varints,
    zigzag,
)

Write = Callable[[pa.Array], list[Piece]]


class _Lacking(Exception):
    """A value that the schema has no place for. ``row``: which, of the column at hand."""

    def __init__(self, row: int, path: str, why: str) -> None:
        super().__init__(f"{path.removeprefix('.') or 'the value'}: {why}")
        self.row = row


def write_columns(values: pa.Array, type_: Avro, head: bytes = b"") -> pa.Array:
    """``pa.binary()``, null where ``values`` (of ``arrow_of(type_)``) is null; ``head`` stands
    before each. SerdeError with the first row that the schema has no place for."""
    there = values.is_valid().to_numpy(zero_copy_only=False)
    whole = bool(there.all()) or _takes_null(type_)
    write = writer(type_)
    if type_.kind == "bytes":  # Confluent's serializers write these as they are
        write = _bare(type_)
    try:
        some = values if whole else values.drop_null()
        written = joined([head, *write(some)], len(some))
    except _Lacking as error:
        row = error.row if whole else int(np.flatnonzero(there)[error.row])
        raise SerdeError(f"Avro cannot be written: {error}", index=row) from None
    if there.all():
        return written
    if whole:
        return pc.if_else(pa.array(there), written, pa.scalar(None, pa.binary()))
    return written.take(pa.array(np.cumsum(there) - 1, mask=~there))


def _takes_null(type_: Avro) -> bool:
    return type_.kind == "null"


@lru_cache(maxsize=1024)
def writer(type_: Avro, path: str = "") -> Write:
    """Writes a column of the type; `_Lacking` for a null where the schema has none."""
    if type_.kind == "union":
        return _union(type_, path)
    if type_.kind == "null":
        return lambda column: []
    write = _present(type_, path)

    def checked(column: pa.Array) -> list[Piece]:
        if column.null_count:
            row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
            raise _Lacking(row, path, f"null, which {type_} does not have; declare it as a union")
        return write(column)

    return checked


def _bare(type_: Avro) -> Write:
    return lambda column: [_decimals(column, None, "") if type_.logical else column]


def _present(type_: Avro, path: str) -> Write:
    match type_.kind:
        case "boolean":
            return lambda column: [numbers_as_rows(column.cast(pa.uint8()).to_numpy(), "u1")]
        case "int" | "long":
            return lambda column: [_longs(_numbers(column, type_, path))]
        case "float":
            return lambda column: [numbers_as_rows(column.to_numpy(), "<f4")]
        case "double":
            return lambda column: [numbers_as_rows(column.to_numpy(), "<f8")]
        case "enum":
            return _enum(type_, path)
        case "array":
            return _array(type_, path)
        case "map":
            return _map(type_, path)
        case "record":
            return _record(type_, path)
        case "fixed":
            return lambda column: [_fixed(column, type_, path)]
    if type_.logical == "decimal":
        return lambda column: with_sizes(_decimals(column, None, path))
    return lambda column: with_sizes(column.cast(pa.binary()))


def _longs(numbers: Int64) -> Piece:
    return varints(zigzag(numbers))


def _long(number: int) -> bytes:
    return varint(number << 1)


def with_sizes(data: pa.Array) -> list[Piece]:
    return [_longs(lengths(data)), data]


def _numbers(column: pa.Array, type_: Avro, path: str) -> Int64:
    if type_.logical == "date":
        column = column.view(pa.int32())
    elif type_.logical:
        column = column.view(pa.int64())
    numbers: Int64 = column.to_numpy().astype(np.int64)
    if not type_.logical.endswith("millis"):
        return numbers
    cut = np.flatnonzero(numbers % 1000)
    if len(cut):
        raise _Lacking(int(cut[0]), path, f"{type_} would cut its microseconds off")
    whole: Int64 = numbers // 1000
    return whole


def _enum(type_: Avro, path: str) -> Write:
    symbols = pa.array(type_.symbols, pa.string())

    def write(column: pa.Array) -> list[Piece]:
        places = pc.index_in(column, symbols)
        if places.null_count:
            row = int(np.flatnonzero(places.is_null().to_numpy(zero_copy_only=False))[0])
            raise _Lacking(row, path, f"{column[row].as_py()!r:.60} is none of its symbols")
        return [_longs(places.to_numpy().astype(np.int64))]

    return write


def _fixed(column: pa.Array, type_: Avro, path: str) -> pa.Array:
    if type_.logical == "decimal":
        return _decimals(column, type_.size, path)
    wrong = np.flatnonzero(pc.binary_length(column).to_numpy() != type_.size)
    if len(wrong):
        row = int(wrong[0])
        size = len(column[row].as_py())
        raise _Lacking(row, path, f"{type_} takes {type_.size} bytes, found {size}")
    return column


def decimal_bytes(column: pa.Array) -> pa.Array:
    """Of a column of decimals without nulls: big endian, in as few bytes as Java writes."""
    return _decimals(column, None, "")


def _decimals(column: pa.Array, size: int | None, path: str) -> pa.Array:
    """Big endian, two's complement; in as few bytes as Java's BigInteger takes, or in ``size``."""
    raw = np.frombuffer(column.buffers()[1], np.uint8)
    little = raw[column.offset * 16 : (column.offset + len(column)) * 16].reshape(-1, 16)
    big = np.ascontiguousarray(little[:, ::-1])
    sign = np.where(big[:, 0] >= 0x80, 0xFF, 0).astype(np.uint8)
    same = np.cumprod(big == sign[:, None], axis=1).sum(axis=1)
    first = np.minimum(same, 15)
    other = (big[np.arange(len(big)), first] >= 0x80) != (sign == 0xFF)
    sizes = (16 - first + (other & (first > 0))).astype(np.int64)
    if size is not None:
        wide = np.flatnonzero(sizes > size)
        if len(wide):
            raise _Lacking(int(wide[0]), path, f"it takes more than {size} bytes")
        if size > 16:
            big = np.concatenate([np.repeat(sign[:, None], size - 16, axis=1), big], axis=1)
        sizes = np.full(len(big), size, np.int64)
    width = big.shape[1]
    inside = np.arange(width) >= width - sizes[:, None]
    offsets = pa.py_buffer(starts(sizes).astype(np.int32))
    return pa.Array.from_buffers(
        pa.binary(), len(sizes), [None, offsets, pa.py_buffer(big[inside])]
    )


def _record(type_: Avro, path: str) -> Write:
    fields = [writer(one.type, path + field_step(one.name)) for one in type_.fields]

    def write(column: pa.Array) -> list[Piece]:
        columns = column.flatten() if fields else []
        return [one for step, part in zip(fields, columns, strict=True) for one in step(part)]

    return write


def _array(type_: Avro, path: str) -> Write:
    entry = writer(type_.parts[0], f"{path}[]")

    def write(column: pa.Array) -> list[Piece]:
        counts = pc.list_value_length(column).to_numpy().astype(np.int64)
        return _block(counts, _inner(entry, column.flatten(), counts))

    return write


def _map(type_: Avro, path: str) -> Write:
    entry = writer(type_.parts[0], f"{path}[]")

    def write(column: pa.Array) -> list[Piece]:
        offsets = column.offsets.to_numpy()
        counts = np.diff(offsets).astype(np.int64)
        inside = slice(int(offsets[0]), int(offsets[-1]))
        keys = with_sizes(column.keys[inside].cast(pa.binary()))
        return _block(counts, keys + _inner(entry, column.items[inside], counts))

    return write


def _inner(entry: Write, entries: pa.Array, counts: Int64) -> list[Piece]:
    try:
        return entry(entries)
    except _Lacking as error:
        error.row = int(np.repeat(np.arange(len(counts)), counts)[error.row])
        raise


def _block(counts: Int64, entry: list[Piece]) -> list[Piece]:
    """Lists as one block, and the zero behind it; as Java writes them."""
    places = starts(counts)
    entries = joined(entry, int(places[-1]))
    lists = pa.ListArray.from_arrays(pa.array(places, pa.int32()), entries)
    heads = joined([_longs(counts)], len(counts))
    return [
        pc.if_else(pa.array(counts > 0), heads, NOTHING),
        pc.binary_join(lists, NOTHING),
        b"\0",
    ]


def _union(type_: Avro, path: str) -> Write:
    kinds = [one.kind for one in type_.parts]
    null = _long(kinds.index("null")) if "null" in kinds else None
    present = branches(type_)
    one = single(type_)
    if one is not None and len(present) > 1:  # of an int and a long, as the larger
        present = (next(part for part in present if part.kind == one.kind),)
    heads = [_long(type_.parts.index(part)) for part in present]
    writes = [writer(part, path) for part in present]

    def write(column: pa.Array) -> list[Piece]:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        members = [column] if one is not None else column.flatten() if present else []
        taken = [part.is_valid().to_numpy(zero_copy_only=False) & valid for part in members]
        count = np.sum(taken, axis=0) if taken else np.zeros(len(column), np.int64)
        several = np.flatnonzero((count > 1) | (valid & (count == 0) if present else False))
        if len(several):
            raise _Lacking(int(several[0]), path, "one of its members at most is not null")
        columns, owners = [], []
        for part, head, mine, inner in zip(members, heads, taken, writes, strict=True):
            rows = np.flatnonzero(mine)
            if len(rows) and len(rows) == len(part):
                return [head, *_of(inner, part, rows)]
            if len(rows):
                some = _of(inner, part.take(pa.array(rows)), rows)
                columns.append(joined([head, *some], len(rows)))
                owners.append(rows)
        rest = np.flatnonzero(count == 0)
        if len(rest):
            if null is None:
                why = f"null, which {type_} does not have"
                raise _Lacking(int(rest[0]), path, why)
            columns.append(joined([null], len(rest)))
            owners.append(rest)
        return [in_order(columns, owners, pa.binary())]

    return write


def _of(write: Write, some: pa.Array, rows: Int64) -> list[Piece]:
    try:
        return write(some)
    except _Lacking as error:
        error.row = int(rows[error.row])
        raise
