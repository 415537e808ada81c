"""JSON with a schema: objects in schema order, missing fields null, extra fields ignored.

Texts are parsed record by record (`read_rows`), and the values of each field become a column
together. What does not fit is noted with its row and place, and null in the column. `json_writing`
writes (note 015).

Arrow's parser reads columns of texts, where it agrees (`read_columns`). It takes more than JSON,
and a bare ``null`` at the beginning of a block ends the process (apache/arrow#47409): so it gets
only rows from ``{`` to ``}`` without what it reads in another way.
"""

from __future__ import annotations

import base64
import decimal
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from everflow.exact_texts import day, is_number, moment, number, whole
from everflow.serdes.arrow_types import (
    BEYOND_FLOAT,
    UNFIT,
    TypeMismatch,
    field_step,
    holds,
    of_field,
    type_text,
)
from everflow.serdes.base import SerdeError, bytes_of, encode_one, flat, of_a_registry
from everflow.serdes.json_writing import write
from everflow.serdes.schema import storable
from everflow.user_program import writable

Faults = dict[int, SerdeError]
"""Why a row cannot be read, by row, in order."""
_One = Callable[[Any], Any]
_Parse = Callable[[bytes], Any]

_DIGITS = decimal.Context(
    prec=76,  # the default of 28 digits is fewer than decimal(38) has
    traps=[decimal.InvalidOperation, decimal.Inexact],
)
_EXACT = 2**53
"""Up to here a double is the number that was written, if that was whole."""
_NEAREST_ZERO = -999_999
_MAY_BE_ROUNDED = re.compile(rb"[0-9.]{17}|[eE]-[0-9]{3}")
"""Matches each text with a number that is not whole, but is as a double."""
# years that Python has, too
_DAY = r"^[12]\d{3}-\d{2}-\d{2}$"
_MOMENT = r"^[12]\d{3}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{3}|\.\d{6})?(?:Z|[+-]\d{2}:\d{2})?$"
_WHOLE = r"^-?(?:0|[1-9][0-9]*)$"
_FEW = 100
"""From this number on, times and keys are read faster in columns than one by one."""
_MOST_SHOWN = 100


class Unfit(dict[int, TypeMismatch]):
    """Values that do not fit, by row. ``doubtful``: rows in which a field of an integer has a
    double, which need not be the number that was written."""

    def __init__(self) -> None:
        self.doubtful: set[int] = set()

    def take(self, inner: Unfit, step: str) -> None:
        for row, mismatch in inner.items():
            self.setdefault(row, mismatch.below(step))
        self.doubtful |= inner.doubtful


_Column = Callable[[Sequence[Any], Unfit], pa.Array]


class _Misread(ValueError):
    """Its text says why a value is refused."""


def read_rows(rows: Sequence[bytes | None], type_: pa.DataType) -> tuple[pa.Array, Faults]:
    """A column of ``type_``, null where there are no bytes, where the text is ``null`` and where
    there is a fault."""
    parse, read = _reading(type_)
    faults: Faults = {}
    try:
        values = [None if row is None else parse(row) for row in rows]
    except json.JSONDecodeError:  # orjson's is a subclass
        values = _parse_each(rows, parse, faults)
    unfit = Unfit()
    column = read(values, unfit)
    rounded = [at for at in unfit.doubtful if _MAY_BE_ROUNDED.search(rows[at] or b"")]
    if rounded:
        exact = _parse_each([rows[at] for at in rounded], _parse_exactly, {})
        for at, value in zip(rounded, exact, strict=True):
            values[at] = value
        unfit = Unfit()
        column = read(values, unfit)
    if not unfit:
        return column, faults
    for row, mismatch in unfit.items():
        faults[row] = SerdeError(f"JSON that does not fit: {mismatch}")
    good = np.ones(len(rows), np.bool_)
    good[list(unfit)] = False
    places = pa.array(np.arange(len(rows)), mask=~good)
    return column.take(places), dict(sorted(faults.items()))


@lru_cache(maxsize=256)
def _reading(type_: pa.DataType) -> tuple[_Parse, _Column]:
    return _parse_exactly if holds(type_, pa.types.is_decimal) else orjson.loads, reader(type_)


def _parse_each(rows: Sequence[bytes | None], parse: _Parse, faults: Faults) -> list[Any]:
    values: list[Any] = [None] * len(rows)
    for index, row in enumerate(rows):
        try:
            values[index] = None if row is None else parse(row)
        except json.JSONDecodeError as error:
            faults[index] = SerdeError(f"not JSON: {_no_json(row or b'', error)}")
    return values


