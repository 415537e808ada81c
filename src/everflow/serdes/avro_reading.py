"""Avro bytes -> columns: for all rows at once, field by field.

`reader` compiles what a writer's schema says to a function that reads a column of the reader's
type. Each row has a place in the bytes, which a step moves behind what it has read. A row that does
not fit is marked and read again by `read_rows`: fastavro says what it is, or why it is nothing.
"""

from __future__ import annotations

import decimal
import io
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.arrow_types import field_step
from everflow.serdes.avro_types import (
    NO_DEFAULT,
    PROMOTED,
    Avro,
    arrow_of,
    branch_for,
    branches,
    plain,
    single,
)
from everflow.serdes.base import SerdeError, bytes_of, gathered, ranges, starts
from everflow.serdes.byte_rows import (
    MOST_ROUNDS,
    Faults,
    Flags,
    Rows,
    as_map,
    as_text,
    in_order,
    varint_places,
)

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""Of the years 1 to 9999, which Python has."""
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1
_DAY_US = 86_400_000_000
_BYTES_OF_DECIMAL = 16
_DIGITS = decimal.Context(prec=76)


class Unresolved(SerdeError):
    """The schema that a record was written with does not resolve to the one that reads it."""


Read = Callable[[Rows], pa.Array]


# --- compiling ------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def reader(writer: Avro, wanted: Avro, path: str = "") -> Read:
    """Reads what ``writer`` says as ``arrow_of(wanted)``. Unresolved names field and both types."""
    if writer.kind == "union":
        return _of_union(writer, wanted, path)
    if wanted.kind == "union":
        return _as_branch(writer, wanted, path)
    if writer.kind != wanted.kind and wanted.kind not in PROMOTED.get(writer.kind, ()):
        raise _unresolved(writer, wanted, path)
    if writer.kind == "record":
        return _record(writer, wanted, path)
    if writer.kind == "array":
        return _array(reader(writer.parts[0], wanted.parts[0], f"{path}[]"), writer.parts[0])
    if writer.kind == "map":
        return _map(reader(writer.parts[0], wanted.parts[0], f"{path}[]"))
    if writer.kind == "enum":
        return _enum(writer, wanted)
    other_scale = writer.logical == wanted.logical == "decimal" and writer.scale != wanted.scale
    other = writer.logical and wanted.logical and writer.logical != wanted.logical
    other_size = writer.kind == "fixed" and writer.size != wanted.size
    if other or other_scale or other_size:
        raise _unresolved(writer, wanted, path)
    raw = _raw(writer)
    as_it_is = Avro(writer.kind) if writer.kind != wanted.kind else None
    number = writer.kind in ("int", "long", "float") and as_it_is is not None

    def read(rows: Rows) -> pa.Array:
        found = raw(rows)
        if number:  # a long is the nearest double, as in Java
            found = found.cast(_unlogical(wanted), safe=False)
        column, wrong = typed(found, wanted)
        if wrong is not None:
            rows.mark(wrong)
        return column

    return read


def _unlogical(type_: Avro) -> pa.DataType:
    return arrow_of(Avro(type_.kind))


def _unresolved(writer: Avro, wanted: Avro, path: str, why: str = "") -> Unresolved:
    place = path.removeprefix(".") or "the whole"
    return Unresolved(f"{place}: it was written as {writer}, and is read as {wanted}{why}")


def resolves(writer: Avro, wanted: Avro) -> bool:
    try:
        reader(writer, wanted)
    except Unresolved:
        return False
    return True


def _raw(type_: Avro) -> Read:
    """The values of a primitive or fixed, before its logical type."""
    match type_.kind:
        case "null":
            return lambda rows: pa.nulls(len(rows))
        case "boolean":
            return _booleans
        case "int":
            return _ints
        case "long":
            return lambda rows: pa.array(rows.longs())
        case "float":
            return lambda rows: pa.array(rows.numbers("<f4"))
        case "double":
            return lambda rows: pa.array(rows.numbers("<f8"))
        case "fixed":
            size = type_.size
            return lambda rows: _fixed(rows, size)
    return _blobs


def _blobs(rows: Rows) -> pa.Array:
    return rows.blobs(rows.longs())


def _booleans(rows: Rows) -> pa.Array:
    found = rows.content[rows.moved(1)]
    rows.mark(found > 1)
    return pa.array(found == 1)


def _ints(rows: Rows) -> pa.Array:
    found = rows.longs()
    small = found.astype(np.int32)
    rows.mark(small != found)
    return pa.array(small)


def _fixed(rows: Rows, size: int) -> pa.Array:
    begins = rows.moved(size)
    sizes = np.where(rows.bad[rows.row], 0, size)
    return gathered(rows.content, begins, sizes)


def _enum(writer: Avro, wanted: Avro) -> Read:
    known = [one if one in wanted.symbols else wanted.default for one in writer.symbols]
    symbols = pa.array(known, pa.string())
    unknown = np.array([one is None for one in known])

    def read(rows: Rows) -> pa.Array:
        places = rows.longs()
        outside = (places < 0) | (places >= len(known))
        places = np.where(outside, 0, places)
        rows.mark(outside | unknown[places])
        return symbols.take(pa.array(places))

    return read


def _record(writer: Avro, wanted: Avro, path: str) -> Read:
    own = {one.name: at for at, one in enumerate(wanted.fields)}
    for at, one in enumerate(wanted.fields):
        for alias in one.aliases:
            own.setdefault(alias, at)
    steps: list[tuple[int | None, Read]] = []
    for one in writer.fields:
        place = own.get(one.name)
        inner = one.type if place is None else wanted.fields[place].type
        steps.append((place, reader(one.type, inner, path + field_step(one.name))))
    read_fields = {place for place, _ in steps}
    absent = {
        at: _default(one.type, one.default, path + field_step(one.name))
        for at, one in enumerate(wanted.fields)
        if at not in read_fields
    }
    fields = list(arrow_of(wanted))

    def read(rows: Rows) -> pa.Array:
        columns: dict[int, pa.Array] = {}
        for place, step in steps:
            column = step(rows)
            if place is not None:
                columns[place] = column
        nothing = pa.array(np.zeros(len(rows), np.int64))
        columns.update({at: value.take(nothing) for at, value in absent.items()})
        if not fields:
            return pa.array([{}] * len(rows), pa.struct([]))
        listed = [columns[at] for at in range(len(fields))]
        return pa.StructArray.from_arrays(listed, fields=fields)

    return read


def _default(type_: Avro, text: str, path: str) -> pa.Array:
    """One value. Unresolved where a writer does not have the field and the reader no default."""
    if text == NO_DEFAULT:
        place = path.removeprefix(".")
        raise Unresolved(f"{place}: it was not written, and {type_} has no default")
    try:
        return rows_of([_value(type_, json.loads(text))], type_)[0]
    except (TypeError, ValueError, KeyError, pa.ArrowException) as error:
        raise Unresolved(
            f"{path.removeprefix('.')}: {text:.100} is no default of {type_}"
        ) from error


def _value(type_: Avro, found: Any) -> Any:
    """A default as fastavro gives values: bytes are the characters of a text."""
    if type_.kind == "union":
        for one in type_.parts:
            try:
                value = _value(one, found)
                rows_of([value], one)
            except (TypeError, ValueError, KeyError, AttributeError, pa.ArrowException):
                continue
            return value
        raise ValueError
    if type_.kind in ("bytes", "fixed"):
        return found.encode("latin-1")
    if type_.kind == "array":
        return [_value(type_.parts[0], one) for one in found]
    if type_.kind == "map":
        return {name: _value(type_.parts[0], one) for name, one in found.items()}
    if type_.kind == "record":
        lacking = {
            one.name: json.loads(one.default) for one in type_.fields if one.name not in found
        }
        return {one.name: _value(one.type, {**lacking, **found}[one.name]) for one in type_.fields}
    if type_.kind == "null" and found is not None:
        raise ValueError
    if type_.kind == "boolean" and not isinstance(found, bool):
        raise ValueError
    return found


# --- unions ---------------------------------------------------------------------------------------


def _of_union(writer: Avro, wanted: Avro, path: str) -> Read:
    reads: list[Read | None] = []
    problem: Unresolved | None = None
    for one in writer.parts:
        try:
            reads.append(reader(one, wanted, path))
        except Unresolved as error:  # only the records that have this branch do not fit
            reads.append(None)
            problem = problem or error
    if problem is not None and not any(reads):
        raise problem
    type_ = arrow_of(wanted)

    def read(rows: Rows) -> pa.Array:
        chosen = rows.longs()
        rows.mark((chosen < 0) | (chosen >= len(reads)))
        if len(chosen) and (chosen == chosen[0]).all() and 0 <= chosen[0] < len(reads):
            step = reads[int(chosen[0])]
            return _unreadable(rows, type_) if step is None else step(rows)
        columns, owners = [], []
        for at, step in enumerate([*reads, None]):
            last = at == len(reads)
            outside = (chosen < 0) | (chosen >= len(reads))
            mine = np.flatnonzero(outside if last else chosen == at)
            if len(mine):
                some = rows.some(mine)
                columns.append(_unreadable(some, type_) if step is None else step(some))
                rows.back(some, mine)
                owners.append(mine)
        return in_order(columns, owners, type_)

    return read


def _unreadable(rows: Rows, type_: pa.DataType) -> pa.Array:
    rows.mark(np.ones(len(rows), bool))
    return pa.nulls(len(rows), type_)


def _as_branch(writer: Avro, wanted: Avro, path: str) -> Read:
    at = branch_for(wanted, writer, resolves)
    if at is None:
        raise _unresolved(writer, wanted, path)
    step = reader(writer, wanted.parts[at], path)
    return lambda rows: _member(step(rows), wanted, at)


def _member(column: pa.Array, union: Avro, at: int) -> pa.Array:
    """What the branch ``at`` gave, as a column of the union."""
    type_ = arrow_of(union)
    branch = union.parts[at]
    if branch.kind == "null":
        return pa.nulls(len(column), type_)
    if single(union) is not None:
        return column if column.type == type_ else column.cast(type_)
    place = branches(union).index(branch)
    members = [
        column if index == place else pa.nulls(len(column), member.type)
        for index, member in enumerate(type_)
    ]
    return pa.StructArray.from_arrays(members, fields=list(type_))


# --- arrays and maps ------------------------------------------------------------------------------


def _array(step: Read, items: Avro) -> Read:
    width = _width(items)
    varint = items.kind in ("int", "long", "enum")

    def read(rows: Rows) -> pa.Array:
        if width or varint:
            columns, owners, counts = _at_once(rows, step, width)
        else:
            columns, owners, counts = _in_rounds(rows, step)
        return _lists(columns, owners, counts, step, rows)

    return read


def _lists(
    columns: list[pa.Array], owners: list[Int64], counts: Int64, step: Read, rows: Rows
) -> pa.Array:
    entries = in_order(columns, owners, pa.null()) if columns else step(rows.none())
    return pa.ListArray.from_arrays(pa.array(starts(counts), pa.int32()), entries)


def _width(items: Avro) -> int:
    """Bytes of an entry; 0: they vary."""
    return {"boolean": 1, "float": 4, "double": 8, "fixed": items.size}.get(items.kind, 0)


def _blocks(rows: Rows, going: Int64) -> tuple[Int64, Int64]:
    """Those of the ``going`` rows that have a further block, and its entries."""
    some = rows.some(going)
    counts = some.longs()
    sized = np.flatnonzero(counts < 0)
    if len(sized):  # the size of the block in bytes, which a reader may skip
        inner = some.some(sized)
        inner.longs()
        some.back(inner, sized)
        some.mark(counts == np.iinfo(np.int64).min)
    counts = np.abs(counts)
    some.mark(counts > some.end - some.at)
    counts[some.bad[some.row]] = 0
    rows.back(some, going)
    there = counts > 0
    return going[there], counts[there]


def _at_once(rows: Rows, step: Read, width: int) -> tuple[list[pa.Array], list[Int64], Int64]:
    """Entries whose places are known before they are read."""
    total, going = np.zeros(len(rows), np.int64), np.arange(len(rows))
    columns: list[pa.Array] = []
    owners: list[Int64] = []
    stops = np.zeros(0, np.int64) if width else rows.varint_ends()
    while True:
        going, counts = _blocks(rows, going)
        if not len(going):
            return columns, owners, total
        begins = rows.at[going]
        if width:
            places = ranges(begins, counts * width)[::width]
            ends = begins + counts * width
        else:
            first = np.searchsorted(stops, begins)
            places = varint_places(rows, begins, first, counts)
            ends = stops[np.minimum(first + counts, len(stops)) - 1] + 1
        some = rows.some(going)
        some.at = ends
        some.mark(ends > some.end)
        fits = ~some.bad[some.row]
        rows.back(some, going)
        owner = np.repeat(np.arange(len(going)), counts)
        read = fits[owner]
        inner = rows.some(going[owner[read]])
        inner.at = places[read]
        columns.append(step(inner))
        owners.append(going[owner[read]])
        total[going] += np.where(fits, counts, 0)
        going = going[fits]


def _in_rounds(rows: Rows, step: Read) -> tuple[list[pa.Array], list[Int64], Int64]:
    """The n-th entries of all rows together."""
    count = len(rows)
    total, left = np.zeros(count, np.int64), np.zeros(count, np.int64)
    columns: list[pa.Array] = []
    owners: list[Int64] = []
    going: Int64 = np.arange(count)
    for _ in range(MOST_ROUNDS):
        over = going[left[going] == 0]
        further, counts = _blocks(rows, over)
        left[further] = np.where(counts > MOST_ROUNDS, 0, counts)
        long = np.zeros(count, bool)
        long[further] = counts > MOST_ROUNDS
        rows.mark(long)
        going = going[left[going] > 0]
        if not len(going):
            return columns, owners, total
        some = rows.some(going)
        columns.append(step(some))
        rows.back(some, going)
        owners.append(going)
        left[going] -= 1
        total[going] += 1
        going = going[~rows.bad[rows.row[going]]]
    long = np.zeros(count, bool)
    long[going] = True
    rows.mark(long)
    return columns, owners, total


def _map(step: Read) -> Read:
    def pair(rows: Rows) -> pa.Array:
        keys, wrong = as_text(_blobs(rows))
        if wrong is not None:
            rows.mark(wrong)
        return pa.StructArray.from_arrays([keys.fill_null(""), step(rows)], names=["key", "value"])

    def read(rows: Rows) -> pa.Array:
        columns, owners, counts = _in_rounds(rows, pair)
        # of a key twice fastavro takes the last
        return as_map(_lists(columns, owners, counts, pair, rows), counts, rows)

    return read


# --- logical types --------------------------------------------------------------------------------


def typed(raw: pa.Array, type_: Avro) -> tuple[pa.Array, Flags | None]:
    """Values of a primitive, fixed or enum as its column, and those that no column has."""
    if type_.kind == "string":
        return as_text(raw)
    if type_.logical == "decimal":
        return _decimals(raw, type_)
    if not type_.logical:
        return raw, None
    numbers = raw.fill_null(0).to_numpy().astype(np.int64)
    if type_.logical == "date":
        wrong = (numbers < _FIRST_DAY) | (numbers > _LAST_DAY)
        return pc.if_else(pa.array(wrong), None, raw).view(pa.date32()), wrong
    step = 1000 if type_.logical.endswith("millis") else 1
    first, last = _FIRST_DAY * _DAY_US // step, (_LAST_DAY + 1) * _DAY_US // step
    wrong = (numbers < first) | (numbers >= last)
    micros = pa.array(np.where(wrong, 0, numbers) * step)
    there = pc.and_(raw.is_valid(), pa.array(~wrong))
    return pc.if_else(there, micros, None).view(arrow_of(type_)), wrong


def _decimals(raw: pa.Array, type_: Avro) -> tuple[pa.Array, Flags | None]:
    """Big endian, two's complement, of any number of bytes."""
    valid = raw.is_valid().to_numpy(zero_copy_only=False)
    content, places = bytes_of(raw.fill_null(b"\0") if raw.null_count else raw)
    begins, ends = places[:-1].astype(np.int64), places[1:].astype(np.int64)
    sizes = ends - begins
    wrong = sizes == 0
    content = content if len(content) else np.zeros(1, np.uint8)
    highest = content[np.minimum(begins, len(content) - 1)]
    sign = np.where((highest >= 0x80) & ~wrong, 0xFF, 0).astype(np.uint8)
    little = np.repeat(sign[:, None], _BYTES_OF_DECIMAL, axis=1)
    for at in range(min(_BYTES_OF_DECIMAL, int(sizes.max(initial=0)))):
        there = np.flatnonzero(sizes > at)
        little[there, at] = content[ends[there] - 1 - at]
    for row in np.flatnonzero(sizes > _BYTES_OF_DECIMAL).tolist():
        above = content[begins[row] : ends[row] - _BYTES_OF_DECIMAL]
        wrong[row] |= bool((above != sign[row]).any() or little[row, -1] >> 7 != sign[row] >> 7)
    there = pa.array(valid & ~wrong)
    numbers = pa.py_buffer(np.ascontiguousarray(little).reshape(-1))
    column = pa.Array.from_buffers(arrow_of(type_), len(raw), [None, numbers])
    most = decimal.Decimal(10**type_.precision - 1).scaleb(-type_.scale, _DIGITS)
    small, large = (pa.scalar(one, column.type) for one in (most.copy_negate(), most))
    fits = pc.and_(pc.greater_equal(column, small), pc.less_equal(column, large))
    wrong |= ~fits.to_numpy(zero_copy_only=False)
    return pc.if_else(pc.and_(there, fits), column, None), wrong & valid


