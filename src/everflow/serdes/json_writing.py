"""Columns -> JSON texts.

A struct is its names and the texts of its fields, joined a column at a time. `_row_writer` says
what the text of a value is; a column's text is made without it where that is the same.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from everflow.serdes.base import SerdeError

_Convert = Callable[[Any], Any] | None
_Texts = Callable[[pa.Array], pa.Array]
"""A column of text, null where the value is null."""

_UNFIT = (pa.ArrowException, TypeError, ValueError, OverflowError)
_FEW = 400
"""So many rows cost as much in columns as one by one."""
_COLUMN_BYTES, _OBJECT_BYTES = 4_000_000, 1_000_000
"""What is written at once of large values, in columns and by value: as objects they take up to
sixteen times as much."""
_ESCAPED = r'["\\\x00-\x1f]'
_QUOTE, _NOTHING = pa.scalar('"'), pa.scalar("")
_TIMES = (pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32())
_YEARS = (dt.datetime.min, dt.datetime.max)


def write(values: pa.Array) -> pa.Array:
    """``pa.binary()``, null where ``values`` is null. SerdeError names the first row that cannot
    be written."""
    if len(values) >= _FEW:
        try:
            return write_columns(values)
        except _UNFIT:
            pass
    return write_rows(values)


def write_rows(values: pa.Array) -> pa.Array:
    """As `write`, value by value."""
    written = _row_writer(values.type)
    try:
        return _by_value(values)
    except _UNFIT:
        for index, value in enumerate(values):
            try:
                written(value.as_py())
            except _UNFIT as error:
                raise SerdeError(
                    f"row {index} cannot be written as JSON: {error}", index=index
                ) from error
        raise


def write_columns(values: pa.Array) -> pa.Array:
    """As `write`, in columns. Raises one of `_UNFIT` where `write_rows` must be asked."""
    values.validate(full=True)  # a string may hold bytes that are no text
    texts = _texts(values.type)
    return _in_chunks(values, 16_384, _COLUMN_BYTES, lambda some: texts(some).cast(pa.binary()))


def _by_value(values: pa.Array) -> pa.Array:
    written = _row_writer(values.type)
    # of 2,048 values at once each takes three times as long: their memory is no more at hand
    return _in_chunks(
        values,
        1024,
        _OBJECT_BYTES,
        lambda some: pa.array(list(map(written, some.to_pylist())), pa.binary()),
    )


def _in_chunks(values: pa.Array, size: int, most_bytes: int, texts: _Texts) -> pa.Array:
    size = max(1, min(size, most_bytes * len(values) // max(1, values.nbytes)))
    if len(values) <= size:
        return texts(values)
    starts = range(0, len(values), size)
    return pa.concat_arrays([texts(values.slice(start, size)) for start in starts])


@lru_cache(maxsize=256)
def _row_writer(type_: pa.DataType) -> Callable[[Any], bytes | None]:
    """Writes what ``to_pylist`` gives; None for None."""
    convert = _converter(type_)

    def written(value: Any) -> bytes | None:
        if value is None:
            return None
        plain = value if convert is None else convert(value)
        return orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS)

    return written


def _converter(type_: pa.DataType) -> _Convert:
    """Turns what ``to_pylist`` gives into what orjson takes; None where nothing has to change."""
    if pa.types.is_timestamp(type_):
        return _timestamp
    if pa.types.is_date(type_):
        return dt.date.isoformat
    if pa.types.is_decimal(type_):
        return _decimal
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return lambda value: base64.b64encode(value).decode()
    if pa.types.is_struct(type_):
        return _struct_converter(type_)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        element = _converter(type_.value_type)
        if element is None:
            return None
        return lambda value: [None if v is None else element(v) for v in value]
    if pa.types.is_map(type_):
        item = _converter(type_.item_type) or (lambda value: value)
        key = _converter(type_.key_type) or (lambda value: value)
        return lambda value: {key(k): None if v is None else item(v) for k, v in value}
    return None


def _struct_converter(type_: pa.DataType) -> _Convert:
    fields = [(field.name, fn) for field in type_ if (fn := _converter(field.type)) is not None]
    if not fields:
        return None

    def of_struct(value: dict[str, Any]) -> dict[str, Any]:
        value = dict(value)
        for name, fn in fields:
            if value[name] is not None:
                value[name] = fn(value[name])
        return value

    return of_struct


def _timestamp(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return (
        value.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds")
        + "Z"
    )


def _decimal(value: decimal.Decimal) -> Any:
    # orjson knows no decimals: a fragment keeps every digit as a JSON number
    return orjson.Fragment(format(value, "f").encode())


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
        names.append(pa.scalar("{,"[index > 0] + orjson.dumps(field.name).decode() + ":"))
        texts.append(_texts(field.type))
    end = pa.scalar("}")

    def joined(column: pa.Array) -> pa.Array:
        parts = []
        for name, text, field in zip(names, texts, column.flatten(), strict=True):
            parts += [name, text(field)]
        rows = pc.binary_join_element_wise(
            *parts, end, _NOTHING, null_handling="replace", null_replacement="null"
        )
        return pc.if_else(column.is_valid(), rows, None) if column.null_count else rows

    return joined


def _number_texts(column: pa.Array) -> pa.Array:
    """orjson's digits: Arrow writes 1e16 as 1e+16, and NaN and infinities, which are null."""
    column = column.cast(pa.float64())
    text = orjson.dumps(
        (column.fill_null(0.0) if column.null_count else column).to_numpy(),
        option=orjson.OPT_SERIALIZE_NUMPY,
    )
    texts = pc.split_pattern(pa.array([text[1:-1].decode()]), ",").values[: len(column)]
    return pc.if_else(column.is_valid(), texts, None) if column.null_count else texts


def _quoted_texts(column: pa.Array) -> pa.Array:
    texts = pc.binary_join_element_wise(_QUOTE, column, _QUOTE, _NOTHING)
    escaped = pc.match_substring_regex(column, _ESCAPED).fill_null(False)
    if not escaped.true_count:
        return texts
    written = [orjson.dumps(text).decode() for text in column.filter(escaped).to_pylist()]
    return pc.replace_with_mask(texts, escaped, pa.array(written, pa.string()))


def _time_texts(column: pa.Array) -> pa.Array:
    """Of dates and times; ArrowInvalid beyond the years that Python has, which no row can say."""
    zone = getattr(column.type, "tz", None)
    moments = column.cast(pa.timestamp("us", zone))  # of dates: ArrowInvalid beyond 64 bits
    first, last = (pa.scalar(year, pa.timestamp("us")).cast(moments.type) for year in _YEARS)
    if pc.any(pc.or_(pc.less(moments, first), pc.greater(moments, last))).as_py():
        raise pa.ArrowInvalid("years beyond 1 to 9999")
    texts = pc.replace_substring(column.cast(pa.string()), " ", "T")
    return pc.binary_join_element_wise(_QUOTE, texts, _QUOTE, _NOTHING)