def _no_json(row: bytes, error: json.JSONDecodeError) -> str:
    if (written := of_a_registry(row)) is not None:
        return written
    if not row.strip():
        return "it is empty"
    try:
        row.decode()
    except UnicodeDecodeError as undecodable:
        return f"its byte {undecodable.start} is no UTF-8"
    near = shown(error.doc[max(0, error.pos - 20) : error.pos + 20])
    return f"{error.msg}, at character {error.pos}, near {near}"


def _parse_exactly(row: bytes) -> Any:
    """By the standard library, as orjson's doubles lose digits; orjson says what is JSON."""
    orjson.loads(row)
    try:
        return json.loads(row, parse_float=_fraction)
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", "", 0) from error


def _fraction(text: str) -> decimal.Decimal:
    """A number of JSON that is no integer. The exponents of decimals end with 18 digits: what is
    written with a longer one is zero, or so near to it that no type holds it."""
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        digits = text.lower().partition("e")[0]
        return decimal.Decimal(f"{digits}e{_NEAREST_ZERO}")


def shown(value: Any) -> str:
    """A value that JSON holds, as JSON writes it, shortened."""
    if isinstance(value, str | list):
        value = value[:_MOST_SHOWN]
    try:
        text = orjson.dumps(value, default=lambda one: orjson.Fragment(str(one))).decode()
    except TypeError:  # an integer of more than 64 bits, half a pair of surrogates
        text = writable(repr(value))
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def reader(type_: pa.DataType) -> _Column:
    if pa.types.is_struct(type_):
        return _struct_reader(type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _list_reader(type_)
    if pa.types.is_map(type_):
        return _map_reader(type_)
    by_value = _scalar_reader(type_, *_scalar(type_))
    in_time = pa.types.is_timestamp(type_) or pa.types.is_date32(type_)
    return _text_reader(type_, by_value) if in_time else by_value


def _scalar(type_: pa.DataType) -> tuple[tuple[type, ...], _One, str]:
    """The classes that Arrow takes as they are, what is done with a value of any other, and what
    is expected."""
    if pa.types.is_timestamp(type_):  # Arrow takes one without zone for UTC
        return (), _of_text(moment, _no_moment), 'a time such as "2024-01-31T12:00:00Z"'
    if pa.types.is_date(type_):
        return (), _of_text(day, _no_day), 'a date such as "2024-01-31"'
    if pa.types.is_decimal(type_):
        return (), _decimal_of(type_), "a number"
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return (), _of_text(_base64, None), "text in base64"
    if pa.types.is_integer(type_):
        return (int,), _integer, "an integer"
    if pa.types.is_float64(type_):
        return (float,), _number, "a number"
    if pa.types.is_floating(type_):
        return (), lambda value: _short(_number(value)), "a number"
    if pa.types.is_boolean(type_):
        return (bool,), _only(bool), "true or false"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        return (str,), _only(str), "text"
    return (), lambda value: value, "null" if pa.types.is_null(type_) else type_text(type_)


def _scalar_reader(
    type_: pa.DataType, taken: tuple[type, ...], one: _One, expected: str
) -> _Column:
    allowed = {type(None), *taken}
    whole_numbers = pa.types.is_integer(type_)

    def column(values: Sequence[Any], faults: Unfit) -> pa.Array:
        if not allowed.issuperset(map(type, values)):
            if whole_numbers:
                faults.doubtful.update(at for at, v in enumerate(values) if type(v) is float)
            try:
                values = [v if type(v) in allowed else one(v) for v in values]
            except UNFIT:
                values = _each(values, one, expected, type_, faults)
        return _array(values, 0, expected, type_, faults)

    return column


def _text_reader(type_: pa.DataType, by_value: _Column) -> _Column:
    """Dates, timestamps or integers from texts, in columns where that is possible."""

    def column(values: Sequence[Any], faults: Unfit) -> pa.Array:
        if len(values) >= _FEW and {str, type(None)}.issuperset(map(type, values)):
            found = from_texts(pa.array(values, pa.string()), type_)
            if found is not None:
                return found
        return by_value(values, faults)

    return column


def from_texts(texts: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """Dates, timestamps or integers; None where one is none, or Arrow would read it otherwise."""
    usual = _DAY if pa.types.is_date(type_) else _MOMENT
    if pa.types.is_integer(type_):
        usual = _WHOLE
    if not pc.all(pc.match_substring_regex(texts, usual), min_count=0).as_py():
        return None
    try:
        return texts.cast(type_)
    except pa.ArrowInvalid:
        return None


def _array(
    values: Sequence[Any], start: int, expected: str, type_: pa.DataType, faults: Unfit
) -> pa.Array:
    """Searches values that Arrow refuses by halves: faults, and null. ``start``: the first row."""
    try:
        if pa.types.is_timestamp(type_) and type_.unit in ("s", "ms"):  # which would cut them
            return pa.array(values, pa.timestamp("us", type_.tz)).cast(type_)
        return pa.array(values, type_)
    except UNFIT:
        if len(values) == 1:
            if pa.types.is_integer(type_):
                most = 1 << (type_.bit_width - 1)
                expected = f"an integer from {-most} to {most - 1}"
            faults.setdefault(start, _unlike(values[0], expected, type_))
            return pa.nulls(1, type_)
    half = len(values) // 2
    return pa.concat_arrays(
        [
            _array(values[:half], start, expected, type_, faults),
            _array(values[half:], start + half, expected, type_, faults),
        ]
    )


def _unlike(value: Any, expected: str, type_: pa.DataType) -> TypeMismatch:
    return TypeMismatch("", type_, f"expected {expected}, found {shown(value)}")


def _each(
    values: Sequence[Any], one: _One, expected: str, type_: pa.DataType, faults: Unfit
) -> list[Any]:
    """``one`` of every value; what it refuses is a fault, and null."""
    done: list[Any] = [None] * len(values)
    for index, value in enumerate(values):
        try:
            done[index] = None if value is None else one(value)
        except UNFIT as error:
            mismatch = _unlike(value, expected, type_)
            if isinstance(error, _Misread):
                mismatch = mismatch._replace(why=f"{mismatch.why}{error}")
            faults.setdefault(index, mismatch)
    return done


def _of_class(
    values: Sequence[Any], class_: type, expected: str, type_: pa.DataType, faults: Unfit
) -> Sequence[Any]:
    classes = set(map(type, values))
    if classes <= {class_, type(None)}:
        return values
    return _each(values, _only(class_), expected, type_, faults)


def _struct_reader(type_: pa.DataType) -> _Column:
    fields = list(type_)
    readers = [(field.name, field_step(field.name), reader(field.type)) for field in type_]

    def column(values: Sequence[Any], faults: Unfit) -> pa.Array:
        rows = _of_class(values, dict, "an object", type_, faults)
        if not fields:
            return pa.array(rows, type_)
        nulls = None
        if not all(rows):
            nulls = pa.array([row is None for row in rows])
            rows = [{} if row is None else row for row in rows]
        columns, inner = [], Unfit()
        for name, step, read in readers:
            columns.append(read(of_field(name, rows), inner))
            if inner or inner.doubtful:
                faults.take(inner, step)
                inner = Unfit()
        return pa.StructArray.from_arrays(columns, fields=fields, mask=nulls)

    return column


def _list_reader(type_: pa.DataType) -> _Column:
    element = reader(type_.value_type)
    large = pa.types.is_large_list(type_)
    arrays, offset = (pa.LargeListArray, pa.int64()) if large else (pa.ListArray, pa.int32())

    def column(values: Sequence[Any], faults: Unfit) -> pa.Array:
        # Arrow would take the letters of a text
        rows = _of_class(values, list, "an array", type_, faults)
        inner = Unfit()
        items = element(list(chain.from_iterable(row for row in rows if row)), inner)
        if inner or inner.doubtful:
            owners, first = _owners(rows)
            _take_items(inner, owners, lambda at: f"[{at - first[owners[at]]}]", faults)
        return arrays.from_arrays(_starts(rows, offset), items, type=type_)

    return column


def _map_reader(type_: pa.DataType) -> _Column:
    names, item = _key_reader(type_.key_type), reader(type_.item_type)
    unique = type_.key_type in (pa.string(), pa.large_string())

    def column(values: Sequence[Any], faults: Unfit) -> pa.Array:
        rows = _of_class(values, dict, "an object", type_, faults)
        present = [row for row in rows if row]
        texts = list(chain.from_iterable(present))
        inner = Unfit()
        keys = names(texts, inner)
        items = item(list(chain.from_iterable(row.values() for row in present)), inner)
        if not inner and not unique and len(texts) > len(present):
            for at in _again(keys, _owners(rows)[0]):
                inner[at] = TypeMismatch(
                    "", type_.key_type, "another key of the map means the same"
                )
        if inner or inner.doubtful:
            owners, _ = _owners(rows)
            _take_items(inner, owners, lambda at: f"[{shown(texts[at])}]", faults)
        if inner:  # a key that does not fit would be null
            bad = {int(owners[at]) for at in inner}
            return column([None if at in bad else row for at, row in enumerate(rows)], faults)
        return pa.MapArray.from_arrays(_starts(rows, pa.int32()), keys, items, type=type_)

    return column


def _key_reader(type_: pa.DataType) -> _Column:
    """Reads the keys of a map, which are text in JSON: the key's own JSON without its quotes."""
    if pa.types.is_nested(type_):
        return _nested_key_reader(type_)
    taken, one, expected = _scalar(type_)
    if pa.types.is_integer(type_):
        by_value = _scalar_reader(type_, (), whole, "an integer, as JSON writes it")
        return _text_reader(type_, by_value)
    if pa.types.is_boolean(type_):
        taken, one = (), _truth
    elif pa.types.is_floating(type_):
        short = pa.types.is_float32(type_)
        taken, one = (), (lambda text: _short(number(text))) if short else number
    return _scalar_reader(type_, taken, one, expected)


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise _Misread
    return text == "true"


def _nested_key_reader(type_: pa.DataType) -> _Column:
    expected = "JSON, as it is written for a value"
    read = reader(type_)

    def one(text: str) -> Any:
        value = _parse_exactly(text.encode())
        if value is None:
            raise _Misread
        return value

    def column(values: Sequence[Any], faults: Unfit) -> pa.Array:
        return read(_each(values, one, expected, type_, faults), faults)

    return column


def _again(keys: pa.Array, owners: npt.NDArray[np.int64]) -> list[int]:
    """The places of keys that their map has already."""
    plain = write(keys) if pa.types.is_nested(keys.type) else keys
    codes = plain.dictionary_encode().indices.to_numpy().astype(np.int64)
    _, first = np.unique(owners * (len(codes) + 1) + codes, return_index=True)
    if len(first) == len(codes):
        return []
    again = np.ones(len(codes), np.bool_)
    again[first] = False
    return [int(at) for at in np.flatnonzero(again)]


def _starts(rows: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """The start of each row's items, null for null rows, and the end of the last."""
    starts: list[int | None] = list(accumulate((len(row or ()) for row in rows), initial=0))
    if not all(rows):
        starts[:-1] = [None if row is None else at for row, at in zip(rows, starts, strict=False)]
    return pa.array(starts, type_)


def _owners(rows: Sequence[Any]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The row of each item, and the first item of each row; items of all rows are numbered."""
    sizes = np.array([len(row or ()) for row in rows], np.int64)
    return np.repeat(np.arange(len(rows)), sizes), np.cumsum(sizes) - sizes


def _take_items(
    inner: Unfit,
    owners: npt.NDArray[np.int64],
    step: Callable[[int], str],
    faults: Unfit,
) -> None:
    for at, mismatch in sorted(inner.items()):
        faults.setdefault(int(owners[at]), mismatch.below(step(at)))
    faults.doubtful.update(int(owners[at]) for at in inner.doubtful)


def _only(class_: type) -> _One:
    def one(value: Any) -> Any:
        if type(value) is not class_:
            raise _Misread
        return value

    return one


def _of_text(read: Callable[[str], Any], no_text: Callable[[Any], str] | None) -> _One:
    """Reads texts. ``no_text`` says more of a value that cannot be read."""

    def one(value: Any) -> Any:
        why = ""
        if isinstance(value, str):
            try:
                return read(value)
            except ValueError as error:
                why = f": {error}" if str(error) else ""
        raise _Misread(why or ("" if no_text is None else no_text(value)))

    return one


def _no_moment(value: Any) -> str:
    if not (isinstance(value, str) and is_number(value)) and not _is_number(value):
        return ""
    return (
        ": a number may be seconds or milliseconds; declare a bigint, and convert it in a Column, "
        "as F.timestamp_millis does"
    )


def _no_day(value: Any) -> str:
    if not _is_number(value):
        return ""
    return (
        ": a number may be days or milliseconds; declare a bigint, and convert it in a Column, as "
        "F.date_from_unix_date does"
    )


def _base64(text: str) -> bytes:
    """Decodes base64; refuses bits that would be cut off."""
    data = text.encode("ascii", "replace")
    try:
        found = base64.b64decode(data, validate=True)
    except ValueError:
        raise ValueError from None
    if base64.b64encode(found) != data:
        raise ValueError
    return found


def _decimal_of(type_: pa.DataType) -> _One:
    quantum = decimal.Decimal(1).scaleb(-type_.scale)
    before = type_.precision - type_.scale
    beyond = decimal.Decimal(10) ** before

    def one(value: Any) -> decimal.Decimal:
        if isinstance(value, bool) or not isinstance(value, int | decimal.Decimal | str):
            raise _Misread
        if isinstance(value, str) and not is_number(value):
            raise _Misread
        found = decimal.Decimal(value)
        if found.copy_abs() >= beyond:
            raise _Misread(f": at most {before} digits stand before the point")
        try:
            return found.quantize(quantum, context=_DIGITS)
        except decimal.Inexact:
            raise _Misread(f": at most {type_.scale} digits stand behind the point") from None

    return one


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | decimal.Decimal) and not isinstance(value, bool)


def _number(value: Any) -> float:
    if isinstance(value, str):
        if not value.endswith(("NaN", "Infinity")):
            raise _Misread
        return number(value)
    if not _is_number(value):
        raise _Misread
    return float(value)  # the nearest; orjson refused what is too large for any


def _short(found: float) -> float:
    if BEYOND_FLOAT <= abs(found) < float("inf"):
        raise _Misread(", which is too large for a float")
    return found


def _integer(value: Any) -> int:
    if type(value) is int:
        return value
    if not _is_number(value) or (
        value != value.to_integral_value()
        if isinstance(value, decimal.Decimal)
        else not value.is_integer()
    ):
        raise _Misread
    if abs(value) > _EXACT:
        raise _Misread(": written so, or beyond 64 bits, it is too large to be read exactly")
    return int(value)


# --- the same in columns, by Arrow's parser -------------------------------------------------------

_Bytes = npt.NDArray[np.uint8]
_Flags = npt.NDArray[np.bool_]

_LONG = 200
"""A double holds 308 digits: with so few in a row and two in the exponent none is too large."""
_ODD = (
    r"[\x00-\x1f]"  # a newline ends a block; the others are no JSON in a text
    r"|\}[n ]"  # a null behind the value
    r"|[:,\[ -](?:NaN|Inf)"
    r"|[0-9][eE]\+?[0-9]{3}"
    rf"|[0-9]{{{_LONG}}}"
)
_CHUNK_ROWS, _CHUNK_BYTES = 16_384, 2_000_000
"""Limits of what is read at once: more rows cost as much each, and memory."""
_FEW_ROWS = 2000
"""A call of Arrow's parser costs as much as so many small rows one by one. Large ones are read a
few at a time in any case: as objects they take six times their bytes and more."""
_BLOCK = 1 << 17
"""Bytes that stay in the processor's cache while a few passes go over them."""
_MOST_ODD = 0.5
_MOST_LEVELS = 500
"""Fewer than orjson takes. A row that is shorter, or has fewer brackets, has no more levels."""


def read_columns(data: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Faults]:
    """As `read_rows` for the rows of ``data`` (``pa.binary()``), in a part of the time."""
    if len(data) < _FEW_ROWS and data.nbytes <= _CHUNK_BYTES:
        return read_rows(data.to_pylist(), type_)
    in_columns = pa.types.is_struct(type_) and _readable(type_)
    size = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES * len(data) // max(1, data.nbytes)))
    columns: list[pa.Array] = []
    faults: Faults = {}
    waits, failures = 0, 0
    for start in range(0, len(data), size):
        rows = data.slice(start, size)
        found = read_chunk(rows, type_) if in_columns and waits == 0 else None
        if found is None:
            found = read_rows(rows.to_pylist(), type_)
            failures += waits == 0
            waits = (waits or 2**failures) - 1
        columns.append(found[0])
        faults.update((start + row, error) for row, error in found[1].items())
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns), faults


def read_chunk(data: pa.Array, type_: pa.DataType) -> tuple[pa.Array, Faults] | None:
    """Odd rows are read by `read_rows`, the others by Arrow; None where it does not read them."""
    odd: _Flags = np.ones(len(data), np.bool_)
    valid = data.is_valid().to_numpy(zero_copy_only=False)
    odd[valid] = odd_rows(data.drop_null() if data.null_count else data)
    if odd.mean() > _MOST_ODD:
        return None
    if not odd.any():
        column = read_objects(data, type_)
        return None if column is None else (column, {})
    column = read_objects(data.filter(pa.array(~odd)), type_)
    if column is None:
        return None
    places = np.flatnonzero(odd)
    others, faults = read_rows(data.take(pa.array(places)).to_pylist(), type_)
    order = np.argsort(np.concatenate([np.flatnonzero(~odd), places]), kind="stable")
    both = pa.concat_arrays([column, others]).take(pa.array(order))
    return both, {int(places[row]): error for row, error in faults.items()}


@lru_cache(maxsize=256)
def _readable(type_: pa.DataType) -> bool:
    if pa.types.is_struct(type_):
        names = [field.name for field in type_]
        return 0 < len(names) == len(set(names)) and all(_readable(field.type) for field in type_)
    if pa.types.is_list(type_):
        return _readable(type_.value_type) and _asked(type_.value_type) == type_.value_type
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_signed_integer(type_)
        or pa.types.is_boolean(type_)
        or _asked(type_) in (pa.string(), pa.float64())
    )


def _asked(type_: pa.DataType) -> pa.DataType:
    """The type that Arrow's parser is asked for in place of ``type_``: `_made` converts it."""
    if pa.types.is_struct(type_):
        return pa.struct([(field.name, _asked(field.type)) for field in type_])
    if pa.types.is_timestamp(type_) or pa.types.is_date32(type_) or pa.types.is_binary(type_):
        return pa.string()
    return pa.float64() if pa.types.is_float32(type_) else type_


def _made(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """``type_`` from what was asked for; ArrowInvalid where one does not fit."""
    if column.type == type_:
        return column
    if pa.types.is_struct(type_):
        fields = [_made(column.field(index), field.type) for index, field in enumerate(type_)]
        nulls = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(fields, fields=list(type_), mask=nulls)
    in_time = pa.types.is_timestamp(type_) or pa.types.is_date32(type_)
    found = from_texts(column, type_) if in_time else None
    if found is None:
        unfit = Unfit()
        found = reader(type_)(column.to_pylist(), unfit)
        if unfit:
            raise pa.ArrowInvalid("a value does not fit")
    return found


def odd_rows(data: pa.Array) -> _Flags:
    """Marks the rows of ``data`` (``pa.binary()``, without nulls) that the parser must not see."""
    text, offsets = bytes_of(data)
    lengths = np.diff(offsets)
    odd: _Flags = lengths < 2
    if odd.all():
        return odd
    first, last = offsets[:-1], offsets[1:] - 1
    whole = ~odd
    odd[whole] = (text[first[whole]] != ord("{")) | (text[last[whole]] != ord("}"))
    longest = int(lengths.max())
    if may_be_odd(text[offsets[0] : offsets[-1]], longest):
        odd |= pc.match_substring_regex(data, _ODD).to_numpy(zero_copy_only=False)
    if longest > _MOST_LEVELS:
        all_rows = text[offsets[0] : offsets[-1]]
        brackets = np.flatnonzero((all_rows == ord("{")) | (all_rows == ord("[")))
        odd |= np.diff(np.searchsorted(brackets, offsets - offsets[0])) > _MOST_LEVELS
    return odd


def may_be_odd(text: _Bytes, longest: int) -> bool:
    """False where no row matches `_ODD`: a tenth of the regular expression's time."""
    if text.min() < ord(" ") or _stands(text, b"}", b"n "):
        return True
    if any(
        _stands(text, *word, before=b":,[ -") for word in ((b"N", b"a", b"N"), (b"I", b"n", b"f"))
    ):
        return True
    if longest >= _LONG and _digits_in_a_row(text):
        return True
    exponents = _after_digits(text[:-3])
    exponents += text[exponents + 1] == ord("+")
    return bool((_is_digit(text[exponents + 1]) & _is_digit(text[exponents + 2])).any())


def _after_digits(text: _Bytes) -> npt.NDArray[np.intp]:
    """Places of an ``e`` or ``E`` behind a digit, block by block for the processor's cache."""
    found = []
    for begin in range(0, len(text) - 1, _BLOCK):
        block = text[begin : begin + _BLOCK + 1]
        hits = _is_digit(block[:-1]) & ((block[1:] | 0x20) == ord("e"))
        if hits.any():
            found.append(np.flatnonzero(hits) + (begin + 1))
    return np.concatenate(found) if found else np.empty(0, np.intp)


def _stands(text: _Bytes, first: bytes, *after: bytes, before: bytes = b"") -> bool:
    """True if somewhere stand the byte ``first``, then one of each of ``after``, and one of
    ``before`` in front of it, if that has any. Names such as ``itemName`` begin as NaN does."""
    places = np.flatnonzero(text[: -len(after)] == ord(first))
    distances = [*enumerate(after, 1), *([(-1, before)] if before else ())]
    for distance, allowed in distances:
        found = text[places + distance]
        places = places[np.logical_or.reduce([found == one for one in allowed])]
    return len(places) > 0


def _digits_in_a_row(text: _Bytes) -> bool:
    """True if there may be `_LONG` digits in a row: those would cover two samples, and all between
    them. The samples alone are digits somewhere in most texts with many numbers."""
    step = _LONG // 2
    samples = _is_digit(text[::step])
    begins = np.flatnonzero(samples[:-1] & samples[1:]) * step
    return bool(_is_digit(text[begins[:, None] + np.arange(step)]).all(axis=1).any())


def _is_digit(text: _Bytes) -> _Flags:
    flags: _Flags = (text - np.uint8(ord("0"))) < 10
    return flags


def read_objects(data: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """A column of ``type_`` from rows none of which is odd; None where one of them is not read, or
    not as `read_rows` would."""
    rows = pa.ListArray.from_arrays(pa.array([0, len(data)], pa.int32()), data)
    text = pc.binary_join(rows, pa.scalar(b"\n", data.type))[0].as_buffer()
    whole = pa.py_buffer(np.array([0, text.size], np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, whole, text]).validate(full=True)
        table = pyarrow.json.read_json(
            pa.BufferReader(text),
            pyarrow.json.ReadOptions(use_threads=False, block_size=text.size + 1),
            pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(list(_asked(type_))), unexpected_field_behavior="ignore"
            ),
        )
        if len(table) != len(data):  # several values in a row
            return None
        objects = table.combine_chunks().to_struct_array().combine_chunks()
        return None if _has_negative_zero(objects) else _made(objects, type_)
    except pa.ArrowInvalid:
        return None


def _has_negative_zero(column: pa.Array) -> bool:
    """It may have been written ``-0``, which is an integer, and 0.0 as a double."""
    if pa.types.is_struct(column.type):
        fields = range(column.type.num_fields)
        return any(_has_negative_zero(column.field(index)) for index in fields)
    if pa.types.is_list(column.type):
        return _has_negative_zero(column.flatten())
    if not pa.types.is_floating(column.type):
        return False
    numbers = column.fill_null(1.0).to_numpy()
    return bool(np.signbit(numbers[numbers == 0]).any())


@dataclass(frozen=True, repr=False)
class JsonSerde:
    """Values of ``type`` as UTF-8 JSON text.

    Dates and timestamps are ISO 8601 text (timestamps ``2024-01-31T12:00:00.000000Z``, read with
    any offset), binary is base64, decimals are numbers (read from numbers or text), null fields are
    written as ``null``, NaN and the infinities as text. Raises SerdeError for a type that JSON
    cannot hold.
    """

    type: pa.DataType
    kind: str = "json"

    def __post_init__(self) -> None:
        storable(self.type)

    def encode(self, value: Any) -> bytes | None:
        return encode_one(self, value)

    def decode(self, data: bytes | None) -> Any:
        column, faults = read_rows([data], self.type)
        if faults:
            raise faults[0]
        return column[0].as_py()

    def encode_array(self, values: pa.Array) -> pa.Array:
        return write(flat(values, self.type))

    def decode_array(self, data: pa.Array) -> pa.Array:
        column, faults = self.decode_marked(data)
        for index, error in faults.items():
            raise SerdeError(str(error), index=index) from error
        return column

    def decode_marked(self, data: pa.Array) -> tuple[pa.Array, Faults]:
        """As `decode_array`, with null for each row that cannot be read, and why by row, in
        order."""
        return read_columns(flat(data, pa.binary()), self.type)

    def __repr__(self) -> str:
        return f"json({self.type})"