# --- row by row -----------------------------------------------------------------------------------


def read_columns(data: pa.Array, writer: Avro, wanted: Avro) -> tuple[pa.Array, Faults]:
    """A column of ``arrow_of(wanted)`` from the rows of ``data`` (``pa.binary()``, none null), null
    where a row cannot be read, and why. Unresolved if no row of this writer can."""
    if writer.kind == "bytes":  # Confluent's serializers write these as they are
        return _whole(data, writer, wanted)
    rows = Rows.of(data)
    column = reader(writer, wanted)(rows)
    rows.mark(rows.at != rows.end)
    if not rows.bad.any():
        return column, {}
    places = np.flatnonzero(rows.bad)
    others, faults = read_rows(data.take(pa.array(places)).to_pylist(), writer, wanted)
    good = np.flatnonzero(~rows.bad)
    both = in_order([column.take(pa.array(good)), others], [good, places], column.type)
    return both, {int(places[row]): error for row, error in faults.items()}


def _whole(data: pa.Array, writer: Avro, wanted: Avro) -> tuple[pa.Array, Faults]:
    at = branch_for(wanted, writer, resolves) if wanted.kind == "union" else None
    into = wanted if at is None else wanted.parts[at]
    reader(writer, into)
    column, wrong = typed(data, into)
    faults = (
        {}
        if wrong is None
        else {int(row): SerdeError(f"its bytes are no {into}") for row in np.flatnonzero(wrong)}
    )
    return (column if at is None else _member(column, wanted, at)), faults


