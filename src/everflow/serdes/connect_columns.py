"""Columns as change data have them -> columns of the declared types, and back (`Form`).

A value that does not fit is noted with its row and place; whoever reads a record makes all of it
null. Decimals, dates and times are read by `avro_reading.typed`: they are Avro's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from string import ascii_lowercase, ascii_uppercase, digits

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everflow.records import Int64
from everflow.serdes.arrow_types import TypeMismatch, field_step, type_text
from everflow.serdes.avro_reading import typed
from everflow.serdes.avro_types import Avro
from everflow.serdes.avro_writing import decimal_bytes
from everflow.serdes.base import SerdeError, bytes_of, gathered, ranges, starts
from everflow.serdes.byte_rows import Faults, Flags
from everflow.serdes.connect_types import VARIABLE, Form
from everflow.serdes.json_serde import Unfit
from everflow.serdes.json_serde import reader as json_reader

_MOST_DIGITS = 38
_NS = 1000


@dataclass
class _Place:
    """Where a column lies. ``rows``: of its values, the record's; ``faults``: why a record cannot
    be read or written, the first found."""

    rows: Int64
    path: str = ""
    faults: Faults = field(default_factory=dict)

    def at(self, step: str, rows: Int64 | None = None) -> _Place:
        return _Place(self.rows if rows is None else rows, self.path + step, self.faults)

    def mark(self, wrong: Flags, column: pa.Array, type_: pa.DataType) -> None:
        for at in np.flatnonzero(wrong).tolist():
            found = f"found {column[at].as_py()!r:.60} ({type_text(column.type)})"
            self.say(at, TypeMismatch(self.path, type_, found))

    def say(self, at: int, why: TypeMismatch) -> None:
        self.faults.setdefault(int(self.rows[at]), SerdeError(f"it does not fit: {why}"))


_Leaf = Callable[[pa.Array, Form, _Place], pa.Array]


def declared(column: pa.Array, form: Form) -> tuple[pa.Array, Faults]:
    """``column``, as it is written, as one of ``form.type``, and why by row where that cannot be:
    there the value itself is not to be used."""
    place = _Place(np.arange(len(column)))
    return _rebuilt(column, form, place, _read), dict(sorted(place.faults.items()))


def written(column: pa.Array, form: Form) -> pa.Array:
    """Inverse of `declared`; SerdeError names the first row of a value that cannot be written."""
    place = _Place(np.arange(len(column)))
    made = _rebuilt(column, form, place, _written)
    for row in sorted(place.faults):
        raise SerdeError(str(place.faults[row]), index=row)
    return made


def _rebuilt(column: pa.Array, form: Form, place: _Place, leaf: _Leaf) -> pa.Array:
    if not form.parts:
        return leaf(column, form, place)
    type_ = column.type
    if pa.types.is_struct(form.type) and pa.types.is_struct(type_):
        fields, columns = [], []
        for one, part in zip(form.type, form.parts, strict=True):
            at = type_.get_field_index(one.name)
            inner = pa.nulls(len(column)) if at < 0 else pc.struct_field(column, [at])
            made = _rebuilt(inner, part, place.at(field_step(one.name)), leaf)
            fields.append(pa.field(one.name, made.type))
            columns.append(made)
        nulls = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(columns, fields=fields, mask=nulls)
    listed = pa.types.is_list(form.type) and pa.types.is_list(type_)
    if listed or (pa.types.is_map(form.type) and pa.types.is_map(type_)):
        return _of_lists(column, form, place, leaf)
    return leaf(column, form, place)


def _of_lists(column: pa.Array, form: Form, place: _Place, leaf: _Leaf) -> pa.Array:
    if pa.types.is_list(column.type):
        sizes = pc.list_value_length(column)
        keys, items = None, column.flatten()
    else:
        entries = pa.ListArray.from_arrays(
            column.offsets, pa.StructArray.from_arrays([column.keys, column.items], ["k", "v"])
        )
        if column.null_count:
            entries = _without(entries, column.is_null())
        sizes, flat = pc.list_value_length(entries), entries.flatten()
        keys, items = (pc.struct_field(flat, [at]) for at in (0, 1))
    counts = sizes.fill_null(0).to_numpy().astype(np.int64)
    rows = np.repeat(place.rows, counts)
    made = _rebuilt(items, form.parts[0], place.at("[]", rows), leaf)
    offsets = pa.array(starts(counts).astype(np.int32))
    nulls = column.is_null() if column.null_count else None
    if keys is None:
        return pa.ListArray.from_arrays(offsets, made, mask=nulls)
    found = pa.MapArray.from_arrays(offsets, keys.cast(form.type.key_type), made)
    return found if nulls is None else _without(found, nulls)


def _without(column: pa.Array, nulls: pa.Array) -> pa.Array:
    mask = nulls.to_numpy(zero_copy_only=False)
    return column.take(pa.array(np.arange(len(column)), mask=mask))


# --- read -----------------------------------------------------------------------------------------


def _read(column: pa.Array, form: Form, place: _Place) -> pa.Array:
    type_ = form.type
    if column.null_count == len(column):
        return pa.nulls(len(column), type_)
    raw = column.type
    if form.how == "variable" and pa.types.is_struct(raw):
        return _variable(column, type_, place)
    if form.how == "bytes" and pa.types.is_string(raw):
        column, raw = _unbased(column, type_, place), pa.binary()
    if form.how == "bytes" and pa.types.is_binary(raw):
        return _from_bytes(column, form.scale, type_, place)
    if pa.types.is_integer(raw) and form.how in ("ms", "us", "ns", "days"):
        return _from_numbers(column, form, place)
    if raw == type_:
        return column
    if pa.types.is_string(raw):
        if pa.types.is_date(type_):  # Debezium's have a zone: 2024-01-31Z
            column = pc.replace_substring_regex(column, r"(Z|[+-]\d{2}:\d{2})$", "")
        return _from_texts(column, type_, place)
    return _cast(column, type_, place)


def _from_numbers(column: pa.Array, form: Form, place: _Place) -> pa.Array:
    type_ = form.type
    if form.how == "days":
        found, wrong = typed(column.cast(pa.int32()), Avro("int", logical="date"))
    else:
        raw = column.cast(pa.int64())
        cut = np.zeros(len(raw), bool)
        if form.how == "ns":
            numbers = raw.fill_null(0).to_numpy()
            cut = numbers % _NS != 0
            raw = pa.array(numbers // _NS, mask=raw.is_null().to_numpy(zero_copy_only=False))
        local = "" if type_.tz else "local-"
        unit = "millis" if form.how == "ms" else "micros"
        found, wrong = typed(raw, Avro("long", logical=f"{local}timestamp-{unit}"))
        wrong = cut if wrong is None else wrong | cut
    if wrong is not None and wrong.any():
        place.mark(wrong & column.is_valid().to_numpy(zero_copy_only=False), column, type_)
    return found.cast(type_)


def _from_bytes(column: pa.Array, scale: int, type_: pa.DataType, place: _Place) -> pa.Array:
    exact = pa.types.is_decimal(type_) and type_.scale == scale
    precision = type_.precision if exact else _MOST_DIGITS
    if not 0 <= scale <= precision:
        place.mark(column.is_valid().to_numpy(zero_copy_only=False), column, type_)
        return pa.nulls(len(column), type_)
    as_avro = Avro("bytes", logical="decimal", precision=precision, scale=scale)
    found, wrong = typed(column, as_avro)
    if wrong is not None and wrong.any():
        place.mark(wrong, column, type_)
    return found if exact else _cast(found, type_, place)


def _unbased(column: pa.Array, type_: pa.DataType, place: _Place) -> pa.Array:
    found, wrong = from_base64(column)
    if wrong.any():
        place.mark(wrong, column, type_)
    return found


def from_base64(texts: pa.Array) -> tuple[pa.Array, Flags]:
    """Bytes of base64, null where the flags say that there is none."""
    data = texts.cast(pa.binary())
    sizes = pc.binary_length(data).fill_null(0).to_numpy().astype(np.int64)
    wrong = sizes % _CHARACTERS != 0
    kept = np.where(wrong, 0, sizes)
    content, places = bytes_of(data)
    found = content[ranges(places[:-1].astype(np.int64), kept)]
    ends = starts(kept)
    some = np.flatnonzero(kept)
    last = ends[some + 1] - 1
    pads = np.zeros(len(kept), np.int64)
    pads[some] = found[last] == _PAD
    pads[some] += (pads[some] == 1) & (found[last - 1] == _PAD)
    for at in (0, 1):  # elsewhere the sign is no digit
        found[last[pads[some] > at] - at] = _ZERO
    bits = _DIGITS[found]
    if (bits < 0).any():
        wrong[np.unique(np.searchsorted(ends, np.flatnonzero(bits < 0), side="right") - 1)] = True
    groups = np.maximum(bits, 0).reshape(-1, _CHARACTERS).astype(np.uint32)
    words = groups[:, 0] << 18 | groups[:, 1] << 12 | groups[:, 2] << 6 | groups[:, 3]
    raw = np.stack([words >> 16, words >> 8, words], axis=1).astype(np.uint8).reshape(-1)
    made = gathered(raw, ends[:-1] // _CHARACTERS * 3, kept // _CHARACTERS * 3 - pads)
    nulls = wrong | texts.is_null().to_numpy(zero_copy_only=False)
    return made.take(pa.array(np.arange(len(made)), mask=nulls)) if nulls.any() else made, wrong


_CHARACTERS, _PAD, _ZERO = 4, ord("="), ord("A")
"""Of a group of base64."""
_DIGITS = np.full(256, -1, np.int8)
_DIGITS[np.frombuffer(f"{ascii_uppercase}{ascii_lowercase}{digits}+/".encode(), np.uint8)] = range(
    64
)


def _variable(column: pa.Array, type_: pa.DataType, place: _Place) -> pa.Array:
    scales, values = pc.struct_field(column, "scale"), pc.struct_field(column, "value")
    if pa.types.is_string(values.type):
        values = _unbased(values, type_, place)
    there = (column.is_valid().to_numpy(zero_copy_only=False)) & (
        values.is_valid().to_numpy(zero_copy_only=False)
    )
    found = scales.fill_null(0).to_numpy()
    parts, owners = [], []
    for scale in np.unique(found[there]).tolist():
        rows = np.flatnonzero(there & (found == scale))
        parts.append(
            _from_bytes(values.take(pa.array(rows)), scale, type_, place.at("", place.rows[rows]))
        )
        owners.append(rows)
    places = np.full(len(column), -1)
    if owners:
        places[np.concatenate(owners)] = np.arange(np.count_nonzero(there))
    joined = pa.concat_arrays(parts) if parts else pa.nulls(0, type_)
    return joined.take(pa.array(places, mask=places < 0))


def _from_texts(column: pa.Array, type_: pa.DataType, place: _Place) -> pa.Array:
    unfit = Unfit()
    found = json_reader(type_)(column.to_pylist(), unfit)
    for at, why in unfit.items():
        place.say(at, why.below(place.path))
    return found


def _cast(column: pa.Array, type_: pa.DataType, place: _Place) -> pa.Array:
    """Numbers to wider ones, or to narrower ones that hold them; all else is unfit."""
    number = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    if any(one(column.type) for one in number) and any(one(type_) for one in number):
        try:
            return column.cast(type_, safe=not pa.types.is_floating(type_))
        except pa.ArrowException:
            if len(column) > 1:
                half = len(column) // 2
                sides = (column[:half], place.rows[:half]), (column[half:], place.rows[half:])
                return pa.concat_arrays(
                    [_cast(side, type_, place.at("", rows)) for side, rows in sides]
                )
    place.mark(column.is_valid().to_numpy(zero_copy_only=False), column, type_)
    return pa.nulls(len(column), type_)


# --- written --------------------------------------------------------------------------------------


def _written(column: pa.Array, form: Form, place: _Place) -> pa.Array:
    if form.how == "text":
        return column.cast(pa.string())
    if form.how == "days":
        return column.cast(pa.int32())
    if form.how == "iso" and pa.types.is_date(form.type):
        return pc.binary_join_element_wise(column.cast(pa.string()), "Z", "")
    if form.how in ("ms", "us", "ns"):
        numbers = column.cast(pa.int64())
        if form.how == "ns":
            try:
                return pc.multiply_checked(numbers, _NS)
            except pa.ArrowException:
                far = pc.greater(pc.abs(numbers), 2**63 // _NS - 1).fill_null(False)
                place.mark(far.to_numpy(zero_copy_only=False), column, pa.int64())
                return pa.nulls(len(column), pa.int64())
        if form.how == "ms":
            cut = numbers.fill_null(0).to_numpy() % _NS != 0
            if cut.any():
                place.mark(cut, column, pa.timestamp("ms"))
            return pc.divide(numbers, _NS)
        return numbers
    if form.how == "bytes" or form.how == "variable":
        raw = _as_bytes(column)
        if form.how == "bytes":
            return raw
        scales = pa.array(np.full(len(column), form.type.scale, np.int32))
        nulls = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays([scales, raw], fields=list(VARIABLE), mask=nulls)
    return column


def _as_bytes(column: pa.Array) -> pa.Array:
    """Big endian, two's complement, as Java's BigInteger writes it."""
    raw = decimal_bytes(column.fill_null(0) if column.null_count else column)
    return pc.if_else(column.is_valid(), raw, None) if column.null_count else raw
