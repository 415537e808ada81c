"""Columns -> JSON texts.

A struct is its names and the texts of its fields, joined a column at a time. `_row_writer` says
what the text of a value is; a column's text is made without it where that is the same.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from everflow.exact_texts import number_text
from everflow.serdes.arrow_types import TypeMismatch, field_step, holds
from everflow.serdes.base import SerdeError, bytes_of

_Convert = Callable[[Any], Any] | None
_Texts = Callable[[pa.Array], pa.Array]
"""A column of text, null where the value is null."""

_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
_FEW = 400
"""Up to this number of rows, columns are no faster than one by one."""
_CHECKED_AT_ONCE = 16
"""From this number of values on, one search of their columns for NaN is faster than one each."""
_COLUMN_BYTES, _OBJECT_BYTES = 4_000_000, 1_000_000
"""Bytes of large values that are written at once, in columns and by value: as objects they take up
to sixteen times as much."""
_ESCAPED = r'["\\\x00-\x1f]'
_QUOTE, _NOTHING = pa.scalar('"'), pa.scalar("")
_TIMES = (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32())
_YEARS = (dt.datetime.min, dt.datetime.max)
_NO_YEAR = "it lies outside of the years 1 to 9999"
_NO_JSON = {
    pa.string().id: "its bytes are no UTF-8",
    pa.timestamp("us").id: _NO_YEAR,
    pa.date32().id: _NO_YEAR,
}


def write(values: pa.Array) -> pa.Array:
    """``pa.binary()``, null where ``values`` is. SerdeError names the first row without JSON."""
    if len(values) >= _FEW:
        try:
            return write_columns(values)
        except _UNFIT:
            pass
    return write_rows(values)


def write_rows(values: pa.Array) -> pa.Array:
    try:
        return _by_value(values)
    except _UNFIT as error:
        for index in range(len(values)):
            mismatch = _unwritable(values[index : index + 1])
            if mismatch is not None:
                raise SerdeError(f"cannot be written as JSON: {mismatch}", index=index) from error
        raise


def _unwritable(value: pa.Array) -> TypeMismatch | None:
    """Why the one value of the array has no JSON; None where it has."""
    type_ = value.type
    if value.null_count:
        return None
    if pa.types.is_struct(type_):
        for field, column in zip(type_, value.flatten(), strict=True):
            if (found := _unwritable(column)) is not None:
                return found.below(field_step(field.name))
        return None
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        for at, item in enumerate(_each_of(value.flatten())):
            if (found := _unwritable(item)) is not None:
                return found.below(f"[{at}]")
        return None
    if pa.types.is_map(type_):
        keys, items = map(_each_of, _entries(value))
        for key, item in zip(keys, items, strict=True):
            if (found := _unwritable(key)) is not None:
                return found
            if (found := _unwritable(item)) is not None:
                text: str = key_text(key.type)(key[0].as_py())
                return found.below(f"[{orjson.dumps(text[:100]).decode()}]")
    try:
        _row_writer(type_, False)(value[0].as_py())
    except _Twice as error:
        return TypeMismatch("", type_, str(error))
    except _UNFIT:
        return TypeMismatch("", type_, _NO_JSON.get(type_.id, "it has no JSON"))
    return None


def _entries(maps: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Keys and values of all maps of a column, which may be a slice."""
    begin, end = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    return maps.keys[begin:end], maps.items[begin:end]


def _each_of(column: pa.Array) -> list[pa.Array]:
    return [column[at : at + 1] for at in range(len(column))]


def write_columns(values: pa.Array) -> pa.Array:
    """As `write`, in columns. Raises one of `_UNFIT` where `write_rows` must be asked."""
    values.validate(full=True)  # a string may hold bytes that are no text
    texts = _texts(values.type)
    return _in_chunks(
        values,
        16_384,
        _COLUMN_BYTES,
        lambda some: texts(some).cast(pa.binary()),
    )


