"""JSON with a schema: objects in schema order, missing fields null, extra fields ignored.

What a text means, `json_reading` says (design note 015).
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa

from everflow.serdes.base import SerdeError, encode_one, flat
from everflow.serdes.json_columns import read
from everflow.serdes.json_reading import Faults, read_rows

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
        column, faults = read_rows([data], self.type)
        if faults:
            raise faults[0]
        return column[0].as_py()

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
        column, faults = self.decode_marked(data)
        for index, error in faults.items():
            raise SerdeError(f"row {index}: {error}", index=index) from error
        return column

    def decode_marked(self, data: pa.Array) -> tuple[pa.Array, Faults]:
        """As `decode_array`, with null for each row that cannot be read, and why by row, in
        order."""
        return read(flat(data, pa.binary()), self.type)

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
    return _nested(type_, _writer)


def _nested(type_: pa.DataType, convert: Callable[[pa.DataType], _Convert]) -> _Convert:
    if pa.types.is_struct(type_):
        fields = [(field.name, fn) for field in type_ if (fn := convert(field.type)) is not None]
        if not fields:
            return None

        def of_struct(value: dict[str, Any]) -> dict[str, Any]:
            value = dict(value)
            for name, fn in fields:
                if value[name] is not None:
                    value[name] = fn(value[name])
            return value

        return of_struct
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        element = convert(type_.value_type)
        if element is None:
            return None
        return lambda value: [None if v is None else element(v) for v in value]
    if pa.types.is_map(type_):
        item = convert(type_.item_type) or (lambda value: value)
        key = convert(type_.key_type) or (lambda value: value)
        return lambda value: {key(k): None if v is None else item(v) for k, v in value}
    return None


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
