"""Columns -> Protobuf bytes, field by field for all rows in the order of their numbers.

The entries of a map stand in the order of their keys (the library's order is not specified). A
value that columns do not write is left to the library, which says why it cannot be written. It also
writes all values of a message with groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.base import SerdeError, numbers_as_rows, ranges, starts
from everflow.serdes.byte_rows import (
    NOTHING,
    Flags,
    Piece,
    joined,
    lengths,
    varint,
    varints,
    zigzag,
)
from everflow.serdes.protobuf_types import FIXED, INSTANT, LARGE, LENGTH, Part, tag_of, wire_of

_MOST_UINT32 = (1 << 32) - 1
_MOST_INT32 = (1 << 31) - 1

Write = Callable[[pa.Array], list[Piece]]
"""A column without nulls -> the pieces of its rows (`joined`)."""


class _Unwritten(Exception):
    """The library is to write the column, or to say why it cannot be written."""


def write_columns(values: pa.Array, part: Part, write: Write, head: bytes = b"") -> pa.Array:
    """``pa.binary()``, null where ``values`` (of ``part.type``) is null; ``head`` stands before
    each. ``write``: `message_writer` of ``part``. SerdeError with the first row that the message
    has no place for."""
    there = values.is_valid().to_numpy(zero_copy_only=False)
    some = values if there.all() else values.drop_null()
    try:
        written = joined([head, *write(some)], len(some))
    except _Unwritten:
        rows = write_rows(values, part)
        return pc.binary_join_element_wise(pa.scalar(head), rows, NOTHING)
    if there.all():
        return written
    return written.take(pa.array(np.cumsum(there) - 1, mask=~there))


def write_rows(values: pa.Array, part: Part) -> pa.Array:
    """As `write_columns`, by the library, one after the other."""
    from google.protobuf.message import EncodeError

    made: list[bytes | None] = []
    row = 0
    try:
        for message in _messages(values, part):
            made.append(None if message is None else message.SerializeToString(deterministic=True))
            row += 1
    except (ValueError, TypeError, OverflowError, EncodeError) as error:
        if isinstance(error, _Misplaced):
            row = error.row
        raise SerdeError(f"Protobuf cannot be written: {error}", index=row) from error
    return pa.array(made, pa.binary())


# --- compiling ------------------------------------------------------------------------------------


def message_writer(part: Part) -> Write:
    order = sorted(range(len(part.inner)), key=lambda at: part.inner[at].number)
    fields = [(at, _field(part.inner[at])) for at in order]
    oneofs: dict[str, list[int]] = {}
    for at, one in enumerate(part.inner):
        if one.oneof:
            oneofs.setdefault(one.oneof, []).append(at)

    def write(column: pa.Array) -> list[Piece]:
        columns = column.flatten() if fields else []
        for members in oneofs.values():
            count = np.sum([_there(columns[at]) for at in members], axis=0)
            _require(count <= 1)
        return [piece for at, one in fields for piece in one(columns[at])]

    return write


def _there(column: pa.Array) -> Flags:
    found: Flags = column.is_valid().to_numpy(zero_copy_only=False)
    return found


def _require(fits: Flags | bool) -> None:
    if not np.all(fits):
        raise _Unwritten


def _field(part: Part) -> Write:
    """Nothing where the field is not there."""
    if part.by_library:
        return _unwritten
    if part.kind == "list":
        return _list(part)
    if part.kind == "map":
        return _map(part)
    raw, body, head = _raw(part), _body(part), varint(tag_of(part))

    def write(column: pa.Array) -> list[Piece]:
        there = _there(column)
        if part.required:
            _require(there)
        if not part.presence:
            column = raw(column if there.all() else column.fill_null(_zero(part)))
            there = _is_more(column)
            if not there.all():
                column = _some(column, there)
        else:
            column = raw(column if there.all() else column.drop_null())
        return _spread([head, *body(column)], there)

    return write


def _unwritten(column: pa.Array) -> list[Piece]:
    raise _Unwritten


def _zero(part: Part) -> pa.Scalar:
    zeros: dict[str, Any] = {"STRING": "", "BYTES": b"", "BOOL": False}
    zero = part.names.get(0, "0") if part.kind == "ENUM" else zeros.get(part.kind, 0)
    return pa.scalar(Decimal(zero) if part.kind in LARGE else zero, part.type)


def _is_more(raw: Any) -> Flags:
    """Than the default; of floats by their bits, as -0.0 is."""
    if isinstance(raw, pa.Array):
        return lengths(raw) > 0
    found: Flags = raw.view(f"u{raw.dtype.itemsize}") != 0
    return found


def _some(raw: Any, there: Flags) -> Any:
    return raw.filter(pa.array(there)) if isinstance(raw, pa.Array) else raw[there]


def _spread(pieces: list[Piece], there: Flags) -> list[Piece]:
    """A row for each; nothing where ``there`` is false."""
    if there.all():
        return pieces
    written = joined(pieces, int(np.count_nonzero(there)))
    places = np.where(there, np.cumsum(there) - 1, len(written))
    return [pa.concat_arrays([written, pa.array([b""], pa.binary())]).take(pa.array(places))]


def _raw(part: Part) -> Callable[[pa.Array], Any]:
    """A column without nulls -> what `_body` takes: numbers as they are written, or bytes."""
    match part.kind:
        case "STRING":
            return lambda column: column.cast(pa.binary())
        case "DOUBLE" | "FLOAT" | "SFIXED32" | "SFIXED64":
            return lambda column: column.to_numpy()
        case "INT32" | "INT64":
            return lambda column: column.to_numpy().astype(np.int64).view(np.uint64)
        case "SINT32" | "SINT64":
            return lambda column: zigzag(column.to_numpy().astype(np.int64))
        case "UINT32" | "FIXED32":
            return _small
        case "UINT64" | "FIXED64":
            return _large
        case "BOOL":
            return lambda column: column.cast(pa.uint8()).to_numpy().astype(np.uint64)
        case "ENUM":
            return lambda column: _enum(part, column)
    return lambda column: column


def _small(column: pa.Array) -> npt.NDArray[np.uint64]:
    numbers = column.to_numpy()
    _require((numbers >= 0) & (numbers <= _MOST_UINT32))
    return numbers.astype(np.uint64)  # type: ignore[no-any-return]


def _large(column: pa.Array) -> npt.NDArray[np.uint64]:
    halves = np.frombuffer(column.buffers()[1], np.uint64).reshape(-1, 2)
    halves = halves[column.offset : column.offset + len(column)]
    _require(halves[:, 1] == 0)
    return np.ascontiguousarray(halves[:, 0])


def _enum(part: Part, column: pa.Array) -> npt.NDArray[np.uint64]:
    known = {name: number for number, name in part.names.items()}
    names = column.dictionary_encode()
    numbers = [_numbered(name, known, part.closed) for name in names.dictionary.to_pylist()]
    found: npt.NDArray[np.uint64] = np.array(numbers, np.int64)[names.indices.to_numpy()].view("u8")
    return found


def _numbered(name: str, known: dict[str, int], closed: bool) -> int:
    if name in known:
        return known[name]
    digits = name.removeprefix("-")
    _require(not closed and digits.isdecimal() and len(digits) <= len(str(_MOST_INT32)))
    _require(-_MOST_INT32 - 1 <= int(name) <= _MOST_INT32)
    return int(name)


def _body(part: Part) -> Write:
    """What stands behind the tag."""
    match part.kind:
        case "message":
            inner = message_writer(part)
            return lambda column: _inside(inner, column)
        case "wrapper":
            wrapped = message_writer(part._replace(kind="message"))
            return lambda column: _inside(
                wrapped, pa.StructArray.from_arrays([column], names=["value"])
            )
        case "time":
            instant = message_writer(INSTANT)
            return lambda column: _time(column, instant)
        case "STRING" | "BYTES":
            return _with_sizes
    wire = wire_of(part)
    if wire in FIXED:
        code = f"<f{FIXED[wire]}" if part.kind in ("DOUBLE", "FLOAT") else f"<i{FIXED[wire]}"
        return lambda numbers: [numbers_as_rows(numbers, code)]
    return lambda numbers: [varints(numbers)]


def _with_sizes(data: pa.Array) -> list[Piece]:
    return [varints(lengths(data).view(np.uint64)), data]


def _inside(write: Write, column: pa.Array) -> list[Piece]:
    return _with_sizes(joined(write(column), len(column)))


def _time(column: pa.Array, write: Write) -> list[Piece]:
    micros = column.view(pa.int64()).to_numpy()
    nanos = (micros % 1_000_000 * 1000).astype(np.int32)
    parts = [pa.array(micros // 1_000_000), pa.array(nanos)]
    return _inside(write, pa.StructArray.from_arrays(parts, names=["seconds", "nanos"]))


# --- lists and maps -------------------------------------------------------------------------------


def _list(part: Part) -> Write:
    one = part.inner[0]
    raw, body = _raw(one), _body(one)
    head = varint(part.number << 3 | LENGTH if part.packed else part.number << 3 | wire_of(one))

    def write(column: pa.Array) -> list[Piece]:
        counts = pc.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
        entries = column.flatten()
        _require(not entries.null_count)
        written = body(raw(entries))
        if not part.packed:
            return [_together([head, *written], counts)]
        there = counts > 0
        blocks = _some(_together(written, counts), there)
        return _spread([head, *_with_sizes(blocks)], there)

    return write


def _together(entries: list[Piece], counts: Int64) -> pa.Array:
    """What so many entries are together, in each row."""
    places = starts(counts)
    made = joined(entries, int(places[-1]))
    lists = pa.ListArray.from_arrays(pa.array(places, pa.int32()), made)
    return pc.binary_join(lists, NOTHING)


def _map(part: Part) -> Write:
    key, item = part.inner
    head = varint(part.number << 3 | LENGTH)
    parts = [(varint(tag_of(one)), _raw(one), _body(one)) for one in (key, item)]

    def write(column: pa.Array) -> list[Piece]:
        offsets = column.offsets.to_numpy().astype(np.int64)
        counts = np.where(_there(column), np.diff(offsets), 0)
        places = ranges(offsets[:-1], counts)
        taken = pa.array(places)
        sides = [column.keys.take(taken), column.items.take(taken)]
        _require(not sides[1].null_count and not item.by_library)
        raws = [raw(side) for (_, raw, _), side in zip(parts, sides, strict=True)]
        ranks = _ranks(raws[0] if key.kind in LARGE else sides[0])
        owner = np.repeat(np.arange(len(counts)), counts)
        order = np.lexsort((ranks, owner))
        owner, ranks = owner[order], ranks[order]
        last = np.ones(len(order), bool)  # of a key twice
        last[:-1] = (np.diff(owner) > 0) | (np.diff(ranks) > 0)
        pieces: list[Piece] = []
        for (tag, _, body), one in zip(parts, raws, strict=True):
            pieces += [tag, *body(one)]
        entries = joined(pieces, len(order)).take(pa.array(order[last]))
        counts = np.bincount(owner[last], minlength=len(counts))
        return [_together([head, *_with_sizes(entries)], counts)]

    return write


def _ranks(keys: Any) -> Int64:
    """Equal ones have the same."""
    if isinstance(keys, pa.Array) and pa.types.is_string(keys.type):
        found: Int64 = pc.rank(keys, tiebreaker="min").to_numpy().astype(np.int64)
        return found
    numbers = keys.to_numpy(zero_copy_only=False) if isinstance(keys, pa.Array) else keys
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


# --- row by row -----------------------------------------------------------------------------------


class _Misplaced(ValueError):
    def __init__(self, row: int, why: str) -> None:
        super().__init__(why)
        self.row = row


def _messages(values: pa.Array, part: Part) -> Iterable[Any]:
    """None for null; a field that is null is left out. `_Misplaced`, or what protobuf raises for
    the row at hand."""
    columns = values.flatten() if part.inner else []
    _require_one(columns, part)
    listed = [_given(column, one) for column, one in zip(columns, part.inner, strict=True)]
    names = [one.name for one in part.inner]
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    rows = zip(*listed, strict=True) if listed else iter([()] * len(values))
    for there, row in zip(valid, rows, strict=True):
        if not there:
            yield None
            continue
        given = {name: one for name, one in zip(names, row, strict=True) if one is not None}
        yield part.make(**given)


def _require_one(columns: Sequence[pa.Array], part: Part) -> None:
    by_oneof: dict[str, list[pa.Array]] = {}
    for column, one in zip(columns, part.inner, strict=True):
        if one.oneof:
            by_oneof.setdefault(one.oneof, []).append(column)
    for name, members in by_oneof.items():
        count = sum(one.is_valid().to_numpy(zero_copy_only=False).astype(int) for one in members)
        several = np.flatnonzero(np.asarray(count) > 1)
        if len(several):
            raise _Misplaced(int(several[0]), f"{name}: one of its members at most is not null")


def _given(column: pa.Array, part: Part) -> list[Any]:
    if part.kind in ("list", "map"):
        listed: list[Any] = []
        for one in column:
            if not one.is_valid:
                listed.append(None)
            elif part.kind == "list":
                listed.append(_entries(one.values, part.inner[0], part.name))
            else:
                keys, items = one.values.flatten()
                own = _entries(keys, part.inner[0], part.name)
                listed.append(
                    dict(zip(own, _entries(items, part.inner[1], part.name), strict=True))
                )
        return listed
    if part.kind == "message":
        return list(_messages(column, part))
    if part.kind == "wrapper":
        return [
            None if one is None else part.make(value=one) for one in _given(column, part.inner[0])
        ]
    if part.kind == "time":
        micros = column.view(pa.int64()).to_pylist()
        return [
            None
            if one is None
            else part.make(seconds=one // 1_000_000, nanos=one % 1_000_000 * 1000)
            for one in micros
        ]
    values: list[Any] = column.to_pylist()
    if part.kind in LARGE:
        return [None if one is None else int(one) for one in values]
    if part.kind == "ENUM":
        numbers = {name: number for number, name in part.names.items()}
        return [None if one is None else _number(one, numbers, part.name) for one in values]
    return values


def _number(name: str, numbers: dict[str, int], field: str) -> int:
    if name in numbers:
        return numbers[name]
    if name.lstrip("-").isdecimal():
        return int(name)
    raise ValueError(f"{field}: {name!r:.60} is none of its names")


def _entries(values: pa.Array, part: Part, name: str) -> list[Any]:
    if values.null_count:
        raise ValueError(f"{name}: a null among its entries, which Protobuf does not have")
    return _given(values, part)