def _by_value(values: pa.Array) -> pa.Array:
    finite = len(values) >= _CHECKED_AT_ONCE and _all_finite(values)
    written = _row_writer(values.type, finite, values.null_count > 0)
    # of 2,048 values at once each takes three times as long: their memory is no more at hand
    return _in_chunks(
        values,
        1024,
        _OBJECT_BYTES,
        lambda some: pa.array(list(map(written, some.to_pylist())), pa.binary()),
    )


def _all_finite(values: pa.Array) -> bool:
    """False where there may be a NaN or an infinity, which orjson would write as ``null``."""
    type_ = values.type
    if not _has_floats(type_):
        return True
    if pa.types.is_struct(type_):
        return all(_all_finite(values.field(index)) for index in range(type_.num_fields))
    if pa.types.is_map(type_):
        return _all_finite(_entries(values)[1])
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return _all_finite(values.flatten())
    numbers = (values.fill_null(0.0) if values.null_count else values).to_numpy()
    return bool(np.isfinite(numbers).all())


@lru_cache(maxsize=256)
def _has_floats(type_: pa.DataType) -> bool:
    return holds(type_, pa.types.is_floating)


def _in_chunks(values: pa.Array, size: int, most_bytes: int, texts: _Texts) -> pa.Array:
    size = max(1, min(size, most_bytes * len(values) // max(1, values.nbytes)))
    if len(values) <= size:
        return texts(values)
    starts = range(0, len(values), size)
    return pa.concat_arrays([texts(values.slice(start, size)) for start in starts])


@lru_cache(maxsize=256)
def _row_writer(
    type_: pa.DataType, finite: bool, nulls: bool = True
) -> Callable[[Any], bytes | None]:
    """Writes what ``to_pylist`` gives; None for None (``nulls``: there may be one). ``finite``: all
    numbers in it are."""
    convert = _converter(type_, finite)
    if convert is None and not nulls:
        return orjson.dumps

    def written(value: Any) -> bytes | None:
        if value is None:
            return None
        return orjson.dumps(value if convert is None else convert(value))

    return written


def _converter(type_: pa.DataType, finite: bool) -> _Convert:
    """Turns what ``to_pylist`` gives into what orjson takes; None where nothing has to change."""
    if pa.types.is_timestamp(type_):
        return _timestamp
    if pa.types.is_date(type_):
        return dt.date.isoformat
    if pa.types.is_decimal(type_):
        # orjson knows no decimals: a fragment keeps every digit as a JSON number
        return lambda value: orjson.Fragment(format(value, "f").encode())
    if pa.types.is_floating(type_):
        return None if finite else lambda one: one if math.isfinite(one) else number_text(one)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_struct(type_):
        return _struct_converter(type_, finite)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        element = _converter(type_.value_type, finite)
        if element is None:
            return None
        return lambda value: [None if v is None else element(v) for v in value]
    if pa.types.is_map(type_):
        return _map_converter(type_, finite)
    return None


def _struct_converter(type_: pa.DataType, finite: bool) -> _Convert:
    fields = [
        (field.name, fn) for field in type_ if (fn := _converter(field.type, finite)) is not None
    ]
    if not fields:
        return None

    def of_struct(value: dict[str, Any]) -> dict[str, Any]:
        value = dict(value)
        for name, fn in fields:
            if value[name] is not None:
                value[name] = fn(value[name])
        return value

    return of_struct


def _map_converter(type_: pa.DataType, finite: bool) -> _Convert:
    key, item = key_text(type_.key_type), _converter(type_.item_type, finite)

    def of_map(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        made = {key(k): v if v is None or item is None else item(v) for k, v in pairs}
        if len(made) < len(pairs):
            texts = [key(k) for k, _ in pairs]
            again = next(text for at, text in enumerate(texts) if text in texts[:at])
            raise _Twice(f"it has the key {orjson.dumps(again[:100]).decode()} twice")
        return made

    return of_map


def key_text(type_: pa.DataType) -> Callable[[Any], str]:
    """The name of a key of a map in JSON: the key's own JSON, without the quotes of a text."""
    if type_ in (pa.string(), pa.large_string()):
        return lambda key: key
    if pa.types.is_integer(type_):
        return str
    written = _row_writer(type_, False)

    def text(key: Any) -> str:
        data = written(key) or b""
        return (data[1:-1] if data[:1] == b'"' else data).decode()

    return text


class _Twice(ValueError):
    """A map has a key twice, of which JSON keeps one."""


def _timestamp(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    instant = value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    return f"{instant.isoformat(timespec='microseconds')}Z"


@lru_cache(maxsize=256)
def _texts(type_: pa.DataType) -> _Texts:
    if pa.types.is_struct(type_) and 0 < type_.num_fields == len({f.name for f in type_}):
        return _struct_texts(type_)
    if pa.types.is_integer(type_) or pa.types.is_boolean(type_):
        return lambda column: column.cast(pa.string())
    if pa.types.is_float64(type_) or pa.types.is_float32(type_):
        return _number_texts
    if pa.types.is_string(type_):
        return _quoted_texts
    if type_ in _TIMES:
        return _time_texts
    return lambda column: _by_value(column).cast(pa.string())


def _struct_texts(type_: pa.DataType) -> _Texts:
    names, texts = [], []
    for index, field in enumerate(type_):
        names.append("{,"[index > 0] + orjson.dumps(field.name).decode() + ":")
        texts.append(_texts(field.type))

    def joined(column: pa.Array) -> pa.Array:
        parts, before = [], ""
        for name, text, field in zip(names, texts, column.flatten(), strict=True):
            # The quotes of texts that stay as they are stand with the names: one copy less.
            as_it_is = text is _quoted_texts and not field.null_count and not _may_escape(field)
            quote = '"' if as_it_is else ""
            parts += [pa.scalar(before + name + quote), field if as_it_is else text(field)]
            before = quote
        rows = pc.binary_join_element_wise(
            *parts,
            pa.scalar(before + "}"),
            _NOTHING,
            null_handling="replace",
            null_replacement="null",
        )
        return pc.if_else(column.is_valid(), rows, None) if column.null_count else rows

    return joined


def _number_texts(column: pa.Array) -> pa.Array:
    """orjson's digits: Arrow writes 1e16 as 1e+16."""
    column = column.cast(pa.float64())
    numbers = (column.fill_null(0.0) if column.null_count else column).to_numpy()
    text = orjson.dumps(numbers, option=orjson.OPT_SERIALIZE_NUMPY)
    texts = pc.split_pattern(pa.array([text[1:-1].decode()]), ",").values[: len(column)]
    finite = np.isfinite(numbers)
    if not finite.all():
        odd = [f'"{number_text(value)}"' for value in numbers[~finite].tolist()]
        texts = pc.replace_with_mask(texts, pa.array(~finite), pa.array(odd, pa.string()))
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts


def _quoted_texts(column: pa.Array) -> pa.Array:
    texts = pc.binary_join_element_wise(_QUOTE, column, _QUOTE, _NOTHING)
    if not _may_escape(column):
        return texts
    escaped = pc.match_substring_regex(column, _ESCAPED).fill_null(False)
    if not escaped.true_count:
        return texts
    written = [orjson.dumps(text).decode() for text in column.filter(escaped).to_pylist()]
    return pc.replace_with_mask(texts, escaped, pa.array(written, pa.string()))


def _may_escape(column: pa.Array) -> bool:
    """False where no row matches `_ESCAPED`: a look at all bytes at once."""
    text, places = bytes_of(column)
    text = text[places[0] : places[-1]]
    if not len(text):
        return False
    return bool(text.min() < ord(" ") or any((text == ord(one)).any() for one in '"\\'))


def _time_texts(column: pa.Array) -> pa.Array:
    """Texts of dates and times; ArrowInvalid beyond Python's years, where no row has a text."""
    zone = getattr(column.type, "tz", None)
    moments = column.cast(pa.timestamp("us", zone))  # of dates: ArrowInvalid beyond 64 bits
    first, last = (pa.scalar(year, pa.timestamp("us")).cast(moments.type) for year in _YEARS)
    if pc.any(pc.or_(pc.less(moments, first), pc.greater(moments, last))).as_py():
        raise pa.ArrowInvalid(_NO_YEAR)
    texts = pc.replace_substring(column.cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise(_QUOTE, texts, _QUOTE, _NOTHING)