def read_rows(rows: Sequence[bytes], writer: Avro, wanted: Avro) -> tuple[pa.Array, Faults]:
    """As `read_columns`, by fastavro, one after the other."""
    schemas = _for_fastavro(writer), None if wanted == writer else _for_fastavro(wanted)
    values: list[Any] = []
    faults: Faults = {}
    for index, row in enumerate(rows):
        try:
            values.append(_one(row, *schemas))
        except Exception as error:  # fastavro raises whatever broken bytes lead to
            faults[index] = SerdeError(f"Avro that does not fit: {_why(error)}")
            values.append(None)
    good = [at for at in range(len(rows)) if at not in faults]
    column, wrong = rows_of([values[at] for at in good], wanted)
    for at in np.flatnonzero(wrong).tolist():
        faults[good[at]] = SerdeError(
            f"Avro that does not fit: a value of it is beyond its type ({wanted})"
        )
    places = np.full(len(rows), 0)
    places[good] = np.arange(len(good))
    missing = np.ones(len(rows), bool)
    missing[[at for at in good if at not in faults]] = False
    return column.take(pa.array(places, mask=missing)), dict(sorted(faults.items()))


def _one(row: bytes, writer: Any, wanted: Any) -> Any:
    import fastavro

    source = io.BytesIO(row)
    found = fastavro.schemaless_reader(source, writer, wanted, return_named_type=True)
    rest = len(row) - source.tell()
    if rest:
        raise ValueError(f"{rest} bytes stand behind the value")
    return found


