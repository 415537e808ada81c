"""JSON with a schema: objects in schema order, missing fields null, extra fields ignored."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from everflow.serdes.base import SerdeError, encode_one, flat

_DIGITS = decimal.Context(prec=76)  # the default of 28 digits is fewer than decimal(38) has
_BEYOND_FLOAT = float(2**128 - 2**103)
"""From here on a number is rounded to infinity in 32 bits."""
_Convert = Callable[[Any], Any] | None


@dataclass(frozen=True, repr=False)
class JsonSerde:
    """UTF-8 JSON text <-> ``type``.

    Dates and timestamps are ISO 8601 text (timestamps ``2024-01-31T12:00:00.000000Z``, read with
    any offset), binary is base64, decimals are numbers (read from numbers or text), null fields are
    written as ``null``.
    """

    type: pa.DataType
    kind: str = "json"

    def encode(self, value: Any) -> bytes | None:
        return encode_one(self, value)

    def decode(self, data: bytes | None) -> Any:
        return None if data is None else self._read([data])[0].as_py()

    def encode_array(self, values: pa.Array) -> pa.Array:
        write = _writer(self.type)
        rows: list[bytes | None] = []
        for index, item in enumerate(flat(values, self.type).to_pylist()):
            try:
                plain = item if item is None or write is None else write(item)
                rows.append(
                    None if item is None else orjson.dumps(plain, option=orjson.OPT_NON_STR_KEYS)
                )
            except (TypeError, ValueError) as error:
                raise SerdeError(
                    f"row {index} cannot be written as JSON: {error}", index=index
                ) from error
        return pa.array(rows, pa.binary())

    def decode_array(self, data: pa.Array) -> pa.Array:
        rows = flat(data, pa.binary()).to_pylist()
        try:
            return self._read(rows)
        except SerdeError:
            for index, row in enumerate(rows):  # slow path: name the first bad row
                try:
                    self._read([row])
                except SerdeError as error:
                    raise SerdeError(f"row {index}: {error}", index=index) from error
            raise

    def _read(self, rows: list[bytes | None]) -> pa.Array:
        read = _reader(self.type)
        parse = _parse_exactly if _has_decimal(self.type) else orjson.loads
        try:
            values = [None if row is None else parse(row) for row in rows]
            if read is not None:
                values = [None if value is None else read(value) for value in values]
            return pa.array(values, self.type)
        except json.JSONDecodeError as error:  # orjson's is a subclass
            raise SerdeError(f"not JSON: {error}") from error
        except (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError) as error:
            raise SerdeError(f"JSON that does not fit {self.type}: {error}") from error

    def __repr__(self) -> str:
        return f"json({self.type})"


def _writer(type_: pa.DataType) -> _Convert:
    """Turns what ``to_pylist`` gives into what JSON can hold; None where nothing has to change."""
    if pa.types.is_timestamp(type_):
        return _write_timestamp
    if pa.types.is_date(type_):
        return dt.date.isoformat
    if pa.types.is_decimal(type_):
        return _write_decimal
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return lambda value: base64.b64encode(value).decode()
    return _nested(type_, _writer, map_in=dict, map_out=dict)


def _reader(type_: pa.DataType) -> _Convert:
    """Turns what JSON holds into what ``pa.array`` takes; None where nothing has to change."""
    if pa.types.is_timestamp(type_):
        return _read_timestamp if type_.tz else lambda value: dt.datetime.fromisoformat(value)
    if pa.types.is_date(type_):
        return dt.date.fromisoformat
    if pa.types.is_decimal(type_):
        quantum = decimal.Decimal(1).scaleb(-type_.scale)
        return lambda value: decimal.Decimal(str(value)).quantize(quantum, context=_DIGITS)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return lambda value: base64.b64decode(value, validate=True)
    if pa.types.is_integer(type_):
        return _read_integer  # Arrow would cut off what is behind the point
    if pa.types.is_floating(type_):
        return _read_number if pa.types.is_float64(type_) else _read_float
    return _nested(
        type_, _reader, map_in=_object, map_out=lambda value: list(value.items()), checked=True
    )


def _nested(
    type_: pa.DataType,
    convert: Callable[[pa.DataType], _Convert],
    map_in: Callable[[Any], dict[Any, Any]],
    map_out: Callable[[dict[Any, Any]], Any],
    checked: bool = False,
) -> _Convert:
    """``checked``: what is no object or array is refused, although nothing in it has to change."""
    if pa.types.is_struct(type_):
        fields = [(field.name, fn) for field in type_ if (fn := convert(field.type)) is not None]
        if not fields:
            return _object if checked else None

        def of_struct(value: Any) -> Any:
            value = dict(_object(value))
            for name, fn in fields:
                if value.get(name) is not None:
                    value[name] = fn(value[name])
            return value

        return of_struct
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        element = convert(type_.value_type)
        if element is None:
            return _array if checked else None
        return lambda value: [None if v is None else element(v) for v in _array(value)]
    if pa.types.is_map(type_):
        item = convert(type_.item_type) or (lambda value: value)
        key = convert(type_.key_type) if not pa.types.is_integer(type_.key_type) else int
        name = key or (lambda value: value)
        return lambda value: map_out(
            {name(k): None if v is None else item(v) for k, v in map_in(value).items()}
        )
    return None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, found {value!r:.100}")
    return value


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):  # Arrow would take the letters of a text
        raise TypeError(f"expected an array, found {value!r:.100}")
    return value


def _write_timestamp(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat(timespec="microseconds")
    return (
        value.astimezone(dt.timezone.utc).replace(tzinfo=None).isoformat(timespec="microseconds")
        + "Z"
    )


def _write_decimal(value: decimal.Decimal) -> Any:
    # orjson knows no decimals: a fragment keeps every digit as a JSON number
    return orjson.Fragment(format(value, "f").encode())


def _read_timestamp(value: Any) -> dt.datetime:
    if not isinstance(value, str):
        raise TypeError(f"expected a time as text, found {value!r:.100}")
    parsed = dt.datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith("Z") else value)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.timezone.utc)


def _read_float(value: Any) -> Any:
    number = _read_number(value)
    if isinstance(number, int | float) and abs(number) >= _BEYOND_FLOAT:
        raise TypeError(f"{value} is too large for a float")
    return number


def _read_number(value: Any) -> Any:
    if isinstance(value, bool):  # Arrow would take true as 1
        raise TypeError(f"expected a number, found {value}")
    if not isinstance(value, decimal.Decimal):
        return value
    number = float(value)
    if math.isinf(number):  # orjson refuses it by itself
        raise TypeError(f"{value} is too large for a double")
    return number


def _read_integer(value: Any) -> Any:
    number = _read_number(value)
    if isinstance(number, float):
        if not number.is_integer():
            raise TypeError(f"expected an integer, found {value}")
        return int(number)
    return number


def _has_decimal(type_: pa.DataType) -> bool:
    if pa.types.is_map(type_):
        return _has_decimal(type_.key_type) or _has_decimal(type_.item_type)
    if pa.types.is_nested(type_):
        return any(_has_decimal(type_.field(index).type) for index in range(type_.num_fields))
    return bool(pa.types.is_decimal(type_))


def _parse_exactly(row: bytes) -> Any:
    """The standard library's parser: orjson reads every fraction as a double, which loses digits of
    decimals."""
    try:
        return json.loads(row.decode(), parse_float=decimal.Decimal, parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError(f"not UTF-8: {error.reason}", "", error.start) from error


def _no_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)