def _why(error: Exception) -> str:
    if isinstance(error, EOFError | IndexError) and not str(error).strip("' "):
        return "it ends too early"
    if isinstance(error, EOFError):
        return "it ends too early"
    return str(error) or type(error).__name__


@lru_cache(maxsize=256)
def _for_fastavro(type_: Avro) -> Any:
    import fastavro

    return fastavro.parse_schema(plain(type_))


def rows_of(values: Sequence[Any], type_: Avro) -> tuple[pa.Array, Flags]:
    """Values as fastavro gives them -> a column, and the rows with a value that no column has."""
    wrong = np.zeros(len(values), bool)
    return _columns(values, type_, np.arange(len(values)), wrong), wrong


def _columns(values: Sequence[Any], type_: Avro, owners: Int64, wrong: Flags) -> pa.Array:
    arrow = arrow_of(type_)
    if type_.kind == "union":
        return _union_column(values, type_, owners, wrong)
    if type_.kind == "record":
        present = [{} if one is None else one for one in values]
        columns = [
            _columns([one.get(part.name) for one in present], part.type, owners, wrong)
            for part in type_.fields
        ]
        mask = pa.array([one is None for one in values], pa.bool_())
        if not columns:
            return pa.array(values, arrow)
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=mask)
    if type_.kind in ("array", "map"):
        lists = [
            [] if one is None else list(one.items() if type_.kind == "map" else one)
            for one in values
        ]
        counts = np.array([len(one) for one in lists], np.int64)
        entries = [entry for one in lists for entry in one]
        inner = np.repeat(owners, counts)
        items = [entry[1] for entry in entries] if type_.kind == "map" else entries
        column = _columns(items, type_.parts[0], inner, wrong)
        offsets = pa.array(starts(counts), pa.int32())
        if type_.kind == "array":
            made = pa.ListArray.from_arrays(offsets, column)
        else:
            made = pa.MapArray.from_arrays(
                offsets, pa.array([entry[0] for entry in entries], pa.string()), column
            )
        there = pa.array(
            np.arange(len(values)), mask=np.array([one is None for one in values], bool)
        )
        return made.take(there)
    by_bytes = type_.kind in ("bytes", "fixed", "string")
    plain_type = Avro("string" if type_.kind == "enum" else type_.kind)
    raw_type = pa.binary() if by_bytes else arrow_of(plain_type)
    if type_.kind == "string":
        values = [None if one is None else one.encode() for one in values]
    if type_.kind == "int":  # fastavro reads larger ones, too
        large = np.array([one is not None and not _INT_MIN <= one <= _INT_MAX for one in values])
        wrong[owners[np.flatnonzero(large)]] = True
        values = [None if over else one for one, over in zip(values, large, strict=True)]
    column, unfit = typed(pa.array(values, raw_type), type_)
    if unfit is not None:
        wrong[owners[unfit]] = True
    return column


def _union_column(values: Sequence[Any], union: Avro, owners: Int64, wrong: Flags) -> pa.Array:
    chosen = [_chosen(one, union) for one in values]
    columns, places = [], []
    for at, branch in enumerate(union.parts):
        mine = np.array([row for row, (place, _) in enumerate(chosen) if place == at], np.int64)
        if len(mine):
            inner = _columns([chosen[row][1] for row in mine], branch, owners[mine], wrong)
            columns.append(_member(inner, union, at))
            places.append(mine)
    return in_order(columns, places, arrow_of(union))


_PYTHON = {
    "null": type(None),
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "string": str,
    "array": list,
    "map": dict,
}


def _chosen(value: Any, union: Avro) -> tuple[int, Any]:
    """The branch of a value as fastavro gives it, and the value alone."""
    if isinstance(value, tuple):
        name, inner = value
        last = name.rpartition(".")[2]
        own = [at for at, one in enumerate(union.parts) if one.name]
        exact = [at for at in own if union.parts[at].name == name]
        near = [at for at in own if union.parts[at].name.rpartition(".")[2] == last]
        return (exact or near or own)[0], inner
    like = [at for at, one in enumerate(union.parts) if type(value) is _PYTHON.get(one.kind)]
    if like:  # fastavro does not say whether it was an int or a long
        wide = [at for at in like if union.parts[at].kind in ("long", "double")]
        return (wide or like)[0], value
    for at, one in enumerate(union.parts):  # promoted, or named without its name
        named = {"record": dict, "enum": str, "fixed": bytes}.get(one.kind)
        if type(value) is named or (type(value) is int and one.kind in ("float", "double")):
            return at, value
    raise ValueError(f"{value!r:.60} is no value of {union}")
